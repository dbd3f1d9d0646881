"""Loss threshold: a small loss says member (Yeom et al. 2018)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from audit.engine import signals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def loss_threshold(task: Task) -> Attack:
    """Score a record by minus its loss, averaged over queries; one threshold for all.

    The attack needs only the model, and mistakes easy records for members.

    Args:
      task: unused.
    """
    del task
    threat_model = ThreatModel("membership", sees=frozenset({"signals"}))

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key, knowledge
        return jnp.zeros(()), {}

    def guess(state: Array, key: Array, observation: Observation) -> Array:
        del state, key
        return -signals.loss(observation.signals.candidates).mean(-1)

    return Attack(threat_model, fit, guess)
