"""Names beside what is drawn, instead of a legend: of lines, and of points."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.report.figures.common import INK, MUTED, PAPER, SMALL

Box = tuple[float, float, float, float]  # left, bottom, right, top; points


def label_ends(axis: Any) -> None:
    """Write every line's label at its right end, apart from each other.

    Called when the limits stand. A thin line in the colour of the curve leads from its
    end to its name, which is in ink, so that all names are equally legible.
    """
    lines = {line.get_label(): line for line in axis.get_lines()}
    for container in axis.containers:  # of curves with error bars
        if container.get_label() and container[0] is not None:
            lines[container.get_label()] = container[0]
    ends = {}
    place = axis.transScale + axis.transLimits
    for label, line in lines.items():
        drawn = np.column_stack(line.get_data()).astype(float)
        if line.get_transform() is not axis.transData:  # a level, from side to side
            drawn[:, 0] = axis.get_xlim()
        drawn = drawn[np.isfinite(drawn).all(1)]
        if len(drawn) and not label.startswith("_"):
            ends[label] = place.transform(drawn[-1]), line.get_color()
    gap = 1.45 * SMALL / (72 * 0.8 * _height(axis))
    order = sorted(ends, key=lambda label: ends[label][0][1])
    heights = spread([float(np.clip(ends[k][0][1], 0, 1)) for k in order], gap)
    both = {"xycoords": "axes fraction", "textcoords": "axes fraction"}
    style = {"va": "center", "fontsize": SMALL, "annotation_clip": False, **both}
    for label, height in zip(order, heights, strict=True):
        end, colour = ends[label]
        spot = tuple(np.clip(end, 0, 1))  # where the curve leaves the panel
        leader = {"arrowstyle": "-", "color": colour, "lw": 1, "shrinkA": 0}
        axis.annotate(
            label, spot, (1.06, height), arrowprops=leader, color=INK, **style
        )


def _height(axis: Any) -> float:
    """Return about how many inches high a panel is."""
    grid = axis.get_subplotspec()
    rows = 1 if grid is None else grid.get_gridspec().nrows
    return axis.figure.get_figheight() / rows


def spread(heights: list[float], gap: float) -> list[float]:
    """Return rising heights moved as little as need be to be `gap` apart.

    Neighbours that are too close share out around their mean, as often as that makes
    new neighbours.
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1:
            low, high = groups[-2:]
            top = np.mean(low) + gap * (len(low) - 1) / 2
            bottom = np.mean(high) - gap * (len(high) - 1) / 2
            if bottom - top >= gap:
                break
            groups[-2:] = [low + high]
    return [
        float(np.mean(group) + gap * (i - (len(group) - 1) / 2))
        for group in groups
        for i in range(len(group))
    ]


def key(axis: Any, names: dict[str, tuple[float, str]]) -> None:
    """Write names in the corner under a ROC, in the order of the curves' heights.

    Args:
      axis: a panel whose lower right corner is empty, as chance is its diagonal.
      names: of a curve -> its height, and its colour ("": that of the ink).
    """
    order = sorted(names, key=lambda name: -names[name][0])
    step = 1.35 * SMALL / (72 * 0.75 * _height(axis))
    for nth, name in enumerate(reversed(order)):
        spot, colour = (0.98, 0.03 + nth * step), names[name][1] or INK
        style = {"ha": "right", "va": "bottom", "fontsize": SMALL, "color": INK}
        axis.text(*spot, f"{name}  ", transform=axis.transAxes, **style)
        dash = {"transform": axis.transAxes, "clip_on": False}
        middle = spot[1] + step / 2.6
        axis.plot([0.975, 1.01], [middle] * 2, color=colour, lw=2.5, **dash)


# where a name stands beside its point: (right, up)
AROUND = [(1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1)]


def label_points(axis: Any, points: Iterable[tuple[str, float, float]]) -> None:
    """Write names beside points (name, x, y), where they cover no point and no name.

    Called when the limits stand and levels and error bars are drawn, which names avoid
    too. Sizes of names are estimated; a name for which there is no room close by stands
    farther off, with a line to its point. Fainter points shine through under a name.
    """
    size = _width(axis) * 72 * 0.8, _height(axis) * 72 * 0.75
    place = axis.transScale + axis.transLimits
    spots = [(name, at, place.transform(at) * size) for name, *at in points]
    taken: list[Box] = [(x - 3, y - 3, x + 3, y + 3) for _, _, (x, y) in spots]
    taken += _lines(axis, place, size)
    sheet = {"boxstyle": "square,pad=0.05", "fc": PAPER, "alpha": 0.75, "lw": 0}
    for label, at, (x, y) in spots:
        wide, high = 0.56 * SMALL * len(label), 1.25 * SMALL
        offers = []
        for far in (1, 2.2, 3.6, 5):
            for right, up in AROUND:
                left = x + right * 6 * far - (wide if right < 0 else 0)
                left -= 0 if right else wide / 2
                middle = y + up * (high * 0.75) * far
                box = left, middle - high / 2, left + wide, middle + high / 2
                offers.append((box, far))
        box, far = min(offers, key=lambda o: (_overlap(o[0], taken, size), o[1]))
        taken.append(box)
        text = (box[0] - x, (box[1] + box[3]) / 2 - y)
        leader = {"arrowstyle": "-", "color": MUTED, "lw": 0.6, "shrinkA": 0}
        axis.annotate(
            label, at, text, textcoords="offset points", va="center",
            fontsize=SMALL, color=INK, annotation_clip=False, bbox=sheet,
            arrowprops=leader if far > 1 else None,
        )  # fmt: skip


def _lines(axis: Any, place: Any, size: tuple[float, float]) -> list[Box]:
    """Return boxes around the levels and the error bars of a panel."""
    levels = [v for v in axis.get_lines() if v.get_transform() is not axis.transData]
    ends = [np.column_stack([axis.get_xlim(), v.get_ydata()]) for v in levels]
    for container in axis.containers:
        ends += [bar for each in container[2] for bar in each.get_segments()]
    corners = [place.transform(both) * size for both in ends]
    return [(*(c.min(0) - 1), *(c.max(0) + 1)) for c in corners]


def _width(axis: Any) -> float:
    """Return about how many inches wide a panel is."""
    grid = axis.get_subplotspec()
    columns = 1 if grid is None else grid.get_gridspec().ncols
    return axis.figure.get_figwidth() / columns


def _overlap(box: Box, taken: list[Box], size: tuple[float, float]) -> float:
    """Return the area of a box that is taken already or outside the panel."""
    inside = _common(box, (0, 0, size[0], size[1]))
    covered = sum(_common(box, other) for other in taken)
    return covered + _common(box, box) - inside


def _common(a: Box, b: Box) -> float:
    """Return the area that two boxes share."""
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, wide) * max(0.0, high)
