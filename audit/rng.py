"""Randomness addressed by name, not by order."""

from __future__ import annotations

import functools
import math
import zlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jax import Array


def stream(key: Array, name: str) -> Array:
    """Return the key of the stream called `name`.

    Adding a stage to a program therefore never changes the bits of another stage.

    Args:
      key: a typed key.
      name: any string; equal names give equal streams.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


# Normals, faster ----------------------------------------------------------------------
# JAX compiles Threefry for processors as a loop over its rounds, which passes over the
# whole array in memory in each of them. The same rounds written out are one pass: a
# vector of four million normals takes 19 ms in place of 67 (two cores), bit for bit.

LONG = 4096  # numbers; shorter vectors are left to JAX, whose loop compiles faster
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # Salmon et al. (2011)
PARITY = np.uint32(0x1BD11BDA)  # of its key schedule


def normal(key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
    """Return `jax.random.normal(key, shape, dtype)`, to the bit."""
    fast = (
        math.prod(shape) >= LONG
        and jax.default_backend() == "cpu"
        and str(jax.random.key_impl(key)) == "threefry2x32"
        and jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    )
    if fast:
        data = jax.random.key_data(key)
        key = jax.random.wrap_key_data(data, impl=_written_out())
    return jax.random.normal(key, shape, dtype)


@functools.cache
def _written_out() -> Any:
    """Return Threefry as JAX has it, but for how its bits are compiled."""
    from jax.extend import random

    fry = random.threefry_prng_impl
    return random.define_prng_impl(
        key_shape=fry.key_shape,
        seed=fry.seed,
        split=fry.split,
        fold_in=fry.fold_in,
        random_bits=lambda key, width, shape: (
            _bits(key, shape) if width == 32 else fry.random_bits(key, width, shape)
        ),
        name="threefry2x32_written_out",
        tag="fry-out",
    )


def _bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Return 32 bits per element: both words of the hash of its number, xored."""
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"{size:,} numbers from one key: more than 2^32")
    counter = jax.lax.iota(jnp.uint32, size)
    keys = key[0], key[1], key[0] ^ key[1] ^ PARITY
    high, low = jnp.zeros_like(counter) + keys[0], counter + keys[1]
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            high = high + low
            low = high ^ (low << np.uint32(r) | low >> np.uint32(32 - r))
        high = high + keys[(i + 1) % 3]
        low = low + keys[(i + 2) % 3] + np.uint32(i + 1)
    return (high ^ low).reshape(shape)
