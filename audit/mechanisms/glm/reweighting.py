"""IRFIL: weigh records until all have the same Fisher information loss.

Hannun et al. (2021), Algorithm 1: fit, measure every record's eta, divide each weight
by its record's eta, scale the weights to mean one, repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Method = Literal["sample", "class", "hybrid"]


class Reweighted(NamedTuple):
    """Weights after the last iteration, and eta before every one and after it."""

    weight: jax.Array  # [n]
    eta_mean: jax.Array  # [iterations + 1] over records
    eta_sd: jax.Array  # [iterations + 1]


def reweigh(
    eta: Callable,
    labels: Any,
    *,
    classes: int,
    iterations: int,
    method: Method,
    least: Any,
    most: Any,
) -> Reweighted:
    """Return the weights of Algorithm 1, clamped to `least` and `most` after scaling.

    `eta` is (weight [n]) -> [n], every record's loss when fitted with the weights. They
    change `iterations` times; 0 leaves them at one. Method `sample` has one weight per
    record, `class` the mean over a record's class, `hybrid` the product of both: the
    last two are a ValueError where labels [n] are no classes (`classes` of 0).
    """
    if method != "sample" and classes == 0:
        raise ValueError(f"method={method} needs class labels; sample does not")

    def step(weight: jax.Array, _: None) -> tuple[jax.Array, tuple]:
        now = eta(weight)
        scaled = _scaled(weight / now)
        if method != "sample":
            hot = jax.nn.one_hot(labels, classes, dtype=scaled.dtype)
            means = (hot.T @ scaled) / jnp.maximum(hot.sum(0), 1)
            scaled = _scaled(means[labels] * (scaled if method == "hybrid" else 1))
        return jnp.clip(scaled, least, most), (now.mean(), now.std())

    start = jnp.ones(len(labels), jnp.result_type(float))
    weight, etas = jax.lax.scan(step, start, length=iterations)
    last = eta(weight)
    mean, sd = etas
    return Reweighted(weight, jnp.append(mean, last.mean()), jnp.append(sd, last.std()))


def _scaled(weight: jax.Array) -> jax.Array:
    return weight / weight.mean()
