"""The matched filter where the best guess is known: linear releases, Gaussian noise."""

import jax
import numpy as np
import pytest

from attacks.matched_filter import _Moments, matched_filter
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


def error(pool, targets, noise, source=None, task=TASK, **settings):
    """Return the attack's squared error per coordinate at each target, and its fit."""
    seeds = iter(range(100, 200))
    source = np.arange(len(pool.y)) if source is None else source

    def train(key, data):
        return Release({"w": release(data.target, noise, next(seeds))})

    attack = matched_filter(task, **settings)
    knowledge = Knowledge(task, pool, source, fixed=pool, train=train, shadow_key=KEY)
    state, info = attack.fit(KEY, knowledge)
    observed = Observation(params={"w": release(targets, noise, 7)}, label=targets.y)
    guess = jax.vmap(attack.guess, (None, None, 0))(state, KEY, observed)
    return ((guess - targets.x) ** 2).mean((1, 2, 3)), info


@pytest.mark.parametrize("noise", [0.02, pytest.param(0.5, marks=pytest.mark.slow)])
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


def test_weights_that_one_image_moves_do_not_spoil_the_guesses_at_others():
    """As an optimizer moves the weight of a pixel that no other image lights."""
    pool, rng = images(600, 4), np.random.default_rng(8)

    def usual(key, data):
        return Release({"w": release(data.target, 0.02, 1)})

    def rare(key, data):
        still = 1e-6 * rng.normal(size=(600, 60))
        still[np.arange(60), np.arange(60)] = 1
        (w,) = usual(key, data).params.values()
        return Release({"w": np.column_stack([w, still]).astype(np.float32)})

    def held_out_errors(train, limit):
        knowledge = Knowledge(
            TASK, pool, np.arange(600), fixed=pool, train=train, shadow_key=KEY
        )
        _, info = matched_filter(TASK, repeats=1, limit=limit, **SMALL).fit(
            KEY, knowledge
        )
        return np.array([info["held_mse_0"], info["held_mse_1"]])

    without = held_out_errors(usual, 5.0)
    lost, kept = (held_out_errors(rare, limit) - without for limit in (1e9, 5.0))
    assert (lost > without).all()
    assert (kept < 0.2 * lost).all()


def test_weights_that_hardly_vary_between_many_models_are_not_cut_off():
    """Sums of 50,000 in float32 would be off by more than the weights vary."""
    rng = np.random.default_rng(9)
    shaped = (0.3 + 1e-6 * rng.normal(size=(50_000, 1, 3))).astype(np.float32)
    low, high = _Moments(limit=5.0).with_more(np.zeros((50_000, 1)), shaped).ends
    np.testing.assert_allclose((low + high) / 2, 0.3, rtol=0, atol=5e-8)
    np.testing.assert_allclose(high - low, 1e-5, rtol=0.02)


def test_sums_over_parts_regress_like_all_at_once():
    """The other derivation: least squares on all rows, and their residuals."""
    rng = np.random.default_rng(3)
    s, noise = rng.normal(size=(90, 5)), rng.normal(size=(90, 4, P))
    shaped = 7 + (s @ rng.normal(size=(5, P)))[:, None] + 0.3 * noise
    moments = _Moments(limit=100.0)
    for part in np.array_split(shaped, [1, 3], axis=1):  # repeats come in parts
        moments = moments.with_more(s, part)
    flat, ridge = shaped.reshape(-1, P), 1e-3
    inputs = np.column_stack([np.repeat(s, 4, 0), np.ones(len(flat))])
    slope, *_ = np.linalg.lstsq(inputs, flat, rcond=None)
    residual = flat - inputs @ slope
    law = residual.T @ residual / (len(flat) - 6)
    project = np.linalg.solve(law + ridge * np.diag(np.diag(law)), slope[:5].T).T
    expected = slope[5], project, project @ slope[:5].T
    for got, exact in zip(moments.regression(ridge), expected, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-9)


def test_the_ridge_is_that_which_is_asked_for():
    """A ridge of one doubles each variance: it halves what releases say, within 10%."""
    pool, told = images(600, 1), []

    def train(key, data):
        return Release(release(data.target, 1.0, 1))

    knowledge = Knowledge(
        TASK, pool, np.arange(600), fixed=pool, train=train, shadow_key=KEY
    )
    for ridge in (0.0, 1.0):
        settings = {"repeats": 1, "width": 8, "denoiser_steps": 1, "ridge": ridge}
        state, _ = matched_filter(TASK, **settings).fit(KEY, knowledge)
        told.append(np.asarray(state.read.values).sum())
    assert told[1] / told[0] == pytest.approx(1 / 2, rel=0.1)


def test_no_noise_is_left_where_releases_are_linear():
    """What sums are rounded by must not pass for a law of the noise."""
    rng = np.random.default_rng(4)
    s, slope = rng.normal(size=(50, 3)), rng.normal(size=(3, P))
    shaped = (1e3 + s @ slope)[:, None]
    _, _, information = _Moments(limit=100.0).with_more(s, shaped).regression(1e-3)
    assert np.isfinite(information).all()
    assert np.linalg.eigvalsh(information).min() > 1e6


def test_a_class_of_four_images_takes_no_direction_from_the_others():
    """By 10% of the other class's error, which has the same 300 images in both."""
    pool, targets = images(600, 1), images(400, 2)
    several = np.flatnonzero((pool.y == 0) | (np.arange(600) < 8))
    rare = jax.tree.map(lambda a: a[several], pool)
    settings = {"repeats": 2, "width": 16, "denoiser_steps": 50}
    before, _ = error(pool, targets, 0.02, **settings)
    after, info = error(rare, targets, 0.02, **settings)
    zeros = targets.y == 0
    assert after[zeros].mean() < 1.1 * before[zeros].mean()
    assert (info["components_0"], info["components_1"]) == (D, 1)


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (3, np.arange(60) % 2),  # none of class 2
        (2, np.arange(60) == 7),
        (2, np.arange(2)),  # one of the two is held out
    ],
)
def test_classes_that_the_pool_hardly_shows_have_the_prior_of_all(classes, labels):
    x, task = images(len(labels), 1).x, networks.linear(SHAPE, classes)
    pool, targets = Examples(x, labels.astype(np.int32)), images(20, 2)
    settings = {"repeats": 2, "width": 16, "denoiser_steps": 50}
    errors, _ = error(pool, targets, 50.0, task=task, **settings)
    assert np.isfinite(errors).all()


def test_classes_may_have_fewer_images_than_components():
    """The second class has four images, the first forty."""
    x = images(80, 6).x[:44]
    pool = Examples(x, (np.arange(44) >= 40).astype(np.int32))
    errors, _ = error(pool, images(20, 7), 0.1, repeats=2, **SMALL, held_out=0.25)
    assert np.isfinite(errors).all()
