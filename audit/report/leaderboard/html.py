"""leaderboard.html: the tables of the leaderboard with plots, figures and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from audit.report import html_template, svg, terminal
from audit.report.columns import MARKS, SHORT, Column, common_flags
from audit.report.leaderboard import comparisons, standings
from audit.report.leaderboard.markdown import which
from audit.report.leaderboard.standings import Held, Row, Table
from audit.report.links import LINKS, figures, pick

WIDTHS = (900, 640, 400)  # of figures in pixels: the first at which all fit


def render(cards: list[Held], folder: Path) -> str:
    """Return the page.

    Args:
      cards: what `markdown.find` returned.
      folder: where their folders are, for the figures beside them.
    """
    held, found = standings.tables(cards), []
    for width in WIDTHS:
        album = html_template.Album()
        found = [_table(t, folder, album, width) for t in held]
        if not album.full:
            break
    return html_template.render(
        "leaderboard.html", "Breachmark leaderboard", tables=found
    )


def _table(
    table: Table, folder: Path, album: html_template.Album, width: int
) -> dict[str, Any]:
    cards = {h.folder: h for row in table.rows for h in row.entry.held}
    pictures = [p for name in cards for p in _figures(folder, name, album, width)]
    entries = {id(r.entry.card): r.entry.card for r in table.rows}
    notes = [
        line for card in entries.values() for line in terminal.notes(card).split("\n")
    ]
    return {
        "id": f"{table.scenario}-{table.data}",
        "scenario": table.scenario,
        "data": table.data,
        "title": table.title,
        "columns": [_header(c, table) for c in table.columns if c.narrow],
        "rows": [_row(table, i, row, folder) for i, row in enumerate(table.rows)],
        "plot": pareto_plot(table),
        "compared": [
            *_compared("equal noise", comparisons.at_equal_noise(table)),
            *_compared("equal utility", comparisons.at_equal_utility(table)),
        ],
        "notes": "\n".join(dict.fromkeys(notes)),
        "figures": pictures,
    }


def _figures(
    folder: Path, name: str, album: html_template.Album, width: int
) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{name}/{figure}",
            "said": f"{name}, {figure.removesuffix('.png').replace('_', ' ')}",
            "href": f"{quote(name)}/{quote(figure)}",
            "uri": album.picture(folder / name / figure, width),
        }
        for figure in figures(folder / name)
    ]


def _row(table: Table, index: int, row: Row, folder: Path) -> dict[str, Any]:
    links = []
    for held in row.entry.held:
        names = figures(folder / held.folder)
        for said, wanted in LINKS.items():
            name = pick(names, wanted)
            said = f"{which(row, held)}{said}"
            links += [{"said": said, "id": f"{held.folder}/{name}"}] if name else []
    commands = [h.card.provenance["command"] for h in row.entry.held]
    return {
        "front": index in table.front,
        "cells": [_cell(c, row, table) for c in table.columns if c.narrow],
        "links": links,
        "settings": json.dumps(row.line.own["settings"], indent=1, ensure_ascii=False),
        "commands": "\n".join(commands),
    }


def _header(column: Column, table: Table) -> dict[str, Any]:
    """Return a column's head; under a bound's, for whom it holds."""
    named = {short: name for name, short in SHORT.items()}
    named |= dict.fromkeys(("least 1/dFIL", "median", "1/dFIL mean"), "cramer_rao")
    holds = {
        b["holds_for"].split(",")[0]
        for row in table.rows
        for b in row.line.own["bounds"]
        if b["name"] == named.get(column.header, column.header)
    }
    return {**column._asdict(), "holds": ", ".join(sorted(holds))}


def _cell(column: Column, row: Row, table: Table) -> dict[str, Any]:
    text, holds = column.cell(row.line), _header(column, table)["holds"]
    return {
        "text": text,
        "label": f"{column.header} ({holds})" if holds else column.header,
        "right": column.right,
        "sort": html_template.sort_value(text) if column.right else None,
        "flags": flags(row) if column.header == "flags" else None,
    }


def flags(row: Row) -> list[dict[str, str]]:
    """Return the flags of a row's strongest attack, but for those all rows share."""
    if row.line.best is None:
        return []
    common = common_flags(row.line.card)
    return [
        {**f, "mark": MARKS[f["level"]]}
        for f in row.line.best["flags"]
        if f["name"] not in common
    ]


def _compared(
    what: str, of: tuple[list[comparisons.Comparison], str]
) -> list[dict[str, str]]:
    found, why = of
    if not found:
        return [{"what": what, "text": f"no comparison: {why}."}]
    out = []
    for c in found:
        rows = "; ".join(f"{r.label} {comparisons.protection_text(r)}" for r in c.rows)
        less = f". Less useful: {c.left_out}" if c.left_out else ""
        out.append({"what": what, "text": f"({c.what}): {rows}{less}."})
    return out


def pareto_plot(table: Table) -> Markup | None:
    """Return utility against protection, or None where no row has both."""
    told = [
        (i, r)
        for i, r in enumerate(table.rows)
        if r.utility is not None and r.protection is not None
    ]
    if len(told) < 2 or table.measure is None:
        return None
    value = {i: table.sign * float(r.protection or 0) for i, r in told}
    useful = {i: float(r.utility or 0) for i, r in told}
    first = told[0][1].line
    name = "R²" if "r2" in (first.own["utility"] or {}) else "accuracy"
    wide = min(value.values()) > 0 and max(value.values()) > 30 * min(value.values())
    rules = []
    floor = first.card.floor.get("mse")
    if floor is not None and table.measure.startswith(("MSE", "share")):
        level = float(floor) if table.sign > 0 else 1 - float(floor)
        rules.append(svg.Rule("floor: ignores the release", y=level))
    if table.measure.startswith("AUC"):
        rules.append(svg.Rule("a coin", y=0.5))
    reach = [*value.values(), *(r.y for r in rules if r.y is not None)]
    front = sorted((i for i, _ in told if i in table.front), key=lambda i: useful[i])
    series = [
        svg.Series(
            "",
            [useful[i] for i in front],
            [value[i] for i in front],
            0,
            line=True,
            marked=False,
        )
    ]
    for n, label in enumerate(dict.fromkeys(r.label for _, r in told)):
        own = [i for i, r in told if r.label == label]  # one a line-up that has it
        x, y = [useful[i] for i in own], [value[i] for i in own]
        said = [f"{label}: {name} {a:.4g}, {b:.4g}" for a, b in zip(x, y, strict=True)]
        series.append(svg.Series(label, x, y, n, titles=said))
    better = "higher" if table.sign > 0 else "lower"
    return svg.plot(
        svg.axis(f"{name} (right is better)", list(useful.values())),
        svg.axis(f"{table.measure} ({better} is better)", reach, log=wide),
        series,
        rules,
        title=f"{table.scenario} on {table.data}: utility against protection",
    )
