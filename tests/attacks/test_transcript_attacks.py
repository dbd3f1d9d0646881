"""Attacks on transcripts where the best guess is known: linear steps."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from attacks.candidate_bayes import candidate_bayes
from attacks.maximum_likelihood import maximum_likelihood
from attacks.mixture_posterior import mixture_posterior
from attacks.transcript_bayes import transcript_bayes
from audit.games import reconstruction
from audit.mechanisms.kernel_prior import KernelPrior
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


WIDE = RNG.normal(size=(D, 2 * D)).astype(np.float32)  # from which x can be solved for


def contribution(effect, params, side, example):
    """Return a part that depends on the step, through parameters and side."""
    return side * (example.x.reshape(-1) @ effect) + params


def sides(params):
    return 1.0 + jnp.arange(T)


def played(attack, pool, targets, noise, effect):
    """Return the guesses at each target, the noised parts [n, T, P], and the fit."""
    law = StepLaw(Partial(contribution, effect), noise, Partial(sides), T)
    source, rng = np.arange(len(pool.y)), np.random.default_rng(8)
    init = np.zeros(effect.shape[1], np.float32)
    knowledge = Knowledge(TASK, pool, source, pool, init, mechanism=law)
    state, info = attack.fit(KEY, knowledge)
    params = rng.normal(size=(len(targets.y), T, len(init))).astype(np.float32)
    flat = targets.x.reshape(len(targets.y), 1, -1) @ effect
    parts = flat * (1 + np.arange(T))[:, None]
    parts = parts + noise * rng.normal(size=parts.shape)
    rest = (params + parts).astype(np.float32)
    observed = Observation(label=targets.y, steps=Steps(params, rest, rest))
    guess = jax.jit(jax.vmap(attack.guess, (None, None, 0)))
    return guess(state, KEY, observed), parts, info


def error(pool, targets, noise):
    """Return the squared error of `transcript_bayes` per coordinate at each target."""
    attack = transcript_bayes(TASK, width=32, denoiser_steps=300)
    guesses = played(attack, pool, targets, noise, EFFECT)[0]
    return ((guesses - targets.x) ** 2).mean((1, 2, 3))


@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_it_attains_the_bayes_risk_of_a_gaussian_prior(noise):
    """Within 5% of Tr (L^-1 + F)^-1 / d, and not below it by four standard errors."""
    errors = error(images(2000, 1), images(600, 2), noise)
    information = 14 * EFFECT @ EFFECT.T / noise**2  # 1 + 4 + 9: the sides squared
    risk = np.trace(np.linalg.inv(np.linalg.inv(SPREAD @ SPREAD.T) + information)) / D
    assert errors.mean() < 1.05 * risk
    assert errors.mean() > risk - 4 * errors.std() / np.sqrt(len(errors))


def test_held_out_images_are_shown_as_steps_would_show_them(monkeypatch):
    """Scores of mean c F s and variance c F at each scale c, within 4 s.e."""
    module = sys.modules[transcript_bayes.__module__]
    shown = lambda network, prior, read, score: jnp.stack([score, read.values])
    monkeypatch.setattr(module.denoiser, "guesses", shown)
    parts = (
        jnp.zeros(2),
        jnp.zeros(2),
        jnp.eye(2),
        jnp.ones(2),
        jnp.eye(2),
        jnp.zeros(2),
    )
    told, s = np.array([[4.0, 1.0], [1.0, 2.0]]), RNG.normal(size=(4000, 2))
    every = module._simulated(None, KernelPrior(*parts), jnp.asarray(told), s, KEY)
    for scale, each in zip(module.SCALES, np.asarray(every, float), strict=True):
        scores, values = each[:, 0], each[:, 1]
        of_told = np.broadcast_to(scale * np.linalg.eigvalsh(told), values.shape)
        np.testing.assert_allclose(values, of_told, rtol=1e-5)
        noise = (scores - scale * s @ told) / np.sqrt(scale * np.diag(told))
        assert (abs((noise**2).mean(0) - 1) < 4 * np.sqrt(2 / 4000)).all()


def test_it_falls_back_to_the_floor_where_nothing_leaks():
    pool, targets = images(600, 4), images(400, 5)
    errors = error(pool, targets, 1e5)
    means = np.stack([pool.x[pool.y == c].mean(0) for c in (0, 1)])
    assert errors.mean() < 1.02 * ((targets.x - means[targets.y]) ** 2).mean()


@pytest.mark.parametrize("noise", [0.05, 5.0])
def test_maximum_likelihood_attains_the_cramer_rao_bound(noise):
    """Its error is Tr F^-1 / d and its bias 0, each within four standard errors."""
    pool, targets = images(50, 6), images(600, 7)
    guesses = played(maximum_likelihood(TASK), pool, targets, noise, WIDE)[0]
    gaps = np.asarray(guesses - targets.x, float).reshape(len(targets.y), D)
    errors, information = (gaps**2).mean(1), 14 * WIDE @ WIDE.T / noise**2
    bound = np.trace(np.linalg.inv(information)) / D
    assert abs(errors.mean() - bound) < 4 * errors.std() / len(errors) ** 0.5
    worst = np.abs(gaps.mean(0) / gaps.std(0)).max() * len(gaps) ** 0.5
    assert worst < 4


@pytest.mark.parametrize("noise", [1e-2, 1e-5])
def test_the_mixture_posterior_holds_what_next_to_no_noise_leaves_open(noise):
    """Twelve numbers are told of sixteen: the rest has the prior given them."""
    pool, targets = images(600, 1), images(100, 2)
    guesses = played(mixture_posterior(TASK), pool, targets, noise, EFFECT)[0]
    prior, told = SPREAD @ SPREAD.T, EFFECT.astype(float)
    gain = prior @ told @ np.linalg.inv(told.T @ prior @ told)
    risk = np.trace(prior - gain @ told.T @ prior) / D
    errors = np.asarray((guesses - targets.x) ** 2).mean((1, 2, 3))
    assert abs(errors.mean() - risk) < 4 * errors.std() / len(errors) ** 0.5


@pytest.mark.parametrize(
    ("noise", "most", "counts"),
    [(1.0, 15, [15, 15]), (10.0, 15, [15, 15]), (10.0, 50, [21, 20])],
)
def test_candidate_bayes_is_the_mean_of_the_exact_posterior(noise, most, counts):
    """The guess is what numpy computes from the density of every step.

    No image of the smaller class counts twice.
    """
    pool, targets = images(41, 3), images(20, 4)
    attack = candidate_bayes(TASK, candidates=most)
    guesses, parts, info = played(attack, pool, targets, noise, EFFECT)
    assert info["candidates"] == counts
    for label, guess, part in zip(targets.y, guesses, parts, strict=True):
        mine = pool.x[pool.y == label][:most].reshape(-1, 1, D)
        gap = part - mine @ EFFECT * (1 + np.arange(T))[:, None]
        log = -(gap**2).sum((1, 2)) / (2 * noise**2)
        weight = np.exp(log - log.max())
        mean = (weight / weight.sum()) @ mine[:, 0]
        np.testing.assert_allclose(np.reshape(guess, D), mean, atol=1e-4)


@pytest.mark.parametrize("name", ["dpsgd", pytest.param("fim", marks=pytest.mark.slow)])
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
    contribute = jax.jit(jax.vmap(law.contribution, (0, 0, None)))
    each = contribute(lane.params, law.sides(lane.params), target)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=6 * float(law.stddev)),
        each, lane.rest,
    )  # fmt: skip
