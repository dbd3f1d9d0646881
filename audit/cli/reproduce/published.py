"""What a paper printed, and how near ours must come: `scenarios/expected/NAME.yaml`.

A file lists runs (ordinary scenarios with words), bands with the reason for their
width, and tables of numbers. A number has the fields of its table, its column, its row
and its own, the last of these first: usually the row names the defense, the column the
key at which the number's counterpart stands in the run's scorecard. Everything is
checked before anything runs, without JAX.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Len
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from audit.config import registry
from audit.errors import UserError, did_you_mean
from audit.scorecard.path import KEY
from audit.types import Seed

Words = Annotated[str, Len(1)]
Fields = dict[str, Any]
BUDGETS = ("full", "smoke")
STRONGEST = "strongest"  # in place of an attack: whichever does best on the defense


class Strict(BaseModel):
    """A part of a file: no other fields, no conversions, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _members(words: Any) -> Any:
    """Put the members of a list among `words` in its place."""
    if not isinstance(words, list):
        return words
    return [
        one for word in words for one in (word if isinstance(word, list) else [word])
    ]


class Budget(Strict):
    """How a run is done: on which data, how often."""

    data: Words  # a stand-in must be named: "auto" would compare other images
    # overrides, as typed after `python -m audit run`; a list among them, as an alias of
    # another run's words is, stands for its members
    words: Annotated[list[Words], BeforeValidator(_members)] = []
    seeds: Annotated[list[Seed], Len(1)]
    device: Literal["any", "gpu"] = "any"


class PublishedRun(Strict):
    """One scenario, which several tables may read."""

    scenario: Words
    full: Budget
    smoke: Budget
    apart: bool = False  # a run per defense: its numbers count as soon as it is made


class Tolerance(Strict):
    """How far the mean of ours may lie from the published value, edges included."""

    absolute: Annotated[float, Gt(0)] | None = None
    relative: Annotated[float, Gt(0)] | None = None  # to the published value
    why: Words  # committed before the runs it judges, and this is the reason


class PublishedNumber(Strict):
    """One printed number, where its counterpart is read, and what we claim about it.

    It is read from a run, computed by a formula, or neither: then it is absent.
    """

    table: Words
    title: Words  # of the table
    row: Words
    quantity: Words  # with its unit
    published: float
    sd: Annotated[float, Ge(0)] | None = None
    band: Tolerance  # in a file: its name
    claim: Literal["reproduced", "differs", "not run"] = "reproduced"
    reason: Words | None = None
    run: str | None = None
    defense: Words | None = None  # a label in the run's line-up
    minus: Words | None = None  # another label, whose number is subtracted
    minus_run: str | None = Field(None, exclude=True)  # of `minus`, if not `run`
    attack: Words | None = None  # a label, or `STRONGEST`; none: the defense's own part
    key: Annotated[str, StringConstraints(pattern=KEY)] | None = None
    formula: str | None = None  # one of `conventions.FORMULAS`
    settings: Fields = {}  # the formula's arguments
    absent: Words | None = Field(None, exclude=True)  # why nothing here gives it
    blind: float | None = None  # what an attack gets that learns nothing

    @property
    def name(self) -> str:
        """Return what errors and messages call it."""
        return f"table {self.table}, {self.row}, {self.quantity}"

    @property
    def read_from(self) -> dict[str, str]:
        """Return the defenses that it is read from, by the field that names the run."""
        places = {"run": self.defense, "minus_run": self.minus}
        return {place: label for place, label in places.items() if label is not None}


class PublishedRow(BaseModel):
    """One line of a table; more fields are those of its numbers."""

    model_config = ConfigDict(extra="allow")
    row: Words
    numbers: Annotated[dict[str, Fields], Len(1)]  # by column


class PublishedTable(BaseModel):
    """A table of the source; more fields are those of its numbers."""

    model_config = ConfigDict(extra="allow")
    table: Words
    columns: dict[str, Fields]
    rows: Annotated[list[PublishedRow], Len(1)]


class Panel(Strict):
    """Two tables of one column each, whose rows have the same names."""

    title: Words
    across: Words  # a table
    up: Words


class PublishedFigure(Strict):
    """A figure of the source that draws its tables against each other."""

    figure: Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*$")]  # names a file
    title: Words
    note: Words | None = None  # what a reader of the picture has to know
    panels: Annotated[list[Panel], Len(1)]


class Source(Strict):
    """A whole file."""

    title: Words
    source: Words
    runs: dict[str, PublishedRun] = {}
    bands: Annotated[dict[str, Tolerance], Len(1)]
    tables: Annotated[list[PublishedTable], Len(1)]
    figures: list[PublishedFigure] = []


def files(folders: list[Path]) -> dict[str, Path]:
    """Return name -> file of every source; of two with one name, the first folder's."""
    return {
        file.stem: file
        for folder in reversed(folders)
        for file in sorted((folder / "expected").glob("*.yaml"))
    }


def load(path: Path) -> tuple[Source, list[PublishedNumber]]:
    """Return one file and its numbers in order; UserError names what is wrong in it."""
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
        _require(isinstance(content, dict), "not a mapping")
        source = Source.model_validate(content)
        return _parted(source, _checked(source))
    except ValidationError as error:
        raise UserError(f"{path}: {registry.explain(error)}") from None
    except (YAMLError, OSError, UserError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


def _checked(source: Source) -> list[PublishedNumber]:
    """Return every number of a source, after checking what refers to what."""
    for name, run in source.runs.items():
        for word in BUDGETS:
            _check_budget(f"runs.{name}.{word}", getattr(run, word))
    for name, band in source.bands.items():
        one = (band.absolute is None) != (band.relative is None)
        _require(one, f"bands.{name}: give one of absolute and relative")
    numbers = [
        _number(source, table, row, name)
        for table in source.tables
        for row in table.rows
        for name in row.numbers
    ]
    _check_once([number.name for number in numbers])
    _check_figures(source.figures, numbers)
    unused = set(source.runs) - {number.run for number in numbers}
    _require(not unused, f"runs.{min(unused, default='')}: no table is read from it")
    return numbers


def _parted(
    source: Source, numbers: list[PublishedNumber]
) -> tuple[Source, list[PublishedNumber]]:
    """Return both with a run per defense, `RUN: DEFENSE`, where a run is made apart."""
    runs, read = dict(source.runs), []
    for number in numbers:
        if number.run is not None and source.runs[number.run].apart:
            parts = {
                place: f"{number.run}: {label}"
                for place, label in number.read_from.items()
            }
            runs |= dict.fromkeys(parts.values(), source.runs[number.run])
            number = number.model_copy(update=parts)
        read.append(number)
    whole = [name for name, run in source.runs.items() if run.apart]
    runs = {name: run for name, run in runs.items() if name not in whole}
    return source.model_copy(update={"runs": runs}), read


def _check_budget(where: str, budget: Budget) -> None:
    seeds = budget.seeds
    _require(budget.data != "auto", f"{where}.data=auto: name the data set")
    once = len(set(seeds)) == len(seeds)
    _require(once, f"{where}.seeds={seeds}: a seed counts once")
    for word in budget.words:
        key = word.split("=")[0]
        free = word[0] != "-" and key not in ("seed", "data", "scenario", "out")
        _require(free, f"{where}.words: {word!r} does not belong in words")


def _number(
    source: Source, table: PublishedTable, row: PublishedRow, name: str
) -> PublishedNumber:
    """Return one number with the fields of its table, its column and its row."""
    where = f"table {table.table}, {row.row}, {name}"
    _check_known(f"table {table.table}, {row.row}: column", name, table.columns)
    of_table = table.model_dump(exclude={"columns", "rows"})
    of_row = row.model_dump(exclude={"numbers"})
    fields = of_table | table.columns[name] | of_row | row.numbers[name]
    _check_known(f"{where}: band", fields.get("band"), source.bands)
    fields["band"] = source.bands[fields["band"]]
    if fields.get("absent"):
        fields = {"reason": fields["absent"]} | fields | {"claim": "not run"}
    try:
        number = PublishedNumber(**fields)
    except ValidationError as error:
        raise UserError(registry.explain(error, where, PublishedNumber)) from None
    _check_number(where, number, source)
    return number


def _check_number(where: str, number: PublishedNumber, source: Source) -> None:
    reasoned = number.claim == "reproduced" or number.reason is not None
    _require(reasoned, f"{where}: the claim {number.claim!r} needs a reason")
    wide = number.published != 0 or number.band.relative is None
    _require(wide, f"{where}: nothing is near 0 by a relative band")
    one = [number.run, number.formula, number.absent].count(None) == 2
    _require(one, f"{where}: give one of run, formula and absent")
    if number.formula is not None:
        from audit.cli.reproduce.conventions import FORMULAS

        _check_known(f"{where}: formula", number.formula, FORMULAS)
        try:
            inspect.signature(FORMULAS[number.formula]).bind(**number.settings)
        except TypeError as error:
            raise UserError(f"{where}: settings of {number.formula}: {error}") from None
    if number.run is not None:
        _check_known(f"{where}: run", number.run, source.runs)
        read = number.key is not None and number.defense is not None
        _require(read, f"{where}: a run is read at the key of a defense: give both")
    else:
        unread = number.key is number.attack is number.minus is None
        _require(unread, f"{where}: key, attack and minus are where a run is read")


def _check_figures(
    figures: list[PublishedFigure], numbers: list[PublishedNumber]
) -> None:
    _check_once([f"figure {figure.figure}" for figure in figures])
    tables = defaultdict[str, list[PublishedNumber]](list)
    for number in numbers:
        tables[number.table].append(number)
    for figure in figures:
        where, upward = f"figure {figure.figure}", set()
        for panel in figure.panels:
            for name in (panel.across, panel.up):
                _check_known(f"{where}: table", name, tables)
                one = len({number.quantity for number in tables[name]}) == 1
                _require(one, f"{where}: table {name!r} has several columns")
            across, up = tables[panel.across], tables[panel.up]
            same = [number.row for number in across] == [number.row for number in up]
            _require(same, f"{where}, {panel.title}: its tables' rows differ")
            upward.add(up[0].quantity)
        one = len(upward) == 1
        _require(one, f"{where}: its panels have one quantity up, not {len(upward)}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def _check_once(names: list[str]) -> None:
    for name, count in Counter(names).items():
        _require(count == 1, f"{name}: listed twice")


def _check_known(what: str, word: Any, words: Any) -> None:
    _require(word in words, f"{what} {word!r} is unknown{did_you_mean(word, words)}")
