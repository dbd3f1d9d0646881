"""The efficient attack on a noised sum: subtract the known records, undo the clip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanisms import clip_tree, soft_clip
from audit.types import Attack, Knowledge, Observation, Positive, Task, ThreatModel

# Bisections of the clipped norm. 24 halvings of [0, 1.5 C] are below float32
# resolution.
HALVINGS = 24
# u / (GELU(u - 1) + 1) rises up to u = 1.5489; longer records are ambiguous.
MONOTONE_UP_TO = 1.54


def sum_inversion(task: Task, *, clip_norm: Positive = 20.0) -> Attack:
    """Guess clip^-1(release - sum of the known clipped records).

    The guess is the maximum-likelihood one under Gaussian noise. It is unbiased to
    first order in the noise and attains the Cramer-Rao bound there, so its error over
    1/dFIL is a calibration of the whole suite.

    Args:
      task: gives the image shape.
      clip_norm: the defense's; public.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed"}),
        assumes=frozenset({"sum"}),
    )
    clip = soft_clip(clip_norm)

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key
        assert knowledge.fixed is not None, "granted: declared above"
        each = jax.vmap(lambda x: clip_tree(clip, x))(jnp.asarray(knowledge.fixed.x))
        return each.sum(0), {}

    def guess(fixed_sum: Array, key: Array, observation: Observation) -> Array:
        del key
        rest = observation.params - fixed_sum
        size = jnp.sqrt((rest**2).sum())

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) / 2
            short = middle * clip.scale(middle) < size
            return jnp.where(short, middle, low), jnp.where(short, high, middle)

        ends = (jnp.zeros(()), jnp.asarray(MONOTONE_UP_TO * clip_norm))
        norm = sum(jax.lax.fori_loop(0, HALVINGS, halve, ends)) / 2
        return (rest * norm / size).reshape(task.features)

    return Attack(threat_model, fit, guess)
