"""The lines of the benchmark: one function per group, which yields its rows.

Every function says what goes on by `activity`, as the engine does, and times the
fastest of several calls. All groups together take three to six minutes of two cores:
the more of the programs are compiled, the less.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit.accounting import vmf
from audit.cli.bench import pytorch, rivals
from audit.cli.bench.clock import fastest
from audit.cli.bench.subjects import (
    DEFENSES,
    DPSGD,
    FEWER,
    FIXED,
    PIXELS,
    SUBJECTS,
    draw,
    make,
    operations,
    operations_of,
    sized,
    training_set,
)
from audit.config import registry
from audit.data import half_in
from audit.engine import shadow
from audit.engine.program import lanes_of, program
from audit.engine.shadow import Engine, Learner
from audit.engine.signals import Shadows, Signals
from audit.games import base
from audit.rng import normal
from audit.types import Examples, Knowledge, Lanes, Observation, Release, TrainingSet

Activity = Callable[[str], AbstractContextManager]  # what goes on -> heartbeat
ROOT = 1  # seed of the key of all runs
TOLERANCE = 1e-3  # `rivals.gap` between the engine and a rival
TRACED = 8  # so many times fewer runs are accounted for than models are trained
SHADOWS, EPOCHS = 4_096, 3  # releases a network learns from, and how often
IMAGES, RESTARTS, ITERATIONS = 16, 4, 50  # inverted; searches each; steps of each
MODELS, CANDIDATES = 256, 20_000  # of the membership game that is scored
DRAWS, DIMENSION = 100, 61_706  # vectors as long as LeNet-5's parameters


class Row(NamedTuple):
    """One line of the benchmark."""

    group: str
    name: str
    unit: str  # what is counted
    per_second: float
    operations: float = (
        0.0  # of matrix products, per unit; 0 = they are not what counts
    )
    intensity: float | None = None  # operations per byte, by the compiler's counts
    of_loop: float | None = None  # how many times the plain loop, on as many records
    difference: float | None = None  # `rivals.gap` to the rival's weights

    @property
    def gflops(self) -> float:
        """GFLOP/s of the matrix products alone."""
        return self.per_second * self.operations / 1e9

    @property
    def equal(self) -> bool:
        """Whether its weights are the rival's, where there is one; NaN are not."""
        return self.difference is None or self.difference <= TOLERANCE


def models(group: str, activity: Activity) -> Iterator[Row]:
    """Yield one model's rows: the plain loop's, and one per defense."""
    subject, root = sized(group), jax.random.key(ROOT)
    everyone = training_set(subject, subject.models)
    with activity(f"{group}: plain loop"):
        learner = make(DPSGD, subject)
        seconds, theirs = _looped(learner, everyone, subject.looped)
        slow = subject.looped / seconds
    each = operations_of(learner)
    yield Row(group, f"{DPSGD}, plain loop", "models", slow, each, of_loop=1.0)
    for name in DEFENSES:
        with activity(f"{group}: {name}"):
            learner = make(name, subject)
            count = max(2, subject.models // FEWER.get(name, 1))  # for two cores
            data, tile = _first(everyone, count), min(subject.tile, count)
            run = partial(swept, learner, root, data, Engine(Lanes(tile)))
            rate = count / fastest(run, 3)
            gap = None
            if name == DPSGD:
                ours = rivals.weights(run())[: len(theirs)]
                gap = rivals.gap(ours, theirs, rivals.start(learner))
            counted = _intensity(learner, root, data, tile)
        operations = operations_of(learner)
        of_loop = rate / slow if operations == each else None
        yield Row(group, name, "models", rate, operations, counted, of_loop, gap)
    if group == "linear":
        with activity("linear: glm"):
            engine, few = Engine(Lanes(subject.tile)), _first(everyone, subject.tile)
            run = partial(swept, make("glm", subject), root, few, engine)
            rate = subject.tile / fastest(run, 1)
        yield Row(group, "glm (exact, float64)", "models", rate)


def torch_rivals(group: str, activity: Activity) -> Iterator[Row]:
    """Yield PyTorch's rows of linear DP-SGD, if it is installed."""
    if not pytorch.installed():
        return
    subject, root = sized("linear"), jax.random.key(ROOT)
    data, learner = training_set(subject, subject.models), make(DPSGD, subject)
    start = rivals.start(learner)
    with activity(f"{group}: plain loop"):
        slow = subject.looped / _looped(learner, data, subject.looped)[0]
    for name, make_rival, count in (
        ("PyTorch by hand, all models at once", pytorch.fused, subject.tile),
        ("PyTorch by hand, one model at a time", pytorch.fused, 1),
        ("PyTorch vmap(grad), one model at a time", pytorch.vmap_grad, 4),
    ):
        with activity(f"{group}: {name}"):
            rival, steps = make_rival(learner), subject.training["steps"]
            given = *pytorch.records(*data[:2], count), pytorch.starting(start, count)
            noise = pytorch.engine_noise(root, count, steps, len(start))
            engine = Engine(Lanes(count))
            ours = swept(learner, root, _first(data, count), engine)
            theirs = rival(*given, noise).numpy()
            gap = rivals.gap(rivals.weights(ours), theirs, start)
            fresh = pytorch.own_noise(count, len(start))
            rate = count / fastest(partial(rival, *given, fresh), 5)
        facts = operations_of(learner), None, rate / slow, gap
        yield Row(group, name, "models", rate, *facts)


def accounting(group: str, activity: Activity) -> Iterator[Row]:
    """Yield the rows of dFIL: the target's information along every run, in float64."""
    for name in ("linear", "mlp"):
        subject = SUBJECTS[name]
        runs = max(1, subject.models // TRACED)
        data, learner = training_set(subject, runs), make(DPSGD, subject)
        # in more than one tile, as many runs are: one tile is compiled otherwise
        read = partial(
            shadow.sweep, "fisher", learner, jax.random.key(ROOT), data,
            np.array([FIXED]), engine=Engine(Lanes(-(-runs // 2))), precise=True,
        )  # fmt: skip
        with activity(f"{group}: dFIL, {name}"):
            yield Row(group, f"dFIL, {name}", "runs", runs / fastest(read, 1))


def training(group: str, activity: Activity) -> Iterator[Row]:
    """Yield the training of the reconstructor's network, shadow models apart."""
    subject, rng = SUBJECTS["linear"], np.random.default_rng(0)
    pool = draw(SHADOWS, rng)
    released = rng.normal(size=(SHADOWS, int(np.prod(PIXELS)) + 1)).astype(np.float32)
    knowledge = Knowledge(
        subject.task, pool, np.arange(SHADOWS), draw(1, rng),
        train=lambda key, data: Release(released), shadow_key=jax.random.key(0),
    )  # fmt: skip
    attack = registry.find("attack", "reconstructor")(subject.task, epochs=EPOCHS)
    learn = partial(attack.fit, jax.random.key(0), knowledge)
    with activity(f"{group}: reconstructor"):
        seconds = fastest(learn, 2)
    sizes = (released.shape[1] + subject.classes, 512, 256, pool.x[0].size)
    products = [a * b for a, b in itertools.pairwise(sizes)]
    each = 6 * sum(products) - 2 * products[0]
    rate = EPOCHS * SHADOWS * 0.9 / seconds  # a tenth is held out
    yield Row(group, "network of reconstructor", "examples", rate, float(each))


def inversion(group: str, activity: Activity) -> Iterator[Row]:
    """Yield the search for images whose gradients on LeNet are those released."""
    subject = SUBJECTS["lenet"]
    task, z = subject.task, draw(IMAGES, np.random.default_rng(0), subject.classes)
    find = registry.find("attack", "gradient_inversion")
    attack = find(task, steps=ITERATIONS, restarts=RESTARTS)
    state = attack.fit(jax.random.key(0), Knowledge(task, z, np.arange(IMAGES)))[0]
    params = task.init(jax.random.key(1))

    def one(key: jax.Array, z: Examples) -> jax.Array:
        update = jax.grad(task.loss)(params, z)
        observation = Observation(params=params, update=update, label=z.y)
        return attack.guess(state, key, observation)

    run, keys = jax.jit(jax.vmap(one)), jax.random.split(jax.random.key(2), IMAGES)
    with activity(f"{group}: gradient_inversion"):
        arguments = lambda rows: (keys[rows], base.take(z, rows))
        seconds = fastest(lambda: base.guesses(run, (), arguments, IMAGES), 1)
    # a gradient of a gradient takes twice as much again as the gradient
    each = 3 * operations(task)
    rate = IMAGES * RESTARTS * ITERATIONS / seconds
    yield Row(group, "gradient_inversion, lenet", "image steps", rate, each)


def scoring(group: str, activity: Activity) -> Iterator[Row]:
    """Yield LiRA's scores of one model's candidates, fitted to shadow models."""
    rng, pool = np.random.default_rng(0), 1_000
    member = half_in.in_out.member(jax.random.key(0), MODELS, CANDIDATES)
    odds = rng.normal(size=(MODELS, CANDIDATES, 1)) + member[..., None] + 4
    others = rng.normal(size=(MODELS, pool, 1)) + 4
    signals = Signals(odds.astype(np.float16), others.astype(np.float16))
    label = rng.integers(0, 10, CANDIDATES).astype(np.int32)
    task = SUBJECTS["mlp"].task
    attack, nobody = registry.find("attack", "lira")(task), draw(pool, rng, 10)
    knowledge = Knowledge(
        task, nobody, np.arange(pool), shadows=Shadows(member, label, signals)
    )
    target = jax.tree.map(lambda a: a[0], signals)

    @jax.jit
    def scored(state: Any, key: jax.Array) -> jax.Array:
        observation = base.observe(attack.threat_model, label=label, signals=target)
        return attack.guess(state, key, observation)

    def run() -> Any:
        state, _ = attack.fit(jax.random.key(0), knowledge)
        return jax.block_until_ready(scored(state, jax.random.key(1)))

    with activity(f"{group}: lira"):
        rate = CANDIDATES / fastest(run, 3)
    yield Row(group, f"lira, {MODELS} shadow models", "candidates", rate)


def draws(group: str, activity: Activity) -> Iterator[Row]:
    """Yield draws of long vectors: Gaussian, and around a direction."""
    means = jnp.full((DRAWS, DIMENSION), DIMENSION**-0.5)

    def gaussian(key: jax.Array) -> jax.Array:
        return normal(key, means.shape)

    def directional(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, DRAWS)
        return jax.vmap(vmf.sample, (0, 0, None))(keys, means, 5.0)

    for name, drawn in (("Gaussian", gaussian), ("von Mises-Fisher", directional)):
        run = partial(jax.jit(drawn), jax.random.key(0))
        with activity(f"{group}: {name}"):
            seconds = fastest(partial(_finished, run), 5)
        yield Row(group, f"{name}, {DIMENSION:,} numbers", "vectors", DRAWS / seconds)


GROUPS: dict[str, Callable[[str, Activity], Iterator[Row]]] = {
    **dict.fromkeys(SUBJECTS, models),
    "pytorch": torch_rivals,
    "accounting": accounting,
    "training": training,
    "inversion": inversion,
    "scoring": scoring,
    "draws": draws,
}


def _looped(
    learner: Learner, data: TrainingSet, count: int
) -> tuple[float, np.ndarray]:
    """Return the seconds and the weights of the first models, one after the other."""
    train, root = rivals.plain_loop(learner), jax.random.key(ROOT)

    def one(i: int) -> Any:
        target = jax.tree.map(lambda a: a[i], data.target)
        params = train(jax.random.fold_in(root, i), data.fixed, target)
        return jax.block_until_ready(params)

    each: list[Any] = []

    def run() -> None:
        each[:] = [one(i) for i in range(count)]

    seconds = fastest(run, 3)
    return seconds, rivals.weights(jax.tree.map(lambda *a: jnp.stack(a), *each))


def _finished(run: Callable[[], Any]) -> Any:
    return jax.block_until_ready(run())


def _first(data: TrainingSet, models: int) -> TrainingSet:
    """Return what the first models are trained on."""
    return data._replace(target=jax.tree.map(lambda a: a[:models], data.target))


def swept(learner: Learner, root: Any, data: TrainingSet, engine: Engine) -> Any:
    """Return the weights of a model per target."""
    return shadow.sweep("train", learner, root, data, engine=engine).params


def _intensity(
    learner: Learner, root: Any, data: TrainingSet, tile: int
) -> float | None:
    """Return operations per byte of a tile's program; its loops count once."""
    given = learner.floats, learner.side, data.fixed, ()
    lanes = lanes_of([0], tile, tile, (data.target, data.rows))
    train = program("train", learner.recipe, 1, None, False)
    counts: Any = train.lower(given, root, *lanes).compile().cost_analysis() or {}
    moved = counts.get("bytes accessed", 0.0)
    return counts["flops"] / moved if moved and "flops" in counts else None
