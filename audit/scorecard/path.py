"""Places in a scorecard, as words: `trials[defense=sgd,attack=class_mean].result.mse`.

place := step ("." step)*      a field of a mapping
step  := NAME | NAME "[" INDEX "]" | NAME "[" KEY "=" VALUE ("," KEY "=" VALUE)* "]"

Two places with " - " between them are a difference. An index counts from 0. Conditions
must hold for exactly one entry of a list. Beside what `scorecard.json` holds there are
`strongest`: of each defense the trial of the attack with the smallest error, oracles
aside, the floor's own attack included; and `shared.ONE.OTHER`: of the 100 records with
the largest eta under one defense, how many are among the other's.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from audit.errors import did_you_mean

_NAME = r"[A-Za-z0-9_-]+"
_STEP = re.compile(rf"(?P<name>{_NAME})(\[(?P<pick>[^\[\]]*)\])?(\.|$)")
_CONDITION = re.compile(rf"(?P<key>{_NAME})=(?P<value>[^=,]+)")
NUMBERS_AS_TEXT = ("inf", "-inf", "nan")  # what JSON has no number for


class Step(NamedTuple):
    """One step down: a field, then at most one way to pick an entry of its list."""

    name: str
    entry: int | None = None
    where: tuple[tuple[str, str], ...] = ()


def parse(place: str) -> tuple[Step, ...]:
    """Return the steps of a place.

    Raises:
      ValueError: if it is not one, naming what cannot be read.
    """
    if LESS in place:
        return tuple(step for one in place.split(LESS, 1) for step in parse(one))
    steps, at = [], 0
    while at < len(place):
        found = _STEP.match(place, at)
        if found is None:
            raise ValueError(f"place {place!r} cannot be read from {place[at:]!r} on")
        steps.append(_step(place, found["name"], found["pick"]))
        at = found.end()
    if not steps or place.endswith("."):
        raise ValueError(f"place {place!r} ends without a field")
    return tuple(steps)


def _step(place: str, name: str, pick: str | None) -> Step:
    if pick is None:
        return Step(name)
    if pick.isdecimal():
        return Step(name, entry=int(pick))
    conditions = [_CONDITION.fullmatch(part) for part in pick.split(",")]
    where = tuple((c["key"], c["value"]) for c in conditions if c)
    if len(where) < len(conditions):
        raise ValueError(f"place {place!r}: [{pick}] is no index and no key=value")
    return Step(name, where=where)


LESS = " - "  # between two places: a table of differences


def read(card: Any, place: str) -> float:
    """Return the finite number at a place, or the difference of two.

    Args:
      card: plain data: mappings, lists, numbers.
      place: see the module.

    Raises:
      LookupError: if nothing, or no finite number, is there; the text says from where
        on.
    """
    if LESS in place:
        first, second = place.split(LESS, 1)
        return read(card, first) - read(card, second)
    held, been = card, ""
    for step in parse(place):
        if not isinstance(held, dict) or step.name not in held:
            known = held if isinstance(held, dict) else ()
            hint = did_you_mean(step.name, known)
            raise LookupError(f"no {step.name!r} in {been or 'the scorecard'}{hint}")
        been = f"{been}.{step.name}".lstrip(".")
        held = _picked(held[step.name], step, been)
    if held in NUMBERS_AS_TEXT or held is None:
        raise LookupError(f"{place} is {held or 'not computed'}")
    if isinstance(held, bool) or not isinstance(held, (int, float)):
        raise LookupError(f"{place} is not a number")
    return float(held)


def _picked(held: Any, step: Step, been: str) -> Any:
    if step.entry is None and not step.where:
        return held
    if not isinstance(held, list):
        raise LookupError(f"{been} is not a list")
    if step.entry is not None:
        if step.entry >= len(held):
            raise LookupError(f"{been} has {len(held)} entries, none is {step.entry}")
        return held[step.entry]
    fits = [entry for entry in held if _fits(entry, step.where)]
    if len(fits) != 1:
        asked = ",".join(f"{key}={value}" for key, value in step.where)
        raise LookupError(f"{been}: {len(fits)} entries have {asked}, not one")
    return fits[0]


def _fits(entry: Any, where: tuple[tuple[str, str], ...]) -> bool:
    return isinstance(entry, dict) and all(
        str(entry.get(key)) == value for key, value in where
    )


def labels(place: str) -> tuple[str | None, str | None]:
    """Return the defense and the attack a place speaks of, where it names them."""
    defense = attack = None
    for before, step in zip((None, *parse(place)), parse(place), strict=False):
        named = dict(step.where)
        defense = named.get("defense", defense)
        attack = named.get("attack", attack)
        if before is not None and before.name == "defenses":
            defense = step.name
    return defense, attack
