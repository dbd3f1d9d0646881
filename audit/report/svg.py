"""Small plots as inline SVG: one look for light and dark, no script, no network.

Colours are classes the page's style sheet fills (`s0` to `s5`), so that a plot follows
the reader's theme; six series have a marker of their own, apart without colour too, and
36 a pair of marker and colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44
LOOKS = 6
# drawn around a point, as SVG path data
MARKERS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",  # circle
    "m-3-3h6v6h-6z",  # square
    "m0-4.2l4 7.2h-8z",  # triangle
    "m0-4.4l4.4 4.4l-4.4 4.4l-4.4-4.4z",  # diamond
    "m-4-1h3v-3h2v3h3v2h-3v3h-2v-3h-3z",  # plus
    "m0 4.2l-4-7.2h8z",  # triangle, down
)


class Axis(NamedTuple):
    """One axis in data units."""

    label: str
    low: float
    high: float
    log: bool = False


class Series(NamedTuple):
    """Points of one look."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: int
    titles: Sequence[str] = ()  # one a point: a tooltip; none for many points
    labels: bool = False  # write each point's title beside it
    line: bool = False  # join the points
    marked: bool = True  # draw the points themselves


class Rule(NamedTuple):
    """A line across the plot."""

    label: str
    y: float | None = None  # level
    diagonal: bool = False  # y = x


def axis(label: str, values: Sequence[float], log: bool = False) -> Axis:
    """Return an axis wide enough for the finite values (positive ones if `log`)."""
    told = [v for v in map(float, values) if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(told), max(told)) if told else (1.0, 10.0)
    if log:
        wide = (high / low) ** 0.06 if high > low else 2.0
        return Axis(label, low / wide, high * wide, log=True)
    gap = 0.08 * (high - low) or max(abs(high), 1e-6) * 0.05
    return Axis(label, low - gap, high + gap)


def ticks(of: Axis) -> list[float]:
    """Return round values on an axis: powers of ten, or 1, 2, 5 times one."""
    if of.log:
        low = math.ceil(math.log10(of.low) - 1e-9)
        high = math.floor(math.log10(of.high) + 1e-9)
        every = max(1, -(-(high - low) // 5))
        found = [10.0**n for n in range(low, high + 1, every)]
        return found if len(found) > 1 else [of.low, of.high]
    rough = (of.high - of.low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(of.low / step - 1e-9)
    return [k * step for k in range(first, math.floor(of.high / step + 1e-9) + 1)]


def plot(
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    rules: Sequence[Rule] = (),
    title: str = "",
) -> Markup:
    """Return an SVG element; points outside the axes stand at the edge."""
    across = _scale(x, LEFT, WIDTH - RIGHT)
    up = _scale(y, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>" if title else "",
        _frame(x, y, across, up),
        *(_rule(r, x, y, across, up) for r in rules),
        *(_series(s, across, up) for s in series),
        "</svg>",
        _legend(series, rules),
    ]
    return Markup("".join(map(str, parts)))


def _scale(of: Axis, low: float, high: float) -> Callable[[float], float]:
    turn = math.log10 if of.log else float
    start, end = turn(of.low), turn(of.high)

    def place(value: float) -> float:
        if of.log and value <= 0:
            return low
        share = (turn(value) - start) / (end - start)
        return low + (high - low) * min(max(share, 0.0), 1.0)

    return place


def _frame(x: Axis, y: Axis, across: Callable, up: Callable) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for value, said in zip(ticks(x), _labels(ticks(x)), strict=True):
        at = across(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
        parts.append(_text(at, bottom + 15, said, "middle"))
    for value, said in zip(ticks(y), _labels(ticks(y)), strict=True):
        at = up(value)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
        parts.append(_text(LEFT - 6, at + 4, said, "end"))
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x.label, "middle", "label"))
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text class="label" text-anchor="middle" '
        f'transform="translate(14 {middle:.1f})rotate(-90)">{escape(y.label)}</text>'
    )
    return "".join(parts)


def _labels(values: list[float]) -> list[str]:
    """Return tick labels with as many digits as tell the ticks apart."""
    for digits in range(1, 9):
        texts = [f"{v:.{digits}g}" for v in values]
        if len(set(texts)) == len(texts):
            break
    return [t.replace("e-0", "e-").replace("e+0", "e+") for t in texts]


def _text(x: float, y: float, said: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(said)}</text>"
    )


def _rule(of: Rule, x: Axis, y: Axis, across: Callable, up: Callable) -> str:
    if of.diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        if low >= high:
            return ""
        d = f"M{across(low):.1f} {up(low):.1f}L{across(high):.1f} {up(high):.1f}"
        return f'<path class="rule" d="{d}"/>'
    assert of.y is not None
    if not y.low <= of.y <= y.high:
        return ""
    d = f"M{LEFT} {up(of.y):.1f}H{WIDTH - RIGHT}"
    return f'<path class="rule dashed" d="{d}"/>'


def _series(of: Series, across: Callable, up: Callable) -> str:
    points = [
        (across(a), up(b))
        for a, b in zip(of.x, of.y, strict=True)
        if not (math.isnan(a) or math.isnan(b))
    ]
    look, marker = _look(of)
    parts = []
    if of.line and points:
        joined = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(f'<path class="line {look}" d="M{joined}"/>')
    if not of.marked:
        return "".join(parts)
    if not of.titles:
        d = "".join(f"M{a:.1f} {b:.1f}{marker}" for a, b in points)
        kind = "many" if len(points) > 60 else "few"
        return "".join(parts) + f'<path class="{kind} {look}" d="{d}"/>'
    for (a, b), said in zip(points, of.titles, strict=True):
        d = f"M{a:.1f} {b:.1f}{marker}"
        parts.append(
            f'<path class="few {look}" d="{d}"><title>{escape(said)}</title></path>'
        )
        if of.labels:
            end = a > WIDTH * 0.75
            name = said.split(":")[0]
            parts.append(_text(a + (-8 if end else 8), b + 4, name, _side(end)))
    return "".join(parts)


def _look(of: Series) -> tuple[str, str]:
    """Return the class of a series' colour and its marker; past six they pair anew."""
    turn, colour = divmod(of.look, LOOKS)
    return f"s{colour}", MARKERS[(colour + turn) % LOOKS]


def _side(end: bool) -> str:
    return "end" if end else "start"


def _legend(series: Sequence[Series], rules: Sequence[Rule]) -> str:
    """Return what the markers and lines mean, as a list under the plot."""
    items = []
    for s in series:
        if s.name and not s.labels:
            look, marker = _look(s)
            mark = (
                f'<svg viewBox="-6 -6 12 12" width="14" height="14" aria-hidden="true">'
                f'<path class="few {look}" d="M0 0{marker}"/></svg>'
            )
            items.append(f"<li>{mark} {escape(s.name)}</li>")
    for r in rules:
        if r.label:
            kind = "rule" if r.diagonal else "rule dashed"
            mark = (
                f'<svg viewBox="0 0 22 12" width="22" height="12" aria-hidden="true">'
                f'<path class="{kind}" d="M0 6H22"/></svg>'
            )
            items.append(f"<li>{mark} {escape(r.label)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""
