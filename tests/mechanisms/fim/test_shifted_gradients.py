"""Gradients shifted by a constant: closed forms against autodiff, probes in s.e."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from audit.clipping import clip_tree, soft_clip
from audit.mechanisms.fim import shifted_gradients
from audit.models import networks
from audit.models.masks import MASKS
from audit.types import Examples
from tests.conftest import double, flat, wide

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
    c = jax.tree.map(lambda a: jax.random.normal(jax.random.key(2), a.shape), params)
    c = c if mask is None else jax.tree.map(jnp.multiply, mask, c)
    return task, *double((params, mask)), wide(N, SHAPE, task.classes), double(c)


def reader(task):
    """Return `shifted_gradients.reader`, compiled."""
    return map(jax.jit, shifted_gradients.reader(task))


def by_autodiff(task, params, mask, c, z, clip=lambda tree: tree):
    """Return ||v||^2, ||J||_F^2, ||J^T v||^2 of every v = clip(g + c)."""

    def shifted(x, y):
        g = jax.grad(task.loss)(params, Examples(x, y))
        g = g if mask is None else jax.tree.map(jnp.multiply, mask, g)
        return ravel_pytree(clip(jax.tree.map(jnp.add, g, c)))[0]

    @jax.jit
    @jax.vmap
    def each(x, y):
        v, jac = shifted(x, y), jax.jacrev(shifted)(x, y)
        jac = jac.reshape(len(v), -1)
        return v @ v, (jac**2).sum(), ((v @ jac) ** 2).sum()

    return each(*z)


@pytest.mark.parametrize(
    ("model", "masked"),
    # every model, with and without a mask
    [
        ("linear", False),
        ("binary_linear", True),
        pytest.param("linear", True, marks=pytest.mark.slow),
        pytest.param("binary_linear", False, marks=pytest.mark.slow),
    ],
)
def test_closed_forms_equal_autodiff(x64, model, masked):
    task, params, mask, z, c = setting(model, masked)
    prepare, measure = reader(task)
    side = prepare(params, mask, z, None)
    got = measure(params, side, z, c)
    want = by_autodiff(task, params, mask, c, z)
    for have, need in zip(got, want, strict=True):
        np.testing.assert_allclose(have, need, rtol=1e-10)
    some = measure(params, side, z, c, np.array([4, 1]))
    np.testing.assert_allclose(some.leak, want[2][np.array([4, 1])], rtol=1e-10)
    if masked:  # and the mean is the mean gradient
        mean = jax.grad(lambda p: jax.vmap(task.loss, (None, 0))(p, z).mean())(params)
        mean = jax.tree.map(jnp.multiply, mask, mean)
        np.testing.assert_allclose(flat(side.mean), flat(mean), atol=1e-12)


def test_clipped_trace_equals_autodiff(x64):
    task, params, mask, z, c = setting("linear", masked=True)
    clip = soft_clip(0.7)
    prepare, measure = reader(task)
    at = measure(params, prepare(params, mask, z, None), z, c)
    trace, signal = shifted_gradients.clipped_trace(clip, at)
    clipped = lambda tree: clip_tree(clip, tree)
    square, slow, _ = by_autodiff(task, params, mask, c, z, clipped)
    np.testing.assert_allclose(trace, slow, rtol=1e-10)
    np.testing.assert_allclose(signal, square, rtol=1e-10)


def test_probes_agree_with_the_closed_form(x64):
    """Any model: 200 draws of the probes, means within 4 s.e. of the exact values."""
    task, params, mask, z, c = setting("linear", masked=True)
    exact, read = reader(task)
    want = read(params, exact(params, mask, z, None), z, c)
    prepare, measure = reader(task._replace(linear=None))

    @jax.jit
    @jax.vmap
    def draw(key):
        return measure(params, prepare(params, mask, z, key), z, c)

    got = draw(jax.random.split(jax.random.key(3), 200))
    np.testing.assert_allclose(got.square[0], want.square, rtol=1e-10)
    for have, need in ((got.raw, want.raw), (got.leak, want.leak)):
        se = np.asarray(have).std(0) / np.sqrt(200)
        assert (np.abs(np.asarray(have).mean(0) - need) < 4 * se).all()
    mean = prepare(params, mask, z, jax.random.key(0)).mean
    gap = flat(mean) - flat(exact(params, mask, z, None).mean)
    assert np.linalg.norm(gap) < 1e-12
