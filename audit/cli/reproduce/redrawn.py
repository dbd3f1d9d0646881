"""A source's figure that draws its tables against each other, with ours beside it."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from audit.cli.reproduce.published import Figure, Panel
from audit.cli.reproduce.verdicts import Verdict
from audit.report.figures import common


def draw(figure: Figure, verdicts: list[Verdict], path: Path) -> None:
    """Draw every panel: published hollow, ours filled where both of its numbers exist.

    Args:
      figure: which tables stand against which.
      verdicts: on the source's numbers, those of the figure's tables among them.
      path: of the image.
    """
    first = _of(verdicts, figure.panels[0].up)[0].listed.quantity
    drawn, axes = common.panels(len(figure.panels), (3.3, 3.3), first)
    # a series keeps its colour in all panels
    colours = dict(zip(_series(verdicts), cycle(common.COLOURS), strict=False))
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes, figure.panels, strict=True):
        handles |= _panel(axis, panel, verdicts, colours)
    axes[0].legend(handles.values(), handles, fontsize=7, frameon=False)
    common.save(drawn, path)


def points(
    panel: Panel, verdicts: list[Verdict]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return series -> (published [n, 2], ours [m <= n, 2]), columns across and up.

    Ours are means over seeds.
    """
    published: dict[str, list[tuple[float, float]]] = {}
    ours: dict[str, list[tuple[float, float]]] = {}
    pairs = zip(_of(verdicts, panel.across), _of(verdicts, panel.up), strict=True)
    for x, y in pairs:
        [series] = _series([x])
        published.setdefault(series, []).append(
            (x.listed.published, y.listed.published)
        )
        own = ours.setdefault(series, [])
        if x.values and y.values:
            own.append((float(np.mean(x.values)), float(np.mean(y.values))))
    return {s: (_pairs(published[s]), _pairs(ours[s])) for s in published}


def _series(verdicts: list[Verdict]) -> list[str]:
    """Return each row's name up to its first comma, once."""
    return list(dict.fromkeys(v.listed.row.split(",")[0] for v in verdicts))


def _pairs(held: list[tuple[float, float]]) -> np.ndarray:
    return np.asarray(held, float).reshape(-1, 2)


def _of(verdicts: list[Verdict], table: str) -> list[Verdict]:
    return [v for v in verdicts if v.listed.table == table]


def _panel(
    axis: Any, panel: Panel, verdicts: list[Verdict], colours: dict[str, str]
) -> dict[str, Any]:
    """Draw one panel; return its legend."""
    handles = {}
    held = points(panel, verdicts)
    for series, (published, ours) in held.items():
        colour = colours[series]
        (handles[f"{series}, published"],) = axis.plot(
            *published.T, "o-", ms=4, lw=0.7, color=colour, mfc="white"
        )
        if len(ours):
            (handles[f"{series}, ours"],) = axis.plot(*ours.T, "s", ms=4, color=colour)
    mine = sum(len(ours) for _, ours in held.values())
    listed = sum(len(published) for published, _ in held.values())
    axis.set_title(f"{panel.title}\nours: {mine} of {listed}", fontsize=9)
    axis.set_xlabel(_of(verdicts, panel.across)[0].listed.quantity, fontsize=8)
    axis.grid(color=common.MUTED, alpha=0.25)
    return handles
