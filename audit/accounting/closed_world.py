"""Exact Bayes risk where the law that records are drawn from is published.

Given a transcript, what is known of the record is its posterior, and its posterior
variance is what no attacker beats on average. A record enters a step by a function that
is nearly linear, so that the posterior of a Gaussian mixture is nearly a Gaussian
mixture. Samples of that one, weighed by the exact prior and the exact likelihood over
their density, are samples of the posterior: the linearisation can cost effective
samples, never exactness. docs/bounds/closed_world.md has the formulas.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve
from jax.scipy.special import logsumexp

from audit.accounting import gaps, transcripts
from audit.types import Bound, Examples, Mixture, StepLaw, Steps

SAMPLES = 512  # of each posterior
PASSES = 3  # linearisations before the samples are drawn
TOGETHER = 32  # posteriors that are sampled at a time, for their memory


class SampledPosterior(NamedTuple):
    """What a transcript leaves open; errors are per coordinate."""

    mean: Any  # [d]
    risk: Any  # [] its variance: the least expected squared error
    floor: Any  # [] expected squared error of the class mean
    variances: Any  # [3] under the posterior: of the mean's squared error, of that of
    # the class mean; covariance
    effective: Any  # [] samples: (sum w)^2 / sum w^2


def closed_world(
    key: Array, law: StepLaw, steps: Steps, prior: Mixture, targets: Examples, runs: int
) -> Bound:
    """Return the Bayes risk of the targets' transcripts, restated for these targets.

    Scored targets may be easier or harder than their transcripts let one expect. The
    floor's error less its posterior mean has mean 0 and says by how much; what of it
    is shared with the risk, by their covariance under the posterior, is added. Where
    nothing leaks the bound is therefore the floor of the scored targets.

    Args:
      key: of the samples.
      law: how a record enters the steps, which everybody takes part in.
      steps: [targets * runs, T, ...].
      prior: that the targets were drawn from.
      targets: their labels are public.
      runs: transcripts per target, in a row.

    Raises:
      ValueError: if there are no targets.
    """
    n = len(targets.y)
    if not n:
        raise ValueError("no target has a transcript")
    labels = np.repeat(np.asarray(targets.y), runs)
    weights, means, _ = (np.asarray(a, float) for a in prior)
    centre = np.einsum("ck,ckd->cd", weights, means)[np.asarray(targets.y)]
    keys = jax.random.split(key, len(labels))
    with jax.enable_x64(True):
        law, steps, prior = jax.tree.map(_double, (law, steps, whitened(prior)))
        shape = np.shape(targets.x)[1:]
        every = _posteriors(law, prior, keys, steps, labels, shape)
        each = jax.tree.map(np.asarray, every)
    mean, risk, floor, variances, effective = (
        a.reshape(n, runs, *a.shape[1:]) for a in each
    )
    x = np.asarray(targets.x, float).reshape(n, 1, -1)
    risks, error = risk.mean(1), ((mean - x) ** 2).mean((1, 2))
    of_error, of_floor, both = variances.mean((0, 1))
    surprise = ((x[:, 0] - centre) ** 2).mean(1) - floor.mean(1)
    share = float(both / of_floor)
    corrected = risks + share * surprise
    value = float(corrected.mean())
    given = max(of_error - share * both, 0.0)  # of one run; of more, at most that

    def excess(errors: np.ndarray) -> float:
        """Return by how many s.e. the errors [targets] of a row exceed the risk."""
        return gaps.excess(np.asarray(errors, float) - corrected, given)

    needed = gaps.needed(value, given)
    spread = corrected.std(ddof=1) if n > 1 else None
    few, typical = effective.min(), np.median(effective)
    return Bound(
        "closed_world",
        np.asarray(value),
        "any attacker, targets drawn from the published prior; effective samples "
        f"{typical:.0f} of {SAMPLES} in the median, {few:.0f} at least",
        "exact Bayes risk, importance sampling derived in docs/",
        standard_error=None if spread is None else float(spread / np.sqrt(n)),
        genie=error,
        excess=excess,
        needed=None if needed is None else max(2, needed),
    )


class Whitened(NamedTuple):
    """A prior in s, x = centre + root s; a leading axis C where classes are stacked."""

    log_weights: Any  # [K]
    kernels: Any  # [K, d] means n_k in s, where every covariance is 1
    centre: Any  # [d] mean of the class
    root: Any  # [d, d] L


def whitened(prior: Mixture) -> Whitened:
    """Return the prior of every class in the units of its own spread.

    No run depends on it, and it is computed here for another reason, too: two batched
    triangular solves at a time stop XLA on two cores for ever.
    """
    weights, means, covariances = (np.asarray(a, float) for a in prior)
    root = np.linalg.cholesky(covariances)
    centre = np.einsum("ck,ckd->cd", weights, means)
    kernels = np.linalg.solve(root, (means - centre[:, None]).swapaxes(1, 2))
    return Whitened(np.log(weights), kernels.swapaxes(1, 2), centre, root)


def _double(a: Any) -> Any:
    a = jnp.asarray(a)
    return a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a


@partial(jax.jit, static_argnames="shape")
def _posteriors(
    law: StepLaw, prior: Whitened, keys: Array, steps: Steps, labels: Any, shape: tuple
) -> SampledPosterior:
    def one(at: tuple) -> SampledPosterior:
        key, steps, label = at
        mixture = jax.tree.map(lambda a: a[label], prior)
        return posterior(key, law, steps, mixture, label, shape)

    # one block after the other; the last is filled up, so that all are one program
    count = len(labels)
    at = jnp.minimum(jnp.arange(-(-count // TOGETHER) * TOGETHER), count - 1)
    rows = jax.tree.map(lambda a: a[at], (keys, steps, jnp.asarray(labels)))
    every = jax.lax.map(one, rows, batch_size=TOGETHER)
    return jax.tree.map(lambda a: a[:count], every)


def posterior(
    key: Array, law: StepLaw, steps: Steps, prior: Whitened, label: Any, shape: tuple
) -> SampledPosterior:
    """Sample the posterior of one record, given one transcript.

    With x = c + L s, L L' the covariance, component k of the prior is N(n_k, 1) in s,
    and so close to component k of the posterior is N(n_k + G^-1 (v - H n_k), G^-1),
    H = L' F L and G = 1 + H for the Fisher information F at a guess, that it serves to
    draw from.

    Args:
      key: of the samples.
      law: of the steps.
      steps: [T, ...] of one run.
      prior: of the record's class.
      label: [] of the record.
      shape: of one record.
    """
    log_weights, kernels, centre, root = prior
    d = kernels.shape[1]
    sides = law.sides(steps.params)
    shown = jax.vmap(lambda u: ravel_pytree(u)[0])(steps.rest) / law.stddev  # [T, D]

    def expected(s: Array) -> Array:
        """Return what the record at s adds to every step, over the noise [T, D]."""
        record = (centre + root @ s).reshape(shape)

        def at(params: Any, side: Any) -> Array:
            return transcripts.contribution(law, params, side, label)(record)

        return jax.vmap(at)(steps.params, sides) / law.stddev

    def proposal(s: Array) -> tuple[Array, Array, Array, Array]:
        """Return log weights [K], means [K, d], G and its inverse [d, d]."""
        slope = jax.jacfwd(expected)(s).reshape(-1, d)
        score = slope.T @ ((shown - expected(s)).reshape(-1) + slope @ s)
        information = slope.T @ slope
        precision = jnp.eye(d) + information
        inverse = cho_solve(cho_factor(precision), jnp.eye(d))
        residual = score - kernels @ information
        moved = residual @ inverse
        # log density of the step under component k, up to what all share
        fit = kernels @ score - _square(kernels @ slope.T) / 2
        log = log_weights + fit + (residual * moved).sum(1) / 2
        return log - logsumexp(log), kernels + moved, precision, inverse

    s = jnp.exp(log_weights) @ kernels
    for _ in range(PASSES):
        log, means, *_ = proposal(s)
        s = jnp.exp(log) @ means
    log, means, precision, inverse = proposal(s)
    pick, draw = jax.random.split(key)
    component = jax.random.categorical(pick, log, shape=(SAMPLES,))
    noise = jax.random.normal(draw, (SAMPLES, d))
    samples = means[component] + noise @ jnp.linalg.cholesky(inverse).T

    def log_density(s: Array) -> Array:
        """Return log of posterior over proposal, up to a constant."""
        prior_density = logsumexp(log_weights - _square(s - kernels) / 2)
        away = s - means
        proposed = logsumexp(log - ((away @ precision) * away).sum(1) / 2)
        return prior_density - _square(shown - expected(s)).sum() / 2 - proposed

    weight = jax.nn.softmax(jax.vmap(log_density)(samples))
    once = (weight**2).sum()
    x = centre + samples @ root.T
    mean = weight @ x
    error = ((x - mean) ** 2).mean(1)
    risk = weight @ error
    # of so many effective samples the mean is closer to them than to the truth
    unbiased = 1 / (1 - jnp.minimum(once, 0.5))
    floor = ((samples @ root.T) ** 2).mean(1)
    expected_floor = weight @ floor
    floor = floor - expected_floor
    gap = error - risk
    variances = jnp.stack([weight @ gap**2, weight @ floor**2, weight @ (gap * floor)])
    return SampledPosterior(mean, risk * unbiased, expected_floor, variances, 1 / once)


def _square(a: Array) -> Array:
    return (a**2).sum(-1)
