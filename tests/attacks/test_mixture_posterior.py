"""Mixture posterior where the best guess is known: linear steps, a published prior."""

import jax
import numpy as np
import pytest
from jax.tree_util import Partial

from attacks.mixture_posterior import mixture_posterior
from audit.models import networks
from audit.types import Examples, Knowledge, Observation, StepLaw
from tests.accounting.test_closed_world import D, exact, linear, mixture, transcripts

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
