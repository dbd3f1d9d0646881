"""`python -m audit scale`, second figure: the same errors under three ways of matching.

Two noises of different laws can be set beside each other where one update has an equal
Renyi divergence of order 2, an equal Bayes capacity, or where their models are equally
accurate. Which noise protects better may depend on it; the page says how.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from audit.accounting import capacity, vmf
from audit.clipping import GELU_OVERSHOOT
from audit.report.columns import number
from audit.report.figures import common
from audit.report.figures import gradient_inversion as inversion
from audit.report.markdown import grid
from audit.scorecard.card import Scorecard

GAUSS, VMF = "dpsgd", "dirdp_sgd"  # the two mechanisms, as the suite calls them


class Matched(NamedTuple):
    """One defense, where each way of matching puts it, and what its attacker gets."""

    label: str
    use: str
    x: dict[str, float]  # matching -> place
    mse: float
    half: float  # half a 95% interval of it


def dimension(concentration: float, divergence: float) -> int:
    """Return how many numbers an update has whose draw has this divergence.

    A card does not say it; L(3 kappa) - L(kappa), decreasing in K, does.
    """

    def excess(log_size: float) -> float:
        size = np.exp(log_size)
        each = [vmf.log_mean_exp(size, m * concentration) for m in (3, 1)]
        return float(each[0] - each[1] - divergence)

    return round(np.exp(optimize.brentq(excess, np.log(2), np.log(1e9), xtol=1e-14)))


def log_capacities(card: Scorecard) -> dict[str, float]:
    """Return label -> log capacity of one update, in nats; none without both noises."""
    rows = {d: r for d, r in card.defenses.items() if r["rdp2"] is not None}
    drawn = {d: r["settings"]["concentration"] for d, r in rows.items() if r.use == VMF}
    if not drawn:
        return {}
    first = min(drawn)
    size = dimension(drawn[first], float(rows[first]["rdp2"]))
    capacities = {d: capacity.von_mises_fisher(size, k) for d, k in drawn.items()}
    for label, row in rows.items():
        if row.use == GAUSS:
            longest = GELU_OVERSHOOT if row["settings"]["clip"] == "soft" else 1.0
            radius = longest / row["settings"]["noise_multiplier"]
            capacities[label] = capacity.gaussian(size, radius)
    return capacities


def places(points: list[inversion.Point], cards: list[Scorecard]) -> list[Matched]:
    """Return the defenses of one data set with a search for images, at every matching.

    The error is that of the best search: the smallest mean over seeds.
    """
    capacities = {k: v for card in cards for k, v in log_capacities(card).items()}
    matched = []
    for point in points:
        errors = [v for q, v in point.readings.items() if q.startswith("MSE")]
        if not errors or point.label not in capacities:
            continue
        x = {
            "Rényi divergence of order 2, one update": point.divergence,
            "log Bayes capacity of one update, nats": capacities[point.label],
            "test accuracy": point.readings["accuracy"][0],
        }
        matched.append(Matched(point.label, point.use, x, *min(errors)))
    return matched


def table(groups: dict[str, list[Matched]], floors: dict[str, float]) -> str:
    """Return the verdicts, and every place, as Markdown.

    `floors` are the errors of who ignores the update, per data set. Where no search
    gets below it nobody learns anything, and no noise is the better one.
    """
    names = list(next(iter(groups.values()))[0].x)
    verdicts = [
        [data, name, *_verdict(*gap(every, name), _learnt(every, floors[data]))]
        for data, every in groups.items()
        for name in names
    ]
    rows = [
        [data, p.label, *(f"{x:.4g}" for x in p.x.values()), error(p)]
        for data, every in groups.items()
        for p in every
    ]
    header = ["data", "matched by", "MSE, directional less Gaussian", "protects better"]
    return "\n\n".join(
        [
            "The gap is the mean, with its smallest and largest value, over what the "
            "curves of both noises cover; along divergences and capacities on a "
            "logarithmic scale. Where it changes its sign neither noise is better, nor "
            "where no search errs less than who ignores the update and guesses the "
            f"class mean: {', '.join(f'{d} {number(v)}' for d, v in floors.items())}.",
            grid(header, verdicts),
            "![The same as a figure](matching.png)",
            grid(["data", "defense", *names, "MSE, best search"], rows),
        ]
    )


def error(place: Matched) -> str:
    """Return an error with half its interval, where it has one."""
    half = "" if np.isnan(place.half) else f" ± {number(place.half)}"
    return f"{number(place.mse)}{half}"


def _learnt(every: list[Matched], floor: float) -> bool:
    return min(place.mse for place in every) < floor


def _verdict(mean: float, low: float, high: float, learnt: bool) -> list[str]:
    if np.isnan(mean):
        return ["-", "no place is covered by both"]
    if not learnt:
        return [f"{mean:+.4f} ({low:+.4f} to {high:+.4f})", "neither: nothing learnt"]
    words = {(True, True): "directional", (False, False): "Gaussian"}
    word = words.get((low > 0, high > 0), "depends on where")
    return [f"{mean:+.4f} ({low:+.4f} to {high:+.4f})", word]


def gap(every: list[Matched], matching: str) -> tuple[float, float, float]:
    """Return how much larger the error is under directional noise, where both have one.

    Each curve is linear between its places, in the logarithm for all but accuracies.

    Returns:
      The mean gap over what both cover, and its smallest and largest value; nan where
      nothing is covered by both.
    """
    curves = []
    for use in (GAUSS, VMF):
        shown = sorted((p.x[matching], p.mse) for p in every if p.use == use)
        curves.append(np.array(shown, float).reshape(-1, 2).T)
    if any(curve.size < 4 for curve in curves):
        return (np.nan,) * 3
    low, high = max(c[0][0] for c in curves), min(c[0][-1] for c in curves)
    if not low < high:
        return (np.nan,) * 3
    along = np.asarray if matching == "test accuracy" else np.log
    at = np.linspace(along(low), along(high), 101)
    gauss, directional = (np.interp(at, along(x), y) for x, y in curves)
    gaps = directional - gauss
    return float(gaps.mean()), float(gaps.min()), float(gaps.max())


def draw(groups: dict[str, list[Matched]], floors: dict[str, float]) -> Any:
    """Return a figure: a row per data set, a panel per matching, and the floors."""
    names = list(next(iter(groups.values()))[0].x)
    size = 3.0 * len(names), 2.7 * len(groups)
    figure, axes = common.grid(len(groups), len(names), size)
    for line, (data, every) in zip(axes, groups.items(), strict=True):
        for axis, name in zip(line, names, strict=True):
            for use, colour in zip((GAUSS, VMF), common.COLOURS, strict=False):
                shown = sorted(
                    (p.x[name], *np.nan_to_num([p.mse, p.half]))
                    for p in every
                    if p.use == use
                )
                x, mse, half = np.array(shown, float).reshape(-1, 3).T
                style: dict[str, Any] = {"fmt": "o-", "ms": 4, "capsize": 3}
                axis.errorbar(x, mse, half, color=colour, label=use, **style)
            axis.axhline(
                floors[data], label="floor: ignores the update", **common.FLOOR
            )
            if name != "test accuracy":
                axis.set_xscale("log")
                common.few_labels(axis.xaxis)
            axis.set_xlabel(name)
        line[0].set_ylabel(f"{data}: MSE, best search")
    common.legend_below(figure)
    return figure
