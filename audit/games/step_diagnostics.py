"""The game that looks inside every step: gradient, perturbation, contribution, leakage.

Played like leave_one_out, except that the runs that are released, and scored, are the
very runs that are taken apart and accounted: the last step's numbers are the card's.
After Edmunds (2024), section 3.2.1 and appendix A.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.engine import shadow
from audit.engine.precision import double
from audit.errors import UserError
from audit.games import guarantees, leave_one_out, rows
from audit.games.base import Game, Runs, Table
from audit.games.guarantees import Guarantees
from audit.rng import stream
from audit.types import (
    Dissection,
    Release,
    TrainingSet,
)

COMPONENTS = 100  # leading ones of the base gradients that meet the perturbation


class Looked(NamedTuple):
    """One run, taken apart."""

    params: Any  # that it ends at
    traces: np.ndarray | None  # [n] Fisher information of all steps; None = no reading
    steps: list[dict[str, Any]]  # numbers, one entry a step
    arrays: dict[str, np.ndarray]  # [steps, n, ...] for figures


def release(key: jax.Array, of: shadow.Learner, table: Table) -> Runs:
    """Train on all fixed records `runs` times, and describe the first step by step.

    Where there are no steps to take apart it is as in leave_one_out.

    Raises:
      UserError: where the gradients of all records do not fit the memory budget.
    """
    if of.defense.dissect is None:
        return leave_one_out.release(key, of, table)
    _affordable(of, table)
    key, what, looked = stream(key, "target runs"), f"{of.label}: runs taken apart", []
    table.engine.report(what, 0, table.runs)
    for i in range(table.runs):
        looked.append(look(jax.random.fold_in(key, i), of, table, details=not i))
        table.engine.report(what, i + 1, table.runs)
    each = [one.params for one in looked]
    params = jax.tree.map(lambda *a: np.stack(a).astype(np.float32), *each)
    return Runs(Release(params), looked=looked)


def account(
    key: jax.Array, of: shadow.Learner, table: Table, runs: int, delta: float
) -> Guarantees:
    """Account for every record of one training set, along the runs of `release`.

    Args:
      key: of trajectories, where there are no runs taken apart.
      of: the defense.
      table: holds what `release` made.
      runs: how many of these are accounted.
      delta: at which epsilon is given.

    Raises:
      UserError: if fewer runs were made.
    """
    looked = table.made.looked if table.made is not None else None
    if looked is None:
        return leave_one_out.account(key, of, table, runs, delta)
    if runs > len(looked):
        raise UserError(
            f"accounting_runs={runs}: in the game anatomy the runs that are made are "
            f"accounted, and runs={len(looked)}"
        )
    each = [one.traces for one in looked[:runs] if one.traces is not None]
    traces, labels = np.stack(each, 1) if each else None, table.problem.splits.fixed.y
    held = guarantees.of_readings(
        of, (traces, None), table.problem, labels, len(labels), delta
    )
    return held._replace(anatomy=looked[0].arrays, steps=looked[0].steps)


def _affordable(of: shadow.Learner, table: Table) -> None:
    """Refuse what would keep too many gradients at a time."""
    d = sum(np.size(a) for a in jax.tree.leaves(of.side.params))
    n = len(table.problem.splits.fixed.y)
    need, budget = 3 * n * d * 8 / 2**30, table.engine.lanes.memory_gib
    if need > budget:
        raise UserError(
            f"game=anatomy: three gradients of {d:,} parameters of each of {n:,} "
            f"records take {need:.1f} GiB; lanes.memory_gib={budget}"
        )


def look(key: jax.Array, of: shadow.Learner, table: Table, *, details: bool) -> Looked:
    """Take one run apart, in float64 like all accounting.

    Args:
      key: of the run.
      of: the defense.
      table: its records, public records and test records are looked at.
      details: whether anything but the Fisher information is wanted.
    """
    splits = table.problem.splits
    steps, arrays, total = [], [], None
    with jax.enable_x64(True):
        defense = of.factory(of.task, **dict(of.static), **of.floats)
        side, data, public = double(
            (of.side, TrainingSet(splits.fixed, None), splits.public)
        )
        state = jax.jit(defense.init)(key, side)
        step = jax.jit(defense.dissect)
        measure = jax.jit(partial(rows.quality(of), side))
        for _ in range(defense.steps):
            state, seen = step(key, state, data, public)
            seen = jax.device_get(seen)
            if seen.trace is not None:
                total = seen.trace + (0 if total is None else total)
            if details:
                quality = float(measure(Release(seen.params), *splits.test))
                own = arrays_of(seen)
                arrays.append(own)
                leaked = None if total is None else total / splits.fixed.x[0].size
                word = "accuracy" if of.task.classes else "r2"
                steps.append({word: quality, **_numbers(own, leaked)})
    names = arrays[0] if arrays else ()
    kept = {k: np.stack([a[k] for a in arrays]) for k in names}
    return Looked(seen.params, total, steps, kept)


def _numbers(own: dict[str, np.ndarray], dfil: np.ndarray | None) -> dict[str, Any]:
    """Return a step in numbers; None = there is no such thing here."""
    roots = None if dfil is None else np.sqrt(dfil)
    found: dict[str, Any] = {
        f"sqrt_{name}": None if roots is None else float(take(roots))
        for name, take in (("max", np.max), ("mean", np.mean), ("median", np.median))
    }
    for name in MEANS:
        found[name] = float(own[name].mean(dtype=float)) if name in own else None
    return found


MEANS = (
    "base_norm",
    "perturbation_norm",
    "final_norm",
    "cos_base",
    "cos_public",
    "cos_private",
)


def arrays_of(seen: Dissection) -> dict[str, np.ndarray]:
    """Return what figures need of one step, float32.

    Norms and cosines [n]: `cos_base`, `cos_public`, `cos_private` are those of the
    perturbation with the record's own gradient, the mean gradient of the public
    records and that of the batch. `pca_*` [n, 2] are the two leading coordinates of a
    PCA fitted to this step alone, `pca_*_share` [2] their part of the variance.
    `pc_cosine` and `pc_share` [100 or fewer]: the leading components of the gradients,
    each one's |cosine| with the first record's perturbation and part of the variance.
    """
    found = {"base_norm": _norm(seen.base), "final_norm": _norm(seen.final)}
    found |= _panel("base", seen.base)
    if seen.added is not None:
        found |= {
            "perturbation_norm": _norm(seen.added),
            "cos_base": _cosine(seen.added, seen.base),
            "cos_private": _cosine(seen.added, seen.private[None]),
            **_panel("before_noise", seen.base + seen.added),
            **_panel("perturbation", seen.added),
        }
        found |= _components(seen.base, seen.added[0])
        if seen.public is not None:
            found["cos_public"] = _cosine(seen.added, seen.public[None])
    return {k: np.asarray(v, np.float32) for k, v in found.items()}


def _norm(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1)


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosine of rows; nan where one of them is zero."""
    size = _norm(a) * _norm(b)
    inner = (a * b).sum(1)
    return np.divide(inner, size, out=np.full_like(inner, np.nan), where=size > 0)


def _panel(name: str, points: np.ndarray) -> dict[str, np.ndarray]:
    """Return a PCA of its own; one point where all records are alike."""
    moving = points[:, np.ptp(points, axis=0) > 0]
    place, share = np.zeros((len(points), 2)), np.full(2, np.nan)
    if moving.size:
        pca = _pca(moving, 2)
        kept = pca.n_components_
        place[:, :kept] = pca.transform(moving)
        share[:kept] = pca.explained_variance_ratio_
    return {f"pca_{name}": place, f"pca_{name}_share": share}


def _components(base: np.ndarray, vector: np.ndarray) -> dict[str, np.ndarray]:
    """Compare the leading components of `base` [n, D] with one vector [D]."""
    moves = np.ptp(base, axis=0) > 0
    if not moves.any():
        return {}
    pca = _pca(base[:, moves], COMPONENTS)
    size = np.linalg.norm(vector)
    inner = np.abs(pca.components_ @ vector[moves])
    return {
        "pc_cosine": inner / size if size > 0 else np.full_like(inner, np.nan),
        "pc_share": pca.explained_variance_ratio_,
    }


def _pca(points: np.ndarray, most: int) -> Any:
    """Return scikit-learn's PCA; coordinates that never move are left to the caller."""
    from sklearn.decomposition import PCA

    return PCA(min(most, *points.shape), svd_solver="full").fit(points)


GAME: Game = leave_one_out.GAME._replace(release=release, account=account)
