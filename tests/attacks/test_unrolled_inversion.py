"""Unrolled inversion reads images off runs that nothing random enters."""

import sys

import jax
import numpy as np
import pytest

from attacks.ridge import ridge
from attacks.unrolled_inversion import unrolled_inversion
from audit.engine import shadow
from audit.games import base, reconstruction
from audit.mechanisms.batch import take
from audit.models import networks
from audit.models.regressor import matrix
from audit.testing import fixtures
from audit.types import Knowledge, Observation, TrainingSet
from defenses.dpsgd import dpsgd
from defenses.glm import glm
from defenses.sgd import sgd
from tests.conftest import flat, records

SHAPE, KEY = (5, 5, 1), jax.random.key(0)
TASK = networks.binary_linear(SHAPE, 2)
WORLD = fixtures.make(TASK)
FIXED, POOL, TARGETS = (records(n, SHAPE, 2, seed=n) for n in (40, 120, 10))
ADAM = {"optimizer": "adam", "learning_rate": 0.1, "steps": 5}


def dark(examples, pixels):
    """Return the records with the first pixels black in all of them."""
    x = np.array(examples.x)
    x.reshape(len(x), -1)[:, :pixels] = 0.0
    return examples._replace(x=x)


def errors(fixed=FIXED, pool=POOL, targets=TARGETS, attack=unrolled_inversion, **given):
    """Return the attack's mean square at each target."""
    settings = {"optimizer": "sgd", "learning_rate": 0.5, "steps": 5, **given}
    learner = shadow.learner(sgd, TASK, settings, key=KEY, public=WORLD.public)

    def train(key, data):
        return shadow.sweep("train", learner, key, data, engine=shadow.Engine())

    released = train(KEY, TrainingSet(fixed, targets))
    replay = reconstruction.replay_of(learner, fixed)
    knowledge = Knowledge(
        TASK,
        pool,
        np.arange(len(pool.y)),
        fixed=fixed,
        train=train,
        shadow_key=KEY,
        noiseless=True,
        replay=replay,
    )
    made = attack(TASK)
    state, _ = made.fit(KEY, knowledge)
    shown = Observation(params=released.params, label=targets.y)
    got = jax.vmap(made.guess, (None, None, 0))(state, KEY, shown)
    return np.asarray(((got - targets.x) ** 2).mean((1, 2, 3)))


@pytest.mark.parametrize(
    "training",
    [pytest.param({}, marks=pytest.mark.slow, id="sgd"), pytest.param(ADAM, id="adam")],
)
def test_the_undefended_release_is_the_image(training):
    assert np.median(errors(**training)) < 1e-5
    assert errors(**training).mean() < 0.1 * errors(attack=ridge, **training).mean()


@pytest.mark.slow
def test_pixels_that_no_record_lights_do_not_stop_it(monkeypatch):
    """Adam takes no step there, or a whole one, which a tangent does not know."""
    black = dark(FIXED, 10), POOL, dark(TARGETS, 10)  # the pool lights all pixels
    assert errors(*black, **ADAM).mean() < 1e-3
    monkeypatch.setattr(sys.modules[unrolled_inversion.__module__], "SWITCH", np.inf)
    assert errors(*black, **ADAM).mean() > 1e-2


@pytest.mark.parametrize("ones", [0, 1])
def test_a_class_that_the_pool_hardly_shows_is_solved_for_all_the_same(ones):
    """Its prior is that of all images."""
    few = take(TARGETS, slice(2, 4))
    assert few.y.tolist() == [0, 1]
    labels = (np.arange(len(POOL.y)) < ones).astype(np.int32)
    assert errors(pool=POOL._replace(y=labels), targets=few).max() < 1e-3


def test_a_replay_is_the_run():
    learner = shadow.learner(sgd, TASK, ADAM, key=KEY, public=WORLD.public)
    data = TrainingSet(FIXED, TARGETS)
    released = shadow.sweep("train", learner, KEY, data, engine=shadow.Engine())
    replay = jax.jit(jax.vmap(reconstruction.replay_of(learner, FIXED)))
    replayed = replay(TARGETS)
    np.testing.assert_allclose(matrix(replayed), matrix(released.params), atol=1e-6)


def test_a_replay_has_the_derivatives_of_the_run():
    """The loop of all steps, in which nothing is left out, gives the same tangents."""
    learner = shadow.learner(sgd, TASK, ADAM, key=KEY, public=WORLD.public)
    replay, target = reconstruction.replay_of(learner, FIXED), take(TARGETS, 0)
    assert learner.defense.train.apart == 0

    def looped(z):
        data = TrainingSet(FIXED, z)
        return learner.defense.train(KEY, learner.side, data).params

    def tangent(run):
        at = lambda x: run(target._replace(x=x))
        along = jax.jit(lambda x, v: jax.jvp(at, (x,), (v,))[1])
        return flat(along(target.x, take(TARGETS, 1).x))

    one, other = tangent(replay), tangent(looped)
    np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max())


@pytest.mark.parametrize(
    ("defense", "why_not"),
    [
        (sgd(TASK), None),
        (sgd(TASK, start="fresh"), "the defense is not noiseless"),
        (
            sgd(TASK, sampling="uniform", batch_size=4),
            "the defense is not noiseless",
        ),
        (
            dpsgd(TASK, clip_norm=1.0, noise_multiplier=0.1),
            "the defense is not noiseless",
        ),
        (glm(TASK, intercept=True), "the defense is not noisy_sgd"),
    ],
)
def test_only_steps_without_randomness_are_replayed(defense, why_not):
    model = unrolled_inversion(TASK).threat_model
    reason = base.mismatch(model, defense, reconstruction.reconstruction())
    assert reason == why_not
