"""`python -m audit report RUN`: one run as one self-contained HTML page."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.errors import UserError
from audit.report import (
    columns as cells,
)
from audit.report import (
    html_template,
    summary,
    target_plots,
    terminal,
)
from audit.report.columns import MARKS, Line
from audit.report.links import beside, figures
from audit.report.markdown import provenance
from audit.scorecard import card as cards
from audit.scorecard import schema
from audit.scorecard.average_seeds import LEVELS
from audit.scorecard.card import Scorecard

PAGE = "report.html"
RUNS = (Path("results/runs"), Path("results"))


class Asked(NamedTuple):
    """The words of the command."""

    folder: Path
    out: Path


def words(given: list[str]) -> Asked:
    """Return the folder of the run and where its page goes.

    RUN is a folder with a scorecard.json, that file, or the name of a folder under
    results/runs or results.

    Raises:
      UserError: naming the word that is wrong.
    """
    runs, out = [], None
    for word in given:
        if word.startswith("out="):
            out = Path(word.removeprefix("out="))
        elif "=" in word or word.startswith("-"):
            raise UserError(f"report takes RUN and out=FILE, not {word!r}")
        else:
            runs.append(word)
    if len(runs) != 1:
        raise UserError(f"report which run? one of {', '.join(known()) or 'none here'}")
    folder = locate(runs[0])
    if out is not None and not out.parent.is_dir():
        raise UserError(f"out={out}: no such folder {out.parent}")
    return Asked(folder, out or folder / PAGE)


def known() -> list[str]:
    """Return the names of the runs here."""
    return sorted({p.parent.name for r in RUNS for p in r.glob("*/scorecard.json")})


def locate(run: str) -> Path:
    """Return the folder of a run.

    Raises:
      UserError: if there is none of that name, with the nearest one.
    """
    path = Path(run)
    places = [path.parent if path.name == "scorecard.json" else path]
    places += [r / run for r in RUNS if path.name == run]
    for place in places:
        if (place / "scorecard.json").is_file():
            return place
    from audit.errors import did_you_mean

    raise UserError(f"no scorecard.json of a run {run!r}{did_you_mean(run, known())}")


def load(folder: Path) -> Scorecard:
    """Return a run's scorecard, checked, with its arrays where they are beside it.

    Raises:
      UserError: if it is no scorecard, or the arrays cannot be read.
    """
    card = schema.load(folder / "scorecard.json")
    arrays: dict[str, np.ndarray] = {}
    held = beside(folder, "scorecard.npz")
    if held is not None:
        try:
            with np.load(held, allow_pickle=False) as file:
                arrays = {k: file[k] for k in file}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"cannot read {held}: {error}") from None
    return card._replace(arrays=arrays)


def render(card: Scorecard, folder: Path) -> str:
    """Return the page.

    Args:
      card: what `load` returned.
      folder: of the run, for the figures in it.
    """
    album = html_template.Album()
    atlas = target_plots.atlas(card, album)
    roc, drawn, left_out = _figures(folder, album)
    columns, lines = cells.columns(card), cells.lines(card)
    return html_template.render(
        "report.html",
        f"{card.scenario['scenario']} on {card.data['name']}: report",
        card=card._replace(arrays={}),
        verdicts=[summary.verdict(line) for line in lines],
        columns=columns,
        rows=[[_cell(c, line) for c in columns] for line in lines],
        notes=terminal.notes(card),
        flags=flags(card),
        scatter=target_plots.scatters(card),
        scatter_said=target_plots.thinned(card),
        roc=roc,
        budget=target_plots.budgets(card),
        figures=drawn,
        left_out=", ".join(left_out),
        atlas=atlas,
        no_atlas=target_plots.why_no_atlas(card),
        provenance=provenance(card.provenance),
        settings=_settings(card),
    )


def _figures(folder: Path, album: html_template.Album) -> tuple[list, list, list[str]]:
    """Return ROC figures, the other figures, and the names of those left out."""
    found: dict[bool, list[dict[str, str]]] = {True: [], False: []}
    left_out = []
    for name in figures(folder):
        uri = album.picture(folder / name, width=1000)
        said = name.removesuffix(".png").replace("_", " ")
        if uri is None:
            left_out.append(name)
        else:
            found["roc" in name].append({"uri": uri, "said": said})
    return found[True], found[False], left_out


def _cell(column: cells.Column, line: Line) -> dict[str, Any]:
    text = column.cell(line)
    return {
        "text": text,
        "label": column.header,
        "right": column.right,
        "sort": html_template.sort_value(text) if column.right else None,
    }


def flags(card: Scorecard) -> list[dict[str, str]]:
    """Return every flag once, errors first, with the rows that raise it."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for t in card.trials:
        for f in t["flags"]:
            key = f["name"], f["level"], f["text"]
            found.setdefault(key, []).append(f"{t['attack']} on {t['defense']}")
    ordered = sorted(found, key=lambda key: (-LEVELS[key[1]], key[0]))
    everywhere = len(card.trials)
    return [
        {
            "name": name,
            "level": level,
            "text": text,
            "mark": MARKS[level],
            "rows": "every row"
            if len(found[name, level, text]) == everywhere
            else ", ".join(found[name, level, text]),
        }
        for name, level, text in ordered
    ]


def _settings(card: Scorecard) -> list[dict[str, str]]:
    parts = {
        "scenario": {
            k: v for k, v in card.scenario.items() if k not in ("defense", "attack")
        }
    }
    for kind in ("defense", "attack"):
        parts |= {f"{kind} {k}": v for k, v in card.scenario[kind].items()}
    return [
        {"name": name, "text": json.dumps(held, indent=1, ensure_ascii=False)}
        for name, held in parts.items()
    ]


def write(asked: Asked) -> Path:
    """Write the page of a run; return its path."""
    text = render(load(asked.folder), asked.folder)
    with cards.replacing(asked.out) as path:
        path.write_text(text)
    return asked.out
