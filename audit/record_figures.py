"""Figures of cards on which every record of one training set is the target in turn.

The layouts of Hannun et al. (2021), Figures 2 to 4, and Guo et al. (2022), Figures 2
to 4. Each is a function of the card alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from audit import cells
from audit.figures import COLOURS, INK, MUTED, image, pyplot, save
from audit.scorecard import Scorecard

BINS = 80
WIDE_BINS = 100
ABOVE, BELOW = COLOURS[0], COLOURS[1]
EACH = 8  # images at either end


def _having(card: Scorecard, name: str) -> list[str]:
    """Return the defenses whose arrays hold `name`."""
    return [d for d in card.defenses if f"{d}/{name}" in card.arrays]


def _in_turn(card: Scorecard) -> bool:
    return card.scenario["game"] == "leave_one_out"


def eta_by_class(card: Scorecard, path: Path) -> None:
    """Draw the histogram of eta, a panel a defense, a colour and a mean a class."""
    plt = pyplot()
    names = _having(card, "eta")
    figure, axes = _row(plt, len(names))
    labels = _classes(card)
    for axis, name in zip(axes, names, strict=True):
        eta = card.arrays[f"{name}/eta"]
        middle, spread = eta.mean(), max(np.ptp(eta), 1e-3 * eta.mean())
        low, high = (
            min(eta.min(), middle - spread / 2),
            max(eta.max(), middle + spread / 2),
        )
        bins = np.linspace(low, high, BINS + 1)
        for label, colour in zip(np.unique(labels), COLOURS, strict=False):
            own = eta[labels == label]
            axis.hist(own, bins, color=colour, alpha=0.6, label=f"class {label}")
            axis.axvline(own.mean(), color=colour, linestyle="--", linewidth=1.2)
        axis.set_title(f"{name}: {eta.mean():.3g} ± {eta.std():.2g}", fontsize=9)
        axis.set_xlabel("η of a record")
        axis.ticklabel_format(useOffset=False)
        axis.locator_params(axis="x", nbins=4)
    axes[0].set_ylabel("records")
    axes[0].legend(frameon=False, fontsize=8, title="dashed: mean", title_fontsize=8)
    save(figure, path)


def _classes(card: Scorecard) -> np.ndarray:
    labels = card.arrays["label"]
    return labels if labels.dtype.kind in "iu" else np.zeros(len(labels), int)


def extremes(values: np.ndarray, shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of smallest and largest value [8 each] that have a picture.

    Args:
      values: [n].
      shown: [s] indices of the records that have one.
    """
    order = np.argsort(values, kind="stable")
    ends = order[:EACH], order[::-1][:EACH]
    low, high = (end[np.isin(end, shown)] for end in ends)
    return low, high


def eta_extremes(card: Scorecard, path: Path) -> None:
    """Draw the eight records with the smallest and the largest eta of every defense."""
    plt = pyplot()
    names, shown = _uneven(card), card.arrays["shown"]
    figure, axes = _grid(plt, 2 * len(names))
    for i, name in enumerate(names):
        eta = card.arrays[f"{name}/eta"]
        for line, rows, said in zip(
            axes[2 * i : 2 * i + 2],
            extremes(eta, shown),
            ("smallest", "largest"),
            strict=True,
        ):
            _say(line[0], f"{name}\n{said} η")
            for axis, row in zip(line, rows, strict=False):
                image(axis, card.arrays["shown_x"][_place(shown, row)])
                axis.set_title(f"{eta[row]:.3g}", fontsize=7, pad=2)
    save(figure, path)


def _uneven(card: Scorecard) -> list[str]:
    """Return the defenses under which some records lose more than others."""
    return [
        d
        for d in _having(card, "eta")
        if card.arrays[f"{d}/eta"].std() > 0.01 * card.arrays[f"{d}/eta"].mean()
    ]


def _place(shown: np.ndarray, row: int) -> int:
    return int(np.flatnonzero(shown == row)[0])


def reweighting(card: Scorecard, path: Path) -> None:
    """Draw the spread of eta over the iterations of the reweighting, log axis."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(5, 3.4))
    for name, colour in zip(_having(card, "anatomy/eta_sd"), COLOURS, strict=False):
        spread = card.arrays[f"{name}/anatomy/eta_sd"]
        axis.plot(spread, color=colour, marker="o", markersize=3, label=name)
    axis.set(yscale="log", xlabel="reweighting iteration")
    axis.set_ylabel("standard deviation of η over records")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=8)
    axis.grid(visible=True, color="#eeeeee")
    save(figure, path)


def dfil_histogram(card: Scorecard, path: Path) -> None:
    """Draw the histogram of 1/dFIL on a log axis, beside the Renyi bound."""
    plt = pyplot()
    names = _having(card, "cramer_rao")
    figure, axes = _row(plt, len(names), width=5)
    for axis, name in zip(axes, names, strict=True):
        bound = card.arrays[f"{name}/cramer_rao"]
        bins = np.geomspace(bound.min(), bound.max(), WIDE_BINS + 1)
        axis.hist(bound, bins, color=ABOVE)
        axis.set(xscale="log", xlabel="1/dFIL of a record (bound on MSE, unbiased)")
        axis.set_title(name, fontsize=9)
        if not any(card.scenario["features"].values()):  # pixels in [0, 1]
            axis.axvline(1, color=INK, linestyle=":", linewidth=1.2, label="any guess")
        own = card.defenses[name]
        for claim in own.get("nominal", []):
            if claim["quantity"] == "MSE bound":
                said = "Rényi, published" + ", void here" * bool(claim["void"])
                if claim["value"] < bound.min() / 1e3:
                    axis.plot([], [], " ", label=f"{said}, off the axis")
                    continue
                axis.axvline(
                    claim["value"],
                    color=BELOW,
                    linestyle="--",
                    linewidth=1.2,
                    label=said,
                )
        renyi = [b for b in own["bounds"] if b["name"] == "hammersley_chapman_robbins"]
        for held in renyi:
            said = f"Rényi, valid: {cells.bound_text(held)}"
            if held["mean"] > bound.min() / 1e3:
                axis.axvline(held["mean"], color=INK, linewidth=1.2, label=said)
            else:
                axis.plot([], [], " ", label=f"{said}, off the axis")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=7)
    axes[0].set_ylabel("records")
    save(figure, path)


def _attacked(card: Scorecard) -> list[tuple[str, str]]:
    """Return the (defense, attack) that saw a release with a Cramer-Rao bound."""
    return [
        (t["defense"], t["attack"])
        for t in card.trials
        if t["status"] == "ok"
        and t["use"] != "class_mean"
        and f"{t['defense']}/cramer_rao" in card.arrays
    ]


def mse_vs_bound(card: Scorecard, path: Path) -> None:
    """Scatter every record's mean error against its bound; red = below the bound."""
    plt = pyplot()
    pairs = _attacked(card)
    figure, axes = _row(plt, len(pairs), width=4.4, height=4.2)
    for axis, (defense, attack) in zip(axes, pairs, strict=True):
        bound = card.arrays[f"{defense}/cramer_rao"]
        mse = card.arrays[f"{defense}/{attack}/mse"]
        drawn = np.isfinite(mse) & (mse > 0)
        below = mse < bound
        for points, colour, said in (
            (drawn & ~below, ABOVE, "at or above its bound"),
            (drawn & below, BELOW, "below its bound"),
        ):
            axis.scatter(
                bound[points],
                mse[points],
                s=3,
                color=colour,
                linewidths=0,
                rasterized=True,
                label=f"{said}: {points.sum():,}",
            )
        lost = int((~drawn).sum())
        if lost:
            axis.plot([], [], " ", label=f"zero or not finite: {lost:,}")
        ends = [min(1e-6, bound.min()), max(1e4, bound.max())]
        axis.plot(ends, ends, color=INK, linewidth=1)
        axis.axvline(1, color=INK, linestyle=":", linewidth=1)
        if card.floor["mse"] is not None:
            axis.axhline(card.floor["mse"], color=MUTED, linestyle="--", linewidth=1)
        axis.set(xscale="log", yscale="log", xlim=ends)
        if drawn.any():
            axis.set_ylim(mse[drawn].min() / 3, mse[drawn].max() * 3)
        axis.set_title(f"{attack} on {defense}", fontsize=9)
        axis.set_xlabel("1/dFIL of a record")
        axis.legend(frameon=False, fontsize=7, loc="upper left", markerscale=3)
    axes[0].set_ylabel("mean MSE over releases (dashed: floor)")
    save(figure, path)


def rebuilt(card: Scorecard, path: Path) -> None:
    """Draw the records with the largest and smallest dFIL, and what came of them."""
    plt = pyplot()
    defense, attack = _pictured(card)[0]
    shown, bound = card.arrays["shown"], card.arrays[f"{defense}/cramer_rao"]
    guesses = card.arrays[f"{defense}/{attack}/mean_guess"]
    mse = card.arrays[f"{defense}/{attack}/mse"]
    figure, axes = _grid(plt, 4)
    for i, (rows, said) in enumerate(
        zip(extremes(bound, shown), ("largest dFIL", "smallest dFIL"), strict=True)
    ):
        _say(axes[2 * i][0], f"{said}\n1/dFIL above")
        _say(axes[2 * i + 1][0], f"{attack}\nmean of guesses\nMSE above")
        for column, row in enumerate(rows):
            at = _place(shown, row)
            top, bottom = axes[2 * i][column], axes[2 * i + 1][column]
            image(top, card.arrays["shown_x"][at])
            image(bottom, guesses[at])
            top.set_title(f"{bound[row]:.2g}", fontsize=7, pad=2)
            bottom.set_title(f"{mse[row]:.2g}", fontsize=7, pad=2)
    save(figure, path)


def _pictured(card: Scorecard) -> list[tuple[str, str]]:
    return [
        (defense, attack)
        for defense, attack in _attacked(card)
        if f"{defense}/{attack}/mean_guess" in card.arrays
    ]


def _row(plt: Any, panels: int, width: float = 3.4, height: float = 3.2) -> Any:
    figure, axes = plt.subplots(
        1, panels, figsize=(max(5, width * panels), height), squeeze=False
    )
    return figure, axes[0]


def _grid(plt: Any, rows: int) -> Any:
    size = (1.6 + 0.75 * EACH, 0.95 * rows)
    figure, axes = plt.subplots(rows, EACH, figsize=size, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    return figure, axes


def _say(axis: Any, text: str) -> None:
    axis.text(
        -0.15, 0.5, text, transform=axis.transAxes, ha="right", va="center", fontsize=8
    )


def _with_pictures(card: Scorecard) -> bool:
    return _in_turn(card) and len(card.arrays.get("shown", ())) > 0


FIGURES = {
    "eta_by_class.png": (
        lambda c: _in_turn(c) and bool(_having(c, "eta")),
        eta_by_class,
    ),
    "eta_extremes.png": (
        lambda c: _with_pictures(c) and bool(_uneven(c)),
        eta_extremes,
    ),
    "reweighting.png": (
        lambda c: bool(_having(c, "anatomy/eta_sd")) and _in_turn(c),
        reweighting,
    ),
    "dfil_histogram.png": (
        lambda c: _in_turn(c) and bool(_having(c, "cramer_rao")),
        dfil_histogram,
    ),
    "mse_vs_bound_records.png": (
        lambda c: _in_turn(c) and bool(_attacked(c)),
        mse_vs_bound,
    ),
    "rebuilt.png": (lambda c: _with_pictures(c) and bool(_pictured(c)), rebuilt),
}
