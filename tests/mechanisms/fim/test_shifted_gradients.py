"""Gradients shifted by a constant: closed forms against autodiff, probes in s.e."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from audit.clipping import clip_tree, soft_clip
from audit.mechanisms.fim import shifted_gradients
from audit.models import networks
from audit.models.masks import MASKS
from tests.conftest import double, records

SHAPE = (4, 3, 1)
TASKS = {
    "binary_linear": networks.binary_linear(SHAPE, 2),
    "linear": networks.linear(SHAPE, 4),
}
N = 6


def setting(model, masked):
    task = TASKS[model]
    params = task.init(jax.random.key(0))
    mask = MASKS["random"](jax.random.key(1), params, 0.5) if masked else None
    z = jax.tree.map(jnp.asarray, double(records(N, SHAPE, task.classes)))
    c = jax.tree.map(lambda a: jax.random.normal(jax.random.key(2), a.shape), params)
    c = c if mask is None else jax.tree.map(jnp.multiply, mask, c)
    return task, double(params), None if mask is None else double(mask), z, double(c)


def by_autodiff(task, params, mask, c, z):
    """Return s^2, ||J||_F^2, ||J^T (g + c)||^2 of one example, and g + c as a map."""

    def sum_(x):
        g = jax.grad(task.loss)(params, z._replace(x=x))
        g = g if mask is None else jax.tree.map(jnp.multiply, mask, g)
        return ravel_pytree(jax.tree.map(jnp.add, g, c))[0]

    v, jac = sum_(z.x), jax.jacrev(sum_)(z.x)
    jac = jac.reshape(len(v), -1)
    return v @ v, (jac**2).sum(), ((v @ jac) ** 2).sum()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("model", TASKS)
def test_closed_forms_equal_autodiff(x64, model, masked):
    task, params, mask, z, c = setting(model, masked)
    prepare, measure = shifted_gradients.reader(task)
    held = prepare(params, mask, z, None)
    got = measure(params, held, z, c)
    one = jax.jit(lambda z: by_autodiff(task, params, mask, c, z))
    want = np.array([one(jax.tree.map(lambda a, i=i: a[i], z)) for i in range(N)]).T
    for have, need in zip(got, want, strict=True):
        np.testing.assert_allclose(have, need, rtol=1e-10)
    some = measure(params, held, z, c, np.array([4, 1]))
    np.testing.assert_allclose(some.leak, want[2][[4, 1]], rtol=1e-10)


@pytest.mark.parametrize("model", TASKS)
def test_the_mean_is_the_mean_gradient(x64, model):
    task, params, mask, z, _ = setting(model, masked=True)
    held = shifted_gradients.reader(task)[0](params, mask, z, None)
    want = jax.grad(lambda p: jax.vmap(task.loss, (None, 0))(p, z).mean())(params)
    want = jax.tree.map(jnp.multiply, mask, want)
    for a, b in zip(*map(jax.tree.leaves, (held.mean, want)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_clipped_trace_equals_autodiff(x64):
    task, params, mask, z, c = setting("linear", masked=True)
    clip = soft_clip(0.7)
    prepare, measure = shifted_gradients.reader(task)
    at = measure(params, prepare(params, mask, z, None), z, c)
    trace, signal = shifted_gradients.clipped_trace(clip, at)

    def clipped(x, i):
        own = z._replace(x=x, y=z.y[i])
        g = jax.tree.map(jnp.multiply, mask, jax.grad(task.loss)(params, own))
        return ravel_pytree(clip_tree(clip, jax.tree.map(jnp.add, g, c)))[0]

    for i in range(N):
        jac = jax.jacrev(lambda x, i=i: clipped(x, i))(z.x[i])
        np.testing.assert_allclose(trace[i], (jac**2).sum(), rtol=1e-10)
        v = clipped(z.x[i], i)
        np.testing.assert_allclose(signal[i], v @ v, rtol=1e-10)


def test_probes_agree_with_the_closed_form(x64):
    """Any model: 200 draws of the probes, means within 4 s.e. of the exact values."""
    task, params, mask, z, c = setting("linear", masked=True)
    exact, read = shifted_gradients.reader(task)
    want = read(params, exact(params, mask, z, None), z, c)
    prepare, measure = shifted_gradients.reader(task._replace(linear=None))

    @jax.jit
    @jax.vmap
    def draw(key):
        return measure(params, prepare(params, mask, z, key), z, c)

    got = draw(jax.random.split(jax.random.key(3), 200))
    np.testing.assert_allclose(got.square[0], want.square, rtol=1e-10)
    for have, need in ((got.raw, want.raw), (got.leak, want.leak)):
        se = np.asarray(have).std(0) / np.sqrt(200)
        assert (np.abs(np.asarray(have).mean(0) - need) < 4 * se).all()
    held = prepare(params, mask, z, jax.random.key(0))
    mean = exact(params, mask, z, None).mean
    gap = optax.tree.norm(jax.tree.map(jnp.subtract, held.mean, mean))
    assert gap < 1e-12
