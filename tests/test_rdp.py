"""Renyi curves, privacy losses and conversions against test vectors and libraries."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from audit import rdp
from audit.rdp import GaussianPrivacy


@pytest.mark.parametrize(
    ("q", "sigma", "poisson", "fixed", "antipodal"),
    [
        (0.01, 1.0, 1.7181342207e-4, 5.3455023143e-3, 4.5765907651e-4),
        (0.1, 2.0, 2.8362282663e-3, 1.7036863236e-2, 9.8953415272e-3),
    ],
)
def test_order_two_per_step(q, sigma, poisson, fixed, antipodal):
    shift = 1 / sigma
    got = rdp.poisson_gaussian([2.0], q, shift, "add_remove")
    np.testing.assert_allclose(got, poisson, rtol=1e-9)
    np.testing.assert_allclose(got, np.log1p(q**2 * np.expm1(shift**2)), rtol=1e-9)
    got = rdp.without_replacement_gaussian([2.0], q, 2 * shift)
    np.testing.assert_allclose(got, fixed, rtol=1e-9)
    got = rdp.poisson_gaussian([2.0], q, shift, "replace_one")
    np.testing.assert_allclose(got, np.log1p(antipodal), rtol=1e-8)


def test_fixed_size_order_two_is_below_the_general_bound():
    general = rdp._accountant([2.0], 0.01, 2.0, "replace_one")
    np.testing.assert_allclose(general, 1.0860441336e-2, rtol=1e-6)
    assert rdp.without_replacement_gaussian([2.0], 0.01, 2.0)[0] < general[0]


@pytest.mark.parametrize("order", [1.5, 2.0, 7.0])
def test_replace_one_poisson_against_adaptive_quadrature(order):
    q, shift = 0.3, 0.8
    pdf = scipy.stats.norm.pdf

    def ratio(x):
        p = (1 - q) * pdf(x) + q * pdf(x - shift)
        mirror = (1 - q) * pdf(x) + q * pdf(x + shift)
        return p**order * mirror ** (1 - order)

    value, _ = scipy.integrate.quad(
        ratio, -15, 15, points=[-1, 0, 1, 4, 8], limit=500, epsabs=0, epsrel=1e-11
    )
    want = np.log(value) / (order - 1)
    got = rdp.poisson_gaussian([order], q, shift, "replace_one")
    np.testing.assert_allclose(got, want, rtol=1e-8)


def test_everybody_every_step_is_the_plain_gaussian():
    for adjacency, factor in (("add_remove", 1), ("replace_one", 2)):
        got = rdp.poisson_gaussian([2.0, 3.0], 1.0, 0.7, adjacency)
        np.testing.assert_allclose(got, rdp.gaussian(np.array([2, 3]), factor * 0.7))
    got = rdp.without_replacement_gaussian([2.0, 3.0], 1.0, 0.7)
    np.testing.assert_allclose(got, rdp.gaussian(np.array([2, 3]), 0.7))


def test_huge_shifts_stay_finite():
    assert np.isfinite(rdp.without_replacement_gaussian([2.0], 0.1, 60.0)).all()
    assert np.isfinite(rdp.poisson_gaussian([2.0], 0.1, 30.0, "replace_one")).all()


@pytest.mark.parametrize(
    ("mu", "delta", "want"),
    [(1.0, 1e-5, 4.3771780957), (0.5, 1e-6, 2.2540846502), (2.0, 1e-5, 9.997256)],
)
def test_gaussian_epsilon(mu, delta, want):
    """The third is replace-one at noise multiplier 1: the shift doubles."""
    loss = GaussianPrivacy(mu)
    assert abs(loss.get_epsilon_for_delta(delta) - want) < 1e-6
    assert abs(loss.get_delta_for_epsilon(want) / delta - 1) < 1e-5


def test_gaussian_epsilon_against_dp_accounting():
    import dp_accounting as dp

    for sigma in (0.3, 1.0, 5.0):
        want = dp.get_epsilon_gaussian(sigma, 1e-6)
        got = GaussianPrivacy(1 / sigma).get_epsilon_for_delta(1e-6)
        np.testing.assert_allclose(got, want, rtol=1e-7)


def test_no_leakage_is_epsilon_zero():
    assert GaussianPrivacy(0.0).get_epsilon_for_delta(1e-9) == 0.0
    assert GaussianPrivacy(1e-12).get_epsilon_for_delta(1e-9) == 0.0


def test_poisson_pld_under_both_adjacencies():
    """q = 1 is the plain Gaussian, whose replace-one shift is twice the other's."""
    for adjacency, mu in (("add_remove", 1.0), ("replace_one", 2.0)):
        pld = rdp.poisson_gaussian_pld(1.0, 1.0, 1, adjacency)
        want = GaussianPrivacy(mu).get_epsilon_for_delta(1e-5)
        np.testing.assert_allclose(pld.get_epsilon_for_delta(1e-5), want, rtol=1e-3)


EDMUNDS = {1: 389.9752, 2: 697.6610, 3: 996.0350, 4: 1294.4090, 5: 1571.4291}


@pytest.mark.parametrize("steps", EDMUNDS)
def test_epsilons_of_edmunds_appendix_a(steps):
    """Her convention: add-or-remove, overshoot 1.115, her orders, sigma .05."""
    curve = steps * rdp.gaussian(rdp.EDMUNDS_ORDERS, 1.115 / 0.05)
    got = rdp.epsilon(rdp.EDMUNDS_ORDERS, curve, 1e-9)
    assert abs(got - EDMUNDS[steps]) < 1e-3
    exact = GaussianPrivacy(np.sqrt(steps) * 1.115 / 0.05).get_epsilon_for_delta(1e-9)
    finer = rdp.epsilon(
        rdp.ORDERS, steps * rdp.gaussian(rdp.ORDERS, 1.115 / 0.05), 1e-9
    )
    assert exact < finer < got
    if steps == 5:
        assert abs(exact - 1541.4) < 0.1


@pytest.mark.parametrize(
    ("n", "batch", "sigma", "want"),
    [(57_000, 512, 2.0, 0.6310), (25_000, 512, 1.0, 3.9551)],
)
def test_epsilons_of_edmunds_tables(n, batch, sigma, want):
    """Tables 3.2 and 3.3: one Poisson epoch, the last short batch counted."""
    steps = -(-n // batch)
    shift = 1.115 / sigma
    curve = rdp.poisson_gaussian(rdp.EDMUNDS_ORDERS, batch / n, shift, "add_remove")
    got = rdp.epsilon(rdp.EDMUNDS_ORDERS, steps * curve, 1e-9)
    np.testing.assert_allclose(got, want, atol=1e-3)
