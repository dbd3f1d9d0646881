"""From scorecards to the tables of a leaderboard: plain data, nothing rendered.

One table a scenario and data set. Cards that differ in their seed alone are one entry,
whose numbers are means over seeds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from audit.engine import store as stores
from audit.report import columns as cells
from audit.report.columns import Column, Line
from audit.scorecard import average_seeds
from audit.scorecard.card import Scorecard

NOT_RECORDED, NOT_MEASURED = "not recorded", "not measured"
# what has to agree for two defenses to be under equal noise
NOISE = (
    "noise_multiplier", "noise_stddev", "concentration", "clip_norm", "steps",
    "sampling", "batch_size",
)  # fmt: skip


class Held(NamedTuple):
    """One card and the name of its folder."""

    folder: str
    card: Scorecard


class Entry(NamedTuple):
    """The cards of one set of settings, a seed each, and their mean."""

    held: tuple[Held, ...]
    card: Scorecard


class Row(NamedTuple):
    """One defense of an entry."""

    entry: Entry
    line: Line
    protection: float | None  # larger is better; None where no attack is valid
    utility: float | None

    @property
    def label(self) -> str:
        """The defense, as the card calls it."""
        return self.line.label


class Table(NamedTuple):
    """The standings of one scenario on one data set, best protected first."""

    scenario: str
    data: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    front: frozenset[int]  # rows nothing beats in both utility and protection
    measure: str | None  # what protection is, in words; None where nobody attacks
    sign: float  # shown value = sign * protection


# Tables -------------------------------------------------------------------------------


def tables(cards: list[Held]) -> list[Table]:
    """Return a table for each scenario and data set, in alphabetical order."""
    groups: dict[tuple[str, str], list[Held]] = {}
    for held in cards:
        where = held.card.scenario["scenario"], held.card.data["name"]
        groups.setdefault(where, []).append(held)
    return [_table(entries(groups[where])) for where in sorted(groups)]


def entries(cards: list[Held]) -> list[Entry]:
    """Return cards of equal settings together, a seed once each."""
    found: dict[tuple[str, int], list[Held]] = {}
    for held in sorted(cards, key=lambda h: (h.card.scenario["seed"], h.folder)):
        key, again = _but_the_seed(held.card), 0
        seed = held.card.scenario["seed"]
        while any(h.card.scenario["seed"] == seed for h in found.get((key, again), ())):
            again += 1  # the same run, kept twice: an entry of its own
        found.setdefault((key, again), []).append(held)
    return [
        Entry(tuple(h), average_seeds.merged([x.card for x in h]))
        for h in found.values()
    ]


def _but_the_seed(card: Scorecard) -> str:
    kept = {k: v for k, v in card.scenario.items() if k not in ("seed", "lanes")}
    return stores.digest(kept, card.data["digest"])


def _table(found: list[Entry]) -> Table:
    first = found[0].card
    rows = [_row(entry, line) for entry in found for line in cells.lines(entry.card)]
    rows.sort(key=_order)
    name, sign = _measure(rows)
    return Table(
        scenario=first.scenario["scenario"],
        data=first.data["name"],
        title=first.scenario["title"],
        rows=tuple(rows),
        columns=tuple(_columns(found)),
        front=pareto([(r.utility, r.protection) for r in rows]),
        measure=name,
        sign=sign,
    )


def _order(row: Row) -> tuple[bool, float, str]:
    gone = row.protection is None or math.isnan(row.protection)
    return (gone, 0.0 if gone else -float(row.protection or 0.0), row.label)


def _row(entry: Entry, line: Line) -> Row:
    best = line.best and line.best["result"]
    utility = line.own["utility"] or {}
    value = utility.get("accuracy", utility.get("r2"))
    return Row(
        entry,
        line,
        cells.error(best) if best else None,
        None if value is None else float(value),
    )


class Measured(NamedTuple):
    """What an attack is ranked by."""

    key: str
    value: float
    se: float | None
    sign: float  # sign * value is protection: larger is better


def measured(result: dict[str, Any]) -> Measured | None:
    """Return the number of a result that `columns.error` ranks attacks by."""
    rank = float(cells.error(result))
    for key, sign in (("mse", 1.0), ("auc", -1.0), ("epsilon_lower", -1.0),
                      ("success", -1.0)):  # fmt: skip
        held, se = result.get(key), result.get(f"{key}_se")
        if isinstance(held, dict):  # a 95% interval is 3.92 standard errors wide
            se = (float(held["high"]) - float(held["low"])) / 3.92
            held = held["value"]
        if held is not None and math.isclose(sign * float(held), rank, rel_tol=1e-9):
            return Measured(key, float(held), None if se is None else float(se), sign)
    return None


def _measure(rows: list[Row]) -> tuple[str | None, float]:
    """Return what protection is measured by, and how it is shown."""
    for row in rows:
        if row.line.best is not None:
            seen = measured(row.line.best["result"])
            if seen is None:
                return "what the strongest attack gets", -1.0
            return MEASURES[seen.key], seen.sign
    return None, 1.0


MEASURES = {
    "mse": "MSE of the strongest attack",
    "success": "share the strongest attack tells right",
    "auc": "AUC of the strongest attack",
    "epsilon_lower": "ε proved by the strongest attack",
}


def pareto(points: list[tuple[float | None, float | None]]) -> frozenset[int]:
    """Return the points no other is at least as good as in both, and better in one.

    Args:
      points: (utility, protection), larger is better; one with None or nan is no point.
    """
    told = {
        i: (float(u), float(p))
        for i, (u, p) in enumerate(points)
        if u is not None and p is not None and not (math.isnan(u) or math.isnan(p))
    }
    return frozenset(
        i
        for i, mine in told.items()
        if not any(
            other[0] >= mine[0] and other[1] >= mine[1] and other != mine
            for other in told.values()
        )
    )


def utility_se(entry: Entry, label: str) -> float | None:
    """Return the standard error of a defense's utility over seeds; None for one."""
    values = [_value(h.card.defenses[label]) for h in entry.held]
    told = [v for v in values if v is not None]
    if len(told) < 2:
        return None
    return float(np.std(told, ddof=1) / math.sqrt(len(told)))


def _value(own: dict[str, Any]) -> float | None:
    held = own["utility"] or {}
    value = held.get("accuracy", held.get("r2"))
    return None if value is None else float(value)


# Columns ------------------------------------------------------------------------------


def _columns(found: list[Entry]) -> list[Column]:
    """Return the columns of the cards' own tables and what a leaderboard adds."""
    entry_of = {id(e.card): e for e in found}
    shown: dict[str, Column] = {}
    for entry in found:
        for column in cells.columns(entry.card):
            shown.setdefault(column.header, column)
    defense, utility, *rest = shown.values()
    flags = shown["flags"]
    between = [c for c in rest if c.header != "flags"]

    def useful(line: Line) -> str:
        se = utility_se(entry_of[id(line.card)], line.label)
        value = utility.cell(line)
        return value if se is None else f"{value} ± {cells.number(se)}"

    epsilons = [Column("ε upper", epsilon_upper), Column("ε lower", epsilon_lower)]
    epsilons = [c for c in epsilons if c.header not in shown]
    last = [
        Column("noise", lambda v: noise(v.own), right=False),
        Column("settings by, cost", chosen, right=False),
        Column("targets × runs", effort),
        Column("seeds", lambda v: str(len(entry_of[id(v.card)].held))),
    ]
    counted = utility._replace(cell=useful)
    return [defense, counted, *between, *epsilons, flags, *last]


def epsilon_upper(line: Line) -> str:
    """Return the accounted epsilon of the game's adjacency: replace-one, or its own."""
    audited = (line.best or {"result": {}})["result"].get("upper")
    if audited is not None:  # of the adjacency the attack audits
        return cells.number(audited, 2)
    held = line.own["epsilon"]
    where = (line.own.get("membership") or {}).get("adjacency", "replace_one")
    pair = (held or {}).get(where) or {}
    value = pair.get("tight") if pair.get("tight") is not None else pair.get("rdp")
    return "none" if value is None else cells.number(value, 2)


def epsilon_lower(line: Line) -> str:
    """Return the largest epsilon an attack on this defense proves."""
    proven = [
        float(t["result"]["epsilon_lower"])
        for t in line.card.trials
        if t["defense"] == line.label and t["status"] == "ok"
        if t["result"].get("epsilon_lower") is not None
    ]
    return cells.number(max(proven), 2) if proven else NOT_MEASURED


def noise(own: dict[str, Any]) -> str:
    """Return the setting that says how much noise there is."""
    held = own["settings"]
    said = [
        f"{k} {held[k]:g}" if isinstance(held[k], float) else f"{k} {held[k]}"
        for k in NOISE[:3]
        if held.get(k) is not None
    ]
    return ", ".join(said) or "none"


def effort(line: Line) -> str:
    """Return how many targets were attacked, and how many releases of each."""
    held = line.best and line.best["result"]
    if not held or held.get("targets") is None:
        return "-"
    return f"{float(held['targets']):.0f} × {float(held.get('runs') or 1):.0f}"


def chosen(line: Line) -> str:
    """Return who chose a defense's settings and what that cost."""
    held = (line.card.provenance.get("chosen") or {}).get(line.label)
    return f"{held['by']}; {held['cost']}" if held else NOT_RECORDED
