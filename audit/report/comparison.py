"""Two scorecards side by side, and whether the second protects less.

For every defense in both, the strongest attack on it is compared with the strongest
attack on the other, of the attacks that both cards have. Where the targets are the same
the errors are compared target by target, else as two independent numbers. The interval
is for the difference, at 95% for all defenses together (Bonferroni). A defense protects
less if the whole interval says so, and by more than the thousandth that rounding on
another machine may do; or if its accounted epsilon is larger, or gone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.errors import UserError
from audit.report import columns, terminal
from audit.scorecard.schema import DefenseRow, Headline, Scorecard, TrialRow
from audit.scorecard.view import number

LEVEL = 0.95  # of all intervals together
LEAST = 1e-3  # of a number: less may be rounding
# metric -> per-target errors on a card: the headline is their mean, or 1 minus that
ERRORS = {"mse": "mse", "success": "wrong"}


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

    @property
    def weaker(self) -> bool:
        """Whether some defense of the second card protects less, beyond noise."""
        rows: list[Any] = [*self.attacked, *self.accounted]
        return any(row.weaker for row in rows)

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


def compare(first: Scorecard, second: Scorecard) -> CardComparison:
    """Compare the second card with the first.

    Raises:
      UserError: if they are of two scenarios, of two data sets, or share no defense.
    """
    for what, a, b in (
        ("scenarios", first.scenario.scenario, second.scenario.scenario),
        ("games", first.scenario.game, second.scenario.game),
        ("data sets", first.data.name, second.data.name),
    ):
        if a != b:
            raise UserError(
                f"these cards are of two {what}: {a} and {b}; give two of one"
            )
    both = [label for label in first.defenses if label in second.defenses]
    if not both:
        raise UserError(
            f"no defense is on both cards: {', '.join(first.defenses)} on the first, "
            f"{', '.join(second.defenses)} on the second"
        )
    left_out = [
        f"{label}: on one card only"
        for label in (*first.defenses, *second.defenses)
        if label not in both
    ]
    shared = {t.attack for t in first.trials} & {t.attack for t in second.trials}
    cards, attacked = (first, second), []
    for label in both:
        one, other = (_strongest(card, label, shared) for card in cards)
        if one is None or other is None:
            left_out.append(f"{label}: no valid attack is on both cards")
        else:
            attacked.append((label, (one, other)))
    level = 1 - (1 - LEVEL) / max(1, len(attacked))
    rows = [_attacked(label, cards, *pair, level) for label, pair in attacked]
    accounted = [
        row
        for label in both
        for row in _accounted(label, first.defenses[label], second.defenses[label])
    ]
    return CardComparison(tuple(rows), tuple(accounted), tuple(left_out))


def _strongest(card: Scorecard, label: str, attacks: set[str]) -> TrialRow | None:
    kept = [t for t in card.trials if t.attack in attacks]
    return columns.strongest(card._replace(trials=kept), label)


def _attacked(
    label: str,
    cards: tuple[Scorecard, Scorecard],
    first: TrialRow,
    second: TrialRow,
    level: float,
) -> ComparedDefense:
    assert first.result is not None
    assert second.result is not None
    a, b = first.result.headline, second.result.headline
    if a.metric != b.metric:
        raise UserError(
            f"{label}: {a.metric} on the first card, {b.metric} on the other"
        )
    each = [_errors(card, t) for card, t in zip(cards, (first, second), strict=True)]
    same = cards[0].data.digest == cards[1].data.digest
    difference = b.strength - a.strength
    paired = 0
    if same and each[0] is not None and each[1] is not None and len(each[0]) > 1:
        gaps = each[0] - each[1]  # of errors: above 0, the second attacker errs less
        paired, se = len(gaps), float(gaps.std(ddof=1) / math.sqrt(len(gaps)))
        width = stats.t.ppf((1 + level) / 2, paired - 1) * se
    else:
        se = math.hypot(_se(a), _se(b))
        width = stats.norm.ppf((1 + level) / 2) * se
    scale = max(abs(float(a.value)), abs(float(a.floor or 0)))
    weaker = difference - width > 0 and difference > LEAST * scale
    return ComparedDefense(
        label,
        (first.attack, second.attack),
        a.metric,
        (float(a.value), float(b.value)),
        difference,
        difference - width,
        difference + width,
        paired,
        bool(weaker),
    )


def _se(headline: Headline) -> float:
    return float(headline.standard_error or 0)


def _errors(card: Scorecard, trial: TrialRow) -> np.ndarray | None:
    """Return the errors a headline is the mean of, [targets]; None = not there."""
    assert trial.result is not None
    headline = trial.result.headline
    name = f"{trial.defense}/{trial.attack}/{ERRORS.get(headline.metric)}"
    errors = card.arrays.get(name)
    if errors is None or errors.ndim != 1:
        return None
    mean = float(errors.mean())
    mean = 1 - mean if headline.better == "higher" else mean
    return errors if math.isclose(mean, float(headline.value), rel_tol=1e-5) else None


def _accounted(
    label: str, first: DefenseRow, second: DefenseRow
) -> list[ComparedEpsilon]:
    """Return the epsilons that either defense has, adjacency by adjacency."""
    rows = []
    deltas = {d.epsilon.delta for d in (first, second) if d.epsilon}
    for adjacency in ("replace_one", "add_remove") if len(deltas) == 1 else ():
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
    if compared.left_out:
        parts.append("\n".join(f"not compared: {line}" for line in compared.left_out))
    rows: list[Any] = [*compared.attacked, *compared.accounted]
    names = dict.fromkeys(row.defense for row in rows if row.weaker)
    if names:
        parts.append(f"weaker: the second card protects less: {', '.join(names)}")
    else:
        parts.append(
            "not weaker: nothing protects less on the second card beyond noise"
        )
    return "\n\n".join(parts)
