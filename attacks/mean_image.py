"""The floor without a label: guess the mean of the attacker's prior."""

from __future__ import annotations

from jax import Array

from audit.mechanisms import originals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def mean_image(task: Task) -> Attack:
    """Guess the pool's mean image, whatever is released.

    In normalised units its error is 1 less what all images have in common.
    """
    del task

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        images = originals(knowledge).x
        return images.mean(0), {"images": len(images)}

    def guess(mean: Array, key: Array, observation: Observation) -> Array:
        del key, observation
        return mean

    return Attack(ThreatModel("reconstruction"), fit, guess)
