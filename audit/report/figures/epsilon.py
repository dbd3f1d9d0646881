"""Figures of an audited epsilon: the ROC on log axes under what is claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from audit.report.figures.common import COLOURS, INK, MUTED, panels, pyplot, save
from audit.scorecard.card import Scorecard


def _audits(card: Scorecard) -> list[dict[str, Any]]:
    return [
        t for t in card.trials if t["status"] == "ok" and "epsilon_lower" in t["result"]
    ]


def _audited(card: Scorecard) -> bool:
    return bool(_audits(card))


def roc(card: Scorecard, path: Path) -> None:
    """Draw every trial's ROC, one panel a defense, with what theory allows at most."""
    trials = _audits(card)
    figure, axes = panels(len(trials), (3.4, 3.6), "true positives", sharey=True)
    for axis, t in zip(axes, trials, strict=True):
        _panel(axis, card, t)
    axes[-1].legend(fontsize=7, frameon=False, loc="lower right")
    save(figure, path)


def _panel(axis: Any, card: Scorecard, t: dict[str, Any]) -> None:
    at = f"{t['defense']}/{t['attack']}"
    fpr = card.arrays[f"{at}/fpr"]
    for name, said, style in (
        ("most_loss", "most: privacy loss", "-"),
        ("most_epsilon", "most: (ε, δ)", ":"),
    ):
        if f"{at}/{name}" in card.arrays:
            axis.plot(fpr, card.arrays[f"{at}/{name}"], style, color=INK, label=said)
    tpr = card.arrays[f"{at}/tpr"]
    axis.step(
        fpr, np.where(tpr > 0, tpr, np.nan), where="post", color=COLOURS[0],
        label=t["attack"],
    )  # fmt: skip
    axis.plot(fpr, fpr, "--", color=MUTED, linewidth=1, label="knows nothing")
    axis.set(xscale="log", yscale="log", xlim=(fpr[0], 1), ylim=(fpr[0], 1.05))
    axis.set_xlabel("false positives")
    upper = t["result"]["upper"]
    claimed = "" if upper is None else f" ≤ {float(upper):.3g}"
    lower = float(t["result"]["epsilon_lower"])
    axis.set_title(f"{t['defense']}: {lower:.3g} ≤ ε{claimed}", fontsize=8)


def both_sides(card: Scorecard, path: Path) -> None:
    """Draw lower ends against the upper one, every estimator, log-log."""
    from audit.report.audit_cells import NAMES

    trials = _audits(card)
    figure, axis = pyplot().subplots(figsize=(4.6, 4.2))
    seen: dict[str, list[tuple[float, float]]] = {}
    for t in trials:
        if t["result"]["upper"] is None:
            continue
        for method, by in t["result"]["lower"].items():
            shown = by[t["result"].get("headline", {}).get(method, "fixed")]
            point = (float(t["result"]["upper"]), float(shown["epsilon"]))
            seen.setdefault(method, []).append(point)
    for (method, points), colour in zip(seen.items(), COLOURS, strict=False):
        x, y = zip(*sorted(points), strict=True)
        axis.plot(x, y, "o-", color=colour, label=NAMES[method], markersize=4)
    uppers = [x for points in seen.values() for x, _ in points] or [1.0]
    ends = [min(uppers) / 1.5, max(uppers) * 1.5]
    axis.plot(ends, ends, color=INK, linewidth=1, label="lower = upper")
    axis.set(xscale="log", yscale="log", xlim=ends)
    axis.set_xlabel("ε upper: accountant")
    axis.set_ylabel("ε lower: audit, 95%")
    axis.legend(fontsize=8, frameon=False)
    save(figure, path)


FIGURES = {
    "audit_roc.png": (_audited, roc),
    "both_sides.png": (_audited, both_sides),
}
