"""Half-in designs: which candidates each model of a membership game trains on.

In either every candidate is in exactly half of the models, and given who else is in a
model, whether one candidate is in it is a fair coin: what separates the two worlds of
one candidate is one step of the adjacency the design is named for.

=============  ===============================================  ==================
design         a model trains on                                adjacency
=============  ===============================================  ==================
`in_out`       each candidate, or an empty slot in its place    add-remove
`replace_one`  one of each pair of candidates                   replace-one
=============  ===============================================  ==================

The number of slots is public and the same for all models: an `in_out` design has half
as many as candidates and six standard deviations more, so that accounting and division
by the number of records never depend on who is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from audit.types import Adjacency

SPARE = 6.0  # standard deviations of a model's size


class Design(NamedTuple):
    """How memberships are drawn and laid out."""

    adjacency: Adjacency
    member: Callable  # (key, models, records) -> [models, records] bool
    rows: Callable  # (member) -> [models, slots] records, -1 = empty
    slots: Callable  # (records) -> the public number of records of one run
    empty: bool  # whether a slot may be empty


def _coins(key: jax.Array, models: int, columns: int) -> np.ndarray:
    """Return [models, columns] bool, each column half True, columns independent.

    Raises:
      ValueError: for an odd number of models.
    """
    if models % 2:
        raise ValueError(f"{models} models: a half-in design needs an even number")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    half = np.arange(models)[:, None] < models // 2
    return rng.permuted(np.broadcast_to(half, (models, columns)), axis=0)


def _slots(records: int) -> int:
    return min(records, math.ceil(records / 2 + SPARE * math.sqrt(records) / 2))


def _rows(member: np.ndarray) -> np.ndarray:
    slots = _slots(member.shape[1])
    assert member.sum(1).max() <= slots, "six standard deviations are not enough"
    order = np.argsort(~member, axis=1, kind="stable")[:, :slots]
    return np.where(np.take_along_axis(member, order, 1), order, -1).astype(np.int32)


def _pairs(key: jax.Array, models: int, records: int) -> np.ndarray:
    if records % 2:
        raise ValueError(f"{records} candidates: pairs need an even number")
    first = _coins(key, models, records // 2)
    return np.stack([first, ~first], -1).reshape(models, records)


def _rows_of_pairs(member: np.ndarray) -> np.ndarray:
    second = ~member[:, ::2]
    return (2 * np.arange(second.shape[1]) + second).astype(np.int32)


in_out = Design("add_remove", _coins, _rows, _slots, empty=True)
replace_one = Design(
    "replace_one", _pairs, _rows_of_pairs, lambda records: records // 2, empty=False
)
