"""Which rows of a table can be compared: those of equal noise, of equal utility."""

from __future__ import annotations

import math
from typing import NamedTuple

from audit.report.leaderboard import standings
from audit.report.leaderboard.standings import NOISE, Standing, StandingsTable
from audit.scorecard.view import number, with_error

NOBODY = "nobody attacks here"


class Comparison(NamedTuple):
    """Rows that can be compared, best protected first, and why."""

    why: str
    rows: tuple[Standing, ...]
    left_out: str = ""


def at_equal_noise(table: StandingsTable) -> tuple[list[Comparison], str]:
    """Return groups of rows with equal noise settings, or why there is none."""
    if table.measure is None:
        return [], NOBODY
    groups: dict[tuple[int, str], list[Standing]] = {}
    for row in table.rows:
        settings = row.line.defense.settings
        noise = {k: settings[k] for k in NOISE if settings.get(k) is not None}
        if any(k in noise for k in NOISE[:3]):
            words = ", ".join(f"{k} {value}" for k, value in noise.items())
            groups.setdefault((id(row.group), words), []).append(row)
    equal = [Comparison(k[1], tuple(r)) for k, r in groups.items() if len(r) > 1]
    return equal, "" if equal else "no two defenses here have the same noise settings"


def at_equal_utility(table: StandingsTable) -> tuple[list[Comparison], str]:
    """Return the rows whose utility equals the best one's, or why there is none.

    Nobody tuned the settings until utilities were equal. Two standard errors are
    allowed: that of the test part, sqrt(p (1 - p) / m) for a share p of m records, and
    that over seeds where there are several. R^2 has none with one seed.
    """
    if table.measure is None:
        return [], NOBODY
    ranked = [
        (r, r.utility)
        for r in table.rows
        if r.utility is not None and r.protection is not None
    ]
    if not ranked:
        return [], "no release here is a model"
    best, most = max(ranked, key=lambda pair: pair[1])
    slack = _slack(best)
    if slack is None:
        return [], "R² has no standard error with one seed"
    within = [r for r, utility in ranked if utility >= most - slack]
    if len(within) < 2:
        return [], "every other row is less useful than the best"
    less = ", ".join(r.label for r, utility in ranked if utility < most - slack)
    why = f"within {number(slack)} of the best, {number(most)}"
    return [Comparison(why, tuple(within), less)], ""


def _slack(row: Standing) -> float | None:
    utility, over_seeds = (
        row.line.defense.utility,
        standings.utility_se(row.group, row.label),
    )
    if utility is None or utility.accuracy is None:
        return None if over_seeds is None else 2 * over_seeds
    share = min(max(float(utility.accuracy), 0.0), 1.0)
    test = share * (1 - share) / float(utility.test)
    return 2 * math.sqrt(test + (over_seeds or 0.0) ** 2)


def protection_text(row: Standing) -> str:
    """Return the headline of a row's strongest attack, as the tables print it."""
    if row.line.result is None:
        return "no valid attack"
    headline = row.line.result.headline
    if headline.standard_error is None:
        return number(headline.value, 3)
    return with_error(headline.value, headline.standard_error)
