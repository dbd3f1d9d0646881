"""The network of the two posterior-mean attacks, on a prior of two points per class."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanisms import denoiser, kernel_prior
from audit.mechanisms.kernel_prior import KernelPrior
from audit.models import networks
from audit.models.regressor import Regressor
from audit.types import Examples, Knowledge

CLASSES, K = 2, 3
SETTINGS = {"width": 16, "steps": 400}
# of each class, s is (1, 0, 0) or (-1, 0, 0): far from Gaussian
POINTS = np.tile(np.array([[1.0, 0, 0], [-1.0, 0, 0]], np.float32), (CLASSES, 1, 1))
PRIOR = KernelPrior(
    mean=jnp.zeros((CLASSES, K)),
    blur=jnp.zeros((CLASSES, K)),
    basis=jnp.tile(jnp.eye(K), (CLASSES, 1, 1)),
    variances=jnp.tile(jnp.array([1.0, 1e-3, 1e-3]), (CLASSES, 1)),
    kernels=jnp.asarray(POINTS),
    log_weight=jnp.zeros((CLASSES, 2)),
)


def test_a_class_without_kept_images_has_the_prior_of_all():
    x = np.random.default_rng(0).random((20, 2, 2, 1), np.float32)
    task = networks.linear((2, 2, 1), 3)
    pool = Examples(x, np.arange(20, dtype=np.int32) % 2)  # no record of class 2
    prior, left_out = kernel_prior.of_pool(
        Knowledge(task, pool, np.arange(20)), held_out=0.1, components=3
    )
    assert np.isfinite(np.asarray(prior.mean)).all()
    kept = x.reshape(20, -1)[~left_out]
    np.testing.assert_allclose(prior.mean[2], kept.mean(0), rtol=1e-5)
    assert (np.asarray(prior.variances) > 0).all()


def test_what_is_right_in_a_blend_has_all_weight_and_no_error():
    """Held-out images are moved like the prior's own: `blur` is part of them."""
    prior = jax.tree.map(lambda a: a[0], PRIOR._replace(blur=PRIOR.blur + 0.3))
    prior = prior._replace(mean=prior.mean + 0.5)
    s = np.random.default_rng(0).normal(size=(40, K))
    other = np.random.default_rng(1).normal(size=(40, K))
    weights, error = kernel_prior.blend(prior, np.stack([other, s], 1), 0.8 + s)
    np.testing.assert_allclose(weights, [0, 1], atol=1e-6)
    assert abs(error) < 1e-9


def fitted(told, amounts=(1.0, 1.0), **settings):
    """Return the networks, at scores that tell so much of the first direction."""
    information = jnp.tile(told * jnp.eye(K), (CLASSES, 1, 1))
    settings = SETTINGS | settings
    learnt = denoiser.fit(jax.random.key(0), PRIOR, information, amounts, **settings)
    return learnt, information


@pytest.fixture(scope="module")
def learnt_at_amounts():
    return fitted(4.0, (0.25, 4.0), steps=1500)


def guesses(learnt, information, c):
    """Return 500 scores' guesses [500, K]: the Gaussian's, the network's; the truth."""
    prior, network, told = jax.tree.map(lambda a: a[c], (PRIOR, learnt, information))
    read = kernel_prior.reading(prior, told)
    rng = np.random.default_rng(c)
    s = POINTS[c][rng.integers(0, 2, 500)]
    scores = s @ told + rng.normal(size=s.shape) * jnp.sqrt(jnp.diag(told))
    gaussian = jax.vmap(lambda u: kernel_prior.gaussian_mean(read, u))(scores)
    learnt = jax.vmap(lambda u: denoiser.posterior_mean(network, read, u))(scores)
    return np.asarray(gaussian), np.asarray(learnt), s


def test_networks_learn_what_a_gaussian_posterior_lacks():
    """E[s | score] of two points is tanh(score), which the network comes near."""
    learnt, information = fitted(4.0)
    for c in range(CLASSES):
        gaussian, network, s = guesses(learnt, information, c)
        errors = [((guess - s) ** 2).mean() for guess in (gaussian, network)]
        assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("multiple", [0.25, 1.0, 4.0])
def test_a_network_knows_how_sure_to_be_at_every_amount(multiple, learnt_at_amounts):
    """tanh of the score, whatever its law: one network, told the amount.

    One that was shown scores of one amount alone misses .6 of it at a quarter.
    """
    learnt, information = learnt_at_amounts
    gaussian, network, _ = guesses(learnt, multiple * information, 0)
    # the Gaussian's guess is the score over 1 + D
    sure = np.tanh(gaussian[:, 0] * (1 + multiple * 4))
    missed = ((network[:, 0] - sure) ** 2).mean()
    assert missed < 0.2 * ((gaussian[:, 0] - sure) ** 2).mean()


def test_rows_that_only_fill_up_a_class_are_no_images():
    """They have a weight of 0, and a network is never shown them."""
    information, small = jnp.tile(4 * jnp.eye(K), (CLASSES, 1, 1)), {"width": 4}
    small |= {"steps": 3, "batch_size": 8}
    filled = PRIOR._replace(
        kernels=jnp.pad(PRIOR.kernels, ((0, 0), (0, 3), (0, 0))),
        log_weight=jnp.pad(PRIOR.log_weight, ((0, 0), (0, 3)), constant_values=-np.inf),
    )
    one, two = (
        denoiser.fit(jax.random.key(0), prior, information, (1.0, 1.0), **small)
        for prior in (PRIOR, filled)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, two)


def test_threads_change_no_bit():
    one, two = (fitted(4.0)[0] for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    (weights, _), *_ = one.network.layers
    assert not np.array_equal(weights[0], weights[1])  # of two classes


def test_where_next_to_nothing_is_told_nothing_is_added():
    learnt, information = fitted(0.9 * denoiser.TOLD)
    for c in range(CLASSES):
        gaussian, network, _ = guesses(learnt, information, c)
        np.testing.assert_allclose(network, gaussian, atol=1e-6)


def test_the_network_is_told_the_amount_within_those_it_was_trained_for():
    """One whose answer is the log amount: F over the F that it was trained on."""
    weights = jnp.zeros((K + 1, K)).at[K].set(1.0)
    prior, told = jax.tree.map(lambda a: a[0], PRIOR), 4.0 * jnp.eye(K)
    unit = kernel_prior.reading(prior, told).values.sum()
    echo = denoiser.Denoiser(
        Regressor([(weights, jnp.zeros(K))], 1.0), unit, jnp.array([0.5, 2.0])
    )
    for multiple, amount in ((0.1, 0.5), (0.7, 0.7), (1.0, 1.0), (9.0, 2.0)):
        read = kernel_prior.reading(prior, multiple * told)
        score = jnp.arange(1.0, K + 1)
        added = denoiser.posterior_mean(echo, read, score)
        added = added - kernel_prior.gaussian_mean(read, score)
        np.testing.assert_allclose(added, np.log(amount), rtol=1e-4, atol=1e-5)
