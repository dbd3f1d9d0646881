"""The floor of membership games: say the same of every record."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def coin(task: Task) -> Attack:
    """Score every record 0: nobody is told apart, half of the guesses are right."""
    del task

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key, knowledge
        return jnp.zeros(()), {}

    def guess(state: Array, key: Array, seen: Observation) -> Array:
        del key
        return jnp.zeros(seen.label.shape[0]) + state

    return Attack(ThreatModel("membership", knows=frozenset({"label"})), fit, guess)
