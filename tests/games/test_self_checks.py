"""What a run measures of itself, and its controls, on inputs with a known answer."""

import jax
import numpy as np
import optax
import pytest

from audit import data
from audit.clipping import soft_clip
from audit.engine import shadow
from audit.games import controls, self_checks
from audit.games.base import Runs
from audit.mechanisms import sampler
from audit.mechanisms.batch import sum_all
from audit.mechanisms.noise import gaussian
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import gradient
from audit.models import networks
from audit.scorecard import flags
from audit.types import Examples, Release, Splits
from defenses.dirdp_sgd import dirdp_sgd
from defenses.dpsgd import dpsgd
from defenses.sgd import sgd
from tests.conftest import public, records

SHAPE = (5, 4, 1)
KEY = jax.random.key(5)
TASK = networks.binary_linear(SHAPE, 2)
SETTINGS = {
    "clip_norm": 0.5, "clip": "soft", "noise_multiplier": 0.7, "learning_rate": 0.1,
    "optimizer": "adam", "steps": 40, "sampling": "full", "batch_size": None,
    "weight_decay": 0.0,
}  # fmt: skip
FIXED = records(60, SHAPE, 2)


def measure(factory=dpsgd, releases=None, runs=1, task=TASK, **changed):
    settings = SETTINGS | changed if factory is dpsgd else changed
    of = shadow.learner(factory, task, settings, key=KEY, public=public(task))
    made = Release(np.zeros((1, 3))) if releases is None else releases
    return self_checks.measure(KEY, Runs(of, made, None, alike=runs), FIXED, 60)


@pytest.mark.parametrize("sampling", ["full", "uniform", "poisson", "shuffled"])
def test_a_sound_defense_measures_as_it_accounts(sampling):
    size = None if sampling == "full" else 12
    seen = measure(sampling=sampling, batch_size=size, steps=40)
    assert seen.noise == pytest.approx(1, abs=4 * seen.noise_se)
    assert seen.shared < 5
    assert 0.85 < seen.contribution <= 1
    if sampling in ("full", "shuffled"):
        assert seen.sampling == sampling
        assert seen.divergence == pytest.approx(1, abs=8 * seen.noise_se)
    assert flags.of_runs(flags.Ran(seen)) == []


LAWS = {"uniform": sampler.uniform_batch, "poisson": sampler.poisson,
        "shuffled": sampler.shuffled_epochs}  # fmt: skip


def test_batches_tell_their_law_but_not_in_a_few_steps():
    for name, law in LAWS.items():
        assert self_checks.law(KEY, law(20), 200, 1000) == name
    assert self_checks.law(KEY, sampler.shuffled_epochs(20), 200, 2) is None


def test_the_same_batch_again_and_again_is_not_amplified():
    once = sampler.uniform_batch(20)
    stuck = once._replace(draw=lambda key, t, n: once.draw(key, 0, n))
    assert self_checks.law(KEY, stuck, 200, 1000) == "full"


def test_other_noise_than_gaussian_is_not_measured():
    common = {"learning_rate": 0.1, "optimizer": "sgd", "steps": 2, "sampling": "full",
              "batch_size": None, "weight_decay": 0.0}  # fmt: skip
    own = {"concentration": 5.0, "variant": "joint", "margin": 0.1}
    assert measure(sgd, **common) == flags.Measured()
    found = measure(dirdp_sgd, aggregate="exact", **own, **common)
    assert {f.name for f in flags.of_runs(flags.Ran(found))} == {"noise-not-measured"}


def test_noise_that_is_right_at_the_first_step_alone_is_noticed():
    """On empty slots too: the fault shows on records, and at later steps."""

    def lazy(of_step):
        def factory(task):
            whole = dpsgd(task, **SETTINGS)
            mechanism = whole.mechanism

            def step(key, state, data):
                after, view = mechanism.step(key, state, data)
                exact = sum_all(mechanism.query, state, data, view.batch)
                quiet = jax.tree.map(lambda u, e: (u + 9 * e) / 10, view.update, exact)
                missing = of_step(state, data)
                update = jax.tree.map(
                    lambda u, q: jax.numpy.where(missing, q, u), view.update, quiet
                )
                return after, view._replace(update=update)

            return whole._replace(mechanism=mechanism._replace(step=step))

        return measure(factory)

    later = lazy(lambda state, data: state.t > 0)
    filled = lazy(lambda state, data: (data.rows >= 0).any())
    for measured in (later, filled):
        texts = {f.name: f.text for f in flags.of_runs(flags.Ran(measured))}
        assert texts["wrong-noise"].endswith("accounted for, tolerance 2.0%")


def test_a_contribution_is_bounded_where_the_query_is_not_linear():
    task = networks.mlp(SHAPE, 2, hidden=4)
    seen = measure(task=task)
    assert 0.85 < seen.contribution <= 1


def test_what_a_step_learns_from_public_data_is_learnt_once_not_in_every_lane():
    """Such fits are nearly all that a defense like `fim` costs."""
    learnt = []

    def learns(task):
        def again(params, side):
            first = jax.tree.leaves(params)[0]
            jax.debug.callback(lambda _: learnt.append(1), first)
            return side

        def refresh(params, side, t):
            return jax.lax.cond(t == 0, lambda p, s: s, again, params, side)

        parts = gradient(task, soft_clip(1.0)), sampler.full_batch(), gaussian(1.0)
        how = {"optimizer": optax.sgd(0.1), "steps": 3, "refresh": refresh}
        return noisy_sgd(task, *parts, **how)

    assert measure(learns).noise == pytest.approx(1, abs=0.2)
    jax.effects_barrier()
    assert len(learnt) == 1


@pytest.mark.parametrize("numbers", [1, 40])
def test_noise_shared_between_targets_is_told_from_chance(numbers):
    """Also where one number says it all, and correlations are 1 and -1."""
    rng = np.random.default_rng(0)
    own, common = rng.normal(size=(80, numbers)), rng.normal(size=numbers)
    assert self_checks.between(own) < 4
    assert self_checks.between(0.1 * own + common) > flags.SHARED
    assert self_checks.between(common + own[:20]) is None  # too few to say
    assert self_checks.between(np.zeros((4, 30))) == np.inf  # nothing differs


# Controls -----------------------------------------------------------------------------


def targets(n=40, classes=2, seed=0):
    return records(n, (6,), classes, seed)


def test_partners_are_others_of_the_class():
    y = targets().y
    other = controls.partner(y)
    assert sorted(other) == list(range(len(y)))
    assert (y[other] == y).all()
    assert (other != np.arange(len(y))).all()
    assert controls.partner(np.array([0, 1, 1]))[0] == 0  # nobody else


def test_the_null_control_of_right_guesses_is_the_distance_of_targets():
    z = targets()
    each = controls.null(np.repeat(z.x[:, None], 3, 1), z)
    other = controls.partner(z.y)
    np.testing.assert_allclose(each, ((z.x[other] - z.x) ** 2).mean(1), rtol=1e-6)


def test_matching_finds_guesses_in_any_order():
    z, pool = targets(), targets(80, seed=1)
    order = np.random.default_rng(2).permutation(len(z.y))
    found = controls.matched(z.x[order], z, pool)
    assert found["matched"] == pytest.approx(0, abs=1e-12)
    assert found["matched_pool"] > 0.01
    assert controls.matched(np.full_like(z.x, np.nan), z, pool)["matched"] is None


def test_known_targets_are_counted_to_eight_bits():
    x = np.round(records(20, SHAPE, 2).x * 255) / 255
    y = np.zeros(20, np.int32)
    parts = [Examples(x[a:b], y[a:b]) for a, b in ((0, 0), (0, 5), (5, 9), (9, 16))]
    splits = Splits(*parts, parts[0], np.arange(7))
    assert data.known_targets(splits) == 0
    near = np.concatenate([splits.pool.x, splits.targets.x[:2] + 1e-4])
    splits = splits._replace(pool=Examples(near, np.zeros(9, np.int32)))
    assert data.known_targets(splits) == 2


@pytest.mark.parametrize("shared", [True, False])
def test_an_attackers_noise_is_told_from_the_releases(shared):
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(24, 40))
    theirs = drawn if shared else rng.normal(size=(24, 40))
    releases = Release({"w": np.repeat(rng.normal(size=(12, 40)), 2, 0) + drawn})
    shadows = Release({"w": 2 * rng.normal(size=(24, 40)) + theirs})
    sure = controls.same_noise(releases, shadows, 2)
    assert (sure > flags.SHARED) == shared
    assert controls.same_noise(releases, shadows, 1) is None
