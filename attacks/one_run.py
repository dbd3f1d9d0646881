"""Canaries' losses under released parameters: members' fall (Steinke et al. 2023)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def one_run(task: Task) -> Attack:
    """Score a canary by its loss at the start less its loss at the end of training.

    The loss of a gradient canary is linear in one parameter, so that the score is how
    far the parameter has moved: the published white-box score. For an input canary it
    is the black-box one.

    Args:
      task: whose loss is taken.
    """
    threat_model = ThreatModel(
        "membership",
        sees=frozenset({"params"}),
        knows=frozenset({"init", "canaries"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Any, dict]:
        del key
        return jax.tree.map(jnp.asarray, knowledge.init), {}

    def guess(start: Any, key: Array, observation: Observation) -> Array:
        del key
        losses = jax.vmap(task.loss, (None, 0))
        return losses(start, observation.candidates) - losses(
            observation.params, observation.candidates
        )

    return Attack(threat_model, fit, guess)
