"""Exact minimisers of linear models, against scikit-learn and against themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from audit.config import registry
from audit.mechanisms.glm import losses, solvability
from audit.mechanisms.glm.stationarity import from_intercept, from_label, slope_roots
from audit.models.networks import binary_linear, regression
from audit.types import Examples

pytestmark = pytest.mark.usefixtures("x64")
LOSSES = ["linear", "logistic"]


def problem(n=40, d=5, seed=0, loss="logistic"):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, d))
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-4 * (x[:, 0] - 0.5)))).astype(float)
    return x, y if loss == "logistic" else 2 * y - 1


def minimiser(loss, x, y, ridge, weight=1.0):
    """Return where the loss is least, and the largest entry of its gradient there."""
    weight = weight * np.ones(len(y))
    w = losses.minimise(loss, x, y, weight, ridge)
    return w, np.abs(x.T @ (weight * loss.slope(x @ w, y)) + ridge * w).max()


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_of_the_losses(name):
    loss = losses.LOSSES[name]
    u = jnp.linspace(-30, 30, 41)
    for y in (0.0, 1.0) if name == "logistic" else (-1.0, 0.3):
        value = lambda u, y=y: loss.value(u, y)
        slope = jax.vmap(jax.grad(value))(u)
        np.testing.assert_allclose(loss.slope(u, y), slope, rtol=1e-12, atol=1e-300)
        curved = jax.vmap(jax.grad(jax.grad(value)))(u)
        np.testing.assert_allclose(loss.curvature(u, y), curved, rtol=1e-9, atol=1e-13)
        assert np.abs(loss.slope(u, y)).max() <= loss.steepest


def test_a_fitted_record_keeps_its_digits():
    """1 - sigmoid(40) is 0 in float64 arithmetic, 4e-18 in truth."""
    slope = losses.LOSSES["logistic"].slope(jnp.array(40.0), 1.0)
    np.testing.assert_allclose(slope, -np.exp(-40), rtol=1e-12)


def test_the_minimiser_is_scikit_learns():
    x, y = problem()
    weight, ridge = np.linspace(0.25, 4, len(y)), 0.7
    w = losses.minimise(losses.LOSSES["logistic"], x, y, weight, ridge)
    how = {"fit_intercept": False, "tol": 1e-12, "max_iter": 999}
    theirs = LogisticRegression(C=1 / ridge, **how).fit(x, y, weight)
    np.testing.assert_allclose(w, theirs.coef_[0], rtol=1e-5)
    x, y = problem(loss="linear")
    w = losses.minimise(losses.LOSSES["linear"], x, y, weight, ridge)
    ridge_fit = Ridge(alpha=ridge, fit_intercept=False).fit(x, y, weight)
    np.testing.assert_allclose(w, ridge_fit.coef_, rtol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 50.0])
def test_the_gradient_vanishes_to_the_last_digits(name, ridge):
    x, y = problem(loss=name)
    weight = np.linspace(0.5, 2, len(y))
    _, left = minimiser(losses.LOSSES[name], x, y, ridge, weight)
    assert left < 1e-11 * len(y)


def test_steep_starts_are_damped():
    """Long records make plain Newton overshoot; the line search must not."""
    x, y = problem()
    x = x * np.logspace(0, 3, 5)
    _, left = minimiser(losses.LOSSES["logistic"], x, y, 1e-3)
    assert left < 1e-9 * np.abs(x).max()


def test_where_there_is_no_minimiser_no_number_is_returned():
    """A plane separates these classes: without a ridge longer weights are better."""
    x = problem()[0] - 0.5
    y = (x[:, 0] > 0).astype(float)
    loss, ones = losses.LOSSES["logistic"], np.ones(len(y))
    assert np.isnan(losses.minimise(loss, x, y, ones, 0.0)).all()
    assert np.isfinite(losses.minimise(loss, x, y, ones, 1e-6)).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("out", [None, 3])
def test_a_refit_is_the_fit_of_those_records(name, out):
    loss, (x, y) = losses.LOSSES[name], problem(loss=name)
    weight = np.linspace(0.5, 2, len(y))
    shared = losses.known(loss, x, y, weight, 0.3)
    new, label = 2 * x[7], y[8]
    w = losses.refit(loss, shared, new, label, 1.5, out)
    kept = np.arange(len(y)) != (-1 if out is None else out)
    records = np.append(x[kept], new[None], 0), np.append(y[kept], label)
    whole = losses.minimise(loss, *records, np.append(weight[kept], 1.5), 0.3)
    np.testing.assert_allclose(w, whole, rtol=1e-10, atol=1e-12)


def test_refits_under_vmap_are_those_one_by_one():
    loss, (x, y) = losses.LOSSES["logistic"], problem()
    shared = losses.known(loss, x, y, np.ones(len(y)), 0.3)
    refit = lambda x, y: losses.refit(loss, shared, x, y, 1.0, None)
    one_by_one = [refit(x[i], y[i]) for i in range(6)]
    np.testing.assert_allclose(jax.vmap(refit)(x[:6], y[:6]), one_by_one, rtol=1e-10)


# What a release gives away ------------------------------------------------------------


def left_over(name, x, y, w, i, ridge):
    """Return B for record i, by the definition."""
    loss, others = losses.LOSSES[name], np.arange(len(y)) != i
    return x[others].T @ loss.slope(x[others] @ w, y[others]) + ridge * w


@pytest.mark.parametrize("name", LOSSES)
def test_with_an_intercept_the_record_is_read_off(name):
    x, y = problem(loss=name)
    x = losses.design(x, True)
    w, _ = minimiser(losses.LOSSES[name], x, y, 0.4)
    for i in range(len(y)):
        slope, record = from_intercept(left_over(name, x, y, w, i, 0.4))
        np.testing.assert_allclose(record, x[i, :-1], rtol=1e-9)
        np.testing.assert_allclose(slope, losses.LOSSES[name].slope(x[i] @ w, y[i]))


@pytest.mark.parametrize("name", LOSSES)
def test_without_one_of_the_two_roots_is_the_slope(name):
    x, y = problem(n=200, loss=name)
    loss = losses.LOSSES[name]
    w, _ = minimiser(loss, x, y, 0.4)
    rests = np.stack([left_over(name, x, y, w, i, 0.4) for i in range(len(y))])
    truth = np.asarray(loss.slope(x @ w, y))
    both = jax.vmap(lambda c, y: slope_roots(name, c, y))(rests @ w, jnp.asarray(y))
    gaps = np.abs(np.stack(both) / truth - 1)
    assert gaps.min(0).max() < 1e-6
    assert 0 < (gaps[0] < 1e-6).sum() < len(y)  # neither root is always the right one
    # told the true length, the choice is right
    choose = jax.vmap(lambda *z: from_label(name, w, *z))
    labels, norms = (y > 0).astype(int), np.linalg.norm(x, axis=1)
    slopes, guesses = choose(rests, labels, norms)
    np.testing.assert_allclose(slopes, truth, rtol=1e-6)
    np.testing.assert_allclose(guesses, x, rtol=1e-5)


def test_roots_solve_the_slope_equation_and_meet_at_the_turning_point():
    for c in (-50.0, -1.0, 0.0, 1e-8, 0.1, 0.278):
        for root in slope_roots("logistic", jnp.asarray(c), jnp.asarray(1.0)):
            s = -float(root)  # y = 1: the slope is negative
            assert 0 < s <= 1
            if s < 1:
                product = s * np.log((1 - s) / s)
                np.testing.assert_allclose(product, c, rtol=1e-6, atol=1e-12)
    near, far = slope_roots("logistic", jnp.asarray(0.4), jnp.asarray(0.0))
    np.testing.assert_allclose([near, far], 0.21781, atol=1e-4)
    near, far = slope_roots("linear", jnp.asarray(0.16), jnp.asarray(-1.0))
    np.testing.assert_allclose([near, far], [0.2, 0.8], rtol=1e-12)


def test_without_regularisation_nothing_bounds_the_privacy():
    """A record may move the minimiser as far as it likes: no curve, and no epsilon."""
    settings = {"loss": "logistic", "max_norm": 1.0}
    plain, ridge = (
        registry.find("defense", "output_perturbed_glm")(
            binary_linear((3,), 2), regularization=r, **settings
        )
        for r in (0.0, 0.1)
    )
    for adjacency in ("replace_one", "add_remove"):
        assert plain.rdp(10, [2.0], adjacency) is None
        assert plain.pld(10, adjacency) is None
        assert ridge.rdp(10, [2.0], adjacency)[0] > 0


# Whether there is a minimiser ---------------------------------------------------------

BINARY = binary_linear((3,), 2)


def checked(x, y, loss="logistic", task=BINARY, targets=(), **settings):
    settings = {"regularization": 0.0, "intercept": False, "max_norm": None, **settings}
    z = Examples(np.asarray(x, float), np.asarray(y))
    joining = Examples(np.reshape(targets, (-1, 3)), np.zeros(len(targets)))
    solvability.check(z, joining, task, losses.LOSSES[loss], **settings)


def overlapping(n=60):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3)), rng.integers(0, 2, n)


def test_records_with_one_minimiser_pass():
    x, y = overlapping()
    checked(x, y)
    checked(x, y, intercept=True)
    checked(x, y, loss="linear", max_norm=10.0)


BAD = {
    "one class": (lambda x, y: (x, 0 * y), {}, "all 60 records have label 0"),
    "labels": (lambda x, y: (x, y + 1), {}, "labels 2 are outside 0 .. 1"),
    "too few": (lambda x, y: (x[:2], [0, 1]), {}, "2 records do not determine 3"),
    "constant": (
        lambda x, y: (x * [1, 0, 1] + [0, 0.5, 0], y),
        {"intercept": True},
        "features 1 are constant: singular at regularization=0",
    ),
    "twins": (
        lambda x, y: (x[:, [0, 1, 1]], y),
        {},
        "some features are combinations of others",
    ),
    "separable": (lambda x, y: (x, x[:, 0] > 0), {}, "a plane separates the classes"),
    "too long": (lambda x, y: (x, y), {"max_norm": 1.0}, "above max_norm=1"),
    "too long to join": (
        lambda x, y: (x, y),
        {"max_norm": 10.0, "targets": [[6.0, 0.0, 8.1]]},
        "norm 10.0802, above max_norm=10",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records_are_refused_with_a_remedy(name):
    spoil, settings, message = BAD[name]
    x, y = spoil(*overlapping())
    y = np.asarray(y).astype(int)
    with pytest.raises(ValueError, match=message):
        checked(x, y, **settings)
    if name in ("too few", "constant", "twins", "separable"):
        checked(x, y, **settings, regularization=1e-3)


def test_losses_refuse_tasks_they_cannot_fit():
    solvability.check_task(regression((3,), 0), "linear")
    with pytest.raises(ValueError, match="fits two classes; the task has 0"):
        solvability.check_task(regression((3,), 0), "logistic")


def test_the_longest_record():
    assert solvability.longest(BINARY, None, False) == pytest.approx(np.sqrt(3))
    assert solvability.longest(BINARY, 17.0, True) == pytest.approx(np.sqrt(290))


def test_the_regression_task_is_least_squares():
    """Its gradient is the residual times (x, 1), what any iterating defense sums."""
    task = regression((3,), 0)
    params = task.init(jax.random.key(0))
    x, y = jnp.array([0.2, -1.0, 3.0]), jnp.array(0.7)
    residual = task.logits(params, x)[0] - y
    slopes = jax.grad(task.loss)(params, Examples(x, y))["head"]
    np.testing.assert_allclose(slopes["kernel"][:, 0], residual * x, rtol=1e-6)
    np.testing.assert_allclose(slopes["bias"][0], residual, rtol=1e-6)
    with pytest.raises(ValueError, match="numbers for labels, not 2 classes"):
        regression((3,), 2)
