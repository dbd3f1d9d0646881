"""Fredrikson et al. (2014): which value makes the known label likeliest."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from audit.mechanisms import attribute_counts
from audit.mechanisms.glm.losses import design
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def fredrikson(task: Task) -> Attack:
    """Score a value by log p(label | the model's prediction with it) + log frequency.

    How predictions err is measured on the pool: a Gaussian of the residual variance
    where labels are numbers, the confusion matrix where they are classes.

    Args:
      task: gives the number of classes.
    """
    threat_model = ThreatModel(
        "attribute",
        sees=frozenset({"params"}),
        knows=frozenset({"objective", "label", "record"}),
        assumes=frozenset({"glm"}),
    )

    def of_numbers(
        intercept: bool, x: Array, y: Array, log_prior: Array, seen: Observation
    ) -> Array:
        error = design(x, intercept) @ seen.params - y
        off = design(seen.candidates, intercept) @ seen.params - seen.label
        return log_prior - off**2 / (2 * (error**2).mean())

    def of_classes(
        intercept: bool, x: Array, y: Array, log_prior: Array, seen: Observation
    ) -> Array:
        said = (design(x, intercept) @ seen.params > 0).astype(int)
        counts = jnp.zeros((2, 2)).at[said, y].add(1) + 0.5  # nothing is impossible
        table = jnp.log(counts / counts.sum(1, keepdims=True))
        here = (design(seen.candidates, intercept) @ seen.params > 0).astype(int)
        return log_prior + table[here, seen.label]

    def fit(key: Array, knowledge: Knowledge) -> tuple[Partial, dict]:
        del key
        assert knowledge.objective is not None, "granted: declared above"
        form = of_classes if task.classes else of_numbers
        log_prior = jnp.log(jnp.maximum(attribute_counts(knowledge), 0.5))
        pool = jax.tree.map(jnp.asarray, knowledge.pool)
        bound = partial(form, knowledge.objective.intercept)
        return Partial(bound, pool.x, pool.y, log_prior), {}

    def guess(form: Partial, key: Array, seen: Observation) -> Array:
        del key
        return form(seen)

    return Attack(threat_model, fit, guess)
