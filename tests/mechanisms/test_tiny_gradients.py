"""Directions of gradients whose squares are no float32: of records fitted well."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.accounting import vmf
from audit.clipping import clip_tree, normalise, unit
from audit.mechanisms import gradient_search
from audit.mechanisms.query import Side, gradient
from audit.models import networks
from audit.models.flax_module import from_flax
from audit.types import Examples
from tests.conftest import double, flat

IMAGE = (16, 16, 1)
TASKS = {
    "affine": networks.linear(IMAGE, 3),
    "dense": networks.mlp(IMAGE, 3, hidden=4, activation="tanh"),
    "convolutional": networks.lenet(IMAGE, 3),
}
QUICK_AND_SLOW = [
    "affine", "dense", pytest.param("convolutional", marks=pytest.mark.slow),
]  # fmt: skip
MARGINS = [2.0, 20.0, 44.0, 60.0]  # of the true class's logit: norms down to 1e-26
NORMALISE = normalise()


def fitted(task):
    """Yield parameters and a record of class 0, which they fit better and better."""
    params = jax.jit(task.init)(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(1), (len(MARGINS), *IMAGE))
    for margin, image in zip(MARGINS, x, strict=True):
        head = params["head"] | {"bias": jnp.array([margin, 0.0, 0.5])}
        yield params | {"head": head}, Examples(image, jnp.zeros((), int))


def contribution(task, params, z):
    """A record's direction in float64, by autodiff."""
    slope = flat(jax.jit(jax.grad(task.loss))(params, z))
    return slope / np.linalg.norm(slope)


@pytest.mark.parametrize("name", QUICK_AND_SLOW)
def test_contributions_have_the_directions_of_float64(name):
    task = TASKS[name]
    query = gradient(task, NORMALISE)

    @jax.jit
    def ours(params, z):
        side, one = Side(params), jax.tree.map(lambda a: a[None], z)
        span = query.closed_forms.span(params, side, one)
        total = query.closed_forms.total(params, side, one, None)
        inner, square = query.closed_forms.score(params, side, one, total)
        directions = query.fn(params, side, z), total, span.combine(jnp.ones(1))
        return directions, (span.gram[0, 0], span.inner(total)[0], inner[0], square[0])

    for params, z in fitted(task):
        with jax.enable_x64(True):
            want = contribution(task, double(params), double(z))
        directions, lengths = ours(params, z)
        for direction in directions:
            np.testing.assert_allclose(flat(direction), want, atol=1e-6)
        np.testing.assert_allclose(lengths, 1, rtol=1e-5)


@pytest.mark.parametrize("name", QUICK_AND_SLOW)
def test_a_search_sees_the_cosines_of_float64(name):
    """And the way along which they rise; of a zero gradient there is none."""
    task = TASKS[name]
    cosine = gradient_search.cosine(task)
    update = gradient_search.direction_of(task.init(jax.random.key(2)))

    @jax.jit
    @jax.value_and_grad
    def along(x, y, params):
        return cosine(params, Examples(x, y), update)

    for params, z in fitted(task):
        with jax.enable_x64(True):
            want = along(double(z.x), z.y, double(params))
        for one, other in zip(along(z.x, z.y, params), want, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    head = params["head"] | {"bias": jnp.array([1e3, 0.0, 0.0])}
    value, slope = along(z.x, z.y, params | {"head": head})
    np.testing.assert_array_equal([value, *jnp.ravel(slope)], 0)


@pytest.mark.parametrize("name", ["affine", "dense"])
def test_they_leak_what_jacobians_in_float64_say(name):
    task = TASKS[name]
    query = gradient(task, NORMALISE)
    traces = jax.jit(query.closed_forms.trace)
    for params, z in fitted(task):
        one = jax.tree.map(lambda a: a[None], z)
        trace = traces(params, Side(params), one)
        with jax.enable_x64(True):
            wide, x = double(params), double(z.x)

            def direction(x, wide=wide, y=z.y):
                slope = jax.grad(task.loss)(wide, Examples(x, y))
                return clip_tree(NORMALISE, slope)

            jacobian = jax.jit(jax.jacfwd(direction))(x)
        want = sum((np.asarray(a) ** 2).sum() for a in jax.tree.leaves(jacobian))
        assert float(trace[0]) == pytest.approx(want, rel=1e-4)


class Heads(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.concatenate([nn.Dense(2)(x), nn.Dense(1)(x)], -1)


def test_a_head_that_is_never_wrong_hides_no_other():
    """Its errors of 1e-26 are no unit for those of the other head, of order 1."""
    task = from_flax(Heads(), np.zeros(3))
    params = task.init(jax.random.key(0))
    params = params | {"Dense_1": params["Dense_1"] | {"bias": jnp.array([-60.0])}}
    z = Examples(jnp.array([[0.2, 0.9, 0.4]]), jnp.zeros(1, int))
    query, side = gradient(task, NORMALISE), Side(params)
    one = query.fn(params, side, jax.tree.map(lambda a: a[0], z))
    total = query.closed_forms.total(params, side, z, None)
    np.testing.assert_allclose(flat(total), flat(one), rtol=1e-5, atol=1e-7)


def test_units_are_powers_of_two_and_change_no_bit():
    sizes = jnp.array([0.0, 1e-37, 3e-20, 0.5, 0.75, 6.0, 3e38, jnp.inf, jnp.nan])
    ones = np.asarray(unit(sizes))
    assert (np.frexp(ones)[0] == 0.5).all()
    assert (ones[[0, 7, 8]] == 1).all()
    scaled = np.asarray(sizes[1:6]) / ones[1:6]
    assert ((scaled >= 0.5) & (scaled < 1)).all()
    assert np.isfinite(sizes[6] / ones[6])
    for task in TASKS.values():
        params, z = next(iter(fitted(task)))
        plain = NORMALISE._replace(of_direction=False)
        made = [
            jax.jit(gradient(task, c).fn)(params, Side(params), z)
            for c in (NORMALISE, plain)
        ]
        np.testing.assert_array_equal(flat(made[0]), flat(made[1]))


def test_a_sum_of_draws_is_finite_where_gradients_all_but_vanish():
    """Wrong lengths give the Gram matrix negative eigenvalues, the sum no number."""
    task = TASKS["convolutional"]
    query = gradient(task, NORMALISE)
    params, _ = list(fitted(task))[2]
    x = jax.random.uniform(jax.random.key(2), (20, *IMAGE))
    z = Examples(
        x, jnp.arange(20) % 2 * jnp.arange(20) % 3
    )  # some are fitted, some not

    @jax.jit
    def drawn(params):
        span = query.closed_forms.span(params, Side(params), z)
        key, weight = jax.random.key(0), jnp.ones(20)
        return span.gram, vmf.sample_sum(key, 1e5, weight, *span, params)

    gram, total = drawn(params)
    assert np.linalg.eigvalsh(np.asarray(gram, float)).min() > -1e-5
    assert np.isfinite(flat(total)).all()
