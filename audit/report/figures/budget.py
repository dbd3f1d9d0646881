"""Error against how many shadow models an attack trained, where a card has several."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from audit.report.figures import common, labels
from audit.scorecard.card import Scorecard


class BudgetPoint(NamedTuple):
    """One attack on one defense."""

    shadows: int
    mse: float
    error: float  # standard error over targets; nan where it is not known


def curves(card: Scorecard) -> dict[str, list[BudgetPoint]]:
    """Return "defense, attack" -> its budgets in order, of attacks with two or more.

    Labels of one attack are one curve: `reconstructor` and `reconstructor_500`.
    """
    budgets = defaultdict[str, dict[int, BudgetPoint]](dict)
    for trial in card.trials:
        result = trial.result
        if result is None or result.mse is None:
            continue
        shadows = (result.get("fit") or {}).get("shadows")
        if isinstance(shadows, int):
            error = float("nan") if result.mse_se is None else float(result.mse_se)
            point = BudgetPoint(shadows, float(result.mse), error)
            budgets[f"{trial.defense}, {trial.use}"][shadows] = point
    return {k: [v[n] for n in sorted(v)] for k, v in budgets.items() if len(v) > 1}


def mse_vs_shadows(card: Scorecard) -> Any:
    """Draw one curve per defense and attack; bars are two standard errors.

    Beside them the floor, and the oracles, who look at the target.
    """
    figure, (axis,) = common.panels(1, (6.4, 3.8), "MSE", "shadow models")
    for name, look in common.looks(lines := curves(card)).items():
        shadows, mse, error = np.array(lines[name], float).T
        style: dict[str, Any] = look.line() | {"capsize": 2, "elinewidth": 1}
        axis.errorbar(shadows, mse, 2 * error, label=name, **style)
    axis.set(xscale="log", yscale="log")
    if card.floor.mse is not None:
        floor = float(card.floor.mse)
        axis.axhline(floor, label="floor: ignores it", **common.FLOOR)
    for use, mse in oracles(card).items():
        axis.axhline(mse, color=common.INK, lw=1, ls=":", label=f"{use} (an oracle)")
    common.few_labels(axis.xaxis)
    common.few_labels(axis.yaxis)
    labels.label_ends(axis)
    return figure


def oracles(card: Scorecard) -> dict[str, float]:
    """Return the error of every attack that looks at the target."""
    results = {t.use: t.result for t in card.trials if t.result is not None}
    return {
        use: float(result.mse)
        for use, result in results.items()
        if result.oracle and result.mse is not None
    }


FIGURES = {"mse_vs_shadows.png": (curves, mse_vs_shadows)}
