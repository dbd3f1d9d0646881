"""leaderboard.html: the tables of the leaderboard with plots, figures and settings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from audit.report.columns import MARKS, Selection, raised
from audit.report.figures import common, labels
from audit.report.figures.common import INK
from audit.report.html import template
from audit.report.leaderboard import standings
from audit.report.leaderboard.standings import Standing, StandingsTable
from audit.scorecard.view import SHORT, Column

COLUMNS = 8  # of a table, before a reader asks for the rest
SIZE = (4.6, 3.3)  # of a plot, in inches
WIDTH = 560  # of a picture, in pixels
# the picture that a table shows is the first of these that one of its cards has
FIRST = (
    "reconstructions.png", "rebuilt.png", "roc.png", "both_sides.png",
    "success_by_eta.png", "named_and_allowed.png", "common_scale.png",
)  # fmt: skip


class BoardSection(NamedTuple):
    """One table of the page."""

    table: StandingsTable
    chosen: Selection
    rest: list[Column]  # shown on demand
    plot: Markup | None
    picture: dict[str, str | None] | None
    links: list[tuple[str, str]]  # (address, text) of every figure of its cards


def render(
    tables: list[StandingsTable], folder: Path, left_out: Iterable[str] = ()
) -> str:
    """Return the page of tables, with the figures in `folder`/<card>."""
    album = template.Album()
    sections = [_section(t, folder, album) for t in tables]
    sees = {sight(row) for s in sections for row in s.table.rows} - {""}
    return template.render(
        "leaderboard.html",
        "Breachmark leaderboard",
        left_out=left_out,
        sections=sections,
        scenarios=list(dict.fromkeys(s.table.scenario for s in sections)),
        data=sorted({s.table.data for s in sections}),
        sees=sorted(sees),
        sight=sight,
        holds_for=_holds_for,
        links=partial(_links, folder=folder),
        raised=raised,
        marks=MARKS,
    )


def _section(
    table: StandingsTable, folder: Path, album: template.Album
) -> BoardSection:
    chosen = table.chosen(COLUMNS)
    shown = {c.header for c in chosen.columns}
    folded = shown | chosen.constant.keys()
    rest = [c for c in chosen.dropped if c.header not in folded]
    names = dict.fromkeys(m.folder for row in table.rows for m in row.group.members)
    files = [
        (name, figure) for name in names for figure in template.figures(folder / name)
    ]
    picture = next((f for first in FIRST for f in files if f[1] == first), None)
    return BoardSection(
        table,
        chosen,
        rest,
        pareto_plot(table),
        None if picture is None else _picture(*picture, folder, album),
        [(f"{quote(n)}/{quote(f)}", f"{n}, {_words(f)}") for n, f in files],
    )


def _words(figure: str) -> str:
    return figure.removesuffix(".png").replace("_", " ")


def _picture(
    name: str, figure: str, folder: Path, album: template.Album
) -> dict[str, str | None]:
    uri = album.picture(folder / name / figure, WIDTH)
    return {"text": f"{name}, {_words(figure)}", "uri": uri}


def _links(row: Standing, folder: Path) -> list[tuple[str, str]]:
    """Return (address, text) of the figures that show a row's cards."""
    return [
        (f"{quote(member.folder)}/{quote(name)}", seed + text)
        for member, seed, shown in standings.links(row, folder)
        for text, name in shown.items()
    ]


def sight(row: Standing) -> str:
    """Return what the strongest attack on a row sees, in words; "" = nobody attacks."""
    best = row.line.best
    return "" if best is None else best.threat_model.split(";")[0]


def _holds_for(column: Column, table: StandingsTable) -> str:
    """Return for whom a column's bound holds; "" for a column that is no bound."""
    bounds = {short: name for name, short in SHORT.items()}
    holds = {
        b.holds_for.split(",")[0]
        for row in table.rows
        for b in row.line.defense.bounds
        if b.name == bounds.get(column.header, column.header)
    }
    return ", ".join(sorted(holds))


def pareto_plot(table: StandingsTable) -> Markup | None:
    """Return utility against protection; None where fewer than two rows have both.

    What is infinite has no place in a plot.
    """
    rows = {
        i: (r.name, float(r.utility), table.sign * float(r.protection))
        for i, r in enumerate(table.rows)
        if r.utility is not None and r.protection is not None
        if np.isfinite([r.utility, r.protection]).all()
    }
    if len(rows) < 2 or table.measure is None:
        return None
    line = table.rows[0].line
    r2 = line.defense.utility is not None and line.defense.utility.r2 is not None
    utility, better = (
        "R²" if r2 else "accuracy",
        "higher" if table.sign > 0 else "lower",
    )
    words = f"{table.measure}\n({better} is better)", f"{utility} (right is better)"
    figure, (axis,) = common.panels(1, SIZE, *words)
    figure.set_layout_engine(None)  # a third of the time
    figure.subplots_adjust(0.19, 0.17, 0.97, 0.97)
    floor = None if line.result is None else line.result.headline.floor
    axis.plot(*zip(*sorted(rows[i][1:] for i in table.front), strict=True), color=INK)
    looks = common.looks(
        dict.fromkeys(d for r in table.rows for d in r.group.card.defenses)
    )
    for i, (name, x, y) in rows.items():
        look = looks[table.rows[i].label]
        shape = {"color": look.color, "marker": look.marker}
        (marker,) = axis.plot(x, y, linestyle="", label=name, **shape)
        common.hover(marker, f"{name}: {utility} {x:.4g}, {y:.4g}")
    values = [y for _, _, y in rows.values()]
    if min(values) > 0 and max(values) > 30 * min(values):
        axis.set_yscale("log")
        common.few_labels(axis.yaxis)
    axis.margins(0.12, 0.12)
    if floor is not None:
        axis.axhline(float(floor), **common.FLOOR)
        at = {"xy": (0.01, float(floor)), "xycoords": ("axes fraction", "data")}
        axis.annotate("floor", **at, va="bottom", fontsize=common.SMALL)
    axis.autoscale_view()
    labels.label_points(axis, rows.values())
    title = f"{table.heading}: utility against protection"
    return common.svg(figure, title)
