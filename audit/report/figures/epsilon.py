"""Figures of an audited epsilon: the ROC on log axes under what is claimed."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report.figures import common
from audit.scorecard.schema import Scorecard, TrialRow


def _audits(card: Scorecard) -> list[TrialRow]:
    """Return the trials that prove an epsilon."""
    return [t for t in card.trials if t.result and t.result.epsilon_lower is not None]


def roc(card: Scorecard) -> Any:
    """Draw every trial's ROC, one panel per trial, with what theory allows at most."""
    trials = _audits(card)
    labels = "true positives", "false positives"
    figure, axes = common.panels(len(trials), (3.4, 3.6), *labels, sharey=True)
    for axis, t in zip(axes, trials, strict=True):
        name = f"{t.defense}/{t.attack}"
        fpr, tpr = card.arrays[f"{name}/fpr"], card.arrays[f"{name}/tpr"]
        limits = {"most_loss": "most: privacy loss", "most_epsilon": "most: (ε, δ)"}
        for (limit, label), style in zip(limits.items(), "-:", strict=True):
            if (most := card.arrays.get(f"{name}/{limit}")) is not None:
                axis.plot(fpr, most, style, color=common.INK, label=label)
        positive, line = np.where(tpr > 0, tpr, np.nan), {"color": common.COLOURS[0]}
        axis.step(fpr, positive, where="post", label=t.attack, **line)
        axis.plot(fpr, fpr, label="knows nothing", **common.FLOOR)
        axis.set(xscale="log", yscale="log", xlim=(fpr[0], 1), ylim=(fpr[0], 1.05))
        upper, lower = t["result"]["upper"], float(t["result"]["epsilon_lower"])
        claimed = "" if upper is None else f" ≤ {float(upper):.3g}"
        axis.set_title(f"{t.defense}: {lower:.3g} ≤ ε{claimed}", **common.TITLE)
    axes[-1].legend(loc="lower right", **common.LEGEND)
    return figure


def both_sides(card: Scorecard) -> Any:
    """Draw lower ends against the upper one, every estimator, log-log."""
    from audit.games.canary import NAMES  # imports JAX

    labels = "ε lower: audit, 95%", "ε upper: accountant"
    figure, (axis,) = common.panels(1, (4.6, 4.2), *labels)
    points: dict[str, list[tuple[float, float]]] = {}
    for result in filter(None, (t.result for t in _audits(card))):
        if result["upper"] is None:
            continue
        for method, estimates in result["lower"].items():
            shown = estimates[result.get("selection", {}).get(method, "fixed")]
            point = (float(result["upper"]), float(shown["epsilon"]))
            points.setdefault(method, []).append(point)
    for method, look in common.looks(points).items():
        x, y = zip(*sorted(points[method]), strict=True)
        axis.plot(x, y, label=NAMES[method], markersize=4, **look.points())
    uppers = [x for pairs in points.values() for x, _ in pairs] or [1.0]
    ends = [min(uppers) / 1.5, max(uppers) * 1.5]
    axis.plot(ends, ends, label="lower = upper", **common.DIAGONAL)
    axis.set(xscale="log", yscale="log", xlim=ends)
    axis.legend(**common.LEGEND)
    return figure


FIGURES = {
    "audit_roc.png": (_audits, roc),
    "both_sides.png": (_audits, both_sides),
}
