"""Fredrikson et al. (2014): the attribute value that makes the label likeliest."""

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
    """Score a value by log p(label | prediction with that value) + log frequency.

    The law of the label given a prediction is estimated on the pool: a Gaussian with
    the residual variance where labels are numbers, the confusion matrix where labels
    are classes.

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
        intercept: bool, x: Array, y: Array, log_prior: Array, observation: Observation
    ) -> Array:
        weights = observation.params
        variance = ((design(x, intercept) @ weights - y) ** 2).mean()
        predictions = design(observation.candidates, intercept) @ weights
        return log_prior - (predictions - observation.label) ** 2 / (2 * variance)

    def of_classes(
        intercept: bool, x: Array, y: Array, log_prior: Array, observation: Observation
    ) -> Array:
        def predicted(records: Array) -> Array:
            return (design(records, intercept) @ observation.params > 0).astype(int)

        # half a count in every cell: no combination is impossible
        counts = jnp.zeros((2, 2)).at[predicted(x), y].add(1) + 0.5
        table = jnp.log(counts / counts.sum(1, keepdims=True))
        return log_prior + table[predicted(observation.candidates), observation.label]

    def fit(key: Array, knowledge: Knowledge) -> tuple[Partial, dict]:
        del key
        assert knowledge.objective is not None, "granted: declared above"
        form = of_classes if task.classes else of_numbers
        log_prior = jnp.log(jnp.maximum(attribute_counts(knowledge), 0.5))
        pool = jax.tree.map(jnp.asarray, knowledge.pool)
        bound = partial(form, knowledge.objective.intercept)
        return Partial(bound, pool.x, pool.y, log_prior), {}

    def guess(form: Partial, key: Array, observation: Observation) -> Array:
        del key
        return form(observation)

    return Attack(threat_model, fit, guess)
