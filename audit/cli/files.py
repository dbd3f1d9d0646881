"""The files of one run: the card as data, as a page to read, and as pictures."""

from __future__ import annotations

from pathlib import Path

from audit.report import markdown
from audit.report.figures import (
    attribute,
    common,
    epsilon,
    gradient_inversion,
    membership,
    records,
    steps,
)
from audit.scorecard import card as cards
from audit.scorecard.card import Scorecard


def write(card: Scorecard, folder: Path) -> list[Path]:
    """Write scorecard.json, .npz, .md and the figures that apply; return their paths.

    Each file appears whole or not at all.
    """
    cards.save(card, folder)
    known = {
        **common.FIGURES,
        **records.FIGURES,
        **attribute.FIGURES,
        **membership.FIGURES,
        **epsilon.FIGURES,
        **steps.FIGURES,
        **gradient_inversion.FIGURES,
    }
    drawn = {name: draw for name, (applies, draw) in known.items() if applies(card)}
    drawn |= steps.of_each(card)
    with cards.replacing(folder / "scorecard.md") as path:
        path.write_text(markdown.render(card, list(drawn)))
    for name, draw in drawn.items():
        with cards.replacing(folder / name) as path:
            draw(card, path)
    names = ("scorecard.md", "scorecard.json", "scorecard.npz", *drawn)
    return [folder / name for name in names]
