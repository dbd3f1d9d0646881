"""A prior of images for attackers: kernels around the pool's images, class by class.

Images of a class are m + V s, with mean m, principal directions V and variances L of s.
The prior of s is a mixture of kernels N(sqrt(1 - c) s_k, c L), one around each image of
the pool. It has the pool's mean and covariance for every width c in (0, 1]: c = 1 is a
single Gaussian, and c -> 0 are the pool's images themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve

from audit.types import Examples

WIDTHS = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.003)  # that attacks try


class KernelPrior(NamedTuple):
    """The prior of one class; a leading axis C where classes are stacked."""

    mean: Any  # [d] m
    basis: Any  # [K, d] rows of V', orthonormal; 0 where a class has fewer
    variances: Any  # [K] L, largest first; 1 where a class has fewer
    kernels: Any  # [M, K] s_k
    log_weight: Any  # [M] 0; minus infinity where a class has fewer images


def class_priors(
    pool: Examples, original: np.ndarray, classes: int, components: int
) -> KernelPrior:
    """Return the prior of every class, stacked.

    Args:
      pool: [m, ...] images, augmented copies included.
      original: [m] whether an image is no copy: the mean of copies is blurred.
      classes: how many.
      components: K at most; fewer where there are fewer images or directions.
    """
    x = np.asarray(pool.x, np.float32).reshape(len(pool.y), -1)
    rows = [np.asarray(pool.y) == label for label in range(classes)]
    each = [_fit(x[here], original[here], components) for here in rows]
    m, k = (max(len(getattr(e, f)) for e in each) for f in ("log_weight", "variances"))

    def padded(prior: KernelPrior) -> KernelPrior:
        fewer, less = m - len(prior.log_weight), k - len(prior.variances)
        return KernelPrior(
            prior.mean,
            np.pad(prior.basis, ((0, less), (0, 0))),
            np.pad(prior.variances, (0, less), constant_values=1.0),
            np.pad(prior.kernels, ((0, fewer), (0, less))),
            np.pad(prior.log_weight, (0, fewer), constant_values=-np.inf),
        )

    return jax.tree.map(
        lambda *a: np.stack(a).astype(np.float32), *[padded(e) for e in each]
    )


def _fit(x: np.ndarray, original: np.ndarray, components: int) -> KernelPrior:
    """Return the prior of images [M, d] of one class."""
    mean = x[original].mean(0)
    moved = x - mean
    values, vectors = np.linalg.eigh(moved.T.astype(np.float64) @ moved / len(x))
    values, vectors = values[::-1], vectors[:, ::-1]
    count = min(components, int((values > 1e-6 * values[0]).sum()), len(x) - 1)
    basis = vectors[:, :count].T.astype(np.float32)
    return KernelPrior(mean, basis, values[:count], moved @ basis.T, np.zeros(len(x)))


def posterior_mean(
    prior: KernelPrior, width: Any, information: Any, score: Any
) -> Array:
    """Return E[s | score] [K], where score = F s + N(0, F) noise.

    With A = F + L^-1 / c and Q = F - F A^-1 F the posterior weight of kernel mu_k is
    exp(mu_k . (score - F A^-1 score) - mu_k' Q mu_k / 2). At the weighted mean mu of
    the kernels, the posterior mean is mu + A^-1 (score - F mu).

    Args:
      prior: of the class.
      width: [] c.
      information: [K, K] F, symmetric.
      score: [K].
    """
    precision = 1 / (prior.variances * width)
    factor = cho_factor(information + jnp.diag(precision))
    # score - F A^-1 score and Q, without the cancellation of where little is known
    left = precision * cho_solve(factor, score)
    spread = precision[:, None] * cho_solve(factor, information)
    kernels = jnp.sqrt(1 - width) * prior.kernels
    penalty = ((kernels @ spread) * kernels).sum(1) / 2
    weight = jax.nn.softmax(kernels @ left - penalty + prior.log_weight)
    mean = weight @ kernels
    return mean + cho_solve(factor, score - information @ mean)


def gaussian_mean(prior: KernelPrior, information: Any, score: Any) -> Array:
    """Return `posterior_mean` at width 1, for which no kernel is looked at."""
    return cho_solve(cho_factor(information + jnp.diag(1 / prior.variances)), score)


def best_shrinkage(moved: Any, truth: Any) -> tuple[float, float]:
    """Return the factor in [0, 1] on guesses with the least error, and that error.

    Both are [m, d] and relative to the mean image.
    """
    moved, truth = np.asarray(moved), np.asarray(truth)
    factor = (moved * truth).sum() / max((moved**2).sum(), np.finfo(np.float32).tiny)
    factor = float(np.clip(factor, 0, 1))
    return factor, float(((factor * moved - truth) ** 2).mean())
