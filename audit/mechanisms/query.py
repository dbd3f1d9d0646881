"""Queries: one example's contribution, one function for training and accounting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from audit.clipping import Clip, clip_apart, clip_tree, rows
from audit.models import affine, dense
from audit.models.affine import Treatment, masked
from audit.models.masks import MASKS
from audit.rng import stream
from audit.types import ClosedForms, Examples, Public, Query, Span, Task

NARROW = 128  # hidden units up to which a dense network's trace is taken exactly


class Side(NamedTuple):
    """What `prepare` hands to every lane; public by construction."""

    params: Any  # where every run starts
    mask: Any = None  # pytree of 0/1 like params: 1 = trained; None = all
    offset: Any = None  # like params: added to every gradient before it is clipped
    learnt: Any = None  # what a defense that learns from public data carries along


def start(key: jax.Array, public: Public) -> Side:
    """Prepare nothing but the common starting point."""
    del key
    return Side(public.params)


def start_masked(keep: str, density: float) -> Callable:
    """Return `prepare` that also makes a public mask; density 1 freezes nothing."""

    def prepare(key: jax.Array, public: Public) -> Side:
        side = start(key, public)
        if density == 1:
            return side
        mask = MASKS[keep](stream(key, "mask"), side.params, density)
        return side._replace(mask=mask)

    return prepare


def modules(task: Task) -> dict[str, int]:
    """Return how many parameters each top-level module has."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return {
        name: sum(math.prod(a.shape) for a in jax.tree.leaves(part))
        for name, part in shapes.items()
    }


def row_sizes(task: Task) -> list[int]:
    """Return how many parameters each row has (`clipping.rows`)."""
    shapes = jax.eval_shape(
        lambda key: jax.tree.map(rows, task.init(key)), jax.random.key(0)
    )
    return [size for a in jax.tree.leaves(shapes) for size in [a.shape[1]] * len(a)]


def gradient(
    task: Task, clip: Clip, perturb: Callable | None = None, *, apart: bool = False
) -> Query:
    """The gradient of one example, masked, perturbed, then clipped.

    CLIP(mask * (grad loss(z) + offset + perturb(z))). Its norm, and so its sensitivity,
    are the clip's, whatever is added.

    Models with affine logits and layered networks have closed forms for the sum, the
    score and the trace (of narrow dense networks; of others, its quadratic form), an
    offset included. Other models, and queries with `perturb`, have `fn` alone.
    `no_clip()` gives the plain gradient.

    Args:
      task: whose loss is differentiated.
      clip: from `audit.clipping`; owns the norm bound, and so the sensitivity.
      perturb: (params, side, example, masked gradient) -> what is added, a pytree like
        the parameters; None = nothing that depends on the example.
      apart: whether each top-level module of the parameters is clipped separately, to
        the same norm.
    """
    blocks = len(modules(task)) if apart else 1

    def parts(params: Any, side: Side, example: Examples) -> tuple[Any, Any]:
        slope = masked(side.mask, jax.grad(task.loss)(params, example))
        added = None
        if perturb is not None:
            added = masked(side.mask, perturb(params, side, example, slope))
        if side.offset is not None:
            offset = masked(side.mask, side.offset)
            added = offset if added is None else jax.tree.map(jnp.add, added, offset)
        return slope, added

    def fn(params: Any, side: Side, example: Examples) -> Any:
        total, added = parts(params, side, example)
        if added is not None:
            total = jax.tree.map(jnp.add, total, added)
        return clip_apart(clip, total) if blocks > 1 else clip_tree(clip, total)

    bound = math.sqrt(blocks) * clip.norm_bound
    query = Query(fn, bound, 2 * bound, clip.smooth and task.smooth, parts)
    if perturb is None and blocks == 1 and (task.linear or task.dense):
        return query._replace(closed_forms=_closed_forms(task, clip))
    return query


def _closed_forms(task: Task, clip: Clip) -> ClosedForms:
    """Return those of affine logits or of layers: no per-example gradients."""
    model: Any = dense if task.linear is None else affine
    same = lambda tree: tree
    view, back = task.linear or (same, same)
    first = (task.dense,) if model is dense else ()

    def inputs(params: Any, z: Examples) -> tuple:
        return *first, view(params), z.x.reshape(len(z.y), -1), z.y

    def treatment(side: Side) -> Treatment:
        mask, offset = (a if a is None else view(a) for a in (side.mask, side.offset))
        return Treatment(clip, task.classes, mask, offset)

    def total(params: Any, side: Side, z: Examples, weight: Any) -> Any:
        return back(model.clipped_total(*inputs(params, z), weight, treatment(side)))

    def trace(params: Any, side: Side, z: Examples) -> jax.Array:
        return model.clipped_trace(*inputs(params, z), treatment(side))

    def score(params: Any, side: Side, z: Examples, update: Any) -> tuple:
        return model.clipped_score(*inputs(params, z), view(update), treatment(side))

    def information(params: Any, side: Side, z: Examples) -> tuple:
        return model.clipped_information(*inputs(params, z), treatment(side))

    def motion(params: Any, side: Side, z: Examples, u: jax.Array) -> jax.Array:
        stack, view, x, y = inputs(params, z)
        return dense.clipped_motion(stack, view, x, y, u, treatment(side))

    def span(params: Any, side: Side, z: Examples) -> Span:
        gram, inner, combine = model.clipped_span(*inputs(params, z), treatment(side))
        return Span(gram, lambda u: inner(view(u)), lambda c: back(combine(c)))

    if model is affine:
        return ClosedForms(total, trace, score, information, span=span)
    # exact while the first layer is narrow; else the builder's probes are cheaper
    narrow = not task.dense.passes and task.dense.width <= NARROW
    some = trace if narrow else None
    forms = ClosedForms(total, some, score, motion=motion, span=span)
    if not task.dense.convolutional:
        return forms
    params = jax.eval_shape(task.init, jax.random.key(0))
    part, span_part = dense.at_a_time(task.dense, params)
    return forms._replace(part=part, span_part=span_part)
