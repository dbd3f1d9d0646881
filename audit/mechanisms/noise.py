"""Noises: what is added to a sum, or drawn in place of each contribution to it.

The noise owns its precision: the Fisher information about the noised vector, per unit
of squared motion of that vector. Nothing else in the suite squares a standard
deviation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from audit.accounting import rdp, vmf, vmf_privacy
from audit.clipping import clip_tree, normalise
from audit.rng import stream
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

    def log_density(vector: Any, drawn: Any) -> Any:
        gap = ravel_pytree(drawn)[0] - ravel_pytree(vector)[0]
        return -(gap @ gap) / (2 * stddev**2)

    return Noise(
        sample,
        precision=1 / stddev**2,
        stddev=stddev,
        rdp=curve,
        log_density=log_density,
    )


def none() -> Noise:
    """No noise: the sum is released as it is. No Fisher or Renyi reading, no bound."""
    return Noise(lambda key, vector: vector, precision=None)


def von_mises_fisher(
    concentration: Any, size: int | dict[str, int], *, unit: bool = True
) -> Noise:
    """One draw in place of each contribution: density ~ exp(kappa <contribution, y>).

    For a unit contribution it is the von Mises-Fisher law around it; for a shorter one
    that of a smaller concentration; for a zero one it is uniform, so that a record
    without a gradient costs the same. Antipodes of length one are the worst neighbours
    (docs/vmf.md). Modules with draws of their own are independent, and their costs add.

    Args:
      concentration: kappa >= 0; may be traced.
      size: K of the whole contribution; or of each top-level module of the parameters,
        all of them of norm 1 at most and drawn apart.
      unit: whether contributions have norm 1 (or 0). Otherwise the information is
        bounded by its value at 0, kappa^2 / K, and there is no hockey-stick curve.
    """
    sizes = size if isinstance(size, dict) else {"": size}

    def leaks(k: int) -> Any:
        return vmf_privacy.precision(k, concentration) if unit else concentration**2 / k

    def sample(key: jax.Array, tree: Any) -> Any:
        if not isinstance(size, dict):
            return _draw(key, concentration, tree)
        return {k: _draw(stream(key, k), concentration, tree[k]) for k in sorted(size)}

    def curve(orders: Any, sensitivity: Any) -> Any:
        move = min(float(sensitivity), 2.0)  # no block moves further
        kappa = float(concentration)
        return sum(vmf_privacy.renyi(orders, k, kappa, move) for k in sizes.values())

    def loss(releases: int, share: float) -> Any:
        draws = [(k, float(concentration)) for k in sizes.values()]
        return vmf_privacy.composed(draws, releases, share)

    def log_density(mean: Any, drawn: Any) -> Any:
        return concentration * (ravel_pytree(mean)[0] @ ravel_pytree(drawn)[0])

    each = {name: leaks(k) for name, k in sizes.items()}
    return Noise(
        sample,
        precision=each if isinstance(size, dict) else each[""],
        rdp=curve,
        at="example",
        log_density=log_density if unit else None,
        pld=loss if unit else None,
    )


def batch_direction(concentration: Any, size: int) -> Noise:
    """One draw for a whole batch, around the direction of its sum.

    One record may turn that direction to its antipode, so it costs what a draw of its
    own would. The draw is scaled by how many take part, which is public: replace-one.

    Args:
      concentration: kappa >= 0; may be traced.
      size: K.
    """
    one = von_mises_fisher(concentration, size)

    def sample(key: jax.Array, vector: Any) -> Any:
        return one.sample(key, clip_tree(normalise(), vector))

    def total(key: jax.Array, vector: Any, many: Any) -> Any:
        return jax.tree.map(lambda a: many * a, sample(key, vector))

    def log_density(vector: Any, drawn: Any) -> Any:
        assert one.log_density is not None
        return one.log_density(clip_tree(normalise(), vector), drawn)

    return one._replace(sample=sample, at="sum", total=total, log_density=log_density)


def mean_field(concentration: Any, size: int) -> Noise:
    """The sum of many draws, as one Gaussian of the same mean and total variance.

    A sum_i mu_i + N(0, L (1 - A^2) / K I). An approximation, for utility alone: it has
    no precision and no curve, so that nothing can be claimed from it.

    Args:
      concentration: kappa >= 0; may be traced.
      size: K.
    """

    def total(key: jax.Array, vector: Any, many: Any) -> Any:
        a = vmf.mean_cosine(size, concentration)
        stddev = jnp.sqrt(many * (1 - a * a) / size)
        return gaussian(stddev).sample(key, jax.tree.map(lambda u: a * u, vector))

    return Noise(lambda key, vector: total(key, vector, 1), None, total=total)


def _draw(key: jax.Array, concentration: Any, block: Any) -> Any:
    """Draw around a pytree of norm 1 at most."""
    flat, unravel = ravel_pytree(block)
    norm = jnp.sqrt(flat @ flat)
    anywhere = jnp.zeros_like(flat).at[0].set(1)
    mean = jnp.where(norm > 0, flat / jnp.where(norm > 0, norm, 1), anywhere)
    return unravel(vmf.sample(key, mean, concentration * norm))
