"""The files of one run: the card as data, as a page to read, and as pictures."""

from __future__ import annotations

from pathlib import Path

from audit.report import markdown
from audit.report.figures import common, drawings
from audit.scorecard import card as cards
from audit.scorecard.card import Scorecard


def write(card: Scorecard, folder: Path) -> list[Path]:
    """Write scorecard.json, .npz, .md and the figures that apply; return their paths.

    Each file appears whole or not at all.
    """
    cards.save(card, folder)
    figures = drawings(card)
    with cards.replacing(folder / "scorecard.md") as path:
        path.write_text(markdown.render(card, list(figures)))
    for name, draw in figures.items():
        with cards.replacing(folder / name) as path:
            common.save(draw(card), path)
    names = ("scorecard.md", "scorecard.json", "scorecard.npz", *figures)
    return [folder / name for name in names]
