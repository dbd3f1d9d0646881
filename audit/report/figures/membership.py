"""Figures of membership games: ROC on log axes with its bounds, leakage by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from audit.report.figures.common import COLOURS, INK, MUTED, few_labels, panels, save
from audit.scorecard.card import Scorecard

LEAST = 1e-5  # both axes start here
DASHES = ("-", "--", ":", "-.")


def _playing(card: Scorecard) -> list[str]:
    """Return the defenses of a membership game that some attack was played on."""
    if not card.scenario["game"].startswith("membership"):
        return []
    ends = {k.split("/")[0] for k in card.arrays if k.endswith("/fpr")}
    return [d for d in card.defenses if d in ends]


def roc(card: Scorecard, path: Path) -> None:
    """Draw every attack's ROC on log-log axes, one panel a defense.

    The grey line is chance. Black lines are what no attacker can exceed at the card's
    accounted epsilon, with the adjacency the game is played at.
    """
    shown = _playing(card)
    figure, axes = panels(len(shown), (4.2, 4.2), "true-positive rate", sharey=True)
    labels = [t["attack"] for t in card.trials if t["defense"] == shown[0]]
    looks = dict(zip(labels, _looks(len(labels)), strict=True))
    for axis, defense in zip(axes, shown, strict=True):
        chance = np.geomspace(LEAST, 1, 100)
        axis.plot(chance, chance, color=MUTED, linewidth=0.8)
        for label, look in looks.items():
            name = f"{defense}/{label}"
            if f"{name}/fpr" not in card.arrays:
                continue
            fpr, tpr = (card.arrays[f"{name}/{k}"] for k in ("fpr", "tpr"))
            axis.step(fpr, tpr, where="post", label=label, **look)
        limit = card.arrays.get(f"{defense}/anatomy/tpr_bound")
        if limit is not None:
            axis.plot(*limit, color=INK, linewidth=1.6, label="no attacker above")
        axis.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1.05))
        axis.set(title=defense, xlabel="false-positive rate")
        axis.grid(visible=True, color="#eeeeee")
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    axes[-1].legend(
        handles.values(), handles, frameon=False, fontsize=7, loc="lower right"
    )
    save(figure, path)


def _looks(count: int) -> list[dict[str, Any]]:
    return [
        {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[i // len(COLOURS) % len(DASHES)],
            "linewidth": 1.1,
        }
        for i in range(count)
    ]


def _leaking(card: Scorecard) -> list[str]:
    return [d for d in _playing(card) if f"{d}/dfil" in card.arrays]


def separation_vs_dfil(card: Scorecard, path: Path) -> None:
    """Scatter every record's separation against its dFIL, one panel a defense."""
    shown = _leaking(card)
    figure, axes = panels(
        len(shown), (3.2, 2.9), "separation of its signals (.5: none)"
    )
    for axis, defense in zip(axes, shown, strict=True):
        dfil = card.arrays[f"{defense}/dfil"]
        rate = card.arrays[f"{defense}/anatomy/separation"]
        seen = dfil > 0
        axis.scatter(dfil[seen], rate[seen], s=3, alpha=0.4, color=COLOURS[0])
        axis.axhline(0.5, color=MUTED, linestyle="--", linewidth=1)
        found = card.defenses[defense]["membership"].get("against_dfil")
        said = "" if found is None else f", rank correlation {found['value']:.2f}"
        axis.set(xscale="log", xlabel="dFIL of the record")
        axis.set_title(f"{defense}{said}", fontsize=9)
        few_labels(axis)
        axis.grid(visible=True, color="#eeeeee")
        axis.set_axisbelow(True)  # of many points
    save(figure, path)


FIGURES = {
    "roc.png": (lambda c: bool(_playing(c)), roc),
    "separation_vs_dfil.png": (lambda c: bool(_leaking(c)), separation_vs_dfil),
}
