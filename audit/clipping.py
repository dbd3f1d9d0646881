"""Clips: bound the norm of one example's contribution.

A clip scales a vector g by phi(||g||). Guo et al. (2022, Algorithm 1) use
phi(s) = 1 / (GELU(s/C - 1) + 1), differentiable everywhere, so that the Fisher
information of what is trained exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# sup_u u / (GELU(u - 1) + 1) is 1.11524 with the tanh GELU and 1.11522 with erf. The
# papers print 1.115, which is not a bound; rounded up, a test recomputes it.
GELU_OVERSHOOT = 1.1153


class Clip(NamedTuple):
    """How a contribution is scaled by its norm."""

    scale: Callable  # s -> phi(s)
    slope: Callable  # s -> phi'(s)
    norm_bound: Any  # sup_s s phi(s); may be traced
    smooth: bool  # differentiable everywhere
    of_direction: bool = False  # phi(c s) = phi(s) / c: a vector's length is no matter


def soft_clip(clip_norm: Any) -> Clip:
    """Guo et al.'s smooth clip with the tanh GELU; norms stay below 1.1153 clip_norm.

    Below clip_norm it is not the identity: small contributions grow by up to 1.205.

    Args:
      clip_norm: C > 0; may be traced.
    """

    def scale(s: Any) -> Any:
        return 1 / (jax.nn.gelu(s / clip_norm - 1, approximate=True) + 1)

    def slope(s: Any) -> Any:
        return -_gelu_slope(s / clip_norm - 1) / clip_norm * scale(s) ** 2

    return Clip(scale, slope, GELU_OVERSHOOT * clip_norm, smooth=True)


def _gelu_slope(v: Any) -> Any:
    """Derivative of the tanh GELU."""
    c = math.sqrt(2 / math.pi)
    t = jnp.tanh(c * (v + 0.044715 * v**3))
    return (1 + t) / 2 + v * (1 - t**2) * c * (1 + 0.134145 * v**2) / 2


def hard_clip(clip_norm: Any) -> Clip:
    """The clip of Abadi et al. (2016), phi(s) = min(1, C / s); has no Fisher reading.

    Args:
      clip_norm: C > 0; may be traced.
    """

    def scale(s: Any) -> Any:
        return clip_norm / jnp.maximum(s, clip_norm)  # min(1, C / s), defined at 0

    def slope(s: Any) -> Any:
        return jnp.where(s > clip_norm, -clip_norm / jnp.maximum(s, clip_norm) ** 2, 0)

    return Clip(scale, slope, clip_norm, smooth=False)


# Norms below it count as zero: their squares underflow in float32. Where directions are
# all that counts, vectors are measured in a `unit` of their own first.
LEAST_NORM = 1e-18


def normalise(margin: Any = 0.0) -> Clip:
    """Scale to a direction, phi(s) = 1 / (s + margin); a zero vector stays zero.

    Without a margin norms are 1, however short the gradient (Faustini et al. 2023).
    With one (Yang et al. 2022, Bu et al. 2023) short gradients stay short.

    Args:
      margin: at least 0; may be traced, and counts as a margin then.
    """
    of_direction = isinstance(margin, float | int) and margin == 0

    def scale(s: Any) -> Any:
        nonzero = s > LEAST_NORM
        return jnp.where(nonzero, 1 / (jnp.where(nonzero, s, 1) + margin), 0)

    def slope(s: Any) -> Any:
        return -(scale(s) ** 2)

    return Clip(scale, slope, 1.0, smooth=True, of_direction=of_direction)


def no_clip() -> Clip:
    """Leave contributions as they are; their norm is unbounded."""
    return Clip(jnp.ones_like, jnp.zeros_like, math.inf, smooth=True)


def unit(size: Any) -> jax.Array:
    """Return the power of two above each size, the unit of vectors of that size.

    The gradient of a record that is fitted well has a norm of 1e-18 and less, whose
    square is no float32. Dividing by a power of two rounds nothing, so that norms which
    need no unit keep their bits. It is a constant to derivatives; of zero it is 1.

    Args:
      size: largest magnitude in each vector, any shape.
    """
    size = jax.lax.stop_gradient(size)
    exponent = jnp.clip(jnp.frexp(size)[1], -126, 126)
    normal = jnp.isfinite(size) & (size >= jnp.finfo(size.dtype).tiny)
    return jnp.where(normal, jnp.ldexp(jnp.ones_like(size), exponent), 1)


def norm_of(square: Any) -> jax.Array:
    """Return the norm whose square is given, with derivative 0 at 0.

    Rounding makes squares negative: of them it is 0. The inner where keeps derivatives
    finite.
    """
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def clip_tree(clip: Clip, tree: Any) -> Any:
    """Scale a pytree by phi of its global L2 norm; differentiable at zero too."""
    if clip.of_direction:
        sizes = [jnp.abs(leaf).max() for leaf in jax.tree.leaves(tree)]
        one = unit(jnp.stack(sizes).max())
        tree = jax.tree.map(lambda leaf: leaf / one, tree)
    factor = clip.scale(norm_of(sum((a**2).sum() for a in jax.tree.leaves(tree))))
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def clip_apart(clip: Clip, tree: Any) -> Any:
    """Scale every top-level module of the parameters by its own norm."""
    return {name: clip_tree(clip, part) for name, part in tree.items()}


def rows(leaf: jax.Array) -> jax.Array:
    """Return what leads to each output of a layer [outputs, K].

    That of a kernel [..., inputs, outputs] are the weights into one unit or filter. A
    vector, such as the biases of a layer, is one row.
    """
    outputs = leaf.shape[-1] if leaf.ndim > 1 else 1
    return leaf.reshape(-1, outputs).T


def clip_rows(clip: Clip, tree: Any) -> Any:
    """Scale every row of every leaf by its own norm."""
    one = lambda row: clip_tree(clip, row)
    return jax.tree.map(lambda leaf: by_row(one, leaf), tree)


def by_row(one: Callable, leaf: jax.Array, *more: Any) -> jax.Array:
    """Return a leaf of which each row is one(row, ...), `more` having one per row."""
    return jax.vmap(one)(rows(leaf), *more).T.reshape(leaf.shape)


CLIPS = {"soft": soft_clip, "hard": hard_clip}
