"""A run's files: its card, its page and its figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from audit.config import workspace
from audit.errors import UserError, brief
from audit.report import markdown
from audit.report.figures import Drawing, common, drawings
from audit.scorecard import card as cards
from audit.scorecard.card import Scorecard


def place(given: Any, word: str) -> Path:
    """Return a path as a shell would; UserError, naming `word`, for what is none."""
    if not isinstance(given, (str, os.PathLike)):
        raise UserError(f"{word}={brief(given)}: a path is wanted")
    return workspace.folder_of(os.fspath(given))


def redraw(card: Scorecard, folder: Path) -> list[Path]:
    """Draw the figures for which a card holds all that is drawn; return their files.

    A card whose arrays are not at hand has fewer of them; other files stay as they are.

    Raises:
      UserError: if the disk is full, or the folder cannot be written.
    """
    return _draw(card, folder, drawings(card))


def _draw(card: Scorecard, folder: Path, figures: dict[str, Drawing]) -> list[Path]:
    for name, draw in figures.items():
        with cards.replacing(folder / name) as path:
            common.save(draw(card), path)
    return [folder / name for name in figures]


def write(card: Scorecard, folder: Path) -> list[Path]:
    """Write a run's card, page and figures, each whole or not at all; return them.

    Raises:
      UserError: if the disk is full, or the folder cannot be written.
    """
    figures = drawings(card)
    cards.save(card, folder)
    with cards.replacing(folder / "scorecard.md") as path:
        path.write_text(markdown.render(card, list(figures)))
    names = ("scorecard.md", "scorecard.json", "scorecard.npz")
    return [*(folder / name for name in names), *_draw(card, folder, figures)]
