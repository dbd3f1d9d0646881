"""A card's verdict in plain words: released what, attacked by whom, with what success.

For readers who know no statistics. Every sentence is a function of the card; thresholds
are named below. No sentence says more than the numbers beside it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from audit.config import registry
from audit.errors import UserError
from audit.report import columns
from audit.report.columns import Line, number, with_error
from audit.report.leaderboard.standings import Measured, measured

# of the floor's error: rebuilt closely; in part; a little
CLOSE, PART, LITTLE = 0.25, 0.9, 0.99
LEARNT = "a little is learnt about records"
NOT_APART = "not told apart from a guess, by these attacks"
VACUOUS = 0.99  # an attacker who may be right so often is not held back
SMALL = 0.01  # of the floor's error: a bound that says next to nothing
STANDARD_ERRORS = 2.0
NEIGHBOURS = {
    "replace_one": "which of two records was in the training set",
    "add_remove": "whether a record was in the training set",
}


class Verdict(NamedTuple):
    """Five answers about one defense."""

    defense: str
    headline: str
    released: str
    attacker: str
    got: str
    guaranteed: list[str]
    not_guaranteed: list[str]


def verdict(line: Line) -> Verdict:
    """Return what a non-expert must know about one defense of a card."""
    headline, got = _got(line)
    held, missing = _guarantees(line)
    return Verdict(
        line.label, headline, _released(line), _attacker(line), got, held, missing
    )


# Released, attacker -------------------------------------------------------------------


def _about(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring, if it is installed here."""
    try:
        return registry.summary(kind, name).rstrip(".")
    except (UserError, OSError, SyntaxError):
        return f"a {kind} that is not installed here"


def _released(line: Line) -> str:
    card, own = line.card, line.own
    records = card.data["splits"].get("fixed", 0)
    extra = " and one more, the target" if card.data["splits"].get("targets") else ""
    model = (card.scenario.get("task") or {}).get("model", "a model")
    useful = own["utility"] or {}
    text = (
        f"What {own['use']} ({_about('defense', own['use'])}) puts out, learning "
        f"{model} from {records:,} private records of {card.data['name']}{extra}."
    )
    if useful.get("accuracy") is not None:
        share = float(useful["accuracy"])
        text += f" It is right on {share:.2%} of {useful['test']:,} records kept apart."
    elif useful.get("r2") is not None:
        text += f" On records kept apart its R² is {number(useful['r2'])}."
    return text


def _attacker(line: Line) -> str:
    if line.best is None:
        tried = [t for t in line.card.trials if t["defense"] == line.label]
        return (
            "No attack on this defense is valid: see the flags."
            if tried
            else "Nobody: this card holds bounds alone."
        )
    use = line.best["use"]
    return (
        f"The strongest of those tried is {line.best['attack']} "
        f"({_about('attack', use)}). It {line.best['threat_model']}."
    )


# What they got ------------------------------------------------------------------------


def _got(line: Line) -> tuple[str, str]:
    if line.best is None:
        return "not attacked", "Nothing was measured."
    result, floor = line.best["result"], line.card.floor
    seen = measured(result)
    if seen is None:
        return "see the table", "What it got stands in the table below."
    if seen.key == "mse":
        return _rebuilt(result, floor, line)
    if seen.key == "success":
        return _told(seen, floor)
    return _member(seen) if seen.key == "auc" else _proved(seen, result)


def _member(seen: Measured) -> tuple[str, str]:
    """Say how well members of the training set are told from others."""
    spread = STANDARD_ERRORS * (seen.se or 0.0)
    text = (
        f"Shown a record that was in the training set and one that was not, it picks "
        f"the right one {seen.value:.1%} of the time (AUC, ± {spread:.1%}); a coin is "
        f"right half the time. Single records may be found far more often: see the "
        f"true-positive rates at low false-positive rates."
    )
    if seen.value - 0.5 <= spread:
        return NOT_APART, text
    closely = 1 - seen.value <= CLOSE * 0.5
    return f"who took part is told{'' if closely else ', sometimes'}", text


def _proved(seen: Measured, result: dict[str, Any]) -> tuple[str, str]:
    text = f"It proves that ε is at least {number(seen.value, 2)}"
    if result.get("upper") is not None:
        text += f"; accounting allows {number(result['upper'], 2)}"
    return f"ε is at least {number(seen.value, 2)}", text + "."


def _rebuilt(result: dict, floor: dict, line: Line) -> tuple[str, str]:
    mse, se = float(result["mse"]), float(result["mse_se"])
    text = (
        f"Its picture of a record is off by {with_error(mse, se)} (mean squared error)"
    )
    if floor["mse"] is None:
        return f"error {number(mse)}", text + "."
    ground, spread = float(floor["mse"]), float(floor["mse_se"])
    text += (
        f"; a guess that ignores the release is off by {with_error(ground, spread)}."
    )
    shares = [
        float(t["result"]["beats_floor"])
        for t in line.card.trials
        if t["defense"] == line.label and t["status"] == "ok"
        if not t["result"]["oracle"] and t["result"].get("beats_floor") is not None
    ]
    most = max(shares, default=0.0)
    if most:
        text += (
            f" Some attack rebuilds {most:.0%} of the records better than that guess."
        )
    ratio = mse / ground if ground else math.nan
    if ratio <= CLOSE:
        return "records are rebuilt closely", text
    if ratio <= LITTLE and _apart(line, mse, ground, math.hypot(se, spread)):
        part = ratio <= PART
        return f"{'records are rebuilt in part' if part else LEARNT}", text
    if most > 0.05 and result.get("beats_floor") != most:
        return "nothing on average, and some records are rebuilt", text
    return NOT_APART, text


def _apart(line: Line, mse: float, ground: float, se: float) -> bool:
    """Return whether an attack is better than the guess, beyond two standard errors.

    Paired over targets where the card's arrays are at hand. Else by the means as if
    independent, or, since targets pair them, by most targets being rebuilt better.
    """
    assert line.best is not None
    own = line.card.arrays.get(f"{line.label}/{line.best['attack']}/mse")
    floor = line.card.arrays.get("floor")
    if own is not None and floor is not None and len(own) > 1:
        gap = np.asarray(floor) - np.asarray(own)
        return bool(gap.mean() > STANDARD_ERRORS * gap.std(ddof=1) / len(gap) ** 0.5)
    result = line.best["result"]
    half = 0.5 + STANDARD_ERRORS * math.sqrt(0.25 / max(1, result.get("targets") or 1))
    return (
        ground - mse > STANDARD_ERRORS * se or (result.get("beats_floor") or 0) > half
    )


def _told(seen: Measured, floor: dict) -> tuple[str, str]:
    share, se = seen.value, seen.se or 0.0
    text = f"It names the attribute rightly for {share:.1%} of the records (± {se:.1%})"
    if floor["mse"] is None:
        return f"right for {share:.0%}", text + "."
    ground, spread = 1 - float(floor["mse"]), float(floor["mse_se"])
    text += f"; always naming the commonest value is right for {ground:.1%}."
    if share - ground <= STANDARD_ERRORS * math.hypot(se, spread):
        return NOT_APART, text
    closely = 1 - share <= CLOSE * (1 - ground)
    return ("attributes are told" if closely else "some attributes are told"), text


# Guarantees ---------------------------------------------------------------------------


def balanced_accuracy(epsilon: float, delta: float) -> float:
    """Return how often anyone can be right who must tell two neighbours apart.

    (epsilon, delta)-DP leaves (e^epsilon + delta) / (1 + e^epsilon), from the largest
    advantage (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz et al. 2015).
    """
    if epsilon > 700:
        return 1.0
    odds = math.exp(epsilon)
    return min(1.0, (odds + delta) / (1 + odds))


def _guarantees(line: Line) -> tuple[list[str], list[str]]:
    held: list[str] = []
    missing: list[str] = []
    _from_epsilon(line, held, missing)
    _from_bounds(line, held, missing)
    if not line.own["bounds"] and not line.own["epsilon"]:
        missing.append(
            "Anything: no theorem limits what a stronger attack could get from this "
            "release."
        )
    if line.best is not None:
        missing.append(
            "That no attack does better: the attacks above are those that were tried."
        )
    return held, missing


def _from_epsilon(line: Line, held: list[str], missing: list[str]) -> None:
    """Say what epsilon means to somebody who must tell two neighbours apart."""
    epsilon = line.own["epsilon"] or {}
    void, most = [], 0.0
    for where, words in NEIGHBOURS.items():
        pair = epsilon.get(where) or {}
        value = pair.get("tight") if pair.get("tight") is not None else pair.get("rdp")
        if value is None:
            continue
        share = balanced_accuracy(float(value), float(epsilon["delta"]))
        said = f"ε = {number(value, 2)} ({where.replace('_', '-')})"
        if share > VACUOUS:
            void.append(said)
            most = max(most, share)
        else:
            held.append(
                f"{said} at δ = {epsilon['delta']:g}: whoever must tell {words}, both "
                f"being as likely, is right at most {share:.1%} of the time."
            )
    if void:
        missing.append(
            f"Differential privacy that means anything: {' and '.join(void)} at δ = "
            f"{epsilon['delta']:g} would let an attacker be right {most:.1%} of the "
            f"time about who took part."
        )


def _from_bounds(line: Line, held: list[str], missing: list[str]) -> None:
    """Say which bounds hold for anybody, and what keeps the others from doing so."""
    own, floor = line.own["bounds"], line.card.floor["mse"]
    unbiased = [b for b in own if "unbiased" in b["holds_for"]]
    if unbiased:
        each = " or ".join(map(_least, unbiased))
        missing.append(
            f"An average error of at least {each}: these bind unbiased attackers only, "
            f"and practical ones are biased."
        )
    for bound in (b for b in own if b not in unbiased):
        said = f"An average error of at least {_least(bound)}"
        if not bound["ranked"]:
            missing.append(
                f"{said}: it holds for {bound['holds_for']}, which real data do not "
                f"promise."
            )
        elif floor is not None and float(bound["mean"]) < SMALL * float(floor):
            missing.append(f"{said}, which is next to nothing: under 1% of a guess's.")
        else:
            held.append(f"{said}, for {bound['holds_for']} ({bound['theorem']}).")


def _least(bound: dict[str, Any]) -> str:
    name = columns.SHORT.get(bound["name"], bound["name"])
    return f"{columns.bound_text(bound)} ({name})"
