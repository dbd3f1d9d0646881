"""Test accuracy per defense, of a card on which nobody attacked."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report.figures import common
from audit.scorecard.card import Scorecard
from audit.statistics.intervals import clopper_pearson


def accuracies(card: Scorecard) -> dict[str, tuple[float, int]]:
    """Return defense -> (accuracy in [0, 1], test records), of two or more defenses.

    Nothing of a card with an attack: its figures set accuracy against error.
    """
    measured = {
        label: (float(row.utility.accuracy), int(row.utility.test))
        for label, row in card.defenses.items()
        if row.utility is not None and row.utility.accuracy is not None
    }
    return measured if len(measured) > 1 and not card.trials else {}


def accuracy(card: Scorecard) -> Any:
    """Draw one point per defense, in the order of the line-up.

    The bar is the 95% interval of Clopper and Pearson over the test records, and says
    nothing of other seeds.
    """
    measured = accuracies(card)
    high = 0.6 + 0.26 * len(measured)
    words = "", "test accuracy, 95% interval over test records"
    figure, (axis,) = common.panels(1, (5.6, high), *words)
    looks = common.looks(card.defenses)
    for place, (label, (value, test)) in enumerate(measured.items()):
        ends = np.array(clopper_pearson(round(value * test), test))
        style = looks[label].points() | {"capsize": 2, "markersize": 5}
        style["clip_on"] = False  # many are right nearly always
        bar = np.abs(ends - value)[:, None]
        axis.errorbar(value, place, xerr=bar, **style)
        beside = {"textcoords": "offset points", "xytext": (0, 5), "ha": "center"}
        text = f"{value:.3f}".lstrip("0")
        axis.annotate(text, (value, place), fontsize=common.SMALL, **beside)
    axis.set(xlim=(0, 1), ylim=(len(measured) - 0.5, -0.8))
    axis.set_yticks(range(len(measured)), measured)
    return figure


FIGURES = {"accuracy.png": (accuracies, accuracy)}
