"""Published beside ours: the verdict on each number, and the pages that list them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator
from rich import box
from rich.table import Table

from audit.cli.reproduce.published import PublishedFigure, PublishedNumber, Tolerance
from audit.errors import UserError, counted
from audit.report import terminal
from audit.report.columns import number as decimal
from audit.report.markdown import grid

SMOKE = (
    "SMOKE: tiny budgets, to see that every place can be read. These runs reproduce\n"
    "nothing: none of their numbers was compared, no page was written."
)
COMPARED = ("reproduced", "differs", "not run")
KINDS = (*COMPARED, "smoke")


class ComparedNumber(PublishedNumber):
    """One published number beside ours."""

    ours: float | None  # mean over seeds
    values: list[float]
    seeds: list[int]  # those of `values`; none of a formula
    verdict: Literal["reproduced", "differs", "not run", "smoke"]
    verdict_reason: str
    broken: bool = Field(False, exclude=True)  # the command fails over this one
    stale: bool = Field(False, exclude=True)  # the file's claim is not what came out


class RunRecord(BaseModel):
    """How one run with one seed was made."""

    run: str
    command: str
    status: str
    device: str = ""
    commit: str = ""
    code: str = ""
    scenario_digest: str = ""  # of its settings; "" = not known
    seconds: float | Literal[""] = ""


class Page(BaseModel):
    """Everything that `NAME.json` says of one source."""

    title: str
    source: str
    numbers: list[ComparedNumber]
    runs: list[RunRecord]  # one per seed that a run is to have

    @model_validator(mode="after")
    def _of_seeds(self) -> Self:
        """Refuse a number of a run that has not one value for each of its seeds."""
        for n in self.numbers:
            if n.run is not None and len(n.seeds) != len(n.values):
                raise ValueError(
                    f"{n.name}: {len(n.values)} values of {len(n.seeds)} seeds"
                )
        return self


# Judging ------------------------------------------------------------------------------


def within(band: Tolerance, published: float, ours: float) -> bool:
    """Return whether ours lies in the band round the published value, edges included.

    The edges are what the file's decimals say, hence the allowance for binary rounding.
    """
    width = band.absolute or (band.relative or 0.0) * abs(published)
    return abs(ours - published) <= width * (1 + 1e-9)


def by_a_blind_attack(number: PublishedNumber) -> bool:
    """Return whether an attack that learns nothing would reproduce a number."""
    blind = number.blind
    return blind is not None and within(number.band, number.published, blind)


def by_another_row(number: ComparedNumber, page: list[ComparedNumber]) -> bool:
    """Return whether ours of another row of the table would reproduce a number.

    A row with the same published value is no other one.
    """
    return any(
        (other.table, other.quantity) == (number.table, number.quantity)
        and other.published != number.published
        and other.ours is not None
        and within(number.band, number.published, other.ours)
        for other in page
    )


def judge(
    number: PublishedNumber,
    budget: str,
    values: Sequence[float] = (),
    why: str | None = None,
    broken: bool = False,
    seeds: Sequence[int] = (),
) -> ComparedNumber:
    """Return the verdict on one number, given ours of a budget, one value per seed.

    It is `reproduced` only where the mean over seeds is in the band and the file does
    not claim otherwise: a number that is explained as different is not counted because
    it happens to be near. A smoke run shows only that there is something to read.
    Where there are no values, `why` says the reason, by default the number's own, and
    `broken` whether there should have been some, or more.
    """
    mean, lacking = float(np.mean(values)) if values else None, broken
    near = mean is not None and within(number.band, number.published, mean)
    word, reason, stale = "differs", number.reason or "", False
    if mean is None:
        word, reason = "not run", why or reason
    elif budget == "smoke" and number.formula is None:
        word, reason = "smoke", "a smoke run is not compared"
    elif number.claim == "differs":
        reason, stale = ("in the band all the same; " if near else "") + reason, near
    elif number.claim == "not run":
        word, reason, stale = "reproduced" if near else word, "not claimed", True
    elif near:
        word, reason = "reproduced", ""
        if by_a_blind_attack(number):
            blind = short(number.blind or 0.0)
            reason = f"an attack that learns nothing gets {blind}, in this band too"
    else:
        reason, broken = "claimed reproduced and outside its band", True
    if lacking and mean is not None:
        reason = f"{why}; {reason}".removesuffix("; ")
    outcome = dict(number) | {"verdict": word, "verdict_reason": reason, "ours": mean}
    outcome |= {"values": list(values), "seeds": list(seeds)}
    outcome |= {"broken": broken, "stale": stale}
    return ComparedNumber.model_validate(outcome)


# In words -----------------------------------------------------------------------------


def counts(verdicts: Iterable[ComparedNumber]) -> dict[str, int]:
    """Return how many numbers have each verdict, `listed` first."""
    tally = Counter[str](v.verdict for v in verdicts)
    return {"listed": tally.total(), **{kind: tally[kind] for kind in KINDS}}


def share(tally: Mapping[str, int]) -> float:
    """Return which share of all listed numbers is reproduced."""
    return tally["reproduced"] / max(tally["listed"], 1)


def headline(verdicts: list[ComparedNumber]) -> str:
    """Return how many numbers are listed and which share is reproduced."""
    tally = counts(verdicts)
    return (
        f"{counted(tally['listed'], 'published number')} listed: "
        f"{tally['reproduced']} reproduced ({share(tally):.0%}), "
        f"{tally['differs']} differ, {tally['not run']} not run"
    )


def cautions(verdicts: list[ComparedNumber]) -> str:
    """Return how many reproduced numbers tell little apart, in words."""
    reproduced = [v for v in verdicts if v.verdict == "reproduced"]
    rows = sum(by_another_row(v, verdicts) for v in reproduced)
    blind = sum(map(by_a_blind_attack, reproduced))
    return (
        f"A band says that two numbers are near, not that rows are told apart: of the "
        f"{len(reproduced)} reproduced, {rows} would also be by ours of another row of "
        f"their table with another published value, and {blind} by an attack that "
        "learns nothing."
    )


def short(value: float) -> str:
    """Return a number as the tables print it, a count without decimals."""
    count = float(value).is_integer() and value != 1 and abs(value) < 1e6
    return str(int(value)) if count else decimal(value)


def printed(value: float, sd: float | None) -> str:
    """Return a published value with its published s.d."""
    spread = "" if sd is None else f" ± {f'{sd:.4f}'.removeprefix('0')}"
    return short(value) + spread


def mean_and_sd(values: list[float]) -> str:
    """Return the mean over seeds with the s.d. over them, or a dash."""
    if not values:
        return "-"
    spread = f" ± {decimal(float(np.std(values, ddof=1)))}" if len(values) > 1 else ""
    return short(float(np.mean(values))) + spread


def band_text(band: Tolerance) -> str:
    """Return the width of a band."""
    relative = f"{100 * (band.relative or 0):.3g}%"
    return f"± {short(band.absolute) if band.absolute else relative}"


def notes(verdicts: list[ComparedNumber]) -> list[str]:
    """Return one line per number that breaks its claim, then per outdated claim."""
    broken = [f"failed: {_sentence(v)}" for v in verdicts if v.broken]
    stale = [f"claim {v.claim!r}: {_sentence(v)}" for v in verdicts if v.stale]
    return [*broken, *stale]


def _sentence(v: ComparedNumber) -> str:
    if not v.values:
        return f"{v.name}: {v.verdict_reason}"
    both = f"published {printed(v.published, v.sd)}, ours {mean_and_sd(v.values)}"
    return f"{v.name}: {both}, {v.verdict}: {v.verdict_reason}"


# Tables and pages ---------------------------------------------------------------------


def table(verdicts: list[ComparedNumber]) -> str:
    """Return the terminal's short form: one line per table of the source."""
    tally = counts(verdicts)
    kinds = ["listed", *(kind for kind in KINDS if tally[kind])]
    out = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style=""
    )
    for header in ("", *kinds):
        out.add_column(header, justify="right" if header else "left", no_wrap=True)
    out.add_column("of what", overflow="fold")
    for (heading, title), group in _tables(verdicts).items():
        tally = counts(group)
        out.add_row(heading, *(str(tally[kind]) for kind in kinds), title)
    return terminal.render(out)


Tables = dict[tuple[str, str], list[ComparedNumber]]  # by heading and title


def _tables(numbers: list[ComparedNumber]) -> Tables:
    groups: Tables = {}
    for n in numbers:
        heading = n.table if " " in n.table else f"Table {n.table}"
        groups.setdefault((heading, n.title), []).append(n)
    return groups


def _grid(page: Page, verdicts: list[ComparedNumber], *columns: str) -> str:
    """Return one line per number of a page, with the columns that are named."""
    totals = Counter(record.run for record in page.runs)
    cells = [
        {
            "table": v.table,
            "": v.row,
            "quantity": v.quantity,
            "published": printed(v.published, v.sd),
            "ours": mean_and_sd(v.values),
            "seeds": _seed_count(len(v.seeds), totals[v.run or ""]),
            "band": band_text(v.band),
            "verdict": v.verdict,
            "reason": v.verdict_reason,
        }
        for v in verdicts
    ]
    return grid([*columns], ([row[column] for column in columns] for row in cells))


def _seed_count(seeds: int, total: int) -> str:
    """Return how many seeds a number has, and of how many if some are not made."""
    return f"{seeds} of {total}" if 0 < seeds < total else str(seeds or "")


def markdown(page: Page, figures: Mapping[str, PublishedFigure]) -> str:
    """Return every published number beside ours, tables in the source's order.

    Figures have the names of their files, which lie beside the page.
    """
    parts = [
        f"# {page.title}",
        f"**{headline(page.numbers)}.**",
        cautions(page.numbers),
        page.source,
        "± is one s.d. over runs: theirs as printed, ours over our seeds. The mean "
        "over our seeds is compared with the band, edges included. How to read this "
        "page: `docs/reproduction.md`.",
    ]
    columns = ("", "quantity", "published", "ours", "seeds", "band", "verdict")
    for (heading, title), group in _tables(page.numbers).items():
        table = _grid(page, group, *columns, "reason")
        parts += [f"## {heading}: {title}", table]
    for file, figure in figures.items():
        parts += [
            f"## Figure {figure.figure}: {figure.title}",
            f"![published and ours]({file})",
            *([figure.note] if figure.note else []),
        ]
    bands = dict.fromkeys((band_text(v.band), v.band.why) for v in page.numbers)
    fields = ["run", "command", "status", "device", "commit", "seconds"]
    runs = ([str(getattr(run, word)) for word in fields] for run in page.runs)
    parts += [
        "## Bands",
        "Each was committed before the runs it judges, unless its reason says that it "
        "is not blind:",
        grid(["band", "because"], bands),
        "## Runs",
        "Seconds are those of the process that finished the run. A run that was "
        "stopped goes on from what it had stored, and the time of the process that "
        "was stopped is not among them.",
        grid(fields, runs),
    ]
    return "\n\n".join(parts) + "\n"


def to_json(page: Page) -> str:
    """Return a page as JSON, with how many numbers have each verdict."""
    tally = counts(page.numbers)
    facts = {
        "schema": 3,
        **page.model_dump(include={"title", "source"}),
        **tally,
        "share_reproduced": share(tally),
        "numbers": [
            v.model_dump() | {"band": v.band.model_dump(exclude_none=True)}
            for v in page.numbers
        ],
        **page.model_dump(include={"runs"}),
    }
    return json.dumps(facts, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def read_pages(folder: Path) -> dict[str, Page]:
    """Return source -> page, of every `SOURCE.json`; UserError names another file."""
    pages = {}
    for file in sorted(folder.glob("*.json")):
        try:
            pages[file.stem] = Page.model_validate_json(file.read_text())
        except ValueError as error:
            raise UserError(f"{file}: not a page of `reproduce`: {error}") from None
    return pages


def overview(pages: Mapping[str, Page]) -> str:
    """Return `REPRODUCTION.md`: the share reproduced, every source, every number."""
    tallies = {name: counts(page.numbers) for name, page in pages.items()}
    total = counts(v for page in pages.values() for v in page.numbers)
    heads = ("listed", *COMPARED)
    lines = (
        [f"[{name}](reproduction/{name}.md)", pages[name].title]
        + [str(tally[head]) for head in heads]
        + [f"{share(tally):.0%}"]
        for name, tally in tallies.items()
    )
    parts = [
        "# Published numbers beside ours",
        f"**Of {total['listed']} published numbers, {total['reproduced']} are "
        f"reproduced ({share(total):.0%}), {total['differs']} differ, "
        f"{total['not run']} were not run.** The share is of all that are listed: what "
        "was not run counts against it.",
        "Each number's band was committed before the run that judges it; where our "
        "number was known by then, the source's page says so, as it says how many of "
        "the numbers reproduced tell no rows apart. What differs does so for a reason, "
        "given there, as are the commands, devices and commits. "
        "`python -m audit reproduce all` makes this page; "
        "[how to read it](../docs/reproduction.md).",
        grid(["source", "", *heads, "share"], lines),
    ]
    columns = ("table", "", "quantity", "published", "ours", "band", "verdict")
    for name, page in pages.items():
        table = _grid(page, page.numbers, *columns)
        parts += [f"## {page.title}", f"[Reasons](reproduction/{name}.md).", table]
    return "\n\n".join(parts) + "\n"
