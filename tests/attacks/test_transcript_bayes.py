"""Transcript Bayes where the best guess is known: linear steps, Gaussian images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from attacks.transcript_bayes import transcript_bayes
from audit.games import reconstruction
from audit.models import networks
from audit.types import Examples, Knowledge, Observation, StepLaw, Steps
from tests.conftest import public, records
from tests.games import worlds

SHAPE, D, P, T = (4, 4, 1), 16, 12, 3
TASK = networks.binary_linear(SHAPE, 2)
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
SPREAD = 0.15 * RNG.normal(size=(D, D)) / 4  # images are 1/2 + SPREAD z
EFFECT = RNG.normal(size=(D, P)).astype(np.float32)


def images(n, seed):
    rng = np.random.default_rng(seed)
    x = (0.5 + rng.normal(size=(n, D)) @ SPREAD.T).astype(np.float32)
    return Examples(x.reshape(n, *SHAPE), np.arange(n, dtype=np.int32) % 2)


def contribution(params, side, example):
    """Return a part that depends on the step, through parameters and side."""
    return side * (example.x.reshape(-1) @ EFFECT) + params


def sides(params):
    return 1.0 + jnp.arange(T)


def error(pool, targets, noise, **settings):
    """Return the attack's squared error per coordinate at each target, and its fit."""
    law = StepLaw(Partial(contribution), noise, Partial(sides), T)
    attack, source = transcript_bayes(TASK, **settings), np.arange(len(pool.y))
    init = np.zeros(P, np.float32)
    knowledge = Knowledge(TASK, pool, source, pool, init, mechanism=law)
    state, info = attack.fit(KEY, knowledge)
    params = RNG.normal(size=(len(targets.y), T, P)).astype(np.float32)
    flat = targets.x.reshape(len(targets.y), 1, -1) @ EFFECT
    shown = params + flat * (1 + np.arange(T))[:, None]
    rest = (shown + noise * RNG.normal(size=shown.shape)).astype(np.float32)
    observed = Observation(label=targets.y, steps=Steps(params, rest, rest))
    guess = jax.vmap(attack.guess, (None, None, 0))(state, KEY, observed)
    return ((guess - targets.x) ** 2).mean((1, 2, 3)), info


@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_it_attains_the_bayes_risk_of_a_gaussian_prior(noise):
    """Within 5% of Tr (L^-1 + F)^-1 / d, and not below it by four standard errors."""
    errors, _ = error(images(2000, 1), images(600, 2), noise)
    information = 14 * EFFECT @ EFFECT.T / noise**2  # 1 + 4 + 9: the sides squared
    risk = np.trace(np.linalg.inv(np.linalg.inv(SPREAD @ SPREAD.T) + information)) / D
    assert errors.mean() < 1.05 * risk
    assert errors.mean() > risk - 4 * errors.std() / np.sqrt(len(errors))


def test_it_falls_back_to_the_floor_where_nothing_leaks():
    pool, targets = images(600, 4), images(400, 5)
    errors, _ = error(pool, targets, 1e5)
    means = np.stack([pool.x[pool.y == c].mean(0) for c in (0, 1)])
    assert errors.mean() < 1.02 * ((targets.x - means[targets.y]) ** 2).mean()


@pytest.mark.parametrize("name", ["dpsgd", "fim"])
def test_a_transcript_is_of_the_run_that_is_released(name):
    """The parameters before step t are those that a run of t steps releases.

    Nearly without noise, `rest` is what the law says that the target contributes.
    """
    fixed, pool, targets = (records(n, SHAPE, 2, seed=n) for n in (6, 8, 3))
    problem = worlds.problem(TASK, fixed, pool, targets=targets)
    settings = {"noise_multiplier": 1e-3, "clip_norm": 1.0}
    if name == "fim":
        settings |= {"share_steps": 2, "epochs": 1, "perturbation": "constant_direct"}
    table = worlds.table(problem, 2)
    start = public(TASK, records(5, SHAPE, 2, seed=9))
    learner = worlds.learner(TASK, name, start=start, steps=2, **settings)
    runs = reconstruction.release(KEY, learner, table)
    steps, law = runs.evidence(), reconstruction.step_law(learner)
    shorter = worlds.learner(TASK, name, start=start, steps=1, **settings)
    first = reconstruction.release(KEY, shorter, table).releases.params
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[:, 1], b, rtol=1e-4, atol=1e-6),
        steps.params, first,
    )  # fmt: skip
    lane = jax.tree.map(lambda a: a[0], steps)
    target = jax.tree.map(lambda a: a[0], targets)
    each = jax.vmap(law.contribution, (0, 0, None))(
        lane.params, law.sides(lane.params), target
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=6 * float(law.stddev)),
        each, lane.rest,
    )  # fmt: skip
