"""Reconstruction robustness against closed forms, published values and simulation."""

import numpy as np
import pytest
import scipy.stats

from audit.accounting import rdp
from audit.accounting.reconstruction_robustness import (
    blind_radii,
    mean_error,
    success,
)


class Delta:
    """A loss that is nothing but its curve delta(eps)."""

    def __init__(self, curve):
        self.get_delta_for_epsilon = lambda e: np.maximum(curve(e), 0)


GAUSSIAN = [
    (0.1, 1, 0.3891436916),
    (0.01, 1, 0.0923622481),
    (0.5, 1, 0.8413447461),
    (1 / 256, 2, 0.2546052669),
    (1e-4, 3, 0.2360653812),
    (0.125, 0.25, 0.1839671750),
    (0.125, 2, 0.8022403200),
    (0.1, 1.1153, 0.4339794903),
]


@pytest.mark.parametrize(("kappa", "mu", "want"), GAUSSIAN)
def test_gaussian(kappa, mu, want):
    """In closed form, and by its curve alone."""
    loss = rdp.GaussianPrivacy(mu)
    assert success(kappa, loss) == pytest.approx(want, abs=1e-10)
    by_curve = success(kappa, Delta(loss.get_delta_for_epsilon))
    assert by_curve == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize(
    ("kappa", "epsilon", "want"),
    [(0.1, 1, 0.2718281828), (0.3, 1, 0.6934337990), (0.5, 2, 0.9323323584)],
)
def test_laplace(kappa, epsilon, want):
    loss = Delta(lambda e: -np.expm1((e - epsilon) / 2))
    assert success(kappa, loss) == pytest.approx(want, rel=1e-8)


def test_pure_privacy():
    """min(e^eps kappa, 1 - e^-eps (1 - kappa)), attained by randomised response."""
    loss = Delta(lambda e: (np.exp(3) - np.exp(e)) / (1 + np.exp(3)))
    assert success(0.1, loss) == pytest.approx(0.95519164, rel=1e-6)
    assert success(0.01, loss) == pytest.approx(0.01 * np.exp(3), rel=1e-6)


def poisson(q, sigma, steps):
    """Add-or-remove, on a grid of 1e-3."""
    import dp_accounting as dp

    one = dp.pld.privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=1e-3
    )
    return one.self_compose(steps)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "want"),
    [
        (0.1, 1.0, 100, (0.469189, 0.146056, 0.038782)),
        pytest.param(
            0.01, 0.6, 1000, (0.417258, 0.124514, 0.033396), marks=pytest.mark.slow
        ),
        pytest.param(
            0.01, 1.0, 1000, (0.194254, 0.029151, 0.004070), marks=pytest.mark.slow
        ),
    ],
)
def test_poisson_batches(q, sigma, steps, want):
    loss = poisson(q, sigma, steps)
    got = [success(kappa, loss) for kappa in (0.1, 0.01, 0.001)]
    np.testing.assert_allclose(got, want, atol=6e-7)


def test_of_both_directions_the_larger_counts():
    """The direction "add" alone would promise less than attackers reach."""
    loss = poisson(0.1, 1.0, 100)
    add = Delta(loss._pmf_add.get_delta_for_epsilon)
    for kappa, want in ((0.1, 0.434006), (0.01, 0.101331), (0.001, 0.018712)):
        assert success(kappa, add) == pytest.approx(want, abs=6e-7)
        assert success(kappa, loss) > 1.08 * want


def test_ends():
    for mu in (0.0, 1.0, 30.0):
        loss = Delta(rdp.GaussianPrivacy(mu).get_delta_for_epsilon)
        assert success(1.0, loss) == 1
        assert success(0.0, loss) == pytest.approx(0, abs=1e-9)
    assert success(0.1, rdp.GaussianPrivacy(np.inf)) == 1
    none = Delta(rdp.GaussianPrivacy(0.0).get_delta_for_epsilon)
    assert success(0.3, none) == pytest.approx(0.3)
    for kappa in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="kappa="):
            success(kappa, none)


# Errors of guesses --------------------------------------------------------------------


def of_curve(kappa, most, loss, nodes=40_001):
    """The bound of a continuous blind success, whose radii are up to `most`."""
    radii = np.linspace(0, most, nodes)
    return mean_error(radii, np.minimum(kappa(radii[1:]), 1), loss)


@pytest.mark.parametrize(
    ("mu", "absolute", "squared"),
    [
        (0.5, 0.18091840, 0.05156662),
        (1, 0.11987503, 0.02830054),
        (2, 0.03932480, 0.00576660),
    ],
)
def test_errors_under_a_uniform_prior(mu, absolute, squared):
    """On [0, 1], where a guess within eta succeeds blindly with 2 eta."""
    loss = rdp.GaussianPrivacy(mu)
    got = of_curve(lambda eta: 2 * eta, 0.5, loss)
    assert got == pytest.approx(absolute, rel=2e-3)
    assert got < absolute
    got = of_curve(lambda eta: 2 * np.sqrt(eta), 0.25, loss)
    assert got == pytest.approx(squared, rel=2e-3)


@pytest.mark.parametrize(
    ("d", "variance", "mu", "want"),
    [
        (20, 1.0, 2, 0.49870298),
        (784, 0.044, 5, 0.03380625),
        (784, 0.044, 1, 0.04181554),
    ],
)
def test_errors_under_a_gaussian_prior(d, variance, mu, want):
    kappa = lambda eta: scipy.stats.chi2.cdf(d * eta / variance, d)
    got = of_curve(kappa, 3 * variance, rdp.GaussianPrivacy(mu))
    assert got == pytest.approx(want, rel=1e-3)


def test_a_loss_without_closed_form_gives_nearly_the_same():
    exact = rdp.GaussianPrivacy(1.0)
    curve = lambda eta: 2 * eta
    got = of_curve(curve, 0.5, Delta(exact.get_delta_for_epsilon), nodes=501)
    assert got == pytest.approx(of_curve(curve, 0.5, exact, nodes=501), rel=1e-4)


def test_no_ball_holds_more_records_than_its_radius_says():
    """Against random centres, each with the smallest ball for every count."""
    rng = np.random.default_rng(0)
    for d in (1, 2, 30):
        x = rng.normal(size=(40, d))
        radii = blind_radii(x)
        assert radii[0] == 0
        centres = np.concatenate([x, rng.normal(size=(500, d)) / 2, x.mean(0)[None]])
        some = rng.dirichlet(np.full(40, 0.2), 2000) @ x
        centres = np.concatenate([centres, some])
        each = np.sort(((centres[:, None] - x) ** 2).mean(2), 1)
        assert (each >= radii * (1 - 1e-9)).all()
    # a quarter of the widest distance alone would be half of that
    assert radii[-1] > 0.75 * x.var(0).mean()


def test_the_radius_of_records_that_are_all_equally_far_apart_is_exact():
    """k unit vectors lie on a sphere of squared radius 1 - 1 / k, and in no less."""
    radii = blind_radii(np.eye(9)) * 9
    np.testing.assert_allclose(radii, 1 - 1 / np.arange(1, 10), atol=1e-12)
