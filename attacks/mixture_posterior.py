"""Mixture posterior: the posterior mean under the published prior, every step shown."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve

from audit.mechanisms import class_rows, transcripts
from audit.types import (
    Attack,
    Count,
    Knowledge,
    Mixture,
    Observation,
    StepLaw,
    Task,
    ThreatModel,
)

RIDGE = 1e-4  # of the mean variance, added where the prior is estimated
ROUNDED = 1e-6  # of a trace: more than float32 rounds the eigenvalues by


class Fitted(NamedTuple):
    """What the attacker holds before the release."""

    law: StepLaw
    log_weights: Any  # [C, K]
    away: Any  # [C, K, d] means from the class mean, over the prior's spread
    centre: Any  # [C, d] class means
    root: Any  # [C, d, d] L, the covariance is L L'


def mixture_posterior(task: Task, *, passes: Count = 4) -> Attack:
    """Linearise what a record adds to each step, and take the mixture's posterior mean.

    With F the Fisher information at a guess and u = J' (rest + J guess) / s^2, every
    component N(m, Sigma) of the prior becomes N(m + A^-1 (u - F m), A^-1) with A = F +
    Sigma^-1, at log odds m . Sigma^-1 A^-1 u - m . Sigma^-1 A^-1 F m / 2; the mean over
    components is the next guess. Where the data publish no prior, it is one Gaussian
    per class with the pool's mean and covariance.

    Args:
      task: what was learnt; gives the shape of a record and the classes.
      passes: linearisations; the first is at the mean record of the class.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"transcript"}),
        knows=frozenset({"fixed", "init", "label", "mechanism", "prior"}),
        assumes=frozenset({"full_batch", "gaussian"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        del key
        law, prior = knowledge.mechanism, knowledge.prior
        assert law is not None, "granted: declared above"
        if prior is None:
            prior = _of_pool(knowledge)
        info = {"components": int(prior.weights.shape[1])}
        return Fitted(law, *map(jnp.float32, _whitened(prior))), info

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        label, steps = observation.label, observation.steps
        assert steps is not None, "granted: declared above"
        law, *learnt = fitted
        log_weights, kernels, centre, root = (a[label] for a in learnt)
        s, one = jnp.exp(log_weights) @ kernels, jnp.eye(len(centre))
        for _ in range(passes):
            x = centre + root @ s
            # L' F L and L' (u - F x), Sigma = L L'
            information, score = transcripts.evidence(
                law, steps, label, x.reshape(task.features), root.T
            )
            away = kernels - s  # all is in units of the prior's spread around x
            # one solve at a time: two of them can stop XLA on two cores for ever
            precision = jnp.maximum(1, ROUNDED * jnp.trace(information))
            inverse = cho_solve(cho_factor(precision * one + information), one)
            left, spread = inverse @ score, inverse @ information
            odds = away @ left - ((away @ spread) * away).sum(1) / 2 + log_weights
            mean = jax.nn.softmax(odds) @ away
            s = s + mean + inverse @ (score - information @ mean)
        x = centre + root @ s
        return jnp.clip(x, *task.domain).reshape(task.features)

    return Attack(threat_model, fit, guess)


def _whitened(prior: Mixture) -> tuple[np.ndarray, ...]:
    """Return log weights, means from the class mean over L, class means and L."""
    weights, means, covariances = (np.asarray(a, float) for a in prior)
    root, centre = np.linalg.cholesky(covariances), (weights[..., None] * means).sum(1)
    away = np.linalg.inv(root) @ (means - centre[:, None]).swapaxes(1, 2)
    return np.log(weights), away.swapaxes(1, 2), centre, root


def _of_pool(knowledge: Knowledge) -> Mixture:
    """Return one Gaussian per class, of the mean and the covariance of the pool."""
    x, y = (np.asarray(a) for a in knowledge.pool)
    x = x.reshape(len(y), -1).astype(np.float64)
    rows = class_rows(y, knowledge.task.classes, knowledge.pool_source)
    classes = [x[learnt] for learnt in rows]
    spreads = [np.atleast_2d(np.cov(each, rowvar=False)) for each in classes]
    ridge = (
        RIDGE * np.mean([np.trace(c) / len(c) for c in spreads]) * np.eye(x.shape[1])
    )
    return Mixture(
        np.ones((len(classes), 1)),
        np.stack([each.mean(0)[None] for each in classes]),
        np.stack([c + ridge for c in spreads]),
    )
