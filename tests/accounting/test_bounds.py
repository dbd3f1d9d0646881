"""Bounds against test vectors, brute force and each other."""

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from audit.accounting import bounds, rdp
from audit.clipping import soft_clip
from audit.models import affine


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


def test_hcr_of_given_records():
    x = [[0, 0.25, 0.5, 0.9, 1], [0.5] * 5, [0, 1, 0, 1, 1]]
    got = bounds.hammersley_chapman_robbins_at(0.5, x)
    worst = bounds.hammersley_chapman_robbins(0.5).value
    np.testing.assert_allclose(worst, 0.38537352, rtol=1e-7)
    np.testing.assert_allclose(got.value, [1.11681246, worst, 4 * worst], rtol=1e-8)
    np.testing.assert_allclose(10**got.log10, got.value)
    wide = bounds.hammersley_chapman_robbins_at(0.5, 2 * np.array(x) - 1, (-1.0, 1.0))
    np.testing.assert_allclose(wide.value, 4 * got.value)
    wide = bounds.hammersley_chapman_robbins(0.5, (-1.0, 1.0))
    np.testing.assert_allclose(wide.value, 4 * worst)


@pytest.mark.parametrize("low", [0.0, -0.3, -1.0])
@pytest.mark.parametrize(("d", "longest"), [(2, 0.05), (3, 1.1), (7, 1.5), (7, 2.6)])
def test_hcr_of_records_of_a_largest_norm(low, d, longest):
    """No record of the ball moves less, long or sparse, and none leaves the ball."""
    rng = np.random.default_rng(0)
    x = rng.uniform(low, 1, (4000, d)) * (rng.uniform(size=(4000, d)) < 0.5)
    x[:9] = longest * np.eye(9, d)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    length = longest * rng.uniform(0, 2, (4000, 1)).clip(0, 1)  # half are the longest
    x = np.clip(x * length / np.where(norm > 0, norm, 1), low, 1)
    ends = bounds.room_in_ball((low, 1.0), d, longest)
    anywhere = bounds.hammersley_chapman_robbins(0.5, ends).value
    at = bounds.hammersley_chapman_robbins_at(0.5, x, (low, 1.0), longest).value
    assert anywhere <= at.min() * (1 + 1e-9)
    assert at.min() < 5 * anywhere
    free = bounds.hammersley_chapman_robbins_at(0.5, x, (low, 1.0)).value
    assert (at <= free).all()
    short = np.linalg.norm(x, axis=1) ** 2 + 1 <= longest**2
    np.testing.assert_array_equal(at[short], free[short])


def test_hcr_of_a_record_on_the_sphere_leaves_neither_ball_nor_domain():
    """(.6, .8) moves by 1.2 and 1.6 in the unit disc; a mirror changes nothing."""
    disc = (-1.0, 1.0), 1.0
    got = bounds.hammersley_chapman_robbins_at(0.5, [[0.6, 0.8]], *disc).value
    np.testing.assert_allclose(got, (1.2**2 + 1.6**2) / 2 / np.expm1(0.5))
    ends = bounds.room_in_ball((-2.0, 1.0), 3, 1.1)
    assert ends == tuple(-e for e in bounds.room_in_ball((-1.0, 2.0), 3, 1.1)[::-1])


def test_hcr_knows_nothing_of_a_ball_that_is_not_around_the_domain():
    assert bounds.room_in_ball((0.5, 1.0), 3, 1.0) is None
    assert bounds.room_in_ball((0.5, 1.0), 3, np.inf) == (0.5, 1.0)
    assert bounds.room_in_ball((0.0, 1.0), 784, 17.1789) == (0.0, 1.0)


def test_hcr_of_standardised_channels():
    """A pixel of CIFAR-10 divided by .2023, .1994, .2010: 24.7791 times the bound."""
    low = -np.repeat([2.43, 2.42, 2.22], 4)
    high = low + 1 / np.repeat([0.2023, 0.1994, 0.2010], 4)
    got = bounds.hammersley_chapman_robbins(0.5, (low, high))
    plain = bounds.hammersley_chapman_robbins(0.5)
    np.testing.assert_allclose(got.value / plain.value, 24.7791, rtol=1e-6)
    at = bounds.hammersley_chapman_robbins_at(0.5, np.array([low, high]), (low, high))
    np.testing.assert_allclose(at.value, 4 * got.value)


def test_hcr_at_its_ends():
    """Order 2 of five steps at noise multiplier .05 is 9,951, below any float."""
    for rdp2, value in ((0.0, np.inf), (1e-320, np.inf), (np.inf, 0.0)):
        got = bounds.hammersley_chapman_robbins(rdp2)
        assert got.value == value
        at = bounds.hammersley_chapman_robbins_at(rdp2, [[0.0, 1.0]])
        assert at.value.tolist() == [value]
    assert bounds.hammersley_chapman_robbins(np.inf).log10 == -np.inf
    with pytest.raises(ValueError, match="rdp2=-1"):
        bounds.hammersley_chapman_robbins(-1)
    least = bounds.hammersley_chapman_robbins(740.0).value
    np.testing.assert_allclose(least, np.exp(-740 - np.log(4)), rtol=1e-3)
    lost = bounds.hammersley_chapman_robbins(5 * (2 * 1.1153 / 0.05) ** 2)
    assert lost.value == 0.0
    assert bounds.format_bound(float(lost.value), lost.log10) == "10^-4322"


def test_cramer_rao_of_nothing_is_infinite():
    got = bounds.cramer_rao([2.0, 0.0])
    assert got.value.tolist() == [0.5, np.inf]
    assert got.holds_for == "unbiased attackers"


def test_cramer_rao_of_the_matrix_against_the_inverse():
    """Woodbury's identity, the dense way where a diagonal entry is 0, and neither."""
    rng = np.random.default_rng(0)
    diagonal, factor = rng.uniform(0.1, 1, (3, 9)), rng.normal(size=(3, 9, 3))
    root = rng.normal(size=(3, 3, 3))
    core = root @ root.swapaxes(1, 2)
    diagonal[1, :2] = 0  # the factor makes up for two directions
    diagonal[2, :4] = 0  # four are too many
    got = bounds.cramer_rao_matrix(diagonal, factor, core)
    for i in range(2):
        matrix = np.diag(diagonal[i]) + factor[i] @ core[i] @ factor[i].T
        want = np.trace(np.linalg.inv(matrix)) / 9
        np.testing.assert_allclose(got.value[i], want, rtol=1e-9)
        assert want >= 9 / np.trace(matrix)
    assert got.value[2] == np.inf
    assert not got.ranked
    equal = bounds.cramer_rao_matrix(
        [[2.0] * 4], np.zeros((1, 4, 1)), np.ones((1, 1, 1))
    )
    np.testing.assert_allclose(equal.value, bounds.cramer_rao([2.0]).value)


def test_cramer_rao_of_the_matrix_of_a_linear_model():
    """The sheet's model (d = 6, three classes, label 1), by its eigenvalues."""
    with jax.enable_x64(True):
        i, j = np.arange(6)[:, None], np.arange(3)
        head = affine.Head(np.sin(1 + 3 * i + j), np.array([0.1, -0.2, 0.3]))
        x, y = (np.arange(6)[None] + 0.5) / 6, np.array([1])
        for norm, eigenvalues in SPECTRA.items():
            to = affine.Treatment(soft_clip(norm), 3)
            parts = affine.clipped_information(head, x, y, to)
            got = bounds.cramer_rao_matrix(*parts).value[0]
            np.testing.assert_allclose(
                got, np.mean(1 / np.array(eigenvalues)), rtol=1e-7
            )


SPECTRA = {
    1.0: [0.14339537, 0.41433981, 0.41433981, 0.41433981, 0.41461805, 0.51848993],
    4.0: [1.04453059, 1.3304885, 1.3304885, 1.3304885, 1.65378253, 1.87672839],
}


@pytest.mark.parametrize("trace", [0.1, 3.0, 6.0, 50.0])
def test_van_trees_is_the_least_over_all_information(trace):
    """Against a numerical minimum over diagonals, and random rotations above it."""
    precision = np.array([0.25, 1.0, 4.0])
    got = float(bounds.van_trees(trace, 1 / precision).value)

    def risk(logits):
        share = np.exp(logits - logits.max())
        return (1 / (precision + trace * share / share.sum())).mean()

    how = {"method": "Nelder-Mead"}
    how["options"] = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000}
    starts = ([0.0, 0, 0], [5.0, 0, -5], [9.0, 9, -9])
    best = min(scipy.optimize.minimize(risk, start, **how).fun for start in starts)
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
    assert bounds.van_trees(3.0, [0.0, 0.0]).value == 0
    assert bounds.van_trees(1.0, [1.0, 1e-310]).value == 0.25


def test_van_trees_is_attained_by_the_linear_channel():
    """h = z + noise with I = 2 Id has Bayes risk 1 / (J_i + 2): above, Tr I = 6.

    J = diag(1/4, 1, 4): the trace form is .26667, the exact risk .31481.
    """
    exact = np.mean(1 / (np.array([0.25, 1.0, 4.0]) + 2))
    np.testing.assert_allclose(exact, 0.3148148148, rtol=1e-9)
    assert 0.2666666667 < bounds.van_trees(6.0, [4.0, 1.0, 0.25]).value <= exact
    level = bounds.van_trees(6.0, [4.0, 4.0, 4.0]).value
    np.testing.assert_allclose(level, 1 / (0.25 + 2))


B_OF_MU = {  # half the integral of pq / (p + q), and that over 1 - 4B
    0.5: (0.2352635061, 3.991171644),
    1: (0.1989864336, 0.9751642926),
    2: (0.1123998773, 0.2042147113),
    3: (0.0493106255, 0.06142655246),
    4: (0.0171493522, 0.01841239477),
}


@pytest.mark.parametrize("mu", B_OF_MU)
def test_two_point_test_vectors(mu):
    for got in (bounds.two_point(mu), bounds.two_point_of(rdp.GaussianPrivacy(mu))):
        np.testing.assert_allclose([b.value for b in got], B_OF_MU[mu], rtol=2e-9)
        np.testing.assert_allclose([10**b.log10 for b in got], B_OF_MU[mu], rtol=2e-9)
        assert not any(b.ranked for b in got)
        anybody, unbiased = (b.holds_for.split(",")[0] for b in got)
        assert (anybody, unbiased) == ("any attacker", "unbiased attackers")


def test_two_point_beyond_what_floats_hold():
    """At mu = 50 against adaptive quadrature; at 1,000 the value is a power of ten."""
    sech, _ = scipy.integrate.quad(
        lambda x: scipy.stats.norm.pdf(x) / np.cosh(25 * x), -2, 2, points=[0]
    )
    everybody, unbiased = bounds.two_point(50.0)
    np.testing.assert_allclose(everybody.value, sech / 4 * np.exp(-312.5), rtol=1e-9)
    np.testing.assert_allclose(unbiased.log10, everybody.log10)
    lost = bounds.two_point(1000.0)[0]
    assert lost.value == 0
    assert bounds.format_bound(float(lost.value), lost.log10) == "10^-54290"
    # from a loss it is known only where delta differs from one
    for mu in (14.0, 50.0):
        assert [b.value for b in bounds.two_point_of(rdp.GaussianPrivacy(mu))] == [0, 0]


def test_two_point_without_leakage():
    """A quarter is the variance of a corner; unbiased attackers have no chance."""
    for got in (bounds.two_point(0.0), bounds.two_point_of(rdp.GaussianPrivacy(0.0))):
        np.testing.assert_allclose([b.value for b in got], [0.25, np.inf])
    nearly = bounds.two_point(1e-6)[1]
    np.testing.assert_allclose(nearly.value, 1e12, rtol=1e-9)
    wide, unit = (bounds.two_point(1.0, domain) for domain in ((-1.0, 1.0), (0.0, 1.0)))
    np.testing.assert_allclose([b.value for b in wide], [4 * b.value for b in unit])
    for mu in (-1.0, np.inf):
        with pytest.raises(ValueError, match="mu="):
            bounds.two_point(mu)


class Randomised:
    """Pure eps-DP at its worst: a coin told with odds e^eps."""

    def __init__(self, epsilon):
        self.epsilon = epsilon

    def get_delta_for_epsilon(self, epsilon):
        gap = np.exp(self.epsilon) - np.exp(epsilon)
        return np.maximum(gap / (1 + np.exp(self.epsilon)), 0)


@pytest.mark.parametrize(
    ("epsilon", "want"), [(1.0, 0.1966119332), (3.0, 0.0451766598)]
)
def test_two_point_of_pure_privacy(epsilon, want):
    closed = np.exp(epsilon) / (1 + np.exp(epsilon)) ** 2
    np.testing.assert_allclose(want, closed, rtol=1e-8)
    got = bounds.two_point_of(Randomised(epsilon))[0].value
    np.testing.assert_allclose(got, want, rtol=1e-5)


def composed_two_point(q, shift, steps, grid=1e-4, size=2**20):
    """E 1 / (2 (1 + e^L)) by FFT of the loss, masses split so that means are kept."""
    x = np.linspace(-12, 12, 200_001)
    mixture = lambda s: np.logaddexp(np.log1p(-q), np.log(q) + s * x - s**2 / 2)
    mass = np.exp(mixture(shift)) * scipy.stats.norm.pdf(x) * (x[1] - x[0])
    place = (mixture(shift) - mixture(-shift)) / grid
    low = np.floor(place).astype(int)
    pmf = np.zeros(size)
    np.add.at(pmf, low % size, mass * (low + 1 - place))
    np.add.at(pmf, (low + 1) % size, mass * (place - low))
    total = np.fft.irfft(np.fft.rfft(pmf) ** steps, size)
    loss = np.fft.fftfreq(size, 1 / size) * grid
    return total @ (1 / (1 + np.exp(loss))) / 2


@pytest.mark.parametrize(("sigma", "published"), [(1.0, 0.224229), (2.0, 0.243847)])
def test_two_point_of_poisson_batches(sigma, published):
    """q = .01, 1,000 steps; the six-digit vectors are good to 5e-5 only."""
    loss = rdp.poisson_gaussian_pld(0.01, 1 / sigma, 1000, "replace_one")
    got = bounds.two_point_of(loss)[0].value
    exact = composed_two_point(0.01, 1 / sigma, 1000)
    np.testing.assert_allclose(got, exact, rtol=2e-6)
    assert got < exact  # pessimistic deltas make the bound smaller
    np.testing.assert_allclose(got, published, rtol=5e-5)


@pytest.mark.parametrize(
    ("value", "log10", "text"),
    [
        (0.0421, None, ".0421"),
        (0.5, None, ".5000"),
        (66.02, None, "66"),
        (3.2e-7, None, "3.2e-07"),
        (3.2e-11, None, "10^-10"),
        (0.0, -4322.1, "10^-4322"),
        (0.02, -4322.1, ".0200"),
        (3.2e-5, None, "3.2e-05"),
        (1.0, None, "1"),
        (0.0, None, "0"),
        (0.0, -np.inf, "0"),
        (np.inf, None, "inf"),
        (np.inf, np.inf, "inf"),
        (np.float64("nan"), None, "nan"),
        (None, None, "none"),
    ],
)
def test_format(value, log10, text):
    assert bounds.format_bound(value, log10) == text
