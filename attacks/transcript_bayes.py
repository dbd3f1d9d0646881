"""Transcript Bayes: the posterior mean of the image given every noised step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import kernel_prior, stream
from audit.mechanisms.kernel_prior import KernelPrior
from audit.types import (
    Attack,
    Count,
    Examples,
    Knowledge,
    Observation,
    Share,
    StepLaw,
    Steps,
    Task,
    ThreatModel,
)

# Information of a run over that of steps which all start at the initialisation; the
# weights of the blend are chosen at each of them.
SCALES = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0)
TRIED = 400  # held-out images per class on which they are chosen, at most


class Fitted(NamedTuple):
    """What the attacker holds of all classes before the release."""

    law: StepLaw
    prior: KernelPrior  # [C, ...]
    scale: Any  # [C] Tr F of steps that all start at the initialisation
    weights: Any  # [C, scales, W] of the kernels' widths


def transcript_bayes(
    task: Task,
    *,
    components: Count = 100,
    passes: Count = 2,
    held_out: Share = 0.1,
) -> Attack:
    """Linearise what a record adds to each step, then take the posterior mean.

    Step t shows r_t = f_t(x) + noise, f_t the record's clipped contribution with all
    the defense adds to it: its mask, its offset and its clip are part of f_t. Around a
    guess, f_t is linear with Jacobian J_t, so that F = sum J_t' J_t / s^2 and
    u = sum J_t' (r_t - f_t(guess) + J_t (guess - mean)) / s^2 are all that the steps
    say of the image. The prior is that of `matched_filter`: kernels around the pool's
    images. After `passes` Gaussian posterior means, each of which is the next guess,
    the kernels are weighed once. No shadow model is trained.

    Six widths of the kernels are blended. The weights are chosen on held-out images of
    the pool with simulated noise, at several amounts of information; no scored target
    is among them.

    Args:
      task: what was learnt; gives the image shape and the classes.
      components: principal directions per class, at most.
      passes: linearisations before the last one.
      held_out: share of the pool's source images that choose the weights.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"transcript"}),
        knows=frozenset({"fixed", "init", "label", "mechanism"}),
        assumes=frozenset({"full_batch", "gaussian"}),
    )

    def evidence(
        law: StepLaw, steps: Steps, prior: KernelPrior, label: Any, x: Array
    ) -> tuple[Array, Array]:
        """Return F [K, K] and u [K] of one run, linearised at the image x [d]."""

        def one(params: Any, side: Any, rest: Any) -> tuple[Array, Array]:
            def contribution(x: Array) -> Array:
                example = Examples(x.reshape(task.features), label)
                return ravel_pytree(law.contribution(params, side, example))[0]

            here, push = jax.linearize(contribution, x)
            slopes = jax.vmap(push)(prior.basis)  # [K, D]
            gap = ravel_pytree(rest)[0] - here + push(x - prior.mean)
            return slopes @ slopes.T, slopes @ gap

        each = jax.vmap(one)(steps.params, law.sides(steps.params), steps.rest)
        return jax.tree.map(lambda a: a.sum(0) / law.stddev**2, each)

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        law, pool = knowledge.mechanism, knowledge.pool
        assert law is not None, "granted: declared above"
        priors, left_out = kernel_prior.of_pool(
            stream(key, "held"), knowledge, held_out, components
        )
        start = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (law.steps, *np.shape(a))), knowledge.init
        )
        steps = Steps(start, start, start)  # what they show is simulated instead
        chosen: list[Any] = []
        info: dict[str, Any] = {}
        for label in range(task.classes):
            prior = jax.tree.map(lambda a, i=label: jnp.asarray(a[i]), priors)
            information, _ = jax.jit(evidence)(law, steps, prior, label, prior.mean)
            others = np.asarray(pool.x)[left_out & (np.asarray(pool.y) == label)]
            others = others[:TRIED].reshape(-1, len(prior.mean))
            noise_key = stream(key, f"noise {label}")
            weights = _choose(noise_key, prior, information, others)
            chosen.append((prior, jnp.trace(information), weights))
            info |= {f"weights_{label}": weights.tolist()}
        return Fitted(law, *jax.tree.map(lambda *a: jnp.stack(a), *chosen)), info

    def of_class(fitted: Fitted, label: Any, steps: Steps) -> Array:
        """Return the guess [d] at a run whose unknown record is of this class."""
        law, prior, scale, weights = fitted
        x = prior.mean
        for _ in range(passes):
            information, score = evidence(law, steps, prior, label, x)
            s = kernel_prior.gaussian_mean(prior, information, score)
            x = jnp.clip(prior.mean + s @ prior.basis, *task.domain)
        information, score = evidence(law, steps, prior, label, x)
        amount = jnp.trace(information) / scale
        level = jnp.abs(jnp.log(amount) - jnp.log(jnp.array(SCALES))).argmin()
        means = kernel_prior.posterior_means(prior, information, score)
        return kernel_prior.image(prior, weights[level], means)

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        label, steps = observation.label, observation.steps
        assert steps is not None, "granted: declared above"
        law, *learnt = fitted
        mine = Fitted(law, *jax.tree.map(lambda a: a[label], learnt))
        image = of_class(mine, label, steps)
        return jnp.clip(image, *task.domain).reshape(task.features)

    return Attack(threat_model, fit, guess)


_posterior_means = jax.jit(jax.vmap(kernel_prior.posterior_means, (None, None, 0)))


def _choose(
    key: Array, prior: KernelPrior, information: Array, others: np.ndarray
) -> Array:
    """Return the weights of the kernels' widths at each of `SCALES` [scales, W].

    Scores of held-out images [m, d] are drawn as steps would show them.
    """
    values, vectors = jnp.linalg.eigh(information)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))
    s = (others - prior.mean) @ prior.basis.T
    noise = jax.random.normal(key, s.shape) @ root.T
    chosen = []
    for scale in SCALES:
        scores = scale * s @ information + jnp.sqrt(scale) * noise
        means = _posterior_means(prior, scale * information, scores)
        chosen.append(kernel_prior.blend(prior, means, others)[0])
    return jnp.asarray(np.stack(chosen))
