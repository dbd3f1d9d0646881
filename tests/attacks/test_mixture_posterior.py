"""Mixture posterior where the best guess is known: linear steps, a published prior."""

import jax
import numpy as np
import pytest
from jax.tree_util import Partial

from attacks.mixture_posterior import mixture_posterior
from audit.models import networks
from audit.types import Examples, Knowledge, Mixture, Observation, StepLaw, Steps
from tests.accounting.test_closed_world import (
    D,
    curved,
    exact,
    linear,
    mixture,
    transcripts,
)

TASK = networks.binary_linear((D,), 2)._replace(domain=(-np.inf, np.inf))
KEY = jax.random.key(0)


def guesses(noise, prior, pool=None, task=TASK):
    """Return the guess at each target [n, d], the targets and their releases."""
    truth = mixture()
    targets, steps = transcripts(truth, noise)
    pool = targets if pool is None else pool
    law = StepLaw(Partial(linear), noise, Partial(lambda p: np.ones(1)), 1)
    attack, source = mixture_posterior(task), np.arange(len(pool.y))
    knowledge = Knowledge(task, pool, source, mechanism=law, prior=prior)
    state, info = attack.fit(KEY, knowledge)
    steps = jax.tree.map(np.float32, steps)
    observed = Observation(label=targets.y, steps=steps)
    guess = jax.vmap(attack.guess, (None, None, 0))(state, KEY, observed)
    return np.asarray(guess), targets, np.asarray(steps.rest)[:, 0], info


@pytest.mark.parametrize("noise", [0.01, 0.3, 10.0])
def test_it_is_the_posterior_mean_of_the_published_mixture(noise):
    """Against the gain form; beyond float32's digits where it is nearly sure."""
    guess, targets, release, info = guesses(noise, mixture())
    for label in (0, 1):
        here = targets.y == label
        want, _ = exact(mixture(), label, release[here], noise)
        np.testing.assert_allclose(guess[here], want, atol=2e-3, rtol=1e-3)
    assert info == {"components": 3}


def test_no_guess_leaves_the_domain():
    free = guesses(0.3, mixture())[0]
    held = guesses(0.3, mixture(), task=TASK._replace(domain=(-1.0, 1.0)))[0]
    assert np.abs(free).max() > 1
    np.testing.assert_array_equal(held, np.clip(free, -1, 1))


def test_without_a_published_prior_it_takes_the_gaussian_of_the_pool():
    """Under much noise that is the pool's class mean."""
    rng = np.random.default_rng(0)
    y = np.arange(400, dtype=np.int32) % 2
    pool = Examples(rng.normal(size=(400, D)).astype(np.float32) + y[:, None], y)
    guess, targets, _, info = guesses(1e4, None, pool)
    for label in (0, 1):
        mean = pool.x[y == label].mean(0)
        here = targets.y == label
        np.testing.assert_allclose(guess[here], np.tile(mean, (20, 1)), atol=1e-2)
    assert info == {"components": 1}


def test_the_gaussian_of_the_pool_has_its_covariance():
    """Against the gain form; the ridge that keeps it invertible is 1e-4 of it."""
    rng = np.random.default_rng(0)
    y = np.arange(400, dtype=np.int32) % 2
    x = rng.normal(size=(400, D)) @ rng.normal(size=(D, D)) + y[:, None]
    guess, targets, release, _ = guesses(1.0, None, Examples(np.float32(x), y))
    classes = [x[y == c] for c in (0, 1)]
    prior = Mixture(
        np.ones((2, 1)),
        np.stack([each.mean(0, keepdims=True) for each in classes]),
        np.stack([np.cov(each, rowvar=False) for each in classes]),
    )
    for label in (0, 1):
        here = targets.y == label
        want, _ = exact(prior, label, release[here], 1.0)
        np.testing.assert_allclose(guess[here], want, atol=5e-3)


def test_a_curved_step_is_linearised_where_the_guess_is():
    """Quadrature, one coordinate at a time: from the mean alone it is 1.2 off."""
    rng, noise, n = np.random.default_rng(5), 0.1, 20
    x = rng.normal(size=(n, D))
    rest = x + np.tanh(2 * x) + noise * rng.normal(size=(n, D))
    prior = Mixture(np.ones((1, 1)), np.zeros((1, 1, D)), np.eye(D)[None])
    law = StepLaw(Partial(curved), noise, Partial(lambda p: np.ones(1)), 1)
    pool = Examples(np.float32(x), np.zeros(n, np.int32))
    attack = mixture_posterior(TASK)
    knowledge = Knowledge(TASK, pool, np.arange(n), mechanism=law, prior=prior)
    state, _ = attack.fit(KEY, knowledge)
    steps = Steps(np.zeros((n, 1, D), np.float32), *2 * [np.float32(rest[:, None])])
    observed = Observation(label=pool.y, steps=steps)
    guess = jax.vmap(attack.guess, (None, None, 0))(state, KEY, observed)
    grid = np.linspace(-5, 5, 4001)
    gap = (rest[..., None] - grid - np.tanh(2 * grid)) / noise
    log = -(grid**2 + gap**2) / 2
    weight = np.exp(log - log.max(-1, keepdims=True))
    want = weight @ grid / weight.sum(-1)
    np.testing.assert_allclose(guess, want, atol=0.02)


@pytest.mark.parametrize(("classes", "ones"), [(3, 200), (2, 1)])
def test_a_class_that_the_pool_hardly_shows_has_the_gaussian_of_all(classes, ones):
    """Under much noise that is the mean of all; a third class is shown by no record."""
    rng, task = np.random.default_rng(0), TASK._replace(classes=classes)
    y = (np.arange(400) < ones).astype(np.int32)
    pool = Examples(rng.normal(size=(400, D)).astype(np.float32) + y[:, None], y)
    guess, targets, *_ = guesses(1e4, None, pool, task)
    assert np.isfinite(guess).all()
    if ones == 1:
        mean = np.tile(pool.x.mean(0), (20, 1))
        np.testing.assert_allclose(guess[targets.y == 1], mean, atol=1e-2)
