"""Figures of membership games: ROC on log axes with its bounds, leakage by defense."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report import columns
from audit.report.figures import common, labels
from audit.scorecard.card import Scorecard
from audit.scorecard.view import number

LEAST = 1e-5  # both axes start here
ALIKE = 0.05  # relative difference of two epsilons that share a panel
NAMED_AT = 1e-3  # false positives at which curves are named from the top


def _playing(card: Scorecard) -> list[str]:
    """Return the defenses of a membership game that some attack was played on."""
    if not card.scenario["game"].startswith("membership"):
        return []
    attacked = {k.split("/")[0] for k in card.arrays if k.endswith("/fpr")}
    return [d for d in card.defenses if d in attacked]


def by_epsilon(card: Scorecard) -> dict[str, list[str]]:
    """Return epsilon in words -> the attacked defenses accounted for at it, in order.

    Epsilon is that of replacing one record, which every noise has; defenses share a
    group where theirs is within `ALIKE` of the first one's.
    """
    groups: list[tuple[float, list[str]]] = []
    for label in _playing(card):
        row = card.defenses[label].epsilon
        pair = None if row is None else row.replace_one
        value = None if pair is None else pair.least
        epsilon = np.inf if value is None else float(value)
        alike = [g for e, g in groups if e == epsilon or abs(e / epsilon - 1) < ALIKE]
        if alike:
            alike[0].append(label)
        else:
            groups.append((epsilon, [label]))
    words = lambda e: "no ε" if np.isinf(e) else f"ε {number(e, 1)}"
    return {f"{words(e)}: {', '.join(group)}": group for e, group in groups}


def roc(card: Scorecard) -> Any:
    """Draw ROCs on log-log axes, those of one accounted epsilon in one panel.

    A panel of one defense has every attack on it, one of several the strongest attack
    on each. Dashes are chance. What no attacker can exceed is dotted, in the colour of
    the defense that a theorem says so of, at the adjacency of the game. A curve begins
    at the first false positive; a flat stretch is a tie: no threshold tells records of
    equal scores apart.
    """
    groups = by_epsilon(card)
    words = "true-positive rate", "false-positive rate"
    figure, axes = common.panels(len(groups), (4.4, 3.9), *words, sharey=True)
    look_of = common.looks(card.defenses)
    for axis, (title, defenses) in zip(axes, groups.items(), strict=True):
        axis.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1.05))
        chance = np.geomspace(LEAST, 1, 100)
        axis.plot(chance, chance, **common.FLOOR)
        names = {}
        for (defense, attack), (text, look) in _curves(card, defenses).items():
            fpr, tpr = (card.arrays[f"{defense}/{attack}/{k}"] for k in ("fpr", "tpr"))
            line = {"color": look.color, "linestyle": look.linestyle, "linewidth": 1.2}
            shown = np.where(fpr > 0, np.maximum(tpr, LEAST), np.nan)
            axis.step(fpr, shown, where="post", **line)
            at = float(np.interp(NAMED_AT, fpr, tpr))
            names[text] = max(at, LEAST), look.color
        for defense in defenses:
            limit = card.arrays.get(f"{defense}/anatomy/tpr_bound")
            if limit is None:
                continue
            fpr, most = np.maximum(limit, LEAST)
            alone = len(defenses) == 1  # its curves have the colours of attacks
            color = common.INK if alone else look_of[defense].color
            axis.plot(fpr, most, color=color, linestyle=":", linewidth=1.8)
            text = f"no attack{'' if alone else f' on {defense}'} above"
            names[text] = float(np.interp(NAMED_AT, fpr, most)), color
        labels.key(axis, names)
        axis.set_title(title, **common.TITLE)
        for one in (axis.xaxis, axis.yaxis):
            common.few_labels(one)
    text = (
        "dashed: chance; dotted: the bound, of the game's adjacency; "
        f"ε: of replacing one record; {common.TIES}"
    )
    figure.supxlabel(text, fontsize=common.SMALL, color=common.INK)
    return figure


def _curves(
    card: Scorecard, defenses: list[str]
) -> dict[tuple[str, str], tuple[str, common.Look]]:
    """Return (defense, attack) -> its name and look, of the curves of one panel."""
    if len(defenses) == 1:
        attacks = common.looks(dict.fromkeys(t.attack for t in card.trials))
        pairs = {(defenses[0], a): (a, look) for a, look in attacks.items()}
    else:
        look = common.looks(card.defenses)
        best = {v.label: v.best for v in columns.lines(card) if v.best is not None}
        pairs = {
            (d, best[d].attack): (f"{d}, {best[d].attack}", look[d])
            for d in defenses
            if d in best
        }
    rates = {k: card.arrays.get(f"{'/'.join(k)}/fpr", np.zeros(1)) for k in pairs}
    # an attack whose scores are all tied has no point but the last
    return {k: pairs[k] for k, fpr in rates.items() if np.count_nonzero(fpr) > 1}


def _separated(card: Scorecard) -> list[str]:
    """Return the defenses with a dFIL whose records' separation is summed up."""
    rows = {d: row for d, row in card.defenses.items() if row.get("membership")}
    return [d for d, r in rows.items() if "against_dfil" in r["membership"]]


def separation_vs_dfil(card: Scorecard) -> Any:
    """Draw how far each defense's records are told apart, and whether dFIL says whose.

    Left: half of the records are separated by less than the dot, nine in ten by less
    than the end of the bar, all by less than the tick. Right: rank correlation of a
    record's separation and its dFIL, with its 95% interval.
    """
    names, look = _separated(card), common.looks(card.defenses)
    size = (common.WIDEST, 0.9 + 0.27 * len(names))
    figure, ((left, right),) = common.grid(1, 2, size, sharey=True)
    for height, name in enumerate(names):
        row, color = card.defenses[name]["membership"], look[name].color
        spread, relation = row["separation"], row["against_dfil"]
        ends = [float(spread[k]) for k in ("median", "q90", "max")]
        left.plot(ends[:2], [height] * 2, color=color, lw=3, alpha=0.5)
        left.plot(ends[2:], [height], "|", color=color, markersize=8)
        left.plot(ends[:1], [height], color=color, marker="o")
        value, low, high = (float(relation[k]) for k in ("value", "low", "high"))
        reach = [[value - low], [high - value]]
        right.errorbar([value], [height], xerr=reach, color=color, fmt="o", capsize=3)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    left.set_xlabel("separation of a record's signals: median, 90%, largest")
    right.set_xlabel("rank correlation with the record's dFIL, 95%")
    left.axvline(0.5, **common.FLOOR)
    right.axvline(0, **common.FLOOR)
    return figure


FIGURES = {
    "roc.png": (_playing, roc),
    "separation_vs_dfil.png": (_separated, separation_vs_dfil),
}
