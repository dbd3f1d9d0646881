"""What attackers rebuilt of each target, and their errors against its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from audit.report import columns, strips
from audit.report.figures import common, labels
from audit.scorecard.card import Scorecard
from audit.scorecard.view import SHORT, attack_name, bound_column, main_bounds, number

LEAST = 1e-5  # the smallest bound a panel shows in its place


def reconstructions(card: Scorecard, most: int = 10) -> Any:
    """Draw `most` targets, a row per defense with its strongest attack, and the floor.

    The layout of Edmunds (2024), Figure 3.3. Guesses are the first run's. Beside each
    row stand epsilon, the attack, its mean squared error, and the verdict in colour.
    """
    targets, rows = targets_to_draw(card, most), {"target": card.arrays["target"]}
    words = dict[str, tuple[str, str]]()
    for line in map(strips.drawn, columns.lines(card)):
        if line.best is not None:
            attack, result = line.best.attack, line.best["result"]
            epsilon = columns.epsilon_upper(line)
            head = line.label if epsilon == "none" else f"{line.label}, ε {epsilon}"
            shown = f"{attack} on all steps" if result.get("shown") else attack
            text = f"{head}\n{shown}: {number(result['mse'])}"
            rows[text] = card.arrays[f"{line.label}/{attack}/guess"]
            word, level = strips.verdict(line, None)
            words[text] = word, common.LEVELS[level]
    floor = f"floor (ignores it)\nclass mean: {number(card.floor['mse'])}"
    rows[floor] = card.arrays["floor_guess"]
    figure, lines = common.image_rows(list(rows), len(targets), words)
    for line, images in zip(lines, rows.values(), strict=True):
        for column, i in enumerate(targets):
            common.image(line, column, images[i])
    return figure


def targets_to_draw(card: Scorecard, most: int) -> np.ndarray:
    """Return which targets a figure shows: the first of each class in turn."""
    labels = card.arrays["label"]
    ranks = [np.sum(labels[:i] == label) for i, label in enumerate(labels)]
    return np.lexsort((labels, ranks))[:most]


def mse_vs_bound(card: Scorecard) -> Any:
    """Scatter every target's error against its bounds, log-log, one panel per bound.

    Targets whose bound is below the panel stand at its left edge; a bound too small for
    any axis is named instead.
    """
    names = drawn_bounds(card)
    size = (min(common.WIDEST / len(names), 6.4), 4.2)
    figure, axes = common.panels(len(names), size, a_row=len(names))
    for axis, name in zip(axes, names, strict=True):
        against_bound(axis, card, name)
    common.legend_below(figure, 3)
    return figure


def drawn_bounds(card: Scorecard) -> dict[str, str]:
    """Return bound -> short name, for the bounds with errors to set beside them.

    A bound that is the same for all targets of every defense says nothing of one
    target, nor does an estimate of a mean over targets; the tables have both.
    """
    rows = [bound for defense in card.defenses.values() for bound in defense.bounds]
    means = {bound.name for bound in rows if bound.standard_error is not None}
    names = {n: s for n, s in main_bounds(card).items() if n not in means}
    return {n: s for n, s in names.items() if _tells_apart(_points(card, n))}


def _tells_apart(points: dict[str, np.ndarray]) -> bool:
    """Return whether a bound on an axis differs between targets of some defense."""
    drawn = (bound[bound > LEAST] for bound, _ in points.values())
    return any(len(np.unique(bound)) > 1 for bound in drawn)


def _points(card: Scorecard, name: str) -> dict[str, np.ndarray]:
    """Return defense -> its bounds, and its `strips.drawn` errors, [2, targets].

    Targets of which either is not finite, or whose error is zero, are left out.
    """
    points = {}
    for line in map(strips.drawn, columns.lines(card)):
        bound = numbers(card, f"{line.label}/{name}")
        mse = numbers(card, f"{line.label}/{attack_name(line)}/mse")
        if bound is None or mse is None or bound.shape not in ((), (1,), mse.shape):
            continue
        both = np.stack(np.broadcast_arrays(bound, mse))
        drawn = np.isfinite(both).all(0) & (mse > 0)
        if drawn.any():
            points[line.label] = both[:, drawn]
    return points


def numbers(card: Scorecard, name: str) -> np.ndarray | None:
    """Return an array of a card, or None where there is none of numbers."""
    values = card.arrays.get(name)
    return None if values is None or values.dtype.kind not in "fiu" else values


def against_bound(axis: Any, card: Scorecard, name: str, most: int = 10**9) -> None:
    """Scatter errors against one bound of `drawn_bounds`: a colour per defense.

    Its mean error stands at its median bound, with two standard errors, and its name.

    At most `most` points per defense are drawn; more are thinned evenly.
    """
    points, floor = _points(card, name), float(card.floor.get("mse") or "nan")
    bounds, errors = np.concatenate(list(points.values()), axis=1)
    y = low, high = errors.min() / 2, np.fmax(errors.max(), floor) * 2
    bounds = bounds[bounds > LEAST]
    x = (bounds.min() / 2, bounds.max() * 2) if len(bounds) else (low, high)
    axis.set(xscale="log", yscale="log", xlim=x, ylim=y)
    look, means = common.looks(card.defenses), []
    for line in (v for v in columns.lines(card) if v.label in points):
        bound, mse = points[line.label]
        if bound.max() <= LEAST:  # no axis can hold it
            text = f"{line.label}: {bound_column(name, narrow=True).cell(line)}"
            place = 0.03, 0.95 - 0.07 * len(axis.texts)
            words = {"fontsize": common.SMALL, "xycoords": "axes fraction", "va": "top"}
            axis.annotate(text, place, color=look[line.label].color, **words)
            continue
        step, places = -(-len(bound) // most), np.maximum(bound, x[0])
        shape = look[line.label].points() | {"s": 9, "alpha": 0.35, "linewidths": 0}
        axis.scatter(places[::step], mse[::step], **shape)
        middle = float(np.median(places)), float(mse.mean())
        bar = 2 * float(mse.std() / max(1, len(mse) - 1) ** 0.5)
        style = {"fmt": look[line.label].marker, "capsize": 3, "markersize": 6}
        edge = {"markeredgecolor": common.INK, "markeredgewidth": 0.6, "zorder": 4}
        colour = {"color": look[line.label].color, "ecolor": common.INK}
        axis.errorbar(*middle, bar, **style, **edge, **colour)
        means.append((line.label, *middle))
    if floor > 0:
        axis.axhline(floor, label="floor: ignores the release", **common.FLOOR)
    labels.label_points(axis, means)
    common.few_labels(axis.xaxis)
    common.few_labels(axis.yaxis)
    axis.set_ylabel("MSE of the strongest attack")
    axis.set_xlabel(f"{SHORT.get(name, name)} of a target (bound on its MSE)")
    short = SHORT.get(name, name)
    axis.set_title(f"{short}: {holds_for(card, name).split(',')[0]}", **common.TITLE)
    ends = max(x[0], y[0]), min(x[1], y[1])
    if ends[0] < ends[1]:
        axis.plot(ends, ends, label="MSE = bound", **common.DIAGONAL)


def holds_for(card: Scorecard, name: str) -> str:
    """Return which attackers a bound binds."""
    bounds = (b for defense in card.defenses.values() for b in defense.bounds)
    return next((b.holds_for for b in bounds if b.name == name), "not stated")


def _of_targets(card: Scorecard) -> bool:
    """Return whether runs had one target each, and guesses of it may be shown."""
    return "floor_guess" in card.arrays


def _pictured(card: Scorecard) -> bool:
    """Return whether these targets are images, and no rows of a table."""
    return _of_targets(card) and card.arrays["target"].ndim == 4


def _scored(card: Scorecard) -> bool:
    """Return whether runs had one target each, shown or not, each with its bound."""
    private = "target" not in card.arrays and card.scenario.game == "reconstruction"
    return bool((_of_targets(card) or private) and drawn_bounds(card))


FIGURES: dict[str, tuple[Callable, Callable]] = {
    "reconstructions.png": (_pictured, reconstructions),
    "mse_vs_bound.png": (_scored, mse_vs_bound),
}
