"""No attack beats a bound that covers it, over random Gaussian mechanisms.

A mechanism releases A x + N(0, 1). Its attackers are the best there are: the posterior
mean of the prior that the bound speaks of, and least squares, which is unbiased and
attains Cramer-Rao. All mechanisms together get one level, 99.9%.
"""

import itertools

import numpy as np
import pytest
from scipy import special

from audit.accounting import bounds, rdp
from audit.accounting.reconstruction_robustness import (
    as_bound,
    blind_radii,
    success,
)

DRAWS = 2000  # of a mechanism's noise, each with a record of the prior
MANY = [300, pytest.param(10_000, marks=pytest.mark.slow)]
D = 3


def mechanism(rng):
    """Return A [p, d] of a random size of leakage, from next to nothing to much."""
    p = rng.integers(D, 6)
    return rng.normal(size=(p, D)) * 10 ** rng.uniform(-1.5, 0.7)


def posterior(a, records, release):
    """Return the weights [n, M] of equally likely records given releases [n, p]."""
    score = release @ (records @ a.T).T - ((records @ a.T) ** 2).sum(1) / 2
    return special.softmax(score, 1)


def beaten(excess):
    """Return how many of (mean - bound, s.e.) lie below what all noise explains."""
    gap, se = np.array(excess).T
    return int((gap < special.ndtri(0.001 / len(gap)) * se - 1e-12).sum())


def error(guess, x):
    each = ((guess - x) ** 2).mean(1)
    return each.mean(), each.std() / np.sqrt(len(each))


def widest(a, records):
    """Return the replace-one shift: the largest distance between two means."""
    means = records @ a.T
    return np.sqrt(((means[:, None] - means) ** 2).sum(2).max())


@pytest.mark.parametrize("many", MANY)
def test_cramer_rao_of_the_matrix_against_least_squares(many):
    """Least squares attains it, so that the test also fails where it is too small."""
    rng, gaps, above = np.random.default_rng(0), [], []
    for _ in range(many):
        a = mechanism(rng)
        x, noise = rng.uniform(size=D), rng.normal(size=(DRAWS, len(a)))
        mse, se = error((x @ a.T + noise) @ np.linalg.pinv(a).T, x)
        low = np.linalg.eigvalsh(a.T @ a)[0] / 2
        rest = a.T @ a - low * np.eye(D)
        matrix = bounds.cramer_rao_matrix(
            np.full((1, D), low), np.eye(D)[None], rest[None]
        )
        value = float(matrix.value[0])
        assert value >= bounds.cramer_rao(np.trace(a.T @ a) / D).value * (1 - 1e-9)
        gaps.append((mse - value, se))
        above.append((value - mse, se))
    assert beaten(gaps) == beaten(above) == 0


@pytest.mark.parametrize("many", MANY)
def test_two_point_against_the_posterior_of_the_corners_and_least_squares(many):
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=D)))
    rng, anybody, unbiased = np.random.default_rng(1), [], []
    for _ in range(many):
        a = mechanism(rng)
        x = corners[rng.integers(len(corners), size=DRAWS)]
        release = x @ a.T + rng.normal(size=(DRAWS, len(a)))
        least, of_unbiased = bounds.two_point(widest(a, corners))
        mse, se = error(posterior(a, corners, release) @ corners, x)
        anybody.append((mse - float(least.value), se))
        mse, se = error(release @ np.linalg.pinv(a).T, x)
        unbiased.append((mse - float(of_unbiased.value), se))
    assert beaten(anybody) == beaten(unbiased) == 0


@pytest.mark.parametrize("many", MANY)
def test_hammersley_at_a_record_against_least_squares(many):
    rng, gaps = np.random.default_rng(2), []
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=D)))
    for _ in range(many):
        a, x = mechanism(rng), rng.uniform(size=D)
        release = x @ a.T + rng.normal(size=(DRAWS, len(a)))
        order_two = widest(a, corners) ** 2
        at = bounds.hammersley_chapman_robbins_at(order_two, x[None])
        mse, se = error(release @ np.linalg.pinv(a).T, x)
        gaps.append((mse - float(at.value[0]), se))
    assert beaten(gaps) == 0


@pytest.mark.parametrize("many", MANY)
def test_reconstruction_robustness_against_the_posterior_of_a_finite_prior(many):
    """Its mean error, and how often the likeliest record is the true one."""
    rng, errors, hits = np.random.default_rng(3), [], []
    for _ in range(many):
        a, m = mechanism(rng), int(rng.integers(2, 9))
        records = rng.uniform(size=(m, D))
        at = rng.integers(m, size=DRAWS)
        x, noise = records[at], rng.normal(size=(DRAWS, len(a)))
        weight = posterior(a, records, x @ a.T + noise)
        loss = rdp.GaussianPrivacy(widest(a, records))
        radii, blind = blind_radii(records), np.arange(1, m) / m
        mse, se = error(weight @ records, x)
        errors.append((mse - float(as_bound(radii, blind, loss).value), se))
        hit = weight.argmax(1) == at
        limit = success(1 / m, loss)
        hits.append((limit - hit.mean(), np.sqrt(limit * (1 - limit) / DRAWS)))
    assert beaten(errors) == beaten(hits) == 0
    assert min(gap for gap, _ in hits) < 0.02, "the bound is far from any attack"
