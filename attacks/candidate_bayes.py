"""Candidate Bayes: the mean of the pool's images, weighed by what every step says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import transcripts
from audit.types import (
    Attack,
    Count,
    Knowledge,
    Observation,
    StepLaw,
    Task,
    ThreatModel,
)


def candidate_bayes(task: Task, *, candidates: Count = 2000) -> Attack:
    """Weigh the pool's images by their exact likelihood, and guess their mean.

    Step t shows r_t = f_t(x) + noise of variance s^2. Image i of the target's class
    has the likelihood exp(sum_t (<r_t, f_t(i)> - |f_t(i)|^2 / 2) / s^2): no part of the
    defense is linearised. It is the attacker of the bound `finite_prior`, for whom the
    target is one of the pool; where the target is not, a prior that fills the space
    between its images is stronger (`transcript_bayes`).

    Args:
      task: what was learnt; gives the image shape and the classes.
      candidates: images of the pool that are weighed, per class, at most; copies come
        after all originals.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"transcript"}),
        knows=frozenset({"fixed", "label", "mechanism"}),
        assumes=frozenset({"full_batch", "gaussian"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[tuple[StepLaw, Any, Any], dict]:
        del key
        law, pool = knowledge.mechanism, knowledge.pool
        assert law is not None, "granted: declared above"
        labels = np.asarray(pool.y)
        rows = [np.flatnonzero(labels == c)[:candidates] for c in range(task.classes)]
        counts = [len(r) for r in rows]
        spare = np.stack([np.arange(max(counts)) >= count for count in counts])
        padded = np.stack([np.resize(r, max(counts)) for r in rows])
        images = jnp.asarray(np.asarray(pool.x)[padded])
        return (law, images, jnp.asarray(spare)), {"candidates": counts}

    def guess(fitted: tuple, key: Array, observation: Observation) -> Array:
        del key
        law, images, spare = fitted
        label, steps = observation.label, observation.steps
        assert steps is not None, "granted: declared above"

        def log_likelihood(total: Array, step: tuple) -> tuple[Array, None]:
            params, side, rest = step
            shown = ravel_pytree(rest)[0]

            def one(x: Array) -> Array:
                f = transcripts.contribution(law, params, side, label)(x)
                return shown @ f - f @ f / 2

            each = jax.lax.map(one, images[label], batch_size=64)
            return total + each / law.stddev**2, None

        each = steps.params, law.sides(steps.params), steps.rest
        nothing = jnp.zeros(images.shape[1])
        total = jax.lax.scan(log_likelihood, nothing, each)[0]
        weight = jax.nn.softmax(jnp.where(spare[label], -jnp.inf, total))
        return jnp.tensordot(weight, images[label], 1)

    return Attack(threat_model, fit, guess)
