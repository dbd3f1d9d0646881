"""Maximum likelihood: the image that explains every noised step best, and no prior."""

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

# of a Gauss-Newton step, of which the best is taken: a saturated sigmoid misleads it
SHARES = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.0], np.float32)


def maximum_likelihood(
    task: Task, *, iterations: Count = 4, inner: Count = 20
) -> Attack:
    """Solve for the record whose contributions to all steps fit what they show.

    Step t shows r_t = f_t(x) + noise. The guess minimises sum_t |r_t - f_t(x)|^2 by
    Gauss-Newton steps from the pool's mean image, each of which solves F dx = g by
    conjugate gradients, F = sum_t J_t' J_t. A step is shortened to the share of it that
    fits best. The guess is not clipped to the domain, so that it is nearly unbiased;
    where F is nearly a multiple of the identity, its error is that of the Cramer-Rao
    bound, d / Tr F. It is a bad guess where little is known, and it tells whether the
    accounting is right (van der Vaart 1998, Theorem 5.39).

    Args:
      task: what was learnt; gives the image shape and the classes.
      iterations: Gauss-Newton steps.
      inner: conjugate gradients per step, at most.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"transcript"}),
        knows=frozenset({"fixed", "label", "mechanism"}),
        assumes=frozenset({"full_batch", "gaussian"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[tuple[StepLaw, Array], dict]:
        del key
        law, pool = knowledge.mechanism, knowledge.pool
        assert law is not None, "granted: declared above"
        original = knowledge.pool_source == jnp.arange(len(pool.y))
        belongs = original & (pool.y == jnp.arange(task.classes)[:, None])  # [C, m]
        flat = jnp.reshape(pool.x, (len(pool.y), -1))
        return (law, belongs @ flat / belongs.sum(1, keepdims=True)), {}

    def guess(
        fitted: tuple[StepLaw, Array], key: Array, observation: Observation
    ) -> Array:
        del key
        law, means = fitted
        label, steps = observation.label, observation.steps
        assert steps is not None, "granted: declared above"
        each = steps.params, law.sides(steps.params)

        def contributions(x: Array) -> Array:
            """Return what the image x [d] adds to every step [T, D]."""
            image = x.reshape(task.features)

            def one(step: tuple) -> Array:
                params, side = step
                return transcripts.contribution(law, params, side, label)(image)

            return jax.lax.map(one, each)

        rest: Any = jax.vmap(lambda r: ravel_pytree(r)[0])(steps.rest)

        def better(x: Array, _: None) -> tuple[Array, None]:
            here, push = jax.linearize(contributions, x)
            pull = jax.linear_transpose(push, x)
            move = jax.scipy.sparse.linalg.cg(
                lambda v: pull(push(v))[0], pull(rest - here)[0], maxiter=inner
            )[0]
            tried = x + SHARES[:, None] * move
            gaps = jax.lax.map(lambda x: ((rest - contributions(x)) ** 2).sum(), tried)
            return tried[gaps.argmin()], None

        x = jax.lax.scan(better, means[label], length=iterations)[0]
        return x.reshape(task.features)

    return Attack(threat_model, fit, guess)
