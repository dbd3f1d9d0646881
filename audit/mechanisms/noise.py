"""Noises: what is added to a sum, or drawn in place of each contribution to it.

A noise owns its precision: the Fisher information about the noised vector, per unit of
squared motion of that vector. Nothing else in the suite squares a standard deviation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from audit.accounting import rdp, vmf, vmf_privacy
from audit.clipping import by_row, clip_rows, clip_tree, normalise, rows
from audit.rng import add_normal, stream
from audit.types import Noise, NoiseLaw, Span


def gaussian(stddev: Any) -> Noise:
    """Isotropic Gaussian noise, v + N(0, stddev^2 I); `stddev` may be traced."""

    def sample(key: jax.Array, vector: Any, many: Any = 1) -> Any:
        del many
        return add_normal(key, vector, stddev)

    def curve(orders: Any, sensitivity: Any) -> Any:
        return rdp.gaussian(orders, sensitivity / stddev)

    def log_density(vector: Any, drawn: Any) -> Any:
        gap = ravel_pytree(drawn)[0] - ravel_pytree(vector)[0]
        return -(gap @ gap) / (2 * stddev**2)

    law = NoiseLaw(log_density, variance=stddev**2)
    return Noise(sample, 1 / stddev**2, stddev, curve, law=law)


def none() -> Noise:
    """No noise: the sum is released as it is. No Fisher or Renyi reading, no bound."""
    return Noise(lambda key, vector, many=1: vector, precision=None)


def von_mises_fisher(
    concentration: Any, size: int | dict[str, int], *, unit: bool = True
) -> Noise:
    """One draw in place of each contribution: density ~ exp(kappa <contribution, y>).

    Around a unit contribution the draw has the von Mises-Fisher law; around a shorter
    one the law of a smaller concentration; around zero it is uniform, so that a record
    without a gradient costs the same. Opposite unit vectors are the worst neighbours
    (docs/vmf.md). Draws for separate modules are independent, and their costs add.

    Args:
      concentration: kappa >= 0; may be traced.
      size: K of the whole contribution; or {module: K} where each top-level module of
        the parameters has norm at most 1 and its own draw.
      unit: whether every contribution has norm 1 (or 0). Otherwise the information is
        bounded by its value at 0, kappa^2 / K, and there is no hockey-stick curve.
    """
    sizes = size if isinstance(size, dict) else {"": size}
    counts = Counter(sizes.values())  # K -> draws

    def information(k: int) -> Any:
        return vmf_privacy.precision(k, concentration) if unit else concentration**2 / k

    def sample(key: jax.Array, tree: Any, many: Any = 1) -> Any:
        del many
        if not isinstance(size, dict):
            return _draw(key, concentration, tree)
        return {k: _draw(stream(key, k), concentration, tree[k]) for k in sorted(size)}

    def together(key: jax.Array, weight: Any, span: Span, like: Any) -> Any:
        return vmf.sample_sum(key, concentration, weight, *span, like)

    def curve(orders: Any, sensitivity: Any) -> Any:
        move = min(float(sensitivity), 2.0)  # no module moves further
        kappa = float(concentration)
        each = lambda k: vmf_privacy.renyi(orders, k, kappa, move)
        return sum(count * each(k) for k, count in counts.items())

    def loss(releases: int, share: float) -> Any:
        draws = [(k, float(concentration)) for k in sizes.values()]
        return vmf_privacy.composed(draws, releases, share)

    def log_density(mean: Any, drawn: Any) -> Any:
        return concentration * (ravel_pytree(mean)[0] @ ravel_pytree(drawn)[0])

    of_size = {k: information(k) for k in counts}
    precision = {name: of_size[k] for name, k in sizes.items()}
    law = NoiseLaw(log_density, loss) if unit else NoiseLaw()
    if not isinstance(size, dict):
        law = law._replace(sample_sum=together)
        if unit:
            square = vmf.mean_cosine(size, concentration) ** 2
            law = law._replace(variance=(1 - square) / size)
    return Noise(
        sample,
        precision=precision if isinstance(size, dict) else precision[""],
        rdp=curve,
        at="example",
        law=law,
    )


def batch_direction(concentration: Any, size: int) -> Noise:
    """One draw for a whole batch, around the direction of its sum.

    One record may turn that direction to its opposite, so that it costs what a draw of
    its own would. The draw is multiplied by the number of records that take part, which
    is public: there is no theorem for adding or removing a record. kappa may be traced.
    """
    return _of_batch(von_mises_fisher(concentration, size), clip_tree)


def row_directions(concentration: Any, sizes: Sequence[int]) -> Noise:
    """One draw for each row of a batch's sum (`clipping.rows`), around its direction.

    One record may turn every row to its opposite, so that the costs of all rows add.
    Otherwise as `batch_direction`. `sizes` are the lengths of all rows.
    """
    every = {str(i): size for i, size in enumerate(sizes)}

    def sample(key: jax.Array, vector: Any, many: Any = 1) -> Any:
        del many

        def of_leaf(path: Any, leaf: Any) -> Any:
            leaf_key = stream(key, jax.tree_util.keystr(path))
            keys = jax.random.split(leaf_key, len(rows(leaf)))
            draw = lambda row, key: _draw(key, concentration, row)
            return by_row(draw, leaf, keys)

        return jax.tree_util.tree_map_with_path(of_leaf, vector)

    one = von_mises_fisher(concentration, every)._replace(sample=sample)
    return _of_batch(one, clip_rows)


def _of_batch(one: Noise, clip: Callable) -> Noise:
    """Return the noise around the direction, or directions, that `clip` makes of a sum.

    `clip` is (Clip, sum) -> sum of which what is drawn around has norm 1, or 0.
    """

    def sample(key: jax.Array, vector: Any, many: Any = 1) -> Any:
        drawn = one.sample(key, clip(normalise(), vector))
        return jax.tree.map(lambda a: many * a, drawn)

    def log_density(vector: Any, drawn: Any) -> Any:
        assert one.law.log_density is not None
        return one.law.log_density(clip(normalise(), vector), drawn)

    law = one.law._replace(log_density=log_density)
    return one._replace(sample=sample, at="batch", law=law)


def _draw(key: jax.Array, concentration: Any, block: Any) -> Any:
    """Draw around a pytree of norm 1 at most."""
    flat, unravel = ravel_pytree(block)
    norm = jnp.sqrt(flat @ flat)
    anywhere = jnp.zeros_like(flat).at[0].set(1)
    mean = jnp.where(norm > 0, flat / jnp.where(norm > 0, norm, 1), anywhere)
    return unravel(vmf.sample(key, mean, concentration * norm))
