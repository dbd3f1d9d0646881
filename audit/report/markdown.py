"""The whole scorecard as markdown."""

from __future__ import annotations

from typing import Any

from audit.report import columns as cells
from audit.report.columns import TOP, flag_names, strongest
from audit.report.terminal import notes
from audit.scorecard.schema import DataUsed, Provenance, Scorecard
from audit.scorecard.view import (
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

CONTROLS_WORDS = (
    "Null control: the error of the same guesses against another target of the class, "
    "or the AUC with the memberships of other records; it must not beat the floor, or "
    "differ from .5. Positive control: the attack's error on the undefended learner; "
    "it must beat the floor."
)
SELF_CHECKS_WORDS = (
    "Measured on a few steps, and on releases that differ in their noise alone; the "
    "divergence is of order 2, accounted over that of the noise and the batches seen. "
    "none: nothing to see, or another law than a Gaussian."
)


def render(card: Scorecard, figures: list[str]) -> str:
    """Return the whole scorecard as Markdown, with its figures' file names."""
    game, scenario = cells.view(card), card.scenario
    parts = [
        f"# {scenario.scenario} on {card.data.name}",
        scenario.title + ".",
        f"Source: {scenario.source}.",
        _md_defenses(card),
        "```\n" + notes(card) + "\n```",
        *(f"![{_words(name)}]({name})" for name in figures),
        *(["## Attacks", _md_trials(card)] if card.trials else []),
        *game.sections(card),
        *_md_controls(card),
        "## Bounds and leakage",
        *([_md_bounds(card)] if game.bound_table else []),
        _md_dfil(card),
        *_md_eta(card),
        *game.step_sections(card),
        "## Epsilon",
        _md_epsilon(card),
        "## Data",
        _md_data(card.data),
        "## Where this comes from",
        f"```\n{card.provenance.command}\n```",
        provenance(card.provenance),
    ]
    return "\n\n".join(parts) + "\n"


def _words(name: str) -> str:
    return name.removesuffix(".png").replace("_", " ")


def _md_defenses(card: Scorecard) -> str:
    columns = cells.columns(card)
    rows = [[c.cell(line) for c in columns] for line in cells.lines(card)]
    return grid([c.header for c in columns], rows)


def _md_trials(card: Scorecard) -> str:
    game, rows = cells.view(card), []
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
    return "\n\n".join([table, *words, *game.trial_sections(card)])


def _md_controls(card: Scorecard) -> list[str]:
    """Return controls and what the run measured of itself; [] on older cards."""
    controls, checks = _controls(card), _self_checks(card)
    parts = []
    if controls:
        header = ["defense", "attack", "null control", "positive control"]
        parts += [grid([*header, "beats the floor"], controls), CONTROLS_WORDS]
    if checks:
        header = ["defense", "noise drawn / accounted", "correlation of draws, in s.e."]
        header += ["longest contribution / bound", "batches seen"]
        table = grid([*header, "divergence accounted / seen"], checks)
        parts += [table, SELF_CHECKS_WORDS]
    return ["## Controls", *parts] if parts else []


def _controls(card: Scorecard) -> list[list[str]]:
    """Return one row per trial with controls; oracles have none to pass."""
    rows = []
    for trial in card.trials:
        if trial.result is None or trial.result.oracle:
            continue
        controls = trial.result.get("controls")
        if not controls:
            continue
        positive, words = controls.get("positive"), ["none", "-"]
        if positive is not None:
            beats = "yes" if positive["beats_floor"] else "no"
            words = [number(positive["error"]), beats]
        null = _null(controls.get("null"))
        rows.append([trial.defense, trial.attack, null, *words])
    return rows


def _null(null: dict[str, Any] | None) -> str:
    if null is None:
        return "-"
    if "value" in null:
        return interval(null)
    return with_error(null["error"], null["error_se"])


def _self_checks(card: Scorecard) -> list[list[str]]:
    """Return one row per defense whose runs were measured."""
    rows = []
    for label, defense in card.defenses.items():
        checks = defense.measured
        if checks is None or all(v is None for v in checks.model_dump().values()):
            continue
        values = (checks.noise, checks.shared, checks.contribution)
        cells_ = [*(number(v, 3) for v in values), checks.sampling or "none"]
        rows.append([label, *cells_, number(checks.divergence, 3)])
    return rows


def _md_bounds(card: Scorecard) -> str:
    header = ["defense", "bound", "mean", "median", "smallest", "holds for"]
    header += ["theorem", "strongest attack / bound"]
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
    return grid(header, rows)


def _md_dfil(card: Scorecard) -> str:
    header = ["defense", "dFIL mean", "median", "max", "√dFIL mean", "median", "max"]
    header.append("relative s.e.")
    keys = ("mean", "median", "max", "sqrt_mean", "sqrt_median", "sqrt_max")
    rows = [
        [
            label,
            *(f"{float(defense.dfil[k]):.4g}" for k in keys),
            _percent(defense.dfil.get("relative_se")),
        ]
        for label, defense in card.defenses.items()
        if defense.dfil
    ]
    words = (
        "dFIL is the trace of the Fisher information about a record over its dimension;"
        " Edmunds (2024) prints its square root under the same name. The standard error"
        " is of one target's dFIL over training runs, median over targets."
    )
    return f"{grid(header, rows)}\n\n{words}" if rows else "No defense has a dFIL."


def _md_eta(card: Scorecard) -> list[str]:
    etas = {label: d.eta for label, d in card.defenses.items() if d.eta}
    if not etas:
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
        for label, eta in etas.items()
    ]
    words = (
        "η is the square root of the Fisher information's spectral norm: about one "
        "record, about all of them at once, about all of a class."
    )
    return [f"{grid(header, rows)}\n\n{words}", *_md_shared(card)]


def _md_shared(card: Scorecard) -> list[str]:
    shared = cells.shared(card)
    if not shared:
        return []
    rows = [[label, *map(str, counts.values())] for label, counts in shared.items()]
    words = f"Of the {TOP} records with the largest η, two defenses share so many."
    return [f"{grid(['', *shared], rows)}\n\n{words}"]


def _percent(share: Any) -> str:
    return "none" if share is None else f"{float(share):.1%}"


def _md_epsilon(card: Scorecard) -> str:
    rows = []
    for label, defense in card.defenses.items():
        if defense.epsilon is None:
            rows.append([label, "-", "none", "none"])
            continue
        for adjacency in ("replace_one", "add_remove"):
            pair = defense.epsilon[adjacency]
            values = [_epsilon(pair.tight), _epsilon(pair.rdp)]
            rows.append([label, adjacency.replace("_", "-"), *values])
    deltas = {d.epsilon.delta for d in card.defenses.values() if d.epsilon}
    at = ", ".join(f"{d:g}" for d in sorted(deltas)) or "-"
    header = ["defense", "adjacency", f"epsilon({at}), privacy-loss distribution"]
    return grid([*header, "from the Renyi curve"], rows)


def _epsilon(value: Any) -> str:
    return "none" if value is None else f"{float(value):.4f}"


def _md_data(data: DataUsed) -> str:
    sizes = ", ".join(f"{k} {v}" for k, v in data.splits.items())
    return (
        f"{data.name} ({data.origin}): {data.note}\n\n{sizes}. "
        f"Targets whose exact values also stand in fixed or pool: {data.duplicates}. "
        f"Digest `{data.digest[:16]}`."
    )


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
