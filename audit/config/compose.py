"""From a YAML file and a command line to a checked scenario.

Hydra composes, pydantic validates, and the signature of a factory is the schema of its
settings. Everything here runs before JAX is imported.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from pydantic import BaseModel, ValidationError

from audit import data as data_sets
from audit.config import cuts, registry, scenario_file
from audit.config.registry import Setting
from audit.config.schema import (
    DataSet,
    Features,
    FisherReading,
    ScenarioSpec,
    SplitSizes,
)
from audit.data import Dataset, local
from audit.errors import UserError, did_you_mean
from audit.types import Lanes, Positive

NOISE = "noise_multiplier"  # a defense that has it can be given its epsilon instead
TARGET = {"target_epsilon": Setting(Positive | None, None)}


class Entry(NamedTuple):
    """One line of the line-up."""

    label: str  # how the scorecard calls it
    name: str  # the plug-in
    passed: dict[str, Any]  # settings somebody gave
    settings: dict[str, Any]  # all of them, defaults included
    target_epsilon: float | None = None  # a defense's noise is solved for it


class Scenario(NamedTuple):
    """A checked scenario: every word in it exists and every value is in range."""

    spec: ScenarioSpec
    data: str  # the data set's name: "auto" resolved, one's own with their digest
    splits: SplitSizes
    game: Entry  # with the game's own settings
    defenses: tuple[Entry, ...]
    attacks: tuple[Entry, ...]
    lanes: Lanes
    bounds: tuple[Entry, ...] = ()  # plug-ins, beside those that are always computed
    elsewhere: dict[str, str] | None = None  # where the file is from, if not the suite
    local: Dataset | None = None  # data of one's own; None = the suite's, by name

    @property
    def stands_in_for(self) -> str | None:
        """The data set that was wanted first and is not here; None if it is."""
        first, *others = self.spec.sets
        return first if self.local is None and self.data in others else None

    @property
    def classes(self) -> list[int]:
        """The classes that are told apart; none where labels are numbers."""
        assert not isinstance(self.spec.task.classes, str), "`all` is resolved"
        return self.spec.task.classes

    @property
    def line_ups(self) -> dict[str, tuple[Entry, ...]]:
        """Kind of plug-in -> its entries."""
        line_ups = {"defense": self.defenses, "attack": self.attacks}
        return {"game": (self.game,), **line_ups, "bound": self.bounds}

    def resolved(self) -> dict[str, Any]:
        """Return everything that can change a number, as plain JSON data.

        Machines round differently, and so do runs in parts (`lanes.checkpoint`). That
        is in the keys of the store and not here, as it makes no other experiment: a
        record is found again on another machine, and after its run went on in parts.
        """

        def words(*names: str) -> dict[str, Any]:
            return self.spec.model_dump(include=set(names))

        def line_up(entries: tuple[Entry, ...]) -> dict:
            return {e.label: {"use": e.name, **_stated(e)} for e in entries}

        return {
            "scenario": self.spec.name,
            **words("title", "source", "game", "seed"),
            "data": self.data,
            **words("task", "features"),
            "splits": self.splits.model_dump(),
            **words("pretrain"),
            **words(*["fisher"] * (self.spec.fisher != FisherReading())),
            **words("runs", "accounting_runs", "delta"),
            "defense": line_up(self.defenses),
            "attack": line_up(self.attacks),
            "lanes": {"tile": self.lanes.tile},
            **{
                word: value.model_dump() if isinstance(value, BaseModel) else value
                for word, value in self.game.settings.items()
            },
            **({"bound": line_up(self.bounds)} if self.bounds else {}),
        }


def scenario_names(folders: list[Path]) -> list[str]:
    """Return the names of the scenario files in `folders`."""
    files = [f for folder in folders for f in folder.glob("*.yaml")]
    return sorted({f.stem for f in files if not f.stem.startswith("_")})


def title(scenario: Path) -> str:
    """Return the title of a scenario file, named without its suffix; "" = none."""
    text = scenario_file.read(scenario.with_name(f"{scenario.name}.yaml"))
    line = re.search(r"^title:(.*)", text, re.MULTILINE)
    return line[1].strip().strip("\"'") if line else ""


def validate(
    name: str, composed: Mapping[str, Any], typed: Iterable[str] | None = None
) -> Scenario:
    """Return a composed scenario, checked. Raises UserError, naming what is wrong.

    `typed` are the words of `training` that somebody typed, None = all of them: those
    of a file may be for defenses that the line-up in use does not have.
    """
    every = ScenarioSpec.model_fields.keys() - {"name"}
    common = {k: v for k, v in composed.items() if k in every}
    settings = {k: v for k, v in composed.items() if k not in common}
    if isinstance(game := common.get("game"), str):
        _check_settings(game, settings, "")
    try:
        spec = ScenarioSpec(name=name, **common)
    except ValidationError as error:
        raise UserError(registry.explain(error, model=ScenarioSpec)) from None
    data, mine = _choose_data(spec)
    here = spec.sets.get(data) or DataSet(splits=SplitSizes())
    for data_set, section in spec.sets.items():
        _check_settings(spec.game, section.model_extra or {}, f"sets.{data_set}.")
    settings |= here.model_extra or {}  # those of the data set in use win
    checked = registry.check("game", spec.game, settings, "")
    uncut = mine or data_sets.load(data, spec.seed) if data not in spec.sets else None
    spec = _with_classes(spec, data, mine or uncut)
    if uncut is not None:
        words: dict[str, Any] = {"splits": _proposed(spec, uncut, checked)}
        if uncut.columns:  # columns in units of their own
            words["features"] = Features(standardise=True)
        here = here.model_copy(update=words)
    splits = cuts.sizes(here.splits, spec.splits)
    _playable(spec, splits)
    registry.source("model", spec.task.model)
    registry.check("model", spec.task.model, spec.task.settings, "task.settings")
    defenses = _line_up("defense", spec.defenses, spec.defense, here.defense)
    attacks = _line_up("attack", spec.attacks, spec.attack, here.attack)
    _check_sections(spec, defenses, attacks, typed)
    update: dict[str, Any] = {  # the command line may have shortened the line-up
        "chosen": {k: v for k, v in spec.chosen.items() if k in defenses}
    }
    if here.features is not None:  # words set in the scenario win
        words = spec.features.model_dump(exclude_unset=True)
        update["features"] = here.features.model_copy(update=words)
    hints = get_type_hints(Lanes, include_extras=True)
    lanes = {k: Setting(hints[k], v) for k, v in Lanes._field_defaults.items()}
    return Scenario(
        spec=spec.model_copy(update=update),
        data=data if mine is None else mine.name,
        splits=splits,
        game=Entry(spec.game, spec.game, settings, checked),
        defenses=_entries("defense", defenses, {**spec.training, **here.training}),
        attacks=_entries("attack", attacks, {}),
        lanes=Lanes(**registry.validate(lanes, spec.lanes, "lanes")),
        bounds=_bounds(spec),
        local=mine,
    )


def dataset(scenario: Scenario) -> Dataset:
    """Return the scenario's data set, of its classes. Raises DataError."""
    seed = scenario.spec.seed
    everything = scenario.local or data_sets.load(scenario.data, seed)
    return data_sets.choose_classes(everything, scenario.classes)


def _with_classes(spec: ScenarioSpec, data: str, here: Dataset | None) -> ScenarioSpec:
    """Return the scenario with its classes listed where it asks for all there are."""
    if spec.task.classes != "all":
        return spec
    uncut = here or data_sets.load(data)
    classes: list[int] = []
    if uncut.y_train.dtype.kind != "f":
        classes = np.unique(uncut.y_train).tolist()
        # records of other classes would be left out of the accuracy without a word
        test_classes = np.setdiff1d(
            [] if uncut.y_test is None else uncut.y_test, classes
        )
        if len(test_classes):
            names = ", ".join(map(str, test_classes))
            raise UserError(
                f"data {uncut.name}: class {names} is in the test part alone, so that "
                f"no model can learn it: drop its records, or name the classes, as "
                f"task.classes=[{','.join(map(str, classes))}]"
            )
    task = spec.task.model_copy(update={"classes": classes})
    return spec.model_copy(update={"task": task})


def _proposed(spec: ScenarioSpec, uncut: Dataset, settings: Mapping) -> SplitSizes:
    """Return sizes for data not cut yet; whether there are targets is the game's."""
    game = registry.find("game", spec.game)(**settings)
    classes = spec.task.classes
    assert not isinstance(classes, str), "`all` is resolved"
    chosen = data_sets.choose_classes(uncut, classes)
    return cuts.proposed(chosen, targets=bool(game.targets))


def _check_sections(
    spec: ScenarioSpec,
    defenses: dict[str, dict[str, Any]],
    attacks: Iterable[str],
    typed: Iterable[str] | None,
) -> None:
    """Refuse labels and words of training that nothing in the scenario has."""
    trained = {
        w for d in defenses.values() for w in registry.settings("defense", d["use"])
    }
    known = {
        "defense": {*defenses, *spec.defense, *registry.names("defense")},
        "attack": {*attacks, *spec.attack, *registry.names("attack")},
    }
    for name, section in spec.sets.items():
        for kind, labels in known.items():
            given = getattr(section, kind)
            _check_known(given, labels, f"unknown {kind} sets.{name}.{kind}.")
        training = {**spec.training, **section.training}
        if typed is not None and not trained.issuperset(training):
            _check_known(
                set(training) - set(typed), _trained(), "no defense has training."
            )
            training = {word: training[word] for word in training if word in typed}
        _check_known(training, trained, "no defense in the line-up has training.")
    _check_known(spec.chosen, known["defense"], "unknown defense chosen.")


def _trained() -> set[str]:
    """Return the settings of all defenses there are."""
    words: set[str] = set()
    for name in registry.names("defense"):
        with contextlib.suppress(UserError):  # another plug-in may be broken
            words |= registry.settings("defense", name).keys()
    return words


def _check_known(words: Iterable[str], names: Iterable[str], where: str) -> None:
    """Refuse a word that is not among the names, as `where` calls it."""
    for word in words:
        if word not in names:
            raise UserError(f"{where}{word}{did_you_mean(word, names)}")


def _check_settings(game: str, settings: Mapping[str, Any], where: str) -> None:
    """Refuse words that are neither of every scenario nor settings of its game."""
    words = registry.settings("game", game)
    for word in settings:
        if word in words:
            continue
        games = []
        for other in registry.names("game"):
            with contextlib.suppress(UserError):  # another plug-in may be broken
                games += [other] * (word in registry.settings("game", other))
        if games:
            raise UserError(
                f"{where}{word}: a setting of {', '.join(games)}; the game is {game}"
            )
        here = {*ScenarioSpec.model_fields, "scenario"} - {"name"}
        known = {*(DataSet.model_fields if where else here), *words}
        raise UserError(f"unknown key {where}{word}{did_you_mean(word, known)}")


def play(scenario: Scenario) -> Any:
    """Return the scenario's `games.base.Game`; the first call imports JAX.

    Raises UserError for splits, plug-ins or settings with which it cannot be played.
    """
    game = registry.find("game", scenario.game.name)(**scenario.game.settings)
    name, sizes = scenario.spec.game, scenario.splits
    if game.targets and not sizes.targets:
        raise UserError(f"splits.targets=0: the game {name} needs targets")
    if sizes.targets == 1:
        raise UserError("splits.targets=1: a standard error needs at least 2 targets")
    if not game.targets and sizes.targets:
        raise UserError(
            f"splits.targets={sizes.targets}: in the game {name} every fixed record is "
            f"the target in turn; leave it out"
        )
    if scenario.spec.accounting_runs > 1 and not game.trajectories:
        raise UserError(
            f"accounting_runs={scenario.spec.accounting_runs}: the game {name} reads "
            f"no dFIL along runs; leave it at 1"
        )
    if scenario.bounds and not game.squared_error:
        raise UserError(
            f"bounds: the game {name} has no squared errors; leave them out"
        )
    if scenario.spec.fisher.records and (game.targets or scenario.attacks):
        raise UserError(
            f"fisher.records={scenario.spec.fisher.records}: some of the records are "
            f"accounted for where each is the target in turn and nobody attacks: take "
            f"attacks=[] in a game like leave_one_out, or 0, for no dFIL at all"
        )
    if game.check is not None:
        game.check(scenario)
    return game


def _bounds(spec: ScenarioSpec) -> tuple[Entry, ...]:
    """Check the bounds that are plug-ins: the suite's own are always computed."""
    requested = _line_up("bound", spec.bounds, spec.bound, {})
    named = {
        word for label, given in requested.items() for word in (label, given["use"])
    }
    for word in sorted(named & registry.built_in("bound").keys()):
        raise UserError(f"bounds: {word} is always computed; leave it out")
    return _entries("bound", requested, {})


def _playable(spec: ScenarioSpec, sizes: SplitSizes) -> None:
    """Refuse classes and splits that no game can be played with."""
    if len(spec.task.classes) == 1:
        raise UserError(
            f"task.classes={spec.task.classes}: one class of data={spec.data}; at "
            f"least two are needed, or none where labels are numbers"
        )
    if not sizes.pool and sizes.pool_from == "train":
        raise UserError("splits.pool=0: give a pool, or splits.pool_from=test")
    if 0 < sizes.augment <= sizes.pool:
        raise UserError(
            f"splits.augment={sizes.augment}: the size of the pool with its copies is "
            f"above splits.pool={sizes.pool}, or 0 for none"
        )


def _choose_data(spec: ScenarioSpec) -> tuple[str, Dataset | None]:
    """Return the word for the data, and what they are if they are one's own."""
    if spec.data.startswith(local.PREFIX):
        return spec.data, data_sets.load(spec.data)
    suite, plug_ins = data_sets.names(), registry.names("data")
    for name in sorted(set(suite) & set(plug_ins)):
        raise UserError(f"data {name!r} is the suite's own; rename the plug-in")
    _check_known(spec.sets, [*suite, *plug_ins], "unknown data set sets.")
    if spec.data in plug_ins:
        return spec.data, local.check(registry.find("data", spec.data)(), spec.data)
    if spec.data not in ("auto", *suite):
        hint = did_you_mean(spec.data, ["auto", *spec.sets, *plug_ins])
        raise UserError(
            f"unknown data set data={spec.data}{hint}, or {local.PREFIX}PATH.npz"
        )
    # a scenario of all classes takes any data, and cuts in proportion what it lacks
    if spec.data not in ("auto", *spec.sets) and spec.task.classes != "all":
        raise UserError(
            f"scenario {spec.name} has no splits for data={spec.data}; it has "
            f"{', '.join(spec.sets)}"
        )
    return data_sets.resolve(spec.data, [n for n in spec.sets if n in suite]), None


def _line_up(
    kind: str,
    requested: list[str | dict[str, dict[str, Any]]],
    settings: dict[str, dict[str, Any]],
    data_settings: dict[str, dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return label -> {use, given settings}; those of the data set in use win."""
    chosen: dict[str, dict[str, Any]] = {}
    for item in requested:
        entries = {item: {}} if isinstance(item, str) else item
        for label, given in entries.items():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", label):
                raise UserError(
                    f"{kind} label {label!r}: letters, digits, _ and - only"
                )
            if label in chosen:
                raise UserError(f"{kind} {label!r} stands twice in the line-up")
            common, here = settings.get(label, {}), data_settings.get(label, {})
            chosen[label] = {"use": label, **given, **common, **here}
    words = {*chosen, *registry.names(kind)}
    for label, given in settings.items():
        if label not in words and "use" not in given:
            raise UserError(f"unknown {kind} {label!r}{did_you_mean(label, words)}")
        if label not in chosen:  # of no effect here, and still no place for a slip
            known = _settings(kind, given.get("use", label))
            _check_known(given, {*known, "use"}, f"unknown setting {kind}.{label}.")
    return chosen


def _entries(
    kind: str, line_up: dict[str, dict[str, Any]], common: dict[str, Any]
) -> tuple[Entry, ...]:
    entries = []
    for label, given in line_up.items():
        name = given["use"]
        declared = registry.settings(kind, name)
        passed = {k: v for k, v in common.items() if k in declared}
        trained = {k: v for k, v in passed.items() if k not in given}
        registry.check(kind, name, trained, "training")
        passed |= {k: v for k, v in given.items() if k != "use"}
        declared = _settings(kind, name)
        settings = registry.validate(declared, passed, f"{kind}.{label}")
        target = settings.pop("target_epsilon", None)
        entries.append(Entry(label, name, passed, settings, target))
    return tuple(entries)


def _settings(kind: str, name: str) -> dict[str, Setting]:
    """Return what a line-up may say of a plug-in."""
    declared = registry.settings(kind, name)
    return declared | (TARGET if kind == "defense" and NOISE in declared else {})


def _stated(entry: Entry) -> dict[str, Any]:
    """Return an entry's settings as the scenario states them."""
    if entry.target_epsilon is None:
        return entry.settings
    rest = {k: v for k, v in entry.settings.items() if k != NOISE}
    return rest | {"target_epsilon": entry.target_epsilon}
