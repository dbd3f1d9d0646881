"""The von Mises-Fisher law: closed forms, the sampler's law, and what a draw leaks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from audit.accounting import rdp, vmf, vmf_privacy
from audit.accounting.vmf_privacy import VmfPrivacy

# K, kappa, A_K, L, D_2 and D_4 of antipodes, by mpmath at 60 digits
VECTORS = [
    (2, 1, 0.446389965897, 0.235914358507, 1.34939326331, 1.63052618553),
    (3, 2, 0.537314720728, 0.595220192054, 2.91986701393, 3.35752509926),
    (10, 5, 0.422450151015, 1.14374479996, 6.16164801528, 7.55361501974),
    (100, 50, 0.415068585266, 11.3141871173, 60.3113622051, 74.3000662937),
    (61706, 250, 0.00405140337513, 0.506429577979, 4.05113743785, 8.09961829194),
    (10**5, 0.5, 4.99999999988e-6, 1.24999999998e-6, 9.99999999875e-6, 2e-5),
    (100000, 300000, 0.847128252101, 190912.646356, 547838.399579, 568755.740377),
]  # fmt: skip


@pytest.mark.parametrize(("k", "kappa", "a", "log", "d2", "d4"), VECTORS)
def test_closed_forms_against_vectors(k, kappa, a, log, d2, d4):
    assert vmf.mean_cosine(k, kappa) == pytest.approx(a, rel=1e-9)
    assert vmf.log_mean_exp(k, kappa) == pytest.approx(log, rel=1e-9)
    np.testing.assert_allclose(vmf_privacy.renyi([2, 4], k, kappa), [d2, d4], 1e-9)
    if k == 10:  # antipodes are two apart; here the angle is one radian
        near = vmf_privacy.renyi([2, 4], k, kappa, 2 * np.sin(0.5))
        np.testing.assert_allclose(near, [1.7478156391, 2.64227435874], rtol=1e-9)


@pytest.mark.parametrize("kappa", [1e-3, 0.3, 7.0, 40.0, 2e5])
def test_one_and_three_dimensions_are_elementary(kappa):
    assert vmf.mean_cosine(1, kappa) == pytest.approx(np.tanh(kappa), rel=1e-10)
    log_cosh = kappa + np.log1p(np.exp(-2 * kappa)) - np.log(2)
    assert vmf.log_mean_exp(1, kappa) == pytest.approx(log_cosh, rel=1e-9, abs=1e-15)
    coth = 1 / np.tanh(kappa) - 1 / kappa
    assert vmf.mean_cosine(3, kappa) == pytest.approx(coth, rel=1e-9)
    log_sinh = kappa + np.log(-np.expm1(-2 * kappa) / (2 * kappa))
    if kappa > 0.1:  # this form cancels below
        assert vmf.log_mean_exp(3, kappa) == pytest.approx(log_sinh, rel=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3, 31, 32, 33, 1000, 10**7])
def test_branches_join_and_the_mean_is_the_slope(k):
    """L' = A at points on both sides of every change of formula."""
    for kappa in [0.9 * np.sqrt(40 * k), 1.1 * np.sqrt(40 * k), 9e4, 1.1e5]:
        step = 1e-4 * kappa
        five = kappa + step * np.array([-2.0, -1.0, 1.0, 2.0])
        slope = vmf.log_mean_exp(k, five) @ [1, -8, 8, -1] / (12 * step)
        assert slope == pytest.approx(vmf.mean_cosine(k, kappa), rel=1e-7)
    assert vmf.log_mean_exp(k, 0.0) == 0
    assert vmf.mean_cosine(k, 0.0) == 0


@pytest.mark.parametrize("k", [32, 33, 100])
def test_the_expansion_in_many_dimensions_is_the_bessel_function(k):
    """Its values and not its slope alone, from its least order and the series on."""
    order = k / 2 - 1
    for kappa in (1.01 * np.sqrt(40 * k), 200.0, 1e4):
        scaled = np.log(special.ive(order, kappa)) + kappa
        exact = special.gammaln(order + 1) + order * np.log(2 / kappa) + scaled
        assert vmf.log_mean_exp(k, kappa) == pytest.approx(exact, rel=2e-10)


# The sampler --------------------------------------------------------------------------


def cosine_cdf(k, kappa):
    """Return the law of t by quadrature, independent of the sampler and of L."""
    angle = vmf_privacy._Angle.law(k, kappa)
    theta = np.linspace(*angle.ends(), 40_001)
    height = np.exp(angle.log_height(theta))
    mass = integrate.cumulative_trapezoid(height, theta, initial=0)
    return lambda t: 1 - np.interp(np.arccos(t), theta, mass / mass[-1])


@pytest.mark.parametrize("kappa", [0.1, 5.0, 3e5])
@pytest.mark.parametrize("k", [2, 100_000, 4_000_000])
def test_the_mode_has_its_digits_where_the_dimension_hides_kappa(k, kappa):
    b, mode = vmf.envelope(k - 1, jnp.float32(kappa))
    root = np.hypot(2 * kappa, k - 1)
    exact = (k - 1) / (2 * kappa + root)
    assert float(b) == pytest.approx(exact, rel=1e-6)
    assert float(mode) == pytest.approx(2 * kappa / (k - 1 + root), rel=1e-6)
    if k == 2:  # where the plain form keeps its digits
        assert float(mode) == pytest.approx((1 - exact) / (1 + exact), rel=1e-6)


@functools.cache
def sampler(k):
    """Compile once a dimension: the concentration is traced."""
    draw = lambda key, kappa: vmf.sample_cosine(key, k, kappa, jnp.float32)
    return jax.jit(jax.vmap(draw, (0, None)))


def cosines(k, kappa, n):
    keys = jax.random.split(jax.random.key(k), n)
    return tuple(np.asarray(a, float) for a in sampler(k)(keys, kappa))


@pytest.mark.parametrize("k", [2, 3, 10, 100, 10_000, 100_000])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 25.0, 3e5])
def test_cosines_have_their_law(k, kappa):
    n = 4000
    t, sine = cosines(k, kappa, n)
    # in float32 cosines next to 1 tie: the sine says how far off 1 they are
    angle = np.arctan2(sine, t)
    cdf = cosine_cdf(k, kappa)
    assert stats.kstest(np.cos(angle), cdf).pvalue > 1e-3
    se = np.cos(angle).std() / np.sqrt(n)
    assert abs(np.cos(angle).mean() - vmf.mean_cosine(k, kappa)) < 4 * se


@pytest.mark.parametrize("kappa", [0.0, 0.7, 5.0])
def test_one_dimension_is_a_coin(kappa):
    t, sine = cosines(1, kappa, 20_000)
    assert set(t) <= {-1.0, 1.0}
    assert not sine.any()
    up = 1 / (1 + np.exp(-2 * kappa))
    se = np.sqrt(up * (1 - up) / len(t))
    assert abs((t > 0).mean() - up) < 4 * se + 1e-12


@pytest.mark.parametrize(("k", "kappa"), [(2, 3.0), (3, 1.0), (50, 20.0)])
def test_draws_are_unit_vectors_around_the_mean(k, kappa):
    """First two moments: A mu, and A' along mu, A / kappa across."""
    n = 20_000
    mean = np.full(k, 1 / np.sqrt(k), np.float32)
    keys = jax.random.split(jax.random.key(1), n)
    y = np.asarray(jax.jit(jax.vmap(lambda q: vmf.sample(q, mean, kappa)))(keys), float)
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, atol=2e-6)
    a = vmf.mean_cosine(k, kappa)
    se = y.std(0) / np.sqrt(n)
    assert (abs(y.mean(0) - a * mean) < 4.5 * se).all()
    across = np.zeros(k)
    across[:2] = np.array([1, -1]) / np.sqrt(2)
    slope = 1 - a**2 - (k - 1) * a / kappa
    for direction, variance in ((mean, slope), (across, a / kappa)):
        square = (y @ direction - a * (mean @ direction)) ** 2
        assert abs(square.mean() - variance) < 4 * square.std() / np.sqrt(n)


def test_a_draws_side_says_nothing_of_its_distance():
    """Cosine and tangent have keys of their own: else a circle's halves differ."""
    keys = jax.random.split(jax.random.key(5), 20_000)
    mean = np.array([0.0, 1.0], np.float32)
    y = np.asarray(jax.jit(jax.vmap(lambda q: vmf.sample(q, mean, 20.0)))(keys))
    left, right = (abs(y[side, 0]) for side in (y[:, 0] < 0, y[:, 0] > 0))
    assert stats.ks_2samp(left, right).pvalue > 1e-3
    assert abs(len(left) - len(right)) < 4 * np.sqrt(len(y))


def test_three_dimensions_against_scipy():
    """And float64 draws stay float64."""
    mean = np.array([0.6, 0.0, 0.8], np.float32)
    theirs = stats.vonmises_fisher(mean, 4.0).rvs(2000, random_state=0)
    keys = jax.random.split(jax.random.key(2), 2000)
    sample = jax.jit(vmf.sample)
    ours = np.asarray(jax.vmap(sample, (0, None, None))(keys, mean, 4.0))
    for i in range(3):
        assert stats.ks_2samp(ours[:, i], theirs[:, i]).pvalue > 1e-3
    with jax.enable_x64(True):
        y = sample(jax.random.key(0), jnp.ones(4) / 2, 3.0)
        assert y.dtype == jnp.float64
        assert float(jnp.linalg.norm(y)) == pytest.approx(1, abs=1e-14)


# What a draw leaks --------------------------------------------------------------------


def around(rows):
    """Return the span of vectors, the rows of a matrix."""
    return rows @ rows.T, lambda u: rows @ u, lambda c: c @ rows


def one_by_one(key, kappa, weight, rows):
    """Return the weighted sum of a draw around each row, of any length up to 1."""
    norm = jnp.linalg.norm(rows, axis=1, keepdims=True)
    first = jnp.eye(rows.shape[1])[0]
    means = jnp.where(norm > 0, rows / jnp.where(norm > 0, norm, 1), first)
    keys = jax.random.split(key, len(rows))
    return weight @ jax.vmap(vmf.sample)(keys, means, kappa * norm[:, 0])


@pytest.mark.parametrize(
    ("alike", "kappa"),
    [
        (True, 40.0),
        pytest.param(False, 0.0, marks=pytest.mark.slow),
        pytest.param(False, 3.0, marks=pytest.mark.slow),
        pytest.param(False, 40.0, marks=pytest.mark.slow),
        pytest.param(True, 0.0, marks=pytest.mark.slow),
        pytest.param(True, 3.0, marks=pytest.mark.slow),
    ],
)
def test_the_sum_of_many_draws_has_its_law(alike, kappa):
    """Few dimensions: 4 of 12, and vectors that are equal, opposite, short or zero."""
    draws, k = 20_000, 12
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, k))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    weight = np.array([1, 1, 0.5, 2, -1, 0.0])
    if alike:
        rows[1], rows[2], rows[3] = rows[0], -rows[0], 0
        rows[4] *= 0.4
    u, w = jnp.asarray(rows), jnp.asarray(weight)
    at_once = jax.jit(jax.vmap(lambda k: vmf.sample_sum(k, kappa, w, *around(u), u[0])))
    apart = jax.jit(jax.vmap(lambda k: one_by_one(k, kappa, w, u)))
    one, other = (
        np.asarray(draw(jax.random.split(jax.random.key(seed), draws)), float)
        for seed, draw in ((1, at_once), (2, apart))
    )
    along = rng.normal(size=(k, 3))
    for read in (
        lambda s: (s**2).sum(1),
        lambda s: (s @ rows[0]) * (s @ rows[4]),
        lambda s: (s @ along[:, 0]) ** 2 * (s @ rows[4]),
        *(lambda s, v=v: s @ v for v in (*rows[[0, 2, 4]], *along.T)),
    ):
        assert stats.ks_2samp(read(one), read(other)).pvalue > 1e-4
    # all second moments: 5 s.e. of the difference of two means of draws
    pairs = [(s[:, :, None] * s[:, None]).reshape(draws, -1) for s in (one, other)]
    se = np.sqrt(sum(p.var(0) for p in pairs) / draws)
    assert (abs(pairs[0].mean(0) - pairs[1].mean(0)) < 5 * se).all()


def test_two_uniform_draws_are_as_long_together_as_their_cosine_says():
    """|y + y'|^2 = 2 + 2 c, (1 + c) / 2 of a Beta(3/2, 3/2) law in four dimensions.

    Whatever the vectors are that they are drawn around, at a concentration of 0.
    """
    rows = jnp.array([[1.0, 0, 0, 0], [np.cos(0.25), np.sin(0.25), 0, 0]])
    weight, draws = jnp.ones(2), 60_000
    draw = lambda key: vmf.sample_sum(key, 0.0, weight, *around(rows), rows[0])
    sums = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), draws))
    share = (np.asarray(sums, float) ** 2).sum(1) / 4
    assert stats.kstest(share, stats.beta(1.5, 1.5).cdf).pvalue > 1e-3
    # of a variance of 1 / 16 and a kurtosis of 2; lengths that share a key have less
    assert abs(16 * share.var() - 1) < 4 / np.sqrt(draws)


def test_a_draw_of_weight_zero_changes_nothing():
    rng = np.random.default_rng(1)
    rows, weight = rng.normal(size=(5, 9)) / 4, jnp.array([1.0, 0, 1, 1, 0])
    other = np.where(np.asarray(weight)[:, None] == 0, rng.normal(size=(5, 9)), rows)
    key = jax.random.key(0)
    draw = jax.jit(lambda u: vmf.sample_sum(key, 2.0, weight, *around(u), u[0]))
    first, second = draw(rows), draw(other)
    np.testing.assert_array_equal(first, second)


def test_draws_at_once_need_more_dimensions_than_there_are():
    with pytest.raises(ValueError, match="8 draws at once need 10 dimensions"):
        vmf.sample_sum(jax.random.key(0), 1.0, jnp.ones(8), *around(jnp.eye(9)[:8]),
                       jnp.ones(9))  # fmt: skip


@pytest.mark.parametrize(("k", "kappa"), [(3, 2.0), (100, 5.0), (10_000, 250.0)])
def test_fisher_precision_by_monte_carlo(k, kappa):
    """kappa^2 E <v, y>^2, where <v, y> is the sine times a coordinate of a sphere."""
    n = 40_000
    _, sine = cosines(k, kappa, n)
    rng = np.random.default_rng(0)
    along = rng.normal(size=n)
    rest = rng.chisquare(k - 2, n) if k > 2 else np.zeros(n)
    each = (kappa * sine * along / np.sqrt(along**2 + rest)) ** 2
    se = each.std() / np.sqrt(n)
    assert abs(each.mean() - vmf_privacy.precision(k, kappa)) < 3 * se


def test_fisher_precision_is_the_limit_of_the_divergence():
    for k, kappa in ((3, 2.0), (1000, 30.0), (61706, 250.0)):
        small = 1e-3
        chi2 = np.expm1(vmf_privacy.renyi(2, k, kappa, small))
        expected = vmf_privacy.precision(k, kappa) * small**2
        assert chi2 == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("k", "kappa", "epsilon", "delta", "rel"),
    [
        (3, 2, 0, 0.7615941560, 1e-9),
        (3, 2, 1, 0.6147869641, 1e-9),
        (3, 2, 3, 0.1577066192, 1e-9),
        # the sheet's trapezoid runs across the kink, which costs it up to 1e-6
        (7850, 25, 1, 0.0138180115, 2e-6),
        (7850, 25, 2, 7.2203642588e-5, 1e-5),
        (100_000, 250, 5, 0.0031213811, 2e-6),
    ],
)
def test_delta_against_vectors(k, kappa, epsilon, delta, rel):
    ours = VmfPrivacy(k, float(kappa)).get_delta_for_epsilon(epsilon)
    assert ours == pytest.approx(delta, rel=rel)


def test_delta_by_adaptive_quadrature():
    """The value in the sheet is off in the sixth digit; an independent rule says so."""
    k, kappa, epsilon = 7850, 25.0, 2.0

    def height(t):
        return np.exp(kappa * t + (k - 3) / 2 * np.log1p(-t * t))

    def lost(t):
        return -np.expm1(epsilon - 2 * kappa * t) * height(t)

    start = epsilon / (2 * kappa)
    top = integrate.quad(lost, start, start + 0.12, epsabs=0, epsrel=1e-11)[0]
    total = integrate.quad(height, -0.15, 0.15, epsabs=0, epsrel=1e-11, limit=200)[0]
    ours = VmfPrivacy(k, kappa).get_delta_for_epsilon(epsilon)
    assert ours == pytest.approx(top / total, rel=1e-9)


@pytest.mark.parametrize(
    ("k", "kappa"),
    [
        (10, 5.0),
        pytest.param(2, 1.0, marks=pytest.mark.slow),
        pytest.param(1000, 60.0, marks=pytest.mark.slow),
    ],
)
def test_delta_by_monte_carlo(k, kappa):
    t, _ = cosines(k, kappa, 100_000)
    privacy = VmfPrivacy(k, kappa)
    for epsilon in (0.0, 0.5 * kappa / np.sqrt(k), kappa):
        each = np.maximum(-np.expm1(epsilon - 2 * kappa * t), 0)
        se = each.std() / np.sqrt(len(t)) + 1e-9
        assert abs(each.mean() - privacy.get_delta_for_epsilon(epsilon)) < 3 * se


@pytest.mark.parametrize(("k", "kappa"), [(1, 0.5), (2, 1.0), (100, 5.0)])
def test_below_zero_delta_is_that_of_the_neighbours_swapped(k, kappa):
    """delta(-eps) = 1 - e^-eps + e^-eps delta(eps): a reflection swaps antipodes."""
    for epsilon in (0.3 * kappa, kappa, 3 * kappa):
        both = VmfPrivacy(k, kappa).get_delta_for_epsilon([-epsilon, epsilon])
        swapped = 1 - np.exp(-epsilon) + np.exp(-epsilon) * both[1]
        assert both[0] == pytest.approx(swapped, rel=1e-9)


def test_epsilon_of_one_release():
    for k, kappa, epsilon, conversion in (
        (7850, 25, 2.28099, 2.47630),
        (61706, 0.5, 0.00979, 0.01128),
        (61706, 5, 0.12630, 0.14042),
        (61706, 250, 10.07506, 10.85551),
    ):
        exact = VmfPrivacy(k, float(kappa)).get_epsilon_for_delta(1e-5)
        assert exact == pytest.approx(epsilon, abs=6e-6)
        curve = vmf_privacy.renyi(rdp.ORDERS, k, kappa)
        converted = rdp.epsilon(rdp.ORDERS, curve, 1e-5)  # at other orders than theirs
        assert exact < converted == pytest.approx(conversion, rel=5e-3)
    assert VmfPrivacy(3, 2.0).get_delta_for_epsilon(4.0) == 0  # the pure limit 2 kappa
    assert vmf_privacy.renyi(1e6, 3, 2.0) == pytest.approx(4, rel=1e-4)


def test_antipodes_are_worst():
    """Every hockey stick grows with the angle: integrated over the sphere by draws."""
    k, kappa = 5, 2.0
    keys = jax.random.split(jax.random.key(3), 50_000)
    mean = np.eye(k, dtype=np.float32)[0]
    y = np.asarray(jax.jit(jax.vmap(lambda q: vmf.sample(q, mean, kappa)))(keys))
    ours = []
    for angle in np.linspace(0.2, np.pi, 6):
        other = np.cos(angle) * np.eye(k)[0] + np.sin(angle) * np.eye(k)[1]
        loss = kappa * (y @ (mean - other))
        ours.append(np.maximum(-np.expm1(0.4 - loss), 0).mean())
    assert (np.diff(ours) > 0).all()
    exact = VmfPrivacy(k, kappa).get_delta_for_epsilon(0.4)
    assert ours[-1] == pytest.approx(exact, rel=0.02)


# Composition --------------------------------------------------------------------------


def test_composition_is_tight_and_never_below():
    """1.47727, next to the Gaussian limit. The sheet's 1.4818 rounds losses up at 1e-4,
    which adds half a cell to each of 90."""
    ours = vmf_privacy.composed([(61706, 5.0)], 90).get_epsilon_for_delta(1e-5)
    assert ours == pytest.approx(1.47727, abs=2e-5)
    limit = rdp.GaussianPrivacy(2 * np.sqrt(90 * vmf_privacy.precision(61706, 5.0)))
    assert ours == pytest.approx(limit.get_epsilon_for_delta(1e-5), rel=1e-4)
    assert ours + 90 * 1e-4 / 2 == pytest.approx(1.4818, abs=1e-4)


@pytest.mark.parametrize(
    ("times", "sheet"), [(10, 8.6996), (30, 17.3486), (90, 36.4751)]
)
def test_composition_against_vectors(times, sheet):
    """The sheet's cells are 1e-3 here: its values are half a cell a release above."""
    ours = vmf_privacy.composed([(7850, 25.0)], times).get_epsilon_for_delta(1e-5)
    assert ours < sheet
    assert ours + times * 1e-3 / 2 == pytest.approx(sheet, rel=3e-5)


def test_one_release_on_the_grid_is_the_exact_one():
    for k, kappa in ((1, 0.5), (2, 1.0), (3, 2.0), (100, 5.0)):
        exact = VmfPrivacy(k, kappa)
        half = vmf_privacy.composed([(k, kappa)], 1, share=0.5)
        for epsilon in (0.0, kappa / 5, kappa):
            delta = exact.get_delta_for_epsilon(epsilon)
            ours = half.get_delta_for_epsilon(epsilon)
            assert delta / 2 - 1e-12 <= ours <= delta / 2 * 1.001 + 2e-4


def test_sampled_coins_are_a_table():
    """Two steps with half the chance to take part in each: losses are on the grid."""
    up, losses = 1 / (1 + np.exp(-1.0)), np.arange(-2.0, 3.0)
    once = np.array([1 - up, 1, up]) / 2  # of -1, of 0 for who is left out, of 1
    mass = np.convolve(once, once)
    ours = vmf_privacy.composed([(1, 0.5)], 2, share=0.5)
    for epsilon in (-1.5, 0.0, 0.5, 1.5):
        delta = mass @ np.maximum(-np.expm1(epsilon - losses), 0)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-9)


def test_sampled_draws_without_noise_have_an_epsilon():
    """A grid from their losses down to that of a record's absence fits no memory."""
    epsilon = vmf_privacy.composed([(10, 1e8)], 5, 0.2).get_epsilon_for_delta(1e-5)
    assert epsilon == pytest.approx(5 * 2e8, rel=1e-6)


def test_pure_epsilon_composes_to_its_sum():
    """Two coins: the exact answer is a table of four outcomes. Blocks are as steps."""
    both = [(100, 5.0)] * 2
    one, two = vmf_privacy.composed(both, 1), vmf_privacy.composed(both[:1], 2)
    for epsilon in (0.0, 1.0, 3.0):
        delta = two.get_delta_for_epsilon(epsilon)
        assert one.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-4)
    kappa, up = 0.5, 1 / (1 + np.exp(-1.0))
    steps = vmf_privacy.composed([(1, kappa)], 2)
    blocks = vmf_privacy.composed([(1, kappa)] * 2, 1)
    for ours in (steps, blocks):
        for epsilon in (-3.0, 0.0, 0.5, 1.5):
            losses = np.array([2.0, 0.0, -2.0])
            mass = np.array([up**2, 2 * up * (1 - up), (1 - up) ** 2])
            delta = mass @ np.maximum(-np.expm1(epsilon - losses), 0)
            rounded = ours.get_delta_for_epsilon(epsilon)
            # losses between two cells are those of the upper one: never below
            assert delta - 1e-12 <= rounded <= delta + 2e-3
        assert ours.get_epsilon_for_delta(1e-9) <= 2.002
