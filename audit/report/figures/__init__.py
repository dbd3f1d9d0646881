"""Pictures of one scorecard: one module per game, found by its `FIGURES`.

`FIGURES` maps a file name to two functions of a card: what there is to draw (nothing:
the figure does not apply), and what draws it. A module whose file names depend on the
card has `of_each(card)` too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from audit.scorecard.card import Scorecard

Drawing = Callable[[Scorecard], Any]  # returns a matplotlib figure


def drawings(card: Scorecard) -> dict[str, Drawing]:
    """Return file name -> function that draws it, of the figures that apply to a card.

    They are in alphabetical order of modules, and in each in the module's own order.
    """
    shown: dict[str, Drawing] = {}
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        figures = getattr(module, "FIGURES", {})
        shown |= {name: draw for name, (fits, draw) in figures.items() if fits(card)}
        shown |= getattr(module, "of_each", lambda _: {})(card)
    return shown
