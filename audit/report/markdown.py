"""The whole scorecard as Markdown: the words are in its template, the cells here."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from audit.report import columns as cells
from audit.report.columns import TOP, strongest
from audit.report.terminal import notes
from audit.scorecard import view
from audit.scorecard.schema import BoundSummary, Provenance, Scorecard
from audit.scorecard.view import grid, literal, no_html, number, with_error

Rows = list[list[str]]


@functools.cache
def templates() -> Environment:
    """Return the Markdown templates, with what they call: `table` and `escaped`."""
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    env = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True)
    env.keep_trailing_newline = True
    env.globals["table"] = _table
    env.filters["escaped"] = lambda text: no_html(literal(text))
    return env


def _table(header: str | Iterable[str], rows: Rows) -> str:
    header = header.split(" | ") if isinstance(header, str) else header
    return grid(list(header), rows)


def render(card: Scorecard, figures: list[str]) -> str:
    """Return the whole scorecard as Markdown, with its figures' file names."""
    game, columns, shared = cells.view(card), cells.columns(card), cells.shared(card)
    deltas = {d.epsilon.delta for d in card.defenses.values() if d.epsilon}
    return (
        templates()
        .get_template("scorecard.md.jinja")
        .render(
            card=card,
            game=game,
            figures=figures,
            notes=notes(card),
            columns=columns,
            defenses=[[c.cell(line) for c in columns] for line in cells.lines(card)],
            attack_columns=["defense", "attack", *game.trial, "threat model", "flags"],
            attacks=_attacks(card),
            controls=_controls(card),
            self_checks=_self_checks(card),
            bounds=_bounds(card),
            dfil=_dfil(card),
            of_one_run=cells.of_one_run(card),
            eta=_eta(card),
            top=TOP,
            shared=shared,
            shared_counts=[[d, *map(str, n.values())] for d, n in shared.items()],
            epsilon=_epsilon(card),
            deltas=", ".join(f"{d:g}" for d in sorted(deltas)) or "-",
            provenance=provenance(card.provenance),
        )
    )


def _attacks(card: Scorecard) -> Rows:
    game, rows = cells.view(card), []
    for trial in card.trials:
        if trial.result is None:
            numbers = ["-"] * len(game.trial)
            flags = f"{trial.status}: {trial.reason}"
        else:
            numbers = [cell(trial.result) for cell in game.trial.values()]
            flags = ", ".join(flag.name for flag in trial.flags) or "-"
        row = [trial.defense, trial.attack, *numbers, trial.threat_model, flags]
        rows.append(row)
    return rows


def _controls(card: Scorecard) -> Rows:
    """Return one row per trial with controls; an oracle has none to pass."""
    rows = []
    for trial in card.trials:
        result = trial.result
        controls = result and not result.oracle and result.get("controls")
        if not controls:
            continue
        null, positive = controls.get("null"), controls.get("positive")
        cell, beaten = "-", ["none", "-"]
        if null is not None and "value" in null:
            cell = view.interval(null)
        elif null is not None:
            cell = view.with_error(null["error"], null["error_se"])
        if positive is not None:
            beats = "yes" if positive["beats_floor"] else "no"
            beaten = [number(positive["error"]), beats]
        rows.append([trial.defense, trial.attack, cell, *beaten])
    return rows


def _self_checks(card: Scorecard) -> Rows:
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


def _bounds(card: Scorecard) -> Rows:
    rows, short = [], view.bound_names(card)
    for label, defense in card.defenses.items():
        best = strongest(card, label)
        against = best.result.get("against", {}) if best and best.result else {}
        for bound in defense.bounds:
            tight = against.get(bound.name, {}).get("tightness")
            values = [view.bound_text(bound, k) for k in ("mean", "median", "min")]
            ratio = "-" if tight is None else f"{float(tight):.3g}"
            about = [bound.holds_for + _attained(bound), bound.theorem, ratio]
            rows.append([label, short[bound.name], *values, *about])
        if not defense.bounds:
            rows.append([label, "none", *["-"] * 6])
    return rows


def _attained(bound: BoundSummary) -> str:
    """Return who attains an estimated bound, and how many targets its test takes."""
    if bound.genie is None:
        return ""
    error = with_error(bound.genie, bound.genie_se)
    text = f"; the attacker who attains it errs by {error}"
    if bound.needed is not None:
        needed = f"{bound.needed} or more targets"
        text += f"; {needed} tell an error of half the bound from it"
    return text


def _dfil(card: Scorecard) -> Rows:
    keys = ("mean", "median", "max", "sqrt_mean", "sqrt_median", "sqrt_max")
    rows = []
    for label, defense in card.defenses.items():
        if defense.dfil:
            se = defense.dfil.get("relative_se")
            relative = "none" if se is None else f"{float(se):.1%}"
            rows.append([label, *_digits(defense.dfil[k] for k in keys), relative])
    return rows


def _eta(card: Scorecard) -> Rows:
    rows = []
    for label, defense in card.defenses.items():
        if eta := defense.eta:
            values = _digits(eta[k] for k in ("mean", "sd", "min", "max"))
            whole = _digits([eta["set"]]) if "set" in eta else ["-"]
            classes = ", ".join(_digits(eta.get("classes", ()))) or "-"
            rows.append([label, *values, *whole, classes])
    return rows


def _digits(values: Iterable[Any]) -> list[str]:
    return [f"{float(value):.4g}" for value in values]


def _epsilon(card: Scorecard) -> Rows:
    rows = []
    for label, defense in card.defenses.items():
        if defense.epsilon is None:
            rows.append([label, "-", "none", "none"])
            continue
        for adjacency in ("replace_one", "add_remove"):
            pair = defense.epsilon[adjacency]
            values = [
                "none" if v is None else f"{float(v):.4f}"
                for v in (pair.tight, pair.rdp)
            ]
            rows.append([label, view.adjacency_name(defense, adjacency), *values])
    return rows


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
