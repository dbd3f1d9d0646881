"""The settings of a card by their paths, and those in which cards differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from audit.scorecard.card import plain
from audit.scorecard.schema import Scorecard

NO_NUMBERS = ("seed", "lanes", "title", "source")  # the seed is what means are over


def by_path(card: Scorecard) -> dict[str, Any]:
    """Return every setting of a card, as `attack.ridge.repeats`, but `NO_NUMBERS`."""
    settings = {k: v for k, v in plain(card.scenario).items() if k not in NO_NUMBERS}
    return dict(_leaves(settings))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, below in value.items():
        yield from _leaves(below, f"{name}.{key}" if name else key)


def owner(path: str) -> str:
    """Return the defense or attack whose setting a path is; "" = the whole card's."""
    steps = path.split(".")
    return ".".join(steps[:2]) if steps[0] in ("defense", "attack") else ""


def unequal(cards: Sequence[Scorecard]) -> list[str]:
    """Return the paths of settings in which cards differ, in alphabetical order.

    A line-up is none: settings of a defense or an attack are compared between the cards
    that have it.
    """
    each = [by_path(card) for card in cards]
    owners = [set(map(owner, settings)) for settings in each]

    def values(path: str) -> set[str]:
        here = (s for s, o in zip(each, owners, strict=True) if owner(path) in o)
        return {str(settings.get(path)) for settings in here}

    return sorted(p for p in set().union(*each) if len(values(p)) > 1)
