"""What all figures share: colours, panels, legends, error bars, and the files."""

from __future__ import annotations

import io
import re
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

INK, MUTED, GRID, PAPER = "#222222", "#888888", "#eeeeee", "#fdfdfd"
# Okabe-Ito and three of Tol's, told apart with any colour vision
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288",
    "#882255", "#999933",
)  # fmt: skip
HATCHES = ("", "////", "....", "----", "xxxx", "++++", "oooo", "||||", "\\\\\\\\")
LINES = (
    "-", "--", ":", "-.", (0, (5, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)),
    (0, (3, 1, 1, 3)), (0, (1, 1)),
)  # fmt: skip
MARKERS = "os^Dv*PX<"
WIDEST = 9.2  # inches that a page shows at full size: a README, a report, a sheet
PANELS_A_ROW = 4  # as many as a page shows legibly
SMALL = 8  # points, the least of any text
PITCH = 1.07  # from one image of a row to the next, in widths of an image
LEGEND = {"frameon": False, "fontsize": SMALL}
TITLE = {"fontsize": 9}
# how loudly a verdict is said, in the order of colours apart for any eye
LEVELS = {"error": "#a3123a", "warning": "#8a4b00", "note": "#0a58a6"}
DIAGONAL = {"color": INK, "linewidth": 1}
FLOOR = {"color": MUTED, "linestyle": "--", "linewidth": 1}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    **{f"{x}tick.labelsize": SMALL for x in "xy"},
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    **{f"axes.spines.{side}": False for side in ("top", "right")},
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "grid.color": GRID,
    **{f"{x}tick.color": MUTED for x in "xy"},
    **{f"{x}tick.labelcolor": INK for x in "xy"},
}


class Look(NamedTuple):
    """How one of several series is drawn: told apart by colour, and without it."""

    color: str
    hatch: str
    linestyle: Any
    marker: str

    def points(self) -> dict[str, Any]:
        """Return the arguments of `Axes.scatter`."""
        return {"color": self.color, "marker": self.marker}

    def line(self) -> dict[str, Any]:
        """Return the arguments of `Axes.plot`."""
        return {**self.points(), "linestyle": self.linestyle, "markersize": 4}

    def bars(self, label: str) -> dict[str, Any]:
        """Return the arguments of `Axes.hist`."""
        fill = {"color": self.color, "hatch": self.hatch, "alpha": 0.6, "label": label}
        return {**fill, "histtype": "stepfilled", "edgecolor": INK, "linewidth": 0.3}


def looks(names: Iterable[Hashable]) -> dict[Any, Look]:
    """Return a look for every name: the first 81 differ from each other.

    Called with `card.defenses`, it gives a defense the same look in every figure.
    """
    out = {}
    for i, name in enumerate(names):
        turn, i = divmod(i, len(COLOURS))
        other = (turn + i) % len(COLOURS)  # the second round pairs them anew
        out[name] = Look(COLOURS[i], HATCHES[other], LINES[other], MARKERS[other])
    return out


def panels(
    count: int,
    size: tuple[float, float],
    ylabel: str = "",
    xlabel: str = "",
    a_row: int = PANELS_A_ROW,
    **given: Any,
) -> tuple[Any, Any]:
    """Return a figure and its panels, [count], in the style of the suite.

    A panel is `size` inches; at most `a_row` stand side by side, and no more than a
    page shows at full size. Every panel has the `xlabel`, the first of each row the
    `ylabel`. `given` goes to `Figure.subplots`.
    """
    columns = max(1, min(count, a_row, int(WIDEST / size[0])))
    rows = -(-count // columns)
    figure, axes = grid(rows, columns, (size[0] * columns, size[1] * rows), **given)
    for axis in axes.flat[count:]:
        axis.remove()
    for axis in axes.flat[:count]:
        axis.set_xlabel(xlabel)
    for axis in axes[:, 0]:
        axis.set_ylabel(ylabel)
    return figure, axes.flat[:count]


def grid(rows: int, columns: int, size: tuple[float, float], **given: Any) -> Any:
    """Return a figure of `size` inches and its panels, [rows, columns]."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **given)


def image_rows(
    texts: list[str], count: int, words: dict[str, tuple[str, str]] | None = None
) -> tuple[Any, Iterator[Any]]:
    """Return a figure and its rows, a panel for `count` images with a text left of it.

    `words`: text -> the word that stands under it, and its colour.
    """
    size = (1.7 + 0.68 * count, 0.7 * len(texts) + 0.1)
    figure, axes = grid(len(texts), 1, size)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    style = {"textcoords": "offset points", "ha": "right", "fontsize": SMALL}
    for axis, text in zip(axes.flat, texts, strict=True):
        axis.axis("off")
        axis.set(xlim=(0, (count - 1) * PITCH + 1), ylim=(1, 0), aspect="equal")
        word, colour = (words or {}).get(text, ("", INK))
        high = {"va": "bottom"} if word else {"va": "center"}
        axis.annotate(text, (0, 0.64 if word else 0.5), (-6, 0), **style, **high)
        bold = {"va": "top", "weight": "bold", "color": colour}
        axis.annotate(fill(word, 28), (0, 0.7), (-6, 0), **style, **bold)
    return figure, iter(axes.flat)


def image(
    row: Any, column: int, pixels: np.ndarray, above: str = "", below: str = ""
) -> None:
    """Draw an image [H, W, C], clipped to [0, 1], in a column of a row of images."""
    pixels = np.clip(np.asarray(pixels, np.float32), 0, 1)
    grey, left = pixels.shape[-1] == 1, column * PITCH
    look = {"cmap": "gray", "vmin": 0, "vmax": 1, "extent": (left, left + 1, 1, 0)}
    row.imshow(pixels[..., 0] if grey else pixels, **look)
    style = {"textcoords": "offset points", "ha": "center", "fontsize": SMALL}
    if above:
        row.annotate(above, (left + 0.5, 0), (0, 2), va="bottom", **style)
    if below:
        row.annotate(below, (left + 0.5, 1), (0, -2), va="top", **style)


def few_labels(axis: Any) -> None:
    """Label a logarithmic axis (`panel.xaxis`) so that its labels keep apart."""
    from matplotlib import ticker

    place: ticker.Locator
    low, high = axis.get_view_interval()
    if high < 10 * low:
        near = ticker.MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        place = ticker.FixedLocator([tick for tick in near if low <= tick <= high])
    elif high < 100 * low:
        place = ticker.LogLocator(subs=(1, 2, 5))
    else:
        place = ticker.LogLocator(numticks=6)
    axis.set_major_locator(place)
    if high < 100 * low:  # powers of ten would be one or none
        axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def legend(place: Any, axes: Any, **look: Any) -> None:
    """Put one legend of all panels on one of them or on the figure."""
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    if handles:
        place.legend(handles.values(), handles, **LEGEND | look)


def legend_below(figure: Any, columns: int = 4, **look: Any) -> None:
    """Put one legend of all panels under the figure, never over data."""
    legend(figure, figure.axes, loc="outside lower center", ncols=columns, **look)


TIES = "flat stretch: tied scores, which no threshold tells apart"


def save(figure: Any, path: Path) -> None:
    """Write a figure as a PNG file."""
    figure.savefig(path, dpi=150, bbox_inches="tight", format="png")


# what a page's style sheet calls each colour, so that plots follow the reader's theme
THEME = {INK: "--ink", MUTED: "--muted", GRID: "--line", PAPER: "--soft"}
THEME |= {colour.lower(): f"--c{i}" for i, colour in enumerate(COLOURS)}
THEME |= dict(zip(LEVELS.values(), ("--error", "--warn", "--calm"), strict=True))
AS_TEXT: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "audit"}
PIXELS = 1.45  # of a page per point: text of 8 points is legible
HOVER = "title:"  # of an artist whose name a page shows where a reader points


def hover(artist: Any, text: str) -> None:
    """Show `text` where a reader of the page points at `artist`."""
    artist.set_gid(HOVER + text)


def svg(figure: Any, title: str) -> Markup:
    """Return a figure as one SVG element of a page: escaped, in the page's colours.

    The style sheet is left out, as it reaches beyond the element; so are clip paths,
    whose names would: what they clip stands in an `svg` of the panel's size instead.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for axis in (one for panel in figure.axes for one in (panel.xaxis, panel.yaxis)):
        if axis.get_scale() == "log":
            axis.set_major_formatter("{x:g}")
    file = io.StringIO()
    with rc_context(AS_TEXT):
        look: dict[str, Any] = {"transparent": True, "metadata": {"Title": title}}
        figure.savefig(file, format="svg", bbox_inches="tight", **look)
    drawn = file.getvalue()
    wide = re.search(r'viewBox="0 0 ([\d.]+)', drawn)
    size = f"width: {float(wide[1]) * PIXELS:.0f}px" if wide else ""
    drawn = re.sub(r".*?<svg [^>]*viewBox",
                   f'<svg class="plot" role="img" style="{size}" viewBox',
                   drawn, count=1, flags=re.S)  # fmt: skip
    drawn = _clipped(drawn)
    for gone in ("metadata", "style", "clipPath"):  # a sheet styles the whole page
        drawn = re.sub(f"<{gone}.*?</{gone}>", "", drawn, flags=re.S)
    drawn = re.sub(r' clip-path="[^"]*"', "", drawn)
    drawn = re.sub(f'<g id="{HOVER}([^"]*)">', r"<g><title>\1</title>", drawn)
    drawn = re.sub(r'<g id="[^"]*">', "<g>", drawn)
    drawn = re.sub(r"<g>\s*((?:<use [^>]*>\s*)+)</g>", _shorter, drawn)
    for colour, name in THEME.items():
        drawn = drawn.replace(colour, f"var({name})")
    return Markup(re.sub(r">\s+<", "><", drawn))


def _clipped(drawn: str) -> str:
    """Return a drawing whose clipped parts stand in elements that end where they do."""
    sides = " ".join(rf'{side}="(\S+)"' for side in ("x", "y", "width", "height"))
    panel = rf'<clipPath id="(\w+)">\s*<rect {sides}'
    panels = {name: place for name, *place in re.findall(panel, drawn)}

    def inside(part: re.Match[str]) -> str:
        before, name, rest = part.groups()
        if name not in panels:
            return part[0]
        x, y, width, height = panels[name]
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        view = f'viewBox="{x} {y} {width} {height}"'
        return f"<svg {place} {view}>{before}{rest}</svg>"

    clip = r' ?clip-path="url\(#(\w+)\)"'
    drawn = re.sub(f"(<path[^>]*){clip}([^>]*/>)", inside, drawn)
    return re.sub(f"(<g){clip}(>.*?</g>)", inside, drawn, flags=re.S)


def _shorter(group: re.Match[str]) -> str:
    """Return equal markers with their style said once, and places to .1 point."""
    styles = set(re.findall(r' style="[^"]*"', group[1]))
    if len(styles) != 1:
        return group[0]
    places = re.sub(r' style="[^"]*"', "", group[1])
    places = re.sub(r'="(-?\d+\.\d)\d+"', r'="\1"', places)
    return f"<g{styles.pop()}>{places}</g>"
