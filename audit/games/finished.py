"""Finished attacks in the store: what an interrupted audit does not play again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from pydantic import BaseModel

from audit.engine import store as stores
from audit.engine.store import Store
from audit.games.base import Result
from audit.scorecard.flags import Flag
from audit.scorecard.schema import Headline

SHARD, WORDS, ERROR = "result", "words", "error"


def put(store: Store, key: str, result: Result) -> None:
    """Keep a result; the key is a digest of everything that can change it."""
    words = {
        "headline": result.headline.model_dump(),
        "numbers": result.numbers,
        "flags": [flag._asdict() for flag in result.flags],
        "squared": result.squared,
    }
    arrays = {f"array/{name}": np.asarray(a) for name, a in result.arrays.items()}
    if result.error is not None:
        arrays[ERROR] = np.asarray(result.error)
    # infinite and missing numbers stay numbers: more is computed with them
    arrays[WORDS] = np.array(json.dumps(words, default=_data))
    stores.put(store, key, SHARD, arrays)


def get(store: Store, key: str) -> Result | None:
    """Return a result that was kept; None where there is none."""
    arrays = stores.get(store, key, SHARD)
    if arrays is None:
        return None
    words: dict[str, Any] = json.loads(str(arrays.pop(WORDS)))
    error = arrays.pop(ERROR, None)
    return Result(
        headline=Headline.model_construct(**words["headline"]),
        numbers=words["numbers"],
        arrays={name.partition("/")[2]: a for name, a in arrays.items()},
        error=error,
        squared=words["squared"],
        flags=tuple(Flag(**flag) for flag in words["flags"]),
    )


def _data(value: Any) -> Any:
    """Return a NumPy scalar, an array or a model of the card as plain data."""
    return value.model_dump() if isinstance(value, BaseModel) else value.tolist()
