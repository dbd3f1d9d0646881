"""Transcript Bayes: the posterior mean of the image given every noised step."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.mechanisms import denoiser, kernel_prior, once, stream, transcripts
from audit.mechanisms.denoiser import Denoiser
from audit.mechanisms.kernel_prior import KernelPrior, Reading
from audit.types import (
    Attack,
    Count,
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
SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)
CAUTION = 4  # power of the explained share of a direction's variance; see `_certain`
TRIED = 400  # held-out images per class on which they are chosen, at most


class Fitted(NamedTuple):
    """What the attacker holds of all classes before the release."""

    law: StepLaw
    prior: KernelPrior  # [C, ...]
    denoiser: Denoiser  # [C, ...] the amount 1: steps that all start at the beginning
    weights: Any  # [C, scales, W + 1] of the blended guesses


def transcript_bayes(
    task: Task,
    *,
    components: Count = 120,
    held_out: Share = 0.1,
    width: Count = 512,
    denoiser_steps: Count = 4000,
) -> Attack:
    """Linearise what a record adds to each step, then take the posterior mean.

    Step t shows r_t = f_t(x) + noise, f_t the record's clipped contribution with all
    the defense adds to it: its mask, its offset and its clip are part of f_t. Around an
    image z, f_t is linear with Jacobian J_t, so that F = sum J_t' J_t / s^2 and
    u = sum J_t' (r_t - f_t(z) + J_t (z - mean)) / s^2 are all that the steps say of the
    image. z is the class mean for a first guess, and for the last the part of that
    guess which is certain: a guess has the noise of the steps in it, which would
    distort the Jacobian. The prior is that of `matched_filter`: kernels around the
    pool's images. No shadow model is trained.

    Six widths of the kernels and a network are blended. The weights are chosen on
    held-out images of the pool with simulated noise, at several amounts of information;
    no scored target is among them.

    Args:
      task: what was learnt; gives the image shape and the classes.
      components: principal directions per class, at most.
      held_out: share of the pool's source images that choose the weights.
      width: of the denoiser's hidden layers.
      denoiser_steps: of Adam, per class and together.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"transcript"}),
        knows=frozenset({"fixed", "init", "label", "mechanism"}),
        assumes=frozenset({"full_batch", "gaussian"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        law, pool = knowledge.mechanism, knowledge.pool
        assert law is not None, "granted: declared above"
        priors, left_out = kernel_prior.of_pool(knowledge, held_out, components)
        start = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (law.steps, *np.shape(a))), knowledge.init
        )
        nothing = Steps(start, start, start)  # what they show is simulated instead
        priors = jax.tree.map(jnp.asarray, priors)

        labels = jnp.arange(task.classes)
        information = _at_means(law, nothing, priors, labels, task.features)
        network = denoiser.fit(
            stream(key, "denoiser"),
            priors,
            information,
            (SCALES[0], SCALES[-1]),
            width=width,
            steps=denoiser_steps,
        )
        weights, info = [], dict[str, Any]()
        # in NumPy, where to take one class's part compiles nothing
        learnt = jax.tree.map(np.asarray, (network, priors, information))
        for label in range(task.classes):
            others = np.asarray(pool.x)[left_out & (np.asarray(pool.y) == label)]
            mine = jax.tree.map(lambda a, i=label: a[i], learnt)
            noise_key = stream(key, f"noise {label}")
            flat = others[:TRIED].reshape(-1, priors.mean.shape[1])
            weights.append(_choose(noise_key, mine, flat))
            info |= {f"weights_{label}": weights[-1].tolist()}
        return Fitted(law, priors, network, jnp.asarray(np.stack(weights))), info

    def of_class(fitted: Fitted, label: Any, steps: Steps) -> Array:
        """Return the guess [d] at a run whose unknown record is of this class."""
        law, prior, network, weights = fitted

        def linearised(x: Array, _: None) -> tuple[Array, tuple]:
            image = x.reshape(task.features)
            information, score = _evidence(law, steps, prior, label, image)
            read = kernel_prior.reading(prior, information)
            s = denoiser.posterior_mean(network, read, score)
            certain = prior.mean + _certain(prior, read, s) @ prior.basis
            return jnp.clip(certain, *task.domain), (read[:2], score)

        # the last image is not used: one program more would be compiled without it
        every = jax.lax.scan(linearised, prior.mean, length=2)[1]
        told, score = jax.tree.map(lambda a: a[-1], every)
        read = kernel_prior.of_axes(prior, *told)  # to factor F again costs more
        amount = read.values.sum() / network.unit
        level = jnp.abs(jnp.log(amount) - jnp.log(jnp.array(SCALES))).argmin()
        means = denoiser.guesses(network, prior, read, score)
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


def _evidence(
    law: StepLaw, steps: Steps, prior: KernelPrior, label: Any, image: Array
) -> tuple[Array, Array]:
    """Return F [K, K] and u [K] of one run, linearised at an image of its shape."""
    # not in the basis alone: the image is clipped to the domain
    away = image.reshape(-1) - prior.mean
    directions = jnp.vstack([prior.basis, away])
    information, score = transcripts.evidence(law, steps, label, image, directions)
    return information[:-1, :-1], score[:-1] + information[:-1, -1]


@partial(once, static_argnums=4)
def _at_means(
    law: StepLaw, steps: Steps, priors: KernelPrior, labels: Array, shape: tuple
) -> Array:
    """Return F [C, K, K] of a run of each class, linearised at its mean image."""

    def of_class(prior: KernelPrior, label: Array) -> Array:
        return _evidence(law, steps, prior, label, prior.mean.reshape(shape))[0]

    return jax.vmap(of_class)(priors, labels)


def _certain(prior: KernelPrior, read: Reading, s: Array) -> Array:
    """Return what of a guess s [K] the steps leave next to no doubt of.

    They explain the share D / (1 + D) of the prior variance of each number t.
    """
    t = (s / prior.variances) @ read.basis
    return read.basis @ ((read.values / (1 + read.values)) ** CAUTION * t)


@once
def _simulated(
    network: Denoiser, prior: KernelPrior, F: Array, others: Array, key: Array
) -> Array:
    """Return guesses [scales, m, W + 1, K] at scores of images [m, d], drawn anew."""
    values, vectors = jnp.linalg.eigh(F)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))
    s = (others - prior.mean - prior.blur) @ prior.basis.T
    noise = jax.random.normal(key, s.shape) @ root.T

    def at(scale: Array) -> Array:
        read = kernel_prior.reading(prior, scale * F)
        scores = scale * s @ F + jnp.sqrt(scale) * noise
        return jax.vmap(lambda u: denoiser.guesses(network, prior, read, u))(scores)

    return jax.lax.map(at, jnp.array(SCALES))


def _choose(key: Array, learnt: tuple, others: np.ndarray) -> np.ndarray:
    """Return the weights of the guesses at each of `SCALES` [scales, W + 1].

    Network, prior and information are `learnt` of one class.

    Scores of held-out images [m, d] are drawn as steps would show them.
    """
    _, prior, _ = learnt
    means = np.asarray(_simulated(*learnt, others, key))
    return np.stack([kernel_prior.blend(prior, each, others)[0] for each in means])
