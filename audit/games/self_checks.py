"""What a defense's steps do, measured, beside what its accounting assumes of them.

Every quantity that the accounting reads is measured anew: the noise is what the
defense's own steps add to the sum of their batch, at steps all along the run, a
contribution is what one record adds to a step, and batches are counted. A whole audit
costs some dozens of steps.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy import special

from audit.compilation import once
from audit.engine.program import Recipe
from audit.engine.shadow import Learner
from audit.games.base import Runs, blocks, take
from audit.games.guarantees import ADJACENCIES
from audit.mechanisms.batch import sum_all
from audit.mechanisms.noise import gaussian
from audit.mechanisms.query import masked
from audit.mechanisms.sampler import SAMPLERS
from audit.rng import stream
from audit.scorecard.flags import SLACK, SURE, Measured
from audit.types import Examples, Iterative, Minimiser, Noise, Sampler, TrainingSet

NUMBERS = math.ceil((SURE / SLACK) ** 2 / 2)  # of noise: the tolerance is SLACK then
KEYS = (4, 4096)  # fewest and most draws
CORRELATED = 256  # most draws that are compared with each other
PROBES = 8  # records whose contributions are measured, beside the extreme ones
TOGETHER = 16  # groups of releases whose spread is taken
PAIRED = 128  # groups of releases whose noise is compared
LEAST_PAIRS = 30  # fewest pairs that can tell shared noise from chance
ALIVE = 2**24  # most numbers of noised sums in memory at a time
LEAST = 16  # fewest numbers per draw for a correlation to mean anything
COUNTED = 4_000_000  # most records times steps that are counted to tell a sampling law
REPEATS = 20  # repeats that a law drawing anew must be expected to show, to be told
# from epochs
ROUNDING = 1e-3  # of the largest noise: less is no noise


def measure(key: Array, runs: Runs, records: Examples, n: int) -> Measured:
    """Measure a defense with Gaussian noise; for any other, every number is None.

    The key is independent of the audit's own; the defense can be trained on the
    records; `n` is how many one run has.
    """
    return _noise(key, runs, records, n)._replace(lost=lost(runs.releases))


def lost(releases: Any) -> str:
    """Say how many of the releases, [runs, ...], have an entry that is no number."""
    finite = [
        np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1).all(1)
        for leaf in jax.tree.leaves(releases)
    ]
    of_runs = np.all(finite, 0)
    bad = int((~of_runs).sum())
    return f"{bad} of {len(of_runs)} runs released what is no number" if bad else ""


# Noise --------------------------------------------------------------------------------


def _noise(key: Array, runs: Runs, records: Examples, n: int) -> Measured:
    """Arguments: `measure`."""
    learner, mechanism = runs.learner, runs.learner.defense.mechanism
    noise = None if mechanism is None else mechanism.noise
    if mechanism is None or noise is None or noise.precision is None:
        return Measured()
    if noise.stddev is None or noise.at != "sum":
        return Measured(unmeasured="it is no Gaussian that is added to a sum")
    measured = _released(runs, mechanism)
    if not isinstance(mechanism, Iterative) or "rows" not in learner.defense.traits:
        why = "its releases do not show it, and it takes no step on chosen records"
        return measured._replace(unmeasured=why if measured.noise is None else "")
    steps_key = stream(key, "measured")
    draws, contribution = _steps(steps_key, learner, mechanism, records, n)
    shared = [s for s in (measured.shared, correlation(draws)) if s is not None]
    stddev = float(draws.std()) if draws.size else 0.0
    name = law(stream(key, "batches"), mechanism.sampler, n, mechanism.steps)
    divergence = None
    if name is not None and stddev:
        divergence = _divergence(name, learner, mechanism, n, stddev)
    return _ratio(stddev, draws.size, noise)._replace(
        shared=max(shared, default=None),
        contribution=contribution,
        sampling=name,
        divergence=divergence,
    )


def _ratio(stddev: float, numbers: int, noise: Noise) -> Measured:
    accounted = float(noise.stddev)
    return Measured(stddev / accounted, 1 / math.sqrt(2 * max(1, numbers)))


def _released(runs: Runs, mechanism: Iterative | Minimiser) -> Measured:
    """Compare releases that differ in their noise alone."""
    alike = runs.alike
    if alike < 2:
        return Measured()

    def groups(many: int, each: int) -> np.ndarray:
        leaves = [np.asarray(a[: many * alike]) for a in jax.tree.leaves(runs.releases)]
        parted = [a.reshape(-1, alike, a[0].size)[:, :each] for a in leaves]
        return np.concatenate(parted, 2).astype(float)

    pairs = groups(PAIRED, 2)
    shared = between(pairs[:, 0] - pairs[:, 1])
    if isinstance(mechanism, Iterative):  # after steps its scale is the optimizer's
        return Measured(shared=shared)
    some = groups(TOGETHER, alike)
    numbers = some.size * (alike - 1) // alike
    spread = math.sqrt(((some - some.mean(1, keepdims=True)) ** 2).sum() / numbers)
    return _ratio(spread, numbers, mechanism.noise)._replace(shared=shared)


def between(gaps: np.ndarray) -> float | None:
    """Return how surely targets' runs share noise, in standard errors of a normal.

    Two runs of one target differ in their noise alone, and their order is chance. So
    the correlation of one target's difference with another's is symmetric about zero.
    Each target is in one pair. The chance is never given as smaller than one half to
    the power of the number of pairs, which signs alone could show. `gaps` [targets, D]
    are those differences: None for too few targets, infinity where no two runs differ.
    """
    if not gaps.any():
        return math.inf
    first, second = gaps[: len(gaps) // 2], gaps[len(gaps) // 2 :][: len(gaps) // 2]
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    if len(first) < LEAST_PAIRS or not (norms > 0).all():
        return None
    cosine = (first * second).sum(1) / norms
    t = cosine.mean() / max(cosine.std(ddof=1), 1e-9) * math.sqrt(len(cosine))
    return _deviations(max(special.stdtr(len(cosine) - 1, -t), 0.5 ** len(cosine)))


def _deviations(chance: float) -> float:
    """Return how many standard errors of a normal are exceeded with that chance."""
    return float(max(0.0, -special.ndtri(max(chance, np.finfo(float).tiny))))


def correlation(draws: np.ndarray) -> float | None:
    """Return how surely two of the draws [m, D] share noise, as `between` does.

    The draws are isotropic, as the accounting has it: with c the cosine of two of them,
    c sqrt((D - 1) / (1 - c^2)) follows Student's law of D - 1 degrees of freedom.
    """
    if len(draws) < 2 or draws.shape[1] < LEAST:
        return None
    draws = draws[:CORRELATED]
    unit = draws / np.maximum(np.linalg.norm(draws, axis=1, keepdims=True), 1e-30)
    cosine, freedom = np.abs(np.triu(unit @ unit.T, 1)).max(), draws.shape[1] - 1
    t = cosine * math.sqrt(freedom / max(1 - cosine**2, 1e-12))
    return _deviations(special.stdtr(freedom, -t))


# Steps --------------------------------------------------------------------------------


class _Lane(NamedTuple):
    """One step to take, alone."""

    draw: Any  # number of the noise's key
    t: Any  # number of the step
    far: Any  # 0 = at the start's parameters, 1 = far from them
    rows: Any  # [slots] who takes part; -1 = nobody


@functools.cache
def _program(recipe: Recipe) -> Any:
    """Return (floats, side, records, key, lanes) -> noised sums, noise, norms of `fn`.

    [m, D], [m, D], [m]. The noise is the noised sum less the sum of the step's batch.
    """

    def one(floats: dict, side: Any, records: Any, key: Array, lane: _Lane) -> tuple:
        mechanism = recipe.build(floats).mechanism
        assert isinstance(mechanism, Iterative)
        flat, unravel = ravel_pytree(side.params)
        # far from the start models are sure, and often wrong
        moved = jax.random.normal(stream(key, "far"), flat.shape, flat.dtype)
        run_key = jax.random.fold_in(stream(key, "draws"), lane.draw)
        params = unravel(flat + lane.far * moved)
        state = mechanism.init(run_key, side)._replace(params=params, t=lane.t)
        data = TrainingSet(records, None, lane.rows)
        view = mechanism.step(run_key, state, data)[1]
        before = state._replace(params=view.params, side=view.side)
        total = sum_all(mechanism.query, before, data, view.batch)
        total = ravel_pytree(masked(view.side.mask, total))[0]
        z = take(records, lane.rows[0])
        alone = mechanism.query.fn(view.params, view.side, z)
        update = ravel_pytree(view.update)[0]
        return update, update - total, optax.tree.norm(alone)

    def each(floats: dict, side: Any, records: Any, key: Array, lanes: _Lane) -> tuple:
        # One after the other: under vmap every lane would learn from public data,
        # also at steps that do not learn
        return jax.lax.map(functools.partial(one, floats, side, records, key), lanes)

    return once(each)


def _steps(
    key: Array, learner: Learner, mechanism: Iterative, records: Examples, n: int
) -> tuple[np.ndarray, float]:
    """Return draws of noise [m, D], and the longest contribution over its bound.

    In the first lane every slot is empty. The second is another step, if there is one,
    under the key of the first: steps that share noise show there. All draws but the
    first have a record in every slot, and they are spread over the steps of the run; a
    step that learns from public data is taken once. In the last lanes one record takes
    part, under the key of the first: the difference is the record's contribution. The
    norm of the query's `fn` is measured too, for that is what a target adds.
    """
    sampler = mechanism.sampler
    size = sum(a.size for a in jax.tree.leaves(learner.side.params))
    draws = int(np.clip(math.ceil(NUMBERS / size), *KEYS))
    # as many slots as one batch has, so that every slot takes part
    slots = 1 if sampler.presence == "certain" else int(sampler.denominator(n))
    probes = _probes(records, learner.task)
    m, noisy = len(probes.y), draws + 1
    total = noisy + 2 * m
    lanes = _Lane(
        draw=np.zeros(total, np.uint32),
        t=np.zeros(total, np.int32),
        far=np.zeros(total, np.float32),
        rows=np.full((total, slots), -1, np.int32),
    )
    lanes.draw[2:noisy] = np.arange(1, draws)
    if mechanism.refresh is None:
        lanes.t[2:noisy] = np.linspace(0, mechanism.steps - 1, draws)[1:]
    lanes.t[1] = mechanism.steps - 1
    lanes.draw[1] = 0 if mechanism.steps > 1 else draws
    lanes.rows[1:noisy] = np.arange(slots) % m
    lanes.far[noisy + m :] = 1
    lanes.rows[noisy:, 0] = np.tile(np.arange(m), 2)
    program, together = _program(learner.recipe), min(max(1, ALIVE // size), total)
    run = functools.partial(program, learner.floats, learner.side, probes, key)
    drawn, empty, longest = [], None, 0.0
    for rows in blocks(total, together):  # sums of large models are not kept
        sums, noise, norms = jax.device_get(run(take(lanes, rows)))
        empty = sums[0].astype(float) if empty is None else empty
        alone = rows >= noisy
        added = np.linalg.norm(sums[alone] - empty, axis=1)
        longest = max([longest, *added, *norms[alone]])
        drawn.append(noise[~alone])
    every = np.concatenate(drawn).astype(float)
    sizes = np.abs(every).max(0)
    noised = sizes > ROUNDING * sizes.max()  # the others are frozen, or rounding alone
    return every[:, noised], float(longest / float(mechanism.query.norm_bound))


def _probes(records: Examples, task: Any) -> Examples:
    """Return some records, and the domain's longest record with a few labels."""
    x, y = (np.asarray(a)[:PROBES] for a in records)
    top = task.domain[1]
    if not (task.classes and math.isfinite(top)):
        return Examples(x, y)
    labels = np.arange(min(task.classes, PROBES // 2), dtype=y.dtype)
    most = np.full((len(labels), *x.shape[1:]), top, x.dtype)
    return Examples(np.concatenate([x, most]), np.concatenate([y, labels]))


# Sampling -----------------------------------------------------------------------------


def law(key: Array, sampler: Sampler, n: int, steps: int) -> str | None:
    """Return by which law of `SAMPLERS` batches are drawn; None if one cannot tell.

    Epochs visit no record twice before every record has been visited. Laws that draw
    anew repeat records as often as chance does. One batch again and again amplifies
    nothing, and costs what full batches do.
    """
    size = float(sampler.denominator(n))
    epoch = math.ceil(n / size)
    look = min(steps, epoch, COUNTED // n)
    counts = _counts(key, sampler, n, max(1, look))
    if (counts == 1).all():
        return "full"
    pairs = (counts.sum(0) * (counts.sum(0) - 1) / 2).sum()
    chance = look * (look - 1) / 2 * size**2 / n
    if chance < REPEATS:
        return None
    if pairs < chance / 4:
        return "shuffled"
    if pairs > 4 * chance:
        return "full"
    sizes = counts.sum(1)
    return "uniform" if (sizes == sizes[0]).all() else "poisson"


def _counts(key: Array, sampler: Sampler, n: int, steps: int) -> np.ndarray:
    """Return how often each record takes part in each step [steps, n]."""
    if sampler.schedule is not None:
        batches = sampler.schedule(key, steps, n)
    else:
        batches = jax.vmap(lambda t: sampler.draw(key, t, n))(jnp.arange(steps))
    if batches.rows is None:
        weight = batches.weight
        return np.ones((steps, n)) if weight is None else np.asarray(weight)
    counts = np.zeros((steps, n))
    at = np.arange(steps)[:, None]
    np.add.at(counts, (at, np.asarray(batches.rows)), np.asarray(batches.weight))
    return counts


def _divergence(
    sampling: str, learner: Learner, mechanism: Iterative, n: int, stddev: float
) -> float | None:
    """Return the accounted divergence of order 2 over that of the measured steps."""
    rdp, order, ratios = learner.defense.rdp, np.array([2.0]), []
    if rdp is None:
        return None
    size = None if sampling == "full" else int(mechanism.sampler.denominator(n))
    sampler, noise = SAMPLERS[sampling](size), gaussian(stddev)
    for adjacency in ADJACENCIES:
        accounted, steps = rdp(n, order, adjacency), mechanism.steps
        real = sampler.rdp(noise, mechanism.query, n, steps, order, adjacency)
        if accounted is not None and real is not None and np.isfinite(accounted[0]):
            ratios.append(float(accounted[0]) / float(real[0]))
    return min(ratios, default=None)
