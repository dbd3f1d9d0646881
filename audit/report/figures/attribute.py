"""Figures of attribute games."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from audit.report import columns
from audit.report.figures.common import COLOURS, MUTED, pyplot, save
from audit.scorecard.card import Scorecard

DECILES = 10


def by_decile(success: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """Return the mean success of each tenth of the records, smallest eta first."""
    order = np.argsort(eta, kind="stable")
    return np.array([part.mean() for part in np.array_split(success[order], DECILES)])


def success_by_eta(card: Scorecard, path: Path) -> None:
    """Draw how often the strongest attack is right, by tenths of the records."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(5.4, 3.6))
    tenths = np.arange(1, DECILES + 1)
    for name, colour in zip(_told(card), COLOURS, strict=False):
        best = columns.strongest(card, name)
        assert best is not None
        right = 1 - card.arrays[f"{name}/{best['attack']}/wrong"]
        each = by_decile(right, card.arrays[f"{name}/eta"])
        axis.plot(tenths, each, color=colour, marker="o", markersize=3, label=name)
    floor = 1 - card.floor["mse"]
    axis.axhline(floor, color=MUTED, linestyle="--", linewidth=1, label="floor")
    axis.set(xlabel="tenth of the records by η (10: largest)", ylim=(None, 1.02))
    axis.set_ylabel("told right by the strongest attack")
    axis.set_xticks(tenths)
    axis.legend(frameon=False, fontsize=8)
    axis.grid(visible=True, color="#eeeeee")
    save(figure, path)


def _told(card: Scorecard) -> list[str]:
    """Return the defenses of an attribute game with eta and an attack."""
    if card.scenario["game"] != "attribute":
        return []
    return [
        d
        for d in card.defenses
        if f"{d}/eta" in card.arrays and columns.strongest(card, d) is not None
    ]


FIGURES = {"success_by_eta.png": (lambda c: bool(_told(c)), success_by_eta)}
