"""How many records go where: as a scenario says, or as suits data of one's own."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from audit.config import registry
from audit.config.schema import SplitSizes
from audit.data import Dataset
from audit.errors import UserError

LEAST = 20  # records with which an audit can be cut at all
# at most: a first look takes minutes, whatever the number of records
MOST = {"targets": 50, "pool": 400, "fixed": 200, "test": 1000}


def sizes(base: SplitSizes, words: dict[str, Any]) -> SplitSizes:
    """Return sizes with some of them replaced by the words of `splits:`.

    Raises:
      UserError: naming the word that is no size, or out of range.
    """
    given = base.model_dump(exclude_unset=True) | words
    try:
        return SplitSizes(**given)
    except ValidationError as error:
        raise UserError(registry.explain(error, "splits", SplitSizes)) from None


def proposed(dataset: Dataset, *, targets: bool) -> SplitSizes:
    """Return sizes for data that no scenario has cut.

    With targets: a tenth of the records each is a target, two fifths are the attacker's
    pool, a fifth tests, and the others are known; no more than `MOST` of each. Without:
    four fifths are candidates, and the others test.

    Raises:
      UserError: if there are too few records.
    """
    records, official = len(dataset.y_train), dataset.y_test is not None
    if records < LEAST:
        raise UserError(
            f"data {dataset.name} holds {records} records of these classes; at least "
            f"{LEAST} are needed to cut them"
        )
    if not targets:
        even = records // 2 * 2 if official else records * 4 // 5 // 2 * 2
        test = None if official else records - even
        return SplitSizes(fixed=even, test=test, pool_from="test", order="shuffled")
    shares = {"targets": records // 10, "pool": records * 2 // 5, "test": records // 5}
    cut: dict[str, Any] = {
        name: max(2, min(n, MOST[name])) for name, n in shares.items()
    }
    used = cut["targets"] + cut["pool"] + (0 if official else cut["test"])
    fixed = min(records - used, MOST["fixed"])
    test = None if official else cut.pop("test")
    cut.pop("test", None)
    return SplitSizes(**cut, test=test, fixed=fixed, order="shuffled")
