"""Figures of an audited epsilon: the ROC on log axes under what is claimed."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report.figures import common, labels
from audit.scorecard.schema import Scorecard, TrialRow


def _audits(card: Scorecard) -> list[TrialRow]:
    """Return the trials that prove an epsilon."""
    return [t for t in card.trials if t.result and t.result.epsilon_lower is not None]


def _curves(card: Scorecard) -> list[TrialRow]:
    """Return those of them whose ROC the card keeps."""
    here = lambda t: f"{t.defense}/{t.attack}/fpr" in card.arrays
    return [t for t in _audits(card) if here(t)]


def roc(card: Scorecard) -> Any:
    """Draw every trial's ROC, one panel per trial, with what theory allows at most.

    The ROC is that of the first audit; the title has the lower end of the table. A flat
    stretch is a tie: no threshold tells runs of equal scores apart.
    """
    trials, look = _curves(card), common.looks(card.defenses)
    words = "share of true positives", "share of false positives"
    figure, axes = common.panels(len(trials), (3.0, 3.1), *words, sharey=True)
    for axis, t in zip(axes, trials, strict=True):
        name = f"{t.defense}/{t.attack}"
        fpr, tpr = card.arrays[f"{name}/fpr"], card.arrays[f"{name}/tpr"]
        limits = {"most_loss": "most: privacy loss", "most_epsilon": "most: (ε, δ)"}
        for (limit, label), style in zip(limits.items(), "-:", strict=True):
            if (most := card.arrays.get(f"{name}/{limit}")) is not None:
                axis.plot(fpr, most, style, color=common.INK, label=label)
        positive, line = np.where(tpr > 0, tpr, np.nan), look[t.defense].color
        axis.step(fpr, positive, where="post", label=t.attack, color=line, lw=1.6)
        axis.plot(fpr, fpr, label="knows nothing", **common.FLOOR)
        axis.set(xscale="log", yscale="log", xlim=(fpr[0], 1), ylim=(fpr[0], 1.05))
        upper, lower = t["result"]["upper"], float(t["result"]["epsilon_lower"])
        claimed = "" if upper is None else f" ≤ {float(upper):.3g}"
        axis.set_title(f"{t.defense}: {lower:.3g} ≤ ε{claimed}", **common.TITLE)
        for one in (axis.xaxis, axis.yaxis):
            common.few_labels(one)
    common.legend_below(figure, title=common.TIES, title_fontsize=common.SMALL)
    return figure


def both_sides(card: Scorecard) -> Any:
    """Draw lower ends against the upper one, every estimator, log-log.

    A lower end is one of a one-sided 95% interval: the bar above it reaches the upper
    end, and the truth lies on the bar, but for one time in twenty. What proves nothing
    stands on the lower edge.
    """
    from audit.games.canary import NAMES  # imports JAX

    words = "ε proved by the audit (95%)", "ε claimed by the accountant"
    figure, (axis,) = common.panels(1, (5.6, 4.2), *words)
    points: dict[str, list[tuple[float, float]]] = {}
    for result in filter(None, (t.result for t in _audits(card))):
        if result["upper"] is None:
            continue
        for method, estimates in result["lower"].items():
            shown = estimates[result.get("selection", {}).get(method, "fixed")]
            medians = result.get("epsilon_lower_median", {})
            proved = medians.get(method, shown["epsilon"])
            point = (float(result["upper"]), float(proved))
            points.setdefault(method, []).append(point)
    uppers = [x for pairs in points.values() for x, _ in pairs] or [1.0]
    ends = [min(uppers) / 1.5, max(uppers) * 1.5]
    heights = [y for pairs in points.values() for _, y in pairs if y > 0]
    lower_edge = min(heights, default=ends[0]) / 1.4
    axis.plot(ends, ends, label="proved = claimed", **common.DIAGONAL)
    axis.set(xscale="log", yscale="log", xlim=ends)
    for nth, (method, look) in enumerate(common.looks(points).items()):
        x, y = map(np.array, zip(*sorted(points[method]), strict=True))
        beside = x * 1.03**nth  # bars of two estimators would cover each other
        low, name = np.fmax(y, lower_edge), NAMES[method]
        label = name if y.any() else f"{name}: proves nothing"
        axis.plot(beside, low, label=label, clip_on=False, **look.line())
        high = np.fmax(x, y)  # none where more is proved than is claimed
        axis.vlines(beside, low, high, color=look.color, lw=1, alpha=0.5)
    axis.set_ylim(lower_edge, ends[1])
    _mark_each(axis.xaxis, uppers)
    common.few_labels(axis.yaxis)
    labels.label_ends(axis)
    return figure


def _mark_each(axis: Any, values: list[float]) -> None:
    """Put a tick at every value of a logarithmic axis: 1, 2, 4 and 8, say."""
    from matplotlib import ticker

    marks = sorted({float(f"{value:.2g}") for value in values})
    if len(marks) > 8:
        return common.few_labels(axis)
    axis.set_major_locator(ticker.FixedLocator(marks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


FIGURES = {
    "audit_roc.png": (_curves, roc),
    "both_sides.png": (_audits, both_sides),
}
