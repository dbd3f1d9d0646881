"""Figures of cards on which every record of one training set is the target in turn.

Layouts: Figures 2 to 4 of Hannun et al. (2021), and of Guo et al. (2022).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report.figures import common
from audit.scorecard.card import Scorecard
from audit.scorecard.view import bound_text

BINS, WIDE_BINS = 80, 100
ABOVE, BELOW = common.COLOURS[0], common.COLOURS[1]
VALID = {"color": common.INK, "linestyle": "--", "linewidth": 1.2}
EACH = 8  # images at either end
ENDS = "largest", "smallest"
RENYI = "hammersley_chapman_robbins"
FAR = 1e3  # a line this many times below every record is named, not drawn


def _having(card: Scorecard, name: str) -> list[str]:
    """Return the defenses with an array `name` that holds anything to draw."""
    if card.scenario.get("game") not in ("leave_one_out", "anatomy"):
        return []
    values = {d: card.arrays.get(f"{d}/{name}", np.array(0)) for d in card.defenses}
    return [d for d, array in values.items() if _drawable(array).any()]


def _drawable(values: np.ndarray) -> np.ndarray:
    """Return which values have a place on a log axis."""
    return np.isfinite(values) & (values > 0)


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


def eta_by_class(card: Scorecard) -> Any:
    """Draw the histogram of eta: a panel for each defense, a colour for each class."""
    names, labels = _having(card, "eta"), card.arrays.get("label", np.array(0.0))
    labels = labels if labels.dtype.kind in "iu" else np.array("all")
    figure, axes = common.panels(len(names), (3.0, 3.2), "records", "η of a record")
    for axis, name in zip(axes, names, strict=True):
        eta = card.arrays[f"{name}/eta"]
        finite = np.isfinite(eta)
        offset, wide, edges = eta_bins(eta[finite])
        unit = 10.0 ** np.floor(np.log10(edges[-1])) if offset else 1.0
        for label, look in common.looks(np.unique(labels)).items():
            values = (eta[finite & (labels == label)] - offset) / unit
            axis.hist(values, edges / unit, **look.bars(label=str(label)))
            if len(values):
                axis.axvline(values.mean(), **{**VALID, "color": look.color})
        title = f"{name}: {eta[finite].mean():.3g} ± {eta[finite].std():.2g}"
        axis.set_title(title, **common.TITLE)
        if offset:
            axis.set_xlabel(f"(η of a record − {offset:.6g}) / {unit:.0e}")
        axis.set_xscale("log" if wide else "linear")
        if not wide:
            axis.locator_params(axis="x", nbins=4)
        rest = {"not finite": int((~finite).sum())}
        _legend(axis, rest, title="class (dashed: mean)", ncols=2)
    return figure


def extremes(values: np.ndarray, shown: np.ndarray) -> list[np.ndarray]:
    """Return the records of smallest and largest value [8 each] that have a picture.

    Among the values [n], nan is neither small nor large; shown: indices of records.
    """
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    ends = order[:EACH], order[::-1][:EACH]
    return [end[np.isin(end, shown)] for end in ends]


def eta_extremes(card: Scorecard) -> Any:
    """Draw the eight records with the smallest and the largest eta of every defense."""
    names, shown = _uneven(card), card.arrays["shown"]
    picture = dict(zip(shown.tolist(), card.arrays["shown_x"], strict=True))
    texts = [f"{d}\n{end} η" for d in names for end in ("smallest", "largest")]
    figure, lines = common.image_rows(texts, EACH)
    for eta in (card.arrays[f"{d}/eta"] for d in names):
        for rows in extremes(eta, shown):
            line = next(lines)
            for column, row in enumerate(rows):
                common.image(line, column, picture[row], below=f"{eta[row]:.3g}")
    return figure


def dfil_extremes(card: Scorecard) -> Any:
    """Draw the eight records with the largest and the smallest dFIL, 1/dFIL below.

    The layout of Guo et al. (2022), Figure 6, of the records accounted for.
    """
    names, shown = _leaking(card), card.arrays["shown"]
    picture = dict(zip(shown.tolist(), card.arrays["shown_x"], strict=True))
    texts = [f"{d}\n{end} dFIL\n1/dFIL below" for d in names for end in ENDS]
    figure, lines = common.image_rows(texts, EACH)
    for name in names:
        dfil = card.arrays[f"{name}/dfil"]
        at = card.arrays.get(f"{name}/accounted", np.arange(len(dfil)))
        pictured = np.flatnonzero(np.isin(at, shown))
        for rows in extremes(dfil, pictured)[::-1]:
            line = next(lines)
            for column, row in enumerate(rows):
                text = f"{1 / dfil[row]:.3g}" if dfil[row] else "inf"
                common.image(line, column, picture[at[row]], below=text)
    return figure


def _leaking(card: Scorecard) -> list[str]:
    """Return the defenses whose dFIL differs between records, where nobody guessed."""
    if _guessed(card) or _having(card, "eta"):  # those have pictures of their own
        return []
    each = {d: card.arrays[f"{d}/dfil"] for d in _having(card, "dfil")}
    return [d for d, dfil in each.items() if dfil.std() > 0.01 * dfil.mean() > 0]


def _uneven(card: Scorecard) -> list[str]:
    """Return the defenses under which some records lose more than others."""
    etas = {d: card.arrays[f"{d}/eta"] for d in _having(card, "eta")}
    return [d for d, eta in etas.items() if eta.std() > 0.01 * eta.mean()]


def _pictures(card: Scorecard) -> bool:
    """Return whether a card keeps pictures of some of its records."""
    return all(np.size(card.arrays.get(name, ())) for name in ("shown", "shown_x"))


def reweighting(card: Scorecard) -> Any:
    """Draw the spread of eta over the iterations of the reweighting, log axis."""
    labels = "standard deviation of η over records", "reweighting iteration"
    figure, (axis,) = common.panels(1, (5, 3.4), *labels)
    look, name = common.looks(card.defenses), "anatomy/eta_sd"
    for label in _having(card, name):
        axis.plot(card.arrays[f"{label}/{name}"], label=label, **look[label].line())
    axis.set_yscale("log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(**common.LEGEND)
    return figure


def dfil_histogram(card: Scorecard) -> Any:
    """Draw the histogram of 1/dFIL on a log axis, beside the Renyi bounds."""
    names, labels = _having(card, "cramer_rao"), ("records", "1/dFIL (bound on MSE)")
    figure, axes = common.panels(len(names), (3.05, 3.8), *labels)
    for axis, name in zip(axes, names, strict=True):
        bound, defense = card.arrays[f"{name}/cramer_rao"], card.defenses[name]
        drawn = bound[_drawable(bound)]
        low, high = drawn.min(), drawn.max()
        if high < 10 * low:  # nearly alike: room on either side, and a tick to read
            low, high = low / 4, high * 4
        axis.hist(drawn, np.geomspace(low, high, WIDE_BINS + 1), color=ABOVE)
        axis.set_xscale("log")
        axis.set_title(name, **common.TITLE)
        axis.xaxis.set_minor_formatter("")
        for b in (b for b in defense.bounds if b.name == RENYI):
            _mark(axis, b.mean, low, f"Rényi bound {bound_text(b)}", **VALID)
        for claim in (c for c in defense.nominal if c.quantity == "MSE bound"):
            text = "Rényi bound as published" + ", void here" * bool(claim.void)
            _mark(axis, claim.value, low, text, **common.FLOOR)
        _mark_any_guess(axis, card)
        _legend(axis, {"1/dFIL zero or not finite": len(bound) - len(drawn)})
    return figure


def _mark(axis: Any, value: float | str, low: float, text: str, **look: Any) -> None:
    """Draw an upright line, or name it where it is far below `low` or no number."""
    if low / FAR <= float(value) < np.inf:
        axis.axvline(float(value), label=text, **look)
    else:
        axis.plot([], [], " ", label=f"{text} (off the axis)")


def _mark_any_guess(axis: Any, card: Scorecard) -> None:
    """Mark 1, which any guess of pixels in [0, 1] stays below."""
    if not any(card.scenario.get("features", {}).values()):
        _mark(axis, 1, 1, "1: any guess does as well", **{**VALID, "linestyle": ":"})


def _attacked(card: Scorecard) -> list[tuple[str, str]]:
    """Return the (defense, attack) that saw a release with a Cramer-Rao bound."""
    return [
        (t.defense, t.attack)
        for t in card.trials
        if t.status == "ok" and t.use != "class_mean"
        if t.defense in _having(card, "cramer_rao")
        if t.defense in _having(card, f"{t.attack}/mse")
    ]


def mse_vs_bound(card: Scorecard) -> Any:
    """Scatter every record's mean error against its bound; red = below the bound."""
    pairs, labels = _attacked(card), ("mean MSE over releases", "1/dFIL of a record")
    figure, axes = common.panels(len(pairs), (4.4, 4.6), *labels)
    for axis, (defense, attack) in zip(axes, pairs, strict=True):
        bound = card.arrays[f"{defense}/cramer_rao"]
        mse = card.arrays[f"{defense}/{attack}/mse"]
        floor = float(card.floor.get("mse") or "nan")
        x, y = _limits(bound, 1e-6, 1e4), _limits(mse, floor / 3, floor * 3)
        axis.set(xscale="log", yscale="log", xlim=x, ylim=y)
        counts = _scatter(axis, bound, mse)
        axis.plot(x, x, label="MSE = bound", scaley=False, **common.DIAGONAL)
        _mark_any_guess(axis, card)
        if floor > 0:
            axis.axhline(floor, label="floor: ignores the release", **common.FLOOR)
        axis.set_title(f"{attack} on {defense}", **common.TITLE)
        _legend(axis, counts, markerscale=3)
    return figure


def _scatter(axis: Any, bound: np.ndarray, mse: np.ndarray) -> dict[str, int]:
    """Draw zero and infinity at an edge; return how many records stand there."""
    sides = {"at or above": (ABOVE, mse >= bound), "below": (BELOW, mse < bound)}
    for side, (colour, points) in sides.items():
        x = np.clip(bound[points], *axis.get_xlim())
        y = np.clip(mse[points], *axis.get_ylim())
        text = f"{side} its bound: {points.sum():,}"
        axis.scatter(x, y, s=3, c=colour, linewidths=0, rasterized=True, label=text)
    missing = np.isnan(bound) | np.isnan(mse)
    edge = ~(missing | _drawable(bound) & _drawable(mse))
    return {
        "of these zero or infinite, at an edge": int(edge.sum()),
        "not a number, not drawn": int(missing.sum()),
    }


def _limits(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Return an axis from `low` to `high`, nan for no matter, widened to the values."""
    drawn = values[_drawable(values)]
    return np.fmin(low, drawn.min() / 3), np.fmax(high, drawn.max() * 3)


def rebuilt(card: Scorecard) -> Any:
    """Draw the records with the largest and smallest dFIL, and what came of them."""
    defense, attack = _guessed(card)[0]
    bound = card.arrays[f"{defense}/cramer_rao"]
    mse = card.arrays[f"{defense}/{attack}/mse"]
    shown, pictures = card.arrays["shown"], card.arrays["shown_x"]
    guesses = card.arrays[f"{defense}/{attack}/mean_guess"]
    place = {row: i for i, row in enumerate(shown.tolist())}
    ends = [f"{end} dFIL\n1/dFIL above" for end in ("largest", "smallest")]
    text = f"{attack}\nmean of guesses\nMSE below"
    figure, lines = common.image_rows([ends[0], text, ends[1], text], EACH)
    for rows in extremes(bound, shown):
        top, bottom = next(lines), next(lines)
        for column, row in enumerate(rows):
            at, above, below = place[row], f"{bound[row]:.2g}", f"{mse[row]:.2g}"
            common.image(top, column, pictures[at], above=above)
            common.image(bottom, column, guesses[at], below=below)
    return figure


def _guessed(card: Scorecard) -> list[tuple[str, str]]:
    """Return the (defense, attack) of which a card keeps mean guesses."""
    return [p for p in _attacked(card) if f"{'/'.join(p)}/mean_guess" in card.arrays]


def _legend(axis: Any, counts: dict[str, int], **look: Any) -> None:
    """Put what there is to say, and records the panel cannot show, under the panel."""
    for text in [f"{k}: {records:,}" for k, records in counts.items() if records]:
        axis.plot([], [], " ", label=text)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 5}
    small = {"fontsize": common.SMALL, "title_fontsize": common.SMALL}
    if axis.get_legend_handles_labels()[0]:
        axis.legend(**common.LEGEND | small | place | look)


FIGURES = {
    "eta_by_class.png": (lambda c: _having(c, "eta"), eta_by_class),
    "eta_extremes.png": (lambda c: _pictures(c) and _uneven(c), eta_extremes),
    "reweighting.png": (lambda c: _having(c, "anatomy/eta_sd"), reweighting),
    "dfil_histogram.png": (lambda c: _having(c, "cramer_rao"), dfil_histogram),
    "mse_vs_bound_records.png": (_attacked, mse_vs_bound),
    "rebuilt.png": (lambda c: _pictures(c) and _guessed(c), rebuilt),
    "dfil_extremes.png": (lambda c: _pictures(c) and _leaking(c), dfil_extremes),
}
