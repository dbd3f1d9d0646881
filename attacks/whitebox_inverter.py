"""White-box inversion: refit with every value, take the fit nearest the release.

Hannun et al. (2021), supplement.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from audit.mechanisms import attribute_counts
from audit.types import Attack, Knowledge, NonNegative, Observation, Task, ThreatModel


def whitebox_inverter(task: Task, *, prior_weight: NonNegative = 0.0) -> Attack:
    """Score a value by minus the squared distance of its noiseless fit to the release.

    This is maximum likelihood under isotropic noise, for an attacker who knows
    everything but the attribute.

    Args:
      task: unused.
      prior_weight: weight of the log frequency of a value in the pool; at twice the
        noise's variance the guess is the most probable value.
    """
    del task
    threat_model = ThreatModel(
        "attribute",
        sees=frozenset({"params"}),
        knows=frozenset({"objective", "label", "record", "refits"}),
        assumes=frozenset({"glm"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        return jnp.log(jnp.maximum(attribute_counts(knowledge), 0.5)), {}

    def guess(log_prior: Array, key: Array, observation: Observation) -> Array:
        del key
        away = ((observation.refits - observation.params) ** 2).sum(-1)
        return prior_weight * log_prior - away

    return Attack(threat_model, fit, guess)
