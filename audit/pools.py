"""The attacker's prior: what a pool says before any release is seen."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from audit.types import Examples, Knowledge


def originals(knowledge: Knowledge) -> Examples:
    """Return the pool without augmented copies."""
    source: Any = knowledge.pool_source
    first = source == jnp.arange(len(source))
    return Examples(knowledge.pool.x[first], knowledge.pool.y[first])


def class_means(knowledge: Knowledge, classes: int) -> Array:
    """Return the mean original of every class [classes, *features]."""
    x, y = originals(knowledge)
    return jnp.stack([x[y == label].mean(0) for label in range(classes)])


def class_norms(knowledge: Knowledge, classes: int) -> Array:
    """Return the mean norm of every class's originals [classes]."""
    x, y = originals(knowledge)
    norms = jnp.linalg.norm(jnp.asarray(x).reshape(len(y), -1), axis=1)
    return jnp.stack([norms[y == label].mean() for label in range(classes)])


def attribute_counts(knowledge: Knowledge) -> Array:
    """Return how many pool records have each of the attribute's values [v]."""
    assert knowledge.attribute is not None, "an attribute game grants it"
    columns, values = knowledge.attribute
    held = jnp.asarray(knowledge.pool.x)[:, columns][:, None]
    return (held == jnp.asarray(values)).all(2).sum(0).astype(float)
