"""Traces by quadratic forms: every estimator against the matrix, and its variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.accounting.traces import Probing, estimate, product, spectral_norm

D, DRAWS = 9, 4000
JACOBIANS = jax.random.normal(jax.random.key(0), (2, 5, D)) * jnp.arange(1, D + 1)
A = np.asarray(JACOBIANS.transpose(0, 2, 1) @ JACOBIANS, np.float64)  # [2, D, D]
TRACE = A.trace(axis1=1, axis2=2)
SQUARE = (A**2).sum((1, 2))
DIAGONAL = (np.diagonal(A, axis1=1, axis2=2) ** 2).sum(1)
VARIANCES = {  # of one probe
    "gaussian": 2 * SQUARE,
    "rademacher": 2 * (SQUARE - DIAGONAL),
    "coordinate": D * DIAGONAL - TRACE**2,
    "coordinate_replaced": D * DIAGONAL - TRACE**2,
}


def form(u):
    return (jnp.einsum("mpd,md->mp", JACOBIANS, u) ** 2).sum(-1)


def read(key, law, probes):
    return estimate(Probing(law, probes), key, form, (2, D), np.float32)


def many(law, probes):
    """Return DRAWS estimates and their variances, each [draws, 2]."""
    keys = jax.random.split(jax.random.key(1), DRAWS)
    drawn = jax.jit(jax.vmap(lambda key: read(key, law, probes)))(keys)
    return np.asarray(drawn.trace, float), np.asarray(drawn.variance, float)


@pytest.mark.parametrize("law", [*VARIANCES, "hutch++"])
def test_estimates_and_their_variances_are_unbiased(law):
    probes = 6 if law == "hutch++" else 3
    trace, variance = many(law, probes)
    within(trace, TRACE)
    within(variance, trace.var(0, ddof=1), also=(trace - TRACE) ** 2)
    if law in VARIANCES:
        left = (D - probes) / (D - 1) if law == "coordinate" else 1
        within((trace - TRACE) ** 2, VARIANCES[law] * left / probes)


def within(values, want, also=None):
    """Assert that a mean is within 4 standard errors of what it estimates."""
    error = values.std(0) / len(values) ** 0.5
    if also is not None:
        error = np.hypot(error, also.std(0) / len(also) ** 0.5)
    assert (np.abs(values.mean(0) - want) < 4 * error + 1e-6 * np.abs(want)).all()


def test_records_and_probes_have_directions_of_their_own():
    trace, _ = many("coordinate_replaced", 1)
    assert abs(np.corrcoef(trace.T)[0, 1]) < 4 / DRAWS**0.5
    one, three = many("gaussian", 1)[0], many("gaussian", 3)[0]
    np.testing.assert_allclose(one.var(0) / three.var(0), 3, rtol=0.3)


def test_an_exact_sweep_has_no_error_nor_has_every_coordinate():
    for law, probes in (("exact", 1), ("coordinate", D)):
        got = read(jax.random.key(2), law, probes)
        np.testing.assert_allclose(got.trace, TRACE, rtol=1e-5)
        np.testing.assert_array_equal(got.variance, 0)


def test_hutchpp_finds_a_matrix_of_low_rank_exactly():
    """The rank is 5, and a sketch of 5 directions spans it."""
    got = read(jax.random.key(3), "hutch++", 17)
    np.testing.assert_allclose(got.trace, TRACE, rtol=1e-4)
    assert (np.sqrt(got.variance) < 1e-3 * TRACE).all()


def test_products_and_the_largest_eigenvalue():
    u = jax.random.normal(jax.random.key(4), (2, D))
    np.testing.assert_allclose(product(form, u), (A @ u[..., None])[..., 0], rtol=1e-3)
    largest = np.linalg.eigvalsh(A)[:, -1]
    for steps in (6, 12):  # beyond the rank, too
        got = spectral_norm(jax.random.key(5), form, (2, D), np.float32, steps)
        np.testing.assert_allclose(got, largest, rtol=1e-4)
    below = spectral_norm(jax.random.key(5), form, (2, D), np.float32, 2)
    assert (below < largest).all()


@pytest.mark.parametrize(
    ("law", "probes", "words"),
    [("coordinate", D + 1, "more than the 9"), ("hutch++", 3, "4 or more")],
)
def test_impossible_numbers_of_probes_are_refused(law, probes, words):
    with pytest.raises(ValueError, match=words):
        read(jax.random.key(0), law, probes)
