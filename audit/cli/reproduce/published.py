"""What a paper printed, and how near ours must come: `scenarios/expected/NAME.yaml`.

A file lists runs (ordinary scenarios with words), bands with the reason for their
width, and tables of numbers, each with the place in a scorecard it is read at. All of
it is checked before anything runs, without JAX.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Len
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from audit.config import registry
from audit.errors import UserError, did_you_mean
from audit.scorecard import path as places
from audit.types import (
    Seed,
)

Words = Annotated[str, Len(1)]
Claim = Literal["reproduced", "differs", "not run"]
BUDGETS = ("full", "smoke")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Budget(_Model):
    """How a run is done: on which data, how often."""

    data: Words  # a stand-in must be named: "auto" would compare other images
    words: list[Words] = []  # overrides, as typed after `python -m audit run`
    seeds: Annotated[list[Seed], Len(1)]
    device: Literal["any", "gpu"] = "any"


class Run(_Model):
    """One scenario, which several tables may read."""

    scenario: Words
    full: Budget
    smoke: Budget


class Band(_Model):
    """How far the mean of ours may lie from the published value, edges included."""

    absolute: Annotated[float, Gt(0)] | None = None
    relative: Annotated[float, Gt(0)] | None = None  # to the published value
    why: Words  # committed before the runs it judges, and this is the reason


class Column(_Model):
    """One quantity of a table."""

    quantity: Words  # with its unit
    band: Words
    at: Words | None = None  # place in the scorecard; {label} is the row's


class Number(_Model):
    """One printed number, and what we say of it."""

    published: float
    sd: Annotated[float, Ge(0)] | None = None
    band: Words | None = None  # where the column's does not fit
    claim: Claim = "reproduced"  # the strictest: leaving the band is then an error
    reason: Words | None = None


class Row(_Model):
    """One line of a table."""

    row: Words
    label: str | None = None  # in the scenario's line-up
    settings: dict[str, Any] = {}  # of the table's formula
    numbers: Annotated[dict[str, Number], Len(1)]  # by column


class Table(_Model):
    """A table of the source: read from one run, computed by one formula, or absent."""

    table: Words
    title: Words
    run: str | None = None
    formula: str | None = None  # a function of `audit.cli.reproduce.conventions`
    absent: Words | None = None  # why nothing here gives these numbers
    columns: Annotated[dict[str, Column], Len(1)]
    rows: Annotated[list[Row], Len(1)]


class Panel(_Model):
    """Two tables of one column each, whose rows have the same names."""

    title: Words
    across: Words  # a table
    up: Words


class Figure(_Model):
    """A figure of the source that draws its tables against each other."""

    figure: Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*$")]  # names a file
    title: Words
    note: Words | None = None  # what a reader of the picture has to know
    panels: Annotated[list[Panel], Len(1)]


class Expected(_Model):
    """A whole file."""

    title: Words
    source: Words
    runs: dict[str, Run] = {}
    bands: Annotated[dict[str, Band], Len(1)]
    tables: Annotated[list[Table], Len(1)]
    figures: list[Figure] = []


class Listed(NamedTuple):
    """One published number with everything that is known before a run."""

    table: str
    title: str
    row: str
    quantity: str
    published: float
    sd: float | None
    band: Band
    claim: Claim
    reason: str | None
    run: str | None
    at: str | None  # place in that run's scorecard
    formula: str | None  # neither a run nor a formula: absent, never compared
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """Return what errors and messages call it."""
        return f"table {self.table}, {self.row}, {self.quantity}"


def files(folders: list[Path]) -> dict[str, Path]:
    """Return name -> file of every source, the first folder's first."""
    found: dict[str, Path] = {}
    for folder in folders:
        for file in sorted((folder / "expected").glob("*.yaml")):
            found.setdefault(file.stem, file)
    return found


def load(path: Path) -> tuple[Expected, list[Listed]]:
    """Read and check one file; return it and its numbers in order.

    Raises:
      UserError: naming the file, what is typed there and what exists.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        held = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, OSError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    try:
        if not isinstance(held, dict):
            raise UserError("not a mapping")
        expected = Expected.model_validate(held)
        return expected, _numbers(expected)
    except ValidationError as error:
        raise UserError(f"{path}: {registry.explain(error)}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _numbers(expected: Expected) -> list[Listed]:
    for name, run in expected.runs.items():
        _check_run(name, run)
    for name, band in expected.bands.items():
        if (band.absolute is None) == (band.relative is None):
            raise UserError(f"bands.{name}: give one of absolute and relative")
    found = [n for table in expected.tables for n in _of_table(expected, table)]
    seen: set[str] = set()
    for number in found:
        if number.name in seen:
            raise UserError(f"{number.name}: listed twice")
        seen.add(number.name)
    _check_figures(expected)
    unused = set(expected.runs) - {n.run for n in found}
    if unused:
        raise UserError(f"runs.{min(unused)}: no table is read from it")
    return found


def _check_run(name: str, run: Run) -> None:
    for budget, held in (("full", run.full), ("smoke", run.smoke)):
        where = f"runs.{name}.{budget}"
        if held.data == "auto":
            raise UserError(f"{where}.data=auto: name the data set")
        if len(set(held.seeds)) < len(held.seeds):
            raise UserError(f"{where}.seeds={held.seeds}: a seed counts once")
        for word in held.words:
            key = word.split("=")[0]
            if word.startswith("-") or key in ("seed", "data", "scenario", "out"):
                raise UserError(f"{where}.words: {word!r} is not for words to say")


def _check_figures(expected: Expected) -> None:
    tables = {table.table: table for table in expected.tables}
    names: set[str] = set()
    for figure in expected.figures:
        where, up = f"figure {figure.figure}", set()
        if figure.figure in names:
            raise UserError(f"{where}: listed twice")
        names.add(figure.figure)
        for panel in figure.panels:
            for name in (panel.across, panel.up):
                _known(f"{where}: table", name, tables)
                if len(tables[name].columns) > 1:
                    raise UserError(f"{where}: table {name!r} has several columns")
            across, own = tables[panel.across], tables[panel.up]
            if [row.row for row in across.rows] != [row.row for row in own.rows]:
                raise UserError(f"{where}, {panel.title}: its tables' rows differ")
            up |= {column.quantity for column in own.columns.values()}
        if len(up) > 1:
            raise UserError(f"{where}: its panels have one quantity up, not {len(up)}")


def _of_table(expected: Expected, table: Table) -> list[Listed]:
    where = f"table {table.table}"
    if [table.run, table.formula, table.absent].count(None) != 2:
        raise UserError(f"{where}: give one of run, formula and absent")
    if table.run is not None:
        _known(f"{where}: run", table.run, expected.runs)
    return [
        _listed(expected, table, row, key, number, f"{where}, {row.row}")
        for row in table.rows
        for key, number in row.numbers.items()
    ]


def _listed(
    expected: Expected, table: Table, row: Row, key: str, number: Number, where: str
) -> Listed:
    _known(f"{where}: column", key, table.columns)
    column = table.columns[key]
    band = number.band or column.band
    _known(f"{where}, {key}: band", band, expected.bands)
    claim, reason = number.claim, number.reason
    if table.absent is not None:
        claim, reason = "not run", reason or table.absent
    if claim != "reproduced" and reason is None:
        raise UserError(f"{where}, {key}: the claim {claim!r} needs a reason")
    if number.published == 0 and expected.bands[band].relative is not None:
        raise UserError(f"{where}, {key}: nothing is near 0 by a relative band")
    if table.formula is not None:
        _check_formula(table.formula, row.settings, where)
    return Listed(
        table=table.table,
        title=table.title,
        row=row.row,
        quantity=column.quantity,
        published=number.published,
        sd=number.sd,
        band=expected.bands[band],
        claim=claim,
        reason=reason,
        run=table.run,
        at=_place(table, row, column, f"{where}, {key}"),
        formula=table.formula,
        settings=row.settings,
    )


def _place(table: Table, row: Row, column: Column, where: str) -> str | None:
    if (column.at is None) == (table.run is not None):
        raise UserError(f"{where}: `at` where there is a run, and nowhere else")
    if column.at is None:
        return None
    if "{label}" in column.at and row.label is None:
        raise UserError(f"{where}: at={column.at!r} needs the row's label")
    at = column.at.replace("{label}", row.label or "")
    try:
        places.parse(at)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return at


def formulas() -> dict[str, Any]:
    """Return the functions a table may be computed by."""
    from audit.cli.reproduce import conventions

    return {
        name: held
        for name, held in vars(conventions).items()
        if inspect.isfunction(held) and held.__module__ == conventions.__name__
    }


def _check_formula(name: str, settings: dict[str, Any], where: str) -> None:
    known = formulas()
    _known(f"{where}: formula", name, known)
    try:
        inspect.signature(known[name]).bind(**settings)
    except TypeError as error:
        raise UserError(f"{where}: settings of {name}: {error}") from None


def _known(what: str, word: str, words: Any) -> None:
    if word not in words:
        raise UserError(f"{what} {word!r} is unknown{did_you_mean(word, words)}")
