"""What theory says of one defense: dFIL, bounds, epsilon. No attack is involved."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from audit import bounds, rdp, shadow
from audit.games import repeated
from audit.rng import stream
from audit.types import Adjacency, Bound, Splits, TrainingSet

ADJACENCIES: tuple[Adjacency, ...] = ("replace_one", "add_remove")


class Guarantees(NamedTuple):
    """All of it about the defense; None = no bound, never zero."""

    dfil: np.ndarray | None  # [targets] Tr I / d, mean over trajectories
    dfil_se: np.ndarray | None  # [targets] of that mean; None for one trajectory
    bounds: tuple[Bound, ...]
    epsilon: dict[str, Any] | None


def guarantees(
    key: jax.Array,
    of: shadow.Learner,
    splits: Splits,
    *,
    runs: int,
    delta: float,
    engine: shadow.Engine,
) -> Guarantees:
    """Account for the very runs that are attacked, target by target.

    Args:
      key: of the trajectories; independent of the games'.
      of: the defense.
      splits: the target stands in the slot it has in the game.
      runs: trajectories per target.
      delta: at which epsilon is given.
      engine: accounting is cheap and never stored.
    """
    engine = engine._replace(store=None)
    traces = _fisher(stream(key, "fisher"), of, splits, runs, engine)
    held: list[Bound] = []
    dfil = dfil_se = None
    if traces is not None:
        d = splits.targets.x[0].size
        dfil = traces.mean(1) / d
        dfil_se = traces.std(1, ddof=1) / d / np.sqrt(runs) if runs > 1 else None
        held += [bounds.cramer_rao(dfil), _gaussian_prior(traces.mean(1), splits)]
    curve = of.defense.rdp
    n = len(splits.fixed.y) + 1
    rdp2 = curve and curve(n, np.array([2.0]), "replace_one")
    if rdp2 is not None and np.isfinite(rdp2).all():
        held.append(bounds.hammersley_chapman_robbins(float(rdp2[0]), of.task.domain))
    risk = _finite_prior(stream(key, "finite prior"), of, splits, engine)
    held += [risk] if risk is not None else []
    return Guarantees(dfil, dfil_se, tuple(held), epsilon(of, n, delta))


def _fisher(
    key: jax.Array, of: shadow.Learner, splits: Splits, runs: int, engine: Any
) -> np.ndarray | None:
    """Return Tr I of every target along `runs` trajectories: [targets, runs]."""
    if of.defense.fisher is None:
        return None
    data = TrainingSet(splits.fixed, repeated(splits.targets, runs))
    own_slot = np.array([len(splits.fixed.y)])
    what = f"{of.label}: Fisher information"
    traces = shadow.sweep(
        "fisher", of, key, data, own_slot, engine=engine, what=what, precise=True
    )
    return traces.reshape(-1, runs)


def _gaussian_prior(traces: np.ndarray, splits: Splits) -> Bound:
    """Van Trees for a Gaussian prior per class, its covariance that of the pool."""
    first = splits.pool_source == np.arange(len(splits.pool_source))
    pool, labels = splits.pool.x[first], splits.pool.y[first]
    total, bound = 0.0, None
    for label in np.unique(splits.targets.y):
        own = splits.targets.y == label
        x = pool[labels == label].reshape((labels == label).sum(), -1)
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
    first = splits.pool_source == np.arange(len(splits.pool_source))
    candidates = jax.tree.map(lambda a: a[first], splits.pool)
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
