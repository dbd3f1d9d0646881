"""`python -m audit report RUN`: one run as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from pathlib import Path

from markupsafe import Markup

from audit.errors import UserError, did_you_mean
from audit.report import columns, odd, strips, summary, terminal
from audit.report.columns import MARKS
from audit.report.figures import bounds, common, drawings
from audit.report.html import target_plots, template
from audit.report.markdown import provenance
from audit.scorecard import card as cards
from audit.scorecard import schema
from audit.scorecard.average_seeds import LEVELS
from audit.scorecard.card import Scorecard, plain

PAGE = "report.html"
# the picture beside the strips is the first of these that a run has
FIRST = (
    "reconstructions.png", "rebuilt.png", "roc.png", "audit_roc.png", "both_sides.png",
    "success_by_eta.png", "named_and_allowed.png", "separation_vs_dfil.png",
    "step_progress.png", "eta_by_class.png",
)  # fmt: skip
IMAGE = Markup('<img src="{uri}" alt="{alt}" loading="lazy">')
FEW = 6  # targets in that picture
MOST_OF_A_PLOT = 350_000  # bytes; a larger one is shown as the picture in the folder
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
    names, under = run_names(), " or ".join(map(str, RUNS))
    hint = did_you_mean(run, names) if names else ""
    raise UserError(
        f"{run!r} is no folder with a scorecard.json, and no run under {under}{hint}"
    )


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
    scatters = target_plots.scatters(card)
    shown = pictures(card, folder, album, {"mse_vs_bound.png"} if scatters else set())
    atlas = target_plots.atlas(card, album)  # as long as there is room
    lines, kinds = columns.lines(card), ("defense", "attack")
    settings = {"scenario": {k: v for k, v in scenario.items() if k not in kinds}}
    settings |= {f"{kind} {k}": v for kind in kinds for k, v in scenario[kind].items()}
    return template.render(
        "report.html",
        f"{card.scenario.scenario} on {card.data.name}: report",
        card=card._replace(arrays={}),
        strips=strips.strips(card),
        verdicts=[summary.verdict(line) for line in lines],
        columns=columns.columns(card),
        lines=lines,
        notes=terminal.notes(card),
        flags=flags(card),
        scatter=scatters,
        scatter_text=target_plots.thinned(card),
        first=[name for name in FIRST if shown.get(name)][:1],
        figures=shown,
        shown={name for name, plot in shown.items() if plot is not None},
        atlas=atlas,
        arrays=bool(card.arrays),
        provenance=provenance(card.provenance),
        settings=settings,
    )


def pictures(
    card: Scorecard, folder: Path, album: template.Album, drawn: Container[str] = ()
) -> dict[str, Markup | None]:
    """Return file name -> figure as the page shows it; None: there is no room for it.

    A figure is drawn anew, in the reader's colours, where the card holds all that is
    drawn and that takes little room; else the file in the folder is shown. Those that
    are `drawn` already are left out.
    """
    shown = dict[str, Markup | None]()
    drawable = drawings(card)
    if "reconstructions.png" in drawable:  # beside the strips is room for a few
        drawable["reconstructions.png"] = partial(bounds.reconstructions, most=FEW)
    for name, draw in drawable.items():
        plot = common.svg(draw(card), name.removesuffix(".png").replace("_", " "))
        if name not in drawn and len(plot) <= min(MOST_OF_A_PLOT, album.room):
            album.room -= len(plot)
            shown[name] = plot
    for name in template.figures(folder):
        if name not in shown and name not in drawn:
            uri = album.picture(folder / name, 1000)
            text = name.removesuffix(".png").replace("_", " ")
            shown[name] = None if uri is None else IMAGE.format(uri=uri, alt=text)
    return shown


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
