"""`python -m audit verify ROW.json`: run a scorecard's command again and compare.

A row is what `scorecard.schema` says one is. Its command never goes to a shell: its
words are composed as those of `python -m audit run` are, with the data set of the row
and a folder of `verify`'s; words that would reach further are refused.

A number may differ by two standard errors, the row's or the replay's, whichever is the
smaller: a row does not choose its own tolerance. It may differ by a thousandth too, as
another machine's rounding may do. What is computed and not estimated (bounds, epsilon)
has the thousandth alone. A standard error may differ by a factor of two. Another seed
changes it by less in 99.6% of pairs of committed rows; in the others, one target makes
most of the error. Another machine changes less than a seed.
"""

from __future__ import annotations

import itertools
import math
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from audit.config import hydra_app, plugins, workspace
from audit.config.compose import Scenario
from audit.engine.store import installed
from audit.errors import UserError
from audit.report import columns
from audit.scorecard import average_seeds, schema
from audit.scorecard.card import Scorecard, plain
from audit.scorecard.schema import (
    AttackResult,
    BoundSummary,
    DefenseRow,
    Headline,
    Utility,
)
from audit.statistics import intervals

STANDARD_ERRORS, LEAST, FACTOR = 2.0, 1e-3, 2.0
# numbers of a trial without an error of their own. Of the same guesses as its headline:
# they may move by as large a share as it may, seen from where a perfect guess is
OF_GUESSES = {
    "mse": 0.0, "mse_median": 0.0, "mse_typical": 0.0, "mse_normalised": 0.0,
    "mse_normalised_median": 0.0, "lpips": 0.0, "ssim": 1.0, "psnr_median": 0.0,
    "success": 0.0, "value": 0.0,
}  # fmt: skip
SHARES = ("beats_floor", "win_rate", "matching")  # of targets
COMPUTED = (
    "upper", "upper_rdp", "epsilon_lower", "epsilon", "largest", "bound", "blind",
    "targets", "runs",
)  # fmt: skip
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
    left_out: tuple[str, ...] = ()  # numbers of its replay that the row lacks
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


class CardNumber(NamedTuple):
    """A number of a card, and how far from it a replay may be by that card's errors."""

    value: float
    allowed: float


def numbers(card: Scorecard) -> dict[str, CardNumber]:
    """Return the numbers of a card that are compared, by name."""
    compared = _estimated("floor.mse", card.floor.mse, card.floor.mse_se)
    for label, defense in card.defenses.items():
        name = f"defenses.{label}"
        compared |= _of_defense(name, defense)
        best = columns.strongest(card, label)
        if best is not None and best.result is not None:
            compared |= _of_headline(f"{name}.strongest", best.result.headline)
    for trial in card.trials:
        if trial.result is not None:
            name = f"trials.{trial.attack} on {trial.defense}"
            compared |= _of_headline(name, trial.result.headline)
            compared |= _of_result(f"{name}.result", trial.result)
    return compared


def _computed(name: str, value: Any) -> dict[str, CardNumber]:
    """Return a number that is no estimate, or is one that a replay draws alike."""
    if not average_seeds.is_number(value):  # what a game adds may be anything
        return {}
    return {name: CardNumber(float(value), LEAST * abs(float(value)))}


def _estimated(name: str, value: Any, se: Any) -> dict[str, CardNumber]:
    """Return a number and its standard error, if it has one."""
    shown = _computed(name, value)
    if not shown or se is None:
        return shown
    within = max(shown[name].allowed, STANDARD_ERRORS * float(se))
    return {name: CardNumber(float(value), within)} | _error(name, value, se)


def _error(name: str, value: Any, se: Any) -> dict[str, CardNumber]:
    """Return the standard error of a number, if it has one."""
    if se is None:
        return {}
    within = max(LEAST * abs(float(value)), (FACTOR - 1) * float(se))
    return {f"{name}.standard_error": CardNumber(float(se), within)}


def _of_defense(name: str, defense: DefenseRow) -> dict[str, CardNumber]:
    compared = _computed(f"{name}.rdp2", defense.rdp2)
    if defense.utility:
        compared |= _computed(f"{name}.noiseless", defense.utility.noiseless)
        for key in ("accuracy", "r2"):
            if (value := defense.utility[key]) is not None:
                se = _utility_se(defense.utility, key)
                compared |= _estimated(f"{name}.{key}", value, se)
    for part, keys in (("dfil", ("mean",)), ("eta", ("mean", "sd"))):
        for key in keys:
            compared |= _computed(
                f"{name}.{part}.{key}", (defense[part] or {}).get(key)
            )
    for bound in defense.bounds:
        compared |= _of_bound(f"{name}.{bound.name}", bound)
    for adjacency in ("replace_one", "add_remove"):
        pair = defense.epsilon and defense.epsilon[adjacency]
        for key in ("rdp", "tight"):
            epsilon = pair[key] if pair else None
            compared |= _computed(f"{name}.epsilon.{adjacency}.{key}", epsilon)
    return compared


def _of_bound(name: str, bound: BoundSummary) -> dict[str, CardNumber]:
    """Return a bound's summary; of one that is a power of ten, the exponents."""
    least, median = float(bound.min), float(bound.median)
    main: Any = bound.mean
    if bound.log10 is not None:
        main = bound.log10
        least, median = (math.log10(v) if v > 0 else -math.inf for v in (least, median))
    compared = _computed(name, main) | _error(name, bound.mean, bound.standard_error)
    return (
        compared | _computed(f"{name}.min", least) | _computed(f"{name}.median", median)
    )


def _of_headline(name: str, headline: Headline) -> dict[str, CardNumber]:
    full = f"{name}.{headline.metric}"
    return _estimated(full, headline.value, headline.standard_error)


def _of_result(name: str, result: AttackResult) -> dict[str, CardNumber]:
    """Return what a trial's result says beside its headline."""
    fields, headline = plain(result), result.headline
    del fields["headline"]
    size, se = abs(float(headline.value)), float(headline.standard_error or 0)
    share = max(LEAST, STANDARD_ERRORS * se / size) if size else LEAST
    targets = float(result.targets or 0)
    compared: dict[str, CardNumber] = {}
    for part, key, path in _parts(fields, name):
        value, error = float(part[key]), _error_beside(part, key)
        if error is not None:
            compared |= _estimated(path, value, error)
        elif key in OF_GUESSES:
            within = max(LEAST * abs(value), share * abs(OF_GUESSES[key] - value))
            compared[path] = CardNumber(value, within)
        elif key in SHARES:
            within = STANDARD_ERRORS * columns.share_error(value, targets)
            compared[path] = CardNumber(value, within)
        elif key in COMPUTED:
            compared |= _computed(path, value)
    return compared


def _parts(part: Any, name: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield every number of nested data: what it stands in, its key there, its path."""
    if isinstance(part, list):
        part = {str(i): entry for i, entry in enumerate(part)}
    for key, value in part.items() if isinstance(part, dict) else ():
        path = f"{name}.{key}"
        if average_seeds.is_number(value):
            yield part, key, path
        else:
            yield from _parts(value, path)


def _error_beside(part: dict[str, Any], key: str) -> float | None:
    """Return a number's standard error, if that or an interval stands beside it."""
    beside: list[Any] = [part.get(f"{key}_se")]
    if key == "value":
        beside.append(part.get("standard_error"))
        ends = [part.get(k) for k in ("low", "high")]
        if all(map(average_seeds.is_number, ends)):
            interval = [float(v) for v in (part[key], *ends)]
            beside.append(intervals.standard_error(*interval))
    errors = [se for se in beside if average_seeds.is_number(se)]
    return float(errors[0]) if errors else None


def _utility_se(utility: Utility, key: str) -> float:
    """Return the s.e. of a mean over models, and of the test part for a share."""
    over_models = float(utility[f"{key}_sd"] or 0) / math.sqrt(max(1, utility.models))
    if key != "accuracy":
        return over_models
    of_test = columns.share_error(float(utility[key]), utility.test)
    return math.hypot(over_models, of_test)


def compare(theirs: Scorecard, ours: Scorecard, different: list[str]) -> ReplayVerdict:
    """Return the verdict on a row, given its replay and what changed since it was made.

    A row that is not reproduced is stale if anything changed, and differs otherwise.
    One that is reproduced is equal all the same.
    """
    before, now = numbers(theirs), numbers(ours)
    compared = tuple(
        Number(name, a.value, now[name].value, min(a.allowed, now[name].allowed))
        for name, a in before.items()
        if name in now
    )
    missing = _absent(before, now)
    # newer code says more of a trial: no fault of the row, which has the trial
    left_out = tuple(n for n in _absent(now, before) if n.split(".")[2:3] != ["result"])
    errors = tuple(sorted(_errors(ours) - _errors(theirs)))
    agree = bool(compared) and all(n.equal for n in compared)
    reproduced = agree and not (missing or left_out or errors)
    word = "equal" if reproduced else "stale" if different else "differs"
    return ReplayVerdict(word, compared, tuple(different), missing, left_out, errors)


def _absent(here: Iterable[str], there: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the other card lacks; of a whole part, the part's name."""
    stems_there = {stem for name in there for stem in _stems(name)}
    lacking = ([s for s in _stems(name) if s not in stems_there] for name in here)
    return tuple(sorted({stems[0] for stems in lacking if stems}))


def _stems(name: str) -> list[str]:
    return list(itertools.accumulate(name.split("."), "{}.{}".format))


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
    lines += [f"{name}: here, not in the row" for name in verdict.left_out]
    lines += [f"{error}: an error here, not in the row" for error in verdict.errors]
    if verdict.changed:
        lines.append(f"changed since: {'; '.join(verdict.changed)}")
    equal = f"{len(verdict.numbers) - len(bad)} of {len(verdict.numbers)} numbers agree"
    within = f"{STANDARD_ERRORS:g} of the smaller standard errors or a thousandth"
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
