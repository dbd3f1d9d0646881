"""The whole scorecard as markdown."""

from __future__ import annotations

from typing import Any

from audit.bounds import format_bound
from audit.report import (
    SHORT,
    attack_cells,
    bounds_cells,
    common_flags,
    flag_names,
    notes,
    number,
    strongest,
    utility,
    with_error,
)
from audit.scorecard import Scorecard


def render(card: Scorecard) -> str:
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
        flags = flag_names(best, common) if best else "no valid attack"
        floor = number(card.floor["mse"])
        cells = [label, utility(own), *attack_cells(best), floor]
        rows.append([*cells, *bounds_cells(own), flags])
    return _md([*header, *SHORT.values(), "flags"], rows)


def _md_trials(card: Scorecard) -> str:
    header = ["defense", "attack", "MSE ± s.e.", "median", "bias²", "variance", "SSIM"]
    header += ["PSNR", "LPIPS", "wins", "threat model", "flags"]
    rows = []
    for t in card.trials:
        if t["status"] != "ok":
            gap = ["-"] * 8
            said = f"{t['status']}: {t['reason']}"
            rows.append([t["defense"], t["attack"], *gap, t["threat_model"], said])
            continue
        r = t["result"]
        cells = [with_error(r["mse"], r["mse_se"])]
        cells += [number(r[k]) for k in ("mse_median", "bias2", "variance", "ssim")]
        cells += [f"{float(r['psnr_median']):.1f}", attack_cells(t)[2]]
        wins = r.get("win_rate")
        cells.append("-" if wins is None else f"{wins:.0%}")
        flags = ", ".join(f["name"] for f in t["flags"]) or "-"
        rows.append([t["defense"], t["attack"], *cells, t["threat_model"], flags])
    said = "wins: targets rebuilt more closely than the nearest-neighbour oracle does."
    return f"{_md(header, rows)}\n\n{said}"


def _md_bounds(card: Scorecard) -> str:
    header = ["defense", "bound", "mean", "median", "smallest", "holds for"]
    header += ["theorem", "strongest attack / bound"]
    rows = []
    for label, own in card.defenses.items():
        best = strongest(card, label)
        for b in own["bounds"]:
            tight = best and best["result"]["against"][b["name"]]["tightness"]
            cells = [
                format_bound(float(b[k]), b["log10"]) for k in ("mean", "median", "min")
            ]
            ratio = "-" if tight is None else f"{tight:.3g}"
            rows.append(
                [label, SHORT[b["name"]], *cells, b["holds_for"], b["theorem"], ratio]
            )
        if not own["bounds"]:
            rows.append([label, "none", *["-"] * 6])
    return _md(header, rows)


def _md_dfil(card: Scorecard) -> str:
    header = ["defense", "dFIL mean", "median", "max", "√dFIL mean", "median", "max"]
    header.append("relative s.e.")
    keys = ("mean", "median", "max", "sqrt_mean", "sqrt_median", "sqrt_max")
    rows = [
        [
            label,
            *(f"{float(own['dfil'][k]):.4g}" for k in keys),
            _percent(own["dfil"].get("relative_se")),
        ]
        for label, own in card.defenses.items()
        if own["dfil"]
    ]
    said = (
        "dFIL is the trace of the Fisher information about a record over its dimension;"
        " Edmunds (2024) prints its square root under the same name. The standard error"
        " is of one target's dFIL over training runs, median over targets."
    )
    return f"{_md(header, rows)}\n\n{said}" if rows else "No defense has a dFIL."


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


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
