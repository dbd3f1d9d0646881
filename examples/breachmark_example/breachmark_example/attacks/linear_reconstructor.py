"""Linear reconstructor: ridge regression from shadow models to their targets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import class_means, stream
from audit.types import (
    Attack,
    Knowledge,
    Observation,
    Positive,
    Task,
    ThreatModel,
    TrainingSet,
)


def linear_reconstructor(task: Task, *, ridge: Positive = 1e-3) -> Attack:
    """Guess the class mean plus a linear function of the release.

    The function is fitted to shadow models, one per record of the pool, by ridge
    regression. It solves for all parameters at once: meant for small models.

    Args:
      task: gives the image shape and the classes.
      ridge: penalty, as a share of the features' mean square.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Any, dict]:
        assert knowledge.train is not None, "granted: declared above"
        assert knowledge.fixed is not None, "granted: declared above"
        pool = knowledge.pool
        shadows = knowledge.train(
            stream(key, "shadow"), TrainingSet(knowledge.fixed, pool)
        )
        released = jax.vmap(lambda p: ravel_pytree(p)[0])(shadows.params)
        centre, means = released.mean(0), class_means(knowledge, task.classes)
        features = released - centre
        wanted = (pool.x - means[pool.y]).reshape(len(pool.y), -1)
        square = features.T @ features
        penalty = ridge * jnp.trace(square) / len(square)
        matrix = square + penalty * jnp.eye(len(square))
        weights = jnp.linalg.solve(matrix, features.T @ wanted)
        return (means, centre, weights), {"shadows": len(pool.y)}

    def guess(fitted: Any, key: Array, observation: Observation) -> Array:
        del key
        means, centre, weights = fitted
        move = (ravel_pytree(observation.params)[0] - centre) @ weights
        image = means[observation.label] + move.reshape(task.features)
        return jnp.clip(image, *task.domain)

    return Attack(threat_model, fit, guess)
