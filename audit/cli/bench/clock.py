"""Seconds, and what the machine could do at best: products, and bytes moved."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SQUARES = 1_024, 2_048, 3_072  # sides of the large products; the fastest counts
ON_GPU = (8_192,)  # more of them, which a processor would take minutes for
MOVED = 2**26  # floats, far more than any cache holds
ENOUGH = 2.0  # seconds after which a call is not timed again


def fastest(run: Callable[[], Any], times: int) -> float:
    """Return the seconds of the fastest call of a few, after one that compiles."""
    run()
    took: list[float] = []
    while len(took) < times and sum(took) < ENOUGH:
        took.append(timeit.timeit(run, number=1))
    return min(took)


def square_rate() -> float:
    """Return GFLOP/s of the best large square product of float32 matrices."""
    sides = SQUARES if jax.default_backend() == "cpu" else SQUARES + ON_GPU
    return max(matmul_rate(n, n, n, times=5) for n in sides)


def shapes_rate(tile: int, records: int, pixels: int) -> float:
    """Return GFLOP/s of [tile, d] x [d, n] and back, the shapes of a linear step."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(records, pixels)), "float32")
    both = jax.jit(lambda w: (w @ x.T) @ x)
    w = jnp.ones((tile, pixels)) / pixels
    seconds = fastest(lambda: jax.block_until_ready(both(w)), 20)
    return 4 * tile * records * pixels / seconds / 1e9


def memory_rate() -> float:
    """Return GB/s that are read and written by adding a number to a long array.

    It is added in place: to ask for new memory takes longer than to fill it.
    """
    add = jax.jit(lambda a: a + 1, donate_argnums=0)
    held = [jnp.zeros(MOVED, jnp.float32)]

    def run() -> None:
        held.append(jax.block_until_ready(add(held.pop())))

    return 8 * MOVED / fastest(run, 5) / 1e9


def matmul_rate(m: int, k: int, n: int, times: int) -> float:
    """Return GFLOP/s of [m, k] x [k, n], the fastest of some times."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((m, k), (k, n)))
    product = jax.jit(jnp.matmul)
    seconds = fastest(lambda: jax.block_until_ready(product(a, b)), times)
    return 2 * m * k * n / seconds / 1e9
