"""The floor of attribute games: guess the commonest value, whatever was released."""

from __future__ import annotations

from jax import Array

from audit.mechanisms import attribute_counts
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def prior_mode(task: Task) -> Attack:
    """Score every value by how many pool records have it."""
    del task
    threat_model = ThreatModel("attribute")

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        return attribute_counts(knowledge), {}

    def guess(counts: Array, key: Array, observation: Observation) -> Array:
        del key, observation
        return counts

    return Attack(threat_model, fit, guess)
