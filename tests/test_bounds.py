"""Bounds against test vectors, brute force and each other."""

import numpy as np
import pytest
import scipy.optimize

from audit import bounds


@pytest.mark.parametrize(
    ("epsilon", "want"),
    [
        (0.01, 24.87520833),
        (0.1, 2.377082986),
        (1, 0.1454941767),
        (2.4937309940681924, 0.02250962365),
        (5, 0.001695913727),
    ],
)
def test_hcr_test_vectors(epsilon, want):
    got = bounds.hammersley_chapman_robbins(epsilon)
    np.testing.assert_allclose(got.value, want, rtol=1e-8)
    np.testing.assert_allclose(10**got.log10, want, rtol=1e-8)


def test_hcr_survives_underflow():
    """Order 2 of five steps at noise multiplier .05: eps = 9,951."""
    epsilon = 5 * (2 * 1.1153 / 0.05) ** 2
    got = bounds.hammersley_chapman_robbins(epsilon)
    assert got.value == 0.0
    assert bounds.format_bound(float(got.value), got.log10) == "10^-4322"


def test_hcr_scales_with_the_domain():
    one = bounds.hammersley_chapman_robbins(0.5)
    two = bounds.hammersley_chapman_robbins(0.5, (-1.0, 1.0))
    np.testing.assert_allclose(two.value, 4 * one.value)


def test_hcr_of_one_record():
    x = [0, 0.25, 0.5, 0.9, 1]
    got = bounds.hammersley_chapman_robbins_at(0.5, x)
    np.testing.assert_allclose(got, 1.11681246, rtol=1e-8)
    worst = bounds.hammersley_chapman_robbins(0.5).value
    np.testing.assert_allclose(worst, 0.38537352, rtol=1e-7)


def test_cramer_rao_of_nothing_is_infinite():
    got = bounds.cramer_rao([2.0, 0.0])
    assert got.value.tolist() == [0.5, np.inf]
    assert got.holds_for == "unbiased attackers"


def test_van_trees_between_trace_form_and_exact():
    """J = diag(1/4, 1, 4), I = 2 Id: trace form .26667, exact .31481."""
    got = float(bounds.van_trees(6.0, [4.0, 1.0, 0.25]).value)
    assert 0.2666666667 < got <= 0.3148148148


@pytest.mark.parametrize("trace", [0.1, 3.0, 6.0, 50.0])
def test_van_trees_is_the_least_over_all_information(trace):
    """Against a numerical minimum over diagonals, and random rotations above it."""
    precision = np.array([0.25, 1.0, 4.0])
    got = float(bounds.van_trees(trace, 1 / precision).value)

    def risk(logits):
        share = np.exp(logits - logits.max())
        return (1 / (precision + trace * share / share.sum())).mean()

    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000}
    starts = ([0.0, 0, 0], [5.0, 0, -5], [9.0, 9, -9])
    best = min(
        scipy.optimize.minimize(risk, s, method="Nelder-Mead", options=options).fun
        for s in starts
    )
    np.testing.assert_allclose(got, best, rtol=1e-5)
    rng = np.random.default_rng(0)
    for _ in range(200):
        a = rng.normal(size=(3, 3))
        information = a @ a.T * trace / np.trace(a @ a.T)
        exact = np.trace(np.linalg.inv(information + np.diag(precision))) / 3
        assert got <= exact * (1 + 1e-12)


def test_van_trees_without_leakage_is_the_prior_variance():
    got = bounds.van_trees(0.0, [4.0, 1.0, 0.0]).value
    np.testing.assert_allclose(got, 5 / 3)
    assert not bounds.van_trees(0.0, [1.0]).ranked


def brute_force(log_ratio, own, candidates, targets, allowed):
    risks = []
    for t, x in enumerate(targets):
        z = np.concatenate([candidates[allowed[t]], x[None]])
        score = np.append(log_ratio[t][allowed[t]], own[t])
        w = np.exp(score - score.max())
        w /= w.sum()
        risks.append(w @ ((z - w @ z) ** 2).sum(1) / x.size)
    return np.array(risks)


def test_finite_prior_against_a_plain_loop():
    rng = np.random.default_rng(1)
    candidates, targets = rng.uniform(size=(7, 4)), rng.uniform(size=(3, 4))
    log_ratio, own = rng.normal(size=(3, 7)), rng.normal(size=3)
    allowed = rng.uniform(size=(3, 7)) < 0.6
    arguments = (log_ratio, own, candidates, targets, allowed)
    got = bounds.finite_prior(*arguments)
    np.testing.assert_allclose(got.value, brute_force(*arguments), rtol=1e-10)


B_OF_MU = {1: 0.1989864336, 2: 0.1123998773}  # half the integral of pq / (p + q)


@pytest.mark.parametrize("mu", [1, 2])
def test_finite_prior_of_two_points_is_the_closed_form(mu):
    """Two candidates at ||z - z'||^2 / d = 1, mean of 200,000 runs within 4 s.e."""
    rng = np.random.default_rng(2)
    n = 200_000
    release = rng.normal(size=n)  # the target is at 0, the candidate at mu
    log_ratio = mu * release - mu**2 / 2
    got = bounds.finite_prior(
        log_ratio[:, None],
        np.zeros(n),
        [[1.0]],
        np.zeros((n, 1)),
        np.ones((n, 1), bool),
    ).value
    assert abs(got.mean() - B_OF_MU[mu]) < 4 * got.std() / np.sqrt(n)


@pytest.mark.parametrize(
    ("value", "log10", "text"),
    [
        (0.0421, None, ".0421"),
        (0.5, None, ".5000"),
        (66.02, None, "66"),
        (3.2e-7, None, "3.2e-07"),
        (3.2e-11, None, "10^-10"),
        (0.0, -4322.1, "10^-4322"),
        (0.0, None, "0"),
        (np.inf, None, "inf"),
    ],
)
def test_format(value, log10, text):
    assert bounds.format_bound(value, log10) == text
