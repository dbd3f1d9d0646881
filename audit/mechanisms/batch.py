"""The records of one step, and the sum of their contributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from audit.types import Batch, Examples, Noise, Query, Side, State, TrainingSet

MICRO_BATCH = 32  # contributions in memory at a time where there is no closed form
DRAWS = 8, 256  # draws that are made at a time where their sum has a closed form, the
# fewest and the most: fewer are not worth it, and more cost the cube of their number


def count(data: TrainingSet) -> int:
    """Return the number of records of one run, the target included."""
    fixed = len(data.fixed.y) if data.rows is None else len(data.rows)
    return fixed + (data.target is not None)


def split(data: TrainingSet, batch: Batch) -> tuple:
    """Return (fixed records, their weights, weight of the target)."""
    slot = count(data) - 1 if data.target is not None else count(data)
    if batch.rows is None:
        weight = None if batch.weight is None else batch.weight[:slot]
        present = jnp.ones(()) if batch.weight is None else batch.weight[slot:].sum()
        return data.fixed, _of_all(data, weight), present
    assert batch.weight is not None, "a batch of rows has weights"
    is_target = batch.rows == slot
    rows = jnp.where(is_target, 0, batch.rows)
    weight = jnp.where(is_target, 0, batch.weight)
    if data.rows is not None:
        rows = data.rows[rows]
        weight = weight * (rows >= 0)
        rows = jnp.maximum(rows, 0)
    return take(data.fixed, rows), weight, (batch.weight * is_target).sum()


def _of_all(data: TrainingSet, weight: Any) -> Any:
    """Return the weights of all fixed records, given those of the slots.

    Weights instead of rows: the first layer of all lanes stays one product.
    """
    if data.rows is None:
        return weight
    filled = (data.rows >= 0).astype(float)
    filled = filled if weight is None else filled * weight
    return jnp.zeros(len(data.fixed.y), filled.dtype).at[data.rows].add(filled)


def gathered(data: TrainingSet) -> TrainingSet:
    """Return the same training set without `rows`; no slot may be empty."""
    if data.rows is None:
        return data
    return TrainingSet(take(data.fixed, data.rows), data.target)


def take(examples: Examples, rows: Any) -> Examples:
    """Return the records at `rows` [b]."""
    return jax.tree.map(lambda a: a[rows], examples)


def sum_fixed(query: Query, params: Any, side: Side, z: Examples, weight: Any) -> Any:
    """Return sum_i w_i fn(z_i) over shared records, by the query's closed form if any.

    Without one, MICRO_BATCH contributions are held in memory at a time.
    """
    total, part = query.closed_forms.total, query.closed_forms.part
    if total is None:
        one = lambda z: query.fn(params, side, z)
        return _in_parts(_weighted(one), params, z, weight, MICRO_BATCH)
    if part is None or len(z.y) <= part:
        return total(params, side, z, weight)
    some = lambda z, w: total(params, side, z, w)
    return _in_parts(some, params, z, weight, part)


def _weighted(one: Callable) -> Callable:
    """Return (records, weights) -> sum_i w_i one(z_i)."""

    def some(z: Any, w: Any) -> Any:
        each = jax.vmap(one)(z)
        return jax.tree.map(lambda g: jnp.tensordot(w.astype(g.dtype), g, 1), each)

    return some


def _in_parts(some: Callable, like: Any, z: Any, weight: Any, part: int) -> Any:
    """Return the sum of some(records, weights), like `like`, `part` records at a time.

    A record of weight 0, which fills the last part, takes no part in it.
    """
    n = len(jax.tree.leaves(z)[0])
    weight = jnp.ones(n) if weight is None else weight
    pad = -n % part
    z, weight = jax.tree.map(
        lambda a: jnp.pad(a, [(0, pad)] + [(0, 0)] * (a.ndim - 1)).reshape(
            -1, part, *a.shape[1:]
        ),
        (z, weight),
    )

    def add(total: Any, part: tuple) -> tuple:
        return jax.tree.map(jnp.add, total, some(*part)), None

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, like), (z, weight))[0]


def sum_all(query: Query, state: State, data: TrainingSet, batch: Batch) -> Any:
    """Return the sum of one step over the batch, the target included."""
    return _sums(query, state, data, batch)[1]


def _sums(query: Query, state: State, data: TrainingSet, batch: Batch) -> tuple:
    """Return the sums of one step without the target and with it."""
    fixed, weight, target_weight = split(data, batch)
    known_sum = sum_fixed(query, state.params, state.side, fixed, weight)
    if data.target is None:
        return known_sum, known_sum
    contribution = query.fn(state.params, state.side, data.target)
    with_target = lambda a, b: a + target_weight * b
    return known_sum, jax.tree.map(with_target, known_sum, contribution)


def known_and_noised(
    query: Query,
    noise: Noise,
    key: jax.Array,
    state: State,
    data: TrainingSet,
    batch: Batch,
) -> tuple[Any, Any]:
    """Return the sum over the known records, and the noised sum of the step.

    The former is None where each record has its own noise. The noise is drawn for the
    sum, for the batch, or for each record: their sum at once where noise and query can,
    else by a key of the record's row, MICRO_BATCH of them in memory at a time. `key` is
    that of the step, and `state` the one before it.
    """
    if noise.at == "sum":
        known_sum, total = _sums(query, state, data, batch)
        return known_sum, noise.sample(key, total)
    fixed, weight, target_weight = split(data, batch)
    if noise.at == "batch":
        known_sum, total = _sums(query, state, data, batch)
        others = count(data) - (data.target is not None)
        many = others if weight is None else weight.sum()
        many = many + (target_weight if data.target is not None else 0)
        return known_sum, noise.sample(key, total, many)
    rows = jnp.arange(len(fixed.y)) if batch.rows is None else batch.rows

    def one(record: tuple) -> Any:
        z, row = record
        contribution = query.fn(state.params, state.side, z)
        return noise.sample(jax.random.fold_in(key, row), contribution)

    most = _at_once(query, noise, state)
    if most is None:
        some, part = _weighted(one), MICRO_BATCH
    else:
        some, part = _drawn_at_once(query, noise, key, state), min(most, len(fixed.y))
        rows = jnp.arange(len(fixed.y))  # the first of a part names its draw
    total = _in_parts(some, state.params, (fixed, rows), weight, part)
    if data.target is None:
        return None, total
    drawn = one((data.target, jnp.asarray(count(data) - 1)))
    return None, jax.tree.map(lambda a, b: a + target_weight * b, total, drawn)


def _at_once(query: Query, noise: Noise, state: State) -> int | None:
    """Return of how many records at most the draws are summed at once; None = of one.

    A part of p records costs as much as p + K / p Gaussian numbers per record.
    """
    plain = state.side.mask is None and state.side.offset is None
    if noise.law.sample_sum is None or query.closed_forms.span is None or not plain:
        return None
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    fewest, most = DRAWS
    most = query.closed_forms.span_part or most
    part = min(2 ** int(math.log2(size) / 2), most)
    return part if part >= fewest else None


def _drawn_at_once(
    query: Query, noise: Noise, key: jax.Array, state: State
) -> Callable:
    """Return (records and their places, weights) -> the weighted sum of their draws."""
    span, draw = query.closed_forms.span, noise.law.sample_sum
    assert span is not None
    assert draw is not None

    def some(part: tuple, weight: Any) -> Any:
        z, places = part
        vectors = span(state.params, state.side, z)
        part_key = jax.random.fold_in(key, places[0])
        return draw(part_key, weight, vectors, state.params)

    return some


def records(data: TrainingSet, rows: Any) -> Examples:
    """Return the training records at `rows` [m]; slot N is the target."""
    if data.target is None:
        return take(data.fixed, rows if data.rows is None else data.rows[rows])
    fixed = data.fixed if data.rows is None else take(data.fixed, data.rows)
    n = len(fixed.y)
    at = jnp.minimum(rows, n - 1)

    def pick(many: jax.Array, one: jax.Array) -> jax.Array:
        is_target = (rows == n).reshape((-1,) + (1,) * jnp.ndim(one))
        return jnp.where(is_target, one, many[at])

    return jax.tree.map(pick, fixed, data.target)


def weights(batch: Batch, rows: Any) -> jax.Array:
    """Return the weight [m] with which each of `rows` [m] takes part in the batch."""
    if batch.weight is None:
        return jnp.ones(len(rows))
    if batch.rows is None:
        return batch.weight[rows]
    return ((batch.rows == rows[:, None]) * batch.weight).sum(1)
