"""`python -m audit report RUN`: one run as one self-contained HTML page."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from audit.errors import UserError
from audit.report import columns, summary, terminal
from audit.report.columns import MARKS
from audit.report.html import target_plots, template
from audit.report.links import beside, figures
from audit.report.markdown import provenance
from audit.scorecard import card as cards
from audit.scorecard import schema
from audit.scorecard.average_seeds import LEVELS
from audit.scorecard.card import Scorecard, plain

PAGE = "report.html"
RUNS = (Path("results/runs"), Path("results"))


def run_names() -> list[str]:
    """Return the names of the runs here."""
    return sorted({p.parent.name for r in RUNS for p in r.glob("*/scorecard.json")})


def locate(run: str) -> Path:
    """Return the folder of a run.

    Args:
      run: a folder with a scorecard.json, that file, or the name of a folder under
        results/runs or results.

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

    raise UserError(
        f"no scorecard.json of a run {run!r}{did_you_mean(run, run_names())}"
    )


def load(folder: Path) -> Scorecard:
    """Return a run's scorecard, checked, with its arrays where they are beside it.

    Raises:
      UserError: if it is no scorecard, or the arrays cannot be read.
    """
    card = schema.load(folder / "scorecard.json")
    arrays: dict[str, np.ndarray] = {}
    path = beside(folder, "scorecard.npz")
    if path is not None:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {k: file[k] for k in file}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"cannot read {path}: {error}") from None
    return card._replace(arrays=arrays)


def render(card: Scorecard, folder: Path) -> str:
    """Return the page.

    Args:
      card: what `load` returned.
      folder: of the run, for the figures in it.
    """
    album = template.Album()
    lines = columns.lines(card)
    shown = {"atlas": target_plots.atlas(card, album)}  # first into the album
    uris = {name: album.picture(folder / name, 1000) for name in figures(folder)}
    return template.render(
        "report.html",
        f"{card.scenario['scenario']} on {card.data['name']}: report",
        card=card._replace(arrays={}),
        verdicts=[summary.verdict(line) for line in lines],
        columns=columns.columns(card),
        lines=lines,
        notes=terminal.notes(card),
        flags=flags(card),
        scatter=target_plots.scatters(card),
        scatter_text=target_plots.thinned(card),
        budget=target_plots.budgets(card),
        figures=uris,
        arrays=bool(card.arrays),
        provenance=provenance(card.provenance),
        settings=_settings(plain(card.scenario)),
        **shown,
    )


def flags(card: Scorecard) -> list[dict[str, str]]:
    """Return every flag once, errors first, with the rows that raise it."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for t in card.trials:
        for f in t["flags"]:
            key = f["name"], f["level"], f["text"]
            rows.setdefault(key, []).append(f"{t['attack']} on {t['defense']}")
    return [
        {
            "name": name,
            "level": level,
            "text": text,
            "mark": MARKS[level],
            "rows": "every row"
            if len(raised) == len(card.trials)
            else ", ".join(raised),
        }
        for (name, level, text), raised in sorted(
            rows.items(), key=lambda row: (-LEVELS[row[0][1]], row[0][0])
        )
    ]


def _settings(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a scenario that the page folds away, by their headings."""
    kinds = ("defense", "attack")
    rest = {k: v for k, v in scenario.items() if k not in kinds}
    parts = {f"{kind} {k}": v for kind in kinds for k, v in scenario[kind].items()}
    return {"scenario": rest, **parts}


def write(folder: Path, out: Path) -> Path:
    """Write the page of a run into a file; return the file.

    Args:
      folder: of the run.
      out: the page; its folder exists.

    Raises:
      UserError: if there is no such folder, or no scorecard in the run's.
    """
    if not out.parent.is_dir():
        raise UserError(f"out={out}: no such folder {out.parent}")
    text = render(load(folder), folder)
    with cards.replacing(out) as path:
        path.write_text(text)
    return out
