"""Closed forms of linear models against the formulas' test vectors and autodiff."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from audit.clip import clip_tree, hard_clip, no_clip, soft_clip
from audit.linear import Head, clipped_score, clipped_total, clipped_trace, residual

CLIPS = {
    "soft .5": lambda: soft_clip(0.5),
    "soft 1": lambda: soft_clip(1.0),
    "soft 4": lambda: soft_clip(4.0),
    "none": no_clip,
}
SHAPES = {"softmax 3": (3, 3), "softmax 10": (10, 10), "one logit": (1, 2)}


def problem(shape, masked, offset, d=6, m=5, seed=0):
    trainable, classes = SHAPES[shape]
    rng = np.random.default_rng(seed)
    make = lambda: Head(rng.normal(size=(d, trainable)), rng.normal(size=trainable))  # noqa: E731
    head, constant = make(), make()
    coin = lambda a: (rng.uniform(size=a.shape) < 0.6).astype(float)  # noqa: E731
    mask = jax.tree.map(coin, head) if masked else None
    x, y = rng.uniform(size=(m, d)), rng.integers(0, classes, m)
    arrays = jax.tree.map(jnp.asarray, (head, x, y, mask, constant if offset else None))
    return *arrays, classes


def contribution(head, x, y, clip, classes, mask, offset):
    """The same thing without a closed form: autodiff, mask, offset, clip."""

    def loss(head):
        z = x @ head.kernel + head.bias
        z = jnp.append(z, 0.0) if len(z) < classes else z
        return jax.nn.logsumexp(z) - z[y]

    g = jax.grad(loss)(head)
    g = g if offset is None else jax.tree.map(jnp.add, g, offset)
    g = g if mask is None else jax.tree.map(jnp.multiply, g, mask)
    return clip_tree(clip, g)


CASES = list(itertools.product(SHAPES, CLIPS, (False, True), (False, True)))


@pytest.mark.parametrize(("shape", "clip", "masked", "offset"), CASES)
def test_closed_forms_equal_autodiff(x64, shape, clip, masked, offset):
    head, x, y, mask, constant, classes = problem(shape, masked, offset)
    c = CLIPS[clip]()
    kw = dict(clip=c, classes=classes, mask=mask, offset=constant)

    def one(x, y):
        return contribution(head, x, y, c, classes, mask, constant)

    each = jax.vmap(one)(x, y)
    flat = jax.vmap(lambda x, y: ravel_pytree(one(x, y))[0])
    jacobian = jax.vmap(jax.jacfwd(lambda x, y: ravel_pytree(one(x, y))[0]))(x, y)
    trace = (jacobian**2).sum((1, 2))
    np.testing.assert_allclose(clipped_trace(head, x, y, **kw), trace, rtol=1e-10)

    weight = jnp.arange(1.0, 6.0)
    total = clipped_total(head, x, y, weight, **kw)
    slow = jax.tree.map(lambda g: jnp.tensordot(weight, g, 1), each)
    for a, b in zip(total, slow, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    unweighted = clipped_total(head, x, y, None, **kw)
    np.testing.assert_allclose(unweighted.kernel, each.kernel.sum(0), atol=1e-12)

    update = jax.tree.map(
        lambda a: jnp.sin(1.0 + jnp.arange(a.size)).reshape(a.shape), head
    )
    inner, square = clipped_score(head, x, y, update, **kw)
    vectors = flat(x, y)
    np.testing.assert_allclose(
        inner, vectors @ ravel_pytree(update)[0], rtol=1e-9, atol=1e-11
    )
    np.testing.assert_allclose(square, (vectors**2).sum(1), rtol=1e-10)


def vectors():
    """d = 6, k = 3: W_ij = sin(1 + 3i + j), b = (.1, -.2, .3), x_i = (i + .5)/6."""
    i, j = jnp.arange(6.0)[:, None], jnp.arange(3.0)[None]
    head = Head(jnp.sin(1 + 3 * i + j), jnp.array([0.1, -0.2, 0.3]))
    return head, ((jnp.arange(6) + 0.5) / 6)[None]


PRINTED = {
    (0, 0.5): 0.5173619729, (0, 1.0): 2.2790580061, (0, 4.0): 4.9832138453,
    (1, 0.5): 0.4749452977, (1, 1.0): 2.3195227831, (1, 4.0): 8.5665069905,
}  # fmt: skip


@pytest.mark.parametrize(("y", "c"), PRINTED)
def test_trace_test_vectors(x64, y, c):
    head, x = vectors()
    trace = clipped_trace(head, x, jnp.array([y]), clip=soft_clip(c), classes=3)
    np.testing.assert_allclose(trace, PRINTED[y, c], rtol=1e-9)


def test_unclipped_trace_and_norm_test_vectors(x64):
    head, x = vectors()
    y = jnp.array([1])
    raw = clipped_trace(head, x, y, clip=no_clip(), classes=3)
    np.testing.assert_allclose(raw, 6.0681166120, rtol=1e-9)
    zero = jax.tree.map(jnp.zeros_like, head)
    _, square = clipped_score(head, x, y, zero, clip=no_clip(), classes=3)
    np.testing.assert_allclose(jnp.sqrt(square), 1.6678560577, rtol=1e-9)


def test_fitted_examples_keep_their_relative_precision():
    """Residuals of 1e-12 are far below float32's resolution of 1 - p."""
    head = Head(jnp.array([[30.0]]), jnp.zeros(1))
    e, _ = residual(head, jnp.array([[1.0]]), jnp.array([0]), 2)
    np.testing.assert_allclose(e, -np.exp(-30.0), rtol=1e-5)


def test_perfect_fit_has_no_trace_and_no_nan():
    """A gradient of exactly zero: s = 0 must not divide."""
    head = Head(jnp.full((3, 1), 1e4), jnp.zeros(1))
    x, y = jnp.ones((1, 3)), jnp.array([0])
    for clip in (soft_clip(1.0), hard_clip(1.0), no_clip()):
        assert float(clipped_trace(head, x, y, clip=clip, classes=2)[0]) == 0.0
        total = clipped_total(head, x, y, None, clip=clip, classes=2)
        assert np.isfinite(total.kernel).all()


def test_lanes_share_one_matrix_product():
    """Under vmap over lanes no [lanes, n, d] array is made."""
    head, x, y, *_ = problem("one logit", masked=False, offset=False, d=40, m=30)
    many = jax.tree.map(lambda a: jnp.stack([a] * 7), head)
    run = lambda h: clipped_total(h, x, y, None, clip=soft_clip(1.0), classes=2)  # noqa: E731
    text = str(jax.make_jaxpr(jax.vmap(run))(many))
    assert "7,30,40" not in text
    assert "7,40,30" not in text
