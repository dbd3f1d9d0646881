"""What theory says of one defense: dFIL, bounds, epsilon. No attack is involved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from audit.accounting import bounds, rdp
from audit.data.pool import originals
from audit.engine import shadow
from audit.engine.precision import double
from audit.games.base import repeated
from audit.rng import stream
from audit.types import Adjacency, Bound, Lanes, Nominal, Readings, Splits, TrainingSet

if TYPE_CHECKING:
    from audit.games.base import Problem

ADJACENCIES: tuple[Adjacency, ...] = ("replace_one", "add_remove")


class Guarantees(NamedTuple):
    """All of it about the defense; None = no bound, never zero."""

    dfil: np.ndarray | None  # [targets] Tr I / d, mean over trajectories
    dfil_se: np.ndarray | None  # [targets] of that mean; None for one trajectory
    bounds: tuple[Bound, ...]
    epsilon: dict[str, Any] | None
    rdp2: float | None = None  # Renyi divergence of order 2, replace-one
    eta: np.ndarray | None = None  # [targets] sqrt of the largest eigenvalue of I
    nominal: tuple[Nominal, ...] = ()  # what the publication claims
    anatomy: dict[str, np.ndarray] | None = None  # what happened inside, for figures
    steps: list[dict[str, Any]] | None = None  # the same step by step, in numbers
    membership: dict[str, Any] | None = None  # of membership games: adjacency, leakage


def joined(
    key: jax.Array,
    of: shadow.Learner,
    problem: Problem,
    runs: int,
    delta: float,
    engine: shadow.Engine,
) -> Guarantees:
    """Account for runs on fixed + {target}: the very runs that are attacked.

    Args:
      key: of the trajectories; independent of the games'.
      of: the defense.
      problem: the target stands in the slot it has in the game.
      runs: trajectories per target.
      delta: at which epsilon is given.
      engine: accounting is cheap and never stored.
    """
    splits, engine = problem.splits, engine._replace(store=None, shrink=True)
    runs = _trajectories(of, runs)
    data = TrainingSet(splits.fixed, repeated(splits.targets, runs))
    own_slot = np.array([len(splits.fixed.y)])

    def read(method: str, words: str) -> Any:
        """Return one reading of every target's record: [targets, runs] each."""
        each = shadow.sweep(
            method,
            of,
            stream(key, "fisher"),
            data,
            own_slot,
            engine=engine,
            what=f"{of.label}: {words}",
            precise=True,
        )
        return jax.tree.map(lambda a: a.reshape(-1, runs), each)

    risk = _finite_prior(stream(key, "finite prior"), of, splits, engine)
    held = of_readings(
        of,
        _readings(of, read),
        problem,
        splits.targets.y,
        len(splits.fixed.y) + 1,
        delta,
    )
    return held._replace(bounds=held.bounds + ((risk,) if risk is not None else ()))


def in_turn(
    key: jax.Array,
    of: shadow.Learner,
    problem: Problem,
    runs: int,
    delta: float,
    engine: shadow.Engine,
) -> Guarantees:
    """Account for every record of one training set. Arguments: `joined`.

    In an attribute game eta is about the attribute's columns alone.
    """
    # one run serves all records, so that tiles would only repeat it
    engine = engine._replace(store=None, lanes=Lanes(1, engine.lanes.memory_gib))
    fixed = problem.splits.fixed
    n = len(fixed.y)
    data = TrainingSet(fixed, None)

    asked = problem.attribute

    def read(method: str, words: str) -> Any:
        """Return one reading of every record: [records, trajectories] each."""
        extra = () if asked is None or method != "fil" else (asked.columns,)
        each = shadow.sweep(
            method,
            of,
            stream(key, "fisher"),
            data,
            np.arange(n),
            *extra,
            engine=engine,
            what=f"{of.label}: {words}",
            precise=True,
            runs=_trajectories(of, runs),
        )
        return jax.tree.map(np.transpose, each)

    held = of_readings(of, _readings(of, read), problem, fixed.y, n, delta)
    inside = of.defense.anatomy
    if inside is None:
        return held
    with jax.enable_x64(True):
        seen = jax.jit(inside)(of.side, double(data))
        return held._replace(anatomy={k: np.asarray(v) for k, v in seen.items()})


def _trajectories(of: shadow.Learner, runs: int) -> int:
    """Return how many differ: a minimiser has none, its Jacobian is always the same."""
    return 1 if of.defense.objective is not None else runs


def _readings(of: shadow.Learner, read: Any) -> tuple[Any, Any]:
    """Return Tr I and ||I||_2, each [records, trajectories] or None."""
    if of.defense.fil is not None:
        return read("fil", "Fisher information")
    if of.defense.fisher is not None:
        return read("fisher", "Fisher information"), None
    return None, None


def of_readings(
    of: shadow.Learner,
    readings: tuple[Any, Any],
    problem: Problem,
    labels: Any,
    n: int,
    delta: float,
) -> Guarantees:
    """Turn readings of the Fisher information and the curves into bounds.

    Args:
      of: the defense.
      readings: Tr I and ||I||_2 of every record, each [records, trajectories] or None.
      problem: whose records, domain and pool.
      labels: [records] of the same records.
      n: records of one run.
      delta: at which epsilon is given.
    """
    traces, norms = readings
    splits, domain = problem.splits, problem.task.domain
    held: list[Bound] = []
    dfil = dfil_se = None
    if traces is not None:
        d, runs = splits.fixed.x[0].size, traces.shape[1]
        dfil = traces.mean(1) / d
        dfil_se = traces.std(1, ddof=1) / d / np.sqrt(runs) if runs > 1 else None
    if dfil is not None and problem.attribute is None:  # bounds are on squared errors
        held.append(bounds.cramer_rao(dfil))
        if problem.task.classes:
            held.append(_gaussian_prior(traces.mean(1), labels, splits))
    curve = of.defense.rdp
    rdp2 = curve and curve(n, np.array([2.0]), "replace_one")
    order2 = float(rdp2[0]) if rdp2 is not None and np.isfinite(rdp2).all() else None
    if order2 is not None and np.isfinite(domain).all():
        held.append(bounds.hammersley_chapman_robbins(order2, domain))
    loss = of.defense.pld
    held += of_others(
        problem,
        None if traces is None else traces.mean(1),
        curve and (lambda orders: curve(n, orders, "replace_one")),
        loss and (lambda: loss(n, "replace_one")),
    )
    return Guarantees(
        dfil,
        dfil_se,
        tuple(held),
        epsilon(of, n, delta),
        rdp2=order2,
        eta=None if norms is None else np.sqrt(norms.mean(1)),
        nominal=nominal(of, n),
    )


def of_others(problem: Problem, trace: Any, rdp: Any, pld: Any) -> list[Bound]:
    """Return the bounds from elsewhere that apply; the last three as in `Readings`."""
    splits, domain = problem.splits, problem.task.domain
    size, pool = splits.fixed.x[0].size, originals(splits)
    readings = Readings(size, domain, trace, rdp, pld, pool)
    each = [bound(readings) for bound in problem.bounds]
    return [b for b in each if b is not None]


def _gaussian_prior(traces: np.ndarray, labels: Any, splits: Splits) -> Bound:
    """Van Trees for a Gaussian prior per class, its covariance that of the pool."""
    pool, known = originals(splits)
    total, bound = 0.0, None
    for label in np.unique(labels):
        own = labels == label
        x = pool[known == label].reshape((known == label).sum(), -1)
        variances = np.linalg.eigvalsh(np.cov(x.astype(np.float64), rowvar=False))
        bound = bounds.van_trees(traces[own].mean(), np.maximum(variances, 0))
        total += own.mean() * float(bound.value)
    assert bound is not None
    return bound._replace(value=np.asarray(total))


def _finite_prior(
    key: jax.Array, of: shadow.Learner, splits: Splits, engine: Any
) -> Bound | None:
    """Exact Bayes risk over the pool's originals of the target's class."""
    if of.defense.log_likelihood is None:
        return None
    candidates = originals(splits)
    data = TrainingSet(splits.fixed, splits.targets)
    what = f"{of.label}: finite prior"
    ratios = shadow.sweep(
        "log_likelihood",
        of,
        key,
        data,
        candidates,
        engine=engine,
        what=what,
        precise=True,
    )
    m, t = len(candidates.y), len(splits.targets.y)
    return bounds.finite_prior(
        ratios[:, :m],
        ratios[:, m],
        candidates.x.reshape(m, -1),
        splits.targets.x.reshape(t, -1),
        splits.targets.y[:, None] == candidates.y[None, :],
    )


def nominal(of: shadow.Learner, n: int) -> tuple:
    """Return the values a defense prints under its source's name; none for most."""
    return of.defense.nominal(n) if of.defense.nominal else ()


def epsilon(of: shadow.Learner, n: int, delta: float) -> dict[str, Any] | None:
    """Account for epsilon at `delta`, both adjacencies, every accountant that can.

    `tight` is the privacy-loss distribution (exact for full-batch Gaussian noise),
    `rdp` the conversion of the Renyi curve. None where no accountant has a theorem.
    """
    defense = of.defense
    if defense.rdp is None and defense.pld is None:
        return None
    values: dict[str, Any] = {"delta": delta}
    for adjacency in ADJACENCIES:
        curve = defense.rdp and defense.rdp(n, rdp.ORDERS, adjacency)
        loss = defense.pld and defense.pld(n, adjacency)
        values[adjacency] = {
            "rdp": _from_curve(curve, delta),
            "tight": float(loss.get_epsilon_for_delta(delta)) if loss else None,
        }
    return values


def _from_curve(curve: np.ndarray | None, delta: float) -> float | None:
    if curve is None or not np.isfinite(curve).all():
        return None
    return rdp.epsilon(rdp.ORDERS, curve, delta)
