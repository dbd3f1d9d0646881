"""What theory says of one defense: dFIL, bounds, epsilon. No attack is involved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.accounting import bounds, rdp
from audit.data.pool import originals
from audit.engine import shadow
from audit.engine.precision import double
from audit.games.base import Problem, repeated
from audit.mechanisms.output_perturbation import objective_of
from audit.rng import stream
from audit.scorecard.claims import PublishedClaim, published_claims
from audit.types import (
    Adjacency,
    Bound,
    Lanes,
    Minimiser,
    Readings,
    Splits,
    TrainingSet,
)

ADJACENCIES: tuple[Adjacency, ...] = ("replace_one", "add_remove")


class Guarantees(NamedTuple):
    """All of it about one defense; None = no bound, never zero."""

    dfil: np.ndarray | None = None  # [targets] Tr I / d, mean over trajectories
    dfil_se: np.ndarray | None = None  # [targets] of that mean; None for one trajectory
    bounds: tuple[Bound, ...] = ()
    epsilon: dict[str, Any] | None = None
    rdp2: float | None = None  # Renyi divergence of order 2, replace-one
    eta: np.ndarray | None = None  # [targets] sqrt of the largest eigenvalue of I
    nominal: tuple[PublishedClaim, ...] = ()  # what the publication claims
    arrays: Mapping[str, np.ndarray] = MappingProxyType({})  # more, for figures
    fields: Mapping[str, Any] = MappingProxyType({})  # more, of the card's row


def joined(
    key: jax.Array,
    learner: shadow.Learner,
    problem: Problem,
    trajectories: int,
    delta: float,
    engine: shadow.Engine,
) -> Guarantees:
    """Account for runs on fixed + {target}: the very runs that are attacked.

    Args:
      key: of the trajectories; independent of the games'.
      learner: the defense.
      problem: the target stands in the slot it has in the game.
      trajectories: per target.
      delta: at which epsilon is given.
      engine: accounting is cheap and never stored.
    """
    splits, engine = problem.splits, engine._replace(store=None, shrink=True)
    each = _trajectories(learner, trajectories)
    records = TrainingSet(splits.fixed, repeated(splits.targets, each))
    slot = np.array([len(splits.fixed.y)])

    def read(method: str, what: str) -> Any:
        """Return one reading of every target's record: [targets, trajectories] each."""
        readings = shadow.sweep(
            method,
            learner,
            stream(key, "fisher"),
            records,
            slot,
            engine=engine,
            what=f"{learner.label}: {what}",
            precise=True,
        )
        return jax.tree.map(lambda a: a.reshape(-1, each), readings)

    risk = _finite_prior(stream(key, "finite prior"), learner, splits, engine)
    guarantees = of_readings(
        learner,
        _readings(learner, read),
        problem,
        splits.targets.y,
        len(splits.fixed.y) + 1,
        delta,
    )
    if risk is None:
        return guarantees
    return guarantees._replace(bounds=(*guarantees.bounds, risk))


def in_turn(
    key: jax.Array,
    learner: shadow.Learner,
    problem: Problem,
    trajectories: int,
    delta: float,
    engine: shadow.Engine,
    columns: Any = None,
) -> Guarantees:
    """Account for every record of one training set.

    Args:
      key: of the trajectories; independent of the games'.
      learner: the defense.
      problem: each of its fixed records is the target in turn.
      trajectories: of the one training set.
      delta: at which epsilon is given.
      engine: accounting is cheap and never stored.
      columns: of a record, which alone eta is about; None = the whole record. Bounds
        on squared errors of the whole are then left out.
    """
    # one run serves all records, so that tiles would only repeat it
    engine = engine._replace(store=None, lanes=Lanes(1, engine.lanes.memory_gib))
    fixed = problem.splits.fixed
    n = len(fixed.y)
    records = TrainingSet(fixed, None)

    def read(method: str, what: str) -> Any:
        """Return one reading of every record: [records, trajectories] each."""
        extra = () if columns is None or method != "fil" else (columns,)
        readings = shadow.sweep(
            method,
            learner,
            stream(key, "fisher"),
            records,
            np.arange(n),
            *extra,
            engine=engine,
            what=f"{learner.label}: {what}",
            precise=True,
            runs=_trajectories(learner, trajectories),
        )
        return jax.tree.map(np.transpose, readings)

    guarantees = of_readings(
        learner,
        _readings(learner, read),
        problem,
        fixed.y,
        n,
        delta,
        squared=columns is None,
    )
    mechanism = learner.defense.mechanism
    if not isinstance(mechanism, Minimiser) or mechanism.anatomy is None:
        return guarantees
    with jax.enable_x64(True):
        arrays = jax.jit(mechanism.anatomy)(learner.side, double(records))
    return guarantees._replace(arrays={k: np.asarray(v) for k, v in arrays.items()})


def _trajectories(learner: shadow.Learner, number: int) -> int:
    """Return how many differ: a minimiser has none, its Jacobian is always the same."""
    return 1 if objective_of(learner.defense) is not None else number


def _readings(learner: shadow.Learner, read: Callable) -> tuple[Any, Any]:
    """Return Tr I and ||I||_2, each [records, trajectories] or None."""
    mechanism = learner.defense.mechanism
    if isinstance(mechanism, Minimiser) and mechanism.fil is not None:
        return read("fil", "Fisher information")
    if learner.defense.fisher is not None:
        return read("fisher", "Fisher information"), None
    return None, None


def of_readings(
    learner: shadow.Learner,
    readings: tuple[Any, Any],
    problem: Problem,
    labels: Any,
    n: int,
    delta: float,
    *,
    squared: bool = True,
) -> Guarantees:
    """Turn readings of the Fisher information and the curves into bounds.

    Args:
      learner: the defense.
      readings: Tr I and ||I||_2 of every record, each [records, trajectories] or None.
      problem: whose records, domain and pool.
      labels: [records] of the same records.
      n: records of one run.
      delta: at which epsilon is given.
      squared: whether errors are squared ones of whole records, as bounds are.
    """
    traces, norms = readings
    splits, domain = problem.splits, problem.task.domain
    limits: list[Bound] = []
    dfil = dfil_se = None
    if traces is not None:
        d, runs = splits.fixed.x[0].size, traces.shape[1]
        dfil = traces.mean(1) / d
        dfil_se = traces.std(1, ddof=1) / d / np.sqrt(runs) if runs > 1 else None
    if dfil is not None and squared:
        limits.append(bounds.cramer_rao(dfil))
        if problem.task.classes:
            limits.append(_gaussian_prior(traces.mean(1), labels, splits))
    curve = learner.defense.rdp
    rdp2 = None if curve is None else curve(n, np.array([2.0]), "replace_one")
    order2 = float(rdp2[0]) if rdp2 is not None and np.isfinite(rdp2).all() else None
    if order2 is not None and np.isfinite(domain).all():
        limits.append(bounds.hammersley_chapman_robbins(order2, domain))
    loss = learner.defense.pld
    limits += from_plug_ins(
        problem,
        None if traces is None else traces.mean(1),
        curve and (lambda orders: curve(n, orders, "replace_one")),
        loss and (lambda: loss(n, "replace_one")),
    )
    return Guarantees(
        dfil,
        dfil_se,
        tuple(limits),
        epsilon(learner, n, delta),
        rdp2=order2,
        eta=None if norms is None else np.sqrt(norms.mean(1)),
        nominal=nominal(learner, n),
    )


def from_plug_ins(problem: Problem, trace: Any, rdp: Any, pld: Any) -> list[Bound]:
    """Return the bounds of plug-ins that apply; the last three as in `Readings`."""
    splits, domain = problem.splits, problem.task.domain
    size, pool = splits.fixed.x[0].size, originals(splits)
    readings = Readings(size, domain, trace, rdp, pld, pool)
    each = [bound(readings) for bound in problem.bounds]
    return [b for b in each if b is not None]


def _gaussian_prior(traces: np.ndarray, labels: Any, splits: Splits) -> Bound:
    """Van Trees for a Gaussian prior per class, its covariance that of the pool."""
    pool, pool_labels = originals(splits)
    total, bound = 0.0, None
    for label in np.unique(labels):
        chosen = labels == label
        x = pool[pool_labels == label]
        x = x.reshape(len(x), -1)
        variances = np.linalg.eigvalsh(np.cov(x.astype(np.float64), rowvar=False))
        bound = bounds.van_trees(traces[chosen].mean(), np.maximum(variances, 0))
        total += chosen.mean() * float(bound.value)
    assert bound is not None
    return bound._replace(value=np.asarray(total))


def _finite_prior(
    key: jax.Array, learner: shadow.Learner, splits: Splits, engine: Any
) -> Bound | None:
    """Exact Bayes risk over the pool's originals of the target's class."""
    if learner.defense.log_likelihood is None:
        return None
    candidates = originals(splits)
    records = TrainingSet(splits.fixed, splits.targets)
    what = f"{learner.label}: finite prior"
    ratios = shadow.sweep(
        "log_likelihood",
        learner,
        key,
        records,
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


def nominal(learner: shadow.Learner, n: int) -> tuple:
    """Return the values a defense prints under its source's name; none for most."""
    name = learner.recipe.factory.__name__
    return published_claims(name, learner.settings, learner.task, n)


def epsilon(learner: shadow.Learner, n: int, delta: float) -> dict[str, Any] | None:
    """Account for epsilon at `delta`, both adjacencies, every accountant that can.

    `tight` is the privacy-loss distribution (exact for full-batch Gaussian noise),
    `rdp` the conversion of the Renyi curve. None where no accountant has a theorem.
    """
    defense = learner.defense
    if defense.rdp is None and defense.pld is None:
        return None
    values: dict[str, Any] = {"delta": delta}
    for adjacency in ADJACENCIES:
        curve = None if defense.rdp is None else defense.rdp(n, rdp.ORDERS, adjacency)
        loss = None if defense.pld is None else defense.pld(n, adjacency)
        values[adjacency] = {
            "rdp": _from_curve(curve, delta),
            "tight": float(loss.get_epsilon_for_delta(delta)) if loss else None,
        }
    return values


def _from_curve(curve: np.ndarray | None, delta: float) -> float | None:
    if curve is None or not np.isfinite(curve).all():
        return None
    return rdp.epsilon(rdp.ORDERS, curve, delta)
