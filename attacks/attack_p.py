"""Attack P: the rank of a record's loss in the population (Ye et al. 2022)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from audit.engine import signals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def attack_p(task: Task, *, per_class: bool = False) -> Attack:
    """Score a record by minus the share of population losses no larger than its loss.

    That share is the false-positive rate at which the record would be called a member,
    so that scores of different models can be compared.

    Args:
      task: gives the classes.
      per_class: rank only among population records of the record's class.
    """
    knows = {"label"} if per_class else set()
    threat_model = ThreatModel("membership", frozenset({"signals"}), frozenset(knows))

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        return jnp.asarray(knowledge.pool.y), {"population": len(knowledge.pool.y)}

    def rank(losses: Array, loss: Array, present: Array) -> Array:
        ordered = jnp.sort(jnp.where(present, losses, jnp.inf))
        count = jnp.maximum(present.sum(), 1)  # a class may be absent
        return jnp.searchsorted(ordered, loss, side="right") / count

    def guess(labels: Array, key: Array, observation: Observation) -> Array:
        del key
        loss, losses = (signals.loss(s).mean(-1) for s in observation.signals)
        if not per_class:
            return -rank(losses, loss, jnp.ones(len(labels), bool))
        classes = jnp.arange(task.classes)
        each = jax.vmap(lambda c: rank(losses, loss, labels == c))(classes)
        return -jnp.take_along_axis(each, observation.label[None], 0)[0]

    return Attack(threat_model, fit, guess)
