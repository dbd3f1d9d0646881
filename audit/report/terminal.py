"""A scorecard for the terminal: what is about to run, the table, and its notes."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from audit.config.compose import Scenario
from audit.report import columns
from audit.report.columns import Selection, common_flags
from audit.scorecard.schema import DefenseRow, Scorecard
from audit.scorecard.view import SHORT, SUMMARY, Column, main_bounds

if TYPE_CHECKING:
    from audit.games.base import Game  # imports JAX

WIDTH, NARROW, ANY = 120, 80, 10_000  # characters in a row


def banner(scenario: Scenario, game: Game) -> str:
    """Return what is about to run, on which data, before anything does."""
    spec, splits = scenario.spec, scenario.splits
    lines = [f"{spec.name}: {spec.title}", f"data: {scenario.data}"]
    if scenario.local is not None:
        lines[-1] += f" ({scenario.local.note})"
    if scenario.stands_in_for is not None:
        missing = ", not found here" if spec.data == "auto" else ""
        lines[-1] += f" (stands in for {scenario.stands_in_for}{missing})"
    fixed = "all other" if splits.fixed is None else str(splits.fixed)
    sizes = f"{fixed} fixed records, {splits.targets} targets"
    if game.sizes is not None:
        sizes = game.sizes(scenario)
    pool = "the test part" if splits.pool_from == "test" else f"{splits.pool} records"
    sizes += f"; pool: {pool}"
    if splits.augment:
        sizes += f" augmented to {splits.augment}; targets never are"
    return "\n".join([*lines, sizes])


def width() -> int:
    """Return how wide the terminal is; 80 where the output goes into a file."""
    columns_here = shutil.get_terminal_size((NARROW, 24)).columns
    return columns_here if sys.stdout.isatty() else NARROW


def page(card: Scorecard, most: int = NARROW) -> str:
    """Return the table and its notes, at most `most` characters wide in every row.

    Columns are dropped in an order of priority until the table fits, and named; the
    notes explain those that are there.
    """
    chosen = fitting(card, most)
    about = [f"every row: {h} {text}" for h, text in chosen.constant.items()]
    shown = {c.header for c in chosen.columns}
    if "flags" not in shown:
        about += _flags(card)
    gone = [c.header for c in chosen.dropped if c.header != "flags"]
    if gone:
        about.append(f"no room for: {', '.join(gone)} (scorecard.md has every column)")
    everything = [*about, notes(card, shown | chosen.constant.keys())]
    text = "\n".join([*everything, "what columns and flags mean: docs/scorecards.md"])
    lines = [
        textwrap.fill(line, most, subsequent_indent="  ", break_on_hyphens=False)
        for line in text.split("\n")
    ]
    return "\n".join([_text(card, chosen.columns), "", *lines])


def fitting(card: Scorecard, most: int) -> Selection:
    """Return the columns of the widest table that fits."""
    every, rows = columns.columns(card), columns.lines(card)
    for count in range(len(every), 1, -1):
        chosen = columns.selected(card, every, rows, count)
        if _wide(_text(card, chosen.columns)) <= most:
            break
    return chosen


def table(card: Scorecard, most: int = WIDTH) -> str:
    """Return the table alone, one row per defense, at most `most` characters wide."""
    return _text(card, fitting(card, most).columns)


def _text(card: Scorecard, shown: list[Column]) -> str:
    look: dict[str, Any] = {"pad_edge": False, "padding": (0, 1, 0, 0)}
    out = Table(box=box.SIMPLE_HEAD, header_style="", **look)
    for c in shown:
        justify: Any = "right" if c.right else "left"
        out.add_column(c.header, justify=justify, no_wrap=True)
    for line in columns.lines(card):
        out.add_row(*(column.cell(line) for column in shown))
    return render(out, ANY)


def _wide(text: str) -> int:
    return max(map(len, text.split("\n")))


def _flags(card: Scorecard) -> list[str]:
    """Return flag -> the defenses whose strongest attack raises it, a line per flag."""
    raised: dict[str, list[str]] = {}
    for line in columns.lines(card):
        for name in filter(None, columns.flags_of(line).strip("-").split(", ")):
            raised.setdefault(name, []).append(line.label)
    every = len(card.defenses)
    return [
        f"flag {name}: {'every defense' if len(d) == every else ', '.join(d)}"
        for name, d in raised.items()
    ]


def render(out: Table, most: int = WIDTH) -> str:
    """Return a table as plain text, at most so many columns wide."""
    file = io.StringIO()
    plain: dict[str, Any] = {"color_system": None, "force_jupyter": False}
    Console(file=file, width=most, **plain).print(out)
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n")).strip("\n")


def notes(card: Scorecard, shown: Container[str] | None = None) -> str:
    """Return for whom each bound holds, what every row shares, and what was skipped.

    Only the columns `shown` are explained, by their headers; None = all.
    """
    game, there = columns.view(card), lambda h: shown is None or h in shown
    bounds = {b.name: b for d in card.defenses.values() for b in d.bounds}
    units = game.units if isinstance(game.units, str) else game.units(card)
    lines = [units] if card.trials else []
    if any(d.eta for d in card.defenses.values()) and there("η, mean ± sd"):
        private = card.scenario.task.get("label_private")
        whose = "of a record and its label" if private else "of a record"
        whose = game.eta_words(card) if game.eta_words else whose
        line = f"η: sqrt of the spectral norm of the Fisher information {whose}"
        if any("lanczos" in (d.dfil or {}) for d in card.defenses.values()):
            line += "; of many steps, of the sum of their norms, which is no less"
        lines.append(line)
    lines += [
        f"{short}: {SUMMARY + '; ' if name == 'cramer_rao' else ''}"
        f"{bounds[name].holds_for} ({bounds[name].theorem})"
        for name, short in main_bounds(card).items()
        if there(short)
    ]
    if there(SHORT["cramer_rao"]):
        lines += _dfil_errors(card)
    for label, defense in card.defenses.items():
        lines += _claims(label, defense)
    lines += game.notes(card)
    lines += [f"every row: {k} ({text})" for k, text in common_flags(card).items()]
    lines += [
        f"{trial.attack} on {trial.defense}: {trial.status}, {trial.reason}"
        for trial in card.trials
        if trial.status != "ok"
    ]
    results = {t.attack: t.result for t in card.trials if t.result is not None}
    lines += sorted(
        f"{attack} is an oracle and saw augmented copies of pool images"
        for attack, result in results.items()
        if result["fit"].get("augmented")
    )
    lines += [f"model: {line}" for line in card.provenance.model]
    unavailable = {result.get("lpips_unavailable") for result in results.values()}
    lines += [f"LPIPS unavailable: {why}" for why in sorted(unavailable - {None})]
    return "\n".join(lines)


def _dfil_errors(card: Scorecard) -> list[str]:
    """Return how far estimates of one record's dFIL are off; none if all are exact."""
    each = {
        label: d.dfil and d.dfil.get("relative_se")
        for label, d in card.defenses.items()
    }
    text = ", ".join(f"{label} {float(se):.1%}" for label, se in each.items() if se)
    if not text:
        return []
    text = f"standard error of a record's dFIL, over that dFIL: {text}"
    if labels := ", ".join(columns.of_one_run(card)):
        text += f"; of {labels}, of the probes of one released run alone"
    return [text]


def _claims(label: str, defense: DefenseRow) -> list[str]:
    """Return what the publication claims of a defense, beside what holds."""
    lines, claims = [], defense.nominal
    for source, void in dict.fromkeys((c.source, c.void) for c in claims):
        alike = [c for c in claims if (c.source, c.void) == (source, void)]
        values = ", ".join(f"{c.quantity} {float(c.value):.4g}" for c in alike)
        lines.append(f"{label}, as published ({source}): {values}")
        lines.append(f"  void here: {void}" if void else "  which holds here")
    if claims and defense.rdp2 is not None:
        order2 = float(defense.rdp2)
        lines.append(f"  valid here: Renyi divergence of order 2 {order2:.4g}")
    return lines
