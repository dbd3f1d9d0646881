"""Figures of attribute games."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report import columns
from audit.report.figures import common, labels
from audit.scorecard.card import Scorecard
from audit.statistics import metrics

DECILES = 10


def by_decile(success: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean success of each tenth of the records, smallest eta first, and its se.

    The standard error is over the records of a tenth.
    """
    order = np.argsort(eta, kind="stable")
    parts = np.array_split(success[order], DECILES)
    errors = [metrics.standard_error(part) for part in parts]
    return np.array([part.mean() for part in parts]), np.array(errors)


def success_by_eta(card: Scorecard) -> Any:
    """Draw how often the strongest attack is right, by tenths of the records.

    Bars are two standard errors over the records of a tenth.
    """
    x = f"tenth of the records by η ({DECILES}: largest)"
    words = "told right by the strongest attack", x
    figure, (axis,) = common.panels(1, (6.4, 3.8), *words)
    tenths, look = np.arange(1, DECILES + 1), common.looks(card.defenses)
    for name, attack in _attacked(card).items():
        right = 1 - card.arrays[f"{name}/{attack}/wrong"]
        success, error = by_decile(right, card.arrays[f"{name}/eta"])
        style: dict[str, Any] = look[name].line() | {"capsize": 2, "elinewidth": 1}
        axis.errorbar(tenths, success, 2 * error, label=name, **style)
    axis.axhline(1 - card.floor["mse"], label="floor", **common.FLOOR)
    axis.set(ylim=(None, 1.02), xticks=tenths)
    labels.label_ends(axis)
    return figure


def _attacked(card: Scorecard) -> dict[str, str]:
    """Return the defenses of an attribute game with eta -> their strongest attack."""
    if card.scenario["game"] != "attribute":
        return {}
    best = {line.label: line.best for line in columns.lines(card)}
    return {d: t.attack for d, t in best.items() if t and f"{d}/eta" in card.arrays}


FIGURES = {"success_by_eta.png": (_attacked, success_by_eta)}
