"""Noises: what is added to a sum before it is released.

The noise owns its precision: the Fisher information about the noised vector, per unit
of squared motion of that vector. Nothing else in the suite squares a standard
deviation.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from audit import rdp
from audit.types import Noise


def gaussian(stddev: Any) -> Noise:
    """Isotropic Gaussian noise, v + N(0, stddev^2 I); precision 1 / stddev^2.

    Args:
      stddev: positive, in the units of the noised vector; may be traced.
    """

    def sample(key: jax.Array, vector: Any) -> Any:
        flat, unravel = ravel_pytree(vector)
        return unravel(flat + stddev * jax.random.normal(key, flat.shape, flat.dtype))

    def curve(orders: Any, sensitivity: Any) -> Any:
        return rdp.gaussian(orders, sensitivity / stddev)

    return Noise(sample, precision=1 / stddev**2, stddev=stddev, rdp=curve)


def none() -> Noise:
    """No noise: the sum is released as it is. No Fisher or Renyi reading, no bound."""
    return Noise(lambda key, vector: vector, precision=None)
