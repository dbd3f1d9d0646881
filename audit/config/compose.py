"""From a YAML file and a command line to a checked scenario.

Hydra composes, pydantic validates, and the signature of a factory is the schema of its
settings. Everything here runs before JAX is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from pydantic import ValidationError

from audit.config import registry
from audit.config.registry import Setting
from audit.config.schema import DataSet, Features, Membership, ScenarioSpec, SplitSizes
from audit.errors import UserError, did_you_mean
from audit.types import (
    Lanes,
)


class Entry(NamedTuple):
    """One line of the line-up."""

    label: str  # how the scorecard calls it
    name: str  # the plug-in
    passed: dict[str, Any]  # settings somebody gave
    settings: dict[str, Any]  # all of them, defaults included


class Scenario(NamedTuple):
    """A checked scenario: every word in it exists and every value is in range."""

    spec: ScenarioSpec
    data: str  # the data set's name, "auto" resolved
    splits: SplitSizes
    attribute: str | None  # in attribute games
    defenses: tuple[Entry, ...]
    attacks: tuple[Entry, ...]
    lanes: Lanes
    bounds: tuple[Entry, ...] = ()  # plug-ins, beside those that are always computed
    elsewhere: dict[str, str] | None = None  # where the file is from, if not the suite

    @property
    def membership(self) -> Membership | None:
        """The settings of a membership game; None in the others."""
        if not self.spec.game.startswith("membership"):
            return None
        return self.spec.membership or Membership()

    def resolved(self) -> dict[str, Any]:
        """Return everything that can change a number, as plain JSON data."""
        spec, asked = self.spec, self.membership

        def line_up(entries: tuple[Entry, ...]) -> dict:
            return {e.label: {"use": e.name, **e.settings} for e in entries}

        own: dict[str, Any] = {}  # settings that only some games have
        if spec.canaries is not None:
            own["canaries"] = spec.canaries.model_dump()
        if spec.game == "exposed":
            own["exposed"] = spec.exposed
        if asked is not None:
            own["membership"] = asked.model_dump()
        if self.bounds:
            own["bound"] = line_up(self.bounds)
        return {
            "scenario": spec.name,
            "title": spec.title,
            "source": spec.source,
            "game": spec.game,
            "seed": spec.seed,
            "data": self.data,
            "task": spec.task.model_dump(),
            "features": spec.features.model_dump(),
            "attribute": self.attribute,
            "splits": self.splits.model_dump(),
            "pretrain": spec.pretrain.model_dump(),
            "runs": spec.runs,
            "accounting_runs": spec.accounting_runs,
            "delta": spec.delta,
            "defense": line_up(self.defenses),
            "attack": line_up(self.attacks),
            "lanes": {"tile": self.lanes.tile},
            **own,
        }


def scenario_names(folders: list[Path]) -> list[str]:
    """Return the names of the scenario files in `folders`."""
    files = [f for folder in folders for f in folder.glob("*.yaml")]
    return sorted({f.stem for f in files if not f.stem.startswith("_")})


def title(scenario: Path) -> str:
    """Return a scenario file's title; "" where it has none.

    Args:
      scenario: without its suffix.
    """
    lines = scenario.with_name(f"{scenario.name}.yaml").read_text().splitlines()
    said = (line.removeprefix("title:") for line in lines if line.startswith("title:"))
    return next(said, "").strip()


def validate(name: str, composed: Mapping[str, Any]) -> Scenario:
    """Check a composed scenario.

    Args:
      name: of the scenario.
      composed: plain containers, interpolations resolved.

    Raises:
      UserError: naming what was typed and what exists.
    """
    _known_words(composed, ScenarioSpec.model_fields, "")
    try:
        spec = ScenarioSpec(name=name, **composed)
    except ValidationError as error:
        raise UserError(registry.explain(error, model=ScenarioSpec)) from None
    data = _choose_data(spec)
    here = spec.sets[data]
    spec = spec.model_copy(update={"features": _features(spec, here)})
    _playable(spec, here)
    registry.source("model", spec.task.model)
    registry.check("model", spec.task.model, spec.task.settings, "task.settings")
    defenses = _line_up("defense", spec.defenses, spec.defense, here.defense)
    attacks = _line_up("attack", spec.attacks, spec.attack, here.attack)
    for name, own in spec.sets.items():
        own_defenses, own_attacks = f"sets.{name}.defense", f"sets.{name}.attack"
        _known_labels("defense", defenses, spec.defense, own.defense, own_defenses)
        _known_labels("attack", attacks, spec.attack, own.attack, own_attacks)
    _known_labels("defense", defenses, spec.defense, spec.chosen, "chosen")
    # a scenario's may be out of a shorter line-up
    chosen = {k: v for k, v in spec.chosen.items() if k in defenses}
    spec = spec.model_copy(update={"chosen": chosen})
    for own in spec.sets.values():
        _used({**spec.training, **own.training}, defenses)
    training = {**spec.training, **here.training}
    return Scenario(
        spec=spec,
        data=data,
        splits=here.splits,
        attribute=here.attribute or spec.attribute,
        defenses=_entries("defense", defenses, training),
        attacks=_entries("attack", attacks, {}),
        lanes=_lanes(spec.lanes),
        bounds=_bounds(spec),
    )


def _features(spec: ScenarioSpec, here: DataSet) -> Features:
    """Return what the data set asks for, except where the scenario says otherwise."""
    if here.features is None:
        return spec.features
    said = {k: getattr(spec.features, k) for k in spec.features.model_fields_set}
    return here.features.model_copy(update=said)


SQUARED = ("reconstruction", "leave_one_out", "anatomy", "exposed")


def _bounds(spec: ScenarioSpec) -> tuple[Entry, ...]:
    """Check the bounds from elsewhere: on squared errors, and beside the suite's."""
    asked = _line_up("bound", spec.bounds, spec.bound, {})
    if asked and spec.game not in SQUARED:
        raise UserError(
            f"bounds: the game {spec.game} has no squared errors; leave them out"
        )
    for label, given in asked.items():
        for word in (label, given["use"]):
            if registry.always(word):
                raise UserError(f"bounds: {word} is always computed; leave it out")
    return _entries("bound", asked, {})


def _playable(spec: ScenarioSpec, here: DataSet) -> None:
    """Refuse splits and settings the game cannot be played with."""
    sizes = here.splits
    if len(spec.task.classes) == 1:
        raise UserError(
            f"task.classes={spec.task.classes}: at least two, or none where labels are "
            f"numbers"
        )
    with_targets = spec.game in ("reconstruction", "exposed")
    if with_targets and not sizes.targets:
        raise UserError(f"splits.targets=0: the game {spec.game} needs targets")
    if not with_targets and sizes.targets:
        raise UserError(
            f"splits.targets={sizes.targets}: in the game {spec.game} every fixed "
            f"record is the target in turn; leave it out"
        )
    if spec.membership is not None and not spec.game.startswith("membership"):
        raise UserError(f"membership: the game is {spec.game}; leave it out")
    if not sizes.pool and sizes.pool_from == "train":
        raise UserError("splits.pool=0: give a pool, or splits.pool_from=test")
    attribute = here.attribute or spec.attribute
    if (attribute is None) == (spec.game == "attribute"):
        raise UserError(
            f"attribute={attribute}: the column to infer, in the game attribute and "
            f"nowhere else"
        )
    _planted(spec)


def _planted(spec: ScenarioSpec) -> None:
    """Refuse canaries where none are looked for, and the other way round."""
    if (spec.canaries is None) == (spec.game in ("canary", "one_run")):
        raise UserError(
            f"canaries={spec.canaries}: what is planted, in the games canary and "
            f"one_run and nowhere else"
        )
    count = spec.canaries.count if spec.canaries else 0
    if spec.game == "canary" and count != 1:
        raise UserError(f"canaries.count={count}: the game canary has one a run")
    if spec.game == "one_run" and count < 2:
        raise UserError(f"canaries.count={count}: the game one_run needs at least 2")
    if count and spec.game == "one_run" and spec.runs != 1:
        raise UserError(
            f"runs={spec.runs}: the game one_run has one run an audit; "
            f"canaries.audits repeats it"
        )
    if count and not spec.task.classes:
        raise UserError("task.classes=[]: canaries need labels that are classes")


def _known_words(
    given: Mapping[str, Any], known: Mapping[str, Any], where: str
) -> None:
    for word in given:
        if word not in known:
            words = set(known) - {"name"} | {"scenario"}
            raise UserError(f"unknown key {where}{word}{did_you_mean(word, words)}")


def _choose_data(spec: ScenarioSpec) -> str:
    from audit import data

    known = data.names()
    for name in spec.sets:
        if name not in known:
            raise UserError(f"unknown data set sets.{name}{did_you_mean(name, known)}")
    if spec.data not in ("auto", *known):
        hint = did_you_mean(spec.data, ["auto", *spec.sets])
        raise UserError(f"unknown data set data={spec.data}{hint}")
    if spec.data not in ("auto", *spec.sets):
        raise UserError(
            f"scenario {spec.name} has no splits for data={spec.data}; it has "
            f"{', '.join(spec.sets)}"
        )
    return data.resolve(spec.data, list(spec.sets))


def _line_up(
    kind: str,
    asked: list[str | dict[str, dict[str, Any]]],
    settings: dict[str, dict[str, Any]],
    of_data: dict[str, dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return label -> {use, given settings}; a later source wins."""
    chosen: dict[str, dict[str, Any]] = {}
    for item in asked:
        here = {item: {}} if isinstance(item, str) else item
        for label, given in here.items():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", label):
                raise UserError(
                    f"{kind} label {label!r}: letters, digits, _ and - only"
                )
            if label in chosen:
                raise UserError(f"{kind} {label!r} stands twice in the line-up")
            merged = {**of_data.get(label, {}), **given, **settings.get(label, {})}
            chosen[label] = {"use": label, **merged}
    plugins = registry.names(kind)
    for label in settings:
        if (
            label not in chosen
            and label not in plugins
            and "use" not in settings[label]
        ):
            words = {*chosen, *plugins}
            raise UserError(f"unknown {kind} {label!r}{did_you_mean(label, words)}")
    return chosen


def _known_labels(
    kind: str, line_up: Any, settings: Any, labels: Iterable[str], where: str
) -> None:
    """Refuse what stands at `where` for a label that nobody has heard of."""
    words = {*line_up, *settings, *registry.names(kind)}
    for label in labels:
        if label not in words:
            hint = did_you_mean(label, words)
            raise UserError(f"unknown {kind} {where}.{label}{hint}")


def _used(training: dict[str, Any], line_up: dict[str, dict[str, Any]]) -> None:
    known = {
        w for d in line_up.values() for w in registry.settings("defense", d["use"])
    }
    for word in training:
        if word not in known:
            hint = did_you_mean(word, known)
            raise UserError(f"no defense in the line-up has training.{word}{hint}")


def _entries(
    kind: str, line_up: dict[str, dict[str, Any]], common: dict[str, Any]
) -> tuple[Entry, ...]:
    entries = []
    for label, given in line_up.items():
        name = given["use"]
        known = registry.settings(kind, name)
        passed = {k: v for k, v in common.items() if k in known}
        registry.check(
            kind, name, {k: passed[k] for k in passed.keys() - given.keys()}, "training"
        )
        passed |= {k: v for k, v in given.items() if k != "use"}
        settings = registry.check(kind, name, passed, f"{kind}.{label}")
        entries.append(Entry(label, name, passed, settings))
    return tuple(entries)


def _lanes(given: dict[str, Any]) -> Lanes:
    hints = get_type_hints(Lanes, include_extras=True)
    known = {k: Setting(hints[k], v) for k, v in Lanes._field_defaults.items()}
    return Lanes(**registry.validate(known, given, "lanes"))
