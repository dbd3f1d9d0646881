"""One self-contained HTML file from a template: escaped, no network, small pictures.

Everything a template shows is escaped by jinja2, and the page's own policy lets no
script run but ours (by its hash) and nothing be loaded from anywhere: two locks.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from audit.scorecard.view import Column, Line

HERE = Path(__file__).parent / "templates"
MOST_BYTES = 2_000_000  # of a page
PICTURES = 1_300_000  # of these, at most, are pictures
_POWER = re.compile(r"10\^(-?[\d.]+(?:e[+-]?\d+)?)")
_LEADING = re.compile(r"-?\d*\.?\d+(?:e[+-]?\d+)?")
FAR = 1e10


@cache
def _templates() -> Environment:
    env = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    env.loader = FileSystemLoader(HERE)
    env.filters["sort_value"] = sort_value
    env.filters["json"] = partial(json.dumps, indent=1, ensure_ascii=False)
    return env


def render(template: str, title: str, **shown: Any) -> str:
    """Return a page; whatever is shown and is not our own markup is escaped."""
    script = (HERE / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
    )
    css = Markup((HERE / "page.css").read_text())
    page = {"title": title, "policy": policy, "script": Markup(script), "css": css}
    return _templates().get_template(template).render(**page, **shown)


def beside(folder: Path, name: str) -> Path | None:
    """Return the file `name` in `folder`, or None: not there, or a link out of it."""
    path = folder / name
    inside = Path(name).name == name and path.resolve().parent == folder.resolve()
    return path if inside and path.is_file() else None


FRAGMENT = Markup(
    '<div style="max-width: 75em"><table><thead><tr>{head}</tr></thead>'
    "<tbody>{rows}</tbody></table><small>{notes}</small></div>"
)


def fragment(
    columns: Sequence[Column], lines: Sequence[Line], notes: Sequence[str]
) -> str:
    """Return a table and its notes as HTML for a notebook's cell, all of it escaped."""

    def cells(tag: str, texts: Iterable[str]) -> Markup:
        return Markup("").join(
            Markup("<{0}>{1}</{0}>").format(Markup(tag), text) for text in texts
        )

    rows = (cells("td", (c.cell(line) for c in columns)) for line in lines)
    return FRAGMENT.format(
        head=cells("th", (c.header for c in columns)),
        rows=Markup("").join(Markup("<tr>{}</tr>").format(row) for row in rows),
        notes=Markup("<br>").join(notes),
    )


def figures(folder: Path) -> list[str]:
    """Return the names of the figures in a card's folder."""
    return sorted(p.name for p in folder.glob("*.png") if beside(folder, p.name))


class Album:
    """Pictures for one page, until there is no room left."""

    def __init__(self, room: int = PICTURES) -> None:
        self.room = room
        self.full = False  # something did not fit

    def picture(self, path: Path, width: int = 900) -> str | None:
        """Return a figure as a small data URI, or None if it does not fit any more."""
        from PIL import Image

        try:
            with Image.open(path, formats=("PNG",)) as file:
                image = file.convert("RGB")
        except (OSError, ValueError, Image.DecompressionBombError):
            return None
        if image.width > width:
            height = max(1, round(image.height * width / image.width))
            fine = Image.Resampling.LANCZOS
            image = image.resize((width, height), fine, reducing_gap=2.0)
        # a median cut spends its colours on the commonest and merges the curves'
        few = image.quantize(
            40, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        return self._kept(_png(few))

    def pixels(self, values: np.ndarray) -> str | None:
        """Return one image [H, W, C] in [0, 1], or wider, clipped, as a data URI."""
        from PIL import Image

        clipped = np.clip(np.nan_to_num(np.asarray(values, np.float32)), 0, 1)
        levels = np.round(clipped * 255).astype(np.uint8)
        grey = levels.shape[-1] == 1
        return self._kept(_png(Image.fromarray(levels[..., 0] if grey else levels)))

    def _kept(self, raw: bytes) -> str | None:
        uri = f"data:image/png;base64,{base64.b64encode(raw).decode()}"
        if len(uri) > self.room:
            self.full = True
            return None
        self.room -= len(uri)
        return uri


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def sort_value(text: str) -> float | None:
    """Return what a cell is sorted by: None where it holds no number.

    Monotone in the number, and still apart where a float is not: 10^-4322 < 10^-44.
    """
    power = _POWER.match(text)
    if power:
        return FAR + float(power[1])
    number = _LEADING.match(text)
    if number is None:
        return math.inf if text.startswith("inf") else None
    value = float(number[0])
    if value == 0:
        return 0.0
    return math.copysign(FAR + math.log10(abs(value)), value)
