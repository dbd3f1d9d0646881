"""What a record adds to the steps of a transcript, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.types import Examples, StepLaw, Steps


def contribution(
    law: StepLaw, params: Any, side: Any, label: Any
) -> Callable[[Array], Array]:
    """Return what a record x [*features] of this label adds to a step, flat [D]."""

    def of_record(x: Array) -> Array:
        return ravel_pytree(law.contribution(params, side, Examples(x, label)))[0]

    return of_record


def evidence(
    law: StepLaw, steps: Steps, label: Any, x: Array, directions: Array
) -> tuple[Array, Array]:
    """Return what all steps of one run say of a record, linearised at a guess.

    Step t shows f_t(record) + noise of variance s^2. With J_t the Jacobian of f_t at
    the guess x and V the directions, the result is the Fisher information
    F = sum_t V J_t' J_t V' / s^2 [K, K] and the score sum_t V J_t' (rest_t - f_t(x)) /
    s^2 [K], for which moving the guess by V' a is worth F a.

    Args:
      law: how a record enters the steps.
      steps: [T, ...] of one run.
      label: [] of the record; public.
      x: the guess, of the record's own shape.
      directions: [K, d] in the space of flat records.
    """

    def body(total: tuple, step: tuple) -> tuple:
        params, side, rest = step
        here, push = jax.linearize(contribution(law, params, side, label), x)
        slopes = jax.vmap(push)(directions.reshape(-1, *x.shape))  # [K, D]
        gap = ravel_pytree(rest)[0] - here
        return jax.tree.map(jnp.add, total, (slopes @ slopes.T, slopes @ gap)), None

    count = len(directions)
    nothing = jnp.zeros((count, count)), jnp.zeros(count)
    # step by step: the slopes of all steps together leave a processor's cache
    each = steps.params, law.sides(steps.params), steps.rest
    total = jax.lax.scan(body, nothing, each)[0]
    return jax.tree.map(lambda a: a / law.stddev**2, total)
