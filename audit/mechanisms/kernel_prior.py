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
from scipy import optimize

from audit.data.pool import hold_out
from audit.types import Knowledge

WIDTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # of kernels, whose guesses are blended


class KernelPrior(NamedTuple):
    """The prior of one class; a leading axis C where classes are stacked."""

    mean: Any  # [d] m
    basis: Any  # [K, d] rows of V', orthonormal; 0 where a class has fewer
    variances: Any  # [K] L, largest first; 1 where a class has fewer
    kernels: Any  # [M, K] s_k
    log_weight: Any  # [M] 0; minus infinity where a class has fewer images


def of_pool(
    key: Array, knowledge: Knowledge, held_out: float, components: int
) -> tuple[KernelPrior, np.ndarray]:
    """Return the prior of every class, stacked, and which pool rows it is not made of.

    Args:
      key: of which images are held out.
      knowledge: gives the pool; the mean is that of its originals, for that of
        augmented copies is blurred.
      held_out: share of the images, all copies of one together.
      components: K at most; fewer where there are fewer images or directions.
    """
    pool, source = knowledge.pool, np.asarray(knowledge.pool_source)
    left_out = hold_out(key, source, held_out)
    original = source == np.arange(len(source))
    x, y = np.asarray(pool.x, np.float32).reshape(len(pool.y), -1), np.asarray(pool.y)
    rows = [(y == label) & ~left_out for label in range(knowledge.task.classes)]
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

    stacked = jax.tree.map(lambda *a: np.stack(a), *[padded(prior) for prior in each])
    return jax.tree.map(np.float32, stacked), left_out


def _fit(x: np.ndarray, original: np.ndarray, components: int) -> KernelPrior:
    """Return the prior of images [M, d] of one class."""
    mean = x[original].mean(0)
    moved = x - mean
    values, vectors = np.linalg.eigh(moved.T.astype(np.float64) @ moved / len(x))
    values, vectors = values[::-1], vectors[:, ::-1]
    count = min(components, int((values > 1e-6 * values[0]).sum()), len(x) - 1)
    basis = vectors[:, :count].T.astype(np.float32)
    return KernelPrior(mean, basis, values[:count], moved @ basis.T, np.zeros(len(x)))


def posterior_means(prior: KernelPrior, information: Any, score: Any) -> Array:
    """Return E[s | score] of one class at each of `WIDTHS` [W, K].

    Here score = F s + N(0, F) noise. With A = F + L^-1 / c and Q = F - F A^-1 F the
    posterior weight of kernel mu_k is exp(mu_k . (score - F A^-1 score) - mu_k' Q mu_k
    / 2). At the weighted mean mu of the kernels, the posterior mean is
    mu + A^-1 (score - F mu).

    Args:
      prior: of the class.
      information: [K, K] F, symmetric.
      score: [K].
    """

    def at(width: Array) -> Array:
        precision = 1 / (prior.variances * width)
        factor = cho_factor(information + jnp.diag(precision))
        # score - F A^-1 score and Q, without cancellation where little is known
        shrink = jnp.sqrt(1 - width)  # 0 for a single Gaussian
        left = shrink * precision * cho_solve(factor, score)
        spread = shrink**2 / 2 * precision[:, None] * cho_solve(factor, information)
        penalty = ((prior.kernels @ spread) * prior.kernels).sum(1)
        weight = jax.nn.softmax(prior.kernels @ left - penalty + prior.log_weight)
        mean = shrink * (weight @ prior.kernels)
        return mean + cho_solve(factor, score - information @ mean)

    # one after the other: unrolled, the widths take minutes to compile
    return jax.lax.map(at, jnp.array(WIDTHS, score.dtype))


def gaussian_mean(prior: KernelPrior, information: Any, score: Any) -> Array:
    """Return the first of `posterior_means` [K], for which no kernel is looked at."""
    return cho_solve(cho_factor(information + jnp.diag(1 / prior.variances)), score)


def blend(prior: KernelPrior, means: Any, images: Any) -> tuple[np.ndarray, float]:
    """Return weights [W] of the widths, none negative, with the least error; the error.

    `means` [m, W, K] are posterior means of images [m, d] that the prior was not made
    of. Weights that add up to less than one shrink the guess towards the mean image. A
    class without such images gets a single Gaussian, and no error.
    """
    if not len(images):
        return np.eye(len(WIDTHS), dtype=np.float32)[0], float("nan")
    truth = np.asarray(images, float) - np.asarray(prior.mean)
    s, means = truth @ np.asarray(prior.basis, float).T, np.asarray(means, float)
    flat = means.transpose(0, 2, 1).reshape(-1, len(WIDTHS))
    weights = optimize.nnls(flat, s.reshape(-1))[0]  # what lies outside V is no matter
    guess = np.einsum("w,mwk->mk", weights, means) @ np.asarray(prior.basis, float)
    return weights.astype(np.float32), float(((guess - truth) ** 2).mean())


def image(prior: KernelPrior, weights: Any, means: Any) -> Array:
    """Return the guess [d] of blended posterior means [W, K]."""
    return prior.mean + weights @ means @ prior.basis
