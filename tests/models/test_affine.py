"""Closed forms of linear models against the formulas' test vectors and autodiff."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from audit.clipping import clip_tree, hard_clip, no_clip, soft_clip
from audit.models.affine import (
    Head,
    Treatment,
    clipped_information,
    clipped_score,
    clipped_total,
    clipped_trace,
    residual,
)

C = [0.5, 1.0, 4.0]
SHAPES = {
    "softmax 3": (3, 3),
    "softmax 10": (10, 10),
    "one logit": (1, 2),
    "two of three": (2, 3),
}


def problem(shape, biased=True, masked=False, offset=False, d=6, m=5, seed=0):
    trainable, classes = SHAPES[shape]
    rng = np.random.default_rng(seed)

    def make():
        bias = rng.normal(size=trainable)
        return Head(rng.normal(size=(d, trainable)), bias if biased else None)

    head, constant, update = make(), make(), make()
    coin = lambda a: (rng.uniform(size=a.shape) < 0.6).astype(float)
    mask = jax.tree.map(coin, head) if masked else None
    x, y = rng.uniform(size=(m, d)), rng.integers(0, classes, m)
    constant = constant if offset else None
    return jax.tree.map(jnp.asarray, (head, x, y, mask, constant, update))


def contribution(head, x, y, clip, classes, mask, offset):
    """The same thing without a closed form: autodiff, offset, mask, clip."""

    def loss(head):
        z = x @ head.kernel + (0 if head.bias is None else head.bias)
        z = jnp.append(z, 0.0) if len(z) < classes else z
        return jax.nn.logsumexp(z) - z[y]

    g = jax.tree.map(jnp.add, jax.grad(loss)(head), offset)
    return clip_tree(clip, jax.tree.map(jnp.multiply, mask, g))


@functools.partial(jax.jit, static_argnames=("classes", "clips"))
def by_autodiff(head, x, y, mask, offset, c, classes, clips):
    """Vectors [clips, m, n] and their Jacobians [clips, m, n, d]."""

    def one(c, x, y):
        def fn(x):
            g = contribution(head, x, y, clips(c), classes, mask, offset)
            return ravel_pytree(g)[0]

        return fn(x), jax.jacfwd(fn)(x)

    each = jax.vmap(one, (None, 0, 0))
    return jax.vmap(each, (0, None, None))(c, x, y)


# biased, masked, offset: every combination once, and the extremes for every shape
FLAGS = list(itertools.product((True, False), repeat=3))
CASES = [(soft_clip, "softmax 3", *flags) for flags in FLAGS]
CASES += [(soft_clip, s, *FLAGS[i]) for s in list(SHAPES)[1:] for i in (0, 3)]
CASES += [(soft_clip, "one logit", *FLAGS[7])]
CASES += [(lambda c: no_clip(), "softmax 3", *FLAGS[i]) for i in (0, 3)]


@pytest.mark.parametrize(("clips", "shape", "biased", "masked", "offset"), CASES)
def test_closed_forms_equal_autodiff(x64, clips, shape, biased, masked, offset):
    head, x, y, mask, constant, update = problem(shape, biased, masked, offset)
    classes = SHAPES[shape][1]
    weight = jnp.arange(1.0, 6.0) if masked else None
    whole = jax.tree.map(np.ones_like, head) if mask is None else mask
    shift = jax.tree.map(np.zeros_like, head) if constant is None else constant
    c = np.array(C)
    g, jacobian = map(
        np.asarray, by_autodiff(head, x, y, whole, shift, c, classes, clips)
    )

    @jax.jit
    @jax.vmap
    def closed(c):
        to = Treatment(clips(c), classes, mask, constant)
        return (
            clipped_trace(head, x, y, to),
            ravel_pytree(clipped_total(head, x, y, weight, to))[0],
            *clipped_score(head, x, y, update, to),
        )

    trace, total, inner, square = closed(c)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-13)
    close(trace, (jacobian**2).sum((2, 3)), atol=0)
    close(total, np.tensordot(g, np.ones(5) if weight is None else weight, (1, 0)))
    close(inner, g @ np.asarray(ravel_pytree(update)[0]))
    close(square, (g**2).sum(2), atol=0)


def vectors():
    """d = 6, k = 3: W_ij = sin(1 + 3i + j), b = (.1, -.2, .3), x_i = (i + .5)/6."""
    i, j = jnp.arange(6.0)[:, None], jnp.arange(3.0)[None]
    head = Head(jnp.sin(1 + 3 * i + j), jnp.array([0.1, -0.2, 0.3]))
    return head, ((jnp.arange(6) + 0.5) / 6)[None]


# y: norm, ||J||^2, ||J^T g||^2, clipped traces at C
PRINTED = {
    0: (1.2619060588, 3.4509262172, 0.6645526232,
        (0.5173619729, 2.2790580061, 4.9832138453)),
    1: (1.6678560577, 6.0681166120, 2.3844615240,
        (0.4749452977, 2.3195227831, 8.5665069905)),
}  # fmt: skip


@pytest.mark.parametrize("y", PRINTED)
def test_printed_traces(x64, y):
    norm, raw, q, clipped = PRINTED[y]
    (head, x), y = vectors(), jnp.array([y])

    @jax.jit
    def computed(c):
        run = lambda c: clipped_trace(head, x, y, Treatment(soft_clip(c), 3))[0]
        plain = Treatment(no_clip(), 3)
        square = clipped_score(head, x, y, head, plain)[1][0]
        phi, slope = soft_clip(c).scale(norm), soft_clip(c).slope(norm)
        parts = phi**2 * raw + (2 * phi * slope / norm + slope**2) * q
        return square**0.5, clipped_trace(head, x, y, plain)[0], jax.vmap(run)(c), parts

    got, wanted = computed(jnp.array(C)), (norm, raw, clipped, clipped)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def fitted(shape, gap):
    """One example whose own logit leads the next one by `gap`."""
    head, x, *_ = problem(shape, d=20, m=1)
    z = np.append(x @ head.kernel, 0.0)[: SHAPES[shape][1]]
    first, second = np.sort(z)[[-1, -2]]
    head = Head(np.asarray(head.kernel), np.zeros(head.bias.shape))
    return head, np.asarray(x) * gap / (first - second), np.array([z.argmax()])


@pytest.mark.parametrize("shape", SHAPES)
def test_fitted_examples_keep_their_relative_precision(shape):
    """Residuals of 2e-9 are far below float32's resolution of 1 - p."""
    classes = SHAPES[shape][1]
    with jax.enable_x64(True):
        head, x, y = fitted(shape, gap=20.0)
        zero, whole = (jax.tree.map(f, head) for f in (np.zeros_like, np.ones_like))
        c = np.ones(1)
        g, jacobian = by_autodiff(head, x, y, whole, zero, c, classes, soft_clip)
        wanted = [np.linalg.norm(g)] + 2 * [(np.asarray(jacobian) ** 2).sum()]

    @jax.jit
    def computed(head, x, mask):
        to = Treatment(soft_clip(1.0), classes)
        total = ravel_pytree(clipped_total(head, x, y, None, to))[0]
        trace = clipped_trace(head, x, y, to)[0]
        masked = clipped_trace(head, x, y, to._replace(mask=mask))[0]
        e, _ = residual(head, x, y, classes)
        return e, jnp.stack([jnp.linalg.norm(total), trace, masked])

    e, got = computed(head, x, whole)
    assert got.dtype == jnp.float32
    assert 1e-10 < np.abs(e).max() < 1e-8
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


@pytest.mark.parametrize("clip", [soft_clip(1.0), hard_clip(1.0), no_clip()])
def test_perfect_fit_has_no_trace_and_no_nan(clip):
    """A gradient of exactly zero: s = 0 must not divide."""

    @jax.jit
    def computed(head, x, y):
        to = Treatment(clip, 2)
        total = clipped_total(head, x, y, None, to)
        score = clipped_score(head, x, y, head, to)
        return clipped_trace(head, x, y, to), total, score

    head = Head(np.full((3, 1), 1e4), np.zeros(1))
    got = computed(head, np.ones((1, 3)), np.array([0]))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(got))


def sizes(jaxpr):
    """Yield the size of everything a program computes."""
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(tuple(equation.params.values())):
            if hasattr(inner, "jaxpr"):
                yield from sizes(inner.jaxpr)
        yield from ((v.aval.size, str(equation)) for v in equation.outvars)


@pytest.mark.parametrize("shape", ["one logit", "softmax 3"])
@pytest.mark.parametrize("masked", [True, False])
def test_lanes_share_two_matrix_products(shape, masked):
    """Under vmap over lanes nothing is larger than the logits [lanes, n, classes]."""
    head, x, y, mask, *_ = problem(shape, masked=masked, d=80, m=30)
    lanes = jax.tree.map(lambda a: jnp.stack([a] * 70), head)
    to = Treatment(soft_clip(1.0), SHAPES[shape][1], mask)
    run = jax.vmap(lambda h: clipped_total(h, x, y, None, to))
    program = jax.make_jaxpr(run)(lanes)
    products = str(program).count("dot_general")
    assert products == (3 if masked else 2)  # masked norms are one more, for all lanes
    largest, where = max(sizes(program.jaxpr))
    assert largest <= max(70 * 30 * SHAPES[shape][1], lanes.kernel.size), where


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("masked", "offset"), [(False, False), (True, True)])
@pytest.mark.parametrize("clip", [soft_clip(1.0), no_clip()])
def test_information_against_the_jacobian(shape, masked, offset, clip):
    """Also its trace against the closed form of the trace."""
    with jax.enable_x64(True):
        head, x, y, mask, constant, _ = problem(shape, masked=masked, offset=offset)
        classes = SHAPES[shape][1]
        to = Treatment(clip, classes, mask, constant)
        parts = jax.jit(lambda *z: clipped_information(*z, to))(head, x, y)
        diagonal, factor, core = map(np.asarray, parts)
        trace = jax.jit(lambda *z: clipped_trace(*z, to))(head, x, y)
        ones = jax.tree.map(jnp.ones_like, head)
        zeros = jax.tree.map(jnp.zeros_like, head)
        rest = classes, mask or ones, constant or zeros

        def one(x, y):
            return ravel_pytree(contribution(head, x, y, clip, *rest))[0]

        jacobian = np.asarray(jax.jit(jax.vmap(jax.jacobian(one)))(x, y))
    got = factor @ core @ factor.swapaxes(1, 2)
    got += diagonal[:, None] * np.eye(x.shape[1])
    want = jacobian.swapaxes(1, 2) @ jacobian
    np.testing.assert_allclose(got, want, atol=1e-10 * np.abs(want).max())
    np.testing.assert_allclose(np.trace(got, axis1=1, axis2=2), trace, rtol=1e-10)
