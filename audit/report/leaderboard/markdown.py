"""`python -m audit leaderboard`: tables of every committed scorecard.

LEADERBOARD.md and leaderboard.html show the same tables. Both are functions of the
`*/scorecard.json` files and of the figures beside them; nothing is computed anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from audit.errors import UserError
from audit.report import odd
from audit.report.html.template import beside
from audit.report.leaderboard import standings
from audit.report.leaderboard.standings import CommittedCard, Standing, StandingsTable
from audit.report.markdown import literal, templates
from audit.scorecard import card as cards
from audit.scorecard import schema
from audit.scorecard.view import Column

COLUMNS = 7  # of a table's own; a mark and links stand beside them
MARKDOWN, PAGE = "LEADERBOARD.md", "leaderboard.html"
NOWHERE = Path(os.devnull)  # a folder without figures, whose pages are made at once


def committed(folder: Path) -> tuple[list[CommittedCard], dict[str, str]]:
    """Return the scorecards of a folder's folders, and folder -> why it has none.

    Raises:
      UserError: if there is no file `*/scorecard.json`, or none is a scorecard.
    """
    paths, found, left_out = sorted(folder.glob("*/scorecard.json")), [], {}
    for path in paths:
        try:
            found.append(CommittedCard(path.parent.name, schema.load(path)))
        except UserError as error:
            left_out[path.parent.name] = str(error)
    if not found:
        why = "; ".join(left_out.values()) or "looked for */scorecard.json"
        raise UserError(f"no scorecard in {folder}: {why}")
    return found, left_out


def markdown(
    tables: list[StandingsTable], folder: Path, left_out: Iterable[str] = ()
) -> str:
    """Return LEADERBOARD.md of tables, linked to what `folder`/<card> has."""

    def rows(table: StandingsTable, columns: list[Column]) -> list[list[str]]:
        marks = ("•" if i in table.front else "" for i in range(len(table.rows)))
        return [
            [mark, *(literal(c.cell(r.line)) for c in columns), _links(r, folder)]
            for mark, r in zip(marks, table.rows, strict=True)
        ]

    return (
        templates()
        .get_template("leaderboard.md.jinja")
        .render(
            tables=[(t, t.chosen(COLUMNS)) for t in tables],
            rows=rows,
            left_out=left_out,
        )
    )


def _links(row: Standing, folder: Path) -> str:
    """Return links to a row's settings, figures and replay command."""
    parts = []
    for member, seed, shown in standings.links(row, folder):
        links = {"settings": "scorecard.json"}
        links |= {text: quote(name) for text, name in shown.items()}
        if beside(folder / member.folder, "scorecard.md"):
            links["replay"] = "scorecard.md#where-this-comes-from"
        where = quote(member.folder)
        parts += [f"[{seed}{text}]({where}/{to})" for text, to in links.items()]
    return " · ".join(parts)


def write(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Write LEADERBOARD.md and leaderboard.html into a folder of results.

    Returns:
      The files, and the folders whose cards they lack, each with why.
    """
    from audit.report.leaderboard import html

    cards_here, left_out = committed(folder)

    def pages(shown: list[CommittedCard], at: Path = NOWHERE) -> list[str]:
        tables = standings.tables(shown)
        return [page(tables, at, left_out) for page in (markdown, html.render)]

    try:
        texts = pages(cards_here, folder)
    except Exception:  # whichever card is to blame
        tables = [odd.showable(t, pages) for t in standings.by_table(cards_here)]
        left_out |= {m.folder: why for _, others in tables for m, why in others}
        texts = pages([member for kept, _ in tables for member in kept], folder)
    files = [folder / MARKDOWN, folder / PAGE]
    for file, content in zip(files, texts, strict=True):
        with cards.replacing(file) as path:
            path.write_text(content)
    return files, left_out
