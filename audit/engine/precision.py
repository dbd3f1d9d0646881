"""Arrays as wide as JAX computes where they are made."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def double(tree: Any) -> Any:
    """Return a tree whose floats are NumPy arrays of JAX's width at this point."""
    kind = jnp.result_type(float)

    def cast(a: Any) -> np.ndarray:
        a = np.asarray(a)
        return a.astype(kind) if a.dtype.kind == "f" else a

    return jax.tree.map(cast, tree)
