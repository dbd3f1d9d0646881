"""Casts to the precision in which JAX computes at the moment."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def double(tree: Any) -> Any:
    """Return the tree as NumPy arrays; floats are float64 under `jax.enable_x64`."""
    kind = jnp.result_type(float)

    def cast(a: Any) -> np.ndarray:
        a = np.asarray(a)
        return a.astype(kind, copy=False) if a.dtype.kind == "f" else a

    return jax.tree.map(cast, tree)
