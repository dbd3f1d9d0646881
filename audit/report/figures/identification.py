"""Figure of identification games: what is named, what is possible, what is allowed."""

from __future__ import annotations

from typing import Any

from audit.report.figures import common
from audit.scorecard.schema import Scorecard, TrialRow


def _named(card: Scorecard) -> list[TrialRow]:
    """Return the trials that name targets under a defense with a bound."""
    if card.scenario["game"] != "identification":
        return []
    found = [t for t in card.trials if t.result is not None]
    return [t for t in found if t["result"]["priors"][0]["bound"] is not None]


def named_and_allowed(card: Scorecard) -> Any:
    """Draw shares of named targets against the bound, every prior, log-log."""
    trials = _named(card)
    words = "share of targets named, 99%", "γ: most that accounting allows"
    figure, (axis,) = common.panels(1, (6.0, 5.0), *words)
    attacks = dict.fromkeys(t.attack for t in trials)
    ends = [1.0, 1.0]
    for nth, (attack, look) in enumerate(common.looks(attacks).items()):
        rows = [p for t in trials if t.attack == attack for p in t["result"]["priors"]]
        allowed = [float(row["bound"]) for row in rows]
        share = [float(row["success"]) for row in rows]
        reach = [
            [float(row["success"]) - float(row["low"]) for row in rows],
            [float(row["high"]) - float(row["success"]) for row in rows],
        ]
        beside = [x * (1 + 0.02 * nth) for x in allowed]  # bars of two attacks overlap
        style = {"markersize": 4, "linewidth": 0, "elinewidth": 1, **look.points()}
        axis.errorbar(beside, share, reach, label=attack, **style)
        ends[0] = min(ends[0], *(float(row["blind"]) for row in rows))
        if not nth:
            best = [float(row["optimum"]["value"]) for row in rows]
            _label(axis, [t for t in trials if t.attack == attack], ends)
            hollow = {"marker": "_", "s": 90, "color": common.INK, "zorder": 3}
            axis.scatter(allowed, best, label="best possible", **hollow)
    ends = [ends[0] / 1.6, ends[1] * 1.1]
    axis.plot(ends, ends, label="named = allowed", **common.DIAGONAL)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for one in (axis.xaxis, axis.yaxis):
        common.few_labels(one)
    axis.legend(loc="upper left", **common.LEGEND)
    return figure


def _label(axis: Any, trials: list[TrialRow], ends: list[float]) -> None:
    """Write the names of the defenses under their points, where each has one."""
    if any(len(t["result"]["priors"]) > 1 for t in trials):
        return
    style = {"rotation": 90, "ha": "right", "va": "bottom", "fontsize": common.SMALL}
    for t in trials:
        allowed = float(t["result"]["priors"][0]["bound"])
        axis.text(
            allowed / 1.02, ends[0] / 1.55, t.defense, color=common.MUTED, **style
        )


FIGURES = {"named_and_allowed.png": (_named, named_and_allowed)}
