"""Figures of what happens inside every step: cards of the game `anatomy`.

After Figures 3.4 and A.1 to A.28 of Edmunds (2024), drawn from the card alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from audit.report.figures import common
from audit.scorecard.card import Scorecard

BINS = 40
PARTS = {  # array -> how figures call it
    "base_norm": "base: the record's masked gradient",
    "perturbation_norm": "perturbation: what is added to it",
    "final_norm": "final: clipped, before noise",
}
PANELS = {
    "pca_base": "base",
    "pca_before_noise": "base +\nperturbation",
    "pca_perturbation": "perturbation",
}
MOST = 10  # steps with a panel of their own
A_ROW = 5  # panels side by side


def _having(card: Scorecard, name: str) -> list[str]:
    """Return the defenses a card takes apart that have an array `name`."""
    labels = card.defenses if card.scenario.get("game") == "anatomy" else ()
    return [label for label in labels if f"{label}/anatomy/{name}" in card.arrays]


def _with_steps(card: Scorecard) -> list[str]:
    return [label for label, row in card.defenses.items() if row.get("steps")]


def _steps_axis(axis: Any, count: int) -> None:
    axis.set_xticks(range(1, count + 1) if count <= 12 else [1, count // 2, count])
    axis.set_xlabel("step")


def _bands(
    card: Scorecard, parts: dict[str, str], needed: str, ylabel: str, low: float
) -> Any:
    """Return the panels of parts against the step, mean and sd over records.

    Parts are arrays [steps, records] -> what the legend calls them. A defense without
    the part `needed` has no panel; no value below `low` is drawn.
    """
    names, size = _having(card, needed), (3.0, 2.7)
    figure, axes = common.panels(len(names), size, ylabel, a_row=A_ROW, sharey=True)
    for axis, name in zip(axes, names, strict=True):
        for part, look in common.looks(parts).items():
            values = card.arrays.get(f"{name}/anatomy/{part}", np.zeros((0, 1)))
            values = np.ma.masked_invalid(values)  # no cosine with a gradient of 0
            steps, mean, sd = np.arange(len(values)) + 1, values.mean(1), values.std(1)
            axis.plot(steps, mean, label=parts[part], **look.line())
            ends = np.maximum([mean - sd, mean + sd], low)
            axis.fill_between(steps, *ends, color=look.color, alpha=0.2, lw=0)
        axis.set_title(name, **common.TITLE)
        _steps_axis(axis, len(card.arrays[f"{name}/anatomy/{needed}"]))
    common.legend_below(figure, 3)
    return axes


def norms(card: Scorecard) -> Any:
    """Draw the norms of all three parts against the step, mean and sd over records."""
    axes = _bands(card, PARTS, "base_norm", "2-norm, mean ± sd\nover records", 1e-9)
    drawn = np.concatenate([line.get_ydata() for a in axes for line in a.lines])
    # the axis is logarithmic: a band that reaches zero runs off the panel
    for axis in axes:
        axis.set_yscale("log")
    axes[0].set_ylim(bottom=min(drawn[drawn > 0], default=3) / 3)
    return axes[0].figure


CURVES = {
    "accuracy": "accuracy on the test set",
    "sqrt_max": "max √dFIL so far",
    "sqrt_mean": "mean √dFIL so far",
    "sqrt_median": "median √dFIL so far",
}


def progress(card: Scorecard) -> Any:
    """Draw accuracy and the square root of dFIL after each step."""
    figure, axes = common.panels(len(CURVES), (4.5, 3.0))
    note = {"xycoords": "axes fraction", "fontsize": common.SMALL}
    for axis, name in zip(axes, CURVES, strict=True):
        drawn = curves(axis, card, name)
        for label, look in common.looks(card.defenses).items():
            if label in set(_with_steps(card)) - drawn:
                axis.plot([], [], label=f"{label} (no dFIL)", **look.line())
        if name != "accuracy":
            axis.set_yscale("log" if drawn else "linear")
            axis.annotate(
                "per unit of pixel value", (0.02, 1.02), **note, color=common.MUTED
            )
        if drawn and name != "accuracy":
            common.few_labels(axis.yaxis)
    common.legend(figure, axes[1:2], loc="outside lower center", ncols=8)
    return figure


def curves(axis: Any, card: Scorecard, name: str) -> set[str]:
    """Draw one of `CURVES` against the step; return the defenses that have it."""
    look, drawn, longest = common.looks(card.defenses), set(), 1
    for label in _with_steps(card):
        values = [s.get(name) for s in card.defenses[label]["steps"]]
        longest = max(longest, len(values))
        if None not in values:
            steps = np.arange(1, 1 + len(values))
            line = np.asarray(values, float)
            axis.plot(steps, line, label=label, **look[label].line())
            drawn.add(label)
    axis.set_ylabel(CURVES[name])
    _steps_axis(axis, longest)
    return drawn


TOWARDS = {
    "cos_public": "mean public gradient",
    "cos_private": "mean gradient of the private batch",
    "cos_base": "the record's own gradient",
}


def alignment(card: Scorecard) -> Any:
    """Draw the cosine of the perturbation with what it may imitate, by step."""
    ylabel = "cosine with the perturbation,\nmean ± sd over records"
    axes = _bands(card, TOWARDS, "cos_base", ylabel, -1)
    for axis in axes:
        axis.axhline(0, color=common.MUTED, linewidth=0.8)
        axis.set_ylim(-1.05, 1.05)
    return axes[0].figure


def _shown(steps: int) -> np.ndarray:
    """Return which steps get a panel: all, or some from the first to the last."""
    return np.unique(np.linspace(0, steps - 1, min(steps, MOST)).round().astype(int))


def _per_step(count: int, ylabel: str, title: str, **given: Any) -> tuple[Any, dict]:
    """Return a figure and step -> panel, for the steps of `count` that are shown."""
    steps = _shown(count)
    figure, axes = common.panels(len(steps), (2.8, 2.6), ylabel, a_row=A_ROW, **given)
    figure.suptitle(title, fontsize=10)
    for step, axis in zip(steps, axes, strict=True):
        axis.set_title(f"step {step + 1}", **common.TITLE)
    return figure, dict(zip(steps, axes, strict=True))


def cosines(label: str, card: Scorecard) -> Any:
    """Draw the cosine of every record's gradient with its perturbation, by class."""
    values, labels = card.arrays[f"{label}/anatomy/cos_base"], card.arrays["label"]
    title = f"{label}: cosine of a record's gradient and its perturbation"
    figure, axes = _per_step(len(values), "records", title)
    edges = np.linspace(-1, 1, BINS + 1)
    for step, axis in axes.items():
        for name, look in common.looks(np.unique(labels)).items():
            members = values[step][(labels == name) & np.isfinite(values[step])]
            axis.hist(members, edges, **look.bars(label=f"class {name}"))
        axis.set_xlim(-1.02, 1.02)
    common.legend_below(figure, 10)
    return figure


def components_of_parts(label: str, card: Scorecard) -> Any:
    """Draw each step's records on the two leading components of each part."""
    rows = [name for name in PANELS if f"{label}/anatomy/{name}" in card.arrays]
    still = [n for n in rows if not card.arrays[f"{label}/anatomy/{n}"].any()]
    rows = [name for name in rows if name not in still] or rows[:1]
    labels = card.arrays["label"]
    shown = _shown(len(card.arrays[f"{label}/anatomy/{rows[0]}"]))
    shown = shown[np.linspace(0, len(shown) - 1, min(A_ROW, len(shown))).astype(int)]
    size = (min(common.WIDEST, 2.1 * len(shown) + 0.6), 2.0 * len(rows) + 0.6)
    figure, axes = common.grid(len(rows), len(shown), size)
    for line, name in zip(axes, rows, strict=True):
        place = card.arrays[f"{label}/anatomy/{name}"]
        share = card.arrays[f"{label}/anatomy/{name}_share"]
        for step, axis in zip(shown, line, strict=True):
            _components(axis, place[step], share[step], labels)
        line[0].set_ylabel(f"{PANELS[name]}\nPC2", fontsize=8)
    for step, axis in zip(shown, axes[0], strict=True):
        axis.set_title(f"step {step + 1}", **common.TITLE)
    same = "".join(f"; {PANELS[n]}: the same for all records" for n in still)
    figure.suptitle(f"{label}{same}", fontsize=10)
    common.legend_below(figure, 10, markerscale=2.5)
    return figure


def _components(axis: Any, place: np.ndarray, share: np.ndarray, labels: Any) -> None:
    """Scatter records [n, 2] by class; share: of the variance, [2]."""
    from matplotlib.ticker import MaxNLocator

    axis.tick_params(labelsize=common.SMALL)
    axis.grid(visible=False)
    if not place.any():  # nothing moves between records
        axis.plot([0], [0], "x", color=common.INK, markersize=7)
        axis.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[0], yticks=[0])
        axis.set_xlabel("one point: the same\nfor all records", fontsize=common.SMALL)
        return
    for name, look in common.looks(np.unique(labels)).items():
        shape = look.points() | {"s": 5, "alpha": 0.6, "linewidths": 0}
        axis.scatter(*place[labels == name].T, label=f"class {name}", **shape)
    first, second = np.nan_to_num(share)
    axis.set_xlabel(f"PC1 ({first:.0%}; PC2 {second:.0%})", fontsize=common.SMALL)
    axis.margins(0.1)
    for one in (axis.xaxis, axis.yaxis):  # no common factor beside the axis
        one.set_major_locator(MaxNLocator(3))
        one.set_major_formatter(lambda value, _: f"{value:.2g}".replace("e+0", "e"))


def alignment_of_components(label: str, card: Scorecard) -> Any:
    """Draw the |cosine| of each leading component with the perturbation, by step."""
    cosine = card.arrays[f"{label}/anatomy/pc_cosine"]
    share = card.arrays[f"{label}/anatomy/pc_share"]
    title = f"{label}: principal component of the records' gradients"
    figure, axes = _per_step(len(cosine), "|cosine|, share", title, sharey=True)
    ranks = np.arange(1, 1 + cosine.shape[1])
    bars = "|cosine| of the component with the first record's perturbation"
    line = "share of the gradients' variance up to the component"
    for step, axis in axes.items():
        axis.bar(ranks, cosine[step], width=1, color=common.COLOURS[0], label=bars)
        total = np.cumsum(share[step])
        axis.plot(ranks, total, color=common.COLOURS[1], linewidth=1.5, label=line)
        axis.set_ylim(0, 1.03)
    common.legend_below(figure, 2)
    return figure


FIGURES = {
    "step_norms.png": (lambda card: _having(card, "base_norm"), norms),
    "step_progress.png": (
        lambda card: card.scenario.get("game") == "anatomy" and _with_steps(card),
        progress,
    ),
    "step_cosines.png": (lambda card: _having(card, "cos_base"), alignment),
}
OF_EACH = {  # one figure per defense: the array it needs, and what draws it
    "step_pca": ("pca_base", components_of_parts),
    "step_histogram": ("cos_base", cosines),
    "step_components": ("pc_cosine", alignment_of_components),
}


def of_each(card: Scorecard) -> dict[str, Callable[[Scorecard], Any]]:
    """Return file name -> drawing of the figures that show one defense each."""
    return {
        f"{word}_{label}.png": partial(draw, label)
        for word, (name, draw) in OF_EACH.items()
        for label in _having(card, name)
    }
