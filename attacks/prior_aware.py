"""Name the target among candidates, from every noised update (Hayes et al. 2023)."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def prior_aware(
    task: Task, *, score: Literal["inner", "likelihood"] = "inner"
) -> Attack:
    """Score a candidate by how its contributions align with what the steps leave.

    With r_t the noised sum less what the known records contribute, and f_t(z) the
    candidate's contribution at the parameters of step t.

    Args:
      task: unused.
      score: `inner` is sum_t <r_t, f_t(z)>, as published. `likelihood` is
        log p(transcript | z): no attacker names more targets than who takes its
        largest. The two order candidates alike where all contributions have one norm
        and every record is in every step.
    """
    del task
    threat_model = ThreatModel(
        "identification",
        sees=frozenset({"transcript"}),
        knows=frozenset({"fixed", "init", "mechanism", "candidates"}),
        assumes=frozenset({"noisy_sgd"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Array, dict]:
        del key, knowledge
        return jnp.zeros(()), {}

    def guess(state: Array, key: Array, observation: Observation) -> Array:
        del state, key
        alignment = observation.alignment
        assert alignment is not None, "granted: declared above"
        return jnp.asarray(alignment.inner if score == "inner" else alignment.ratio)

    return Attack(threat_model, fit, guess)
