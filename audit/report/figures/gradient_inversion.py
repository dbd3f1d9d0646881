"""Figures of gradient inversion: mechanisms beside each other at equal divergence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from audit.report.figures import common
from audit.scorecard.card import Scorecard

Z95 = 1.959964  # of a normal interval


class Point(NamedTuple):
    """One defense on the scale: the Renyi divergence of order 2 of one update."""

    label: str
    use: str  # the mechanism
    divergence: float
    readings: dict[str, tuple[float, float]]  # quantity -> mean, half its 95% interval


def points(card: Scorecard) -> list[Point]:
    """Return the defenses of one scorecard that have a place on the scale.

    Readings are the accuracy, with an interval over training runs, and the error of
    every search for the images behind an update, with an interval over targets. Other
    games have none.
    """
    if card.scenario["game"] != "exposed":
        return []
    scaled = {d: row for d, row in card.defenses.items() if row["rdp2"] is not None}
    return [
        Point(label, row.use, float(row["rdp2"]), _readings(card, label))
        for label, row in scaled.items()
    ]


def _readings(card: Scorecard, label: str) -> dict[str, tuple[float, float]]:
    utility = card.defenses[label]["utility"]
    half = Z95 * utility["accuracy_sd"] / np.sqrt(max(utility["models"], 2) - 1)
    readings = {"accuracy": (float(utility["accuracy"]), half)}
    for t in card.trials:
        if (t.defense, t.use, t.status) == (label, "gradient_inversion", "ok"):
            mse, se = float(t["result"]["mse"]), float(t["result"]["mse_se"])
            readings[f"MSE of {t.attack}"] = mse, Z95 * se
    return readings


def quantities(points: list[Point]) -> list[str]:
    """Return what is known of any of the points, in order of first appearance."""
    return list(dict.fromkeys(q for point in points for q in point.readings))


def panels(points: list[Point], width: float, xlabel: str) -> tuple[Any, Any]:
    """Return a figure and one panel per quantity, `width` inches wide.

    Every mechanism has one colour. Bars are the half intervals of the readings.
    """
    names, uses = quantities(points), sorted({p.use for p in points})
    size = width, 0.9 * width
    figure, axes = common.panels(len(names), size, xlabel=xlabel)
    look: dict[str, Any] = {"fmt": "o-", "ms": 4, "capsize": 3}
    for axis, name in zip(axes, names, strict=True):
        for use, colour in zip(uses, common.COLOURS, strict=False):
            shown = sorted(
                (p.divergence, *np.nan_to_num(p.readings[name]))
                for p in points
                if p.use == use and name in p.readings
            )
            x, mean, half = np.array(shown, float).reshape(-1, 3).T
            axis.errorbar(x, mean, half, color=colour, label=use, **look)
        axis.set(xscale="log", ylabel=name)
    return figure, axes


def common_scale(card: Scorecard) -> Any:
    """Draw accuracy and every search's error against one update's Renyi divergence.

    Noises of different laws are thus compared at equal leakage. Bars are 95% intervals:
    of the mean accuracy over training runs, of the mean error over targets.
    """
    words = "Rényi divergence of order 2, one update"
    figure, axes = panels(points(card), 3.0, words)
    for axis in axes[1:]:
        axis.axhline(card.floor["mse"], color=common.INK, lw=1, ls=":")
        axis.set_ylabel(f"{axis.get_ylabel()}\n(dotted: floor)")
    common.legend_below(figure)
    return figure


def _comparable(card: Scorecard) -> bool:
    """Return whether two mechanisms share a scale, each at two points of it."""
    scaled = points(card)
    uses = [point.use for point in scaled]
    shared = sum(uses.count(use) > 1 for use in set(uses)) > 1
    return shared and len(quantities(scaled)) > 1


FIGURES = {"common_scale.png": (_comparable, common_scale)}
