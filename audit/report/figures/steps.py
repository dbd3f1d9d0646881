"""Figures of what happens inside every step: cards of the game `anatomy`.

After Figures 3.4 and A.1 to A.28 of Edmunds (2024), drawn from the card alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from audit.report.figures import common
from audit.report.figures.common import COLOURS, INK, MUTED, pyplot
from audit.scorecard.card import Scorecard

BINS = 40
LINES, MARKERS = ("-", "--", ":", "-.", (0, (5, 1, 1, 1)), (0, (1, 3))), "os^Dv*"
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
_rows = partial(common.panels, a_row=5)
MOST = 10  # steps with a panel of their own


def _array(card: Scorecard, label: str, name: str) -> np.ndarray | None:
    return card.arrays.get(f"{label}/anatomy/{name}")


def _having(card: Scorecard, name: str) -> list[str]:
    return [d for d in card.defenses if _array(card, d, name) is not None]


def _with_steps(card: Scorecard) -> list[str]:
    return [d for d, own in card.defenses.items() if own.get("steps")]


def _looks(items: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield every item with a colour, a line and a marker, apart without colour too."""
    for i, item in enumerate(items):
        turn = i + i // len(COLOURS)  # the second round joins other lines to colours
        yield (
            item,
            {
                "color": COLOURS[i % len(COLOURS)],
                "linestyle": LINES[turn % len(LINES)],
                "marker": MARKERS[turn % len(MARKERS)],
                "markersize": 4,
            },
        )


def _legend_below(figure: Any, axis: Any, columns: int, **more: float) -> None:
    """Put one legend of all panels under the figure, never over data."""
    handles, texts = axis.get_legend_handles_labels()
    look = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": columns}
    figure.legend(handles, texts, frameon=False, fontsize=8, **look, **more)


def _write(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot().close(figure)


def _steps_axis(axis: Any, count: int) -> None:
    axis.set_xticks(range(1, count + 1) if count <= 12 else [1, count // 2, count])
    axis.grid(visible=True, color="#eeeeee")
    axis.set_axisbelow(True)


def norms(card: Scorecard, path: Path) -> None:
    """Draw the norms of all three parts against the step, mean and sd over records."""
    names = _having(card, "base_norm")
    said = "2-norm, mean ± sd\nover records"
    figure, axes = _rows(len(names), (3.2, 2.9), said, sharey=True)
    least = np.inf
    for axis, name in zip(axes, names, strict=True):
        for (part, said), look in _looks(PARTS.items()):
            values = _array(card, name, part)
            at = np.arange(1, 1 + len(_array(card, name, "base_norm")))  # type: ignore[arg-type]
            if values is None:
                axis.plot([], [], label=said, **look)
                continue
            mean, sd = values.mean(1), values.std(1)
            axis.plot(at, mean, label=said, **look)
            low = np.maximum(mean - sd, 1e-9)  # below the axis, which is logarithmic
            axis.fill_between(at, low, mean + sd, color=look["color"], alpha=0.2, lw=0)
            least = min(least, float(np.min(mean[mean > 0], initial=np.inf)))
        axis.set(yscale="log", xlabel="step", title=name)
        _steps_axis(axis, len(at))
    axes[0].set_ylim(bottom=least / 3 if np.isfinite(least) else None)
    _legend_below(figure, axes[0], 3)
    _write(figure, path)


CURVES = {
    "accuracy": "accuracy on the test set",
    "sqrt_max": "max √dFIL so far",
    "sqrt_mean": "mean √dFIL so far",
    "sqrt_median": "median √dFIL so far",
}


def progress(card: Scorecard, path: Path) -> None:
    """Draw accuracy and the square root of dFIL after each step."""
    figure, axes = pyplot().subplots(1, len(CURVES), figsize=(13, 3.2))
    for axis, (name, said) in zip(axes, CURVES.items(), strict=True):
        count = 1
        for label, look in _looks(_with_steps(card)):
            values = [s.get(name) for s in card.defenses[label]["steps"]]
            count = max(count, len(values))
            if None in values:
                axis.plot([], [], label=f"{label} (no dFIL)", **look)
                continue
            at = np.arange(1, 1 + len(values))
            axis.plot(at, np.asarray(values, float), label=label, **look)
        axis.set(xlabel="step", ylabel=said)
        _steps_axis(axis, count)
    note = {"xycoords": "axes fraction", "fontsize": 7, "color": MUTED}
    for axis in axes[1:]:
        if axis.lines and any(len(line.get_xdata()) for line in axis.lines):
            axis.set_yscale("log")
        axis.annotate("per unit of pixel value", (0.02, 1.02), **note)
    _legend_below(figure, axes[1], 8)
    _write(figure, path)


TOWARDS = {
    "cos_public": "mean public gradient",
    "cos_private": "mean gradient of the private batch",
    "cos_base": "the record's own gradient",
}


def alignment(card: Scorecard, path: Path) -> None:
    """Draw the cosine of the perturbation with what it may imitate, by step."""
    names = _having(card, "cos_base")
    said = "cosine with the perturbation,\nmean ± sd over records"
    figure, axes = _rows(len(names), (3.2, 2.9), said, sharey=True)
    for axis, name in zip(axes, names, strict=True):
        for (part, said), look in _looks(TOWARDS.items()):
            values = _array(card, name, part)
            if values is None:
                continue
            at, mean, sd = np.arange(1, 1 + len(values)), values.mean(1), values.std(1)
            axis.plot(at, mean, label=said, **look)
            low, high = np.maximum(mean - sd, -1), np.minimum(mean + sd, 1)
            axis.fill_between(at, low, high, color=look["color"], alpha=0.2, lw=0)
        axis.axhline(0, color=MUTED, linewidth=0.8)
        axis.set(xlabel="step", title=name, ylim=(-1.05, 1.05))
        _steps_axis(axis, len(at))
    _legend_below(figure, axes[0], 3)
    _write(figure, path)


def _shown(steps: int) -> np.ndarray:
    """Return which steps get a panel: all, or some from the first to the last."""
    return np.unique(np.linspace(0, steps - 1, min(steps, MOST)).round().astype(int))


def cosines(label: str, card: Scorecard, path: Path) -> None:
    """Draw the cosine of every record's gradient with its perturbation, by class."""
    values = card.arrays[f"{label}/anatomy/cos_base"]
    labels = card.arrays["label"]
    shown = _shown(len(values))
    figure, axes = _rows(len(shown), (2.8, 2.6), "records")
    edges = np.linspace(-1, 1, BINS + 1)
    for t, axis in zip(shown, axes, strict=True):
        for i, own in enumerate(np.unique(labels)):
            look: dict[str, Any] = {
                "color": COLOURS[i % 6],
                "hatch": ("", "////", "....")[i % 3],
            }
            look |= {"histtype": "stepfilled", "edgecolor": INK, "alpha": 0.6}
            told = values[t][labels == own]
            axis.hist(told[np.isfinite(told)], edges, label=f"class {own}", **look)
        axis.set(title=f"step {t + 1}", xlim=(-1.02, 1.02))
    figure.supxlabel(f"{label}: cosine of a record's gradient and its perturbation")
    _legend_below(figure, axes[0], 10)
    _write(figure, path)


def panels(label: str, card: Scorecard, path: Path) -> None:
    """Draw each step's records on the two leading components of each part."""
    rows = [name for name in PANELS if _array(card, label, name) is not None]
    labels = card.arrays["label"]
    shown = _shown(len(card.arrays[f"{label}/anatomy/{rows[0]}"]))
    size = (2.1 * len(shown) + 0.6, 2.2 * len(rows) + 0.3)
    figure, axes = pyplot().subplots(len(rows), len(shown), figsize=size, squeeze=False)
    for line, name in zip(axes, rows, strict=True):
        place = card.arrays[f"{label}/anatomy/{name}"]
        share = card.arrays[f"{label}/anatomy/{name}_share"]
        for t, axis in zip(shown, line, strict=True):
            _panel(axis, place[t], share[t], labels)
        line[0].set_ylabel(f"{PANELS[name]}\nPC2", fontsize=8)
    for t, axis in zip(shown, axes[0], strict=True):
        axis.set_title(f"step {t + 1}", fontsize=9)
    figure.suptitle(label, fontsize=10)
    _legend_below(figure, axes[0, 0], 10, markerscale=2.5)
    _write(figure, path)


def _panel(axis: Any, place: np.ndarray, share: np.ndarray, labels: Any) -> None:
    axis.tick_params(labelsize=6)
    if not place.any():  # nothing moves between records
        axis.plot([0], [0], "x", color=INK, markersize=7)
        axis.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[0], yticks=[0])
        axis.set_xlabel("one point: the same\nfor all records", fontsize=7)
        return
    for i, own in enumerate(np.unique(labels)):
        points = place[labels == own]
        look = {"color": COLOURS[i % 6], "marker": MARKERS[i % 6], "alpha": 0.6}
        axis.scatter(*points.T, s=5, linewidths=0, label=f"class {own}", **look)
    told = np.nan_to_num(share)
    axis.set_xlabel(f"PC1 ({told[0]:.0%}; PC2 {told[1]:.0%})", fontsize=7)
    axis.margins(0.1)
    for one in (axis.xaxis, axis.yaxis):  # no common factor beside the axis
        one.set_major_locator(pyplot().MaxNLocator(3))
        one.set_major_formatter(lambda value, at: f"{value:.2g}".replace("e+0", "e"))


def components(label: str, card: Scorecard, path: Path) -> None:
    """Draw the |cosine| of each leading component with the perturbation, by step."""
    cosine = card.arrays[f"{label}/anatomy/pc_cosine"]
    share = card.arrays[f"{label}/anatomy/pc_share"]
    shown = _shown(len(cosine))
    figure, axes = _rows(len(shown), (2.8, 2.6), "|cosine|, share", sharey=True)
    at = np.arange(1, 1 + cosine.shape[1])
    own = "|cosine| of the component with the first record's perturbation"
    upto = "share of the gradients' variance up to the component"
    for t, axis in zip(shown, axes, strict=True):
        axis.bar(at, cosine[t], width=1, color=COLOURS[0], label=own)
        axis.plot(at, np.cumsum(share[t]), color=COLOURS[1], linewidth=1.5, label=upto)
        axis.set(title=f"step {t + 1}", ylim=(0, 1.03))
    figure.supxlabel(f"{label}: principal component of the records' gradients")
    _legend_below(figure, axes[0], 2)
    _write(figure, path)


def _if(names: Callable[[Scorecard], list[str]]) -> Callable[[Scorecard], bool]:
    return lambda card: card.scenario.get("game") == "anatomy" and bool(names(card))


FIGURES = {
    "step_norms.png": (_if(partial(_having, name="base_norm")), norms),
    "step_progress.png": (_if(_with_steps), progress),
    "step_cosines.png": (_if(partial(_having, name="cos_base")), alignment),
}
OF_EACH = {  # one figure a defense: the array it needs, and who draws it
    "step_pca": ("pca_base", panels),
    "step_histogram": ("cos_base", cosines),
    "step_components": ("pc_cosine", components),
}


def of_each(card: Scorecard) -> dict[str, Callable[[Scorecard, Path], None]]:
    """Return file name -> drawing of the figures that show one defense each."""
    return {
        f"{word}_{label}.png": partial(draw, label)
        for word, (name, draw) in OF_EACH.items()
        for label in _having(card, name)
        if card.scenario.get("game") == "anatomy"
    }
