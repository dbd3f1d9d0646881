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


# Rows -----------------------------------------------------------------------------------


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


def _bounds_cells(own: dict[str, Any], names: Iterable[str] = SHORT) -> list[str]:
    by_name = {b["name"]: b for b in own["bounds"]}
    return [
        bound_text(by_name[name]) if name in by_name else "none" for name in names
    ]


def _flag_names(row: dict[str, Any], common: set[str]) -> str:
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
    out.add_column("strongest attack", no_wrap=True)
    for name in ("MSE ± s.e.", "LPIPS", "floor", *(SHORT[n] for n in NARROW)):
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("flags")
    common = set(common_flags(card))
    for label, own in card.defenses.items():
        best = strongest(card, label)
        cells = [label, _utility(own), *_attack_cells(best), number(card.floor["mse"])]
        flags = _flag_names(best, common) if best else "no valid attack"
        out.add_row(*cells, *_bounds_cells(own, NARROW), flags)
    return _render(out)


def _utility(own: dict[str, Any]) -> str:
    return number(own["utility"] and own["utility"]["accuracy"])


def _attack_cells(best: dict[str, Any] | None) -> list[str]:
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
    lines += [f"every row: {name} ({text})" for name, text in common_flags(card).items()]
    lines += [
        f"{t['attack']} on {t['defense']}: {t['status']}, {t['reason']}"
        for t in card.trials
        if t["status"] != "ok"
    ]
    unavailable = {
        t["result"]["lpips_unavailable"]
        for t in card.trials
        if t["status"] == "ok" and t["result"].get("lpips_unavailable")
    }
    lines += [f"LPIPS unavailable: {why}" for why in sorted(unavailable)]
    return "\n".join(lines)


# Files ----------------------------------------------------------------------------------


def write(card: Scorecard, folder: Path) -> list[Path]:
    """Write scorecard.json, .npz, .md and the two figures; return their paths.

    Each file appears whole or not at all.
    """
    from audit import figures

    cards.save(card, folder)
    with cards.replacing(folder / "scorecard.md") as path:
        path.write_text(markdown(card))
    drawn = {
        "reconstructions.png": figures.reconstructions,
        "mse_vs_bound.png": figures.mse_vs_bound,
    }
    for name, draw in drawn.items():
        with cards.replacing(folder / name) as path:
            draw(card, path)
    names = ("scorecard.md", "scorecard.json", "scorecard.npz", *drawn)
    return [folder / name for name in names]


def markdown(card: Scorecard) -> str:
    """Return the whole scorecard as markdown."""
    where = card.provenance
    data = card.data
    parts = [
        f"# {card.scenario['scenario']} on {data['name']}",
        card.scenario["title"] + ".",
        f"Source: {card.scenario['source']}.",
        _md_defenses(card),
        "```\n" + notes(card) + "\n```",
        "![reconstructions](reconstructions.png)",
        "![MSE against bounds](mse_vs_bound.png)",
        "## Attacks",
        _md_trials(card),
        "## Bounds and leakage",
        _md_bounds(card),
        _md_dfil(card),
        "## Epsilon",
        _md_epsilon(card),
        "## Data",
        _md_data(data),
        "## Where this comes from",
        f"```\n{where['command']}\n```",
        _md_provenance(where),
    ]
    return "\n\n".join(parts) + "\n"


def _md(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _md_defenses(card: Scorecard) -> str:
    header = ["defense", "accuracy", "strongest attack", "MSE ± s.e.", "LPIPS", "floor"]
    common = set(common_flags(card))
    rows = []
    for label, own in card.defenses.items():
        best = strongest(card, label)
        flags = _flag_names(best, common) if best else "no valid attack"
        floor = number(card.floor["mse"])
        cells = [label, _utility(own), *_attack_cells(best), floor]
        rows.append([*cells, *_bounds_cells(own), flags])
    return _md([*header, *SHORT.values(), "flags"], rows)


def _md_trials(card: Scorecard) -> str:
    header = ["defense", "attack", "MSE ± s.e.", "median", "bias²", "variance", "SSIM"]
    header += ["PSNR", "LPIPS", "threat model", "flags"]
    rows = []
    for t in card.trials:
        if t["status"] != "ok":
            gap = ["-"] * 7
            said = f"{t['status']}: {t['reason']}"
            rows.append([t["defense"], t["attack"], *gap, t["threat_model"], said])
            continue
        r = t["result"]
        cells = [with_error(r["mse"], r["mse_se"])]
        cells += [number(r[k]) for k in ("mse_median", "bias2", "variance", "ssim")]
        cells += [f"{float(r['psnr_median']):.1f}", _attack_cells(t)[2]]
        flags = ", ".join(f["name"] for f in t["flags"]) or "-"
        rows.append([t["defense"], t["attack"], *cells, t["threat_model"], flags])
    return _md(header, rows)


def _md_bounds(card: Scorecard) -> str:
    header = ["defense", "bound", "mean", "median", "smallest", "holds for"]
    header += ["theorem", "strongest attack / bound"]
    rows = []
    for label, own in card.defenses.items():
        best = strongest(card, label)
        for b in own["bounds"]:
            tight = best and best["result"]["against"][b["name"]]["tightness"]
            cells = [format_bound(float(b[k]), b["log10"]) for k in ("mean", "median", "min")]
            ratio = "-" if tight is None else f"{tight:.3g}"
            rows.append([label, SHORT[b["name"]], *cells, b["holds_for"], b["theorem"], ratio])
        if not own["bounds"]:
            rows.append([label, "none", *["-"] * 6])
    return _md(header, rows)


def _md_dfil(card: Scorecard) -> str:
    header = ["defense", "dFIL mean", "median", "max", "√dFIL mean", "median", "max"]
    keys = ("mean", "median", "max", "sqrt_mean", "sqrt_median", "sqrt_max")
    rows = [
        [label, *(f"{float(own['dfil'][k]):.4g}" for k in keys)]
        for label, own in card.defenses.items()
        if own["dfil"]
    ]
    said = (
        "dFIL is the trace of the Fisher information about one record over its dimension;"
        " Edmunds (2024) prints its square root under the same name."
    )
    return f"{_md(header, rows)}\n\n{said}" if rows else "No defense has a dFIL."


def _md_epsilon(card: Scorecard) -> str:
    rows = []
    for label, own in card.defenses.items():
        held = own["epsilon"]
        if held is None:
            rows.append([label, "-", "none", "none"])
            continue
        for adjacency in ("replace_one", "add_remove"):
            cells = [_epsilon(held[adjacency][k]) for k in ("tight", "rdp")]
            rows.append([label, adjacency.replace("_", "-"), *cells])
    deltas = {o["epsilon"]["delta"] for o in card.defenses.values() if o["epsilon"]}
    at = ", ".join(f"{d:g}" for d in sorted(deltas)) or "-"
    header = ["defense", "adjacency", f"epsilon({at}), privacy-loss distribution"]
    return _md([*header, "from the Renyi curve"], rows)


def _epsilon(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _md_data(data: dict[str, Any]) -> str:
    sizes = ", ".join(f"{k} {v}" for k, v in data["splits"].items())
    same = data["duplicates"]
    return (
        f"{data['name']} ({data['origin']}): {data['note']}\n\n{sizes}. "
        f"Targets whose exact pixels also stand in fixed or pool: {same}. "
        f"Digest `{data['digest'][:16]}`."
    )


def _md_provenance(where: dict[str, Any]) -> str:
    git = where["git"]
    code = "not a checkout"
    if git:
        code = f"commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}"
    versions = ", ".join(f"{k} {v}" for k, v in where["versions"].items())
    return (
        f"{code}; Python {where['python']}, {versions}; {where['device']} device(s), "
        f"{where['cpus']} CPUs; {where['seconds']} s."
    )


def targets_to_draw(card: Scorecard, most: int = 10) -> np.ndarray:
    """Return which targets a figure shows: the first of each class in turn."""
    labels = card.arrays["label"]
    ranks = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        ranks[own] = np.arange(len(own))
    return np.lexsort((labels, ranks))[:most]
