"""From what an audit found to plain rows: utilities, flags, arrays, JSON data."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from audit import data, flags, metrics, scoring, shadow
from audit.accounting import Guarantees
from audit.compose import Entry, Scenario
from audit.types import Release, Splits, Task


class Problem(NamedTuple):
    """Everything public and private about what is audited."""

    task: Task
    splits: Splits
    dataset: data.Dataset


class Trial(NamedTuple):
    """One planned (defense, attack), whatever came of it."""

    defense: str
    attack: Entry
    threat_model: str
    status: str  # "ok", "skipped" or "failed"
    reason: str | None = None
    result: dict[str, Any] | None = None
    arrays: dict[str, np.ndarray] | None = None


def utility(of: shadow.Learner, releases: Release, splits: Splits) -> dict | None:
    """Return test accuracy over the target runs: mean, and sd between runs."""
    if of.defense.predict is None:
        return None
    correct = jax.jit(jax.vmap(_accuracy(of), (None, 0, None, None)))
    x, y = splits.test
    parts = [correct(of.side, part, x, y) for part in _in_parts(releases, 256)]
    each = np.concatenate([np.asarray(p) for p in parts])
    return {
        "accuracy": float(each.mean()),
        "accuracy_sd": float(each.std()),
        "models": len(each),
        "test": len(y),
    }


def _accuracy(of: shadow.Learner) -> Any:
    predict = of.defense.predict
    assert predict is not None
    return lambda side, release, x, y: (
        predict(side, release, x).argmax(-1) == y
    ).mean()


def _in_parts(releases: Release, size: int) -> list[Release]:
    m = len(jax.tree.leaves(releases)[0])
    return [
        jax.tree.map(lambda a, i=i: a[i : i + size], releases)
        for i in range(0, m, size)
    ]


def describe(entry: Entry, held: Guarantees, utility: dict | None) -> dict[str, Any]:
    """Return all about one defense that does not depend on an attack."""
    dfil = None
    if held.dfil is not None:
        roots = np.sqrt(held.dfil)
        dfil = {
            "mean": held.dfil.mean(),
            "median": np.median(held.dfil),
            "max": held.dfil.max(),
            "sqrt_mean": roots.mean(),
            "sqrt_median": np.median(roots),
            "sqrt_max": roots.max(),
        }
        if held.dfil_se is not None:
            dfil["relative_se"] = float(np.median(held.dfil_se / held.dfil))
    return {
        "use": entry.name,
        "passed": entry.passed,
        "settings": entry.settings,
        "utility": utility,
        "dfil": dfil,
        "bounds": [scoring.describe(b) for b in held.bounds],
        "epsilon": held.epsilon,
    }


def row(
    one: Trial,
    held: dict[str, Guarantees],
    trials: list[Trial],
    learners: list[shadow.Learner],
    floor: np.ndarray,
    scenario: Scenario,
    problem: Problem,
) -> flags.Row | None:
    """Return what the flags look at; None for a trial without a result."""
    if one.arrays is None or one.result is None:
        return None
    undefended = [
        of.label
        for of in learners
        if of.defense.fisher is None and of.defense.rdp is None
    ]
    controls = [
        t.arrays["mse"]
        for t in trials
        if t.defense in undefended and t.attack == one.attack and t.arrays is not None
    ]
    wanted = next(iter(scenario.spec.sets))
    spread = problem.splits.pool_source
    distinct, size = len(np.unique(spread)), len(spread)
    return flags.Row(
        attack=one.attack.name,
        oracle=one.result["oracle"],
        is_floor=one.attack.name == "class_mean",
        mse=one.arrays["mse"],
        bias2=one.arrays.get("bias2"),
        finite=bool(np.isfinite(one.arrays["mse"]).all()),
        floor=floor,
        bounds=held[one.defense].bounds,
        runs=one.result["runs"],
        control=controls[0] if controls else None,
        is_control=one.defense in undefended,
        stand_in="" if scenario.data == wanted else f"{scenario.data}, not {wanted}",
        augmented="" if size == distinct else f"{distinct} images made {size}",
    )


def with_win_rates(trials: list[Trial]) -> list[Trial]:
    """Add the share of targets an attack rebuilds more closely than the oracle does.

    Balle et al.'s (2022) criterion of success. None where the line-up has no oracle.
    """
    oracle = {
        t.defense: t.arrays["mse"]
        for t in trials
        if t.result is not None and t.arrays is not None and t.result["oracle"]
    }

    def add(t: Trial) -> Trial:
        if t.arrays is None or t.result is None or t.result["oracle"]:
            return t
        known = oracle.get(t.defense)
        rate = None if known is None else metrics.win_rate(t.arrays["mse"], known)
        return t._replace(result={**t.result, "win_rate": rate})

    return [add(t) for t in trials]


def plain(one: Trial, row: flags.Row | None) -> dict[str, Any]:
    """Return a trial as plain data, flags raised."""
    found = flags.raised(row) if row is not None else []
    return {
        "defense": one.defense,
        "attack": one.attack.label,
        "use": one.attack.name,
        "passed": one.attack.passed,
        "settings": one.attack.settings,
        "threat_model": one.threat_model,
        "status": one.status,
        "reason": one.reason,
        "result": one.result,
        "flags": [flag._asdict() for flag in found],
    }


def provenance(scenario: Scenario, problem: Problem) -> dict[str, Any]:
    """Return which data were used, to the bit."""
    dataset = problem.dataset
    return {
        "name": scenario.data,
        "origin": dataset.origin,
        "note": dataset.note,
        "digest": data.splits_digest(problem.splits),
        "splits": scoring.sizes(problem.splits),
        "duplicates": data.duplicates(problem.splits),
    }


def arrays(
    problem: Problem,
    held: dict[str, Guarantees],
    trials: list[Trial],
    floor: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return the per-target arrays that figures are drawn from."""
    targets = problem.splits.targets
    kept = {"target": targets.x, "label": targets.y, "floor": floor["mse"]}
    kept["floor_guess"] = floor["guess"]
    for label, own in held.items():
        if own.dfil is not None:
            kept[f"{label}/dfil"] = own.dfil
        for bound in own.bounds:
            kept[f"{label}/{bound.name}"] = np.asarray(bound.value)
    for one in trials:
        for name, array in (one.arrays or {}).items():
            kept[f"{one.defense}/{one.attack.label}/{name}"] = array
    return kept
