"""Randomness addressed by name, not by order."""

from __future__ import annotations

import functools
import math
import zlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

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
# whole array in memory in each of them. Here the same rounds are written out, in one
# pass, and normals are made of the bits in a second one. One core takes 2.9 ns for each
# of 785 normals of 512 lanes in place of 4.0, and 3.0 in place of 4.7 for each of 1.9
# million of one lane, bit for bit (tests/benchmarks/test_speed.py, `normals`).

LARGE = 2**16  # numbers of a pytree, from which on its leaves are drawn one by one,
PART = 2**18  # and so many numbers of a leaf at a time
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # Salmon et al. (2011)
PARITY = np.uint32(0x1BD11BDA)  # of its key schedule


def normal(key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
    """Return `jax.random.normal(key, shape, dtype)`, to the bit."""
    if _fast(key, dtype):
        key = _from(key, 0)
    return jax.random.normal(key, shape, dtype)


def normal_like(key: Array, tree: Any) -> Any:
    """Return normals in the shape of `tree`: those of `normal`, leaf after leaf.

    XLA draws the numbers of a matrix that is cut out of one vector more slowly, and
    draws them again wherever they are used. So each leaf of a large tree is drawn by
    itself, in a loop over parts that stay in cache.
    """
    if not _by_leaves(key, tree):
        flat, unravel = ravel_pytree(tree)
        return unravel(normal(key, flat.shape, flat.dtype))
    leaves, structure = jax.tree.flatten(tree)
    sizes = [leaf.size for leaf in leaves]
    drawn = []
    for leaf, first in zip(leaves, np.cumsum([0, *sizes]), strict=False):
        parts = _parts(leaf.size)
        size = leaf.size // parts
        starts = jnp.uint32(first + size * np.arange(parts))
        one = functools.partial(_part, key, size, leaf.dtype)
        part = jax.lax.map(one, starts) if parts > 1 else one(starts[0])
        drawn.append(part.reshape(leaf.shape))
    return jax.tree.unflatten(structure, drawn)


def add_normal(key: Array, tree: Any, scale: Any) -> Any:
    """Return `tree` plus `scale` times `normal_like(key, tree)`.

    A small tree is added to as one vector, which is rounded in one way whatever its
    leaves are.
    """
    if not _by_leaves(key, tree):
        flat, unravel = ravel_pytree(tree)
        return unravel(flat + scale * normal(key, flat.shape, flat.dtype))
    drawn = normal_like(key, tree)
    return jax.tree.map(lambda leaf, z: leaf + scale * z, tree, drawn)


def _by_leaves(key: Array, tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    large = LARGE <= sum(a.size for a in leaves) < 2**32
    return large and all(_fast(key, a.dtype) for a in leaves)


def _part(key: Array, size: int, dtype: Any, first: Array) -> Array:
    return jax.random.normal(_from(key, first), (size,), dtype)


def _parts(size: int) -> int:
    """Return into how many equal parts of PART numbers at most a leaf is cut.

    1 if there are none, which is slower.
    """
    fewest = -(-size // PART)
    return next((m for m in range(fewest, 4 * fewest + 1) if m and size % m == 0), 1)


def _fast(key: Array, dtype: Any) -> bool:
    """Return whether `_bits` makes the bits of numbers of this type, and sooner."""
    return (
        jax.default_backend() == "cpu"
        and jax.dtypes.canonicalize_dtype(dtype) == jnp.float32  # `_bits` are uint32
        and str(jax.random.key_impl(key)) == "threefry2x32"
        and jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    )


def _from(key: Array, first: Any) -> Array:
    """Return the key of the numbers of `key` from number `first` on."""
    data = jnp.append(jax.random.key_data(key), jnp.uint32(first))
    return jax.random.wrap_key_data(data, impl=_written_out())


@functools.cache
def _written_out() -> Any:
    """Return Threefry as JAX has it, but for how its bits are compiled.

    The third word of a key is the number of its first element.
    """
    from jax.extend import random

    fry = random.threefry_prng_impl
    return random.define_prng_impl(
        key_shape=(3,),
        seed=fry.seed,
        split=fry.split,
        fold_in=fry.fold_in,
        random_bits=lambda key, width, shape: _bits(key, shape),  # `_fast`: 32 wide
        name="threefry2x32_written_out",
        tag="fry-out",
    )


def _bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Return 32 bits per element, from a loop of their own.

    In one loop with what makes normals of them, the bits begin a chain of instructions
    too long for a core to have several of it in flight. XLA makes one loop of all it
    can, but never of a loop of which it does not know how often it runs.
    """
    once = jax.lax.optimization_barrier(jnp.int32(1))
    nothing = jnp.zeros(shape, jnp.uint32)
    return jax.lax.fori_loop(0, once, lambda _, bits: _hashes(key, shape), nothing)


def _hashes(key: Array, shape: tuple[int, ...]) -> Array:
    """Return 32 bits per element: both words of the hash of its number, xored."""
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"{size:,} numbers from one key: more than 2^32")
    counter = jax.lax.iota(jnp.uint32, size) + key[2]
    keys = key[0], key[1], key[0] ^ key[1] ^ PARITY
    high, low = jnp.zeros_like(counter) + keys[0], counter + keys[1]
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            high = high + low
            low = high ^ (low << np.uint32(r) | low >> np.uint32(32 - r))
        high = high + keys[(i + 1) % 3]
        low = low + keys[(i + 2) % 3] + np.uint32(i + 1)
    return (high ^ low).reshape(shape)
