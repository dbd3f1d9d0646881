"""One strip per defense: where its strongest attacks stand between 0 and the floor.

A strip is a scale on which 1 is what an attacker gets who ignores the release, and 0 is
all there is to get. The best attack on the release and the best attack that is shown
every noised step stand on it, with the bounds that hold for any attacker.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from audit.report import columns
from audit.scorecard.schema import DefenseRow, Headline, Scorecard, TrialRow
from audit.scorecard.view import (
    NOT_TOLD_APART,
    SHORT,
    STANDARD_ERRORS,
    WRONG_SIGN,
    Line,
    bound_text,
    limits,
    number,
    with_error,
)

# of the scale: up to here an attacker gets most of what there is; from here nothing
CLOSE, LITTLE = 0.25, 0.99
FULL = {"success": 1.0, "auc": 1.0}  # a metric -> what an attacker gets at the most
Level = Literal["error", "warning", "note"]  # how loudly a page says it


class Mark(NamedTuple):
    """One attack on the scale."""

    attack: str
    text: str  # value ± standard error
    # two standard errors below it, itself, as many above; 1 = the floor, or beyond it;
    # None = the game has no such scale
    low: float | None = None
    place: float | None = None
    high: float | None = None


class Limit(NamedTuple):
    """A bound that holds for any attacker, or is estimated to."""

    name: str
    text: str
    place: float  # in [0, 1]


class Strip(NamedTuple):
    """One defense."""

    defense: str
    metric: str
    floor: str
    final: Mark | None  # the best on what is released
    transcript: Mark | None  # the best of those shown every noised step
    limits: list[Limit]
    epsilon: str  # replace-one, or the adjacency of the game
    useful: str
    word: str
    level: Level


def strips(card: Scorecard) -> list[Strip]:
    """Return a strip per defense, in the order of the card."""
    return [strip(line) for line in columns.lines(card)]


def strip(line: Line) -> Strip:
    """Return where a defense stands."""
    steps = of_steps(line)
    word, level = verdict(line, steps)
    first = None if line.result is None else line.result.headline
    floor = None if first is None else first.floor
    return Strip(
        defense=line.label,
        metric="" if first is None else first.metric.replace("_", " "),
        floor="none" if floor is None else number(floor),
        final=_reading(line.best),
        transcript=_reading(steps),
        limits=_limits(line.defense, first),
        epsilon=columns.epsilon_upper(line),
        useful=number(columns.usefulness(line.defense)),
        word=word,
        level=level,
    )


def of_steps(line: Line) -> TrialRow | None:
    """Return the strongest valid attack that is shown every noised step."""
    return columns.strongest_of(
        t
        for t in line.card.trials
        if t.defense == line.label and t.result is not None and t.result.shown
    )


def drawn(line: Line) -> Line:
    """Return a line with the attack that pictures show.

    That is the strongest on what is released; where it tells nothing apart from a
    guess, and the attack that is shown every step does, it is the latter.
    """
    steps = of_steps(line)
    if steps is None or not learns(steps) or learns(line.best):
        return line
    return line._replace(best=steps)


def learns(trial: TrialRow | None) -> bool:
    """Return whether an attack gets visibly more than who ignores the release."""
    if trial is None or trial.result is None:
        return False
    where = place(trial.result.headline)
    return where is not None and where <= LITTLE


def place(headline: Headline) -> float | None:
    """Return where a number stands between all there is to get, 0, and the floor, 1.

    None where the game has no floor, or no end of the scale: it is not a scale then.
    """
    if headline.floor is None or math.isnan(float(headline.value)):
        return None
    value, floor = float(headline.value), float(headline.floor)
    if headline.better == "higher":
        most = FULL.get(headline.metric, floor)
        return (most - value) / (most - floor) if most > floor else None
    return value / floor if floor > 0 else None


def verdict(line: Line, steps: TrialRow | None) -> tuple[str, Level]:
    """Return what a defense's strongest attack says of it, and how loudly.

    That is the attack on what is released, or the one that is shown every step; the
    words are the game's.
    """
    attacks = [t for t in (line.best, steps) if t is not None and t.result is not None]
    if not attacks:
        return "not attacked", "note"
    best = max(attacks, key=lambda t: t.result.headline.strength if t.result else 0)
    word, _ = columns.view(line.card).verdict(line._replace(best=best))
    assert best.result is not None
    if word == WRONG_SIGN:
        return word, "warning"
    where = place(best.result.headline)
    if word == NOT_TOLD_APART or where is None or where > LITTLE:
        return word, "note"
    return word, "error" if where <= CLOSE else "warning"


def _reading(trial: TrialRow | None) -> Mark | None:
    if trial is None or trial.result is None:
        return None
    headline = trial.result.headline
    text = with_error(headline.value, headline.standard_error)
    where = place(headline)
    if where is None:
        return Mark(trial.attack, text)
    reach = STANDARD_ERRORS * float(headline.standard_error or 0)
    ends = [
        place(headline.model_copy(update={"value": float(headline.value) + step}))
        for step in (-reach, reach)
    ]
    # beside an infinite number, or at an unknown distance, there is no place
    low, high = (where if end is None else end for end in ends)
    places = sorted(min(max(at, 0.0), 1.0) for at in (low, where, high))
    return Mark(trial.attack, text, *places)


def _limits(defense: DefenseRow, headline: Headline | None) -> list[Limit]:
    """Return the bounds on an error that hold for any attacker, the largest first."""
    if headline is None or headline.better != "lower" or not headline.floor:
        return []
    return sorted(
        (
            Limit(
                SHORT.get(b.name, b.name),
                bound_text(b),
                min(float(b.mean) / float(headline.floor), 1.0),
            )
            for b in limits(defense)
        ),
        key=lambda limit: -limit.place,
    )
