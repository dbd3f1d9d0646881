"""A scorecard for human eyes: terminal table, markdown, two figures.

Everything here is a function of the scorecard; nothing is computed again.
"""

from __future__ import annotations

import io
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from audit.config.compose import Scenario
from audit.report import audit_cells, columns
from audit.report.columns import bound_names, common_flags
from audit.scorecard.card import Scorecard

WIDTH = 120


def banner(scenario: Scenario) -> str:
    """Return what is about to run, on which data, before anything does."""
    spec, splits = scenario.spec, scenario.splits
    lines = [f"{spec.name}: {spec.title}", f"data: {scenario.data}"]
    if scenario.data != next(iter(spec.sets)):
        lines[-1] += f" (stands in for {next(iter(spec.sets))}, not found here)"
    pool = "the test part" if splits.pool_from == "test" else f"{splits.pool} records"
    fixed = "all other" if splits.fixed is None else str(splits.fixed)
    planted = scenario.spec.canaries
    if planted is not None:
        kind = f"{planted.kind} canar{'y' if planted.count == 1 else 'ies'}"
        sizes = f"{fixed} fixed records and {planted.count} {kind}; pool: {pool}"
    elif splits.targets:
        sizes = f"{fixed} fixed records, {splits.targets} targets; pool: {pool}"
    else:
        sizes = f"{fixed} records, each the target in turn; pool: {pool}"
    if (asked := scenario.membership) is not None:
        sizes = (
            f"{fixed} candidates, each in half of {spec.runs} target, {asked.shadows} "
            f"shadow and {asked.calibration} calibration models; population: {pool}"
        )
    if splits.augment:
        sizes += f" augmented to {splits.augment}; targets never are"
    return "\n".join([*lines, sizes])


# Terminal -----------------------------------------------------------------------------


def table(card: Scorecard) -> str:
    """Return the terminal table, one row a defense, at most 120 columns."""
    out = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style=""
    )
    shown = [column for column in columns.columns(card) if column.narrow]
    for column in shown[:-1]:
        justify: Any = "right" if column.right else "left"
        out.add_column(column.header, justify=justify, no_wrap=True)
    out.add_column(shown[-1].header, overflow="fold")
    for line in columns.lines(card):
        out.add_row(*(column.cell(line) for column in shown))
    return render(out)


def render(out: Table) -> str:
    """Return a table as plain text, at most 120 columns."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(out)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n")).strip("\n")


_IN_TURN = (
    "MSE per coordinate, mean over releases; ± one standard error over records; "
    "beaten: records an attack rebuilds better than the floor does, by the median over "
    "releases"
)
_RATES = (
    "AUC and TPR over all candidates and target models; ± half a 95% interval, records "
    "independent; TPR at a false-positive rate: thresholds from shadow models; ε "
    "upper: accounted, at the game's adjacency"
)
UNITS = {
    "reconstruction": "MSE per pixel, pixels in [0, 1]; ± one standard error over "
    "targets",
    "leave_one_out": _IN_TURN,
    "anatomy": _IN_TURN,
    "exposed": "MSE per pixel, pixels in [0, 1]; ± one standard error over targets; "
    "normalised: in variances of the pool's channels, median over targets; bounds are "
    "on one exposed update, epsilon is of the training run",
    "membership": _RATES,
    "membership_replace_one": _RATES,
    **audit_cells.UNITS,
    "attribute": "guessed: share of records whose attribute is told, ± one standard "
    "error; floor: the commonest value",
}


def notes(card: Scorecard) -> str:
    """Return for whom each bound holds, what every row shares, and what was skipped."""
    seen = {b["name"]: b for own in card.defenses.values() for b in own["bounds"]}
    lines = [UNITS[card.scenario["game"]]] if card.trials else []
    if any(own.get("eta") for own in card.defenses.values()):
        private = card.scenario["task"]["label_private"]
        whose = "of a record and its label" if private else "of a record"
        asked = card.scenario["attribute"]
        whose = f"about {asked} alone" if asked else whose
        lines.append(f"η: sqrt of the spectral norm of the Fisher information {whose}")
    lines += [
        f"{short}: {seen[n]['holds_for']} ({seen[n]['theorem']})"
        for n, short in bound_names(card).items()
    ]
    lines += [
        text for label, own in card.defenses.items() for text in _claims(label, own)
    ]
    if card.scenario["game"] == "anatomy":
        whole = [d for d, own in card.defenses.items() if not own.get("steps")]
        said = (
            "no anatomy: no step in which gradients of records are clipped and summed"
        )
        lines += [f"{label}: {said}" for label in whole]
    lines += [
        f"every row: {name} ({text})" for name, text in common_flags(card).items()
    ]
    lines += [
        f"{t['attack']} on {t['defense']}: {t['status']}, {t['reason']}"
        for t in card.trials
        if t["status"] != "ok"
    ]
    lines += sorted(
        {
            f"{t['attack']} is an oracle and saw augmented copies of pool images"
            for t in card.trials
            if t["status"] == "ok" and t["result"]["fit"].get("augmented")
        }
    )
    unavailable = {
        t["result"]["lpips_unavailable"]
        for t in card.trials
        if t["status"] == "ok" and t["result"].get("lpips_unavailable")
    }
    lines += [f"LPIPS unavailable: {why}" for why in sorted(unavailable)]
    return "\n".join(lines)


def _claims(label: str, own: dict[str, Any]) -> list[str]:
    """Return what the publication claims of a defense, beside what holds."""
    claims = own.get("nominal", [])
    if not claims:
        return []
    alike: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for claim in claims:
        alike.setdefault((claim["source"], claim["void"]), []).append(claim)
    lines = []
    for (source, void), held in alike.items():
        said = ", ".join(f"{c['quantity']} {c['value']:.4g}" for c in held)
        lines.append(f"{label}, as published ({source}): {said}")
        lines.append(f"  void here: {void}" if void else "  which holds here")
    if own["rdp2"] is not None:
        lines.append(f"  valid here: Renyi divergence of order 2 {own['rdp2']:.4g}")
    return lines
