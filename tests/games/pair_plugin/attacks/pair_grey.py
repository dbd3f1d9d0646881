"""Guess grey, twice."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def pair_grey(task: Task) -> Attack:
    """Look at the release, and make nothing of it."""

    def fit(key: Array, knowledge: Knowledge) -> tuple[Any, dict]:
        return jnp.full((2, *task.features), 0.5), {}

    def guess(grey: Any, key: Array, shown: Observation) -> Array:
        return grey

    return Attack(ThreatModel("pair", sees=frozenset({"params"})), fit, guess)
