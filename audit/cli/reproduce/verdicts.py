"""Published beside ours: the verdict on each number, as table, markdown and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from audit.cli.reproduce.published import Band, Figure, Listed
from audit.report import terminal
from audit.report.columns import number
from audit.report.markdown import grid

SMOKE = (
    "SMOKE: tiny budgets, to see that every place can be read. These runs reproduce\n"
    "nothing: none of their numbers was compared, no page was written."
)
KINDS = ("reproduced", "differs", "not run", "smoke")


class Reading(NamedTuple):
    """What our side has to say on one number."""

    values: tuple[float, ...]  # one a seed; none where there is nothing to compare
    why: str | None = None  # there is nothing
    broken: bool = False  # and there should be


class Verdict(NamedTuple):
    """One published number beside ours."""

    listed: Listed
    values: tuple[float, ...]
    verdict: str  # of KINDS
    reason: str
    broken: bool  # the command fails over this one
    stale: bool  # what the file claims is not what was found, and no failure


def within(band: Band, published: float, ours: float) -> bool:
    """Return whether ours lies in the band round the published value, edges included.

    The edges are what the file's decimals say, hence the allowance for binary rounding.
    """
    if band.absolute is not None:
        width = band.absolute
    else:
        assert band.relative is not None
        width = band.relative * abs(published)
    return abs(ours - published) <= width * (1 + 1e-9)


def judge(listed: Listed, reading: Reading, budget: str) -> Verdict:
    """Return the verdict on one number.

    It is `reproduced` only where the mean over seeds is in the band and the file does
    not say otherwise: what is explained as different is not counted because it happens
    to be near. A smoke run says only that there is something to read.
    """

    def verdict(
        word: str, reason: str, broken: bool = False, stale: bool = False
    ) -> Any:
        return Verdict(listed, reading.values, word, reason, broken, stale)

    claimed = listed.reason or ""
    if not reading.values:
        why = reading.why or claimed
        return verdict("not run", why, broken=reading.broken)
    if budget == "smoke" and listed.formula is None:
        return verdict("smoke", "a smoke run is not compared")
    near = within(listed.band, listed.published, float(np.mean(reading.values)))
    if listed.claim == "differs":
        extra = "in the band all the same; " if near else ""
        return verdict("differs", extra + claimed, stale=near)
    if listed.claim == "not run":
        return verdict("reproduced" if near else "differs", "not claimed", stale=True)
    if near:
        return verdict("reproduced", "")
    return verdict("differs", "claimed reproduced and outside its band", broken=True)


# Words --------------------------------------------------------------------------------


def counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Return how many numbers have each verdict, `listed` first."""
    seen = Counter(v.verdict for v in verdicts)
    return {"listed": seen.total(), **{kind: seen[kind] for kind in KINDS}}


def headline(verdicts: list[Verdict]) -> str:
    """Return how many numbers are listed and which share is reproduced."""
    held = counts(verdicts)
    share = f"{held['reproduced'] / held['listed']:.0%}"
    return (
        f"{held['listed']} published numbers listed: {held['reproduced']} reproduced "
        f"({share}), {held['differs']} differ, {held['not run']} not run"
    )


def short(value: float) -> str:
    """Return a number as the tables print it, a count without decimals."""
    count = float(value).is_integer() and value != 1 and abs(value) < 1e4
    return str(int(value)) if count else number(value)


def printed(value: float, sd: float | None) -> str:
    """Return a published value with its published s.d."""
    if sd is None:
        return short(value)
    return f"{short(value)} ± {f'{sd:.4f}'.removeprefix('0')}"


def ours(values: tuple[float, ...]) -> str:
    """Return the mean over seeds with the s.d. over them, or a dash."""
    if not values:
        return "-"
    mean = short(float(np.mean(values)))
    if len(values) == 1:
        return mean
    return f"{mean} ± {number(float(np.std(values, ddof=1)))}"


def band_text(band: Band) -> str:
    """Return the width of a band."""
    if band.relative is not None:
        return f"± {100 * band.relative:.3g}%"
    assert band.absolute is not None
    return f"± {short(band.absolute)}"


def table(verdicts: list[Verdict]) -> str:
    """Return the terminal's short form: one line a table of the source."""
    kinds = [kind for kind in KINDS if any(v.verdict == kind for v in verdicts)]
    out = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style=""
    )
    for header in ("", "listed", *kinds):
        out.add_column(header, justify="right" if header else "left", no_wrap=True)
    out.add_column("of what", overflow="fold")
    for (name, title), group in _tables(verdicts).items():
        held = counts(group)
        cells = (str(held[kind]) for kind in ("listed", *kinds))
        out.add_row(_heading(name), *cells, title)
    return terminal.render(out)


def notes(verdicts: list[Verdict]) -> list[str]:
    """Return one line on each number that breaks a claim, then on each claim behind."""
    broken = [f"failed: {_said(v)}" for v in verdicts if v.broken]
    stale = [f"claim {v.listed.claim!r}: {_said(v)}" for v in verdicts if v.stale]
    return [*broken, *stale]


def _said(v: Verdict) -> str:
    if not v.values:
        return f"{v.listed.name}: {v.reason}"
    beside = (
        f"published {printed(v.listed.published, v.listed.sd)}, ours {ours(v.values)}"
    )
    return f"{v.listed.name}: {beside}, {v.verdict}: {v.reason}"


# Files --------------------------------------------------------------------------------


def markdown(
    title: str,
    source: str,
    verdicts: list[Verdict],
    runs: list[dict[str, Any]],
    figures: Mapping[str, Figure] | None = None,
) -> str:
    """Return every published number beside ours, tables in the source's order.

    Args:
      title: of the page.
      source: of the published numbers.
      verdicts: one a number.
      runs: replay command, device, commit, code and seconds of every run; see
        `reproduce`.
      figures: by the name of each one's file, beside the page.
    """
    said = [
        f"# {title}",
        f"**{headline(verdicts)}.**",
        source,
        "± is one s.d. over runs: theirs as printed, ours over our seeds. The mean "
        "over our seeds is compared with the band, edges included. How to read this "
        "page: `docs/reproduction.md`.",
    ]
    for (table, title_of), group in _tables(verdicts).items():
        said += [f"## {_heading(table)}: {title_of}", _rows(group)]
    for file, figure in (figures or {}).items():
        said += [
            f"## Figure {figure.figure}: {figure.title}",
            f"![published and ours]({file})",
            *([figure.note] if figure.note else []),
        ]
    return "\n\n".join([*said, "## Bands", _bands(verdicts), "## Runs", _runs(runs)])


def _heading(table: str) -> str:
    return table if " " in table else f"Table {table}"


def _tables(verdicts: list[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for v in verdicts:
        groups.setdefault((v.listed.table, v.listed.title), []).append(v)
    return groups


def _rows(group: list[Verdict]) -> str:
    header = ["", "quantity", "published", "ours", "seeds", "band", "verdict", "reason"]
    return grid(
        header,
        (
            [
                v.listed.row,
                v.listed.quantity,
                printed(v.listed.published, v.listed.sd),
                ours(v.values),
                str(len(v.values)) if v.listed.run and v.values else "",
                band_text(v.listed.band),
                v.verdict,
                v.reason,
            ]
            for v in group
        ),
    )


def _bands(verdicts: list[Verdict]) -> str:
    reasons = dict.fromkeys(
        (band_text(b), b.why) for b in (v.listed.band for v in verdicts)
    )
    said = "Committed before the runs they judge, each for this reason:"
    return f"{said}\n\n{grid(['band', 'because'], reasons)}"


def _runs(runs: list[dict[str, Any]]) -> str:
    header = ["run", "command", "status", "device", "commit", "seconds"]
    return grid(header, ([str(run[word]) for word in header] for run in runs))


def to_json(
    title: str, source: str, verdicts: list[Verdict], runs: list[dict[str, Any]]
) -> str:
    """Return the facts of the markdown page as JSON."""
    held = counts(verdicts)
    facts = {
        "schema": 1,
        "title": title,
        "source": source,
        **held,
        "share_reproduced": held["reproduced"] / held["listed"],
        "numbers": [_fact(v) for v in verdicts],
        "runs": runs,
    }
    return json.dumps(facts, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _fact(v: Verdict) -> dict[str, Any]:
    listed = v.listed._asdict() | {"band": v.listed.band.model_dump(exclude_none=True)}
    mean = float(np.mean(v.values)) if v.values else None
    return {
        **listed,
        "ours": mean,
        "values": list(v.values),
        "verdict": v.verdict,
        "verdict_reason": v.reason,
    }
