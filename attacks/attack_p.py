"""Attack P: the rank of a record's loss among the population's (Ye et al. 2022)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from audit.engine import signals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def attack_p(task: Task, *, per_class: bool = False) -> Attack:
    """Score a record by minus the share of population losses no larger than its own.

    That share is the false-positive rate at which the record would be called a member,
    so that the score means the same on every model.

    Args:
      task: gives the classes.
      per_class: rank among the population of the record's class only.
    """
    knows = {"label"} if per_class else set()
    threat_model = ThreatModel("membership", frozenset({"signals"}), frozenset(knows))

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        return jnp.asarray(knowledge.pool.y), {"population": len(knowledge.pool.y)}

    def rank(losses: Array, own: Array, present: Array) -> Array:
        ordered = jnp.sort(jnp.where(present, losses, jnp.inf))
        return jnp.searchsorted(ordered, own, side="right") / present.sum()

    def guess(labels: Array, key: Array, seen: Observation) -> Array:
        del key
        own, losses = (signals.loss(s).mean(-1) for s in seen.signals)
        if not per_class:
            return -rank(losses, own, jnp.ones(len(labels), bool))
        classes = jnp.arange(task.classes)
        each = jax.vmap(lambda c: rank(losses, own, labels == c))(classes)
        return -jnp.take_along_axis(each, seen.label[None], 0)[0]

    return Attack(threat_model, fit, guess)
