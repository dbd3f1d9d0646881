"""`python -m audit verify ROW.json`: run a scorecard's command again and compare.

A row is what `scorecard.schema` says one is. Its command never goes to a shell: its
words are composed as those of `python -m audit run` are, with the data set of the row
and a folder of `verify`'s; words that would reach further are refused.

A number may differ by two standard errors of the row, and by a thousandth, which
another machine's rounding may do. Numbers without a standard error (bounds, epsilon)
have the thousandth alone.
"""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from audit.config import hydra_app, plugins, workspace
from audit.config.compose import Scenario
from audit.engine.store import installed
from audit.errors import UserError
from audit.scorecard import schema
from audit.scorecard.card import Scorecard, plain
from audit.scorecard.schema import DefenseRow, Utility

STANDARD_ERRORS, LEAST = 2.0, 1e-3
COMMAND = ["python", "-m", "audit", "run"]
CODES = {"equal": 0, "differs": 1, "stale": 3}  # 2: what was typed cannot be replayed
OURS = ("out=", "store=", "data=")  # words of a row that `verify` replaces
VERSIONS = ("breachmark", "jax", "jaxlib", "flax", "optax", "numpy", "dp-accounting")


class Number(NamedTuple):
    """One number of a row beside its replay."""

    name: str
    theirs: float
    ours: float
    allowed: float

    @property
    def equal(self) -> bool:
        """Whether they agree; nan and infinity agree with themselves."""
        if not (math.isfinite(self.theirs) and math.isfinite(self.ours)):
            return str(self.theirs) == str(self.ours)
        return abs(self.theirs - self.ours) <= self.allowed


class ReplayVerdict(NamedTuple):
    """The outcome of a replay."""

    word: str  # of CODES
    numbers: tuple[Number, ...]
    changed: tuple[str, ...]  # what is not as it was when the row was made
    missing: tuple[str, ...]  # numbers of the row that its replay lacks
    errors: tuple[str, ...] = ()  # flags of that level that the replay alone raises


def replay_words(card: Scorecard, out: Path) -> list[str]:
    """Return the words of `run` that replay a row into another folder.

    The row's folders of plug-ins are never opened: the command line must name some.
    Raises UserError if they are needed and missing, or if the command is not one of
    `python -m audit run` or has a word that would do more than set up its scenario.
    """
    command = card.provenance["command"]
    try:
        typed = shlex.split(command)
    except ValueError as error:
        raise UserError(f"cannot read the row's command {command!r}: {error}") from None
    if typed[:4] != COMMAND:
        raise UserError(
            f"the row's command {command!r} is not one of python -m audit run"
        )
    made = [p.name for p in card.provenance.plugins if p.origin == plugins.IN_PYTHON]
    if made:
        raise UserError(
            f"the row was made in Python with {', '.join(made)} of its caller: make it "
            f"again there, or put them into a plug-in's file"
        )
    typed, folders = plugins.words(typed)
    if folders and not plugins.named_folders():
        raise UserError(
            f"the row was made with plug-ins in {folders[0]!r}: read their code, then "
            f"say where they are with --plugins DIR"
        )
    for word in typed[4:]:
        if word.startswith(("hydra", "-", "+", "~")) or "${" in word or "=" not in word:
            raise UserError(f"the row's command has {word!r}, which is not replayed")
    name = f"scenario={card.scenario['scenario']}"
    if [w for w in typed if w.startswith("scenario=")] != [name]:
        raise UserError(f"the row's command {command!r} is not of its {name}")
    kept = [w for w in typed[4:] if not w.startswith(OURS)]
    # data of one's own by the word that finds them: their name is that of one version
    data = [f"data={p.name}" for p in card.provenance.plugins if p.kind == "data"]
    data += [w for w in typed[4:] if w.startswith(hydra_app.FILE)]
    return [*kept, *(data or [f"data={card.data['name']}"]), f"out={out}"]


def compose(card: Scorecard, out: Path) -> Scenario:
    """Return the scenario of a row as this code composes it. Raises: `replay_words`.

    The line-up is the row's, also where the scenario's own has changed since.
    """
    words = replay_words(card, out)
    scenario = hydra_app.composed(words)[0]
    line_ups = []
    for kind in ("defense", "attack"):
        labels = list(card.scenario[kind])
        if labels != [entry.label for entry in scenario.line_ups[kind]]:
            line_ups.append(f"{kind}s=[{','.join(labels)}]")
    return hydra_app.composed([*words, *line_ups])[0] if line_ups else scenario


def changed(card: Scorecard, scenario: Scenario) -> list[str]:
    """Return what is not as it was when the row was made, in words."""
    changes, code = [], card.provenance.get("code")
    if code is None:
        changes.append("the row does not say which code made it")
    elif code != workspace.code_version(scenario):
        changes.append("the code that can change it")
    settings, theirs = scenario.resolved(), plain(card.scenario)
    changes += [
        f"scenario.{key}"
        for key in sorted({*settings, *theirs})
        if plain(settings.get(key)) != theirs.get(key)
    ]
    for package, here in installed(*VERSIONS).items():
        version = card.provenance["versions"].get(package)
        if version not in (None, here):
            changes.append(f"{package} {version}, here {here}")
    return changes


# Comparing ----------------------------------------------------------------------------


def numbers(card: Scorecard) -> dict[str, tuple[float, float]]:
    """Return the row's numbers that are compared: name -> (value, standard error)."""
    compared: dict[str, tuple[Any, Any]] = {}
    if card.floor.mse is not None:
        compared["floor.mse"] = card.floor.mse, card.floor.mse_se
    for label, defense in card.defenses.items():
        named = _defense_numbers(defense)
        compared |= {f"defenses.{label}.{k}": pair for k, pair in named.items()}
    for trial in card.trials:
        if trial.result is not None:
            headline = trial.result.headline
            name = f"trials.{trial.attack} on {trial.defense}.{headline.metric}"
            compared[name] = headline.value, headline.standard_error
    return {k: (float(v), float(se or 0)) for k, (v, se) in compared.items()}


def _defense_numbers(defense: DefenseRow) -> dict[str, tuple[Any, Any]]:
    compared: dict[str, tuple[Any, Any]] = {}
    for key in ("accuracy", "r2"):
        if defense.utility and (value := defense.utility[key]) is not None:
            compared[key] = value, _utility_se(defense.utility, key)
    for bound in defense.bounds:  # a replay draws the same probes and trajectories
        value = bound.mean if bound.log10 is None else bound.log10
        compared[bound.name] = value, None
    for adjacency in ("replace_one", "add_remove"):
        pair = defense.epsilon and defense.epsilon[adjacency]
        for key in ("rdp", "tight"):
            if pair and pair[key] is not None:
                compared[f"epsilon.{adjacency}.{key}"] = pair[key], None
    return compared


def _utility_se(utility: Utility, key: str) -> float:
    """Return the s.e. of a mean over models, and of the test part for a share."""
    spread = float(utility[f"{key}_sd"] or 0) ** 2 / max(1, utility.models)
    if key == "accuracy":
        share = min(max(float(utility[key]), 0.0), 1.0)
        spread += share * (1 - share) / max(1, utility.test)
    return math.sqrt(spread)


def compare(theirs: Scorecard, ours: Scorecard, different: list[str]) -> ReplayVerdict:
    """Return the verdict on a row, given its replay and what changed since it was made.

    A row that is not reproduced is stale if anything changed, and differs otherwise.
    One that is reproduced is equal all the same.
    """
    before, now = numbers(theirs), numbers(ours)
    compared = tuple(
        Number(name, value, now[name][0], max(STANDARD_ERRORS * se, LEAST * abs(value)))
        for name, (value, se) in before.items()
        if name in now
    )
    missing = tuple(sorted(before.keys() - now.keys()))
    errors = tuple(sorted(_errors(ours) - _errors(theirs)))
    word = "stale" if different else "differs"
    if compared and all(n.equal for n in compared) and not missing and not errors:
        word = "equal"
    return ReplayVerdict(word, compared, tuple(different), missing, errors)


def _errors(card: Scorecard) -> set[str]:
    """Return the flags of level error, and what they are raised on."""
    flags = {d: row.flags for d, row in card.defenses.items()}
    flags |= {f"{t.attack} on {t.defense}": t.flags for t in card.trials}
    return {
        f"{where}: {flag.name}"
        for where, raised in flags.items()
        for flag in raised
        if flag.level == "error"
    }


def render(verdict: ReplayVerdict) -> str:
    """Return a verdict in words, the numbers that differ first."""
    bad = [n for n in verdict.numbers if not n.equal]
    lines = [
        f"{n.name}: {n.theirs:.6g} in the row, {n.ours:.6g} here, "
        f"{n.allowed:.2g} allowed"
        for n in bad
    ]
    lines += [f"{name}: in the row, not here" for name in verdict.missing]
    lines += [f"{error}: an error here, not in the row" for error in verdict.errors]
    if verdict.changed:
        lines.append(f"changed since: {'; '.join(verdict.changed)}")
    equal = f"{len(verdict.numbers) - len(bad)} of {len(verdict.numbers)} numbers agree"
    within = f"{STANDARD_ERRORS:g} standard errors of the row's own, or a thousandth"
    endings = {
        "equal": f"equal: {equal}, within {within}",
        "differs": f"differs beyond tolerance: {equal}, by the same code and settings",
        "stale": f"stale: {equal}, and what made the row has changed",
    }
    return "\n".join([*lines, endings[verdict.word]])


def verify(
    row: Path, out: Path | None, audit: Callable[[Scenario], Scorecard]
) -> ReplayVerdict:
    """Return the verdict on a row, a scorecard.json or its folder, after a replay.

    `audit` runs one scenario into the folder it names: `out`, or one that does not
    last. Raises UserError for what is no scorecard, or a command that is not replayed.
    """
    card = schema.load(row / "scorecard.json" if row.is_dir() else row)
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        scenario = compose(card, out or Path(place) / "run")
        different = changed(card, scenario)
        ours = audit(scenario)
    if ours.data["digest"] != card.data["digest"]:
        different.append("the data")
    return compare(card, ours, different)
