"""Ridge regression against scikit-learn's, and where images are read off exactly."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from attacks.ridge import ridge
from audit.mechanisms import hold_out
from audit.mechanisms import linear_map as module
from audit.models import networks, regressor
from audit.types import Examples, Knowledge, Observation, Release, TrainingSet
from tests.conftest import records

SHAPE, KEY = (4, 4, 1), jax.random.key(0)
TASK = networks.binary_linear(SHAPE, 2)
POOL, TARGETS = records(300, SHAPE, 2), records(200, SHAPE, 2, seed=5)
MIXING = np.random.default_rng(3).normal(size=(2, 16, 20))  # by class


def releases(z, noise, seed):
    """Return mixed images [m, 20] with noise."""
    flat = np.asarray(z.x).reshape(len(z.y), -1)
    mixed = np.einsum("md,mdp->mp", flat, MIXING[np.asarray(z.y)])
    drawn = np.random.default_rng(seed).normal(size=mixed.shape)
    return (mixed + noise * drawn).astype(np.float32)


def errors(noise, pool=POOL, source=None, **settings):
    """Return the attack's mean square at each target [200], and its fit."""

    def train(key, data):
        return Release(releases(data.target, noise, 1))

    source = np.arange(len(pool.y)) if source is None else source
    attack = ridge(TASK, **settings)
    knowledge = Knowledge(TASK, pool, source, fixed=pool, train=train, shadow_key=KEY)
    state, info = attack.fit(KEY, knowledge)
    shown = Observation(params=releases(TARGETS, noise, 2), label=TARGETS.y)
    got = jax.vmap(attack.guess, (None, None, 0))(state, KEY, shown)
    return np.asarray(((got - TARGETS.x) ** 2).mean((1, 2, 3))), info


def test_it_reads_images_off_releases_without_noise():
    far, info = errors(0.0)
    assert far.max() < 1e-5
    assert info["shadows"] == 300


def test_the_penalty_grows_with_the_noise_and_the_guess_shrinks_to_the_mean():
    _, clear = errors(0.0)
    noisy, dim = errors(30.0)
    floor, _ = errors(1e6)
    for label in (0, 1):
        assert dim[f"penalty_{label}"] > 1e3 * clear[f"penalty_{label}"]
        mean = POOL.x[POOL.y == label].mean(0)
        of_class = TARGETS.y == label
        least = ((TARGETS.x[of_class] - mean) ** 2).mean()
        assert floor[of_class].mean() < 1.03 * least  # a tenth of the pool is held out
    assert noisy.mean() < 1.03 * floor.mean()


def test_a_class_without_held_out_images_takes_what_is_best_on_average():
    """Two held-out images, both of class 0; noise that the least penalty lets in."""
    pool = jax.tree.map(lambda a: a[:20], POOL)
    left_out = hold_out(np.arange(20), 0.1)
    pool = pool._replace(y=np.where(left_out, 0, np.arange(20) % 2))
    _, info = errors(30.0, pool)
    assert "held_mse_0" in info
    assert "held_mse_1" not in info
    assert info["penalty_1"] == info["penalty_0"] > 1e-3


def test_classes_that_the_pool_lacks_or_that_are_held_out_whole():
    """They take what all images say; one of three images is of class 1, or none."""
    few = jax.tree.map(lambda a: a[:20], POOL)
    left_out = hold_out(np.arange(20), 0.1)
    for labels in (np.zeros(20, int), np.where(left_out, 1, 0)):
        got, info = errors(30.0, few._replace(y=labels))
        assert np.isfinite(got).all()
        assert "held_mse_1" not in info


def test_copies_that_are_darker_than_their_originals_mislead_nobody():
    dark = [Examples(POOL.x - 0.2, POOL.y)] * 3
    pool = jax.tree.map(lambda *a: np.concatenate(a), POOL, *dark)
    gap = errors(1e6, pool, np.tile(np.arange(300), 4))[0] - errors(1e6)[0]
    assert abs(gap.mean()) < 0.02 * errors(1e6)[0].mean()


def test_shadows_and_scales_are_those_that_are_asked_for():
    """A weight that moves by a hundredth of others counts for a fiftieth of one."""

    def train(key, data):
        mixed = releases(data.target, 1.0, 1)
        return Release(np.column_stack([mixed, 0.01 * mixed[:, :1]]))

    settings = {"repeats": 2, "clip_features": 3.0, "least_scale": 0.5}
    knowledge = Knowledge(
        TASK, POOL, np.arange(300), fixed=POOL, train=train, shadow_key=KEY
    )
    state, info = ridge(TASK, **settings).fit(KEY, knowledge)
    assert info["shadows"] == 600
    shown = np.asarray(train(KEY, TrainingSet(None, TARGETS)).params)
    scaled = np.asarray(regressor.scale(state.scaler, shown))
    assert 0.01 < scaled[:, -1].std() < 0.04 < 0.5 < scaled[:, :-1].std(0).min()
    far = np.asarray(regressor.scale(state.scaler, shown + 1e6))
    assert far.max() == pytest.approx(3.0)


@pytest.mark.parametrize(("m", "p"), [(40, 12), (12, 40)])
def test_a_line_is_that_of_scikit_learn(m, p):
    rng = np.random.default_rng(0)
    features, images = rng.normal(size=(m, p)), rng.normal(size=(m, 7))
    regression = module._Regression.of(features, images, np.ones(m, bool))
    line = module._Line.through(regression)
    for penalty in (1e-3, 1.0):
        theirs = Ridge(alpha=penalty * m).fit(features, images)
        np.testing.assert_allclose(regression.slope(penalty), theirs.coef_.T, atol=1e-9)
        got = line.error(penalty, features, images, (-np.inf, np.inf))
        left = ((theirs.predict(features) - images) ** 2).mean()
        np.testing.assert_allclose(got, left, rtol=1e-9)
