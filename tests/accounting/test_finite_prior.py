"""The finite prior against a plain loop, closed forms and its own expectation.

How often its test errs is measured in tests/scorecard/test_flag_rates.py.
"""

import numpy as np
import pytest
from scipy import special

from audit.accounting.finite_prior import FEWEST, finite_prior, posterior
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
    assert finite_prior(blind, [0.0], pool, target, ~everyone) is None


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


def of_normals(seed, pool, targets):
    """Return the bound for records of three normals, released with as much noise."""
    rng = np.random.default_rng(seed)
    pool, x = rng.normal(size=(pool, 3)), rng.normal(size=(targets, 3))
    release = x + rng.normal(size=x.shape)
    under = -((release[:, None] - pool) ** 2).sum(2) / 2
    truth = -((release - x) ** 2).sum(1) / 2
    return finite_prior(under, truth, pool, x, np.ones(under.shape, bool))


def test_bound_and_genie_have_one_expectation():
    """Over 300 draws of pool and targets; tolerance four standard errors."""
    gaps = []
    for seed in range(300):
        bound = of_normals(seed, pool=30, targets=20)
        gaps.append(float(bound.value) - bound.genie.mean())
    assert abs(np.mean(gaps)) < 4 * np.std(gaps) / np.sqrt(len(gaps))
    assert bound.standard_error > 0


def test_the_standard_error_has_that_of_the_pool():
    """A thousand targets share a pool of 40, which is most of what the bound varies by.

    The spread of 100 draws has a standard error of 7%; without the pool the stated
    error would be .36 of it.
    """
    values, errors = [], []
    for seed in range(100):
        bound = of_normals(seed, pool=40, targets=1000)
        values.append(float(bound.value))
        errors.append(bound.standard_error)
    stated = np.sqrt(np.mean(np.square(errors)))
    assert abs(stated / np.std(values) - 1) < 4 * 0.07


@pytest.mark.parametrize(
    "counts", [[1] * 9 + [50], [19] * 9 + [20], [0, 1] * 2 + [25], [20] * 10, [50, 50]]
)
def test_the_bound_is_at_most_the_floor_whatever_the_classes_are_short_of(counts):
    """Where nothing leaks, in every draw; and whoever ignores the release is sound."""
    of_pool, of_targets = (np.repeat(np.arange(len(counts)), n) for n in (counts, 4))
    alike = of_targets[:, None] == of_pool
    blind, nothing = np.zeros(alike.shape), np.zeros(len(alike))
    lone, excesses = np.repeat(counts, 4) < FEWEST, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pool, x = (rng.normal(size=(n, 20)) for n in alike.T.shape)
        bound = finite_prior(blind, nothing, pool, x, alike)
        mean = alike @ pool / np.maximum(alike.sum(1), 1)[:, None]
        floor = np.where(lone, 0, ((x - mean) ** 2).mean(1))
        assert 0.2 * floor.mean() < float(bound.value) <= floor.mean() * (1 + 1e-12)
        assert (bound.genie[lone] == 0).all()
        assert bound.excess(floor) > -1e-9
        excesses.append(bound.excess(np.square(x).mean(1)))
    assert min(excesses) > special.ndtri(0.01)
    said = f"; {lone.sum()} targets without as many count as known"
    assert bound.holds_for.endswith(said if lone.any() else "estimated")


def test_without_enough_candidates_of_any_class_there_is_no_bound():
    alike = np.repeat(np.eye(3, dtype=bool), FEWEST - 1, 1)
    pool, x = np.random.default_rng(0).normal(size=(alike.shape[1], 3)), np.ones((3, 3))
    assert finite_prior(np.zeros(alike.shape), np.zeros(3), pool, x, alike) is None


@pytest.mark.parametrize(("d", "stddev", "share"), [(1, 0.5, 0.05), (3, 3.0, 0.01)])
def test_the_best_attacker_is_rarely_said_to_be_below_a_bound_of_few_candidates(
    d, stddev, share
):
    """It knows the population, a standard normal. The tolerance is three s.e."""
    rng, draws, raised = np.random.default_rng(11), 400, 0
    alike = np.ones((100, FEWEST), bool)
    for _ in range(draws):
        pool, x = rng.normal(size=(FEWEST, d)), rng.normal(size=(100, d))
        accounted, attacked = x + stddev * rng.normal(size=(2, 100, d))
        gaps = ((accounted[:, None] - pool) ** 2).sum(-1)
        own = ((accounted - x) ** 2).sum(-1)
        ratios = -gaps / (2 * stddev**2), -own / (2 * stddev**2)
        bound = finite_prior(*ratios, pool, x, alike)
        guess = attacked / (1 + stddev**2)
        raised += bound.excess(((guess - x) ** 2).mean(1)) < special.ndtri(0.01)
    assert raised < draws * share + 3 * np.sqrt(draws * share * (1 - share))


def test_candidates_that_are_nearly_alike_do_not_lift_the_bound_above_the_floor():
    """The target is in the risk, and far away. Of exact copies the bound is 0."""
    rng = np.random.default_rng(5)
    centre, x = rng.normal(size=6), rng.normal(size=(9, 6))
    alike = np.ones((9, 30), bool)
    for apart in (1e-2, 0.0):
        pool = centre + apart * rng.normal(size=(30, 6))
        bound = finite_prior(np.zeros((9, 30)), np.zeros(9), pool, x, alike)
        floor = ((x - pool.mean(0)) ** 2).mean(1)
        want = floor.mean() if apart else 0
        assert float(bound.value) == pytest.approx(want, rel=1e-9, abs=1e-12)
        assert np.isfinite(bound.standard_error)
        assert bound.excess(floor) > -1e-9
