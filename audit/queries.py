"""Queries: one example's contribution, one function for training and accounting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from audit import linear
from audit.clip import Clip, clip_tree
from audit.pretrain import pretrain
from audit.rng import stream
from audit.types import Examples, Query, Task


class Side(NamedTuple):
    """What `prepare` hands to every lane; public by construction."""

    params: Any  # where every run starts
    mask: Any = None  # pytree of 0/1 like params: 1 = trained; None = all


def start(task: Task, pretrain_epochs: int = 0) -> Callable:
    """Return `prepare`: one initialisation for all lanes, optionally pre-trained."""

    def prepare(key: jax.Array, public: Examples) -> Side:
        params = task.init(stream(key, "init"))
        key = stream(key, "pretrain")
        return Side(pretrain(task, params, public, key, epochs=pretrain_epochs))

    return prepare


def masked(mask: Any, tree: Any) -> Any:
    """Return `tree` with frozen entries zero; a mask of None freezes nothing."""
    return tree if mask is None else jax.tree.map(jnp.multiply, mask, tree)


def gradient(task: Task, clip: Clip) -> Query:
    """The gradient of one example, masked, then clipped: CLIP(mask * grad loss(z)).

    Models with affine logits bring closed forms for the sum, the trace and the score;
    elsewhere the builder falls back on `fn`. `no_clip()` gives the plain gradient.

    Args:
      task: whose loss is differentiated.
      clip: from `audit.clip`; owns the norm bound, and so the sensitivity.
    """

    def fn(params: Any, side: Side, example: Examples) -> Any:
        return clip_tree(clip, masked(side.mask, jax.grad(task.loss)(params, example)))

    query = Query(fn, clip.norm_bound, 2 * clip.norm_bound, clip.smooth)
    return query if task.linear is None else _with_closed_forms(query, task, clip)


def _with_closed_forms(query: Query, task: Task, clip: Clip) -> Query:
    to_head, from_head = task.linear

    def arguments(side: Side) -> dict:
        mask = None if side.mask is None else to_head(side.mask)
        return {"clip": clip, "classes": task.classes, "mask": mask}

    def flat(z: Examples) -> tuple[Any, Any]:
        return z.x.reshape(len(z.y), -1), z.y

    def total(params: Any, side: Side, z: Examples, weight: Any) -> Any:
        x, y = flat(z)
        own = arguments(side)
        return from_head(linear.clipped_total(to_head(params), x, y, weight, **own))

    def trace(params: Any, side: Side, z: Examples) -> jax.Array:
        x, y = flat(z)
        return linear.clipped_trace(to_head(params), x, y, **arguments(side))

    def score(params: Any, side: Side, z: Examples, update: Any) -> tuple:
        x, y = flat(z)
        own = arguments(side)
        return linear.clipped_score(to_head(params), x, y, to_head(update), **own)

    return query._replace(total=total, trace=trace, score=score)
