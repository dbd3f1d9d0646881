"""Figures of the game of gradient inversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from audit.report.figures.common import COLOURS, INK, MUTED, means, pyplot, save
from audit.scorecard.card import Scorecard

Z95 = 1.959964  # of a normal interval


def common_scale(card: Scorecard, path: Path) -> None:
    """Draw accuracy and every search's error against one update's Renyi divergence.

    One colour a mechanism, so that noises of different laws are compared at equal
    leakage. Bars are 95% intervals: of the mean accuracy over training runs, of the
    mean error over targets.
    """
    plt = pyplot()
    attacks = _attacks(card)
    figure, axes = plt.subplots(
        1, 1 + len(attacks), figsize=(4.2 * (1 + len(attacks)), 3.8), squeeze=False
    )
    uses = sorted({card.defenses[label]["use"] for label in _scaled(card)})
    for use, colour in zip(uses, COLOURS, strict=False):
        own = [d for d in _scaled(card) if card.defenses[d]["use"] == use]
        x = [float(card.defenses[d]["rdp2"]) for d in own]
        reached = [_accuracy(card.defenses[d]) for d in own]
        points = [(at, *a) for at, a in zip(x, reached, strict=True)]
        means(axes[0, 0], points, use, colour)
        for axis, attack in zip(axes[0, 1:], attacks, strict=True):
            found = [
                (at, _error(card, d, attack)) for at, d in zip(x, own, strict=True)
            ]
            held = [(at, *e) for at, e in found if e is not None]
            means(axis, held, use, colour)
    for axis, attack in zip(axes[0, 1:], attacks, strict=True):
        axis.axhline(card.floor["mse"], color=INK, lw=1, ls=":")
        axis.set_ylabel(f"MSE of {attack} (dotted: floor)")
    axes[0, 0].set_ylabel("accuracy")
    for axis in axes[0]:
        axis.set(xscale="log", xlabel="Rényi divergence of order 2, one update")
        axis.grid(color=MUTED, alpha=0.25)
    axes[0, 0].legend(frameon=False)
    save(figure, path)


def _accuracy(own: dict[str, Any]) -> tuple[float, float]:
    held = own["utility"]
    models = max(held["models"], 2)
    half = Z95 * held["accuracy_sd"] / np.sqrt(models - 1)
    return held["accuracy"], half


def _error(card: Scorecard, defense: str, attack: str) -> tuple[float, float] | None:
    for t in card.trials:
        if (t["defense"], t["attack"], t["status"]) == (defense, attack, "ok"):
            return t["result"]["mse"], Z95 * float(t["result"]["mse_se"])
    return None


def _attacks(card: Scorecard) -> list[str]:
    """Return the attacks that look at an update and met some scaled defense."""
    scaled = set(_scaled(card))
    seen = [
        t["attack"]
        for t in card.trials
        if t["use"] == "gradient_inversion"
        and t["status"] == "ok"
        and t["defense"] in scaled
    ]
    return list(dict.fromkeys(seen))


def _scaled(card: Scorecard) -> list[str]:
    return [d for d, own in card.defenses.items() if own["rdp2"] is not None]


def _comparable(card: Scorecard) -> bool:
    """Return whether two mechanisms share a scale, each at two points of it."""
    if card.scenario["game"] != "exposed" or not _attacks(card):
        return False
    uses = [card.defenses[d]["use"] for d in _scaled(card)]
    return sum(uses.count(use) > 1 for use in set(uses)) > 1


FIGURES = {"common_scale.png": (_comparable, common_scale)}
