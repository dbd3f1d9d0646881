"""`python -m audit report RUN`: one run as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from audit.errors import UserError, did_you_mean
from audit.report import columns, odd, summary, terminal
from audit.report.columns import MARKS
from audit.report.html import target_plots, template
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
    """Return the folder of a run: itself, its scorecard.json, or its name in `RUNS`.

    Raises:
      UserError: if there is none of that name, with the nearest one.
    """
    path = Path(run)
    places = [path.parent if path.name == "scorecard.json" else path]
    places += [r / run for r in RUNS if path.name == run]
    for place in places:
        if (place / "scorecard.json").is_file():
            return place
    hint = did_you_mean(run, run_names())
    raise UserError(f"no scorecard.json of a run {run!r}{hint}")


def load(folder: Path) -> Scorecard:
    """Return a run's scorecard, checked, with its arrays where they are beside it.

    Raises:
      UserError: if it is no scorecard, or the arrays cannot be read.
    """
    if template.beside(folder, "scorecard.npz") is None:
        return schema.load(folder / "scorecard.json")
    return cards.load(folder)


def render(card: Scorecard, folder: Path) -> str:
    """Return the page of a card, with the figures in its folder."""
    album, scenario = template.Album(), plain(card.scenario)
    atlas = target_plots.atlas(card, album)  # first into the album
    uris = {f: album.picture(folder / f, 1000) for f in template.figures(folder)}
    lines, kinds = columns.lines(card), ("defense", "attack")
    settings = {"scenario": {k: v for k, v in scenario.items() if k not in kinds}}
    settings |= {f"{kind} {k}": v for kind in kinds for k, v in scenario[kind].items()}
    return template.render(
        "report.html",
        f"{card.scenario.scenario} on {card.data.name}: report",
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
        atlas=atlas,
        arrays=bool(card.arrays),
        provenance=provenance(card.provenance),
        settings=settings,
    )


def flags(card: Scorecard) -> list[dict[str, str]]:
    """Return every flag once, errors first, with the rows that raise it."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for t in card.trials:
        for f in t.flags:
            raised = rows.setdefault((f.name, f.level, f.text), [])
            raised.append(f"{t.attack} on {t.defense}")
    listed = []
    for flag in sorted(rows, key=lambda flag: (-LEVELS[flag[1]], flag[0])):
        every = len(rows[flag]) == len(card.trials)
        fields = dict(zip(("name", "level", "text"), flag, strict=True))
        fields |= {"rows": "every row" if every else ", ".join(rows[flag])}
        listed.append(fields | {"mark": MARKS[flag[1]]})
    return listed


def write(folder: Path, out: Path) -> dict[str, str]:
    """Write the page of a run's folder into a file; return rows it lacks, and why.

    UserError if the file's folder does not exist, or the run has no scorecard.
    """
    if not out.parent.is_dir():
        raise UserError(f"out={out}: no such folder {out.parent}")
    text, left_out = odd.shown(load(folder), lambda card: render(card, folder))
    with cards.replacing(out) as path:
        path.write_text(text)
    return left_out
