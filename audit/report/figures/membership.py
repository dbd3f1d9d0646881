"""Figures of membership games: ROC on log axes with its bounds, leakage by record."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report.figures import common
from audit.scorecard.card import Scorecard

LEAST = 1e-5  # both axes start here


def _playing(card: Scorecard) -> list[str]:
    """Return the defenses of a membership game that some attack was played on."""
    if not card.scenario["game"].startswith("membership"):
        return []
    attacked = {k.split("/")[0] for k in card.arrays if k.endswith("/fpr")}
    return [d for d in card.defenses if d in attacked]


def roc(card: Scorecard) -> Any:
    """Draw every attack's ROC on log-log axes, one panel per defense.

    Grey is chance; black is what no attacker can exceed at the accounted epsilon of the
    game's adjacency.
    """
    defenses = _playing(card)
    labels = "true-positive rate", "false-positive rate"
    figure, axes = common.panels(len(defenses), (4.2, 4.2), *labels, sharey=True)
    attacks = common.looks(dict.fromkeys(t["attack"] for t in card.trials))
    for axis, defense in zip(axes, defenses, strict=True):
        chance = np.geomspace(LEAST, 1, 100)
        axis.plot(chance, chance, color=common.MUTED, linewidth=0.8)
        for label, look in attacks.items():
            name = f"{defense}/{label}"
            if f"{name}/fpr" in card.arrays:
                fpr, tpr = (card.arrays[f"{name}/{k}"] for k in ("fpr", "tpr"))
                line = {"color": look.color, "linestyle": look.linestyle}
                axis.step(fpr, tpr, where="post", label=label, linewidth=1.1, **line)
        limit = card.arrays.get(f"{defense}/anatomy/tpr_bound")
        if limit is not None:
            bound = common.DIAGONAL | {"linewidth": 1.6}
            axis.plot(*limit, label="no attacker above", **bound)
        axis.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1.05))
        axis.set_title(defense, **common.TITLE)
    common.legend(axes[-1], axes, loc="lower right")
    return figure


def _leaking(card: Scorecard) -> list[str]:
    return [d for d in _playing(card) if f"{d}/dfil" in card.arrays]


def separation_vs_dfil(card: Scorecard) -> Any:
    """Scatter every record's separation against its dFIL, one panel per defense."""
    defenses = _leaking(card)
    labels = "separation of its signals (.5: none)", "dFIL of the record"
    figure, axes = common.panels(len(defenses), (3.2, 2.9), *labels)
    for axis, defense in zip(axes, defenses, strict=True):
        dfil = card.arrays[f"{defense}/dfil"]
        rate = card.arrays[f"{defense}/anatomy/separation"]
        leaks = dfil > 0
        axis.scatter(dfil[leaks], rate[leaks], s=3, alpha=0.4, color=common.COLOURS[0])
        axis.axhline(0.5, **common.FLOOR)
        relation = card.defenses[defense]["membership"].get("against_dfil")
        text = f", rank correlation {relation['value']:.2f}" if relation else ""
        axis.set_title(f"{defense}{text}", **common.TITLE)
        axis.set_xscale("log")
        common.few_labels(axis.xaxis)
    return figure


FIGURES = {
    "roc.png": (_playing, roc),
    "separation_vs_dfil.png": (_leaking, separation_vs_dfil),
}
