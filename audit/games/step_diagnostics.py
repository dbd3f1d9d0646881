"""The game that looks inside every step: gradient, perturbation, contribution, leakage.

Played like leave_one_out, except that the runs that are released, and scored, are the
very runs that are taken apart and accounted: the last step's numbers are the card's.
After Edmunds (2024), section 3.2.1 and appendix A.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.engine.precision import double
from audit.engine.shadow import Learner
from audit.errors import UserError
from audit.games import guarantees, leave_one_out, rows
from audit.games.base import Game, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms.batch import count, records, weights
from audit.mechanisms.noisy_sgd import step_information
from audit.rng import stream
from audit.scorecard.schema import Scorecard
from audit.scorecard.view import grid, number
from audit.types import Defense, Examples, Iterative, Release, State, TrainingSet

NORMS = ("base_norm", "perturbation_norm", "final_norm")
COSINES = ("cos_base", "cos_public", "cos_private")
COMPONENTS = 100  # leading ones of the base gradients that meet the perturbation


class Dissection(NamedTuple):
    """One step taken apart, for every record of the set; only the learner sees it."""

    params: Any  # after the step
    base: Any  # [n, D] the masked gradient
    added: Any  # [n, D] what is added to it before the clip; None = nothing
    final: Any  # [n, D] the contribution, before noise: clip(base + added)
    public: Any  # [D] mean masked gradient of the public records; None = there are none
    private: Any  # [D] mean masked gradient of the step's batch
    trace: Any  # [n] Fisher information of the step; None = no reading


def dissector(defense: Defense) -> Callable | None:
    """Return (run key, State, TrainingSet, public) -> (next State, Dissection).

    None where the defense takes no steps, or its query has no parts.
    """
    mechanism = defense.mechanism
    if not isinstance(mechanism, Iterative) or mechanism.query.parts is None:
        return None
    query, parts = mechanism.query, mechanism.query.parts

    def dissect(
        key: Array, state: State, data: TrainingSet, public: Examples
    ) -> tuple[State, Dissection]:
        rows = jnp.arange(count(data))
        state, view = mechanism.step(key, state, data)
        each = jax.vmap(parts, (None, None, 0))
        z = records(data, rows)
        base, added = each(view.params, view.side, z)
        final = jax.vmap(query.fn, (None, None, 0))(view.params, view.side, z)
        base, weight = _flat(base), weights(view.batch, rows)
        mean = None
        if len(public.y):
            mean = _flat(each(view.params, view.side, public)[0]).mean(0)
        read = step_information(mechanism, key, data, rows)
        return state, Dissection(
            params=state.params,
            base=base,
            added=None if added is None else _flat(added),
            final=_flat(final),
            public=mean,
            private=weight @ base / weight.sum(),
            trace=None if read is None else read(view),
        )

    return dissect


def _flat(tree: Any) -> Array:
    """Return a pytree of [m, ...] as one array [m, D]."""
    return jax.vmap(lambda one: ravel_pytree(one)[0])(tree)


class DissectedRun(NamedTuple):
    """One run, taken apart."""

    params: Any  # that it ends at
    traces: np.ndarray | None  # [n] Fisher information of all steps; None = no reading
    steps: list[dict[str, Any]]  # numbers, one entry per step
    arrays: dict[str, np.ndarray]  # [steps, n, ...] for figures


def anatomy() -> Game:
    """Rebuild every record in turn, and describe what happened inside every step."""
    return leave_one_out.leave_one_out()._replace(
        release=release, account=account, view=VIEW
    )


def release(key: Array, learner: Learner, table: Table) -> Runs:
    """Train on all fixed records `runs` times, and describe the first step by step.

    Where there are no steps to take apart it is as in leave_one_out.

    Raises:
      UserError: where the gradients of all records do not fit the memory budget.
    """
    if dissector(learner.defense) is None:
        return leave_one_out.release(key, learner, table)
    d = sum(np.size(a) for a in jax.tree.leaves(learner.side.params))
    n = len(table.problem.splits.fixed.y)
    need, budget = 3 * n * d * 8 / 2**30, table.engine.lanes.memory_gib
    if need > budget:
        raise UserError(
            f"game=anatomy: three gradients of {d:,} parameters of each of {n:,} "
            f"records take {need:.1f} GiB; lanes.memory_gib={budget}"
        )
    key, what = stream(key, "target runs"), f"{learner.label}: runs taken apart"
    dissected: list[DissectedRun] = []
    table.engine.report(what, 0, table.runs)
    for i in range(table.runs):
        run_key = jax.random.fold_in(key, i)
        dissected.append(look(run_key, learner, table, details=not i))
        table.engine.report(what, i + 1, table.runs)
    each = [one.params for one in dissected]
    params = jax.tree.map(lambda *a: np.stack(a).astype(np.float32), *each)
    return Runs(learner, Release(params), dissected, alike=table.runs)


def account(key: Array, runs: Runs, table: Table) -> Guarantees:
    """Account for every record of one training set, along the runs of `release`.

    Raises:
      UserError: if fewer runs were made than are to be accounted.
    """
    dissected: list[DissectedRun] | None = runs.evidence
    if dissected is None:
        return guarantees.in_turn(key, runs.learner, table)
    if table.trajectories > len(dissected):
        raise UserError(
            f"accounting_runs={table.trajectories}: in the game anatomy the runs that "
            f"are made are accounted, and runs={len(dissected)}"
        )
    fixed, first = table.problem.splits.fixed, dissected[0]
    traces = error = None
    if first.traces is not None:
        if len(dissected) == 1:  # of one run alone nobody can tell the error
            other = stream(key, "error of dFIL")
            dissected = [first, look(other, runs.learner, table, details=False)]
        each = [one.traces for one in dissected if one.traces is not None]
        every = np.stack(each, 1)
        traces = every[:, : table.trajectories]
        error = guarantees.relative_error(every, table.trajectories)
    readings, n = (traces, None), len(fixed.y)
    limits = guarantees.of_readings(runs.learner, readings, table, fixed, n)
    return limits._replace(
        dfil_error=error, arrays=first.arrays, fields={"steps": first.steps}
    )


def look(key: Array, learner: Learner, table: Table, *, details: bool) -> DissectedRun:
    """Take the run of `key` apart, in float64 like all accounting.

    Without `details` nothing but the end and the Fisher information is returned.
    """
    splits, task = table.problem.splits, learner.task
    steps, arrays, total = [], [], None
    word = "accuracy" if task.classes else "r2"
    with jax.enable_x64(True):
        defense = learner.build()
        mechanism, dissect = defense.mechanism, dissector(defense)
        assert isinstance(mechanism, Iterative)
        assert dissect is not None
        data = TrainingSet(splits.fixed, None)
        side, data, public = double((learner.side, data, splits.public))
        state = jax.jit(mechanism.init)(key, side)
        step = jax.jit(dissect)
        measure = jax.jit(partial(rows.quality(learner), side))
        for _ in range(mechanism.steps):
            state, dissection = step(key, state, data, public)
            dissection = jax.device_get(dissection)
            if dissection.trace is not None:
                total = dissection.trace + (0 if total is None else total)
            if details:
                quality = float(measure(Release(dissection.params), *splits.test))
                leaked = None if total is None else total / splits.fixed.x[0].size
                arrays.append(arrays_of(dissection))
                steps.append({word: quality, **_numbers(arrays[-1], leaked)})
    series = {k: np.stack([a[k] for a in arrays]) for k in next(iter(arrays), ())}
    return DissectedRun(dissection.params, total, steps, series)


def _numbers(arrays: dict[str, np.ndarray], dfil: np.ndarray | None) -> dict[str, Any]:
    """Return a step in numbers; None = there is no such thing here."""
    numbers: dict[str, Any] = dict.fromkeys(("sqrt_max", "sqrt_mean", "sqrt_median"))
    numbers |= dict.fromkeys((*NORMS, *COSINES))
    if dfil is not None:
        for name, statistic in guarantees.STATISTICS.items():
            numbers[f"sqrt_{name}"] = float(statistic(np.sqrt(dfil)))
    return numbers | {k: _mean(arrays[k]) for k in numbers if k in arrays}


def _mean(values: np.ndarray) -> float | None:
    """Return the mean over the records that have a value; None where none has one."""
    values = values[~np.isnan(values)]
    return float(values.mean(dtype=float)) if len(values) else None


def arrays_of(dissection: Dissection) -> dict[str, np.ndarray]:
    """Return what figures need of one step, float32.

    Norms and cosines [n]: `cos_base`, `cos_public`, `cos_private` are those of the
    perturbation with the record's own gradient, the mean gradient of the public
    records and that of the batch. `pca_*` [n, 2] are the two leading coordinates of a
    PCA fitted to this step alone, `pca_*_share` [2] their part of the variance.
    `pc_cosine` and `pc_share` [100 or fewer]: the leading components of the gradients,
    each one's |cosine| with the first record's perturbation and part of the variance.
    """
    base, added = dissection.base, dissection.added
    arrays = {"base_norm": _norm(base), "final_norm": _norm(dissection.final)}
    arrays |= _panel("base", base)
    if added is not None:
        arrays |= {
            "perturbation_norm": _norm(added),
            "cos_base": _cosine(added, base),
            "cos_private": _cosine(added, dissection.private[None]),
            **_panel("before_noise", base + added),
            **_panel("perturbation", added),
            **_components(base, added[0]),
        }
        if dissection.public is not None:
            arrays["cos_public"] = _cosine(added, dissection.public[None])
    return {k: np.asarray(v, np.float32) for k, v in arrays.items()}


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


# View ---------------------------------------------------------------------------------

COLUMNS = {
    "accuracy": "accuracy",
    "sqrt_max": "√dFIL so far, max",
    "sqrt_mean": "mean",
    "sqrt_median": "median",
    "base_norm": "norm: base",
    "perturbation_norm": "perturbation",
    "final_norm": "final",
    "cos_public": "cosine: public",
    "cos_private": "private",
    "cos_base": "own",
}


def _steps(card: Scorecard) -> list[str]:
    """Return what happened in every step of the runs that were taken apart."""
    lines = [
        [label, str(t), *(number(step.get(name)) for name in COLUMNS)]
        for label, defense in card.defenses.items()
        for t, step in enumerate(defense.get("steps") or [], 1)
    ]
    words = (
        "Means over records. base: the masked gradient; final: the clipped "
        "contribution before noise; cosines are the perturbation's, with the mean "
        "gradient of the public records, with that of the private batch, and with the "
        "record's own."
    )
    table = grid(["defense", "step", *COLUMNS.values()], lines)
    return ["## Steps", table, words] if lines else []


def _notes(card: Scorecard) -> list[str]:
    why = "no anatomy: no step in which gradients of records are clipped and summed"
    return [f"{k}: {why}" for k, d in card.defenses.items() if not d.get("steps")]


VIEW = leave_one_out.VIEW._replace(step_sections=_steps, notes=_notes)
