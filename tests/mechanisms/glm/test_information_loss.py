"""Fisher information loss: closed forms against dense Jacobians and differences."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanisms.glm import information_loss, losses

pytestmark = pytest.mark.usefixtures("x64")
CASES = list(itertools.product(["linear", "logistic"], [False, True], [False, True]))


def jacobian_of(at, i, *, label):
    """Return J_i [D, F], or [D, F + 1] with the label's column: for small models."""
    z, k = at.inverse @ at.x[i], at.features
    of_x = at.slope[i] * at.inverse[:, :k] + at.curvature[i] * jnp.outer(z, at.w[:k])
    full = jnp.concatenate([of_x, -z[:, None]], 1) if label else of_x
    return -at.weight[i] * full


def fit(loss, intercept, weighted=False, n=12, d=4, ridge=0.3, seed=1):
    rng = np.random.default_rng(seed)
    x = np.asarray(losses.design(rng.uniform(size=(n, d)), intercept))
    y = rng.integers(0, 2, n).astype(float)
    y = 2 * y - 1 if loss == "linear" else y
    weight = np.linspace(0.25, 4, n) if weighted else np.ones(n)
    return make(loss, x, y, weight, ridge, d)


FIT = {
    name: jax.jit(partial(losses.minimise, loss))
    for name, loss in losses.LOSSES.items()
}


def make(name, x, y, weight, ridge, d):
    loss = losses.LOSSES[name]
    w = FIT[name](x, y, weight, ridge)
    curved = losses.hessian(loss, x, y, weight, ridge, w)
    return information_loss.fitted(loss, w, curved, x, y, weight, d), y


def dense(at, label):
    """Return every record's Jacobian, written down."""
    rows = range(len(at.x))
    return [np.asarray(jacobian_of(at, i, label=label)) for i in rows]


def moved(name, at, y, ridge, i, column, by):
    """Return the minimiser with one number of record i moved."""
    x, y = np.array(at.x), np.array(y)
    if column is None:
        y[i] += by
    else:
        x[i, column] += by
    return FIT[name](x, y, at.weight, ridge)


@pytest.mark.parametrize(("loss", "intercept", "weighted"), CASES)
def test_the_jacobian_is_the_minimisers_finite_difference(loss, intercept, weighted):
    at, y = fit(loss, intercept, weighted)
    i, step = 3, 1e-5
    columns = [*range(at.features), None]
    if loss == "logistic":
        columns = columns[:-1]  # its label is 0 or 1; the formula is checked below
    jacobian = jacobian_of(at, i, label=True)
    for place, column in enumerate(columns):
        ends = [moved(loss, at, y, 0.3, i, column, s * step) for s in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(jacobian[:, place], slope, rtol=1e-6, atol=1e-9)


def test_the_labels_column_of_the_logistic_loss():
    """Cross-entropy with a real label: -y log s - (1 - y) log(1 - s)."""
    at, y = fit("logistic", False)

    def minimiser(label):
        def total(w):
            u = at.x @ w
            labels = jnp.asarray(y).at[2].set(label)
            return (jax.nn.softplus(u) - labels * u).sum() + 0.3 * (w @ w) / 2

        w = at.w
        for _ in range(5):
            w = w - jnp.linalg.solve(jax.hessian(total)(w), jax.grad(total)(w))
        return w

    slope = (minimiser(y[2] + 1e-5) - minimiser(y[2] - 1e-5)) / 2e-5
    jacobian = jacobian_of(at, 2, label=True)
    np.testing.assert_allclose(jacobian[:, -1], slope, rtol=1e-6)


@pytest.mark.parametrize(("loss", "intercept", "weighted"), CASES)
def test_traces_and_spectral_norms_are_the_dense_ones(loss, intercept, weighted):
    at, _ = fit(loss, intercept, weighted)
    trace = information_loss.trace(at)
    for label in (False, True):
        norms, every = information_loss.example(at, label=label), dense(at, label)
        spectral = [np.linalg.norm(jacobian, 2) ** 2 for jacobian in every]
        np.testing.assert_allclose(norms, spectral, rtol=1e-12)
    squares = [(jacobian**2).sum() for jacobian in dense(at, False)]
    np.testing.assert_allclose(trace, squares, rtol=1e-12)


def test_printed_values():
    """Values derived independently for a 5 x 3 logistic problem."""
    x = np.array([[np.cos(1 + 3 * i + j) for j in range(3)] for i in range(5)])
    at, _ = make("logistic", x, np.array([0, 1, 0, 1, 1.0]), np.ones(5), 0.5, 3)
    np.testing.assert_allclose(at.w, [-0.2122746, 0.59552227, 0.85579871], atol=5e-9)
    trace = [0.33954488, 0.40426027, 0.5037988, 0.64885089, 3.40043962]
    norm = [0.21113111, 0.23867798, 0.27831408, 0.33281627, 1.85855477]
    ours = information_loss.trace(at), information_loss.example(at, label=False)
    np.testing.assert_allclose(ours, (trace, norm), atol=5e-9)


def test_records_without_slope_or_curvature_are_not_special():
    at, _ = fit("logistic", False)
    for slope, curvature in ((0.0, 0.2), (0.3, 0.0), (0.0, 0.0), (1e-200, 0.2)):
        flat = at._replace(
            slope=jnp.full_like(at.slope, slope),
            curvature=jnp.full_like(at.curvature, curvature),
        )
        for label in (False, True):
            spectral = np.linalg.norm(dense(flat, label)[0], 2) ** 2
            norm = information_loss.example(flat, label=label)[0]
            np.testing.assert_allclose(norm, spectral, rtol=1e-9, atol=1e-290)


@pytest.mark.parametrize(("loss", "intercept", "weighted"), CASES)
def test_attributes_are_columns_of_the_jacobian(loss, intercept, weighted):
    at, _ = fit(loss, intercept, weighted)
    columns, basis = [0, 2, 3], np.asarray(information_loss.sum_zero(3))
    norms = information_loss.attribute(at, columns)
    constrained = information_loss.attribute(at, columns, basis)
    for i, jacobian in enumerate(dense(at, False)):
        part = jacobian[:, columns]
        np.testing.assert_allclose(norms[i], np.linalg.norm(part, 2) ** 2)
        inside = np.linalg.norm(part @ basis, 2) ** 2
        np.testing.assert_allclose(constrained[i], inside, rtol=1e-10)


def test_the_sum_zero_basis():
    basis = np.asarray(information_loss.sum_zero(5))
    np.testing.assert_allclose(basis.sum(0), 0, atol=1e-14)
    np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-14)


@pytest.mark.parametrize("label", [False, True])
@pytest.mark.parametrize(("loss", "intercept", "weighted"), CASES)
def test_groups_and_the_whole_set(loss, intercept, weighted, label):
    at, _ = fit(loss, intercept, weighted)
    every = dense(at, label)
    for rows in ([5], [1, 4, 7], None):
        chosen = every if rows is None else [every[i] for i in rows]
        norm = np.linalg.norm(np.concatenate(chosen, 1), 2) ** 2
        got = information_loss.group(at, rows, label=label)
        np.testing.assert_allclose(got, norm, rtol=1e-10)


def test_losses_are_ordered():
    """Attribute <= example <= group <= whole set, trace between norm and d norms."""
    at, _ = fit("logistic", True)
    one = np.asarray(information_loss.example(at, label=False))
    assert (np.asarray(information_loss.attribute(at, [1])) <= one * (1 + 1e-12)).all()
    pair = float(information_loss.group(at, [0, 1], label=False))
    assert max(one[:2]) <= pair <= float(information_loss.group(at, label=False))
    trace = np.asarray(information_loss.trace(at))
    assert (one <= trace).all()
    assert (trace <= at.features * one).all()
    assert (one <= np.asarray(information_loss.example(at, label=True))).all()
