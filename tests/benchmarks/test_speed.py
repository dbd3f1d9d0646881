"""Speed, with pytest-benchmark: `python -m pytest tests/benchmarks --benchmark-only`.

Skipped by default. Rates depend on the machine: compare lines of one run, and the
shares `python -m audit bench` prints. What was computed rides along in `extra_info`.
"""

import jax
import numpy as np
import pytest

from audit import bench, in_turn, perceptual, registry, shadow
from audit.accounting import Guarantees
from audit.data import Dataset
from audit.games import Table
from audit.rows import Problem
from audit.types import Lanes, Release, Splits

ENGINE = shadow.Engine(Lanes())


@pytest.fixture(scope="module")
def problem():
    return bench.problem()


@pytest.mark.parametrize("name", bench.SETTINGS)
def test_shadow_models(benchmark, problem, name):
    task, data = problem
    of, key = bench.learner(name, task), jax.random.key(1)
    run = lambda: shadow.sweep("train", of, key, data, engine=ENGINE)  # noqa: E731
    out = benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    weights = np.concatenate([a.ravel() for a in jax.tree.leaves(out)])
    benchmark.extra_info["models"] = bench.MODELS
    benchmark.extra_info["mean square weight"] = float((weights**2).mean())
    assert np.isfinite(weights).all()


def test_plain_loop_rival(benchmark, problem):
    task, data = problem
    loop = bench.plain_loop(task, bench.learner("dpsgd", task))
    z = jax.tree.map(lambda a: a[0], data.target)
    run = lambda: jax.block_until_ready(loop(jax.random.key(1), data.fixed, z))  # noqa: E731
    benchmark.pedantic(run, rounds=10, warmup_rounds=1)
    benchmark.extra_info["models"] = 1


def test_matrix_product(benchmark):
    d = int(np.prod(bench.PIXELS))
    x = jax.numpy.asarray(np.random.default_rng(0).normal(size=(bench.FIXED, d)))
    both = jax.jit(lambda w: (w @ x.T) @ x)
    w = jax.numpy.ones((ENGINE.lanes.tile, d)) / d
    benchmark.pedantic(lambda: both(w).block_until_ready(), rounds=20, warmup_rounds=2)
    benchmark.extra_info["gflop"] = 4 * ENGINE.lanes.tile * bench.FIXED * d / 1e9


def test_fisher_closed_form(benchmark, problem):
    task, data = problem
    of, rows = bench.learner("dpsgd", task), np.array([bench.FIXED])
    few = data._replace(target=jax.tree.map(lambda a: a[:512], data.target))
    run = lambda: shadow.sweep(  # noqa: E731
        "fisher", of, jax.random.key(1), few, rows, engine=ENGINE, precise=True
    )
    traces = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["mean dfil"] = float(traces.mean() / 784)


def test_exact_logistic_fits(benchmark, problem):
    """Minimisers in float64, one record of 1,001 differing between them."""
    task, data = problem
    of = bench.learner("glm", task)
    run = lambda: shadow.sweep(  # noqa: E731
        "train", of, jax.random.key(1), data, engine=ENGINE, precise=True
    )
    out = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["models"] = len(out.params)
    benchmark.extra_info["mean square weight"] = float((out.params**2).mean())


def test_glm_attack_on_every_record(benchmark, problem):
    """Guesses = records x releases; the n x d guesses of a release are never stored."""
    task, data = problem
    of, key = bench.learner("glm", task), jax.random.key(1)
    n, releases = len(data.target.y), 100
    nobody = jax.tree.map(lambda a: a[:0], data.fixed)
    splits = Splits(
        nobody, data.target, nobody, data.fixed, data.fixed, np.arange(1000)
    )
    dataset = Dataset("random", *data.target, None, None, "embedded", "")
    table = Table(Problem(task, splits, dataset), ENGINE, releases, "none")
    weights = np.random.default_rng(0).normal(size=(releases, 785)) / 100
    held = Guarantees(None, None, (), None)
    attack = registry.find("attack", "glm_attack")(task)
    run = lambda: in_turn.play(  # noqa: E731
        key, attack, of, Release(weights), held, table
    )
    result, _ = benchmark.pedantic(run, rounds=2, warmup_rounds=1)
    benchmark.extra_info["guesses"] = n * releases
    benchmark.extra_info["median error"] = result["mse_typical"]


def test_lpips(benchmark):
    weights = perceptual.load_weights()
    a, b = np.random.default_rng(0).uniform(size=(2, 100, 28, 28, 1))
    run = lambda: perceptual.lpips_images(weights, a, b)  # noqa: E731
    values = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["mean lpips"] = float(values.mean())
