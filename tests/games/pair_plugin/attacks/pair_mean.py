"""Guess the class mean of each of two records."""

from __future__ import annotations

from typing import Any

from jax import Array

from audit.mechanisms import class_means
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def pair_mean(task: Task) -> Attack:
    """Ignore the release."""

    def fit(key: Array, knowledge: Knowledge) -> tuple[Any, dict]:
        return class_means(knowledge, task.classes), {}

    def guess(means: Any, key: Array, shown: Observation) -> Array:
        return means[shown.label]

    return Attack(ThreatModel("pair", knows=frozenset({"label"})), fit, guess)
