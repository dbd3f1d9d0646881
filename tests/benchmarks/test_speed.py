"""Speed, with pytest-benchmark: `python -m pytest tests/benchmarks --benchmark-only`.

What `python -m audit bench` does not measure. Skipped by default. Rates depend on the
machine: compare lines of one run. What was computed rides along in `extra_info`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit import rng
from audit.cli.bench import subjects
from audit.clipping import soft_clip
from audit.config import registry
from audit.data import Dataset, half_in
from audit.engine import shadow
from audit.engine.signals import Shadows, Signals, of_release
from audit.games import leave_one_out
from audit.games.base import Problem, Runs, Table
from audit.games.guarantees import Guarantees
from audit.games.membership import _scorer
from audit.mechanisms import batch
from audit.mechanisms.query import Side, gradient
from audit.models import networks, pretrain
from audit.statistics import lpips
from audit.types import Examples, Knowledge, Lanes, Release, Splits, Task, TrainingSet

ENGINE = shadow.Engine(Lanes())
LINEAR = subjects.SUBJECTS["linear"]


@pytest.fixture(scope="module")
def problem():
    return LINEAR.task, subjects.training_set(LINEAR, 2_048)


def test_exact_logistic_fits(benchmark, problem):
    """Minimisers in float64, one record of 1,001 differing between them."""
    _, data = problem
    learner = subjects.make("glm", LINEAR)
    run = lambda: shadow.sweep(
        "train", learner, jax.random.key(1), data, engine=ENGINE, precise=True
    )
    out = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["models"] = len(out.params)
    benchmark.extra_info["mean square weight"] = float((out.params**2).mean())


def test_glm_attack_on_every_record(benchmark, problem):
    """Guesses = records x releases; the n x d guesses of a release are never stored."""
    task, data = problem
    learner, key = subjects.make("glm", LINEAR), jax.random.key(1)
    n, releases = len(data.target.y), 100
    nobody = jax.tree.map(lambda a: a[:0], data.fixed)
    splits = Splits(
        nobody, data.target, nobody, data.fixed, data.fixed, np.arange(1000)
    )
    dataset = Dataset("random", *data.target, None, None, "embedded", "")
    table = Table(Problem(task, splits, dataset), ENGINE, releases, "none")
    weights = np.random.default_rng(0).normal(size=(releases, 785)) / 100
    attack = registry.find("attack", "glm_attack")(task)
    run = lambda: leave_one_out.play(
        key, attack, Runs(learner, Release(weights), None), Guarantees(), table
    )
    result = benchmark.pedantic(run, rounds=2, warmup_rounds=1)
    benchmark.extra_info["guesses"] = n * releases
    benchmark.extra_info["median error"] = result.numbers["mse_typical"]


def test_lpips(benchmark):
    weights = lpips.load_weights()
    a, b = np.random.default_rng(0).uniform(size=(2, 100, 28, 28, 1))
    run = lambda: lpips.lpips_images(weights, a, b)
    values = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["mean lpips"] = float(values.mean())


NETWORK = {
    "optimizer": "adam", "learning_rate": 0.003, "sampling": "shuffled",
    "batch_size": 100, "steps": 330,
}  # fmt: skip


@pytest.mark.parametrize("name", ["sgd", "dpsgd"])
def test_half_in_shadow_networks(benchmark, name):
    """256 perceptrons 784-64-10 as in mia_mnist5k, trained and asked."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(5000, 28, 28, 1)).astype(np.float32)
    z = Examples(x, rng.integers(0, 10, 5000).astype(np.int32))
    fixed, pool = (
        jax.tree.map(lambda a, p=p: a[p], z) for p in (slice(4000), slice(4000, None))
    )
    task, key = networks.mlp((28, 28, 1), 10, hidden=64), jax.random.key(0)
    nobody = jax.tree.map(lambda a: a[:0], z)
    learner = shadow.learner(
        registry.find("defense", name),
        task,
        registry.check("defense", name, dict(NETWORK), name),
        key=key,
        public=pretrain.start(task, key, nobody),
        label=name,
    )
    member = half_in.in_out.member(key, 256, 4000)
    data = TrainingSet(fixed, None, half_in.in_out.rows(member))
    rows, engine = (fixed, pool, np.zeros(1, np.int32)), shadow.Engine(Lanes(64))
    run = lambda: shadow.sweep(
        "train", learner, key, data, *rows, engine=engine, then=of_release
    )
    signals = benchmark.pedantic(run, rounds=1, warmup_rounds=0)
    benchmark.extra_info["models"] = 256
    assert np.isfinite(signals.candidates).all()


@pytest.mark.parametrize(
    "name", ["loss_threshold", "attack_p", "attack_s", "attack_r", "lira", "rmia"]
)
def test_scoring(benchmark, name):
    """Fit to signals of 256 models on 60,000 candidates, and score one model."""
    rng, n, pool = np.random.default_rng(0), 60_000, 1_000
    member = half_in.in_out.member(jax.random.key(0), 256, n)
    odds = rng.normal(size=(256, n, 1)).astype(np.float32) + member[..., None] + 4
    others = rng.normal(size=(256, pool, 1)) + 4
    signals = Signals(odds.astype(np.float16), others.astype(np.float16))
    label = rng.integers(0, 10, n).astype(np.int32)
    shadows = Shadows(member, label, signals)
    target = jax.tree.map(lambda a: a[:1], signals)
    nobody = Examples(np.zeros((pool, 1)), rng.integers(0, 10, pool))
    task = Task("test", None, None, None, (1,), 10)
    attack = registry.find("attack", name)(task)
    knowledge = Knowledge(task, nobody, np.arange(pool), shadows=shadows)

    def run():
        state, _ = attack.fit(jax.random.key(0), knowledge)
        one = Shadows(member[:1], label, target)
        return _scorer(attack, state)(jax.random.key(1), one)

    scores = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["signals"] = 256 * n
    inside = member[0]
    assert np.median(scores[0, inside]) > np.median(scores[0, ~inside])


RECORDS = 128
COLOUR, GREY = (32, 32, 3), (28, 28, 1)
TASKS = {
    "lenet": networks.lenet(COLOUR, 10),
    "lenet, 100 classes": networks.lenet(COLOUR, 100),
    "lenet5": networks.lenet(COLOUR, 10, kind="lenet5"),
    "cnn_tanh": networks.cnn_tanh(GREY, 10),
    "cnn_max_pool": networks.cnn_max_pool(GREY, 10),
}


@pytest.mark.parametrize("part", [1, 8, 32])
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", TASKS)
def test_clipped_sum(benchmark, name, lanes, part):
    """What a step of DP-SGD costs, without its noise; compiled in the warm-up."""
    task, rng = TASKS[name], np.random.default_rng(0)
    x = rng.uniform(size=(RECORDS, *task.features)).astype(np.float32)
    z = Examples(x, np.arange(RECORDS) % task.classes)
    query = gradient(task, soft_clip(1.0))
    forms = query.closed_forms._replace(part=part)
    total = partial(batch.sum_fixed, query._replace(closed_forms=forms))
    params = jax.vmap(task.init)(jax.random.split(jax.random.key(0), lanes))
    run = jax.jit(jax.vmap(lambda p: total(p, Side(p), z, np.ones(RECORDS))))
    benchmark(lambda: jax.block_until_ready(run(params)))


@pytest.mark.parametrize(("lanes", "size"), [(512, 785), (1, 1_900_000)])
@pytest.mark.parametrize("draw", [jax.random.normal, rng.normal], ids=["jax", "ours"])
def test_normals(benchmark, draw, lanes, size):
    """Normals of the lanes of a tile, as a step adds them: JAX's own and ours."""
    keys, total = jax.random.split(jax.random.key(0), lanes), jnp.zeros((lanes, size))
    add = jax.jit(jax.vmap(lambda key, row: row + 0.1 * draw(key, (size,))))
    benchmark(lambda: jax.block_until_ready(add(keys, total)))
