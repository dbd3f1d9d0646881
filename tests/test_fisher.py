"""Traces and the subsampling factor, against test vectors and brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from audit.clip import GELU_OVERSHOOT
from audit.fisher import (
    exact_trace,
    hutchinson,
    mixture_moments,
    poisson_trace,
    subsampling_factor,
)

MATRIX = np.arange(12.0).reshape(4, 3) / 7


def test_exact_trace_is_the_frobenius_norm():
    got = exact_trace(lambda x: {"y": MATRIX @ x.ravel()}, jnp.ones((3, 1)))
    np.testing.assert_allclose(got, (MATRIX**2).sum(), rtol=1e-6)


@pytest.mark.parametrize("law", ["rademacher", "gaussian", "coordinate"])
def test_probes_are_unbiased(law):
    """4,000 estimates of two probes each: mean within 4 s.e."""
    keys = jax.random.split(jax.random.key(0), 4_000)
    run = lambda k: hutchinson(k, lambda x: MATRIX @ x, jnp.ones(3), 2, law)[0]  # noqa: E731
    values = np.asarray(jax.vmap(run)(keys))
    se = values.std() / np.sqrt(len(values))
    assert abs(values.mean() - (MATRIX**2).sum()) < 4 * se


@pytest.mark.parametrize("law", ["rademacher", "gaussian", "coordinate"])
def test_every_probe_has_its_own_direction(law):
    """One key for all probes, the published slip, would give a standard error of 0."""
    matrix = np.eye(3) + np.arange(9.0).reshape(3, 3)
    probes = 2 if law == "coordinate" else 8
    run = lambda x: matrix @ x  # noqa: E731
    _, se = hutchinson(jax.random.key(1), run, jnp.ones(3), probes, law)
    assert se > 0


def test_all_coordinates_are_exact():
    value, se = hutchinson(
        jax.random.key(0), lambda x: MATRIX @ x, jnp.ones(3), 3, "coordinate"
    )
    np.testing.assert_allclose(value, (MATRIX**2).sum(), rtol=1e-6)
    assert se == 0


def test_one_probe_has_no_standard_error():
    assert np.isnan(hutchinson(jax.random.key(0), lambda x: x, jnp.ones(3), 1)[1])


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
    np.testing.assert_allclose(mixture_moments(q, nu), (a, b), rtol=2e-9)


def test_mixture_moments_are_the_fisher_information_of_the_mixture(x64):
    """Integrate (d p)^2 / p of q N(m, 1) + (1 - q) N(0, 1) along and across m."""
    q, nu = 0.2, 1.3
    phi = scipy.stats.norm.pdf

    def mixture(z):
        return q * phi(z - nu) + (1 - q) * phi(z)

    def integral(f):
        return scipy.integrate.quad(f, -12, 14, epsabs=1e-13)[0]

    a, b = mixture_moments(q, nu)
    along = integral(lambda z: (q * phi(z - nu) * (z - nu)) ** 2 / mixture(z))
    across = integral(lambda z: (q * phi(z - nu)) ** 2 / mixture(z))
    np.testing.assert_allclose([q * b, q * a], [along, across], rtol=1e-9)


@pytest.mark.parametrize(
    ("sigma", "fixed_size", "poisson"),
    [
        (0.5, 0.86737, None),
        (1, 0.37119, 0.06250),
        (2, 0.06250, 0.01751),
        (5, 0.01445, 0.01100),
        (10, 0.01100, 0.01024),
    ],
)
def test_published_noise_levels(x64, sigma, fixed_size, poisson):
    """q = .01; nu is 2 c / sigma for fixed-size batches and c / sigma for Poisson's."""
    c = GELU_OVERSHOOT
    assert abs(subsampling_factor(0.01, 2 * c / sigma) - fixed_size) < 6e-6
    if poisson is not None:
        assert abs(subsampling_factor(0.01, c / sigma) - poisson) < 6e-6


def test_the_factor_is_a_factor():
    for q in (0.001, 0.3, 0.7, 0.99, 1.0):
        for nu in (0.0, 0.1, 3.0, 50.0):
            kappa = float(subsampling_factor(q, nu))
            assert q * 0.999 <= kappa <= 1.0


def test_poisson_trace_keeps_both_directions(x64):
    """Along the contribution b counts, across it a; their worst is the factor."""
    q, nu = 0.1, 1.1153 / 0.8
    a, b = mixture_moments(q, nu)
    np.testing.assert_allclose(poisson_trace(q, 5.0, 2.0, nu), q * (3 * a + 2 * b))
    worst = q * subsampling_factor(q, nu) * 5.0
    assert poisson_trace(q, 5.0, 2.0, nu) <= worst
    # the printed worst case over the printed bound without the factor
    assert abs(subsampling_factor(q, nu) - 0.1225897228 / 0.331163) < 1e-6
