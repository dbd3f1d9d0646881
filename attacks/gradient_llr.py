"""The optimal informed attacker: the likelihood ratio of the whole transcript."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def gradient_llr(task: Task) -> Attack:
    """Score a record by log p(transcript | in) - log p(transcript | out).

    By the lemma of Neyman and Pearson no test has more true positives at the same rate
    of false ones. With r_t the noised sum less what the known records contribute, and
    f_t the candidate's contribution, the ratio is

        sum_t (<r_t, f_t> - ||f_t||^2 / 2) / s^2.

    Under full batches with noise N(0, s^2 I) it is a Gaussian test of
    mu^2 = sum_t ||f_t||^2 / s^2. The game hands out the ratio instead of the
    transcript.

    Args:
      task: unused.
    """
    del task
    threat_model = ThreatModel(
        "membership",
        sees=frozenset({"transcript"}),
        knows=frozenset({"fixed", "init", "canaries"}),
        assumes=frozenset({"full_batch", "gaussian"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key, knowledge
        return jnp.zeros(()), {}

    def guess(state: Array, key: Array, observation: Observation) -> Array:
        del state, key
        return observation.ratios

    return Attack(threat_model, fit, guess)
