"""Matched filter: the image whose mean effect on the release fits it best."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import kernel_prior, regressor, stream
from audit.mechanisms.kernel_prior import KernelPrior
from audit.types import (
    Attack,
    Count,
    Knowledge,
    NonNegative,
    Observation,
    Share,
    Task,
    ThreatModel,
    TrainingSet,
)


class Filter(NamedTuple):
    """What the attacker learns of one class; a leading axis C for all of them."""

    prior: KernelPrior
    centre: Any  # [p] the release of the mean image
    project: Any  # [K, p] B' N^-1
    information: Any  # [K, K] F = B' N^-1 B
    weights: Any  # [W] of the kernels' widths


def matched_filter(
    task: Task,
    *,
    components: Count = 160,
    repeats: Count = 6,
    held_out: Share = 0.1,
    ridge: NonNegative = 1e-3,
) -> Attack:
    """Regress releases on images, then weigh every image by how well it explains one.

    For each class of the pool: images are m + V s, with variances L of s. Releases of
    shadow models, `repeats` of them per image with fresh noise, are a + B s + e with
    the residuals' covariance N. Then F = B' N^-1 B and u = B' N^-1 (release - a) are
    all that a release says of s, up to a Gaussian law of e. The prior is a mixture of
    kernels around the pool's images (`audit.mechanisms.kernel_prior`). The guess is
    m + V E[s | release], blended over six widths of the kernels with the weights that
    have the least error on images that are held out; no scored target is among them.

    Args:
      task: what was learnt; gives the image shape and the classes.
      components: principal directions per class, at most.
      repeats: shadow models per pool image.
      held_out: share of the pool's source images that choose the weights.
      ridge: share of its residual variance that is added to each weight's.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Filter, dict]:
        assert knowledge.train is not None, "granted: declared above"
        assert knowledge.fixed is not None, "granted: declared above"
        pool = knowledge.pool
        rows = np.repeat(np.arange(len(pool.y)), repeats)
        repeated = jax.tree.map(lambda a: np.asarray(a)[rows], pool)
        shadows = knowledge.train(
            stream(key, "shadow"), TrainingSet(knowledge.fixed, repeated)
        )
        releases = regressor.matrix(shadows.params)
        # more would leave no residual, hence no noise, where the pool is small
        few = int(np.bincount(np.asarray(pool.y), minlength=task.classes).min()) // 3
        priors, left_out = kernel_prior.of_pool(
            stream(key, "held"), knowledge, held_out, max(1, min(components, few))
        )
        x = np.asarray(pool.x, np.float32).reshape(len(pool.y), -1)
        filters, info = [], {"shadows": len(rows)}
        for label in range(task.classes):
            mine = np.asarray(pool.y) == label
            one, numbers = _fit_class(
                jax.tree.map(lambda a, i=label: a[i], priors),
                x[mine],
                releases[mine[rows]].reshape(-1, repeats, releases.shape[1]),
                left_out[mine],
                ridge,
            )
            filters.append(one)
            info |= {f"{name}_{label}": value for name, value in numbers.items()}
        return jax.tree.map(lambda *a: jnp.stack(a), *filters), info

    def guess(fitted: Filter, key: Array, observation: Observation) -> Array:
        del key
        release = ravel_pytree(observation.params)[0]
        # of all classes: to gather one class's arrays would copy them for each release
        each = jax.vmap(_guess, (0, None))(fitted, release)
        image = jax.nn.one_hot(observation.label, task.classes) @ each
        return jnp.clip(image, *task.domain).reshape(task.features)

    return Attack(threat_model, fit, guess)


def _guess(fitted: Filter, release: Array) -> Array:
    """Return the guess of one class [d] at one release [p]."""
    means = _posterior_means(fitted, release)
    return kernel_prior.image(fitted.prior, fitted.weights, means)


def _posterior_means(fitted: Filter, release: Array) -> Array:
    """Return what one release says of s, at every width [W, K]."""
    score = fitted.project @ (release - fitted.centre)
    return kernel_prior.posterior_means(fitted.prior, fitted.information, score)


def _fit_class(
    prior: KernelPrior,
    x: np.ndarray,
    releases: np.ndarray,
    left_out: np.ndarray,
    ridge: float,
) -> tuple[Filter, dict]:
    """Fit one class: images [m, d], releases [m, R, p], who is held out [m]."""
    s, repeats = (x - prior.mean) @ prior.basis.T, releases.shape[1]
    flat = releases[~left_out].reshape(-1, releases.shape[2]).astype(np.float64)
    inputs = np.repeat(s[~left_out].astype(np.float64), repeats, 0)
    centre, offset = flat.mean(0), inputs.mean(0)
    slope = np.linalg.lstsq(inputs - offset, flat - centre, rcond=None)[0]
    residual = flat - centre - (inputs - offset) @ slope
    noise = residual.T @ residual / max(1, len(flat) - len(slope) - 1)
    # added to each weight's own variance: an optimizer scales noise weight by weight
    noise += np.diag(np.maximum(ridge * np.diag(noise), 1e-30))
    project = np.linalg.solve(noise, slope.T).T  # B' N^-1
    parts = centre - offset @ slope, project, project @ slope.T, 1.0
    learnt = Filter(prior, *(jnp.asarray(a, jnp.float32) for a in parts))
    others = releases[left_out].reshape(-1, releases.shape[2])
    means = jax.jit(jax.vmap(_posterior_means, (None, 0)))(learnt, others)
    weights, error = kernel_prior.blend(
        prior, means, np.repeat(x[left_out], repeats, 0)
    )
    numbers = {"held_mse": error, "weights": weights.tolist()}
    return learnt._replace(weights=jnp.asarray(weights)), numbers
