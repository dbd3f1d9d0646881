"""Blocks of the README, made of committed results: `python -m audit.report.readme`.

A block stands between `<!-- NAME -->` and `<!-- /NAME -->`. A test makes all of them
again and compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from audit.errors import UserError
from audit.report import strips
from audit.scorecard import schema
from audit.scorecard.schema import Scorecard
from audit.scorecard.view import grid

CARD = "binary_mnist-mnist5k"  # what the first command makes
TOP = "binary_mnist", "mnist"  # the table of the leaderboard
HEADER = (
    "defense", "verdict", "test accuracy", "error, best attack on the model",
    "on every step", "floor", "ε", "no attacker errs less than",
)  # fmt: skip


def blocks(results: Path) -> dict[str, str]:
    """Return name -> text of every block, made of a folder of results.

    Raises:
      UserError: if a card or a page is missing or is no such thing.
    """
    card = schema.load(results / CARD / "scorecard.json")
    pages = [results / "LEADERBOARD.md", results / "REPRODUCTION.md"]
    for page in pages:
        if not page.is_file():
            raise UserError(f"{page}: no such file; `python -m audit` makes it")
    board, reproduced = (page.read_text() for page in pages)
    return {
        "table": table(card),
        "leaderboard": top(board, *TOP),
        "reproduced": re.findall(r"\*\*(Of \d+ published[^*]*)\*\*", reproduced)[0],
    }


def table(card: Scorecard) -> str:
    """Return one row per defense that a newcomer cannot misread, as Markdown.

    A bound is one that holds for any attacker whatever, or there is none.
    """
    rows = []
    for strip in strips.strips(card):
        marks = (strip.final, strip.transcript)
        attacks = ["none" if mark is None else mark.text for mark in marks]
        bound = strip.limits[0].text if strip.limits else "none"
        word = f"**{strip.word}**"
        about = [strip.floor, strip.epsilon, bound]
        rows.append([strip.defense, word, strip.useful, *attacks, *about])
    return grid(list(HEADER), rows)


def top(board: str, scenario: str, data: str) -> str:
    """Return the table of one scenario and data set, less its links and notes."""
    section = board.split(f"\n## {scenario} on {data}\n", 1)[1]
    lines = [line for line in section.split("\n## ")[0].split("\n") if line[:1] == "|"]
    return "\n".join(line.rsplit(" | ", 1)[0] + " |" for line in lines)


def filled(page: str, texts: dict[str, str]) -> str:
    """Return a page whose blocks hold these texts, by name."""
    for name, block in texts.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, rest = page.split(start, 1)
        page = f"{head}{start}{block}\n{end}{rest.split(end, 1)[1]}"
    return page


if __name__ == "__main__":
    page = Path("README.md")
    page.write_text(filled(page.read_text(), blocks(Path("results"))))
    print(page)
