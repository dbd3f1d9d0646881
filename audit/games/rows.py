"""From what an audit found to plain rows: utilities, arrays, JSON data."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from audit import data
from audit.config.compose import Entry, Scenario
from audit.engine import shadow
from audit.games import scoring
from audit.games.base import Problem, Runs, Trial
from audit.games.guarantees import Guarantees
from audit.scorecard.flags import Measured
from audit.statistics import metrics
from audit.types import Release, Splits

MANY_CLASSES = 100  # from which on the ten likeliest classes are looked at too
PEOPLE = {"lfw"}  # data sets whose pictures stay out of arrays, hence of figures
EXTREMES = 8  # records with the smallest and the largest loss whose images are kept


def utility(of: shadow.Learner, runs: Runs, splits: Splits) -> dict | None:
    """Return how useful the releases are on the test part: mean, and sd between runs.

    Accuracy, or R^2 where labels are numbers.
    """
    if of.defense.predict is None:
        return None
    name = "accuracy" if of.task.classes else "r2"
    measure = jax.jit(jax.vmap(quality(of), (None, 0, None, None)))
    x, y = splits.test
    parts = [measure(of.side, part, x, y) for part in _in_parts(runs.releases, 256)]
    each = np.concatenate([np.asarray(p) for p in parts])
    found = {
        name: float(each.mean()),
        f"{name}_sd": float(each.std()),
        "models": len(each),
        "test": len(y),
    }
    if of.task.classes >= MANY_CLASSES:
        top = jax.jit(jax.vmap(top10(of), (None, 0, None, None)))
        parts = [top(of.side, part, x, y) for part in _in_parts(runs.releases, 256)]
        found["top10"] = float(np.concatenate([np.asarray(p) for p in parts]).mean())
    if runs.noiseless is not None:
        found["noiseless"] = float(jax.jit(quality(of))(of.side, runs.noiseless, x, y))
    return found


def quality(of: shadow.Learner) -> Any:
    """Return (side, Release, x [m], y [m]) -> accuracy, or R^2 of numbers."""
    predict = of.defense.predict
    assert predict is not None

    def accuracy(side: Any, release: Release, x: Any, y: Any) -> jax.Array:
        return (predict(side, release, x).argmax(-1) == y).mean()

    def r2(side: Any, release: Release, x: Any, y: Any) -> jax.Array:
        error = predict(side, release, x)[:, 0] - y
        return 1 - (error**2).mean() / y.var()

    return accuracy if of.task.classes else r2


def top10(of: shadow.Learner) -> Any:
    """Return (side, Release, x [m], y [m]) -> share with their class among 10."""
    predict = of.defense.predict
    assert predict is not None

    def share(side: Any, release: Release, x: Any, y: Any) -> jax.Array:
        best = jax.lax.top_k(predict(side, release, x), 10)[1]
        return (best == y[:, None]).any(1).mean()

    return share


def _in_parts(releases: Release, size: int) -> list[Release]:
    m = len(jax.tree.leaves(releases)[0])
    return [
        jax.tree.map(lambda a, i=i: a[i : i + size], releases)
        for i in range(0, m, size)
    ]


def describe(
    entry: Entry, held: Guarantees, utility: dict | None, seen: Measured
) -> dict[str, Any]:
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
    eta = None
    if held.eta is not None:
        eta = {
            "mean": held.eta.mean(),
            "sd": held.eta.std(),
            "min": held.eta.min(),
            "max": held.eta.max(),
        }
        groups = (held.anatomy or {}).get("eta_of_groups")
        if groups is not None:
            eta |= {"set": groups[0], "classes": groups[1:]}
    return {
        "use": entry.name,
        "passed": entry.passed,
        "settings": entry.settings,
        "utility": utility,
        "dfil": dfil,
        "eta": eta,
        "steps": held.steps,
        "bounds": [scoring.describe(b) for b in held.bounds],
        "rdp2": held.rdp2,
        "nominal": [n._asdict() for n in held.nominal],
        **({"membership": held.membership} if held.membership else {}),
        "epsilon": held.epsilon,
        "measured": seen._asdict(),
    }


def error(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the error of every target [targets]: squared, or how often wrong."""
    return arrays["mse"] if "mse" in arrays else arrays["wrong"]


def floor_summary(floor: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the mean error of the attacker who ignores the release, and its s.e."""
    if not floor:
        return {"mse": None, "mse_se": None}
    each = error(floor)
    return {"mse": float(each.mean()), "mse_se": metrics.standard_error(each)}


def with_shares(trials: list[Trial], floor: dict[str, np.ndarray]) -> list[Trial]:
    """Add the shares of targets an attack rebuilds better than oracle and floor do.

    The first is Balle et al.'s (2022) criterion of success; None where the line-up has
    no oracle. The second goes by the median over runs where there is one.
    """
    oracle = {
        t.defense: error(t.arrays)
        for t in trials
        if floor and t.result is not None and t.arrays is not None
        if t.result["oracle"]
    }

    def add(t: Trial) -> Trial:
        if t.arrays is None or t.result is None or not floor:
            return t
        typical = t.arrays.get("mse_median", error(t.arrays))
        t.result["beats_floor"] = float((typical < error(floor)).mean())
        if t.result["oracle"]:
            return t
        known = oracle.get(t.defense)
        rate = None if known is None else metrics.win_rate(error(t.arrays), known)
        return t._replace(result={**t.result, "win_rate": rate})

    return [add(t) for t in trials]


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
    kept = _pictures(problem, held, floor)
    for label, own in held.items():
        values = {"dfil": own.dfil, "eta": own.eta}
        values |= {b.name: np.asarray(b.value) for b in own.bounds}
        values |= {f"anatomy/{k}": v for k, v in (own.anatomy or {}).items()}
        kept |= {f"{label}/{k}": v for k, v in values.items() if v is not None}
    for one in trials:
        for name, array in (one.arrays or {}).items():
            if name == "guess" and problem.dataset.name in PEOPLE:
                continue
            if name == "mean_guess":  # of every record; only some are looked at
                array = array[kept["shown"]]
            kept[f"{one.defense}/{one.attack.label}/{name}"] = array
    return kept


def _pictures(
    problem: Problem, held: dict[str, Guarantees], floor: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return labels, the floor, and the images that figures show."""
    kept = {"floor": error(floor)} if floor else {}
    if problem.dataset.name in PEOPLE:
        return kept
    if problem.pictures is None:
        targets = problem.splits.targets
        kept |= {"target": targets.x, "label": targets.y}
        return kept | ({"floor_guess": floor["guess"]} if floor else {})
    kept["label"] = problem.splits.fixed.y
    if problem.pictures.ndim != 4:  # a table
        return kept
    shown: set[int] = set()
    for own in held.values():
        for values in (own.dfil, own.eta):
            if values is not None:
                order = np.argsort(values, kind="stable")
                shown |= {*order[:EXTREMES].tolist(), *order[-EXTREMES:].tolist()}
    kept["shown"] = np.array(sorted(shown), int)
    return kept | {"shown_x": problem.pictures[kept["shown"]]}
