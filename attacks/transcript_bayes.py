"""Transcript Bayes: the posterior mean of the image given every noised step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import hold_out, kernel_prior, stream
from audit.mechanisms.kernel_prior import WIDTHS, KernelPrior
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

# Information of a run over that of steps which all start at the initialisation; width
# and shrinkage are chosen at each of them.
SCALES = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0)
TRIED = 400  # held-out images per class on which they are chosen, at most


class Fitted(NamedTuple):
    """What the attacker holds of all classes before the release."""

    law: StepLaw
    prior: KernelPrior  # [C, ...]
    scale: Any  # [C] Tr F of steps that all start at the initialisation
    widths: Any  # [C, scales]
    shrinks: Any  # [C, scales]


def transcript_bayes(
    task: Task,
    *,
    components: Count = 160,
    passes: Count = 3,
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

    The kernels' width and a shrinkage are chosen on held-out images of the pool with
    simulated noise, at several amounts of information; no scored target is among them.

    Args:
      task: what was learnt; gives the image shape and the classes.
      components: principal directions per class, at most.
      passes: linearisations before the last one.
      held_out: share of the pool's source images on which width and shrinkage are
        chosen.
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
        source = np.asarray(knowledge.pool_source)
        left_out = hold_out(stream(key, "held"), source, held_out)
        original, shown = source == np.arange(len(source)), ~left_out
        priors = kernel_prior.class_priors(
            jax.tree.map(lambda a: np.asarray(a)[shown], pool),
            original[shown],
            task.classes,
            components,
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
            others = others[:TRIED].reshape(-1, len(prior.mean)) - prior.mean
            widths, shrinks = _choose(
                stream(key, f"noise {label}"), prior, information, others
            )
            chosen.append((prior, jnp.trace(information), widths, shrinks))
            info |= {f"widths_{label}": list(map(float, widths))}
        return Fitted(law, *jax.tree.map(lambda *a: jnp.stack(a), *chosen)), info

    def of_class(fitted: Fitted, label: Any, steps: Steps) -> Array:
        """Return the guess [d] at a run whose unknown record is of this class."""
        law, prior, scale, widths, shrinks = fitted
        x = prior.mean
        for _ in range(passes):
            known = evidence(law, steps, prior, label, x)
            s = kernel_prior.gaussian_mean(prior, *known)
            x = jnp.clip(prior.mean + s @ prior.basis, *task.domain)
        information, score = evidence(law, steps, prior, label, x)
        amount = jnp.trace(information) / scale
        level = jnp.abs(jnp.log(amount) - jnp.log(jnp.array(SCALES))).argmin()
        s = kernel_prior.posterior_mean(prior, widths[level], information, score)
        return prior.mean + shrinks[level] * (s @ prior.basis)

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        labels, steps = jnp.arange(task.classes), observation.steps
        assert steps is not None, "granted: declared above"
        # of all classes: to gather one class's arrays would copy them for each run
        axes = Fitted(None, 0, 0, 0, 0)  # type: ignore[arg-type]
        each = jax.vmap(of_class, (axes, 0, None))(fitted, labels, steps)
        image = jax.nn.one_hot(observation.label, task.classes) @ each
        return jnp.clip(image, *task.domain).reshape(task.features)

    return Attack(threat_model, fit, guess)


_posterior_means = jax.jit(jax.vmap(kernel_prior.posterior_mean, (None, None, None, 0)))


def _choose(
    key: Array, prior: KernelPrior, information: Array, others: Array
) -> tuple[Array, Array]:
    """Return width and shrinkage at each of `SCALES` [scales] with the least error.

    The scores of held-out images [m, d], less the mean, are drawn as the steps would
    show them; what of an image lies outside the prior's directions stays an error.
    """
    values, vectors = jnp.linalg.eigh(information)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))
    s = others @ prior.basis.T
    noise = jax.random.normal(key, s.shape) @ root.T
    chosen = []
    for scale in SCALES:
        scores = scale * s @ information + jnp.sqrt(scale) * noise
        tried = []
        for width in WIDTHS:
            means = _posterior_means(prior, width, scale * information, scores)
            shrink, error = kernel_prior.best_shrinkage(means @ prior.basis, others)
            tried.append((error, width, shrink))
        chosen.append(min(tried)[1:])
    widths, shrinks = np.asarray(chosen, np.float32).T
    return jnp.asarray(widths), jnp.asarray(shrinks)
