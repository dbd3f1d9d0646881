"""Finished attacks in the store: what an interrupted audit does not play again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from pydantic import BaseModel

from audit.engine import store as stores
from audit.engine.store import Store
from audit.scorecard.flags import Flag
from audit.scorecard.schema import Headline

SHARD, WORDS, ERROR = "result", "words", "error"


def put(store: Store, key: str, result: dict[str, Any]) -> None:
    """Keep the fields of a `games.base.Result`.

    The key is a digest of everything that can change them.
    """
    arrays = {f"array/{name}": np.asarray(a) for name, a in result["arrays"].items()}
    if result["error"] is not None:
        arrays[ERROR] = np.asarray(result["error"])
    words = {k: v for k, v in result.items() if k not in ("arrays", "error")}
    # infinite and missing numbers stay numbers: more is computed with them
    arrays[WORDS] = np.array(json.dumps(words, default=_data))
    stores.put(store, key, SHARD, arrays)


def get(store: Store, key: str) -> dict[str, Any] | None:
    """Return the fields that were kept; None where there are none."""
    arrays = stores.get(store, key, SHARD)
    if arrays is None:
        return None
    words: dict[str, Any] = json.loads(str(arrays.pop(WORDS)))
    return words | {
        "headline": Headline.model_construct(**words["headline"]),
        "flags": tuple(Flag(*flag) for flag in words["flags"]),
        "error": arrays.pop(ERROR, None),
        "arrays": {name.partition("/")[2]: a for name, a in arrays.items()},
    }


def _data(value: Any) -> Any:
    """Return a NumPy scalar, an array or a model of the card as plain data."""
    return value.model_dump() if isinstance(value, BaseModel) else value.tolist()
