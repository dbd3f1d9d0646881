"""What attackers rebuilt of each target, and their errors against its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.report import columns
from audit.report.figures import common
from audit.scorecard.card import Scorecard
from audit.scorecard.view import bound_text

LEAST = 1e-5  # the smallest bound a panel shows in its place


def reconstructions(card: Scorecard) -> Any:
    """Draw targets, then one row per defense (its strongest attack), the floor last.

    The layout of Edmunds (2024), Figure 3.3. Guesses are the first run's.
    """
    targets = targets_to_draw(card)
    rows = {"target": card.arrays["target"]}
    for label in card.defenses:
        best = columns.strongest(card, label)
        if best is not None:
            text = f"{label}\n{best['attack']}\nMSE {best['result']['mse']:.4f}"
            rows[text] = card.arrays[f"{label}/{best['attack']}/guess"]
    floor = f"floor\nclass mean\nMSE {card.floor['mse']:.4f}"
    rows[floor] = card.arrays["floor_guess"]
    figure, lines = common.image_rows(list(rows), len(targets))
    for line, images in zip(lines, rows.values(), strict=True):
        for axis, i in zip(line, targets, strict=True):
            common.image(axis, images[i])
    return figure


def targets_to_draw(card: Scorecard, most: int = 10) -> np.ndarray:
    """Return which targets a figure shows: the first of each class in turn."""
    labels = card.arrays["label"]
    ranks = np.zeros(len(labels), int)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        ranks[members] = np.arange(len(members))
    return np.lexsort((labels, ranks))[:most]


def mse_vs_bound(card: Scorecard) -> Any:
    """Scatter every target's error against its bounds, log-log, one panel per bound.

    Targets whose bound is below the panel stand at its left edge; a bound too small for
    any axis is named instead.
    """
    names = list(drawn_bounds(card))
    figure, axes = common.panels(max(1, len(names)), (4.0, 4.0), a_row=len(names) or 1)
    for axis, name in zip(axes, names, strict=False):
        against_bound(axis, card, name)
    if not names:
        axes[0].text(0.5, 0.5, "no defense here has a bound", ha="center")
        axes[0].axis("off")
    common.legend_below(figure, 4, markerscale=2)
    return figure


def drawn_bounds(card: Scorecard) -> dict[str, str]:
    """Return bound -> short name, for the bounds with errors to set beside them."""
    return {n: s for n, s in columns.bound_names(card).items() if _points(card, n)}


class Points(NamedTuple):
    """What a panel shows of one defense, [targets], and of which attack."""

    bound: np.ndarray
    mse: np.ndarray
    attack: str


def _points(card: Scorecard, name: str) -> dict[str, Points]:
    """Return defense -> its bounds and the errors of its strongest attack.

    Targets of which either is not finite, or whose error is zero, are left out.
    """
    points = {}
    for label in card.defenses:
        best = columns.strongest(card, label)
        attack = best.attack if best else ""
        bound, mse = (
            numbers(card, key) for key in (f"{label}/{name}", f"{label}/{attack}/mse")
        )
        if bound is None or mse is None or bound.shape not in ((), (1,), mse.shape):
            continue
        bound = np.broadcast_to(bound, mse.shape)
        drawn = np.isfinite(bound) & np.isfinite(mse) & (mse > 0)
        if drawn.any():
            points[label] = Points(bound[drawn], mse[drawn], attack)
    return points


def numbers(card: Scorecard, name: str) -> np.ndarray | None:
    """Return an array of a card, or None where there is none of numbers."""
    values = card.arrays.get(name)
    return None if values is None or values.dtype.kind not in "fiu" else values


def against_bound(axis: Any, card: Scorecard, name: str, most: int = 10**9) -> None:
    """Scatter errors against one bound: a colour per defense, the floor, error = bound.

    Args:
      axis: the panel.
      card: with arrays.
      name: the bound, one of `drawn_bounds`.
      most: points drawn per defense; more are thinned evenly.
    """
    points, floor = _points(card, name), float(card.floor.get("mse") or "nan")
    x, y = _limits(points, floor)
    axis.set(xscale="log", yscale="log", xlim=x, ylim=y)
    look = common.looks(card.defenses)
    for label, (bound, mse, attack) in points.items():
        if bound.max() <= LEAST:
            _off_scale(axis, card, label, name, look[label].color)
            continue
        step = -(-len(bound) // most)
        shape = {"marker": look[label].marker, "color": look[label].color, "s": 9}
        text, places = f"{label}, {attack}", np.maximum(bound, x[0])[::step]
        axis.scatter(places, mse[::step], alpha=0.6, linewidths=0, label=text, **shape)
    common.few_labels(axis.xaxis)
    axis.set_ylabel("MSE of the strongest attack")
    axis.set_xlabel(f"{columns.SHORT.get(name, name)} (bound on MSE)")
    axis.set_title(holds_for(card, name), **common.TITLE)
    if floor > 0:
        axis.axhline(floor, label="floor: ignores the release", **common.FLOOR)
    ends = max(x[0], y[0]), min(x[1], y[1])
    if ends[0] < ends[1]:
        axis.plot(ends, ends, color=common.INK, linewidth=1, label="MSE = bound")


def _limits(points: dict[str, Points], floor: float) -> tuple[Any, Any]:
    """Return the ends of both axes, bound and error: twice as far as the data."""
    errors = np.concatenate([p.mse for p in points.values()])
    low, high = errors.min() / 2, np.fmax(errors.max(), floor) * 2
    bounds = np.concatenate([p.bound for p in points.values()])
    bounds = bounds[bounds > LEAST]
    if not len(bounds):
        return (low, high), (low, high)
    return (bounds.min() / 2, bounds.max() * 2), (low, high)


def holds_for(card: Scorecard, name: str) -> str:
    """Return which attackers a bound binds."""
    bounds = (b for defense in card.defenses.values() for b in defense["bounds"])
    return next((b["holds_for"] for b in bounds if b["name"] == name), "not stated")


def _off_scale(axis: Any, card: Scorecard, label: str, name: str, colour: str) -> None:
    """Name a bound that no axis can hold."""
    bounds = card.defenses[label]["bounds"]
    text = next((bound_text(b) for b in bounds if b["name"] == name), "0")
    place = 0.03, 0.95 - 0.07 * len(axis.texts)
    look = {"color": colour, "fontsize": 8, "va": "top"}
    axis.annotate(f"{label}: {text}", place, xycoords="axes fraction", **look)


def _rebuilt(card: Scorecard) -> bool:
    """Return whether each run had one target, and guesses of it may be shown."""
    return "floor_guess" in card.arrays


FIGURES: dict[str, tuple[Callable, Callable]] = {
    "reconstructions.png": (_rebuilt, reconstructions),
    "mse_vs_bound.png": (_rebuilt, mse_vs_bound),
}
