"""The reconstructor's budgets and outputs, where shadow releases are known."""

import jax
import numpy as np
import pytest

from attacks.reconstructor import reconstructor
from audit.mechanisms import hold_out, shadow_models
from audit.models import networks, regressor
from audit.types import Examples, Knowledge, Observation, Release
from tests.conftest import records

SHAPE, KEY = (4, 4, 1), jax.random.key(0)
TASK = networks.binary_linear(SHAPE, 2)
POOL, TARGETS = records(300, SHAPE, 2), records(200, SHAPE, 2, seed=5)
SMALL = {"width": 64, "width_last": 64, "epochs": 30, "weight_decay": 0.0}
NOTEBOOK = {"output": "sigmoid", "absolute_loss": 1.0, "schedule": "cosine"}


def releases(images, noise, seed):
    """Return the images [m, 16] with noise."""
    flat = np.asarray(images).reshape(len(images), -1)
    drawn = np.random.default_rng(seed).normal(size=flat.shape)
    return (flat + noise * drawn).astype(np.float32)


def fitted(noise=0.0, pool=POOL, source=None, **settings):
    """Return the attack, its state, its fit, and the images that each training had."""
    learnt = []

    def train(key, data):
        learnt.append(np.asarray(data.target.x))
        return Release(releases(data.target.x, noise, len(learnt)))

    attack = reconstructor(TASK, **SMALL | settings)
    source = np.arange(len(pool.y)) if source is None else source
    knowledge = Knowledge(TASK, pool, source, fixed=pool, train=train, shadow_key=KEY)
    return attack, *attack.fit(KEY, knowledge), learnt


def errors(noise=0.0, **settings):
    """Return the attack's mean square at each target [200]."""
    attack, state, *_ = fitted(noise, **settings)
    label = TARGETS.y if "label" in attack.threat_model.knows else None
    shown = Observation(params=releases(TARGETS.x, noise, 2), label=label)
    got = jax.vmap(attack.guess, (None, None, 0))(state, KEY, shown)
    assert got.min() >= 0
    assert got.max() <= 1
    return np.asarray(((got - TARGETS.x) ** 2).mean((1, 2, 3)))


def test_shadow_models_need_not_be_in_memory_together(monkeypatch):
    """The parts of fresh noise, one per epoch, teach more than one part alone."""
    settings = {"noise": 0.5, "repeats": 6, "epochs": 20, "batch_size": 20}
    alone = errors(**settings | {"epochs": 60, "repeats": 2})
    monkeypatch.setattr(shadow_models, "TOGETHER", 2 * len(POOL.y))
    monkeypatch.setattr(shadow_models, "SHARD", 2 * len(POOL.y))
    gain = alone - errors(**settings | {"epochs": 60})  # an epoch is a third of them
    assert gain.mean() > 3 * gain.std() / np.sqrt(len(gain))
    _, _, info, learnt = fitted(**settings)
    parts = [len(images) // len(POOL.y) for images in learnt]
    assert parts[:4] == [1, 1, 2, 2]  # the first repeat is trained apart
    assert set(parts[4:]) == {2}
    assert info["shadows"] == 6 * len(POOL.y)


def test_copies_of_one_image_stay_on_one_side_of_the_split(monkeypatch):
    sides = []

    def spy(key, x, y, other_x, other_y, **settings):
        sides.extend({row.tobytes() for row in side} for side in (y, other_y))
        assert len(y) + len(other_y) == len(x) + len(other_x) == 3 * len(POOL.y)
        # releases are the images: every row is the release of its own image
        mean = POOL.x.reshape(300, -1).mean(0)
        assert np.corrcoef(x[:, :16].ravel(), (y - mean).ravel())[0, 1] > 0.9
        raise StopIteration

    monkeypatch.setattr(regressor, "fit", spy)
    with pytest.raises(StopIteration):
        fitted(repeats=3)
    fitted_on, held_out = sides
    assert len(held_out) == 30
    assert not fitted_on & held_out


def test_every_setting_reaches_the_fit(monkeypatch):
    """No two numbers are equal, so that none can stand for another."""
    shown = {}

    def spy(key, *data, **settings):
        shown.update(settings)
        raise StopIteration

    monkeypatch.setattr(regressor, "fit", spy)
    given = {"learning_rate": 0.1, "weight_decay": 0.2, "batch_size": 3, "epochs": 4}
    given |= {"patience": 5, "output": "sigmoid", "schedule": "cosine"}
    with pytest.raises(StopIteration):
        fitted(**given, width=6, width_last=7, absolute_loss=8.0)
    assert shown == given | {"hidden": (6, 7), "absolute": 8.0, "further": []}


def test_features_are_standardised_over_the_shadows_learnt_from():
    """Releases are the images here; one pixel hardly varies, and is scaled by less."""
    dim = np.ones(SHAPE, np.float32)
    dim[0, 0] = 0.01
    settings = {"epochs": 1, "clip_features": 1.5, "least_scale": 0.5}
    _, state, *_ = fitted(pool=POOL._replace(x=dim * POOL.x), **settings)
    kept = (dim * POOL.x)[~hold_out(np.arange(300), 0.1)].reshape(-1, 16).astype(float)
    scale = np.maximum(kept.std(0), 0.5 * np.median(kept.std(0)))
    want = kept.mean(0), 1 / scale, 1.5 * kept.std(0) / scale
    for ours, exact in zip(state.scaler, want, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5)


def test_the_guess_without_a_release_is_the_mean_of_originals():
    """Copies are learnt from, but no target is one: half as bright, they would show."""
    pool = Examples(np.concatenate([POOL.x, POOL.x / 2]), np.tile(POOL.y, 2))
    _, state, *_ = fitted(pool=pool, source=np.tile(np.arange(300), 2), epochs=1)
    kept = ~hold_out(np.arange(300), 0.1)
    for c in (0, 1):
        mean = POOL.x[kept & (POOL.y == c)].mean(0).ravel()
        np.testing.assert_allclose(state.means[c], mean, rtol=1e-5)


def test_repeats_help_where_releases_are_noisy():
    """By four standard errors over targets, which are the same."""
    gain = errors(0.3) - errors(0.3, repeats=8)
    assert gain.mean() > 4 * gain.std() / np.sqrt(len(gain))


def test_a_budget_is_the_first_images_of_the_pool():
    _, state, info, learnt = fitted(shadows=100, epochs=1)
    np.testing.assert_array_equal(learnt[0], POOL.x[:100])
    assert info["shadows"] == 100
    few = jax.tree.map(lambda a: a[:100], POOL)
    same = fitted(pool=few, epochs=1)[1]
    jax.tree.map(np.testing.assert_array_equal, state, same)


@pytest.mark.parametrize("ones", [0, 1])
def test_a_class_that_a_budget_hardly_shows_has_the_mean_of_all(ones):
    y = np.where(np.arange(300) < 50, np.arange(300) < ones, POOL.y).astype(np.int32)
    _, state, *_ = fitted(pool=POOL._replace(y=y), shadows=40, epochs=1)
    mean = POOL.x[:40][~hold_out(np.arange(40), 0.1)].mean(0)
    np.testing.assert_allclose(state.means[1], mean.ravel(), rtol=1e-5)


def test_a_budget_that_is_held_out_whole_is_refused():
    with pytest.raises(ValueError, match="all are held out"):
        fitted(shadows=1)


@pytest.mark.parametrize("settings", [{}, NOTEBOOK])
def test_who_does_not_know_the_label_is_not_shown_it_and_learns_all_the_same(settings):
    """`errors` shows a label to who declares it, and nothing in its place to others."""
    floor = ((TARGETS.x - POOL.x.mean(0)) ** 2).mean()
    assert errors(label=False, **settings).mean() < 0.35 * floor


def test_a_sigmoid_starts_at_the_mean_image():
    frozen = {"label": False, "learning_rate": 1e-12, "epochs": 1}
    _, state, info, _ = fitted(**NOTEBOOK | frozen)
    got = jax.nn.sigmoid(regressor.predict(state.network, np.zeros(16, np.float32)))
    # the mean of what is fitted to: 270 of 300 images, each pixel uniform in [0, 1]
    np.testing.assert_allclose(got, POOL.x.mean(0).ravel(), atol=4 * 0.29 / 30**0.5 / 9)
    assert info["shrink"] == 1


def test_absolute_errors_are_part_of_the_loss():
    """One full batch from a known start: the loss is what it is by hand."""
    settings = NOTEBOOK | {"label": False, "batch_size": 270, "epochs": 1}
    square, both = (
        fitted(**settings | {"absolute_loss": weight})[2]["train_mse"]
        for weight in (0.0, 1.0)
    )
    pixels = np.asarray(POOL.x).reshape(300, -1)
    gap = pixels - pixels.mean(0)
    assert square == pytest.approx((gap**2).mean(), rel=0.02)
    assert both - square == pytest.approx(abs(gap).mean(), rel=0.02)


def test_a_cosine_schedule_comes_to_a_standstill():
    """In the last quarter of the epochs a constant rate still fits a good deal."""
    x, y = np.random.default_rng(0).normal(size=(2, 64, 8)).astype(np.float32)
    settings = {"hidden": (16,), "learning_rate": 1e-2, "weight_decay": 0.0}
    settings |= {"batch_size": 16, "epochs": 40, "patience": 40}
    constant, cosine = (
        regressor.fit(KEY, x, y, x, y, **settings, schedule=schedule)[1]["late_gain"]
        for schedule in ("constant", "cosine")
    )
    assert cosine < constant / 3
