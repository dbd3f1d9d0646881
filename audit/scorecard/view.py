"""How the rows of a card print: what a game says of its own numbers, and the cells.

A game brings a `View`; the report puts views of all games into the same tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from audit.accounting.bounds import format_bound
from audit.scorecard import schema
from audit.scorecard.schema import AttackResult, Number, Scorecard

STANDARD_ERRORS = 2.0  # beyond which two numbers are told apart
NOT_TOLD_APART = "not told apart from a guess"
WRONG_SIGN = "members are told by scores of the wrong sign"
SHORT = {  # how tables call the suite's own bounds
    "cramer_rao": "1/dFIL",
    "hammersley_chapman_robbins": "HCR",
    "van_trees": "van Trees",
    "finite_prior": "finite prior",
    "closed_world": "Bayes risk",
    "cramer_rao_matrix": "Tr I⁻¹/d",
    "hammersley_chapman_robbins_at": "HCR at x",
    "two_point": "two-point",
    "two_point_unbiased": "two-point, unbiased",
    "reconstruction_robustness": "ReRo",
}
# Those that the table of defenses has a column for; the table of bounds has all
COLUMNS = (
    "cramer_rao",
    "hammersley_chapman_robbins",
    "van_trees",
    "finite_prior",
    "closed_world",
)

Cell = Callable[[AttackResult], str]


class Line(NamedTuple):
    """One defense of a card, with the strongest attack on it."""

    card: Scorecard
    label: str
    defense: schema.DefenseRow
    best: schema.TrialRow | None  # None = no valid attack

    @property
    def result(self) -> AttackResult | None:
        """What the strongest attack got."""
        return None if self.best is None else self.best.result


class Column(NamedTuple):
    """One column of the table of defenses."""

    header: str
    cell: Callable[[Line], str]
    narrow: bool = True  # in the terminal too, not only in Markdown
    right: bool = True
    optional: bool = False  # left out where every cell is "-"


class View(NamedTuple):
    """How a game's numbers print."""

    # of the columns below, in words; printed under the table
    units: str | Callable[[Scorecard], str]
    attack: tuple[Column, ...]  # what the strongest attack on a defense got
    trial: Mapping[str, Cell]  # by header: columns of the table of all attacks
    verdict: Callable[[Line], tuple[str, str]]  # a few words; sentences for anybody
    bounds: tuple[Column, ...] = ()
    bound_table: bool = True  # whether bounds are about what attacks are scored by
    trial_words: str = ""  # printed under the table of all attacks
    trial_sections: Callable[[Scorecard], list[str]] = lambda card: []  # below that
    sections: Callable[[Scorecard], list[str]] = lambda card: []  # Markdown
    step_sections: Callable[[Scorecard], list[str]] = lambda card: []  # Markdown
    notes: Callable[[Scorecard], list[str]] = lambda card: []  # lines for the terminal
    eta_words: Callable[[Scorecard], str] | None = None  # whose eta; None = a record's
    spare: bool = False  # whether the terminal has room for more columns than these


# Cells --------------------------------------------------------------------------------


def number(value: Number | None, digits: int = 4) -> str:
    """Return a number as the tables print it: .0123, 3.2e-05, 4.5e+04, nan, or none."""
    if value is None:
        return "none"
    value = float(value)
    if value and (abs(value) < 5 * 10.0**-digits or 1e4 <= abs(value) < float("inf")):
        return f"{value:.1e}"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def with_error(value: Number | None, error: Number | None) -> str:
    """Return "value ± error", both to the same digits; without an error the value.

    An error that is none of these digits is not rounded to 0.
    """
    if value is None or error is None:  # too few to tell, or none at all
        return number(value)
    value, error = float(value), float(error)
    if abs(value) < 1e-3 or abs(value) >= 1e3:
        return f"{value:.1e} ± {error:.0e}"
    if 0 < error < 5e-5:
        return f"{number(value)} ± {error:.0e}"
    return " ± ".join(f"{v:.4f}".removeprefix("0") for v in (value, error))


def percent(share: Number) -> str:
    """Return a share in percent, to three digits."""
    return f"{100 * float(share):.3g}%"


def rounded_share(share: Number | None) -> str:
    """Return a share in whole percent, or "-"."""
    return "-" if share is None else f"{float(share):.0%}"


def interval(estimate: Mapping | schema.Record | None, digits: int = 3) -> str:
    """Return "value [low, high]", or "-"."""
    if estimate is None:
        return "-"
    value, low, high = (number(estimate[k], digits) for k in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def of_best(cell: Cell) -> Callable[[Line], str]:
    """Return the cell of a line that shows what the strongest attack on it got."""
    return lambda line: "none" if line.result is None else cell(line.result)


def attack_name(line: Line) -> str:
    """Return the label of the strongest attack."""
    return "none" if line.best is None else line.best.attack


STRONGEST = Column("strongest", attack_name, right=False)


def bound_text(bound: schema.BoundSummary, statistic: str = "mean") -> str:
    """Return a bound as the tables print it; a tiny one as a power of ten.

    A mean that is estimated has its standard error beside it.
    """
    if bound.standard_error is not None and statistic == "mean":
        values = float(bound.mean), float(bound.standard_error)
        if values[1] < 5e-5:
            return with_error(*values)
        return " ± ".join(f"{v:.4f}".removeprefix("0") for v in values)
    log10 = None if bound.log10 is None else float(bound.log10)
    return format_bound(float(bound[statistic]), log10)


def bound_column(name: str, *, narrow: bool, optional: bool = False) -> Column:
    """Return the column of one bound, called as tables call it.

    One bound per record is summed up by `SUMMARY`: its mean over records would be that
    of a few records that hardly leak. An `optional` column is left out where no defense
    has the bound.
    """

    def cell(line: Line) -> str:
        bound = next((b for b in line.defense.bounds if b.name == name), None)
        if bound is None:
            return "-" if optional else "none"
        if name != "cramer_rao":
            return bound_text(bound)
        values = (bound.min, bound.median, inverse_of_mean(line.defense))
        return "/".join(_three_digits(float(v)) for v in values)

    return Column(SHORT.get(name, name), cell, narrow, optional=optional)


def _three_digits(value: float) -> str:
    if 1e-3 <= value < 1e3:
        return f"{value:#.3g}".rstrip(".").removeprefix("0")
    if 1e3 <= value < 1e4:
        return f"{round(value, -1):.0f}"
    # three of them stand in one cell: no "+0" in the exponent
    return format_bound(value) if value < 1e-3 else f"{value:.1e}".replace("e+0", "e")


SUMMARY = "least / median over records / inverse of the mean dFIL, to compare defenses"


def inverse_of_mean(defense: schema.DefenseRow) -> float:
    """Return 1 / mean dFIL, below the mean error of every unbiased attacker.

    The mean of 1/dFIL is so too and larger, but one record that hardly leaks can make
    it as large as one likes, while the inverse of the mean follows those that leak.
    """
    assert defense.dfil is not None, "it is what the bound was made of"
    mean = float(defense.dfil["mean"])
    return 1 / mean if mean else float("inf")


def limits(defense: schema.DefenseRow) -> list[schema.BoundSummary]:
    """Return the bounds on an error that hold for any attacker, biased or not."""
    return [b for b in defense.bounds if b.ranked and "unbiased" not in b.holds_for]


def adjacency_name(defense: schema.DefenseRow, adjacency: str) -> str:
    """Return how tables call an adjacency under a defense's sampler.

    Where epochs are shuffled, the accounting of add-remove puts nothing in a record's
    place: with a record more or less, all batches behind it would be others.
    """
    if adjacency == "add_remove" and defense.settings.get("sampling") == "shuffled":
        return "zero-out"
    return adjacency.replace("_", "-")


def bound_names(card: Scorecard) -> dict[str, str]:
    """Return the bounds on a card and how tables call them: the suite's own first."""
    names = {b.name for d in card.defenses.values() for b in d.bounds}
    listed = {name: short for name, short in SHORT.items() if name in names}
    return listed | {name: name for name in sorted(names - set(SHORT))}


def main_bounds(card: Scorecard) -> dict[str, str]:
    """Return those of `bound_names` that have a column, a legend and a panel."""
    names = bound_names(card)
    return {n: s for n, s in names.items() if n in COLUMNS or n not in SHORT}


# Markdown -----------------------------------------------------------------------------


def grid(header: list[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; nothing inside a cell ends it or is HTML."""
    lines = [header, ["---"] * len(header), *rows]
    escaped = [[no_html(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def no_html(text: str) -> str:
    """Return text on one line in which no HTML starts."""
    for mark in ("&", "<", ">"):
        text = text.replace(mark, f"&#{ord(mark)};")
    return " ".join(text.split())


def literal(text: str) -> str:
    """Return text that starts no Markdown: for cells of `grid`, or with `no_html`."""
    return re.sub(r"([\\`\[\]*])", r"\\\1", text)


# A game that is not installed here ----------------------------------------------------


def headline_verdict(line: Line) -> tuple[str, str]:
    """Return what an attack got, by its headline alone."""
    if line.result is None:
        return "not attacked", "Nothing was measured."
    headline = line.result.headline
    value = with_error(headline.value, headline.standard_error)
    text = f"Its {headline.metric} is {value}"
    if headline.floor is not None:
        text += f"; who ignores the release gets {number(headline.floor)}"
    return f"{headline.metric} {number(headline.value)}", text + "."


def _headline(result: AttackResult) -> str:
    return with_error(result.headline.value, result.headline.standard_error)


PLAIN = View(
    units="value: the attack's headline number, ± one standard error",
    attack=(
        STRONGEST,
        Column("value ± s.e.", of_best(_headline)),
        Column("floor", of_best(lambda r: number(r.headline.floor))),
    ),
    trial={"metric": lambda r: r.headline.metric, "value ± s.e.": _headline},
    verdict=headline_verdict,
    bounds=tuple(bound_column(name, narrow=False) for name in COLUMNS[:4]),
)
