"""Which rows of a table may be set beside each other: equal noise, equal utility."""

from __future__ import annotations

import math
from typing import NamedTuple

from audit.report import columns
from audit.report.leaderboard.standings import NOISE, Row, Table, measured, utility_se

SAID = {
    "noise": "the same noise settings; what else differs stands in their settings",
    "utility": "utility that cannot be told from the best of the table (two standard "
    "errors of the test part, and over seeds where there are several); nobody tuned "
    "them to be equal",
}

NOBODY = "nobody attacks here"


class Comparison(NamedTuple):
    """Rows that may be set beside each other, best protected first, and why."""

    what: str
    rows: tuple[Row, ...]
    left_out: str = ""


def at_equal_noise(table: Table) -> tuple[list[Comparison], str]:
    """Return the defenses under the same noise, and why there are none."""
    if table.measure is None:
        return [], NOBODY
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in table.rows:
        settings = row.line.own["settings"]
        held = {k: settings[k] for k in NOISE if settings.get(k) is not None}
        if any(k in held for k in NOISE[:3]):
            said = ", ".join(f"{k} {value}" for k, value in held.items())
            groups.setdefault((id(row.entry), said), []).append(row)
    found = [Comparison(k[1], tuple(r)) for k, r in groups.items() if len(r) > 1]
    return found, "" if found else "no two defenses here have the same noise settings"


def at_equal_utility(table: Table) -> tuple[list[Comparison], str]:
    """Return the rows no less useful than the best, or why there are none.

    Nobody tuned them to be equal. Two standard errors are allowed: of the test part (a
    share of m records has sqrt(p (1 - p) / m)), and over seeds where there are several.
    R^2 has no standard error with one seed.
    """
    told = [r for r in table.rows if r.utility is not None and r.protection is not None]
    if table.measure is None or not told:
        return [], NOBODY if table.measure is None else "no release here is a model"
    best = max(told, key=lambda r: float(r.utility or 0))
    slack, least = _slack(best), float(best.utility or 0)
    if slack is None:
        return [], "R² has no standard error with one seed"
    within = [r for r in told if float(r.utility or 0) >= least - slack]
    if len(within) < 2:
        return [], "every other row is less useful than the best"
    less = [r.label for r in told if r not in within]
    said = f"within {columns.number(slack)} of the best, {columns.number(best.utility)}"
    return [Comparison(said, tuple(within), ", ".join(less))], ""


def _slack(row: Row) -> float | None:
    held = row.line.own["utility"]
    over_seeds = utility_se(row.entry, row.label)
    if "accuracy" not in held:
        return None if over_seeds is None else 2 * over_seeds
    share = min(max(float(held["accuracy"]), 0.0), 1.0)
    test = share * (1 - share) / float(held["test"])
    return 2 * math.sqrt(test + (over_seeds or 0.0) ** 2)


def protection_text(row: Row) -> str:
    """Return what a row's strongest attack got, as the tables print it."""
    if row.line.best is None:
        return "no valid attack"
    seen = measured(row.line.best["result"])
    if seen is None:
        return columns.number(-float(row.protection or 0.0), 3)
    if seen.se is None:
        return columns.number(seen.value, 3)
    return columns.with_error(seen.value, seen.se)
