"""The exact Bayes risk against closed forms and quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from audit.accounting import closed_world
from audit.statistics import metrics
from audit.types import Examples, Mixture, StepLaw, Steps

KEY, D, P = jax.random.key(0), 3, 5
RNG = np.random.default_rng(0)
EFFECT = RNG.normal(size=(D, P))


def mixture(seed=1, classes=2, components=3, d=D):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(classes, d, d))
    return Mixture(
        rng.dirichlet(np.full(components, 5.0), classes),
        2 * rng.normal(size=(classes, components, d)),
        root @ root.swapaxes(1, 2) + 0.1 * np.eye(d),
    )


def drawn(prior, label, n, seed):
    rng = np.random.default_rng(seed)
    k = rng.choice(prior.weights.shape[1], n, p=prior.weights[label])
    root = np.linalg.cholesky(prior.covariances[label])
    noise = rng.normal(size=(n, root.shape[0]))
    return prior.means[label, k] + noise @ root.T


def exact(prior, label, release, noise):
    """Return mean and variance of x given x @ EFFECT + noise, in closed form."""
    m, cov, w = (a[label] for a in (prior.means, prior.covariances, prior.weights))
    inner = EFFECT.T @ cov @ EFFECT + noise**2 * np.eye(P)
    gain = cov @ EFFECT @ np.linalg.inv(inner)
    gap = release[:, None] - m @ EFFECT  # [n, K, P]
    log = np.log(w) - np.einsum("nki,ij,nkj->nk", gap, np.linalg.inv(inner), gap) / 2
    weight = np.exp(log - log.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    each = m + gap @ gain.T
    mean = np.einsum("nk,nkd->nd", weight, each)
    between = (weight * ((each - mean[:, None]) ** 2).sum(2)).sum(1)
    return mean, (np.trace(cov - gain @ EFFECT.T @ cov) + between) / D


def linear(params, side, example):
    return side * (example.x @ jnp.asarray(EFFECT, example.x.dtype)) + params


def transcripts(prior, noise, n=40):
    """Return targets of both classes, and one linear step of each."""
    y = np.arange(n) % 2
    x = np.where(y[:, None] == 0, drawn(prior, 0, n, 2), drawn(prior, 1, n, 3))
    rest = x @ EFFECT + noise * np.random.default_rng(4).normal(size=(n, P))
    return Examples(x, y), Steps(np.zeros((n, 1, P)), rest[:, None], rest[:, None])


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_linear_steps_against_the_closed_form(noise):
    """All samples are effective; the mean risk within four standard errors."""
    prior, law = mixture(), StepLaw(Partial(linear), noise, Partial(jnp.ones_like), 1)
    law = law._replace(sides=Partial(lambda params: jnp.ones(len(params))))
    targets, steps = transcripts(prior, noise)
    bound = closed_world.closed_world(KEY, law, steps, prior, targets, 1)
    assert "effective samples 512 of 512 in the median, 512 at least" in bound.holds_for
    means, risks = np.zeros((40, D)), np.zeros(40)
    for label in (0, 1):
        here = targets.y == label
        release = np.asarray(steps.rest)[here, 0]
        means[here], risks[here] = exact(prior, label, release, noise)
    surprise = float(bound.value) - risks.mean()
    assert abs(surprise) < 4 * float(bound.standard_error) + 0.02 * risks.mean()
    error = ((means - targets.x) ** 2).mean(1)
    np.testing.assert_allclose(bound.genie.mean(), error.mean(), rtol=0.05)
    assert abs(bound.excess(error)) < 3
    assert bound.excess(error / 4) < -3
    assert bound.ranked
    assert bound.standard_error > 0


def curved(params, side, example):
    del side
    return example.x + jnp.tanh(2 * example.x) + params


def test_a_curved_step_against_quadrature():
    """One dimension, where the linearisation is poor: the weights make up for it."""
    prior = Mixture(np.ones((1, 1)), np.full((1, 1, 1), 0.5), np.full((1, 1, 1), 0.49))
    noise, n = 0.3, 60
    rng = np.random.default_rng(5)
    x = 0.5 + 0.7 * rng.normal(size=(n, 1))
    rest = x + np.tanh(2 * x) + noise * rng.normal(size=(n, 1))
    law = StepLaw(Partial(curved), noise, Partial(lambda p: jnp.ones(len(p))), 1)
    steps = Steps(np.zeros((n, 1, 1)), rest[:, None], rest[:, None])
    targets = Examples(x, np.zeros(n, int))
    bound = closed_world.closed_world(KEY, law, steps, prior, targets, 1)
    grid = np.linspace(-5, 6, 20_001)
    log = -(((grid - 0.5) / 0.7) ** 2) / 2
    log = log - ((rest - grid - np.tanh(2 * grid)) / noise) ** 2 / 2
    weight = np.exp(log - log.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    mean = weight @ grid
    risks = weight @ grid**2 - mean**2
    floor = ((grid - 0.5) ** 2) @ weight.T
    each = (grid - mean[:, None]) ** 2
    gap = (grid - 0.5) ** 2 - floor[:, None]
    share = (weight * each * gap).sum() / (weight * gap**2).sum()
    each = risks + share * ((x[:, 0] - 0.5) ** 2 - floor)
    assert float(bound.value) == pytest.approx(each.mean(), rel=0.05)
    error = metrics.standard_error(each)
    # each is of 512 samples, of which few are effective
    assert bound.standard_error == pytest.approx(error, rel=0.15)
    assert "512 at least" not in bound.holds_for


def test_no_target_has_no_risk():
    law = StepLaw(Partial(linear), 1.0, Partial(lambda p: p), 1)
    none = Examples(np.zeros((0, D)), np.zeros(0, int))
    with pytest.raises(ValueError, match="no target"):
        closed_world.closed_world(KEY, law, None, mixture(), none, 1)
