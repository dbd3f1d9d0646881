"""How much XLA optimises what it compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jaxlib

WIDE = {"xla_cpu_prefer_vector_width": 512}  # bits; fewer where a core has no more


def options(once: bool) -> dict[str, Any] | None:
    """Return options for XLA; a program called `once` compiles longer than it computes.

    Kernels are compiled one by one, each in about 10 ms. XLA's older compiler of
    kernels takes half of that; they round differently, and draw normals and train
    networks more slowly. From jaxlib 0.11 on XLA has no older one. Other programs
    compute with vectors as wide as a core has; XLA may take half of that unless asked.
    None where another device computes, or where JAX was told to optimise less.
    """
    less = jax.config.read("jax_disable_most_optimizations")
    if less or jax.default_backend() != "cpu":
        return None
    if not once:
        return WIDE
    quickly: dict[str, Any] = {"xla_backend_optimization_level": 1}
    if jaxlib.version.__version_info__ < (0, 11):
        quickly["xla_cpu_use_fusion_emitters"] = False
    return quickly


def once(function: Callable, static_argnums: int | tuple[int, ...] = ()) -> Callable:
    """Return `jax.jit` of a function that is called `once`, or a few times.

    No other compiled program may call it: XLA takes options for whole programs only.
    """

    @functools.cache
    def compiled(chosen: frozenset | None) -> Callable:
        how = None if chosen is None else dict(chosen)
        return jax.jit(function, static_argnums=static_argnums, compiler_options=how)

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        chosen = options(once=True)
        how = None if chosen is None else frozenset(chosen.items())
        return compiled(how)(*arguments)

    return called
