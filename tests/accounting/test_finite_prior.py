"""The finite prior against a plain loop, closed forms and its own expectation.

How often its test errs is measured in tests/scorecard/test_flag_rates.py.
"""

import numpy as np
import pytest

from audit.accounting.finite_prior import finite_prior, posterior
from tests.accounting.test_bounds import B_OF_MU


def test_finite_prior_against_a_plain_loop():
    rng = np.random.default_rng(1)
    candidates, targets = rng.uniform(size=(7, 4)), rng.uniform(size=(3, 4))
    log_ratio, of_target = rng.normal(size=(3, 7)), rng.normal(size=3)
    allowed = rng.uniform(size=(3, 7)) < 0.6
    got = posterior(log_ratio, of_target, candidates, targets, allowed)
    for t, x in enumerate(targets):
        z = np.concatenate([candidates[allowed[t]], x[None]])
        weight = np.exp(np.append(log_ratio[t][allowed[t]], of_target[t]))
        weight /= weight.sum()
        risk = weight @ ((z - weight @ z) ** 2).sum(1) / x.size
        np.testing.assert_allclose(got.risk[t], risk, rtol=1e-10)


def test_finite_prior_of_a_certain_attacker_is_zero_and_of_a_blind_one_the_variance():
    rng = np.random.default_rng(3)
    pool, target = rng.uniform(size=(50, 8)) + 1e3, rng.uniform(size=(1, 8)) + 1e3
    everyone = np.ones((1, 50), bool)
    blind = np.zeros((1, 50))
    got = posterior(blind, [0.0], pool, target, everyone).risk
    spread = np.concatenate([pool, target]).var(0).mean()
    np.testing.assert_allclose(got, spread, rtol=1e-10)
    got = posterior(blind, [900.0], pool, target, everyone).risk
    assert 0 <= got[0] < 1e-8
    alone = finite_prior(blind, [0.0], pool, target, ~everyone)
    assert float(alone.value) == pytest.approx(0, abs=1e-12)
    assert "prior = 1+ pool records of the target's class; estimated" in alone.holds_for


@pytest.mark.parametrize("mu", [1, 2])
def test_finite_prior_of_two_points_is_the_closed_form(mu):
    """Two candidates at ||z - z'||^2 / d = 1, mean of 200,000 runs within 4 s.e."""
    n = 200_000
    release = np.random.default_rng(2).normal(size=n)  # target at 0, candidate at mu
    log_ratio, everyone = (mu * release - mu**2 / 2)[:, None], np.ones((n, 1), bool)
    got = posterior(log_ratio, np.zeros(n), [[1.0]], np.zeros((n, 1)), everyone).risk
    assert abs(got.mean() - B_OF_MU[mu][0]) < 4 * got.std() / np.sqrt(n)


def test_without_leakage_the_bound_is_the_floor_of_the_scored_targets():
    """Also where these are easier than the pool; the genie guesses the mean."""
    rng = np.random.default_rng(4)
    pool, x = rng.normal(size=(400, 5)), 0.8 * rng.normal(size=(300, 5))
    blind, everyone = np.zeros((300, 400)), np.ones((300, 400), bool)
    bound = finite_prior(blind, np.zeros(300), pool, x, everyone)
    floor = ((x - pool.mean(0)) ** 2).mean()
    assert pool.var() > 1.2 * floor
    assert float(bound.value) == pytest.approx(floor, rel=0.01)
    assert bound.genie.mean() == pytest.approx(floor, rel=0.01)
    assert float(bound.value) < floor + 2 * bound.standard_error


def test_bound_and_genie_have_one_expectation():
    """Over 300 draws of pool and targets; tolerance four standard errors."""
    gaps = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        pool, x = rng.normal(size=(30, 3)), rng.normal(size=(20, 3))
        release = x + rng.normal(size=x.shape)
        under = -((release[:, None] - pool) ** 2).sum(2) / 2
        truth = -((release - x) ** 2).sum(1) / 2
        bound = finite_prior(under, truth, pool, x, np.ones((20, 30), bool))
        gaps.append(float(bound.value) - bound.genie.mean())
    assert abs(np.mean(gaps)) < 4 * np.std(gaps) / np.sqrt(len(gaps))
    assert bound.standard_error > 0
