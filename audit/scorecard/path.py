"""One number of a scorecard: a trial by its labels, then a key such as `auc.value`."""

from __future__ import annotations

from typing import Any

from audit.errors import did_you_mean
from audit.scorecard.card import plain
from audit.scorecard.schema import Scorecard, TrialRow

KEY = r"^[\w-]+(\.[\w-]+)*$"


def trial(card: Scorecard, defense: str, attack: str) -> TrialRow:
    """Return the trial of an attack on a defense, both by their labels in the line-up.

    Raises:
      LookupError: if the scorecard has no such trial.
    """
    for row in card.trials:
        if (row.defense, row.attack) == (defense, attack):
            return row
    raise LookupError(f"no trial of {attack} on {defense}")


def read(part: Any, key: str) -> float:
    """Return the finite number at a key of a part of a scorecard.

    Args:
      part: records, mappings, lists, numbers.
      key: names of fields, joined by dots; an entry of a list is named by its index
        from 0, as in `steps.0.accuracy`.

    Raises:
      LookupError: if nothing, or no finite number, is there; the text says which field
        is missing and which exist.
    """
    value, steps = plain(part), key.split(".")
    for depth, step in enumerate(steps):
        if isinstance(value, list):
            value = {str(i): entry for i, entry in enumerate(value)}
        fields = value if isinstance(value, dict) else {}
        if step not in fields:
            where = ".".join(steps[:depth]) or "the result"
            raise LookupError(f"no {step!r} in {where}{did_you_mean(step, fields)}")
        value = fields[step]
    if value is None or value in ("inf", "-inf", "nan"):  # JSON has no number for these
        raise LookupError(f"{key} is {value or 'not computed'}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LookupError(f"{key} is not a number")
    return float(value)
