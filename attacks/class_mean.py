"""The floor: an attacker who ignores the release guesses its prior's class mean."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def class_mean(task: Task) -> Attack:
    """Guess the pool's mean image of the target's class.

    The mean squared error of this guess is the within-class variance of the data: what
    any attacker gets for free. A defense is only as good as it keeps attackers near it.
    """
    threat_model = ThreatModel("reconstruction", knows=frozenset({"label"}))

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        first = knowledge.pool_source == jnp.arange(len(knowledge.pool_source))
        x, y = knowledge.pool.x[first], knowledge.pool.y[first]  # originals only
        means = [x[y == label].mean(0) for label in range(task.classes)]
        return jnp.stack(means), {"images": int(first.sum())}

    def guess(means: Array, key: Array, seen: Observation) -> Array:
        del key
        return means[seen.label]

    return Attack(threat_model, fit, guess)
