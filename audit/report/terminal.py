"""A scorecard for the terminal: what is about to run, the table, and its notes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from audit.config.compose import Scenario
from audit.report import columns
from audit.report.columns import common_flags
from audit.scorecard.schema import DefenseRow, Scorecard
from audit.scorecard.view import SUMMARY, main_bounds

if TYPE_CHECKING:
    from audit.games.base import Game  # imports JAX

WIDTH = 120


def banner(scenario: Scenario, game: Game) -> str:
    """Return what is about to run, on which data, before anything does."""
    spec, splits = scenario.spec, scenario.splits
    lines = [f"{spec.name}: {spec.title}", f"data: {scenario.data}"]
    if scenario.own is not None:
        lines[-1] += f" ({scenario.own.note})"
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


def table(card: Scorecard) -> str:
    """Return the terminal table, one row per defense, at most 120 columns wide."""
    look: dict[str, Any] = {"pad_edge": False, "padding": (0, 1, 0, 0)}
    out = Table(box=box.SIMPLE_HEAD, header_style="", **look)
    shown = [column for column in columns.columns(card) if column.narrow]
    for c in shown[:-1]:
        justify: Any = "right" if c.right else "left"
        out.add_column(c.header, justify=justify, no_wrap=True)
    out.add_column(shown[-1].header, overflow="fold")
    for line in columns.lines(card):
        out.add_row(*(column.cell(line) for column in shown))
    return render(out)


def render(out: Table) -> str:
    """Return a table as plain text, at most 120 columns wide."""
    file = io.StringIO()
    plain: dict[str, Any] = {"color_system": None, "force_jupyter": False}
    Console(file=file, width=WIDTH, **plain).print(out)
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n")).strip("\n")


def notes(card: Scorecard) -> str:
    """Return for whom each bound holds, what every row shares, and what was skipped."""
    game = columns.view(card)
    bounds = {b.name: b for d in card.defenses.values() for b in d.bounds}
    units = game.units if isinstance(game.units, str) else game.units(card)
    lines = [units] if card.trials else []
    if any(defense.eta for defense in card.defenses.values()):
        private = card.scenario.task.get("label_private")
        whose = "of a record and its label" if private else "of a record"
        whose = game.eta_words(card) if game.eta_words else whose
        lines.append(f"η: sqrt of the spectral norm of the Fisher information {whose}")
    lines += [
        f"{short}: {SUMMARY + '; ' if name == 'cramer_rao' else ''}"
        f"{bounds[name].holds_for} ({bounds[name].theorem})"
        for name, short in main_bounds(card).items()
    ]
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
