"""The floor: an attacker who ignores the release guesses its prior's class mean."""

from __future__ import annotations

from jax import Array

from audit.mechanisms import class_means, of_class, originals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def class_mean(task: Task) -> Attack:
    """Guess the pool's mean image of the target's class.

    The mean squared error of this guess is the within-class variance of the data: the
    error of an attacker without a release. A good defense keeps all attackers near it.
    """
    threat_model = ThreatModel("reconstruction", knows=frozenset({"label"}))

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        images = len(originals(knowledge).y)
        return class_means(knowledge, task.classes), {"images": images}

    def guess(means: Array, key: Array, observation: Observation) -> Array:
        del key
        return of_class(means, observation.label)

    return Attack(threat_model, fit, guess)
