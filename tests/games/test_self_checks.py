"""What a run measures of itself, and its controls, on inputs with a known answer."""

import jax
import numpy as np
import optax
import pytest

from audit import data
from audit.clipping import soft_clip
from audit.games import controls, self_checks
from audit.games.base import Runs
from audit.mechanisms.batch import sum_all
from audit.mechanisms.noise import gaussian
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import gradient
from audit.mechanisms.sampler import SAMPLERS
from audit.models import networks
from audit.scorecard import flags
from audit.types import Examples, Refresh, Release, Splits
from tests import faulty
from tests.conftest import records
from tests.games import worlds

SHAPE = (5, 4, 1)
KEY = jax.random.key(5)
TASK = networks.binary_linear(SHAPE, 2)
SETTINGS = {
    "clip_norm": 0.5, "noise_multiplier": 0.7, "optimizer": "adam", "steps": 40,
}  # fmt: skip
FIXED = records(60, SHAPE, 2)


def measure(defense="dpsgd", task=TASK, fixed=FIXED, **changed):
    settings = SETTINGS | changed if defense == "dpsgd" else changed
    runs = Runs(
        worlds.learner(task, defense, **settings), Release(np.zeros((1, 3))), None
    )
    return self_checks.measure(KEY, runs, fixed, 60)


@pytest.mark.parametrize("sampling", ["full", "uniform", "poisson", "shuffled"])
def test_a_sound_defense_measures_as_it_accounts(sampling):
    size = None if sampling == "full" else 12
    measured = measure(sampling=sampling, batch_size=size)
    assert measured.noise == pytest.approx(1, abs=4 * measured.noise_se)
    assert measured.shared < 5
    assert 0.85 < measured.contribution <= 1
    if sampling in ("full", "shuffled"):
        assert measured.sampling == sampling
        assert measured.divergence == pytest.approx(1, abs=8 * measured.noise_se)
    # drawn often enough that the tolerance is 2%, not what few draws allow
    assert flags.SURE * measured.noise_se <= flags.SLACK == 0.02
    assert flags.of_runs(flags.Ran(measured)) == []
    off = measured._replace(noise=1 - 1.1 * flags.SLACK)
    assert [f.name for f in flags.of_runs(flags.Ran(off))] == ["wrong-noise"]


@pytest.mark.parametrize("features", [SHAPE, (20, 15, 1)], ids=["few", "many"])
def test_noise_shared_between_steps_is_told_from_a_run_of_one_step(features):
    """Of few parameters there are more draws than are compared with each other."""
    task, fixed = networks.binary_linear(features, 2), records(60, features, 2)
    wrong = measure(faulty.same_noise_every_step, task, fixed)
    assert wrong.shared > 2 * flags.SHARED
    assert measure(task=task, fixed=fixed, steps=1).shared < 5


def test_batches_tell_their_law_but_not_in_a_few_steps():
    for name in ("uniform", "poisson", "shuffled"):
        assert self_checks.law(KEY, SAMPLERS[name](20), 200, 1000) == name
    assert self_checks.law(KEY, SAMPLERS["shuffled"](20), 200, 2) is None


def test_the_same_batch_again_and_again_is_not_amplified():
    once = SAMPLERS["uniform"](20)
    stuck = once._replace(draw=lambda key, t, n: once.draw(key, 0, n))
    assert self_checks.law(KEY, stuck, 200, 1000) == "full"


def test_releases_that_are_no_number_are_counted():
    sound, bad = np.ones((3, 2)), np.array([[1.0, 1.0], [np.inf, 1.0], [1.0, np.nan]])
    assert self_checks.lost(Release({"a": sound, "b": sound})) == ""
    said = self_checks.lost(Release({"a": sound, "b": bad}))
    assert said.startswith("2 of 3 runs")


def test_other_noise_than_gaussian_is_not_measured():
    assert measure("sgd", steps=2) == flags.Measured()
    drawn = measure("dirdp_sgd", steps=2, concentration=5.0, margin=0.1)
    assert {f.name for f in flags.of_runs(flags.Ran(drawn))} == {"noise-not-measured"}


def test_noise_that_is_right_at_the_first_step_alone_is_noticed():
    """On empty slots too: the fault shows on records, and at later steps."""

    sound = worlds.learner(TASK, "dpsgd", **SETTINGS).defense

    mechanism = sound.mechanism

    def lazy(is_quiet):
        def step(key, state, data):
            after, view = mechanism.step(key, state, data)
            exact = sum_all(mechanism.query, state, data, view.batch)
            share = jax.numpy.where(is_quiet(state, data), 0.1, 1.0)
            mix = lambda u, e: share * u + (1 - share) * e
            update = jax.tree.map(mix, view.update, exact)
            return after, view._replace(update=update)

        return lambda task: sound._replace(mechanism=mechanism._replace(step=step))

    later = lazy(lambda state, data: state.t > 0)
    filled = lazy(lambda state, data: (data.rows >= 0).any())
    for factory in (later, filled):
        ran = flags.Ran(measure(factory))
        texts = {f.name: f.text for f in flags.of_runs(ran)}
        assert texts["wrong-noise"].endswith("accounted for, tolerance 2.0%")


def test_a_contribution_is_bounded_where_the_query_is_not_linear():
    task = networks.mlp(SHAPE, 2, hidden=4)
    assert 0.85 < measure(task=task).contribution <= 1


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

        parts = gradient(task, soft_clip(1.0)), SAMPLERS["full"](None), gaussian(1.0)
        follow = Refresh(refresh)
        how = {"optimizer": optax.sgd(0.1), "steps": 3, "refresh": follow}
        return noisy_sgd(task, *parts, **how)

    assert measure(learns).noise == pytest.approx(1, abs=0.2)
    jax.effects_barrier()
    assert len(learnt) == 1


@pytest.mark.parametrize("numbers", [1, 40])
def test_noise_shared_between_targets_is_told_from_chance(numbers):
    """Also where one number says it all, and correlations are 1 and -1."""
    rng = np.random.default_rng(0)
    apart, common = rng.normal(size=(80, numbers)), rng.normal(size=numbers)
    assert self_checks.between(apart) < 4
    assert self_checks.between(0.1 * apart + common) > flags.SHARED
    assert self_checks.between(common + apart[:20]) is None  # too few to say
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


def test_who_is_alone_in_a_class_has_no_part_in_the_null_control():
    z, pool = targets(5), targets(80, seed=1)
    z = z._replace(y=np.array([0, 1, 1, 1, 2]))
    summary, arrays = controls.of_guesses(z.x[:, None] + 0.1, z, pool)
    assert np.isnan(arrays["null"]).tolist() == [True, False, False, False, True]
    paired = arrays["null"][1:4]
    assert summary["null"]["error"] == pytest.approx(paired.mean())
    assert summary["null"]["error_se"] == pytest.approx(paired.std(ddof=1) / 3**0.5)


def test_matching_finds_guesses_in_any_order():
    z, pool = targets(), targets(80, seed=1)
    order = np.random.default_rng(2).permutation(len(z.y))
    errors = controls.matched(z.x[order], z, pool)
    assert errors["matched"] == pytest.approx(0, abs=1e-12)
    assert min(errors["matched_pool"], errors["in_order"]) > 0.01
    assert controls.matched(np.full_like(z.x, np.nan), z, pool)["matched"] is None


@pytest.mark.parametrize("count", [2, 4, 50])
def test_weak_guesses_in_their_order_are_not_called_shuffled(count):
    """Their error is below half of that of pool images, which vary as targets do."""
    z, pool = (records(n, (300,), 1, seed) for n, seed in ((count, 0), (400, 1)))
    mean = np.asarray(pool.x).mean(0)
    errors = controls.matched(mean + 0.15 * (np.asarray(z.x) - mean), z, pool)
    assert errors["matched"] == pytest.approx(errors["in_order"], rel=1e-6)
    assert errors["matched"] < flags.MATCH * errors["matched_pool"]


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
