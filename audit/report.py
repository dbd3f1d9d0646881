"""A scorecard for human eyes: terminal table, markdown, two figures.

Everything here is a function of the scorecard; nothing is computed again.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from audit import scorecard as cards
from audit.bounds import format_bound
from audit.compose import Scenario
from audit.scorecard import Scorecard

WIDTH = 120
NARROW = ("cramer_rao", "hammersley_chapman_robbins", "finite_prior")  # ranked bounds
SHORT = {
    "cramer_rao": "1/dFIL",
    "hammersley_chapman_robbins": "HCR",
    "van_trees": "van Trees",
    "finite_prior": "finite prior",
}


def banner(scenario: Scenario) -> str:
    """Return what is about to run, on which data, before anything does."""
    spec, splits = scenario.spec, scenario.splits
    lines = [f"{spec.name}: {spec.title}", f"data: {scenario.data}"]
    if scenario.data != next(iter(spec.sets)):
        lines[-1] += f" (stands in for {next(iter(spec.sets))}, not found here)"
    sizes = f"{splits.fixed} fixed, {splits.targets} targets, {splits.pool} pool images"
    if splits.augment:
        sizes += f" augmented to {splits.augment}; targets never are"
    return "\n".join([*lines, sizes])


# Rows ---------------------------------------------------------------------------------


def strongest(card: Scorecard, defense: str) -> dict[str, Any] | None:
    """Return the attack with the smallest error on a defense, oracles aside."""
    rows = [
        t
        for t in card.trials
        if t["defense"] == defense and t["status"] == "ok" and not t["result"]["oracle"]
    ]
    void = {"non-finite", "attack-dead"}
    sound = [t for t in rows if not void & {f["name"] for f in t["flags"]}]
    return min(sound, key=lambda t: t["result"]["mse"], default=None)


def bound_text(bound: dict[str, Any]) -> str:
    """Return a bound's mean as the tables print it."""
    return format_bound(float(bound["mean"]), bound["log10"])


def number(value: float | str | None, digits: int = 4) -> str:
    """Return a number as the tables print it: .0123, 3.2e-05, nan, or none."""
    if value is None:
        return "none"
    value = float(value)
    if value and abs(value) < 5 * 10.0**-digits:
        return f"{value:.1e}"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def bounds_cells(own: dict[str, Any], names: Iterable[str] = SHORT) -> list[str]:
    """Return the bounds of a defense in the order of `names`."""
    by_name = {b["name"]: b for b in own["bounds"]}
    return [bound_text(by_name[name]) if name in by_name else "none" for name in names]


def flag_names(row: dict[str, Any], common: set[str]) -> str:
    """Return the names of a row's own flags."""
    names = [f["name"] for f in row["flags"] if f["name"] not in common]
    return ", ".join(names) or "-"


def common_flags(card: Scorecard) -> dict[str, str]:
    """Return the flags every row raises with one text: said once, below the table."""
    rows = [
        {f["name"]: f["text"] for f in t["flags"]}
        for t in card.trials
        if t["status"] == "ok"
    ]
    first = rows[0] if rows else {}
    return {n: text for n, text in first.items() if all(r.get(n) == text for r in rows)}


def table(card: Scorecard) -> str:
    """Return the terminal table, one row a defense, at most 120 columns."""
    out = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style=""
    )
    out.add_column("defense", no_wrap=True)
    out.add_column("accuracy", justify="right")
    out.add_column("strongest", no_wrap=True)
    for name in ("MSE ± s.e.", "LPIPS", "floor", *(SHORT[n] for n in NARROW)):
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("flags", overflow="fold")
    common = set(common_flags(card))
    for label, own in card.defenses.items():
        best = strongest(card, label)
        cells = [label, utility(own), *attack_cells(best), number(card.floor["mse"])]
        flags = flag_names(best, common) if best else "no valid attack"
        out.add_row(*cells, *bounds_cells(own, NARROW), flags)
    return _render(out)


def utility(own: dict[str, Any]) -> str:
    """Return a defense's test accuracy."""
    return number(own["utility"] and own["utility"]["accuracy"])


def attack_cells(best: dict[str, Any] | None) -> list[str]:
    """Return name, error and LPIPS of a trial."""
    if best is None:
        return ["none", "none", "none"]
    result = best["result"]
    lpips = result["lpips"]
    shown = "unavailable" if lpips is None else f"{lpips:.3f}".removeprefix("0")
    return [best["attack"], with_error(result["mse"], result["mse_se"]), shown]


def with_error(value: float | str, error: float | str) -> str:
    """Return "value ± error", both to the same digits."""
    value, error = float(value), float(error)
    if abs(value) < 1e-3:
        return f"{value:.1e} ± {error:.0e}"
    return " ± ".join(f"{v:.4f}".removeprefix("0") for v in (value, error))


def _render(out: Table) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(out)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().strip("\n").split("\n"))


def notes(card: Scorecard) -> str:
    """Return for whom each bound holds, what every row shares, and what was skipped."""
    seen = {b["name"]: b for own in card.defenses.values() for b in own["bounds"]}
    lines = ["MSE per pixel, pixels in [0, 1]; ± one standard error over targets"]
    lines += [
        f"{SHORT[n]}: {seen[n]['holds_for']} ({seen[n]['theorem']})"
        for n in SHORT
        if n in seen
    ]
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


# Files --------------------------------------------------------------------------------


def write(card: Scorecard, folder: Path) -> list[Path]:
    """Write scorecard.json, .npz, .md and the two figures; return their paths.

    Each file appears whole or not at all.
    """
    from audit import figures, markdown

    cards.save(card, folder)
    with cards.replacing(folder / "scorecard.md") as path:
        path.write_text(markdown.render(card))
    drawn = {
        "reconstructions.png": figures.reconstructions,
        "mse_vs_bound.png": figures.mse_vs_bound,
    }
    for name, draw in drawn.items():
        with cards.replacing(folder / name) as path:
            draw(card, path)
    names = ("scorecard.md", "scorecard.json", "scorecard.npz", *drawn)
    return [folder / name for name in names]


def targets_to_draw(card: Scorecard, most: int = 10) -> np.ndarray:
    """Return which targets a figure shows: the first of each class in turn."""
    labels = card.arrays["label"]
    ranks = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        ranks[own] = np.arange(len(own))
    return np.lexsort((labels, ranks))[:most]
