"""Log-odds that models give to records' labels.

phi(z) = log p_y - log sum_{y' != y} p_{y'} (Carlini et al. 2022, section IV-C), taken
from the logits, so that probabilities need no floor. The loss is log(1 + e^-phi), and
p_y = 1 / (1 + e^-phi). They are stored as float16, one row per model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit.types import Defense, Examples, Release

if TYPE_CHECKING:
    from audit.types import AnyArray

CHUNK = 500  # records per call of a model
# (rows, columns) an image is moved by; the first query is the image itself
SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))


class Signals(NamedTuple):
    """The log-odds that models give to records' labels."""

    candidates: Any  # [..., records, queries]
    population: Any  # [..., pool, queries] of records in no training set


class Shadows(NamedTuple):
    """The attacker's models of a membership game: their members and their signals."""

    member: AnyArray  # [models, records] bool; each record is in exactly half
    label: AnyArray  # [records]; candidates are public, their membership is not
    signals: Signals  # [models, ...]


def log_odds(logits: Any, label: Any) -> Any:
    """Return the log-odds of the label; logits [..., k], label [...]."""
    is_label = jax.nn.one_hot(label, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(jnp.where(is_label, -jnp.inf, logits), -1)
    return jnp.where(is_label, logits, 0).sum(-1) - others


def loss(signal: Any) -> Any:
    """Return the cross-entropy of the label from its log-odds."""
    return jax.nn.softplus(-jnp.asarray(signal, float))


def half_precision(values: Any) -> Any:
    """Return float16, the largest of which stand for what is larger."""
    largest = float(np.finfo(np.float16).max)
    return values.clip(-largest, largest).astype(np.float16)


def moved(x: Any, shift: tuple[int, int]) -> Any:
    """Return images [m, H, W, C] moved by whole pixels, filled up with zeros."""
    if shift == (0, 0):
        return x
    down, right = shift
    grown = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    h, w = x.shape[1:3]
    return grown[:, 1 - down : 1 - down + h, 1 - right : 1 - right + w]


def of_release(
    defense: Defense,
    side: Any,
    release: Release,
    candidates: Examples,
    population: Examples,
    queries: Any,
) -> Signals:
    """Return the signals of one release, float16; a sweep calls this as its `then`.

    The candidates [r, ...] may be members, the population [p, ...] are not. Of
    `queries` [q] only the length counts, at most 9; above 1 only for images.
    """
    predict, shifts = defense.predict, SHIFTS[: len(queries)]
    assert predict is not None, "a membership game needs a model that predicts"

    def some(z: Examples) -> jax.Array:
        each = [log_odds(predict(side, release, moved(z.x, s)), z.y) for s in shifts]
        return half_precision(jnp.stack(each, -1))

    def ask(z: Examples) -> jax.Array:
        n = len(z.y)
        size = min(CHUNK, n)
        pad = -n % size
        parts = jax.tree.map(
            lambda a: jnp.pad(a, [(0, pad)] + [(0, 0)] * (a.ndim - 1)).reshape(
                -1, size, *a.shape[1:]
            ),
            z,
        )
        return jax.lax.map(some, parts).reshape(n + pad, len(shifts))[:n]

    return Signals(ask(candidates), ask(population))


def with_release(
    defense: Defense, side: Any, release: Release, *records: Any
) -> tuple[Release, Signals]:
    """Return a release and its signals. Arguments: `of_release`."""
    return release, of_release(defense, side, release, *records)


def by_group(member: np.ndarray, signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the signals of models trained with a record, and without it.

    Each is [records, queries, models / 2], float32 where signals [models, records,
    queries] are float16; each record is in exactly half of `member` [models, records].
    """
    models, records, queries = signal.shape
    order = np.argsort(~np.asarray(member).T, axis=1, kind="stable")
    # the models of one record become contiguous
    rows = np.ascontiguousarray(np.moveaxis(signal, 0, -1))
    split = np.take_along_axis(rows, order[:, None, :], -1)
    split = split.astype(np.promote_types(split.dtype, np.float32))
    assert split.shape == (records, queries, models)
    return split[..., : models // 2], split[..., models // 2 :]
