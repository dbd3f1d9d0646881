"""Attacks on problems whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.class_mean import class_mean
from attacks.nearest_neighbour import nearest_neighbour
from attacks.reconstructor import reconstructor
from attacks.sum_inversion import sum_inversion
from audit.clipping import clip_tree, soft_clip
from audit.mechanisms import hold_out
from audit.models import networks, regressor
from audit.types import Knowledge, Observation, Release
from tests.conftest import records

SHAPE = (4, 4, 1)
TASK = networks.binary_linear(SHAPE, 2)
KEY = jax.random.key(0)


def test_class_mean_is_the_mean_of_originals():
    pool = records(6, SHAPE, 2)._replace(y=np.array([0, 1, 0, 1, 1, 1]))
    source = np.array([0, 1, 2, 3, 3, 1])  # the last two are augmented copies
    attack = class_mean(TASK)
    means, _ = attack.fit(KEY, Knowledge(TASK, pool, source))
    for label, rows in ((0, [0, 2]), (1, [1, 3])):
        got = attack.guess(means, KEY, Observation(label=label))
        np.testing.assert_allclose(got, pool.x[rows].mean(0), rtol=1e-6)


def test_nearest_neighbour_against_a_loop():
    """And it says whether the pool was augmented."""
    pool, targets = records(50, SHAPE), records(9, SHAPE, seed=1)
    attack = nearest_neighbour(TASK)
    state, info = attack.fit(KEY, Knowledge(TASK, pool, np.arange(50)))
    assert not info["augmented"]
    for x in targets.x:
        best = ((pool.x - x) ** 2).sum((1, 2, 3)).argmin()
        got = attack.guess(state, KEY, Observation(target=jnp.asarray(x)))
        np.testing.assert_array_equal(got, pool.x[best])
    copies = np.array([0, 1, 0, 1])
    _, info = attack.fit(KEY, Knowledge(TASK, records(4, SHAPE), copies))
    assert info == {"images": 4, "originals": 2, "augmented": True}


@pytest.mark.parametrize("size", [0.1, 0.5, 1.0, 1.4])
def test_sum_inversion_undoes_the_clip(size):
    """Without noise the guess is the target, up to 1.5 times the clip norm."""
    fixed = records(5, SHAPE)
    x = records(1, SHAPE, seed=3).x[0]
    x = x / np.linalg.norm(x) * size
    clip = soft_clip(1.0)
    others = sum(np.asarray(clip_tree(clip, v)) for v in fixed.x)
    attack = sum_inversion(TASK, clip_norm=1.0)
    state, _ = attack.fit(KEY, Knowledge(TASK, fixed, np.arange(5), fixed=fixed))
    release = others + clip_tree(clip, jnp.asarray(x))
    got = attack.guess(state, KEY, Observation(params=release))
    np.testing.assert_allclose(got, x, atol=2e-5)


def test_augmented_siblings_are_held_out_together():
    source = np.arange(300) % 40
    held_out = hold_out(source, 0.25)
    assert len(np.unique(source[held_out])) == 10
    for image in range(40):
        assert len(set(held_out[source == image])) == 1


def released(leak, x):
    """Return `leak` times the target, and a dead weight."""
    dead = np.tile(np.array([0.3, 0.0], np.float32), (len(x), 1))
    return {"w": leak * np.asarray(x).reshape(len(x), -1), "z": dead}


def fitted(leak):
    pool, targets = records(400, SHAPE, 2), records(50, SHAPE, 2, seed=5)

    def train(key, data):
        params = released(leak, data.target.x)
        params["z"][7, 1] = 1e-4  # it moves for a single shadow, by next to nothing
        return Release(params)

    small = {"width": 64, "width_last": 64, "epochs": 60, "weight_decay": 0.0}
    attack = reconstructor(TASK, **small)
    knowledge = Knowledge(
        TASK, pool, np.arange(400), fixed=pool, train=train, shadow_key=KEY
    )
    state, info = attack.fit(KEY, knowledge)
    guess = jax.vmap(attack.guess, (None, None, 0))
    return pool, targets, released(leak, targets.x), state, info, guess


@pytest.fixture(scope="module")
def opened():
    """The attack fitted to a release that shows everything."""
    return fitted(1.0)


def test_reconstructor_learns_an_open_release(opened):
    pool, targets, release, state, _, guess = opened
    got = guess(state, KEY, Observation(params=release, label=targets.y))
    floor = ((targets.x - pool.x.mean(0)) ** 2).mean()
    assert ((got - targets.x) ** 2).mean() < 0.35 * floor
    assert got.min() >= 0
    assert got.max() <= 1


def test_reconstructor_falls_back_to_the_floor_on_a_closed_one():
    """Nothing leaks: the guess is the class mean, not a fit of noise."""
    pool, targets, release, state, info, guess = fitted(0.0)
    got = guess(state, KEY, Observation(params=release, label=targets.y))
    means = np.stack([pool.x[pool.y == c].mean(0) for c in (0, 1)])
    floor = ((targets.x - means[targets.y]) ** 2).mean()
    assert ((got - targets.x) ** 2).mean() < 1.05 * floor
    assert info["shrink"] <= 1


def test_a_weight_that_hardly_ever_moves_cannot_blow_up_the_guess(opened):
    """1e-4 in one shadow of 400, 1 in the target's release: 200,000 deviations out."""
    _, targets, release, state, _, guess = opened
    wild = release | {"z": release["z"] + np.array([0.0, 1.0], np.float32)}
    calm = guess(state, KEY, Observation(params=release, label=targets.y))
    got = guess(state, KEY, Observation(params=wild, label=targets.y))
    before, after = (((g - targets.x) ** 2).mean() for g in (calm, got))
    assert after < 2 * before


def test_scaler_standardises_and_limits():
    rng = np.random.default_rng(0)
    features = rng.normal(5, 3, (1000, 4))
    features[:, 2] = 1.0  # never moves
    features[:, 3] *= 1e-5  # hardly moves
    scaler = regressor.fit_scaler(features, limit=4.0, least=0.1)
    out = np.asarray(regressor.scale(scaler, jnp.asarray(features)))
    np.testing.assert_allclose(out[:, :2].std(0), 1, rtol=0.02)
    assert (out[:, 2] == 0).all()
    assert out[:, 3].std() < 1e-3
    assert abs(regressor.scale(scaler, jnp.full(4, 1e6))).max() == pytest.approx(4.0)


def test_early_stopping_keeps_the_best_epoch():
    rng = np.random.default_rng(0)
    # pure noise: overfits at once
    x, y, other_x, other_y = rng.normal(size=(4, 64, 8)).astype(np.float32)
    settings = {"hidden": (32,), "learning_rate": 1e-2, "weight_decay": 0.0}
    settings |= {"batch_size": 16, "epochs": 50, "patience": 5}
    network, info = regressor.fit(KEY, x, y, other_x, other_y, **settings)
    assert info["epochs"] == info["epoch"] + 5 < 50
    mse = ((np.asarray(regressor.predict(network, other_x)) - other_y) ** 2).mean()
    np.testing.assert_allclose(mse, info["held_mse"], rtol=1e-5)
    assert info["held_mse"] <= (other_y**2).mean() * (1 + 1e-6)
