"""Audits of epsilon with canaries: what is planted, what runs say, what is proved."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from attacks.gradient_llr import gradient_llr
from attacks.one_run import one_run
from audit.accounting import rdp
from audit.config import registry
from audit.config.schema import Canaries
from audit.engine import shadow
from audit.errors import UserError
from audit.games import base, canary, epsilon_audit
from audit.games.base import Problem, Table
from audit.mechanisms import canaries
from audit.models import networks
from audit.types import (
    Examples,
    Lanes,
    Splits,
)
from tests.conftest import public, records

KEY = jax.random.key(0)
D, RUNS, STEPS = 5, 1500, 3


def problem(**asked):
    planted = Canaries(**asked)
    plain = networks.binary_linear((D,), 2)
    task = canaries.plant(plain, planted.count, planted.norm)
    fixed, pool, test = (records(n, (D,), 2, s) for n, s in ((6, 1), (8, 2), (9, 3)))
    nobody = jax.tree.map(lambda a: a[:0], fixed)
    splits = Splits(nobody, fixed, nobody, pool, test, np.arange(8))
    return Problem(task, splits, None, fixed.x, canaries=planted)


def learner(at, **given):
    settings = {"clip": "hard", "steps": STEPS, "noise_multiplier": 2.0, **given}
    settings = registry.check("defense", "dpsgd", settings, "dpsgd")
    factory = registry.find("defense", "dpsgd")
    start = public(at.task)
    return shadow.learner(factory, at.task, settings, key=KEY, public=start)


def played(game, attack, at, of, runs=1, tile=500):
    table = Table(at, shadow.Engine(Lanes(tile)), runs, "none")
    made = game.release(KEY, of, table)
    table = table._replace(made=made)
    held = game.account(KEY, of, table, 1, 1e-5)
    one = attack(at.task)
    result, arrays = game.play(KEY, one, of, made.releases, held, table)
    return result, arrays, made, held


# What is planted ----------------------------------------------------------------------


def test_a_canary_moves_its_own_parameter_and_nobody_elses():
    at = problem(count=3)
    params = public(at.task).params
    many = canaries.records("gradient", 3, at.task, at.splits.pool)
    grad = jax.vmap(jax.grad(at.task.loss), (None, 0))
    own = grad(params, many)
    np.testing.assert_allclose(own["canaries"], 1000 * np.eye(3))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(own["model"]))
    others = grad(params, at.splits.fixed)
    assert not np.any(others["canaries"])
    plain = networks.binary_linear((D,), 2)
    same = jax.vmap(jax.grad(plain.loss), (None, 0))(params["model"], at.splits.fixed)
    jax.tree.map(np.testing.assert_array_equal, others["model"], same)


def test_an_empty_slot_contributes_nothing():
    at = problem(kind="input", count=4)
    many = canaries.records("input", 4, at.task, at.splits.pool)
    np.testing.assert_array_equal(many.y, (at.splits.pool.y[:4] + 1) % 2)
    some = canaries.present(many, [True, False, True, False])
    grad = jax.vmap(jax.grad(at.task.loss), (None, 0))(public(at.task).params, some)
    lengths = sum(
        (np.asarray(g).reshape(4, -1) ** 2).sum(1) for g in jax.tree.leaves(grad)
    )
    np.testing.assert_array_equal(lengths > 0, [True, False, True, False])


def test_what_cannot_be_planted_is_refused():
    with pytest.raises(ValueError, match="labels that are classes"):
        canaries.plant(networks.regression((D,), 0), 1, 1.0)
    at = problem(kind="input", count=20)
    with pytest.raises(UserError, match=r"canaries\.count=20: 20 input canaries from"):
        canary.planted(at)


# Two worlds ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_worlds():
    at = problem()
    of = learner(at)
    return at, of, *played(canary.CANARY, gradient_llr, at, of, RUNS)


def test_the_ratio_has_the_law_of_the_closed_form(two_worlds):
    """N(-mu^2 / 2, mu^2) without the canary, N(mu^2 / 2, mu^2) with it."""
    made = two_worlds[4]
    mu = math.sqrt(STEPS) / 2.0
    for ratios, sign in zip(made.looked.ratios[0], (1, -1), strict=True):
        law = stats.norm(sign * mu**2 / 2, mu)
        assert stats.kstest(ratios, law.cdf).pvalue > 1e-3


def test_the_roc_is_the_closed_form_inside_its_band(two_worlds):
    _, of, result, _, _, _ = two_worlds
    assert of.defense.pld(7, "add_remove").mu == pytest.approx(math.sqrt(STEPS) / 2)
    assert result["in_band"] == {"above": False, "below": False}
    auc = stats.norm.cdf(math.sqrt(STEPS) / 2 / math.sqrt(2))
    assert result["auc"]["low"] < auc < result["auc"]["high"]


def test_the_band_can_tell():
    """Half the noise claimed, or twice: the same scores are outside."""
    rng = np.random.default_rng(0)
    scores = rng.normal([[[1.0]], [[0.0]]], 1, (2, 1, RUNS))[:, 0]
    for mu, side in ((0.7, "above"), (1.4, "below")):
        loss = rdp.GaussianPrivacy(mu)
        claim = epsilon_audit.Claim(
            1e-5, loss.get_epsilon_for_delta(1e-5), None, loss, True
        )
        assert epsilon_audit._in_band(*scores, claim)[side]


def test_both_sides_stand_in_order(two_worlds):
    *_, result, _, _, held = two_worlds
    exact = rdp.GaussianPrivacy(math.sqrt(STEPS) / 2).get_epsilon_for_delta(1e-5)
    assert result["upper"] == pytest.approx(exact)
    assert held.epsilon["add_remove"]["rdp"] == result["upper_rdp"] > exact
    assert 0.6 * exact < result["epsilon_lower"] < exact
    assert set(result["lower"]) == {"clopper_pearson", "gdp", "bayesian"}
    assert result["lower"]["clopper_pearson"]["bonferroni"]["epsilon"] > 0.3
    assert result["flags"] == []
    assert result["above_upper"] == {"gdp": 0, "clopper_pearson": 0}


def test_too_little_noise_is_found_out():
    """A claim of half the leak: the lower end exceeds the upper one, an error."""
    rng = np.random.default_rng(1)
    scores = rng.normal([[[1.0]], [[0.0]]], 1, (2, 1, 4000)).swapaxes(0, 1) - 0.5
    for mu, names in ((0.5, ["lower-above-upper"]), (1.0, [])):
        loss = rdp.GaussianPrivacy(mu)
        claim = epsilon_audit.Claim(
            1e-5, loss.get_epsilon_for_delta(1e-5), None, loss, True
        )
        result, _ = epsilon_audit.two_worlds(scores, claim)
        assert [f["name"] for f in result["flags"]] == names


def test_an_audit_that_finds_leaks_where_there_are_none_is_void():
    """The runs without the canary differ between their halves: something is shared."""
    rng = np.random.default_rng(2)
    drift = np.repeat([0.5, -0.5], 2000)
    scores = np.stack([rng.normal(size=4000), drift + rng.normal(size=4000)])[None]
    loss = rdp.GaussianPrivacy(1.0)
    claim = epsilon_audit.Claim(
        1e-5, loss.get_epsilon_for_delta(1e-5), None, loss, True
    )
    result, _ = epsilon_audit.two_worlds(scores, claim)
    assert "null-leak" in [f["name"] for f in result["flags"]]


def test_gdp_is_left_out_where_the_claim_is_not_gaussian():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(1, 2, 500))
    loss = rdp.poisson_gaussian_pld(0.2, 1.0, 10, "add_remove")
    claim = epsilon_audit.Claim(
        1e-5, loss.get_epsilon_for_delta(1e-5), None, loss, False
    )
    result, arrays = epsilon_audit.two_worlds(scores, claim)
    assert set(result["lower"]) == {"clopper_pearson", "bayesian"}
    assert result["in_band"] is None
    assert (arrays["most_loss"] >= arrays["fpr"] - 1e-9).all()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"sampling": "poisson", "batch_size": 3}, "not full_batch"),
        ({"sampling": "shuffled", "batch_size": 3}, "not full_batch"),
    ],
)
def test_a_sampled_batch_is_not_shown(given, reason):
    at = problem()
    of = learner(at, **given)
    model = gradient_llr(at.task).threat_model
    found = base.mismatch(model, of.defense, canary.CANARY)
    assert reason in found


def test_an_input_canary_leaks_no_more_than_is_claimed():
    at = problem(kind="input")
    of = learner(at)
    result, *_ = played(canary.CANARY, gradient_llr, at, of, RUNS)
    assert result["auc"]["value"] > 0.5
    assert not result["in_band"]["above"]
    assert result["epsilon_lower"] < result["upper"]


# One run ------------------------------------------------------------------------------


def test_one_run_scores_move_with_membership_and_prove_less_than_is_claimed():
    at = problem(count=400, audits=3)
    of = learner(at, noise_multiplier=1.0)
    game = canary.ONE_RUN
    result, _, made, held = played(game, one_run, at, of)
    member = made.looked.member
    assert member.shape == (3, 400)
    assert abs(member.mean() - 0.5) < 4 * 0.5 / math.sqrt(1200)
    moved = made.releases.params["canaries"]
    mu = math.sqrt(STEPS)
    lr, n = 0.1, 406
    # every parameter: -(lr / n) (T C [in] + sqrt(T) s N(0, 1))
    step = -lr / n
    for k, (sign, out) in enumerate(((member, STEPS), (~member, 0))):
        law = stats.norm(out * step, abs(step) * math.sqrt(STEPS))
        assert stats.kstest(moved[sign], law.cdf).pvalue > 1e-3, k
    assert result["auc"]["value"] > 0.75
    exact = rdp.GaussianPrivacy(mu).get_epsilon_for_delta(1e-5)
    assert result["upper"] == pytest.approx(exact)
    assert 0.2 * exact < result["epsilon_lower"] < exact
    assert result["epsilon_lower_median"]["one_run"] < exact
    assert result["flags"] == []
    assert held.epsilon["add_remove"]["tight"] == pytest.approx(exact)


def test_one_run_with_input_canaries_is_scored_by_their_loss():
    at = problem(kind="input", count=8)
    of = learner(at, noise_multiplier=0.05, learning_rate=5.0, steps=20)
    result, *_ = played(canary.ONE_RUN, one_run, at, of)
    assert result["canaries"] == 8
    assert 0 <= result["auc"]["value"] <= 1
    assert result["epsilon_lower"] <= result["upper"]


def test_examples_of_canaries_are_examples():
    at = problem(count=2)
    many = canaries.records("gradient", 2, at.task, at.splits.pool)
    assert isinstance(many, Examples)
    assert many.x.shape == (2, D)
    np.testing.assert_array_equal(many.y, [2, 3])
