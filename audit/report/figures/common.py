"""Figures of one scorecard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from audit.report import columns as cells
from audit.scorecard.card import Scorecard

INK, MUTED = "#222222", "#888888"
# Okabe-Ito, told apart with any colour vision
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

PANELS_A_ROW = 4  # as many as a page shows legibly


def pyplot() -> Any:
    """Return pyplot, drawing to files only."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def reconstructions(card: Scorecard, path: Path) -> None:
    """Draw targets, then one row a defense (its strongest attack), the floor last.

    The layout of Edmunds (2024), Figure 3.3. Guesses are the first run's.
    """
    plt = pyplot()
    shown = targets_to_draw(card)
    rows = [("target", "", card.arrays["target"])]
    for label in card.defenses:
        best = cells.strongest(card, label)
        if best is None:
            continue
        guesses = card.arrays[f"{label}/{best['attack']}/guess"]
        said = f"{best['attack']}\nMSE {best['result']['mse']:.4f}"
        rows.append((label, said, guesses))
    rows.append(
        (
            "floor",
            f"class mean\nMSE {card.floor['mse']:.4f}",
            card.arrays["floor_guess"],
        )
    )
    size = (1.9 + 0.8 * len(shown), 0.85 * len(rows) + 0.4)
    figure, axes = plt.subplots(len(rows), len(shown), figsize=size, squeeze=False)
    for line, (label, said, images) in zip(axes, rows, strict=True):
        for axis, i in zip(line, shown, strict=True):
            image(axis, images[i])
        text = f"{label}\n{said}".strip()
        line[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8)
    figure.subplots_adjust(
        left=1.8 / size[0], right=0.995, top=0.99, bottom=0.01, wspace=0.06, hspace=0.06
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save(figure: Any, path: Path) -> None:
    """Lay a figure out, write it and forget it."""
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot().close(figure)


def panels(
    count: int,
    size: tuple[float, float],
    ylabel: str,
    a_row: int = PANELS_A_ROW,
    **given: Any,
) -> tuple[Any, Any]:
    """Return a figure and its panels, [count].

    Args:
      count: of panels.
      size: of one, in inches.
      ylabel: of the first panel of each row.
      a_row: at most, beside each other.
      **given: as `pyplot.subplots` takes it.
    """
    columns = min(count, a_row)
    rows = -(-count // columns)
    figure, axes = pyplot().subplots(
        rows,
        columns,
        figsize=(size[0] * columns, size[1] * rows),
        squeeze=False,
        **given,
    )
    for axis in axes.flat[count:]:
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel(ylabel)
    return figure, axes.flat[:count]


def few_labels(axis: Any) -> None:
    """Label a logarithmic x axis so that labels do not run into each other."""
    from matplotlib import ticker

    place: ticker.Locator
    low, high = axis.get_xlim()
    if high < 10 * low:
        near = ticker.MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        place = ticker.FixedLocator([tick for tick in near if low <= tick <= high])
    elif high < 100 * low:
        place = ticker.LogLocator(subs=(1, 2, 5))
    else:
        place = ticker.LogLocator(numticks=6)
    axis.xaxis.set_major_locator(place)
    if high < 100 * low:  # powers of ten would be one or none
        axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(ticker.NullFormatter())


def means(axis: Any, points: Any, label: str, colour: str) -> None:
    """Draw means, in order of x, with their intervals; points: [n, (x, mean, half)]."""
    held = np.asarray(sorted(points), float).reshape(-1, 3)
    axis.errorbar(*held.T, fmt="o-", ms=4, capsize=3, color=colour, label=label)


def image(axis: Any, pixels: np.ndarray) -> None:
    """Draw one image [H, W, C], clipped to [0, 1], without a frame."""
    pixels = np.clip(np.asarray(pixels, np.float32), 0, 1)
    grey = pixels.shape[-1] == 1
    axis.set_axis_on()
    axis.imshow(pixels[..., 0] if grey else pixels, cmap="gray", vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


def mse_vs_bound(card: Scorecard, path: Path) -> None:
    """Scatter every target's error against its bounds, log-log, with the floor drawn.

    One panel a bound. Targets whose bound is below the panel stand at its left edge; a
    bound too small for any axis is named instead.
    """
    plt = pyplot()
    known = cells.bound_names(card)
    names = [n for n in known if any(_has(card, d, n) for d in card.defenses)]
    width = 4.0 * max(1, len(names))
    figure, axes = plt.subplots(
        1, max(1, len(names)), figsize=(width, 4.2), squeeze=False
    )
    handles: dict[str, Any] = {}
    for axis, name in zip(axes[0], names, strict=False):
        handles |= _panel(axis, card, name)
    if not names:
        axes[0, 0].text(0.5, 0.5, "no defense here has a bound", ha="center")
        axes[0, 0].axis("off")
    figure.legend(
        handles.values(),
        handles,
        loc="lower center",
        ncols=6,
        frameon=False,
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=150)
    plt.close(figure)


LEAST = 1e-5  # the smallest bound a panel shows in its place


def _has(card: Scorecard, defense: str, bound: str) -> bool:
    return f"{defense}/{bound}" in card.arrays


def _points(card: Scorecard, name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return defense -> (bound, error of the strongest attack), each [targets]."""
    out = {}
    for label in card.defenses:
        best = cells.strongest(card, label)
        if best is not None and _has(card, label, name):
            mse = card.arrays[f"{label}/{best['attack']}/mse"]
            out[label] = np.broadcast_to(card.arrays[f"{label}/{name}"], mse.shape), mse
    return out


def _panel(axis: Any, card: Scorecard, name: str) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    points = _points(card, name)
    errors = np.concatenate(
        [mse for _, mse in points.values()] or [card.arrays["floor"]]
    )
    low, high = errors.min() / 2, max(errors.max(), card.floor["mse"]) * 2
    seen = np.concatenate([b for b, _ in points.values()] or [np.array([])])
    seen = seen[(seen > LEAST) & np.isfinite(seen)]
    left = seen.min() / 2 if len(seen) else low
    right = max(seen.max() * 2 if len(seen) else high, 2 * left)
    colours = dict(zip(card.defenses, _cycle(), strict=False))
    for label, (bound, mse) in points.items():
        if bound.max() <= LEAST:
            _off_scale(axis, card, label, name, colours[label])
            continue
        handles[label] = axis.scatter(
            np.maximum(bound, left),
            mse,
            s=8,
            alpha=0.6,
            color=colours[label],
            linewidths=0,
        )
    axis.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
    few_labels(axis)
    axis.set_ylabel("MSE of the strongest attack")
    axis.set_xlabel(f"{cells.SHORT.get(name, name)} (bound on MSE)")
    bounds = [
        b for d in card.defenses.values() for b in d["bounds"] if b["name"] == name
    ]
    axis.set_title(bounds[0]["holds_for"], fontsize=8, color=INK)
    floor = axis.axhline(card.floor["mse"], color=MUTED, linestyle="--", linewidth=1)
    handles["floor: ignores the release"] = floor
    ends = [min(left, low), max(right, high)]
    (line,) = axis.plot(ends, ends, color=INK, linewidth=1, scalex=False, scaley=False)
    handles["MSE = bound"] = line
    axis.grid(visible=True, which="major", color="#eeeeee")
    axis.set_axisbelow(True)
    return handles


def _off_scale(axis: Any, card: Scorecard, label: str, name: str, colour: str) -> None:
    """Name a bound that no axis can hold."""
    bound = next(b for b in card.defenses[label]["bounds"] if b["name"] == name)
    axis.text(
        0.03,
        0.95 - 0.07 * len(axis.texts),
        f"{label}: {cells.bound_text(bound)}",
        transform=axis.transAxes,
        color=colour,
        fontsize=8,
        va="top",
    )


def _cycle() -> Any:
    import itertools

    return itertools.cycle(COLOURS)


def _attacked(card: Scorecard) -> bool:
    """Say if each run had one target, and what was rebuilt of it may be shown."""
    return "floor_guess" in card.arrays


FIGURES = {
    "reconstructions.png": (_attacked, reconstructions),
    "mse_vs_bound.png": (_attacked, mse_vs_bound),
}


def targets_to_draw(card: Scorecard, most: int = 10) -> np.ndarray:
    """Return which targets a figure shows: the first of each class in turn."""
    labels = card.arrays["label"]
    ranks = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        ranks[own] = np.arange(len(own))
    return np.lexsort((labels, ranks))[:most]
