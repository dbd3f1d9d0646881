"""Figures of cards on which every record of one training set is the target in turn.

Layouts: Figures 2 to 4 of Hannun et al. (2021), and of Guo et al. (2022).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from audit.report import columns as cells
from audit.report.figures.common import COLOURS, INK, MUTED, image, pyplot, save
from audit.scorecard.card import Scorecard

BINS, WIDE_BINS = 80, 100
ABOVE, BELOW = COLOURS[0], COLOURS[1]
HATCHES, MARKERS = ("", "////", "....", "----", "xxxx", "++++"), "os^Dv*"
LOOKS = tuple(zip(COLOURS, HATCHES, MARKERS, strict=True))  # apart without colour too
FILLED = {"alpha": 0.6, "histtype": "stepfilled", "edgecolor": INK, "linewidth": 0.3}
VALID = {"color": INK, "linestyle": "--", "linewidth": 1.2}
GREY, DOTTED = {**VALID, "color": MUTED, "linewidth": 0.9}, {**VALID, "linestyle": ":"}
EACH, COLUMNS = 8, 4  # images at either end; panels side by side
RENYI = "hammersley_chapman_robbins"
FAR = 1e3  # a line this many times below every record is named, not drawn


def _having(card: Scorecard, name: str) -> list[str]:
    """Return the defenses with an array `name` that holds anything to draw."""
    held = {d: card.arrays.get(f"{d}/{name}", np.array(0)) for d in card.defenses}
    return [d for d, values in held.items() if _drawable(values).any()]


def _drawable(values: np.ndarray) -> np.ndarray:
    """Return which values have a place on a log axis."""
    return np.isfinite(values) & (values > 0)


def _each(items: Any) -> Any:
    return zip(items, LOOKS * len(items), strict=False)


def eta_bins(eta: np.ndarray) -> tuple[float, bool, np.ndarray]:
    """Return (offset, whether the axis is logarithmic, 81 edges) for finite eta [n].

    Values within a thousandth of each other are drawn as what they differ from their
    mean by, the offset; a range of more than a hundred needs a logarithm.
    """
    low, high, middle = float(eta.min()), float(eta.max()), float(eta.mean())
    if high - low > 1e-3 * middle:
        wide = low > 0 and high > 100 * low
        return 0.0, wide, (np.geomspace if wide else np.linspace)(low, high, BINS + 1)
    least = 1e-14 * middle or 1.0  # all alike: one bar in the middle
    low, high = min(low - middle, -least), max(high - middle, least)
    return middle, False, np.linspace(low, high, BINS + 1)


def eta_by_class(card: Scorecard, path: Path) -> None:
    """Draw the histogram of eta, a panel a defense, a colour and a mean a class."""
    names, labels = _having(card, "eta"), card.arrays.get("label", np.array(0.0))
    labels = labels if labels.dtype.kind in "iu" else np.array("all")
    figure, axes = _panels(len(names), "η of a record", "records", height=3.2)
    for axis, name in zip(axes, names, strict=True):
        eta = card.arrays[f"{name}/eta"]
        told = eta[np.isfinite(eta)]
        offset, wide, edges = eta_bins(told)
        unit = 10.0 ** np.floor(np.log10(edges[-1])) if offset else 1.0
        for label, (colour, hatch, _) in _each(np.unique(labels)):
            own = (eta[np.isfinite(eta) & (labels == label)] - offset) / unit
            look = {"color": colour, "hatch": hatch, "label": str(label)}
            axis.hist(own, edges / unit, **look, **FILLED)
            if len(own):
                axis.axvline(own.mean(), color=colour, linestyle="--", linewidth=1.2)
        axis.set_title(f"{name}: {told.mean():.3g} ± {told.std():.2g}", fontsize=9)
        if offset:
            axis.set_xlabel(f"(η of a record − {offset:.6g}) / {unit:.0e}")
        axis.set_xscale("log" if wide else "linear")
        if not wide:
            axis.locator_params(axis="x", nbins=4)
        lost = {"not finite": len(eta) - len(told)}
        _legend(axis, lost, title="class (dashed: mean)", ncols=2)
    save(figure, path)


def extremes(values: np.ndarray, shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of smallest and largest value [8 each] that have a picture.

    Args:
      values: [n]; nan is neither small nor large.
      shown: [s] indices of the records that have one.
    """
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    low, high = order[:EACH], order[::-1][:EACH]
    return low[np.isin(low, shown)], high[np.isin(high, shown)]


def eta_extremes(card: Scorecard, path: Path) -> None:
    """Draw the eight records with the smallest and the largest eta of every defense."""
    names, shown = _uneven(card), card.arrays["shown"]
    picture = dict(zip(shown.tolist(), card.arrays["shown_x"], strict=True))
    ends = "smallest", "largest"
    figure, lines = _grid([f"{d}\n{end} η" for d in names for end in ends])
    for eta in (card.arrays[f"{d}/eta"] for d in names):
        for rows in extremes(eta, shown):
            for axis, row in zip(next(lines), rows, strict=False):
                image(axis, picture[row])
                axis.set_xlabel(f"{eta[row]:.3g}", fontsize=7, labelpad=2)
    save(figure, path)


def _uneven(card: Scorecard) -> list[str]:
    """Return the defenses under which some records lose more than others."""
    held = {d: card.arrays[f"{d}/eta"] for d in _having(card, "eta")}
    return [d for d, eta in held.items() if eta.std() > 0.01 * eta.mean()]


def reweighting(card: Scorecard, path: Path) -> None:
    """Draw the spread of eta over the iterations of the reweighting, log axis."""
    figure, axis = pyplot().subplots(figsize=(5, 3.4))
    for name, (colour, _, marker) in _each(_having(card, "anatomy/eta_sd")):
        spread = card.arrays[f"{name}/anatomy/eta_sd"]
        axis.plot(spread, color=colour, marker=marker, markersize=3, label=name)
    said = "standard deviation of η over records"
    axis.set(yscale="log", xlabel="reweighting iteration", ylabel=said)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=8)
    axis.grid(visible=True, color="#eeeeee")
    save(figure, path)


def dfil_histogram(card: Scorecard, path: Path) -> None:
    """Draw the histogram of 1/dFIL on a log axis, beside the Renyi bounds."""
    names, said = _having(card, "cramer_rao"), "1/dFIL of a record (bound on MSE)"
    figure, axes = _panels(len(names), said, "records", height=3.8)
    for axis, name in zip(axes, names, strict=True):
        bound, own = card.arrays[f"{name}/cramer_rao"], card.defenses[name]
        told = bound[_drawable(bound)]
        low, high = told.min(), told.max()
        if high < 10 * low:  # nearly alike: room on either side, and a tick to read
            low, high = low / 4, high * 4
        axis.hist(told, np.geomspace(low, high, WIDE_BINS + 1), color=ABOVE)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")
        axis.set_title(name, fontsize=9)
        for b in (b for b in own["bounds"] if b["name"] == RENYI):
            _mark(axis, b["mean"], low, f"Rényi bound {cells.bound_text(b)}", **VALID)
        for c in (c for c in own.get("nominal", []) if c["quantity"] == "MSE bound"):
            said = "Rényi bound as published" + ", void here" * bool(c["void"])
            _mark(axis, c["value"], low, said, **GREY)
        _mark_any_guess(axis, card)
        _legend(axis, {"1/dFIL zero or not finite": len(bound) - len(told)})
    save(figure, path)


def _mark(axis: Any, value: float | str, low: float, said: str, **look: Any) -> None:
    """Draw an upright line, or name it where it is far below `low` or no number."""
    if low / FAR <= float(value) < np.inf:
        axis.axvline(float(value), label=said, **look)
    else:
        axis.plot([], [], " ", label=f"{said} (off the axis)")


def _mark_any_guess(axis: Any, card: Scorecard) -> None:
    """Mark 1, which any guess of pixels in [0, 1] stays below."""
    if not any(card.scenario.get("features", {}).values()):
        _mark(axis, 1, 1, "1: any guess does as well", **DOTTED)


def _attacked(card: Scorecard) -> list[tuple[str, str]]:
    """Return the (defense, attack) that saw a release with a Cramer-Rao bound."""
    return [
        (t["defense"], t["attack"])
        for t in card.trials
        if t["status"] == "ok" and t["use"] != "class_mean"
        if t["defense"] in _having(card, "cramer_rao")
        if t["defense"] in _having(card, f"{t['attack']}/mse")
    ]


def sides(bound: np.ndarray, mse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which records [n] are at or above their bound and which below; nan: no."""
    return mse >= bound, mse < bound


def mse_vs_bound(card: Scorecard, path: Path) -> None:
    """Scatter every record's mean error against its bound; red = below the bound."""
    pairs, said = _attacked(card), ("1/dFIL of a record", "mean MSE over releases")
    figure, axes = _panels(len(pairs), *said, height=4.6, width=4)
    for axis, (defense, attack) in zip(axes, pairs, strict=True):
        bound = card.arrays[f"{defense}/cramer_rao"]
        mse = card.arrays[f"{defense}/{attack}/mse"]
        floor = float(card.floor.get("mse") or "nan")
        x, y = _limits(bound, 1e-6, 1e4), _limits(mse, floor / 3, floor * 3)
        axis.set(xscale="log", yscale="log", xlim=x, ylim=y)
        counts = _scatter(axis, bound, mse)
        axis.plot(x, x, color=INK, linewidth=1, label="MSE = bound", scaley=False)
        _mark_any_guess(axis, card)
        if floor > 0:
            axis.axhline(floor, label="floor: ignores the release", **GREY)
        axis.set_title(f"{attack} on {defense}", fontsize=9)
        _legend(axis, counts, markerscale=3)
    save(figure, path)


def _scatter(axis: Any, bound: np.ndarray, mse: np.ndarray) -> dict[str, int]:
    """Draw zero and infinity at an edge; return how many records stand there."""
    each = zip(("at or above", "below"), (ABOVE, BELOW), sides(bound, mse), strict=True)
    for side, colour, points in each:
        x = np.clip(bound[points], *axis.get_xlim())
        y = np.clip(mse[points], *axis.get_ylim())
        said = f"{side} its bound: {points.sum():,}"
        axis.scatter(x, y, s=3, c=colour, linewidths=0, rasterized=True, label=said)
    lost = np.isnan(bound) | np.isnan(mse)
    edge = ~(lost | _drawable(bound) & _drawable(mse))
    said = "of these zero or infinite, at an edge"
    return {said: int(edge.sum()), "not a number, not drawn": int(lost.sum())}


def _limits(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Return an axis from `low` to `high`, nan for no matter, widened to the values."""
    told = values[_drawable(values)]
    return np.fmin(low, told.min() / 3), np.fmax(high, told.max() * 3)


def rebuilt(card: Scorecard, path: Path) -> None:
    """Draw the records with the largest and smallest dFIL, and what came of them."""
    defense, attack = _pictured(card)[0]
    bound = card.arrays[f"{defense}/cramer_rao"]
    mse = card.arrays[f"{defense}/{attack}/mse"]
    shown, pictures = card.arrays["shown"], card.arrays["shown_x"]
    guesses = card.arrays[f"{defense}/{attack}/mean_guess"]
    place = {row: i for i, row in enumerate(shown.tolist())}
    ends = [f"{end} dFIL\n1/dFIL above" for end in ("largest", "smallest")]
    said = f"{attack}\nmean of guesses\nMSE below"
    figure, lines = _grid([ends[0], said, ends[1], said])
    for rows in extremes(bound, shown):
        for top, bottom, row in zip(next(lines), next(lines), rows, strict=False):
            image(top, pictures[place[row]])
            image(bottom, guesses[place[row]])
            top.set_title(f"{bound[row]:.2g}", fontsize=7, pad=2)
            bottom.set_xlabel(f"{mse[row]:.2g}", fontsize=7, labelpad=2)
    save(figure, path)


def _pictured(card: Scorecard) -> list[tuple[str, str]]:
    return [p for p in _attacked(card) if f"{'/'.join(p)}/mean_guess" in card.arrays]


def _panels(count: int, x: str, y: str, height: float, width: float = 3.4) -> Any:
    """Return a figure and `count` axes, at most four a row, `y` said on the left."""
    rows, columns = -(-count // COLUMNS), min(count, COLUMNS)
    figure = pyplot().figure(figsize=(max(5, width * columns), height * rows))
    axes = [figure.add_subplot(rows, columns, 1 + i, xlabel=x) for i in range(count)]
    for axis in axes[::columns]:
        axis.set_ylabel(y)
    return figure, axes


def _grid(texts: list[str]) -> Any:
    """Return a figure and its rows of eight axes, each with its text on the left."""
    size = (1.6 + 0.75 * EACH, 1.12 * len(texts))
    figure, axes = pyplot().subplots(len(texts), EACH, figsize=size, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    look = {"xycoords": "axes fraction", "ha": "right", "va": "center", "fontsize": 8}
    for line, text in zip(axes, texts, strict=True):
        line[0].annotate(text, (-0.15, 0.5), **look)
    return figure, iter(axes)


def _legend(axis: Any, counts: dict[str, int], **look: Any) -> None:
    """Put what there is to say, and records the panel cannot show, under the panel."""
    for said in [f"{k}: {records:,}" for k, records in counts.items() if records]:
        axis.plot([], [], " ", label=said)
    if axis.get_legend_handles_labels()[0]:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 5}
        axis.legend(frameon=False, fontsize=7, title_fontsize=7, **place, **look)


def _if(found: Callable[[Scorecard], Any], *names: str) -> Callable[[Scorecard], bool]:
    """Return whether a card of such a game has the arrays `names` and is `found`."""
    return lambda card: (
        card.scenario.get("game") in ("leave_one_out", "anatomy")
        and all(np.size(card.arrays.get(name, ())) for name in names)
        and bool(found(card))
    )


FIGURES = {
    "eta_by_class.png": (_if(lambda c: _having(c, "eta")), eta_by_class),
    "eta_extremes.png": (_if(_uneven, "shown", "shown_x"), eta_extremes),
    "reweighting.png": (_if(lambda c: _having(c, "anatomy/eta_sd")), reweighting),
    "dfil_histogram.png": (_if(lambda c: _having(c, "cramer_rao")), dfil_histogram),
    "mse_vs_bound_records.png": (_if(_attacked), mse_vs_bound),
    "rebuilt.png": (_if(_pictured, "shown", "shown_x"), rebuilt),
}
