"""The whole scorecard as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from audit.report import columns as cells
from audit.report.columns import TOP, flag_names, strongest
from audit.report.terminal import notes
from audit.scorecard.schema import Provenance, Scorecard
from audit.scorecard.view import (
    View,
    bound_names,
    bound_text,
    grid,
    interval,
    literal,
    no_html,
    number,
    with_error,
)

__all__ = ["grid", "literal", "no_html", "provenance", "render"]

CONTROLS = "defense | attack | null control | positive control | beats the floor"
CONTROLS_WORDS = (
    "Null control: the error of the same guesses against another target of the class, "
    "or the AUC with the memberships of other records; it must not beat the floor, or "
    "differ from .5. Positive control: the attack's error on the undefended learner; "
    "it must beat the floor."
)
SELF_CHECKS = (
    "defense | noise drawn / accounted | correlation of draws, in s.e. | "
    "longest contribution / bound | batches seen | divergence accounted / seen"
)
SELF_CHECKS_WORDS = (
    "Measured on a few steps, and on releases that differ in their noise alone; the "
    "divergence is of order 2, accounted over that of the noise and the batches seen. "
    "none: nothing to see, or another law than a Gaussian."
)
DFIL_WORDS = (
    "dFIL is the trace of the Fisher information about a record over its dimension;"
    " Edmunds (2024) prints its square root under the same name. The standard error"
    " is of one target's dFIL over training runs, median over targets."
)
ETA_WORDS = (
    "η is the square root of the Fisher information's spectral norm: about one "
    "record, about all of them at once, about all of a class."
)


def render(card: Scorecard, figures: list[str]) -> str:
    """Return the whole scorecard as Markdown, with its figures' file names."""
    game, scenario, data = cells.view(card), card.scenario, card.data
    columns = cells.columns(card)
    defenses = [[c.cell(line) for c in columns] for line in cells.lines(card)]
    controls = _table(CONTROLS, _controls(card), CONTROLS_WORDS)
    controls += _table(SELF_CHECKS, _self_checks(card), SELF_CHECKS_WORDS)
    sizes = ", ".join(f"{k} {v}" for k, v in data.splits.items())
    parts = [
        f"# {scenario.scenario} on {data.name}",
        f"{scenario.title}.",
        f"Source: {scenario.source}.",
        grid([c.header for c in columns], defenses),
        f"```\n{notes(card)}\n```",
        *(f"![{f.removesuffix('.png').replace('_', ' ')}]({f})" for f in figures),
        *(_attacks(card, game) if card.trials else []),
        *game.sections(card),
        *(["## Controls", *controls] if controls else []),
        "## Bounds and leakage",
        *([_bounds(card)] if game.bound_table else []),
        *(_dfil(card) or ["No defense has a dFIL."]),
        *_eta(card),
        *game.step_sections(card),
        "## Epsilon",
        _epsilon(card),
        "## Data",
        f"{data.name} ({data.origin}): {data.note}",
        f"{sizes}. Targets whose exact values also stand in fixed or pool: "
        f"{data.duplicates}. Digest `{data.digest[:16]}`.",
        "## Where this comes from",
        f"```\n{card.provenance.command}\n```",
        provenance(card.provenance),
    ]
    return "\n\n".join(parts) + "\n"


def _table(header: str, rows: list[list[str]], words: str) -> list[str]:
    """Return a table with words below it; nothing where there is no row."""
    return [grid(header.split(" | "), rows), words] if rows else []


def _digits(values: Iterable[Any]) -> list[str]:
    return [f"{float(value):.4g}" for value in values]


def _attacks(card: Scorecard, game: View) -> list[str]:
    rows = []
    for trial in card.trials:
        if trial.result is None:
            numbers = ["-"] * len(game.trial)
            flags = f"{trial.status}: {trial.reason}"
        else:
            numbers = [cell(trial.result) for cell in game.trial.values()]
            flags = flag_names(trial, set())
        row = [trial.defense, trial.attack, *numbers, trial.threat_model, flags]
        rows.append(row)
    table = grid(["defense", "attack", *game.trial, "threat model", "flags"], rows)
    words = [game.trial_words] if game.trial_words else []
    return ["## Attacks", table, *words, *game.trial_sections(card)]


def _controls(card: Scorecard) -> list[list[str]]:
    """Return one row per trial with controls; an oracle has none to pass."""
    rows = []
    for trial in card.trials:
        result = trial.result
        controls = result and not result.oracle and result.get("controls")
        if not controls:
            continue
        null, positive = controls.get("null"), controls.get("positive")
        cell, beaten = "-", ["none", "-"]
        if null is not None:
            cell = (
                interval(null)
                if "value" in null
                else with_error(null["error"], null["error_se"])
            )
        if positive is not None:
            beats = "yes" if positive["beats_floor"] else "no"
            beaten = [number(positive["error"]), beats]
        rows.append([trial.defense, trial.attack, cell, *beaten])
    return rows


def _self_checks(card: Scorecard) -> list[list[str]]:
    """Return one row per defense whose runs were measured."""
    rows = []
    for label, defense in card.defenses.items():
        checks = defense.measured
        if checks is None or all(v is None for v in checks.model_dump().values()):
            continue
        values = (checks.noise, checks.shared, checks.contribution)
        measured = [*(number(v, 3) for v in values), checks.sampling or "none"]
        rows.append([label, *measured, number(checks.divergence, 3)])
    return rows


def _bounds(card: Scorecard) -> str:
    rows, short = [], bound_names(card)
    for label, defense in card.defenses.items():
        best = strongest(card, label)
        against = best.result.get("against", {}) if best and best.result else {}
        for bound in defense.bounds:
            tight = against.get(bound.name, {}).get("tightness")
            values = [bound_text(bound, k) for k in ("mean", "median", "min")]
            ratio = "-" if tight is None else f"{float(tight):.3g}"
            about = [bound.holds_for, bound.theorem, ratio]
            rows.append([label, short[bound.name], *values, *about])
        if not defense.bounds:
            rows.append([label, "none", *["-"] * 6])
    header = ["defense", "bound", "mean", "median", "smallest", "holds for", "theorem"]
    return grid([*header, "strongest attack / bound"], rows)


def _dfil(card: Scorecard) -> list[str]:
    keys = ("mean", "median", "max", "sqrt_mean", "sqrt_median", "sqrt_max")
    rows = []
    for label, defense in card.defenses.items():
        if defense.dfil:
            se = defense.dfil.get("relative_se")
            relative = "none" if se is None else f"{float(se):.1%}"
            rows.append([label, *_digits(defense.dfil[k] for k in keys), relative])
    header = "defense | dFIL mean | median | max | √dFIL mean | median | max"
    return _table(f"{header} | relative s.e.", rows, DFIL_WORDS)


def _eta(card: Scorecard) -> list[str]:
    rows, shared = [], cells.shared(card)
    for label, defense in card.defenses.items():
        if eta := defense.eta:
            values = _digits(eta[k] for k in ("mean", "sd", "min", "max"))
            whole = _digits([eta["set"]]) if "set" in eta else ["-"]
            classes = ", ".join(_digits(eta.get("classes", ()))) or "-"
            rows.append([label, *values, *whole, classes])
    header = "defense | η mean | standard deviation | smallest | largest"
    parts = _table(f"{header} | whole set | each class", rows, ETA_WORDS)
    if shared:
        alike = [
            [label, *map(str, counts.values())] for label, counts in shared.items()
        ]
        words = f"Of the {TOP} records with the largest η, two defenses share so many."
        parts += [grid(["", *shared], alike), words]
    return parts


def _epsilon(card: Scorecard) -> str:
    rows, deltas = [], set()
    for label, defense in card.defenses.items():
        if defense.epsilon is None:
            rows.append([label, "-", "none", "none"])
            continue
        deltas.add(defense.epsilon.delta)
        for adjacency in ("replace_one", "add_remove"):
            pair = defense.epsilon[adjacency]
            values = (
                "none" if value is None else f"{float(value):.4f}"
                for value in (pair.tight, pair.rdp)
            )
            rows.append([label, adjacency.replace("_", "-"), *values])
    at = ", ".join(f"{d:g}" for d in sorted(deltas)) or "-"
    header = ["defense", "adjacency", f"epsilon({at}), privacy-loss distribution"]
    return grid([*header, "from the Renyi curve"], rows)


def provenance(where: Provenance) -> str:
    """Return where a card comes from, in one line."""
    code = "not a checkout"
    if where.git:
        changes = " with changes" if where.git.dirty else ""
        code = f"commit {where.git.commit[:12]}{changes}"
    versions = ", ".join(f"{k} {v}" for k, v in where.versions.items())
    others = "".join(f"{p.kind} {p.name} from {p.origin}; " for p in where.plugins)
    return (
        f"{others}{code}; Python {where.python}, {versions}; "
        f"{where.device} device(s), {where.cpus} CPUs; {where.seconds} s."
    )
