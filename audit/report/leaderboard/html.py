"""leaderboard.html: the tables of the leaderboard with plots, figures and settings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from audit.report.columns import MARKS, common_flags
from audit.report.figures import common
from audit.report.figures.common import INK
from audit.report.html import template
from audit.report.leaderboard import standings
from audit.report.leaderboard.standings import CommittedCard, Standing, StandingsTable
from audit.scorecard.schema import RaisedFlag
from audit.scorecard.view import SHORT, Column

WIDTHS = (900, 640, 400)  # of figures, in pixels; the first at which all fit is used


def render(
    cards: list[CommittedCard], folder: Path, left_out: Iterable[str] = ()
) -> str:
    """Return the page of committed cards, with the figures in `folder`/<card>."""
    tables, pictures = standings.tables(cards), []
    for width in WIDTHS:
        album = template.Album()
        pictures = [_pictures(t, folder, album, width) for t in tables]
        if not album.full:
            break
    return template.render(
        "leaderboard.html",
        "Breachmark leaderboard",
        left_out=left_out,
        tables=zip(tables, pictures, strict=True),
        holds_for=_holds_for,
        plot_of=pareto_plot,
        links=partial(_links, folder=folder),
        flags=flags,
        marks=MARKS,
    )


def _pictures(
    table: StandingsTable, folder: Path, album: template.Album, width: int
) -> list[dict[str, Any]]:
    """Return the figures in the folders of a table's cards, as the page shows them."""
    names = dict.fromkeys(m.folder for row in table.rows for m in row.group.members)
    return [
        {
            "id": f"{name}/{figure}",
            "text": f"{name}, {figure.removesuffix('.png').replace('_', ' ')}",
            "href": f"{quote(name)}/{quote(figure)}",
            "uri": album.picture(folder / name / figure, width),
        }
        for name in names
        for figure in template.figures(folder / name)
    ]


def _links(row: Standing, folder: Path) -> list[tuple[str, str]]:
    """Return (id, text) of the figures on the page that show a row's cards."""
    return [
        (f"{member.folder}/{name}", seed + text)
        for member, seed, shown in standings.links(row, folder)
        for text, name in shown.items()
    ]


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


def flags(row: Standing) -> list[RaisedFlag]:
    """Return the flags of a row's strongest attack, less those all rows share."""
    common = common_flags(row.line.card)
    raised = row.line.best.flags if row.line.best else []
    return [flag for flag in raised if flag.name not in common]


def pareto_plot(table: StandingsTable) -> Markup | None:
    """Return utility against protection; None where fewer than two rows have both."""
    rows = {
        i: (r.label, float(r.utility), table.sign * float(r.protection))
        for i, r in enumerate(table.rows)
        if r.utility is not None and r.protection is not None
    }
    if len(rows) < 2 or table.measure is None:
        return None
    line = table.rows[0].line
    r2 = line.defense.utility is not None and line.defense.utility.r2 is not None
    utility, better = (
        "R²" if r2 else "accuracy",
        "higher" if table.sign > 0 else "lower",
    )
    words = f"{table.measure} ({better} is better)", f"{utility} (right is better)"
    figure, (axis,) = common.panels(1, (5.6, 4.2), *words)
    floor = None if line.result is None else line.result.headline.floor
    if floor is not None:
        axis.axhline(float(floor), label="ignores the release", **common.FLOOR)
    axis.plot(*zip(*sorted(rows[i][1:] for i in table.front), strict=True), color=INK)
    looks = common.looks(
        dict.fromkeys(d for r in table.rows for d in r.group.card.defenses)
    )
    for label, x, y in rows.values():
        shape = {"color": looks[label].color, "marker": looks[label].marker}
        (marker,) = axis.plot(x, y, linestyle="", label=label, **shape)
        common.hover(marker, f"{label}: {utility} {x:.4g}, {y:.4g}")
    values = [y for _, _, y in rows.values()]
    if min(values) > 0 and max(values) > 30 * min(values):
        axis.set_yscale("log")
        common.few_labels(axis.yaxis)
    common.legend_below(figure)
    title = f"{table.scenario} on {table.data}: utility against protection"
    return common.svg(figure, title)
