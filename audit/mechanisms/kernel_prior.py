"""A prior of images for attackers: kernels around the pool's images, class by class.

Images of a class are m + V s, with mean m, principal directions V and variances L of s.
The prior of s is a mixture of kernels N(sqrt(1 - c) s_k, c L), one around each image of
the pool. It has the pool's mean and covariance for every width c in (0, 1]: c = 1 is a
single Gaussian, and c -> 0 are the pool's images themselves.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import optimize

from audit.data.pool import class_rows, hold_out
from audit.models.side_by_side import side_by_side
from audit.types import Knowledge

WIDTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # of kernels, whose guesses are blended


class KernelPrior(NamedTuple):
    """The prior of one class; a leading axis C where classes are stacked."""

    mean: Any  # [d] m, of originals
    blur: Any  # [d] what the mean of all images, copies included, has more than m
    basis: Any  # [K, d] rows of V', orthonormal; 0 where a class has fewer
    variances: Any  # [K] L, largest first; 1 where a class has fewer
    kernels: Any  # [M, K] s_k
    log_weight: Any  # [M] 0; minus infinity where a class has fewer images


def of_pool(
    knowledge: Knowledge, held_out: float, components: int | tuple[int, ...]
) -> tuple[KernelPrior, np.ndarray]:
    """Return the prior of every class, stacked, and which pool rows it is not made of.

    The same images are held out whatever the defense, so that every defense meets the
    same prior, which is made once, and programs of one shape are compiled once.

    Args:
      knowledge: gives the pool. Targets are originals, and the mean of augmented
        copies is blurred: the prior is that of all images, moved to the originals'.
      held_out: share of the images, all copies of one together.
      components: K at most, of each class, or one number for all of them; fewer where
        there are fewer images or directions.
    """
    pool = _SameArrays(*knowledge.pool, knowledge.pool_source)
    return _of_arrays(pool, knowledge.task.classes, held_out, components)


class _SameArrays:
    """Arrays as the key of a cache: the same objects are equal, others are not."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameArrays) and self._ids() == other._ids()

    def __hash__(self) -> int:
        return hash(self._ids())

    def _ids(self) -> tuple[int, ...]:
        return tuple(map(id, self.arrays))


@functools.lru_cache(maxsize=2)
def _of_arrays(
    pool: _SameArrays, classes: int, held_out: float, components: int | tuple[int, ...]
) -> tuple[KernelPrior, np.ndarray]:
    images, labels, sources = pool.arrays
    source, y = np.asarray(sources), np.asarray(labels)
    left_out = hold_out(source, held_out)
    original = source == np.arange(len(source))
    x = np.asarray(images, np.float32).reshape(len(y), -1)
    rows = class_rows(y, classes, source, ~left_out)
    most = np.broadcast_to(components, classes)
    each = side_by_side(lambda at, k: _fit(x[at], original[at], k), rows, most)
    m = max(len(prior.log_weight) for prior in each)
    k = max(1, *(len(prior.variances) for prior in each))  # equal images have none

    def padded(prior: KernelPrior) -> KernelPrior:
        fewer, less = m - len(prior.log_weight), k - len(prior.variances)
        return KernelPrior(
            prior.mean,
            prior.blur,
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
    blur = x.mean(0) - mean
    moved = x - mean - blur
    values, vectors = np.linalg.eigh(moved.T.astype(np.float64) @ moved / len(x))
    values, vectors = values[::-1], vectors[:, ::-1]
    count = min(components, int((values > 1e-6 * values[0]).sum()), len(x) - 1)
    basis = vectors[:, :count].T.astype(np.float32)
    kernels, equal = moved @ basis.T, np.zeros(len(x))
    return KernelPrior(mean, blur, basis, values[:count], kernels, equal)


class Reading(NamedTuple):
    """How a score F s + N(0, F) noise speaks of s, in numbers t that it tells apart.

    With L^(1/2) F L^(1/2) = Q diag(D) Q' and s = L^(1/2) Q t, the numbers t have the
    prior N(0, 1) each, and (L^(1/2) Q)' score = D t + N(0, D) noise, for each alone.
    """

    values: Any  # [K] D
    basis: Any  # [K, K] s = basis @ t
    kernels: Any  # [M, K] the t of each image of the pool


def reading(prior: KernelPrior, information: Any) -> Reading:
    """Return how scores with this information F [K, K] are read, of one class."""
    root = jnp.sqrt(prior.variances)
    values, vectors = jnp.linalg.eigh(root[:, None] * information * root)
    return of_axes(prior, jnp.maximum(values, 0), root[:, None] * vectors)


def of_axes(prior: KernelPrior, values: Any, basis: Any) -> Reading:
    """Return the reading with D [K] and this basis [K, K], of one class."""
    return Reading(values, basis, prior.kernels / prior.variances @ basis)


def posterior_means(prior: KernelPrior, read: Reading, score: Any) -> Array:
    """Return E[s | score] at each of `WIDTHS` [W, K], for one class and score [K].

    A kernel of width c around t_k explains the score v of t by N(r D t_k, D + c D^2),
    r = sqrt(1 - c). At the mean m of r t_k, weighed so, E[t | v] is
    m + c (v - D m) / (1 + c D).
    """
    values, v = read.values, score @ read.basis

    def at(width: Array) -> Array:
        trust = 1 / (1 + width * values)
        shrink = jnp.sqrt(1 - width)  # 0 for a single Gaussian
        fit = shrink * read.kernels @ (trust * v)
        misfit = shrink**2 / 2 * read.kernels**2 @ (trust * values)
        weight = jax.nn.softmax(fit - misfit + prior.log_weight)
        mean = shrink * (weight @ read.kernels)
        return mean + width * trust * (v - values * mean)

    return jax.vmap(at)(jnp.array(WIDTHS, v.dtype)) @ read.basis.T


def gaussian_mean(read: Reading, score: Any) -> Array:
    """Return the first of `posterior_means` [K], for which no kernel is looked at."""
    return read.basis @ (score @ read.basis / (1 + read.values))


def blend(prior: KernelPrior, means: Any, images: Any) -> tuple[np.ndarray, float]:
    """Return weights [W], none negative, with the least error of the sum; the error.

    `means` [m, W, K] are W posterior means each of images [m, d] that the prior was not
    made of, copies included and moved like the prior. Weights that add up to less than
    one shrink the guess towards the mean image. A class without such images gets the
    first guess, and no error.
    """
    if not len(images):
        return np.eye(means.shape[1], dtype=np.float32)[0], float("nan")
    truth = np.asarray(images, float) - np.asarray(prior.mean + prior.blur)
    s, means = truth @ np.asarray(prior.basis, float).T, np.asarray(means, float)
    # what lies outside V is no matter, and a root of the products replaces the rows
    columns = np.vstack(
        [means.transpose(1, 0, 2).reshape(means.shape[1], -1), s.ravel()]
    )
    values, vectors = np.linalg.eigh(columns @ columns.T)
    rows = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    weights, left = optimize.nnls(rows[:, :-1], rows[:, -1])
    outside = (truth**2).sum() - (s**2).sum()  # V is orthonormal
    return weights.astype(np.float32), float((outside + left**2) / truth.size)


def image(prior: KernelPrior, weights: Any, means: Any) -> Array:
    """Return the guess [d] of blended posterior means [W, K]."""
    return prior.mean + weights @ means @ prior.basis
