"""Renyi curves, privacy losses and conversions against test vectors and libraries."""

import math
from decimal import Decimal, localcontext

import dp_accounting as dp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from audit.accounting import rdp
from audit.accounting.rdp import GaussianPrivacy

SHIFTS = [0.01, 0.2, 1.0, 5.0, 22.3, 45.0, 200.0]


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
    np.testing.assert_allclose(got, np.log1p(q**2 * np.expm1(shift**2)), rtol=1e-11)
    got = rdp.without_replacement_gaussian([2.0], q, 2 * shift)
    np.testing.assert_allclose(got, fixed, rtol=1e-9)
    got = rdp.poisson_gaussian([2.0], q, shift, "replace_one")
    np.testing.assert_allclose(got, np.log1p(antipodal), rtol=1e-9)


def test_fixed_size_order_two_is_below_the_general_bound():
    """Wang et al.'s value, log1p(q^2 min(4 expm1(4), 2 e^4)), is up to 4x looser."""
    general = np.log1p(1e-4 * min(4 * np.expm1(4.0), 2 * np.exp(4.0)))
    np.testing.assert_allclose(general, 1.0860441336e-2, rtol=1e-9)
    np.testing.assert_allclose(rdp._wang(np.array([2.0]), 0.01, 2.0), general)
    tight = rdp.without_replacement_gaussian([2.0], 0.01, 2.0)[0]
    assert 1 < general / tight < 4


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 7.0])
def test_poisson_against_adaptive_quadrature(order, adjacency):
    q, shift = 0.3, 0.8
    pdf = scipy.stats.norm.pdf
    mirror = {"add_remove": 0.0, "replace_one": -shift}[adjacency]

    def excess(x):
        base = (1 - q) * pdf(x) + q * pdf(x - mirror)
        r = ((1 - q) * pdf(x) + q * pdf(x - shift)) / base
        return base * (r**order - 1 - order * (r - 1))

    value, _ = scipy.integrate.quad(
        excess, -15, 15, points=[-1, 0, 1, 4, 8], limit=500, epsabs=0, epsrel=1e-11
    )
    want = np.log1p(value) / (order - 1)
    got = rdp.poisson_gaussian([order], q, shift, adjacency)
    np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.5])
@pytest.mark.parametrize("shift", SHIFTS)
def test_poisson_equals_dp_accounting_at_whole_orders(q, shift):
    orders = [2, 3, 8, 63, 500]
    reference = dp.rdp.RdpAccountant(orders)  # add-or-remove by default
    reference.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(1 / shift)))
    got = rdp.poisson_gaussian(orders, q, shift, "add_remove")
    # the series itself cancels at 1e-12
    np.testing.assert_allclose(got, reference.rdp, rtol=1e-9, atol=1e-16)


def test_tiny_leakage_does_not_cancel():
    """To leading order D_alpha = alpha/2 chi^2, antipodal chi^2 four times as large."""
    q, shift = 1e-6, 1e-3
    orders = np.array([1.01, 2.0, 30.0])
    chi2 = (q * shift) ** 2
    for adjacency, factor in (("add_remove", 1), ("replace_one", 4)):
        got = rdp.poisson_gaussian(orders, q, shift, adjacency)
        np.testing.assert_allclose(got, factor * orders * chi2 / 2, rtol=1e-4)


@pytest.mark.parametrize("order", [1.02, 1.5])
def test_a_rare_and_loud_record_is_seen_from_both_sides(order):
    """Three modes that do not overlap: int p^a p'^(1-a) = (1 - q) + 0 + the far one."""
    q, shift = 3e-8, 13.0
    far = (1 - q) ** (1 - order) * q**order * np.exp(order * (order - 1) * shift**2 / 2)
    want = np.log1p(far - q) / (order - 1)
    got = rdp.poisson_gaussian([order], q, shift, "replace_one")
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("order", [1.01, 3.0])
@pytest.mark.parametrize("shift", [35.0, 200.0])
def test_a_loud_record_leaves_two_separate_modes(order, shift):
    """int p^a p'^(1-a) is one term near 0 and one at order x shift, no overlap."""
    q = 0.3
    quiet = np.log1p(-q)
    far = order * np.log(q) + order * (order - 1) * shift**2 / 2
    for adjacency, base in (("add_remove", 0.0), ("replace_one", quiet)):
        modes = np.array([order * quiet, far]) + (1 - order) * base
        want = np.logaddexp(*modes) / (order - 1)
        got = rdp.poisson_gaussian([order], q, shift, adjacency)
        np.testing.assert_allclose(got, want, rtol=1e-9)


def alternating_sum(power, shift):
    """E (r - 1)^power = sum_i (-1)^i C(power, i) E r^i, with digits to spare."""
    with localcontext(prec=400):
        variance = Decimal(shift) ** 2
        moments = ((i * (i - 1) * variance / 2).exp() for i in range(power + 1))
        signed = (
            (-1) ** i * math.comb(power, i) * moment for i, moment in enumerate(moments)
        )
        return float(sum(signed).ln())


@pytest.mark.parametrize("power", [2, 4, 30, 100])
@pytest.mark.parametrize("shift", [0.001, 0.05, 0.6, 5.0])
def test_differences_of_moments_lose_no_digit(power, shift):
    got = rdp._log_difference(power, shift)
    np.testing.assert_allclose(
        got, alternating_sum(power, shift), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.5])
@pytest.mark.parametrize("shift", SHIFTS)
def test_fixed_size_subsets_equal_dp_accounting_until_its_sums_cancel(q, shift):
    orders = np.array([2, 3, 4, 8, 16, 32, 63, 128, 256, 1000])
    relation = dp.NeighboringRelation.REPLACE_ONE
    reference = dp.rdp.RdpAccountant(list(orders), relation)
    drawn = dp.SampledWithoutReplacementDpEvent(
        10**6, round(q * 10**6), dp.GaussianDpEvent(1 / shift)
    )
    with np.errstate(invalid="ignore"):  # differences of infinities, not used
        reference.compose(drawn)
    ratio = rdp._wang(orders, q, shift) / reference.rdp
    assert (ratio < 1 + 1e-5).all()
    stable = orders <= (256 if shift >= 1 else 16)
    np.testing.assert_allclose(ratio[stable], 1, rtol=1e-9)


def test_a_rare_fixed_size_subset_is_not_rounded_away():
    orders = [2.5, 3.0, 8.0]
    fixed = rdp.without_replacement_gaussian(orders, 2e-10, 1.0)
    assert (fixed >= rdp.poisson_gaussian(orders, 2e-10, 1.0, "add_remove")).all()


@pytest.mark.parametrize("q", [1e-4, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("shift", SHIFTS)
def test_curves_are_finite_increasing_and_between_their_neighbours(q, shift):
    """Less than a release to everybody; replace-one above add-or-remove.

    A fixed-size subset leaks at least the pair that attains its order 2: a mixture
    against one end of the ball, which is add-or-remove at the replace-one shift.
    """
    orders = rdp.ORDERS[::24]
    once = rdp.poisson_gaussian(orders, q, shift, "add_remove")
    other = rdp.poisson_gaussian(orders, q, shift, "replace_one")
    fixed = rdp.without_replacement_gaussian(orders, q, shift)
    for curve in (once, other, fixed):
        assert np.isfinite(curve).all()
        assert (curve > 0).all()
        assert curve is fixed or (np.diff(curve) > -1e-12 * curve[1:]).all()
    plain = rdp.gaussian(orders, shift)
    pairs = (once, plain), (once, other), (other, 4 * plain), (once, fixed)
    for lower, upper in (*pairs, (fixed, plain)):
        assert (lower <= upper * (1 + 1e-9)).all()


@pytest.mark.parametrize("shift", [1e6, 1e9])
def test_a_record_that_no_noise_hides_costs_what_it_costs_where_it_takes_part(shift):
    """Its mean beside the mean without it; the squares of heights round 60 nats off."""
    orders = np.array([1.5, 2.0, 300.0, 4096.0])
    for adjacency in ("add_remove", "replace_one"):
        got = rdp.poisson_gaussian(orders, 0.1, shift, adjacency)
        np.testing.assert_allclose(got, rdp.gaussian(orders, shift), rtol=1e-9)
    fixed = rdp.without_replacement_gaussian(orders, 0.1, shift)
    np.testing.assert_allclose(fixed, rdp.gaussian(orders, shift), rtol=1e-9)


def test_below_order_two_fixed_size_is_at_most_order_two():
    low, two = rdp.without_replacement_gaussian([1.3, 2.0], 0.05, 1.0)
    np.testing.assert_allclose(low, two)


@pytest.mark.parametrize("q", [1.0, 1.7])  # a batch larger than the data is everybody
def test_everybody_every_step_is_the_plain_gaussian(q):
    orders = np.array([2.0, 3.0])
    for adjacency, factor in (("add_remove", 1), ("replace_one", 2)):
        got = rdp.poisson_gaussian(orders, q, 0.7, adjacency)
        np.testing.assert_allclose(got, rdp.gaussian(orders, factor * 0.7))
        loss = rdp.poisson_gaussian_pld(q, 0.7, 4, adjacency)
        assert loss == GaussianPrivacy(2 * factor * 0.7)
    got = rdp.without_replacement_gaussian(orders, q, 0.7)
    np.testing.assert_allclose(got, rdp.gaussian(orders, 0.7))


@pytest.mark.parametrize(("q", "shift"), [(0.0, 1.0), (0.1, 0.0), (0.0, 0.0)])
def test_nothing_released_is_no_leakage(q, shift):
    orders = [1.5, 2.0, 9.0]
    for adjacency in ("add_remove", "replace_one"):
        assert not rdp.poisson_gaussian(orders, q, shift, adjacency).any()
        assert rdp.poisson_gaussian_pld(q, shift, 9, adjacency).mu == 0
    assert not rdp.without_replacement_gaussian(orders, q, shift).any()


def test_an_unbounded_contribution_is_infinite():
    for adjacency in ("add_remove", "replace_one"):
        assert np.isposinf(rdp.poisson_gaussian([2.0], 0.1, np.inf, adjacency)).all()
        loss = rdp.poisson_gaussian_pld(0.1, np.inf, 1, adjacency)
        assert loss.get_epsilon_for_delta(1e-5) == np.inf
    assert np.isposinf(rdp.without_replacement_gaussian([2.0], 0.1, np.inf)).all()
    assert rdp.epsilon([2.0, 3.0], [np.inf, np.inf], 1e-5) == np.inf


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_a_record_that_no_noise_hides_has_an_epsilon(adjacency):
    """On either side of where dp-accounting's rounding overflows."""
    below, above = (
        rdp.poisson_gaussian_pld(0.1, shift, 3, adjacency).get_epsilon_for_delta(1e-5)
        for shift in (2499.0, 2700.0)
    )
    assert 3 * 2499**2 / 2 < below < above < np.inf


def test_errors_name_what_was_typed():
    with pytest.raises(ValueError, match=r"'swap'.*replace_one, add_remove"):
        rdp.poisson_gaussian([2.0], 0.1, 1.0, "swap")
    with pytest.raises(ValueError, match=r"'swap'.*replace_one, add_remove"):
        rdp.poisson_gaussian_pld(0.1, 1.0, 1, "swap")
    with pytest.raises(ValueError, match=r"above 1, got 1\.0"):
        rdp.without_replacement_gaussian([1.0, 2.0], 0.1, 1.0)


@pytest.mark.parametrize(
    ("mu", "delta", "want"),
    [(1.0, 1e-5, 4.3771780957), (0.5, 1e-6, 2.2540846502), (2.0, 1e-5, 9.997256)],
)
def test_gaussian_epsilon(mu, delta, want):
    """The third is replace-one at noise multiplier 1: the shift doubles."""
    loss = GaussianPrivacy(mu)
    assert abs(loss.get_epsilon_for_delta(delta) - want) < 2e-7
    assert abs(loss.get_delta_for_epsilon(want) / delta - 1) < 1e-6
    assert loss.get_epsilon_for_delta(0.0) == np.inf
    assert rdp.epsilon([2.0], [1.0], 0.0) == np.inf


@pytest.mark.parametrize("sigma", [0.02, 0.3, 1.0, 5.0])
def test_gaussian_epsilon_against_dp_accounting(sigma):
    want = dp.get_epsilon_gaussian(sigma, 1e-6)
    got = GaussianPrivacy(1 / sigma).get_epsilon_for_delta(1e-6)
    np.testing.assert_allclose(got, want, rtol=1e-7)


def test_dp_accounting_doubles_a_replace_one_shift_in_one_accountant_only():
    """The trap: the same event, replace-one, by its two accountants."""
    event, relation = dp.GaussianDpEvent(1.0), dp.NeighboringRelation.REPLACE_ONE
    renyi = dp.rdp.RdpAccountant([2.0], relation).compose(event)
    np.testing.assert_allclose(renyi.rdp, rdp.gaussian([2.0], 1.0))
    losses = dp.pld.PLDAccountant(relation).compose(event)
    np.testing.assert_allclose(losses.get_epsilon(1e-5), 9.997256, atol=2e-6)
    once = dp.pld.PLDAccountant().compose(event)
    np.testing.assert_allclose(once.get_epsilon(1e-5), 4.377178, atol=2e-6)


def test_gaussian_delta_is_an_array_function_and_survives_mu_50():
    loss = GaussianPrivacy(50.0)
    deltas = loss.get_delta_for_epsilon([-10.0, 0.0, 1250.0, 1600.0, 9000.0])
    assert ((deltas >= 0) & (deltas <= 1)).all()
    assert (np.diff(deltas) <= 0).all()
    # P[L > eps] of the loss N(1250, 50^2), and e^eps Q[L > eps] nearly as large
    assert 0.45 < deltas[2] < 0.5
    epsilon = loss.get_epsilon_for_delta(1e-9)
    np.testing.assert_allclose(loss.get_delta_for_epsilon(epsilon), 1e-9, rtol=1e-7)


@pytest.mark.parametrize("mu", [1e6, 3e8, 1e9, 1e30])
def test_an_epsilon_that_rounding_cannot_tell_from_its_tail_is_given(mu):
    """Of the loss N(mu^2 / 2, mu^2); at 1e9 a step of a float is 64 in its mean."""
    got = GaussianPrivacy(mu).get_epsilon_for_delta(1e-5)
    np.testing.assert_allclose(got, mu**2 / 2, rtol=20 / mu + 1e-7)


def test_membership_of_a_gaussian_release():
    loss = GaussianPrivacy(1.0)
    np.testing.assert_allclose(loss.tpr(0.001), 0.0182984684, rtol=1e-8)
    fpr = np.linspace(0, 1, 100_001)
    advantage = (loss.tpr(fpr) - fpr).max()  # 2 Phi(mu / 2) - 1
    np.testing.assert_allclose(advantage, 0.3829249225, rtol=1e-8)
    np.testing.assert_allclose(advantage, loss.get_delta_for_epsilon(0.0), rtol=1e-8)
    assert loss.tpr(0.0) == 0
    assert loss.tpr(1.0) == 1


def test_no_leakage_is_epsilon_zero():
    assert GaussianPrivacy(0.0).get_epsilon_for_delta(1e-9) == 0.0
    assert GaussianPrivacy(1e-12).get_epsilon_for_delta(1e-9) == 0.0
    for mu in (0.0, 1e-12, 1e-6):
        deltas = GaussianPrivacy(mu).get_delta_for_epsilon([-1.0, 0.5, 1e4])
        np.testing.assert_allclose(deltas, [1 - np.exp(-1), 0, 0])
    assert GaussianPrivacy(0.0).tpr(0.25) == 0.25


@pytest.mark.parametrize(
    ("adjacency", "mu"),
    [("add_remove", 1.0), pytest.param("replace_one", 2, marks=pytest.mark.slow)],
)
def test_nearly_full_poisson_pld_under_both_adjacencies(adjacency, mu):
    """The shift is one record's under both: replace-one doubles it."""
    pld = rdp.poisson_gaussian_pld(1 - 1e-9, 1.0, 1, adjacency)
    want = GaussianPrivacy(mu).get_epsilon_for_delta(1e-5)
    np.testing.assert_allclose(pld.get_epsilon_for_delta(1e-5), want, rtol=1e-5)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("q", "shift", "steps"),
    [(0.05, 0.5, 100), (0.1, 22.3, 5), (0.01, 1e-3, 100_000), (1e-3, 0.05, 10_000)],
)
def test_poisson_pld_is_below_the_renyi_conversion(q, shift, steps, adjacency):
    """Two accountants of one mechanism: the curve converts to a little more."""
    tight = rdp.poisson_gaussian_pld(q, shift, steps, adjacency)
    curve = steps * rdp.poisson_gaussian(rdp.ORDERS, q, shift, adjacency)
    renyi = rdp.epsilon(rdp.ORDERS, curve, 1e-5)
    assert 0.8 * renyi < tight.get_epsilon_for_delta(1e-5) < renyi


@pytest.mark.parametrize(
    ("adjacency", "worlds"), [("add_remove", 1), ("replace_one", 2)]
)
def test_many_small_poisson_releases_are_nearly_one_gaussian(adjacency, worlds):
    """By the central limit theorem, mu = q x shift x sqrt(steps) between the worlds."""
    loss = rdp.poisson_gaussian_pld(0.01, 1e-3, 100_000, adjacency)
    limit = GaussianPrivacy(worlds * 0.01 * 1e-3 * math.sqrt(100_000))
    epsilon = loss.get_epsilon_for_delta(1e-5)
    assert epsilon == pytest.approx(limit.get_epsilon_for_delta(1e-5), rel=3e-3)


EDMUNDS = {1: 389.9752, 2: 697.6610, 3: 996.0350, 4: 1294.4090, 5: 1571.4291}


@pytest.mark.parametrize("steps", EDMUNDS)
def test_epsilons_of_edmunds_appendix_a(steps):
    """The thesis' convention: add-or-remove, overshoot 1.115, its orders, sigma .05."""
    curve = steps * rdp.gaussian(rdp.EDMUNDS_ORDERS, 1.115 / 0.05)
    got = rdp.epsilon(rdp.EDMUNDS_ORDERS, curve, 1e-9)
    assert abs(got - EDMUNDS[steps]) < 1e-3
    exact = GaussianPrivacy(np.sqrt(steps) * 1.115 / 0.05).get_epsilon_for_delta(1e-9)
    curve = steps * rdp.gaussian(rdp.ORDERS, 1.115 / 0.05)
    finer = rdp.epsilon(rdp.ORDERS, curve, 1e-9)
    assert exact < finer < got
    if steps == 5:
        assert abs(exact - 1541.4) < 0.1


@pytest.mark.parametrize(
    ("n", "sigma", "want"),
    [
        (57_000, 2.0, 0.6310),  # Table 3.2
        (25_000, 1.0, 3.9551),  # Table 3.3
        (30_000, 0.5, 20.5318),  # Figure 3.1, half of the data public; Table 3.1
        (48_000, 0.5, 18.4916),  # a fifth
        (54_000, 0.5, 18.0058),
        (57_000, 0.5, 17.8031),
        (59_400, 0.5, 17.6615),
    ],
)
def test_epsilons_of_edmunds_sampled_runs(n, sigma, want):
    """One epoch read as Poisson batches of 512, the last short batch counted."""
    orders, shift = rdp.EDMUNDS_ORDERS, 1.115 / sigma
    curve = rdp.poisson_gaussian(orders, 512 / n, shift, "add_remove")
    got = rdp.epsilon(orders, -(-n // 512) * curve, 1e-9)
    np.testing.assert_allclose(got, want, atol=1e-4)
