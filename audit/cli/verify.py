"""`python -m audit verify ROW.json`: run a scorecard's command again and compare.

A row is what `contract` says one is. Its command is never given to a shell: its words
are composed as those of `python -m audit run` are, the data set it used is insisted on,
results go to a folder of our own, and words that would reach further are refused.

Two standard errors of the row's own number are allowed, and never less than a
thousandth of it: that much another machine's rounding may do. Numbers without a
standard error (bounds, epsilon) have the thousandth alone.
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
from audit.errors import UserError
from audit.scorecard import schema
from audit.scorecard.card import Scorecard

STANDARD_ERRORS, LEAST = 2.0, 1e-3
COMMAND = ["python", "-m", "audit", "run"]
CODES = {"equal": 0, "differs": 1, "stale": 3}  # 2: what was typed cannot be replayed
OURS = ("out=", "store=", "data=")  # words of a row that are ours to choose
VERSIONS = ("breachmark", "jax", "jaxlib", "flax", "optax", "numpy", "dp-accounting")


class Asked(NamedTuple):
    """The words of the command."""

    row: Path
    out: Path | None


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


class Verdict(NamedTuple):
    """What came of a replay."""

    word: str  # of CODES
    numbers: tuple[Number, ...]
    changed: tuple[str, ...]  # what is not as it was when the row was made
    missing: tuple[str, ...]  # numbers of the row that its replay lacks


def words(given: list[str]) -> Asked:
    """Return what `verify ROW.json [out=DIR]` asks for.

    Raises:
      UserError: naming the word that is wrong.
    """
    rows, out = [], None
    for word in given:
        if word.startswith("out="):
            out = Path(word.removeprefix("out="))
        elif word.startswith("-"):
            raise UserError(f"verify takes ROW.json and out=DIR, not {word!r}")
        else:
            rows.append(word)
    if len(rows) != 1:
        raise UserError("verify which row? the scorecard.json of a run, or its folder")
    path = Path(rows[0])
    return Asked(path / "scorecard.json" if path.is_dir() else path, out)


def replay_words(card: Scorecard, out: Path) -> list[str]:
    """Return the words of `run` that replay a row into a folder of our own.

    Raises:
      UserError: if the command is not one of `python -m audit run`, or has a word that
        would do more than set up its scenario.
    """
    command = card.provenance["command"]
    try:
        said = shlex.split(command)
    except ValueError as error:
        raise UserError(f"cannot read the row's command {command!r}: {error}") from None
    if said[:4] != COMMAND:
        raise UserError(
            f"the row's command {command!r} is not one of python -m audit run"
        )
    said = _without_plugins(said)
    for word in said[4:]:
        if word.startswith(("hydra", "-", "+", "~")) or "${" in word or "=" not in word:
            raise UserError(f"the row's command has {word!r}, which is not replayed")
    name = f"scenario={card.scenario['scenario']}"
    if [w for w in said if w.startswith("scenario=")] != [name]:
        raise UserError(f"the row's command {command!r} is not of its {name}")
    kept = [w for w in said[4:] if not w.startswith(OURS)]
    return [*kept, f"data={card.data['name']}", f"out={out}"]


def _without_plugins(said: list[str]) -> list[str]:
    """Return the row's words without its folders of plug-ins, which are never opened.

    Raises:
      UserError: if the row had some and the command line names none.
    """
    kept, theirs = plugins.words(said)
    if theirs and not plugins.named_folders():
        raise UserError(
            f"the row was made with plug-ins in {theirs[0]!r}: read their code, then "
            f"say where they are with --plugins DIR"
        )
    return kept


def compose(card: Scorecard, out: Path) -> Scenario:
    """Return the scenario of a row as this code composes it; nothing runs.

    Raises:
      UserError: if a word of it does not exist here, or its data are not on this
        machine.
    """
    found: list[Scenario] = []
    hydra_app.launch(replay_words(card, out), lambda s, _: found.append(s))
    return found[0]


def changed(card: Scorecard, scenario: Scenario) -> list[str]:
    """Return what is not as it was when the row was made, in words."""
    from importlib import metadata

    found = []
    if card.provenance.get("code") is None:
        found.append("the row does not say which code made it")
    elif card.provenance["code"] != workspace.code_version(scenario):
        found.append("the code that can change it")
    settings = scenario.resolved()
    found += [
        f"scenario.{key}"
        for key in sorted({*settings, *card.scenario})
        if settings.get(key) != card.scenario.get(key)
    ]
    for package in VERSIONS:
        theirs = card.provenance["versions"].get(package)
        try:
            ours: str | None = metadata.version(package)
        except metadata.PackageNotFoundError:
            ours = None
        if theirs is not None and theirs != ours:
            found.append(f"{package} {theirs}, here {ours}")
    return found


# Comparing ----------------------------------------------------------------------------


def numbers(card: Scorecard) -> dict[str, tuple[float, float]]:
    """Return the row's numbers that are compared: name -> (value, standard error)."""
    found: dict[str, tuple[Any, Any]] = {}
    if card.floor["mse"] is not None:
        found["floor.mse"] = card.floor["mse"], card.floor["mse_se"]
    for label, own in card.defenses.items():
        found |= _of_defense(f"defenses.{label}", own)
    for t in card.trials:
        if t["status"] == "ok":
            where = f"trials.{t['attack']} on {t['defense']}"
            for key in ("mse", "success"):
                if t["result"].get(key) is not None:
                    se = t["result"].get(f"{key}_se")
                    found[f"{where}.{key}"] = t["result"][key], se
            auc = t["result"].get("auc")
            if isinstance(auc, dict):  # its 95% interval is 3.92 standard errors wide
                wide = float(auc["high"]) - float(auc["low"])
                found[f"{where}.auc"] = auc["value"], wide / 3.92
            if t["result"].get("epsilon_lower") is not None:
                found[f"{where}.epsilon_lower"] = t["result"]["epsilon_lower"], None
    return {k: (float(v), float(se or 0)) for k, (v, se) in found.items()}


def _of_defense(where: str, own: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    held = own["utility"] or {}
    for key in ("accuracy", "r2"):
        if held.get(key) is not None:
            found[f"{where}.{key}"] = held[key], _utility_se(held, key)
    relative = (own["dfil"] or {}).get("relative_se") or 0
    for b in own["bounds"]:
        se = float(b["mean"]) * float(relative) if b["name"] == "cramer_rao" else None
        value = b["mean"] if b["log10"] is None else b["log10"]
        found[f"{where}.{b['name']}"] = value, se
    for where_, pair in (own["epsilon"] or {}).items():
        if isinstance(pair, dict):
            for key in ("rdp", "tight"):
                if pair.get(key) is not None:
                    found[f"{where}.epsilon.{where_}.{key}"] = pair[key], None
    return found


def _utility_se(held: dict[str, Any], key: str) -> float:
    """Return the s.e. of a mean over models, and of the test part for a share."""
    spread = float(held.get(f"{key}_sd") or 0) ** 2 / max(1, held["models"])
    if key == "accuracy":
        share = min(max(float(held[key]), 0.0), 1.0)
        spread += share * (1 - share) / max(1, held["test"])
    return math.sqrt(spread)


def compare(theirs: Scorecard, ours: Scorecard, different: list[str]) -> Verdict:
    """Return the verdict on a row, given its replay.

    Args:
      theirs: the row.
      ours: its replay.
      different: what changed since the row was made: a row that is not reproduced is
        stale then, and differs otherwise. One that is reproduced is equal all the same.
    """
    before, now = numbers(theirs), numbers(ours)
    seen = tuple(
        Number(name, value, now[name][0], max(STANDARD_ERRORS * se, LEAST * abs(value)))
        for name, (value, se) in before.items()
        if name in now
    )
    missing = tuple(sorted(before.keys() - now.keys()))
    if seen and all(n.equal for n in seen) and not missing:
        return Verdict("equal", seen, tuple(different), missing)
    word = "stale" if different else "differs"
    return Verdict(word, seen, tuple(different), missing)


def render(verdict: Verdict) -> str:
    """Return a verdict in words, the numbers that differ first."""
    bad = [n for n in verdict.numbers if not n.equal]
    lines = [
        f"{n.name}: {n.theirs:.6g} in the row, {n.ours:.6g} here, "
        f"{n.allowed:.2g} allowed"
        for n in bad
    ]
    lines += [f"{name}: in the row, not here" for name in verdict.missing]
    if verdict.changed:
        lines.append(f"changed since: {'; '.join(verdict.changed)}")
    held = f"{len(verdict.numbers) - len(bad)} of {len(verdict.numbers)} numbers agree"
    within = f"{STANDARD_ERRORS:g} standard errors of the row's own, or a thousandth"
    said = {
        "equal": f"equal: {held}, within {within}",
        "differs": f"differs beyond tolerance: {held}, by the same code and settings",
        "stale": f"stale: {held}, and what made the row has changed",
    }
    return "\n".join([*lines, said[verdict.word]])


def verify(asked: Asked, audit: Callable[[Scenario], Scorecard]) -> Verdict:
    """Return the verdict on a row after running its command again.

    Args:
      asked: what `words` returned.
      audit: runs one scenario into the folder it names and returns its card.
    """
    card = schema.load(asked.row)
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        out = asked.out or Path(place) / "run"
        scenario = compose(card, out)
        different = changed(card, scenario)
        ours = audit(scenario)
    if ours.data["digest"] != card.data["digest"]:
        different.append("the data")
    return compare(card, ours, different)
