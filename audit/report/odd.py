"""What of an odd but valid card cannot be shown costs its own row, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from audit.errors import UserError
from audit.scorecard.schema import Scorecard, TrialRow

Part = TypeVar("Part")
MOST_ROWS = 200  # of a card whose rows are tried one by one


def showable(
    parts: Iterable[Part], show: Callable[[list[Part]], Any]
) -> tuple[list[Part], list[tuple[Part, str]]]:
    """Return the parts that can be shown together, and the others, each with why."""
    kept, odd = list[Part](), list[tuple[Part, str]]()
    for part in parts:
        try:
            show([*kept, part])
        except Exception as error:  # a card holds what a game, or anybody, put there
            odd.append((part, _why(error)))
        else:
            kept.append(part)
    return kept, odd


def shown(
    card: Scorecard, show: Callable[[Scorecard], str]
) -> tuple[str, dict[str, str]]:
    """Return what `show` makes of a card, and row -> why it had to be left out.

    Raises:
      UserError: if nothing of the card can be shown.
    """

    def of_rows(rows: list[str | TrialRow]) -> str:
        labels = [row for row in rows if isinstance(row, str)]
        trials = [row for row in rows if not isinstance(row, str)]
        defenses = {label: card.defenses[label] for label in labels}
        if not {trial.defense for trial in trials} <= defenses.keys():
            raise ValueError("its defense is left out")
        return show(card._replace(defenses=defenses, trials=trials))

    rows: list[str | TrialRow] = [*card.defenses, *card.trials]
    try:
        return of_rows(rows), {}
    except Exception as error:
        why = _why(error)
    kept, odd = showable(rows if len(rows) <= MOST_ROWS else [], of_rows)
    if not kept:
        raise UserError(f"this card cannot be shown: {why}")
    name = lambda r: r if isinstance(r, str) else f"{r.attack} on {r.defense}"
    return of_rows(kept), {name(row): reason for row, reason in odd}


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
