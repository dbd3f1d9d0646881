"""The whole scorecard as markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from audit.report import audit_cells, control_cells, membership_cells
from audit.report import columns as cells
from audit.report.columns import (
    TOP,
    bound_names,
    bound_text,
    flag_names,
    number,
    strongest,
    with_error,
)
from audit.report.terminal import notes
from audit.scorecard.card import Scorecard


def render(card: Scorecard, figures: list[str]) -> str:
    """Return the whole scorecard as markdown, with its figures' file names."""
    where = card.provenance
    data = card.data
    parts = [
        f"# {card.scenario['scenario']} on {data['name']}",
        card.scenario["title"] + ".",
        f"Source: {card.scenario['source']}.",
        _md_defenses(card),
        "```\n" + notes(card) + "\n```",
        *(f"![{_words(name)}]({name})" for name in figures),
        *(["## Attacks", _md_trials(card)] if card.trials else []),
        *_md_leakage(card),
        *_md_controls(card),
        "## Bounds and leakage",
        *([_md_bounds(card)] if card.scenario["game"] not in TRIALS else []),
        _md_dfil(card),
        *_md_eta(card),
        *_md_steps(card),
        "## Epsilon",
        _md_epsilon(card),
        "## Data",
        _md_data(data),
        "## Where this comes from",
        f"```\n{where['command']}\n```",
        provenance(where),
    ]
    return "\n\n".join(parts) + "\n"


def _words(name: str) -> str:
    return name.removesuffix(".png").replace("_", " ")


def grid(header: list[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a markdown table; nothing inside a cell ends it or is HTML."""
    lines = [header, ["---"] * len(header), *rows]
    escaped = [[no_html(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def no_html(text: str) -> str:
    """Return text on one line in which no HTML starts."""
    for mark in ("&", "<", ">"):
        text = text.replace(mark, f"&#{ord(mark)};")
    return " ".join(text.split())


def literal(text: str) -> str:
    """Return text that starts no markdown: for cells of `grid`, or with `no_html`."""
    return re.sub(r"([\\`\[\]*])", r"\\\1", text)


def _md_defenses(card: Scorecard) -> str:
    columns = cells.columns(card)
    rows = [[c.cell(line) for c in columns] for line in cells.lines(card)]
    return grid([c.header for c in columns], rows)


def _md_trials(card: Scorecard) -> str:
    columns, words = TRIALS.get(card.scenario["game"], (_REBUILT, _REBUILT_SAID))
    if card.scenario["game"] == "exposed":
        columns = columns | _INVERTED
    rows = []
    for t in card.trials:
        if t["status"] != "ok":
            gap = ["-"] * len(columns)
            said = f"{t['status']}: {t['reason']}"
        else:
            gap = [cell(t["result"]) for cell in columns.values()]
            said = flag_names(t, set())
        rows.append([t["defense"], t["attack"], *gap, t["threat_model"], said])
    table = grid(["defense", "attack", *columns, "threat model", "flags"], rows)
    return "\n\n".join([table, *([words] if words else []), *audit_cells.tables(card)])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


_GUESSED = {
    "guessed ± s.e.": lambda r: with_error(r["success"], r["success_se"]),
    "tenth with largest η": lambda r: number(r["success_high_eta"]),
    "tenth with smallest η": lambda r: number(r["success_low_eta"]),
}
_REBUILT = {
    "MSE ± s.e.": lambda r: with_error(r["mse"], r["mse_se"]),
    "median": lambda r: number(r["mse_median"]),
    "typical": lambda r: number(r.get("mse_typical")),
    "bias²": lambda r: number(r["bias2"]),
    "variance": lambda r: number(r["variance"]),
    "SSIM": lambda r: number(r.get("ssim")),
    "PSNR": lambda r: f"{float(r['psnr_median']):.1f}" if "psnr_median" in r else "-",
    "LPIPS": cells.lpips,
    "wins": lambda r: _share(r.get("win_rate")),
    "beats floor": lambda r: _share(r["beats_floor"]),
    "below 1/dFIL": lambda r: _below(r.get("below_bound")),
}
_INVERTED = {
    "normalised": lambda r: number(r["mse_normalised"]),
    "normalised, median": lambda r: number(r["mse_normalised_median"]),
    "matched": lambda r: _share(r["matching"]),
}
_REBUILT_SAID = (
    "median: over targets of the mean over runs; typical: over targets of the median "
    "over runs, which exists where the mean does not. wins: targets rebuilt more "
    "closely than the nearest-neighbour oracle does. beats floor: targets rebuilt "
    "better than by ignoring the release. below 1/dFIL: targets whose mean error lies "
    "below their bound, of those whose bound is below what any guess in the domain "
    "achieves."
)

_MEMBERSHIP = (membership_cells.TABLE, membership_cells.SAID)
TRIALS: dict[str, tuple[dict[str, Any], str]] = {
    "attribute": (_GUESSED, ""),
    "canary": (audit_cells.CANARY | audit_cells.MORE, audit_cells.SAID),
    "one_run": (audit_cells.ONE_RUN | audit_cells.MORE, audit_cells.SAID),
    "membership": _MEMBERSHIP,
    "membership_replace_one": _MEMBERSHIP,
}


def _md_leakage(card: Scorecard) -> list[str]:
    """Return what a membership game found about single records."""
    if not all("membership" in own for own in card.defenses.values()):
        return []
    table = grid(membership_cells.LEAKAGE, membership_cells.leakage(card))
    return ["## Membership, record by record", table, membership_cells.LEAKAGE_SAID]


def _md_controls(card: Scorecard) -> list[str]:
    """Return controls and what the run measured of itself; [] on older cards."""
    parts = []
    for header, rows, said in (
        (
            control_cells.CONTROLS,
            control_cells.controls(card),
            control_cells.CONTROLS_SAID,
        ),
        (
            control_cells.MEASURED,
            control_cells.measured(card),
            control_cells.MEASURED_SAID,
        ),
    ):
        if rows:
            parts += [grid(header, rows), said]
    return ["## Controls", *parts] if parts else []


def _below(held: dict[str, Any] | None) -> str:
    return "-" if held is None else f"{held['within_below']} of {held['within']}"


def _md_bounds(card: Scorecard) -> str:
    header = ["defense", "bound", "mean", "median", "smallest", "holds for"]
    header += ["theorem", "strongest attack / bound"]
    rows, short = [], bound_names(card)
    for label, own in card.defenses.items():
        best = strongest(card, label)
        for b in own["bounds"]:
            against = (best or {"result": {}})["result"].get("against", {})
            tight = against.get(b["name"], {}).get("tightness")
            cells = [bound_text(b, k) for k in ("mean", "median", "min")]
            ratio = "-" if tight is None else f"{float(tight):.3g}"
            rows.append(
                [label, short[b["name"]], *cells, b["holds_for"], b["theorem"], ratio]
            )
        if not own["bounds"]:
            rows.append([label, "none", *["-"] * 6])
    return grid(header, rows)


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
    return f"{grid(header, rows)}\n\n{said}" if rows else "No defense has a dFIL."


def _md_steps(card: Scorecard) -> list[str]:
    """Return what happened in every step of the runs that were taken apart."""
    columns = {
        "accuracy": "accuracy",
        "sqrt_max": "√dFIL so far, max",
        "sqrt_mean": "mean",
        "sqrt_median": "median",
        "base_norm": "norm: base",
        "perturbation_norm": "perturbation",
        "final_norm": "final",
        "cos_public": "cosine: public",
        "cos_private": "private",
        "cos_base": "own",
    }
    rows = [
        [label, str(t + 1), *(number(step.get(name)) for name in columns)]
        for label, own in card.defenses.items()
        for t, step in enumerate(own.get("steps") or [])
    ]
    said = (
        "Means over records. base: the masked gradient; final: the clipped "
        "contribution before noise; cosines are the perturbation's, with the mean "
        "gradient of the public records, with that of the private batch, and with the "
        "record's own."
    )
    table = grid(["defense", "step", *columns.values()], rows)
    return ["## Steps", table, said] if rows else []


def _md_eta(card: Scorecard) -> list[str]:
    held = {label: own["eta"] for label, own in card.defenses.items() if own.get("eta")}
    if not held:
        return []
    header = ["defense", "η mean", "standard deviation", "smallest", "largest"]
    header += ["whole set", "each class"]
    rows = [
        [
            label,
            *(f"{float(eta[k]):.4g}" for k in ("mean", "sd", "min", "max")),
            f"{float(eta['set']):.4g}" if "set" in eta else "-",
            ", ".join(f"{float(v):.4g}" for v in eta.get("classes", ())) or "-",
        ]
        for label, eta in held.items()
    ]
    said = (
        "η is the square root of the Fisher information's spectral norm: about one "
        "record, about all of them at once, about all of a class."
    )
    return [f"{grid(header, rows)}\n\n{said}", *_md_shared(card)]


def _md_shared(card: Scorecard) -> list[str]:
    shared = cells.shared(card)
    if not shared:
        return []
    rows = [[label, *map(str, held.values())] for label, held in shared.items()]
    said = f"Of the {TOP} records with the largest η, two defenses share so many."
    return [f"{grid(['', *shared], rows)}\n\n{said}"]


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
    return grid([*header, "from the Renyi curve"], rows)


def _epsilon(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _md_data(data: dict[str, Any]) -> str:
    sizes = ", ".join(f"{k} {v}" for k, v in data["splits"].items())
    same = data["duplicates"]
    return (
        f"{data['name']} ({data['origin']}): {data['note']}\n\n{sizes}. "
        f"Targets whose exact values also stand in fixed or pool: {same}. "
        f"Digest `{data['digest'][:16]}`."
    )


def provenance(where: dict[str, Any]) -> str:
    """Return where a card comes from, in one line."""
    git = where["git"]
    code = "not a checkout"
    if git:
        code = f"commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}"
    versions = ", ".join(f"{k} {v}" for k, v in where["versions"].items())
    others = "".join(
        f"{p['kind']} {p['name']} from {p['origin']}; "
        for p in where.get("plugins") or []
    )
    return (
        f"{others}{code}; Python {where['python']}, {versions}; "
        f"{where['device']} device(s), {where['cpus']} CPUs; {where['seconds']} s."
    )
