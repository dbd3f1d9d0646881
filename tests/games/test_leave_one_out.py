"""One training set, every record in turn: the referee, the defenses, the attacks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.class_mean import class_mean
from attacks.glm_attack import glm_attack
from attacks.glm_attack_clamped import glm_attack_clamped
from audit.accounting import bounds, rdp
from audit.accounting.reconstruction_robustness import as_bound, blind_radii
from audit.config import registry
from audit.engine import shadow
from audit.games import base, guarantees, rows
from audit.games.base import Runs, take
from audit.games.leave_one_out import BlockScores, _decomposed, leave_one_out
from audit.games.reconstruction import reconstruction
from audit.mechanisms.glm import information_loss, losses, reweighting
from audit.models import dense, networks
from audit.statistics import metrics
from audit.types import Examples, Release, ThreatModel, TrainingSet
from tests.conftest import double, records
from tests.games import worlds
from tests.games.worlds import ENGINE, KEY

SHAPE, N, RUNS = (4, 4, 1), 30, 6
TASK, GAME, DELTA = networks.binary_linear(SHAPE, 2), leave_one_out(), 1e-9
FIXED, POOL = records(N, SHAPE, 2, seed=1), records(12, SHAPE, 2, seed=2)
PROBLEM = worlds.problem(TASK, FIXED, POOL)
RECORDS = TrainingSet(FIXED, None)


@functools.cache
def defense(name="output_perturbed_glm", **given):
    return worlds.learner(TASK, name, **given)


def play(learner, attack=None, runs=RUNS, delta=None):
    attack = glm_attack(TASK) if attack is None else attack
    return worlds.play(GAME, attack, learner, worlds.table(PROBLEM, runs), delta)


def account(learner):
    return GAME.account(KEY, Runs(learner, None, None), worlds.table(PROBLEM))


def design(width=17):
    """Return the records as the loss sees them, a constant feature last."""
    x = np.asarray(FIXED.x, float).reshape(N, -1)
    return np.append(x, np.ones((N, 1)), 1)[:, :width]


def slopes(w):
    """Return the logistic loss' slope at every record."""
    return 1 / (1 + np.exp(-design(len(w)) @ w)) - FIXED.y


# The referee --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "intercept", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_the_referee_hands_out_what_the_others_leave(intercept):
    """Through an attack whose guess is a part of `rest`."""
    guess = lambda observation: observation.rest[:16].reshape(SHAPE)
    spy = worlds.spy("reconstruction", guess, ["params"], ["objective"])
    played = play(defense(intercept=intercept, noise_stddev=0.1), spy.attack)
    mse = np.zeros((N, RUNS))
    for k, w in enumerate(played.runs.releases.params):
        for i, others in enumerate(~np.eye(N, dtype=bool)):
            rest = design(len(w))[others].T @ slopes(w)[others] + N * 1e-2 * w
            mse[i, k] = ((rest[:16] - FIXED.x[i].reshape(-1)) ** 2).mean()
    arrays = played.arrays
    np.testing.assert_allclose(arrays["mse"], mse.mean(1), rtol=1e-6)
    np.testing.assert_allclose(arrays["mse_median"], np.median(mse, 1), rtol=1e-6)
    typical = np.median(np.median(mse, 1))
    np.testing.assert_allclose(played.numbers["mse_typical"], typical, rtol=1e-6)
    assert spy.shown() == {"params", "rest"}
    assert played.numbers["runs"] == RUNS


def test_weights_are_divided_out_of_what_the_others_leave():
    settings = {"intercept": True, "iterations": 3, "noise_stddev": 1e-9}
    assert play(defense("reweighted_glm", **settings)).numbers["mse"] < 1e-9


@pytest.mark.parametrize("loss", ["linear", "logistic"])
@pytest.mark.parametrize("intercept", [False, True])
def test_without_noise_every_record_is_rebuilt(loss, intercept):
    played = play(defense("glm", loss=loss, intercept=intercept), delta=DELTA)
    assert played.limits.dfil is None
    assert played.limits.bounds == ()
    mse = played.arrays["mse"]
    if intercept:
        assert mse.max() < 1e-18
    else:  # a wrong root is the same picture at another brightness
        assert np.median(mse) < 1e-18
        assert (mse < 1e-18).mean() > 0.6
    assert played.numbers["runs"] == len(played.runs.releases.params) == 2


def test_the_error_has_the_closed_form():
    """xhat - x = (G_F - G_0 x) / (G_0 - r), G the whole gradient at the release."""
    played, x = play(defense(intercept=True, noise_stddev=1e-3)), design()
    errors = []
    for w in played.runs.releases.params:
        whole = x.T @ slopes(w) + N * 1e-2 * w
        off = (whole[:-1] - whole[-1] * x[:, :-1]) / (whole[-1] - slopes(w))[:, None]
        errors.append((off**2).mean(1))
    np.testing.assert_allclose(played.arrays["mse"], np.mean(errors, 0), rtol=1e-7)
    over_both = metrics.crossed_standard_error(np.transpose(errors))
    np.testing.assert_allclose(played.numbers["mse_se"], over_both, rtol=1e-7)


def test_small_noise_attains_the_bound_on_the_average_direction():
    """For small noise the error is linear in it; it may not beat Cramer-Rao."""
    little = defense(intercept=True, noise_stddev=1e-6)
    played = play(little, runs=200, delta=DELTA)
    ratio = played.arrays["mse"] / (1 / played.limits.dfil)
    assert ratio.min() > 0.8  # 200 draws of 16 coordinates: sd about 2.5%
    assert played.numbers["below_bound"]["within"] == N
    assert played.numbers["below_bound"]["within_below"] == 0


def test_clamped_guesses_stay_in_the_domain_and_are_split_into_bias_and_variance():
    noised = defense(intercept=True, noise_stddev=0.1)
    numbers, arrays = play(noised, glm_attack_clamped(TASK)).result[1:3]
    assert arrays["mse"].max() <= 1
    np.testing.assert_allclose(arrays["bias2"] + arrays["variance"], arrays["mse"])
    assert numbers["bias2"] is not None
    # guesses leave the domain: they need not have a mean
    assert play(noised).numbers["bias2"] is None


def test_the_clamped_guess_by_hand():
    """The slope has its label's sign and is not too small, pixels are in the domain."""
    noised = defense(intercept=True, noise_stddev=0.1)
    played, x = play(noised, glm_attack_clamped(TASK, least_slope=0.2)), design()
    sign, errors, moved = 1 - 2 * FIXED.y, [], 0
    for w in played.runs.releases.params:
        rest = x.T @ slopes(w) + N * 1e-2 * w - slopes(w)[:, None] * x
        slope = sign * np.clip(-sign * rest[:, -1], 0.2, 1)
        moved += (slope != -rest[:, -1]).sum()
        guess = np.clip(-rest[:, :-1] / slope[:, None], 0, 1)
        errors.append(((guess - x[:, :-1]) ** 2).mean(1))
    assert 0.1 < moved / (N * RUNS) < 0.9
    np.testing.assert_allclose(played.arrays["mse"], np.mean(errors, 0), rtol=1e-6)


def test_no_variance_is_negative_where_guesses_differ_by_rounding():
    """The mean of errors and the error of the mean then differ by rounding alone."""
    guesses = np.float32(0.7) + np.float32(1e-8) * np.arange(6, dtype=np.float32)
    each = np.broadcast_to((guesses - np.float32(0.1)) ** 2, (50, 6))
    mean = np.broadcast_to(guesses.mean(), (50, 1)) + np.float32(1e-7)
    scores = BlockScores(each, mean, mean, np.ones(50, bool))
    parts = _decomposed(scores, np.full((50, 1), np.float32(0.1)))
    assert (each.mean(1) < ((mean - np.float32(0.1)) ** 2).mean(1)).all()  # by rounding
    assert (parts.variance == 0).all()
    np.testing.assert_array_equal(parts.bias2, parts.mse)


def test_one_solve_serves_all_releases_and_is_the_defenses_own():
    noised = defense(noise_stddev=0.1)
    runs = GAME.release(KEY, noised, worlds.table(PROBLEM, RUNS))
    key = base.stream(KEY, "target runs")
    how = {"engine": ENGINE, "precise": True, "runs": RUNS}
    swept = shadow.sweep("train", noised, key, RECORDS, **how)
    np.testing.assert_allclose(runs.releases.params, swept.params, rtol=1e-9)
    noise = runs.releases.params - runs.noiseless.params
    assert 0.05 < noise.std() < 0.2


def test_other_defenses_play_too():
    """DP-SGD has no objective: what it releases is guessed from the release alone."""
    dpsgd = defense("dpsgd", steps=2)
    spy = worlds.spy("reconstruction", jnp.zeros(SHAPE), sees=["params"])
    played = play(dpsgd, spy.attack, delta=DELTA)
    assert played.runs.noiseless is None
    assert played.limits.dfil.shape == (N,)
    assert played.limits.eta is None
    assert played.numbers["targets"] == N
    train = ThreatModel("reconstruction", knows=frozenset({"train"}))
    for model, learner, reason in (
        (glm_attack(TASK).threat_model, dpsgd, "the defense is not glm"),
        (train, defense(), "this game cannot grant train"),
    ):
        assert base.mismatch(model, learner.defense, GAME) == reason


@pytest.mark.parametrize(
    ("name", "settings", "most"),
    [
        ("glm", {}, 1e-18),
        # weights are those of the release, which the target changes
        ("reweighted_glm", {"noise_stddev": 1e-9, "iterations": 5}, 1e-10),
    ],
)
def test_the_join_game_hands_it_out_as_well(name, settings, most):
    targets = jax.tree.map(lambda a: a[:5], POOL)
    table = worlds.table(worlds.problem(TASK, FIXED, POOL, targets=targets))
    glm = defense(name, intercept=True, **settings)
    played = worlds.play(reconstruction(), glm_attack(TASK), glm, table)
    assert played.arrays["mse"].max() < most


@pytest.mark.parametrize("intercept", [False, True])
def test_labels_that_are_numbers_are_of_one_class(intercept):
    """The floor is the mean of all, and a linear model without noise gives x away."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.2, 1, (40, 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5] + rng.normal(0, 0.1, 40)).astype(np.float32)
    fixed, pool = Examples(x[:25], y[:25]), Examples(x[25:], y[25:])
    task = networks.regression((3,), 0)
    table = worlds.table(worlds.problem(task, fixed, pool))
    glm = worlds.learner(task, "glm", loss="linear", intercept=intercept)
    floor, attacked = (
        worlds.play(GAME, attack(task), glm, table).arrays["mse"]
        for attack in (class_mean, glm_attack)
    )
    np.testing.assert_allclose(floor, ((x[:25] - x[25:].mean(0)) ** 2).mean(1), 1e-5)
    assert np.median(attacked) < 1e-8


@pytest.mark.slow
def test_test_records_are_scored_in_blocks_that_memory_holds(monkeypatch):
    """At 7 of 20 at a time the last block is padded; the accuracy is the same."""
    task = networks.lenet((16, 16, 1), 2)
    test = records(20, (16, 16, 1), 2, seed=4)
    table = worlds.table(worlds.problem(task, test, test), runs=3)
    learner = worlds.learner(task, "sgd", learning_rate=1.0, steps=2)
    runs = leave_one_out().release(KEY, learner, table)
    releases = jax.tree.map(lambda a: np.repeat(a, 3, 0), runs.releases)
    runs, splits = runs._replace(releases=releases), table.problem.splits
    whole = rows.utility(runs, splits)
    monkeypatch.setattr(rows, "TOGETHER", 2)
    monkeypatch.setattr(rows, "HELD", 2 * 7 * dense.patches(task))
    assert rows.utility(runs, splits) == whole
    assert 0 < whole["accuracy"] < 1


# What is accounted --------------------------------------------------------------------


def test_accounting_in_turn_is_the_leave_one_out_accounting():
    """Record i among n, or as the target that joins the n - 1 others: one number."""
    noised = defense(intercept=True)
    limits = account(noised)
    for i in (0, 7):
        others = jax.tree.map(lambda a, i=i: np.delete(a, i, 0), FIXED)
        joined = worlds.problem(TASK, others, POOL, targets=take(FIXED, [i]))
        alone = guarantees.joined(KEY, noised, worlds.table(joined))
        np.testing.assert_allclose(alone.dfil[0], limits.dfil[i], rtol=1e-9)
        np.testing.assert_allclose(alone.eta[0], limits.eta[i], rtol=1e-9)
        assert alone.rdp2 == limits.rdp2


def test_a_record_may_be_one_number():
    task = networks.binary_linear((1,), 2)
    fixed, pool = records(N, (1,), 2, seed=1), records(12, (1,), 2, seed=2)
    table = worlds.table(worlds.problem(task, fixed, pool))
    glm = worlds.learner(task, "output_perturbed_glm", noise_stddev=0.1)
    limits = {b.name: b for b in guarantees.in_turn(KEY, glm, table).bounds}
    spread = max(pool.x[pool.y == c].var(ddof=1) for c in (0, 1))
    assert 0 < limits["van_trees"].value < 1.5 * spread


@pytest.mark.parametrize("alone", [[1], [0, 1]], ids=["one_class", "every_class"])
def test_a_class_with_one_pool_record_has_no_gaussian_prior(alone):
    """It adds neither a bound nor a floor; under this noise next to nothing leaks."""
    fixed, pool = records(N, (3,), 2, seed=1), records(12, (3,), 2, seed=2)
    first = np.array([np.flatnonzero(pool.y == c)[0] for c in alone])
    pool = take(pool, np.union1d(first, np.flatnonzero(~np.isin(pool.y, alone))))
    task = networks.binary_linear((3,), 2)
    glm = worlds.learner(task, "output_perturbed_glm", noise_stddev=1e4)
    table = worlds.table(worlds.problem(task, fixed, pool))
    limits = {b.name: b.value for b in guarantees.in_turn(KEY, glm, table).bounds}
    assert "cramer_rao" in limits
    if len(alone) == 2:
        assert "van_trees" not in limits
        return
    floor = (fixed.x - pool.x[pool.y == 0].mean(0)) ** 2
    want = (floor.mean(1) * (fixed.y == 0)).mean() * 5 / 6  # v (1 + 1 / n) is the floor
    assert (pool.y == 0).sum() == 5
    np.testing.assert_allclose(limits["van_trees"], want, rtol=1e-4)


def test_a_class_has_the_bound_of_its_own_records_and_its_share_of_the_whole():
    """Van Trees and reconstruction robustness, class by class, of nine records."""
    zeros, ones = (np.flatnonzero(FIXED.y == c) for c in (0, 1))
    z = take(FIXED, np.append(zeros[:7], ones[:2]))
    traces, splits = np.where(z.y == 0, 1.0, 300.0), PROBLEM.splits
    loss, shares = rdp.GaussianPrivacy(1.0), {0: 7 / 9, 1: 2 / 9}
    bound = floor = expected = robust = 0.0
    for label, share in shares.items():
        x = POOL.x[POOL.y == label].reshape(-1, 16).astype(float)
        spread = np.maximum(np.linalg.eigvalsh(np.cov(x.T)), 0)
        trace = traces[z.y == label].mean()
        bound += share * bounds.van_trees(trace, spread).value
        gaps = z.x[z.y == label].reshape(-1, 16) - x.mean(0)
        floor += share * (gaps**2).mean()
        expected += share * spread.mean() * (1 + 1 / len(x))
        radii, blind = blind_radii(x), np.arange(1, len(x)) / len(x)
        robust += share * as_bound(radii, blind, loss).value
    (got,) = guarantees._gaussian_prior(traces, z, splits)
    np.testing.assert_allclose(got.value, bound * floor / expected, rtol=1e-6)
    got = guarantees._reconstruction_robustness(loss, splits, z)
    np.testing.assert_allclose(got.value, robust, rtol=1e-5)
    # whoever may be left out needs less of a shift than whoever is replaced
    both = {"replace_one": rdp.GaussianPrivacy(2.0), "add_remove": loss}
    dpsgd = defense("dpsgd", steps=2).defense
    made = guarantees._of_losses(both.get, dpsgd, PROBLEM, z)
    named = {b.name: b.value for b in made}
    np.testing.assert_allclose(named["reconstruction_robustness"], got.value)


def test_eta_of_the_set_and_of_each_class_is_that_of_their_records_together():
    """The largest singular value of d w / d x of all of them, over the noise."""
    learner = defense(intercept=True, noise_stddev=0.5)
    etas = account(learner).arrays["eta_of_groups"]
    with jax.enable_x64(True):
        solve, z = jax.jit(learner.defense.mechanism.solve), double(FIXED)

        def released(x, i):
            rows = np.arange(N)[:, None, None, None] == i
            moved = z._replace(x=np.where(rows, x, z.x))
            return solve(None, TrainingSet(moved, None))

        each = [jacobian(functools.partial(released, i=i), z.x[i]) for i in range(N)]
    groups = [range(N), *(np.flatnonzero(FIXED.y == c) for c in (0, 1))]
    exact = [np.linalg.norm(np.concatenate([each[i] for i in g], 1), 2) for g in groups]
    np.testing.assert_allclose(etas, np.array(exact) / 0.5, rtol=1e-5)


def jacobian(release, x):
    """Return d release / d x, by central differences [D, 16]."""
    steps = 1e-5 * np.eye(16).reshape(16, *SHAPE)
    ends = [np.asarray(release(x + h)) - np.asarray(release(x - h)) for h in steps]
    return np.stack(ends, 1) / 2e-5


def test_closed_forms_are_the_derivative_of_what_is_released():
    """Jacobian-vector products through the very solve that training calls."""
    glm = defense(intercept=True, noise_stddev=0.5).defense
    with jax.enable_x64(True):
        joined = double(TrainingSet(FIXED, take(FIXED, 3)))
        target, solve = joined.target, jax.jit(glm.mechanism.solve)
        moved = lambda x: joined._replace(target=target._replace(x=x))
        dense = jacobian(lambda x: solve(None, moved(x)), target.x) / 0.5
        trace, norm = glm.mechanism.fil(KEY, None, joined, np.array([N]))
        np.testing.assert_allclose(trace[0], (dense**2).sum(), rtol=1e-6)
        np.testing.assert_allclose(norm[0], np.linalg.norm(dense, 2) ** 2, rtol=1e-6)
        np.testing.assert_allclose(glm.fisher(KEY, None, joined, np.array([N])), trace)


def test_a_private_label_is_one_number_more_of_a_record():
    """In its loss, in that of the whole set, and in the weights that even losses out.

    Against central differences of the very solve, features first and the label last.
    """
    n = 24  # with fewer records than weights, labels are lost on the set's norm
    task = networks.regression(SHAPE, 0)._replace(label_private=True)
    settings = {"loss": "linear", "noise_stddev": 0.5}
    glm = worlds.learner(task, "output_perturbed_glm", **settings).defense.mechanism
    other = {"iterations": 1, "min_weight": 1e-3, "max_weight": 1e3}
    evened = worlds.learner(task, "reweighted_glm", **settings, **other).defense
    with jax.enable_x64(True):
        z = double(take(FIXED, slice(n)))._replace(y=np.linspace(-1, 1, n))
        solve = jax.jit(lambda x, y: glm.solve(None, TrainingSet(Examples(x, y), None)))

        def moves(i):
            """Return d w / d (x_i, y_i) [16, 17]."""
            mine = np.arange(n) == i
            place = mine[:, None, None, None]
            of_x = jacobian(lambda x: solve(np.where(place, x, z.x), z.y), z.x[i])
            ends = [np.asarray(solve(z.x, z.y + h * mine)) for h in (1e-5, -1e-5)]
            return np.column_stack([of_x, (ends[0] - ends[1]) / 2e-5])

        each = [moves(i) for i in range(n)]
        etas = np.array([np.linalg.norm(jacobian, 2) for jacobian in each])
        norms = glm.fil(KEY, None, TrainingSet(z, None), np.arange(n))[1]
        np.testing.assert_allclose(norms, (etas / 0.5) ** 2, rtol=1e-6)
        whole = glm.anatomy(None, TrainingSet(z, None))["eta_of_groups"][0]
        exact = np.linalg.norm(np.concatenate(each, 1), 2) / 0.5
        np.testing.assert_allclose(whole, exact, rtol=1e-6)
        weights = jax.jit(evened.mechanism.objective.weights)(None, z)
        np.testing.assert_allclose(weights, 1 / etas / (1 / etas).mean(), rtol=1e-6)


def test_the_renyi_reading_knows_how_long_records_are():
    n, orders, one = 12_665, np.array([2.0]), 2.4937309940681924
    settings = {"noise_stddev": 1e-2, "regularization": 1e-2}
    for norm, value in ((1.0, one), (17.179, 735.94)):
        learner = defense(max_norm=norm, **settings)
        curve = learner.defense.rdp(n, orders, "replace_one")
        np.testing.assert_allclose(curve, value, rtol=1e-4)
        removed = learner.defense.rdp(n, orders, "add_remove")
        np.testing.assert_allclose(4 * removed, curve)
        divergence, bound = guarantees.without_bounds(learner, n, DELTA).nominal
        np.testing.assert_allclose(divergence.value, one)
        np.testing.assert_allclose(bound.value, 0.02250962365)
        assert (divergence.void is None) == (norm == 1)
    for intercept in (False, True):  # what [0, 1]^16 allows, and a constant feature
        unbounded = defense(intercept=intercept, **settings).defense
        longest = unbounded.rdp(n, orders, "replace_one")
        np.testing.assert_allclose(longest, one * (16 + intercept))


def test_no_record_moves_the_minimiser_further_than_its_sensitivity():
    bound = 2 * np.sqrt(17) / (N * 1e-2)
    rng, others = np.random.default_rng(0), take(FIXED, slice(1, None))
    with jax.enable_x64(True):
        solve = jax.jit(defense(intercept=True).defense.mechanism.solve)
        ends = []
        for _ in range(20):
            x = rng.integers(0, 2, SHAPE).astype(float)
            target = FIXED._replace(x=x, y=rng.integers(0, 2))
            ends.append(solve(None, TrainingSet(others, target)))
    apart = max(np.linalg.norm(a - b) for a in ends for b in ends)
    assert 0 < apart <= bound


@pytest.mark.parametrize("norm", [0.05, 1.5])
def test_bounds_are_of_records_that_are_accepted(norm, monkeypatch):
    """HCR is at most the least 1/dFIL; two points are corners, if these are accepted.

    1/dFIL is nearly what the best unbiased attacker attains at so much noise. The
    square's corners have a norm of up to 1.41.
    """
    monkeypatch.setattr(guarantees, "_finite_prior", lambda *_: ([], ""))  # slow
    shape, rng = (1, 2, 1), np.random.default_rng(0)
    z = Examples(0.7 * norm * rng.random((50, *shape)), np.arange(50) % 2)
    task = networks.binary_linear(shape, 2)
    settings = {"noise_stddev": 0.5, "regularization": 0.5, "max_norm": norm}
    glm = worlds.learner(task, "output_perturbed_glm", **settings)
    table = worlds.table(worlds.problem(task, z, z, targets=take(z, slice(4))))
    limits = {b.name: b for b in guarantees.joined(KEY, glm, table).bounds}
    most = 1.01 * limits["cramer_rao"].value.min()
    assert 0 < limits["hammersley_chapman_robbins"].value < most
    assert limits["hammersley_chapman_robbins_at"].value.max() < most
    assert ("two_point" in limits) == ("two_point_unbiased" in limits) == (norm == 1.5)


def test_losses_without_a_theorem_have_no_curve():
    assert defense(loss="linear").defense.rdp is None
    assert defense("reweighted_glm").defense.rdp is None
    assert defense("reweighted_glm").defense.log_likelihood is None
    assert defense("glm").defense.mechanism.fil is None


@pytest.mark.slow
def test_the_genies_likelihood_is_the_gaussians():
    """Join game: which candidate was the target, given the release."""
    glm = defense(noise_stddev=0.3).defense
    with jax.enable_x64(True):
        joined = TrainingSet(FIXED, take(POOL, 0))
        ratios = glm.log_likelihood(KEY, None, joined, POOL)
        release = glm.train(KEY, None, joined).params
        solve = jax.jit(glm.mechanism.solve)
        centre = solve(None, joined)
        for i in (0, 5, 11):
            mean = solve(None, TrainingSet(FIXED, take(POOL, i)))
            exact = ((release - centre) ** 2).sum() - ((release - mean) ** 2).sum()
            ratio = ratios[i] - ratios[-1]
            np.testing.assert_allclose(ratio, exact / (2 * 0.3**2), atol=1e-9)


# Reweighting --------------------------------------------------------------------------


@pytest.mark.slow
def test_reweighting_evens_out_the_losses():
    limits = account(defense("reweighted_glm", noise_stddev=0.5, iterations=15))
    spread = limits.arrays["eta_sd"]
    assert len(spread) == 16
    assert spread[-1] < 0.05 * spread[0]
    np.testing.assert_allclose(limits.eta.std(), spread[-1], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(limits.eta.mean(), limits.arrays["eta_mean"][-1])
    before = account(defense(noise_stddev=0.5))
    np.testing.assert_allclose(before.eta.std(), spread[0], rtol=1e-9)


def test_iterations_go_on_from_each_others_weights():
    """Losses a sqrt(weight) are even at weights of 1 / a^2, and at no others."""
    a = np.array([0.5, 1.0, 1.5, 3.0])
    settings = {"classes": 0, "method": "sample", "least": 0.0, "most": np.inf}
    with jax.enable_x64(True):
        eta = lambda weight: a * jnp.sqrt(weight)
        got = reweighting.reweigh(eta, a, iterations=50, **settings)
    mean, sd = np.asarray(got.eta_mean), np.asarray(got.eta_sd)
    weight = a**-2 / (a**-2).mean()
    np.testing.assert_allclose(got.weight, weight, rtol=1e-12)
    np.testing.assert_allclose(mean[[0, -1]], [a.mean(), a[0] * weight[0] ** 0.5])
    np.testing.assert_allclose(sd[[0, -1]], [a.std(), 0], atol=1e-12)


def test_one_iteration_is_algorithm_one_by_hand():
    def weights(**given):
        glm = worlds.learner(TASK, "reweighted_glm", iterations=1, **given).defense
        return np.asarray(jax.jit(glm.mechanism.objective.weights)(None, FIXED))

    with jax.enable_x64(True):
        loss, y = losses.LOSSES["logistic"], np.asarray(FIXED.y, float)
        x, ones = losses.design(FIXED.x.astype(float), False), np.ones(N)
        w = losses.minimise(loss, x, y, ones, N * 1e-2)
        curved = losses.hessian(loss, x, y, ones, N * 1e-2, w)
        fit = information_loss.fitted(loss, w, curved, x, y, ones, 16)
        eta = np.sqrt(np.asarray(information_loss.example(fit, label=False)))
        sample = (1 / eta) / (1 / eta).mean()
        means = np.array([sample[y == c].mean() for c in (0, 1)])[y.astype(int)]
        both = means * sample
        for given, exact in (
            ({}, sample),
            ({"method": "class"}, means / means.mean()),
            ({"method": "hybrid"}, both / both.mean()),
            ({"min_weight": 0.9, "max_weight": 1.1}, np.clip(sample, 0.9, 1.1)),
        ):
            np.testing.assert_allclose(weights(**given), exact, rtol=1e-9)


def test_no_bound_is_made_of_the_loss_at_fixed_weights():
    limits = account(defense("reweighted_glm", noise_stddev=0.5, iterations=1))
    assert limits.bounds == ()
    assert limits.dfil.shape == limits.eta.shape == (N,)


@pytest.mark.slow
def test_the_published_loss_is_not_that_of_the_whole_procedure():
    """The weights depend on the record too, which the published Jacobian leaves out.

    The true information is larger, so that 1/dFIL at fixed weights is no lower bound.
    """
    settings = {"loss": "linear", "iterations": 5, "noise_stddev": 1.0}
    glm = defense("reweighted_glm", **settings).defense
    with jax.enable_x64(True):
        x = np.asarray(FIXED.x, float)
        solve = jax.jit(glm.mechanism.solve)

        def release(moved):
            every = np.concatenate([x[:4], moved[None], x[5:]])
            return solve(None, TrainingSet(FIXED._replace(x=every), None))

        records = TrainingSet(FIXED._replace(x=x), None)
        trace, _ = glm.mechanism.fil(KEY, None, records, np.arange(N))
        whole = (jacobian(release, x[4]) ** 2).sum()
    assert whole > 1.5 * float(trace[4])


def test_classes_are_needed_where_they_are_used():
    task = networks.regression((3,), 0)
    glm = registry.find("defense", "reweighted_glm")(
        task, loss="linear", method="class"
    )
    z = records(5, (3,), 2)._replace(y=np.linspace(0, 1, 5))
    with pytest.raises(ValueError, match="method=class needs class labels"):
        glm.mechanism.objective.weights(None, z)


def test_a_release_is_a_model():
    w = np.append(np.zeros(16), 1.0)
    glm = defense("glm", intercept=True).defense
    logits = glm.predict(None, Release(jnp.asarray(w)), POOL.x)
    np.testing.assert_array_equal(logits, np.tile([0.0, 1.0], (12, 1)))
