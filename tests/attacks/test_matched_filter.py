"""The matched filter where the best guess is known: linear releases, Gaussian noise."""

import jax
import numpy as np
import pytest

from attacks.matched_filter import matched_filter
from audit.models import networks
from audit.types import Examples, Knowledge, Observation, Release

SHAPE, D, P = (4, 4, 1), 16, 12
TASK = networks.binary_linear(SHAPE, 2)
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
SMALL = {"width": 32, "denoiser_steps": 300}  # of the network
SPREAD = 0.15 * RNG.normal(size=(D, D)) / 4  # images are 1/2 + SPREAD z
EFFECT = RNG.normal(size=(2, D, P))  # of an image on a release, by class


def images(n, seed):
    rng = np.random.default_rng(seed)
    x = (0.5 + rng.normal(size=(n, D)) @ SPREAD.T).astype(np.float32)
    return Examples(x.reshape(n, *SHAPE), np.arange(n, dtype=np.int32) % 2)


def release(z, noise, seed):
    rng = np.random.default_rng(seed)
    x = np.asarray(z.x).reshape(-1, D) - 0.5
    mean = np.einsum("nd,ndp->np", x, EFFECT[np.asarray(z.y)])
    return (mean + noise * rng.normal(size=mean.shape)).astype(np.float32)


def error(pool, targets, noise, source=None, **settings):
    """Return the attack's squared error per coordinate at each target, and its fit."""
    seeds = iter(range(100, 200))
    source = np.arange(len(pool.y)) if source is None else source

    def train(key, data):
        return Release({"w": release(data.target, noise, next(seeds))})

    attack = matched_filter(TASK, **settings)
    knowledge = Knowledge(TASK, pool, source, fixed=pool, train=train)
    state, info = attack.fit(KEY, knowledge)
    observed = Observation(params={"w": release(targets, noise, 7)}, label=targets.y)
    guess = jax.vmap(attack.guess, (None, None, 0))(state, KEY, observed)
    return ((guess - targets.x) ** 2).mean((1, 2, 3)), info


@pytest.mark.parametrize("noise", [0.02, 0.5])
def test_it_attains_the_bayes_risk_of_a_gaussian_prior(noise):
    """Within 5% of Tr (L^-1 + F)^-1 / d, and not below it by four standard errors."""
    errors, _ = error(images(6000, 1), images(1000, 2), noise, repeats=2, **SMALL)
    prior = np.linalg.inv(SPREAD @ SPREAD.T)
    posteriors = [np.linalg.inv(prior + b @ b.T / noise**2) for b in EFFECT]
    risk = np.mean([np.trace(posterior) for posterior in posteriors]) / D
    assert errors.mean() < 1.05 * risk
    assert errors.mean() > risk - 4 * errors.std() / np.sqrt(len(errors))


@pytest.mark.parametrize("noise", [pytest.param(0.02, marks=pytest.mark.slow), 50.0])
def test_copies_that_are_darker_than_their_originals_mislead_nobody(noise):
    """Targets are originals: the prior is moved to them, and releases are read so."""
    originals, targets = images(1500, 1), images(1000, 2)
    dark = [Examples(originals.x - 0.2, originals.y)] * 3
    pool = jax.tree.map(lambda *a: np.concatenate(a), originals, *dark)
    source = np.tile(np.arange(1500), 4)
    errors, _ = error(pool, targets, noise, source, repeats=2, **SMALL)
    plain, _ = error(originals, targets, noise, repeats=2, **SMALL)
    gap = errors - plain
    assert abs(gap.mean()) < 0.05 * plain.mean() + 4 * gap.std() / np.sqrt(len(gap))


def test_it_names_the_image_where_the_prior_is_a_list():
    """Targets are pool images: narrow kernels find them, one Gaussian does not."""
    pool = images(12, 3)
    many = Examples(np.tile(pool.x, (50, 1, 1, 1)), np.tile(pool.y, 50))
    errors, info = error(many, pool, 0.1, repeats=4, **SMALL)
    spread = pool.x.reshape(12, D).var(0).mean()
    assert errors.mean() < 0.02 * spread
    for weights in (info["weights_0"], info["weights_1"]):
        assert sum(weights[3:]) > 0.9 * sum(weights)


def test_it_falls_back_to_the_floor_where_nothing_leaks():
    pool, targets = images(600, 4), images(400, 5)
    errors, info = error(pool, targets, 1e4, repeats=2, **SMALL)
    means = np.stack([pool.x[pool.y == c].mean(0) for c in (0, 1)])
    floor = ((targets.x - means[targets.y]) ** 2).mean()
    assert errors.mean() < 1.02 * floor
    assert info["shadows"] == 1200


def test_classes_may_have_fewer_images_than_components():
    """The second class has four images, the first forty."""
    x = images(80, 6).x[:44]
    pool = Examples(x, (np.arange(44) >= 40).astype(np.int32))
    errors, _ = error(pool, images(20, 7), 0.1, repeats=2, **SMALL, held_out=0.25)
    assert np.isfinite(errors).all()
