"""Traces and the subsampling factor, against test vectors and brute force."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from audit.accounting.fisher import (
    exact_trace,
    hutchinson,
    mixture_moments,
    subsampling_factor,
)
from audit.clipping import GELU_OVERSHOOT, soft_clip
from tests.models.test_affine import by_autodiff, vectors

LAWS = ["rademacher", "gaussian", "coordinate"]
MATRIX = np.arange(12.0).reshape(4, 3) / 7


def linear(x):
    return MATRIX @ x


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_exact_trace_is_the_frobenius_norm(batch):
    x = jnp.array([1.0, 2.0, 3.0])
    got = exact_trace(lambda x: {"y": MATRIX @ x.ravel()}, x[:, None], batch=batch)
    np.testing.assert_allclose(got, (MATRIX**2).sum(), rtol=1e-6)
    at_x = exact_trace(lambda x: (x**3, x.sum()), x)
    np.testing.assert_allclose(at_x, (9 * x**4).sum() + 3, rtol=1e-6)


@pytest.mark.parametrize("law", LAWS)
def test_probes_are_unbiased_and_so_is_their_variance(law):
    """4,000 estimates of two probes each: both means within 4 s.e."""
    keys = jax.random.split(jax.random.key(0), 4_000)
    run = jax.jit(jax.vmap(lambda k: hutchinson(k, linear, jnp.ones(3), 2, law)))
    values, errors = map(np.asarray, run(keys))
    exact = (MATRIX**2).sum()
    variance = ((values - exact) ** 2).mean()
    for draws, mean in ((values, exact), (errors**2, variance)):
        assert abs(draws.mean() - mean) < 4 * draws.std() / np.sqrt(len(draws))


@pytest.mark.parametrize(
    ("law", "variance"),
    [
        ("gaussian", lambda a: 2 * (a**2).sum()),
        ("rademacher", lambda a: 2 * ((a**2).sum() - (a.diagonal() ** 2).sum())),
    ],
)
def test_variance_of_one_probe(law, variance):
    """20,000 estimates: the variance within 6%, some 4 s.e. for either law."""
    keys = jax.random.split(jax.random.key(1), 20_000)
    run = jax.jit(jax.vmap(lambda k: hutchinson(k, linear, jnp.ones(3), 1, law)[0]))
    values = np.asarray(run(keys))
    np.testing.assert_allclose(values.var(), variance(MATRIX.T @ MATRIX), rtol=0.06)


def test_coordinates_are_drawn_without_replacement(x64):
    """Over all pairs of coordinates: the squared error is the variance, exactly."""
    columns = 3 * (MATRIX**2).sum(0)
    keys = jax.random.split(jax.random.key(0), 60)
    run = jax.vmap(lambda k: hutchinson(k, linear, jnp.ones(3), 2, "coordinate"))
    drawn = np.asarray(jax.jit(run)(keys))
    values, first = np.unique(drawn[0].round(9), return_index=True)
    wanted = [np.mean(pair) for pair in itertools.combinations(columns, 2)]
    np.testing.assert_allclose(values, sorted(wanted), rtol=1e-6)
    np.testing.assert_allclose((drawn[1][first] ** 2).mean(), np.var(wanted))


@pytest.mark.parametrize("law", LAWS)
def test_standard_errors_of_one_probe_and_of_more(law):
    """One key for all probes, the published slip, would give a standard error of 0."""
    value, se = hutchinson(jax.random.key(0), linear, jnp.ones(3), 1, law)
    assert np.isfinite(value)
    assert np.isnan(se)
    probes = 2 if law == "coordinate" else 8
    assert hutchinson(jax.random.key(1), linear, jnp.ones(3), probes, law)[1] > 0


def test_all_coordinates_are_exact():
    value, se = hutchinson(jax.random.key(0), linear, jnp.ones(3), 3, "coordinate")
    np.testing.assert_allclose(value, (MATRIX**2).sum(), rtol=1e-6)
    assert se == 0
    with pytest.raises(ValueError, match="probes=4 is more than the 3 coordinates"):
        hutchinson(jax.random.key(0), linear, jnp.ones(3), 4, "coordinate")


@pytest.mark.parametrize(
    ("q", "nu", "a", "b"),
    [
        (0.01, 1, 0.0257046800, 0.0471801247),
        (0.01, 2, 0.1639575703, 0.3037124455),
        (0.1, 2, 0.4701640257, 0.4880368449),
        (256 / 60000, 1.1153, 0.0141953868, 0.0297765059),
        (0.5, 3, 0.9013787489, 0.7360237087),
    ],
)
def test_mixture_moments(x64, q, nu, a, b):
    np.testing.assert_allclose(mixture_moments(q, nu), (a, b), rtol=0, atol=6e-11)


def test_mixture_moments_are_the_fisher_information_of_the_mixture(x64):
    """Integrate (d p)^2 / p of q N(m, 1) + (1 - q) N(0, 1) along and across m."""
    q, nu = 0.2, 1.3
    phi = scipy.stats.norm.pdf

    def integral(slope):
        density = lambda z: q * phi(z - nu) + (1 - q) * phi(z)
        height = lambda z: (q * phi(z - nu) * slope(z)) ** 2 / density(z)
        return scipy.integrate.quad(height, -12, 14, epsabs=1e-13)[0]

    a, b = mixture_moments(q, nu)
    np.testing.assert_allclose(q * b, integral(lambda z: z - nu), rtol=1e-9)
    np.testing.assert_allclose(q * a, integral(lambda z: 1.0), rtol=1e-9)


@pytest.mark.parametrize(
    ("sigma", "fixed_size", "poisson"),
    [
        (0.5, 0.86737, 0.37119),
        (1, 0.37119, 0.06250),
        (2, 0.06250, 0.01751),
        (5, 0.01445, 0.01100),
        (10, 0.01100, 0.01024),
    ],
)
def test_factors_by_noise_level(x64, sigma, fixed_size, poisson):
    """q = .01; nu is 2 c / sigma for fixed-size batches and c / sigma for Poisson's."""
    nu = np.array([2, 1]) * GELU_OVERSHOOT / sigma
    got = [subsampling_factor(0.01, nu_max) for nu_max in nu]
    np.testing.assert_allclose(got, [fixed_size, poisson], rtol=0, atol=6e-6)


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_the_supremum_is_at_the_largest_shift(x64, q):
    """Even above q = 2/3, where b alone first falls."""
    nu = jnp.linspace(0.0, 10.0, 101)
    a, b = jax.jit(jax.vmap(mixture_moments, (None, 0)))(q, nu)
    assert (np.diff(np.maximum(a, b)) > -1e-14).all()
    assert (np.diff(b) < -1e-7).any() == (q > 2 / 3)
    before = np.log(q / (1 - q)) + nu**2 / 2 <= 0
    assert (np.where(before, b - a, a - b) > -1e-14).all()


def test_the_factor_is_a_factor_and_may_be_traced():
    factor = jax.jit(subsampling_factor)
    for q in (0.001, 0.3, 0.7, 0.99, 1.0):
        for nu in (0.0, 0.1, 3.0, 50.0, 1e30, np.inf):
            assert q * (1 - 1e-5) <= float(factor(q, nu)) <= 1.0
        np.testing.assert_allclose(factor(q, 0.0), q, rtol=1e-5)
        np.testing.assert_allclose(factor(q, np.inf), 1.0, rtol=1e-5)


@functools.cache
def linear_softmax():
    """Clipped gradient and Jacobian of the closed forms' test vector, y = 1, C = 1."""
    head, x = vectors()
    whole, zero = (jax.tree.map(f, head) for f in (jnp.ones_like, jnp.zeros_like))
    one = x, np.array([1]), whole, zero, np.ones(1)
    both = by_autodiff(head, *one, classes=3, clips=soft_clip)
    return [np.asarray(a)[0, 0] for a in both]


Q, RHO = 0.1, 0.8
TRACE = 0.1040685893  # 8 million Monte-Carlo draws gave .104073 +- .000126


def test_poisson_trace_end_to_end(x64):
    """The exact trace, its bound at the largest shift, and Guo et al.'s first form."""
    g, jacobian = linear_softmax()
    square, norm = (jacobian**2).sum(), np.linalg.norm(g)
    along = ((g @ jacobian / norm) ** 2).sum()
    across, straight = mixture_moments(Q, norm / RHO)  # to the contribution
    exact = Q * (across * (square - along) + straight * along) / RHO**2
    form_1 = Q * square / RHO**2
    kappa = subsampling_factor(Q, GELU_OVERSHOOT / RHO)
    np.testing.assert_allclose(form_1, Q * 2.3195227831 / RHO**2, rtol=1e-9)
    np.testing.assert_allclose(kappa, 0.1225897228 / 0.331163, rtol=2e-6)
    np.testing.assert_allclose(exact, TRACE, rtol=1e-9)
    assert exact < form_1 * kappa < form_1


def test_poisson_trace_against_monte_carlo(x64):
    """E ||score||^2 over 200,000 noisy sums that hold the record one time in ten."""
    g, jacobian = linear_softmax()
    rng = np.random.default_rng(0)
    noise = RHO * rng.normal(size=(200_000, g.size))
    sums = noise + np.where(rng.uniform(size=(len(noise), 1)) < Q, g, 0)
    log_ratio = (sums @ g - g @ g / 2) / RHO**2  # of taking part against not
    r = scipy.special.expit(np.log(Q / (1 - Q)) + log_ratio)
    score = r[:, None] * ((sums - g) @ jacobian) / RHO**2
    square = (score**2).sum(1)
    error = square.std() / np.sqrt(len(square))
    assert abs(square.mean() - TRACE) < 4 * error < 0.04 * TRACE
