"""A card's verdict in plain words: released what, attacked by whom, with what success.

For readers who know no statistics. Every sentence is a function of the card; thresholds
are named below. No sentence says more than the numbers beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from audit.accounting import tradeoff
from audit.config import registry
from audit.errors import UserError
from audit.report import columns
from audit.scorecard.schema import EpsilonPair
from audit.scorecard.view import (
    SHORT,
    Line,
    adjacency_name,
    bound_text,
    main_bounds,
    number,
)

VACUOUS = 0.99  # an attacker who may be right so often is not held back
SMALL = 0.01  # of the floor's error: a bound that says next to nothing
NEIGHBOURS = {
    "replace_one": "which of two records was in the training set",
    "add_remove": "whether a record was in the training set",
}


class Verdict(NamedTuple):
    """Six answers about one defense."""

    defense: str
    headline: str
    released: str
    attacker: str
    got: str
    guaranteed: list[str]
    estimated: list[str]
    not_guaranteed: list[str]


def verdict(line: Line) -> Verdict:
    """Return what a non-expert must know about one defense of a card."""
    headline, got = "not attacked", "Nothing was measured."
    if line.result is not None:
        headline, got = columns.view(line.card).verdict(line)
    answers = headline, _released(line), _attacker(line), got
    dp, no_dp = _from_epsilon(line)
    bounds, estimated, no_bounds = _from_bounds(line)
    missing = no_dp + no_bounds
    if not line.defense.bounds and line.defense.epsilon is None:
        text = "no theorem limits what a stronger attack could get from this release."
        missing.append(f"Anything: {text}")
    if line.best is not None:
        text = "the attacks above are those that were tried."
        missing.append(f"That no attack does better: {text}")
    return Verdict(line.label, *answers, dp + bounds, estimated, missing)


# Released, attacker -------------------------------------------------------------------


def _about(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring, if it is installed here."""
    try:
        return registry.summary(kind, name).rstrip(".")
    except (UserError, OSError, SyntaxError):
        return f"a {kind} that is not installed here"


def _released(line: Line) -> str:
    card, defense, useful = line.card, line.defense, line.defense.utility
    records = card.data.splits.get("fixed", 0)
    extra = " and one more, the target" if card.data.splits.get("targets") else ""
    model = card.scenario.task.get("model", "a model")
    text = (
        f"What {defense.use} ({_about('defense', defense.use)}) puts out, learning "
        f"{model} from {records:,} private records of {card.data.name}{extra}."
    )
    if useful is not None and useful.accuracy is not None:
        share = float(useful.accuracy)
        text += f" It is right on {share:.2%} of {useful.test:,} records kept apart."
    elif useful is not None and useful.r2 is not None:
        text += f" On records kept apart its R² is {number(useful.r2)}."
    return text


def _attacker(line: Line) -> str:
    best = line.best
    if best is not None:
        about = _about("attack", best.use)
        strongest = f"The strongest of those tried is {best.attack} ({about})."
        return f"{strongest} It {best.threat_model}."
    if any(t.defense == line.label for t in line.card.trials):
        return "No attack on this defense is valid: see the flags."
    return "Nobody: this card holds bounds alone."


# Guarantees ---------------------------------------------------------------------------


def _from_epsilon(line: Line) -> tuple[list[str], list[str]]:
    """Return what epsilon promises about telling two neighbours apart, and what not."""
    epsilon, promised, void, most = line.defense.epsilon, [], [], 0.0
    if epsilon is None:
        return [], []
    for adjacency, words in NEIGHBOURS.items():
        pair: EpsilonPair | None = epsilon[adjacency]
        value = None if pair is None else pair.least
        if value is None:
            continue
        advantage = tradeoff.advantage_from_epsilon(float(value), epsilon.delta)
        share = (1 + float(advantage)) / 2  # of the time that anyone can be right
        text = f"ε = {number(value, 2)} ({adjacency_name(line.defense, adjacency)})"
        if share > VACUOUS:
            void.append(text)
            most = max(most, share)
        else:
            promised.append(
                f"{text} at δ = {epsilon.delta:g}: whoever must tell {words}, both "
                f"being as likely, is right at most {share:.1%} of the time."
            )
    missing = (
        f"Differential privacy that means anything: {' and '.join(void)} at δ = "
        f"{epsilon.delta:g} would let an attacker be right {most:.1%} of the "
        f"time about who took part."
    )
    return promised, [missing] if void else []


def _from_bounds(line: Line) -> tuple[list[str], list[str], list[str]]:
    """Return which bounds hold for anybody, or are estimated to, and why others not."""
    promised: list[str] = []
    estimated: list[str] = []
    missing, unbiased = [], []
    floor = line.card.floor.mse
    for bound in line.defense.bounds:
        if bound.name not in main_bounds(line.card):
            continue
        least = f"{bound_text(bound)} ({SHORT.get(bound.name, bound.name)})"
        text = f"An average error of at least {least}"
        if "unbiased" in bound.holds_for:
            unbiased.append(least)
        elif not bound.ranked:
            missing.append(
                f"{text}: it holds for {bound.holds_for}, which real data do not "
                f"promise."
            )
        elif floor is not None and float(bound.mean) < SMALL * float(floor):
            missing.append(f"{text}, which is next to nothing: under 1% of a guess's.")
        else:
            sure = promised if bound.standard_error is None else estimated
            sure.append(f"{text}, for {bound.holds_for} ({bound.theorem}).")
    if unbiased:
        missing.insert(
            0,
            f"An average error of at least {' or '.join(unbiased)}: these bind "
            f"unbiased attackers only, and practical ones are biased.",
        )
    return promised, estimated, missing
