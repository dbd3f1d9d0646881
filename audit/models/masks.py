"""Masks: 1 for parameters that are trained, else 0; public and shared by all runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree


@partial(jax.jit, static_argnums=1)
def _largest(scores: jax.Array, density: float) -> jax.Array:
    # Python rounds halves to even: 785 parameters at .5 keep 392, as in the thesis
    count = round(density * scores.size)
    if not count:
        raise ValueError(f"density={density:g} trains none of {scores.size} parameters")
    return jnp.zeros(scores.shape).at[jnp.argsort(-scores)[:count]].set(1)


def magnitude(key: jax.Array, params: Any, density: float) -> Any:
    """Keep the `density` largest parameters by absolute value, over all leaves."""
    del key
    flat, unravel = ravel_pytree(params)
    return unravel(_largest(jnp.abs(flat), density))


def random(key: jax.Array, params: Any, density: float) -> Any:
    """Keep a uniform random `density` of the parameters, over all leaves."""
    flat, unravel = ravel_pytree(params)
    return unravel(_largest(jax.random.uniform(key, flat.shape), density))


MASKS = {"magnitude": magnitude, "random": random}
