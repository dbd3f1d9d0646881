"""Two scorecards side by side, and whether the second protects less.

For every defense in both, the strongest attack on it is compared with the strongest
attack on the other, of the attacks that both cards have. Two things make a difference
noise: which targets there are, and what a seed draws for all of them at once (where
training begins, the attacker's own models). Where the targets are the same, errors are
compared target by target, else as independent numbers. With one seed on both sides all
draws are common. What another seed changes is estimated from several cards per side;
from one card each it is not known, and then no attack can show a difference.

The interval is for the difference, at 95% for all defenses together (Bonferroni). A
defense protects less if the whole interval says so, and by more than the thousandth
that rounding on another machine may do; or if its accounted epsilon is larger, gone, or
does not hold: a flag of the second card says that its runs are of another mechanism, or
that an attack gets more than any attacker can. It may do so if the second card lacks
it, or lacks the attack that was strongest.

Settings that differ are named, whichever they are: a defense's are what is compared,
but an attack of fewer steps, or of fewer targets and runs, shows less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.errors import UserError, brief
from audit.report import columns, html, terminal
from audit.scorecard import average_seeds, settings
from audit.scorecard.card import errors
from audit.scorecard.flags import refuting
from audit.scorecard.schema import DefenseRow, Scorecard, TrialRow
from audit.scorecard.view import number

LEVEL = 0.95  # of all intervals together
LEAST = 1e-3  # of a number: less may be rounding


class ComparedDefense(NamedTuple):
    """The strongest attacks on one defense, the second card's less the first's."""

    defense: str
    attacks: tuple[str, str]  # the strongest on each card
    metric: str
    values: tuple[float, float]
    difference: float  # of strength: above 0, the second protects less
    low: float
    high: float
    paired: int  # targets compared one by one; 0 = two independent numbers
    weaker: bool


class ComparedEpsilon(NamedTuple):
    """An accounted epsilon on both cards; None = there is none."""

    defense: str
    adjacency: str
    values: tuple[float | None, float | None]
    weaker: bool


class CardComparison(NamedTuple):
    """What two cards say of the defenses that both have."""

    attacked: tuple[ComparedDefense, ...]
    accounted: tuple[ComparedEpsilon, ...]
    left_out: tuple[str, ...]  # what could not be compared, and why
    untried: tuple[str, ...]  # defenses that are lost, or their strongest attack is
    refuted: tuple[str, ...] = ()  # defenses, and why nothing accounted for holds
    unequal: tuple[str, ...] = ()  # settings, with their values on both cards

    @property
    def weaker(self) -> bool:
        """Whether some defense of the second card protects less, beyond noise.

        Or may do so: the second card lacks it, or lacks the first card's strongest
        attack on it, or that is void there; or what is accounted for holds on the first
        card alone.
        """
        rows: list[Any] = [*self.attacked, *self.accounted]
        return bool(self.untried or self.refuted) or any(row.weaker for row in rows)

    def __str__(self) -> str:
        """Return the rows as a table, what was left out, and the verdict."""
        return render(self)

    def __repr__(self) -> str:
        """Return the same, for a notebook."""
        return render(self)

    def frame(self) -> Any:
        """Return the attacked defenses as a pandas DataFrame, one row each."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "defense": row.defense,
                    "metric": row.metric,
                    "first": row.values[0],
                    "first_attack": row.attacks[0],
                    "second": row.values[1],
                    "second_attack": row.attacks[1],
                    "stronger_by": row.difference,
                    "low": row.low,
                    "high": row.high,
                    "paired_targets": row.paired,
                    "weaker": row.weaker,
                }
                for row in self.attacked
            ]
        )


def read(place: str) -> list[Scorecard]:
    """Return the card of a run, or the cards in a folder of runs.

    Raises:
      UserError: if there is none, or one cannot be read.
    """
    folder = Path(place).expanduser()
    inside = sorted(path.parent for path in folder.glob("*/scorecard.json"))
    if inside and not (folder / "scorecard.json").exists():
        return [html.load(each) for each in inside]
    return [html.load(html.locate(str(folder)))]


def compare(
    first: Scorecard | Sequence[Scorecard], second: Scorecard | Sequence[Scorecard]
) -> CardComparison:
    """Compare the second card with the first; either may be several seeds of one.

    Raises:
      UserError: if they are of two scenarios, of two data sets, or share no defense; if
        cards of one side differ in more than the seed.
    """
    sides = [_side(cards) for cards in (first, second)]
    one, other = (side[0] for side in sides)
    for what, a, b in (
        ("scenarios", one.scenario.scenario, other.scenario.scenario),
        ("games", one.scenario.game, other.scenario.game),
        ("data sets", one.data.name, other.data.name),
    ):
        if a != b:
            raise UserError(
                f"these cards are of two {what}: {a} and {b}; give two of one"
            )
    both = [label for label in one.defenses if label in other.defenses]
    if not both:
        raise UserError(
            f"no defense is on both cards: {', '.join(one.defenses)} on the first, "
            f"{', '.join(other.defenses)} on the second"
        )
    left_out = [
        f"{label}: on one card only"
        for label in (*one.defenses, *other.defenses)
        if label not in both
    ]
    attacked, untried = [], [d for d in one.defenses if d not in other.defenses]
    for label in both:
        valid = [_valid(side, label) for side in sides]
        shared = [a for a in valid[0] if a in valid[1]]
        for here, there, which in ((*valid, "first"), (*valid[::-1], "second")):
            left_out += [
                f"{attack} on {label}: valid on the {which} card only"
                for attack in here
                if attack not in there
            ]
        if valid[0] and _strongest(valid[0]) not in shared:
            untried.append(label)
        if not shared:
            left_out.append(f"{label}: no valid attack is on both cards")
            continue
        before, after = ({a: side[a] for a in shared} for side in valid)
        attacked.append((label, before[_strongest(before)], after[_strongest(after)]))
    level = 1 - (1 - LEVEL) / max(1, len(attacked))
    rows = [_attacked(*each, level) for each in attacked]
    if any(math.isinf(a.se) or math.isinf(b.se) for _, a, b in attacked):
        left_out.append(
            "numbers without a standard error, of one card per side; give folders with "
            "several seeds"
        )
    elif any(math.isinf(row.high) for row in rows):
        left_out.append(
            "the attacks: two seeds, one card each, cannot tell what a seed changes; "
            "give one seed on both sides, or folders with several cards"
        )
    accounted: list[ComparedEpsilon] = []
    refuted: list[str] = []
    for label in both:
        defenses = [card.defenses[label] for card in (one, other)]
        deltas = dict.fromkeys(str(d.epsilon.delta) for d in defenses if d.epsilon)
        errors = [_refuting(side, label) for side in sides]
        names = ", ".join(sorted(errors[1] - errors[0] or errors[1]))
        if errors[1] - errors[0]:
            refuted.append(f"{label} ({names})")
        elif errors[1]:
            left_out.append(f"ε of {label}: it holds on neither card ({names})")
        elif len(deltas) > 1:
            left_out.append(f"ε of {label}: at δ {' and '.join(deltas)}")
        else:
            accounted += _accounted(label, *defenses)
    here, there = map(settings.by_path, (one, other))
    unequal = [
        f"{path} {here.get(path)} and {there.get(path)}"
        for path in settings.unequal([one, other])
    ]
    return CardComparison(
        attacked=tuple(rows),
        accounted=tuple(accounted),
        left_out=tuple(left_out),
        untried=tuple(untried),
        refuted=tuple(refuted),
        unequal=tuple(unequal),
    )


def _refuting(side: list[Scorecard], label: str) -> set[str]:
    """Return the flags, of any card, that say nothing accounted for a defense holds."""
    rows = [card.defenses[label].flags for card in side]
    rows += [t.flags for card in side for t in card.trials if t.defense == label]
    return {flag.name for flags in rows for flag in refuting(flags)}


def _side(cards: Scorecard | Sequence[Scorecard]) -> list[Scorecard]:
    """Return the cards of one side, which differ in their seed alone."""
    several = isinstance(cards, Iterable) and not isinstance(cards, Scorecard)
    side: list[Any] = list(cards) if several else [cards]
    if others := [card for card in side if not isinstance(card, Scorecard)]:
        raise UserError(f"{brief(others[0])} is no card: give one, several, or a path")
    if not side:
        raise UserError("no card on one side: give one, several, or a path")
    average_seeds.check(side, "on one side")
    return sorted(side, key=lambda card: card.scenario.seed)


class _Attacked(NamedTuple):
    """The strongest attack on one defense, on all cards of a side."""

    attack: str
    metric: str
    floor: float
    higher: bool  # whether a higher value is a stronger attack
    values: np.ndarray  # [cards]
    seeds: tuple[int, ...]  # [cards]
    se: float  # of the mean of values, over targets
    errors: np.ndarray | None  # [targets], mean over cards; None = not on the cards
    targets: str  # digest of the data

    @property
    def strength(self) -> np.ndarray:
        """The values, signed so that a larger one is a stronger attack."""
        return self.values * (1 if self.higher else -1)


def _valid(side: list[Scorecard], label: str) -> dict[str, _Attacked]:
    """Return attack -> what it gets, of those that are valid on all cards of a side."""
    attacks = {t.attack for card in side for t in card.trials}
    valid = {}
    for attack in sorted(attacks):
        rows = []
        for card in side:
            only = [t for t in card.trials if t.attack == attack]
            rows.append(columns.strongest(card._replace(trials=only), label))
        if None not in rows:
            valid[attack] = _read(side, [row for row in rows if row is not None])
    return valid


def _strongest(valid: dict[str, _Attacked]) -> str:
    """Return the attack that is strongest on average; "" = there is none."""
    return max(valid, key=lambda a: float(valid[a].strength.mean()), default="")


def _read(side: list[Scorecard], rows: list[TrialRow]) -> _Attacked:
    headlines: list[Any] = [row.result and row.result.headline for row in rows]
    of_targets = [errors(card, row) for card, row in zip(side, rows, strict=True)]
    paired = all(e is not None for e in of_targets)
    errors_of_means = [h.standard_error for h in headlines]
    spread = [float(se) for se in errors_of_means if se is not None]
    # of several cards without one, the spread of seeds is what there is
    spread = spread or [0.0 if len(side) > 1 else math.inf]
    return _Attacked(
        attack=rows[0].attack,
        metric=headlines[0].metric,
        floor=float(headlines[0].floor or 0),
        higher=headlines[0].better == "higher",
        values=np.array([float(h.value) for h in headlines]),
        seeds=tuple(card.scenario.seed for card in side),
        # targets are the same under every seed: more seeds do not average over them
        se=max(spread),
        errors=np.mean(np.array(of_targets), 0) if paired else None,
        targets=side[0].data.digest,
    )


def _attacked(label: str, a: _Attacked, b: _Attacked, level: float) -> ComparedDefense:
    if a.metric != b.metric:
        raise UserError(
            f"{label}: {a.metric} on the first card, {b.metric} on the second"
        )
    difference = float(b.strength.mean() - a.strength.mean())
    paired, se, freedom = 0, math.hypot(a.se, b.se), math.inf
    if a.targets == b.targets and a.errors is not None and b.errors is not None:
        gaps = a.errors - b.errors
        paired, freedom = len(gaps), max(1, len(gaps) - 1)
        se = float(gaps.std(ddof=1) / math.sqrt(paired)) if paired > 1 else math.inf
    of_seeds, seed_freedom = _over_seeds(a, b)
    if of_seeds:
        freedom = min(freedom, seed_freedom)
    width = math.hypot(se, of_seeds)
    if math.isfinite(width):
        width *= float(stats.t.ppf((1 + level) / 2, freedom))
    scale = max(abs(float(a.values.mean())), abs(a.floor))
    return ComparedDefense(
        label,
        (a.attack, b.attack),
        a.metric,
        (float(a.values.mean()), float(b.values.mean())),
        difference,
        difference - width,
        difference + width,
        paired,
        difference - width > 0 and difference > LEAST * scale,
    )


def _over_seeds(a: _Attacked, b: _Attacked) -> tuple[float, float]:
    """Return the standard error that seeds add to the difference, and its freedom."""
    if a.seeds == b.seeds:
        n = len(a.seeds)
        gaps = b.strength - a.strength
        return (float(gaps.std(ddof=1) / math.sqrt(n)), n - 1) if n > 1 else (0.0, 1)
    many = [side.strength for side in (a, b) if len(side.seeds) > 1]
    if not many:
        return math.inf, 1
    freedom = sum(len(v) - 1 for v in many)
    pooled = sum(float(v.var(ddof=1)) * (len(v) - 1) for v in many) / freedom
    return math.sqrt(pooled * (1 / len(a.seeds) + 1 / len(b.seeds))), freedom


def _accounted(
    label: str, first: DefenseRow, second: DefenseRow
) -> list[ComparedEpsilon]:
    """Return the epsilons that either defense has, at one δ, by adjacency."""
    rows = []
    for adjacency in ("replace_one", "add_remove"):
        pairs: list[Any] = [d.epsilon and d.epsilon[adjacency] for d in (first, second)]
        a, b = (None if p is None or p.least is None else float(p.least) for p in pairs)
        if a is None and b is None:
            continue
        weaker = a is not None and (b is None or b > a * (1 + LEAST))
        rows.append(ComparedEpsilon(label, adjacency.replace("_", "-"), (a, b), weaker))
    return rows


# For people ---------------------------------------------------------------------------


def render(compared: CardComparison) -> str:
    """Return a comparison as terminal tables and a verdict."""
    from rich import box
    from rich.table import Table

    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False}
    parts = []
    if compared.attacked:
        header = [
            "defense",
            "metric",
            "first",
            "second",
            "stronger by [95%]",
            "targets",
        ]
        table = Table(*header, "", header_style="", **look)
        for row in compared.attacked:
            values = [
                f"{number(v)} {name}"
                for v, name in zip(row.values, row.attacks, strict=True)
            ]
            spread = f"{row.difference:+.2g} [{row.low:+.2g}, {row.high:+.2g}]"
            paired = f"{row.paired} paired" if row.paired else "not paired"
            word = "weaker" if row.weaker else ""
            table.add_row(row.defense, row.metric, *values, spread, paired, word)
        parts.append(terminal.render(table))
    if compared.accounted:
        table = Table("defense", "ε", "first", "second", "", header_style="", **look)
        for one in compared.accounted:
            values = [number(v, 2) for v in one.values]
            word = "weaker" if one.weaker else ""
            table.add_row(one.defense, one.adjacency, *values, word)
        parts.append(terminal.render(table))
    if compared.unequal:
        parts.append(f"not equal on both cards: {'; '.join(compared.unequal)}")
    if compared.left_out:
        parts.append("\n".join(f"not compared: {line}" for line in compared.left_out))
    rows: list[Any] = [*compared.attacked, *compared.accounted]
    names = dict.fromkeys(row.defense for row in rows if row.weaker)
    if names:
        parts.append(f"weaker: the second card protects less: {', '.join(names)}")
    if compared.untried:
        parts.append(
            "may be weaker: the first card's strongest attack is not valid on the "
            f"second, or the defense not there: {', '.join(compared.untried)}"
        )
    if compared.refuted:
        parts.append(
            "weaker: on the second card alone, what is accounted for does not hold: "
            f"{', '.join(compared.refuted)}"
        )
    if not compared.weaker:
        parts.append(
            "not weaker: nothing protects less on the second card beyond noise"
        )
    return "\n\n".join(parts)
