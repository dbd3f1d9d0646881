"""The attacker's prior: statistics of the pool, before any release."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.types import Attribute, Examples, Knowledge, Splits


def originals(holder: Knowledge | Splits) -> Examples:
    """Return the pool without augmented copies."""
    source = np.asarray(holder.pool_source)
    first = source == np.arange(len(source))
    return Examples(holder.pool.x[first], holder.pool.y[first])


def class_means(knowledge: Knowledge, classes: int) -> Array:
    """Return the mean original of every class [classes, *features]; see `of_class`."""
    x, y = originals(knowledge)
    means = [x[y == label].mean(0) for label in range(classes)]
    return jnp.stack(means or [x.mean(0)])


def class_norms(knowledge: Knowledge, classes: int) -> Array:
    """Return the mean norm of every class's originals [classes]; see `of_class`."""
    x, y = originals(knowledge)
    norms = jnp.linalg.norm(jnp.asarray(x).reshape(len(y), -1), axis=1)
    means = [norms[y == label].mean() for label in range(classes)]
    return jnp.stack(means or [norms.mean()])


def of_class(statistic: Array, label: Any) -> Array:
    """Return the entry of a label's class; labels that are numbers are of one class."""
    numeric = jnp.issubdtype(jnp.result_type(label), jnp.floating)
    return statistic[0] if numeric else statistic[label]


def hold_out(source: Any, share: float) -> np.ndarray:
    """Choose a share of the images to hold out; return which rows those are [m].

    `source` [m] is the image of each row: copies of one image go together. They are the
    same whatever the defense and the attack, so that programs of one shape are compiled
    once.
    """
    images = np.unique(np.asarray(source))
    order = np.asarray(jax.random.permutation(jax.random.key(0), len(images)))
    return np.isin(source, images[order[: max(1, int(share * len(images)))]])


def class_rows(labels: Any, classes: int, source: Any, kept: Any = True) -> np.ndarray:
    """Return the rows that an attacker learns each class from [C, m].

    They are the class's rows that are kept. Fewer than two originals do not show how
    images vary: such a class has all rows that are kept.

    Args:
      labels: [m] of the rows, in 0, ..., C - 1.
      classes: C.
      source: [m] the row of each row's original; copies have another than their own.
      kept: [m] which rows may be learnt from; default: all.

    Raises:
      ValueError: if no original is kept.
    """
    labels = np.asarray(labels)
    kept = np.broadcast_to(kept, labels.shape)
    original = kept & (np.asarray(source) == np.arange(len(labels)))
    if not original.any():
        raise ValueError("no image is left to learn from: all are held out")
    each = [kept & (labels == label) for label in range(classes)]
    return np.stack([r if (r & original).sum() > 1 else kept for r in each])


def attribute_counts(knowledge: Knowledge) -> Array:
    """Return the number of pool records with each value of the attribute [v]."""
    assert knowledge.attribute is not None, "an attribute game grants it"
    has_value = which_values(knowledge.attribute, knowledge.pool.x)
    return jnp.asarray(has_value.sum(0), float)


def which_values(attribute: Attribute, x: Any) -> np.ndarray:
    """Return whether each record has each of the attribute's values [n, v]."""
    x = np.asarray(x)
    cells = x[:, attribute.columns][:, None]
    return (cells == np.asarray(attribute.values).astype(x.dtype)).all(2)
