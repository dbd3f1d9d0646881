"""What a defense's runs do, measured, beside what its accounting takes them for.

Nothing here reads what the accounting read without looking again: noise is drawn by
the defense's own steps on a set in which every slot is empty, contributions are what
one record adds to a step, and batches are counted. A few steps for a whole audit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from scipy import stats

from audit.engine import shadow
from audit.mechanisms.noise import gaussian
from audit.mechanisms.sampler import SAMPLERS
from audit.rng import stream
from audit.scorecard.flags import Measured
from audit.types import Adjacency, Examples, Parts, Release, Sampler, TrainingSet

NUMBERS = 4096  # of noise looked at, at least
KEYS = (4, 64)  # fewest and most draws
PROBES = 8  # records whose contributions are looked at, beside the extreme ones
TOGETHER = 16  # groups of releases whose spread is taken
PAIRED = 128  # groups of releases whose noise is compared
LEAST_PAIRS = 30  # of them, to tell noise they share from chance
ALIVE = 2**24  # numbers of noised sums at a time
LEAST = 16  # numbers a draw has, for a correlation to say anything
COUNTED = 4_000_000  # records times steps at most, to tell a sampling law
REPEATS = 20  # a law that draws anew must be expected to show, to be told from epochs
# it runs once, and compiling is what it costs
QUICKLY = {"cpu": {"xla_backend_optimization_level": 0}}
ORDER = np.array([2.0])
ADJACENCIES: tuple[Adjacency, ...] = ("replace_one", "add_remove")


def measure(
    key: jax.Array,
    of: shadow.Learner,
    records: Examples,
    n: int,
    releases: Release,
    runs: int,
) -> Measured:
    """Look at a defense with Gaussian noise; of others nothing is said.

    Args:
      key: of the draws; independent of the audit's own.
      of: the defense, whose accounting is looked at too.
      records: some it can be trained on.
      n: of one run.
      releases: of the audit: [groups * runs], a group differs in its noise alone.
      runs: of one group; 1 = nothing differs in its noise alone.
    """
    parts = of.defense.parts
    if parts is None or parts.noise.stddev is None or parts.noise.at != "sum":
        return Measured()
    seen = _released(releases, runs, parts, single=of.defense.steps is None)
    if parts.sampler is None or "rows" not in of.defense.traits:
        return seen
    noise, contribution = _steps(stream(key, "measured"), of, records, n)
    shared = [s for s in (seen.shared, correlation(noise)) if s is not None]
    stddev = float(noise.std()) if noise.size else 0.0
    seen = _ratio(stddev, noise.size, parts)._replace(
        shared=max(shared, default=None), contribution=contribution
    )
    return _compared(key, of, n, stddev, seen)


# Noise --------------------------------------------------------------------------------


def _ratio(stddev: float, numbers: int, parts: Parts) -> Measured:
    said = float(parts.noise.stddev)
    return Measured(stddev / said, 1 / math.sqrt(2 * max(1, numbers)))


def _released(releases: Release, runs: int, parts: Parts, *, single: bool) -> Measured:
    """Compare releases that differ in their noise alone."""
    if runs < 2:
        return Measured()

    def groups(many: int, each: int) -> np.ndarray:
        leaves = [np.asarray(a[: many * runs]) for a in jax.tree.leaves(releases)]
        parted = [a.reshape(-1, runs, a[0].size)[:, :each] for a in leaves]
        return np.concatenate(parted, 2).astype(float)

    pairs = groups(PAIRED, 2)
    shared = between(pairs[:, 0] - pairs[:, 1])
    if not single:  # after steps its scale is the optimizer's
        return Measured(shared=shared)
    own = groups(TOGETHER, runs)
    numbers = own.size * (runs - 1) // runs
    spread = math.sqrt(((own - own.mean(1, keepdims=True)) ** 2).sum() / numbers)
    return _ratio(spread, numbers, parts)._replace(shared=shared)


def between(gaps: np.ndarray) -> float | None:
    """Return how surely targets' runs share noise, in standard errors of a normal.

    Two runs of one target differ in noise alone and which is first is chance, so the
    correlation of one target's difference with another's is symmetric about zero. Each
    target is in one pair; signs alone give no more than one half to the power of pairs.

    Args:
      gaps: [targets, D]; None is returned for few, infinity where none differs.
    """
    if not gaps.any():
        return math.inf
    first, second = gaps[: len(gaps) // 2], gaps[len(gaps) // 2 :][: len(gaps) // 2]
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    if len(first) < LEAST_PAIRS or not (norms > 0).all():
        return None
    cosine = (first * second).sum(1) / norms
    t = cosine.mean() / max(cosine.std(ddof=1), 1e-9) * math.sqrt(len(cosine))
    chance = max(stats.t.sf(t, len(cosine) - 1), 0.5 ** len(cosine))
    return float(max(0.0, stats.norm.isf(chance)))


def correlation(draws: np.ndarray) -> float | None:
    """Return the largest correlation between draws [m, D], in its standard errors.

    The draws are isotropic, as the accounting has it: the standard error is 1 / sqrt D.
    """
    if len(draws) < 2 or draws.shape[1] < LEAST:
        return None
    unit = draws / np.maximum(np.linalg.norm(draws, axis=1, keepdims=True), 1e-30)
    between = np.abs(np.triu(unit @ unit.T, 1)).max()
    return float(between * math.sqrt(draws.shape[1]))


# Steps --------------------------------------------------------------------------------


class _Lane(NamedTuple):
    """Which draw of noise, at which step, far from the start or at it, on whom."""

    draw: Any
    t: Any
    far: Any
    rows: Any  # [slots]


@functools.cache
def _program(factory: Callable, task: Any, static: tuple) -> Any:
    """Return (floats, side, records, key, lanes) -> sums [m, D], norms [m] of `fn`."""

    def one(
        floats: dict, side: Any, records: Examples, key: jax.Array, lane: _Lane
    ) -> tuple:
        defense = factory(task, **dict(static), **floats)
        flat, unravel = ravel_pytree(side.params)
        # far from the start models are sure, and often wrong
        moved = jax.random.normal(stream(key, "far"), flat.shape, flat.dtype)
        own = jax.random.fold_in(stream(key, "draws"), lane.draw)
        params = unravel(flat + lane.far * moved)
        state = defense.init(own, side)._replace(params=params, t=lane.t)
        view = defense.step(own, state, TrainingSet(records, None, lane.rows))[1]
        z = jax.tree.map(lambda a: a[lane.rows[0]], records)
        alone = defense.parts.query.fn(view.params, view.side, z)
        return ravel_pytree(view.update)[0], optax.tree.norm(alone)

    def each(
        floats: dict, side: Any, records: Examples, key: jax.Array, lanes: _Lane
    ) -> tuple:
        # One after the other: side by side, what a step learns from public data would
        # be learnt for all of them, and at steps that do not ask for it
        return jax.lax.map(functools.partial(one, floats, side, records, key), lanes)

    return jax.jit(each, compiler_options=QUICKLY.get(jax.default_backend()))


def _steps(
    key: jax.Array, of: shadow.Learner, records: Examples, n: int
) -> tuple[np.ndarray, float]:
    """Return draws of noise [m, D], and the longest contribution over its bound.

    Every slot is empty in the draws. In the other lanes one record takes part, under
    the first draw's key, so that what it adds is the difference; the query's own `fn`
    is looked at beside it, for it is what a target adds.
    """
    parts = of.defense.parts
    assert parts is not None
    assert parts.query is not None
    assert parts.sampler is not None
    size = sum(a.size for a in jax.tree.leaves(of.side.params))
    draws = int(np.clip(math.ceil(NUMBERS / size), *KEYS))
    # as many slots as one batch has: everybody takes part
    slots = 1 if parts.sampler.everybody else int(parts.sampler.denominator(n))
    probes = _probes(records, of.task)
    m, noisy = len(probes.y), draws + 1
    lanes = _Lane(
        draw=np.zeros(noisy + 2 * m, np.uint32),
        t=np.zeros(noisy + 2 * m, np.int32),
        far=np.zeros(noisy + 2 * m, np.float32),
        rows=np.full((noisy + 2 * m, slots), -1, np.int32),
    )
    lanes.draw[:draws] = np.arange(draws)
    lanes.t[draws] = 1  # the next step, by the first draw's key
    lanes.far[noisy + m :] = 1
    lanes.rows[noisy:, 0] = np.tile(np.arange(m), 2)
    sums, norms = _in_parts(key, of, probes, lanes, max(1, ALIVE // size))
    noise, added = sums[:noisy], sums[noisy:] - sums[0]
    longest = max(np.linalg.norm(added, axis=1).max(), np.max(norms[noisy:]))
    return noise[:, noise.any(0)], float(longest / float(parts.query.norm_bound))


def _in_parts(
    key: jax.Array, of: shadow.Learner, probes: Examples, lanes: _Lane, many: int
) -> tuple[np.ndarray, np.ndarray]:
    """Run lanes, so many at a time; the last part is padded."""
    program = _program(of.factory, of.task, of.static)
    total = len(lanes.t)
    many, found = min(many, total), []
    for start in range(0, total, many):
        at = np.minimum(np.arange(start, start + many), total - 1)
        part = jax.tree.map(lambda a, at=at: a[at], lanes)
        found.append(jax.device_get(program(of.floats, of.side, probes, key, part)))
    sums, norms = (np.concatenate(a)[:total] for a in zip(*found, strict=True))
    return sums.astype(float), norms


def _probes(records: Examples, task: Any) -> Examples:
    """Return some records, and the longest of the domain with each of a few labels."""
    x, y = (np.asarray(a)[:PROBES] for a in records)
    top = task.domain[1]
    if not (task.classes and math.isfinite(top)):
        return Examples(x, y)
    labels = np.arange(min(task.classes, PROBES // 2), dtype=y.dtype)
    most = np.full((len(labels), *x.shape[1:]), top, x.dtype)
    return Examples(np.concatenate([x, most]), np.concatenate([y, labels]))


# Sampling -----------------------------------------------------------------------------


def law(key: jax.Array, sampler: Sampler, n: int, steps: int) -> str | None:
    """Return by which law of `SAMPLERS` batches are drawn; None where one cannot tell.

    Epochs visit nobody twice before everybody has been visited. Laws that draw anew
    repeat records as often as chance has it; one batch again and again is nobody's
    amplification, and costs what full batches do.
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


def _counts(key: jax.Array, sampler: Sampler, n: int, steps: int) -> np.ndarray:
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


def _compared(
    key: jax.Array, of: shadow.Learner, n: int, stddev: float, seen: Measured
) -> Measured:
    """Add the sampling law, and what is accounted over what was seen costs."""
    defense, parts = of.defense, of.defense.parts
    assert parts is not None
    assert parts.sampler is not None
    assert defense.steps is not None
    name = law(stream(key, "batches"), parts.sampler, n, defense.steps)
    if name is None or defense.rdp is None or not stddev:
        return seen._replace(sampling=name)
    size = None if name == "full" else int(parts.sampler.denominator(n))
    own, noise = SAMPLERS[name](size), gaussian(stddev)
    ratios = []
    for adjacency in ADJACENCIES:
        said = defense.rdp(n, ORDER, adjacency)
        real = own.rdp(noise, parts.query, n, defense.steps, ORDER, adjacency)
        if said is not None and real is not None and np.isfinite(said[0]):
            ratios.append(float(said[0]) / float(real[0]))
    return seen._replace(sampling=name, divergence=min(ratios, default=None))
