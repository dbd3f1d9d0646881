"""`python -m audit leaderboard`: tables of every committed scorecard.

LEADERBOARD.md and leaderboard.html show the same tables. Both are functions of the
`*/scorecard.json` files and of the figures beside them; nothing is computed anew.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from audit.errors import UserError
from audit.report.html.template import beside
from audit.report.leaderboard import standings
from audit.report.leaderboard.standings import CommittedCard, Standing, StandingsTable
from audit.report.markdown import literal, templates
from audit.scorecard import card as cards
from audit.scorecard import schema

MARKDOWN, PAGE = "LEADERBOARD.md", "leaderboard.html"


def committed(folder: Path) -> list[CommittedCard]:
    """Return the checked scorecards of a folder's folders.

    Raises:
      UserError: if there is no file `*/scorecard.json`, or one is no scorecard.
    """
    paths = sorted(folder.glob("*/scorecard.json"))
    if not paths:
        raise UserError(f"no scorecard in {folder}: looked for */scorecard.json")
    return [CommittedCard(path.parent.name, schema.load(path)) for path in paths]


def markdown(committed_cards: list[CommittedCard], folder: Path) -> str:
    """Return LEADERBOARD.md of committed cards, linked to what `folder`/<card> has."""

    def rows(table: StandingsTable) -> list[list[str]]:
        marks = ("•" if i in table.front else "" for i in range(len(table.rows)))
        return [
            [mark, *(literal(c.cell(r.line)) for c in table.columns), _links(r, folder)]
            for mark, r in zip(marks, table.rows, strict=True)
        ]

    return (
        templates()
        .get_template("leaderboard.md.jinja")
        .render(tables=standings.tables(committed_cards), rows=rows)
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


def write(folder: Path) -> list[Path]:
    """Write LEADERBOARD.md and leaderboard.html into a folder of results."""
    from audit.report.leaderboard import html

    cards_here = committed(folder)
    page, text = html.render(cards_here, folder), markdown(cards_here, folder)
    files = {folder / MARKDOWN: text, folder / PAGE: page}
    for file, content in files.items():
        with cards.replacing(file) as path:
            path.write_text(content)
    return list(files)
