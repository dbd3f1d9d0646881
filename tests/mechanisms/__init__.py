"""Queries, one record at a time and by their closed forms."""

from functools import partial

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from audit.mechanisms.query import Side
from audit.models.masks import MASKS
from audit.types import Examples
from tests.conftest import flat


def side_of(task, extra):
    """Return a task's first parameters, with the "mask" and "offset" that are named."""
    params = task.init(jax.random.key(0))
    side = Side(params)
    if "mask" in extra:
        side = side._replace(mask=MASKS["random"](jax.random.key(1), params, 0.6))
    if "offset" in extra:
        side = side._replace(
            offset=jax.tree.map(lambda p: np.sin(9 * np.asarray(p)), params)
        )
    return side


@partial(jax.jit, static_argnums=0)
def per_record(query, side, z):
    """Return every record's contribution at the side's parameters [n, parameters]."""
    return jax.vmap(lambda z: ravel_pytree(query.fn(side.params, side, z))[0])(z)


def closed_forms_are_of(query, side, z, rows, traced):
    """Compare sum, score, span and trace with contributions and their Jacobians."""
    total, trace, score = query.closed_forms[:3]
    weight, update = np.linspace(0, 2, len(rows)), jax.tree.map(np.cos, side.params)
    for weights, share in ((weight, weight), (None, np.ones(len(rows)))):
        got = jax.jit(total)(side.params, side, z, weights)
        assert jax.tree.structure(got) == jax.tree.structure(side.params)
        np.testing.assert_allclose(flat(got), share @ rows, rtol=1e-10, atol=1e-12)
    inner, square = jax.jit(score)(side.params, side, z, update)
    np.testing.assert_allclose(inner, rows @ flat(update), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(square, (rows**2).sum(1), rtol=1e-10, atol=1e-14)
    if side.mask is None and side.offset is None:
        span_is_of(query.closed_forms.span, side, z, rows)
    if not traced:
        return

    def vector(x, y):
        return ravel_pytree(query.fn(side.params, side, Examples(x, y)))[0]

    jacobian = np.asarray(jax.jit(jax.vmap(jax.jacfwd(vector)))(z.x, z.y))
    squares = (jacobian.reshape(len(rows), -1) ** 2).sum(1)
    traces = jax.jit(trace)(side.params, side, z)
    np.testing.assert_allclose(traces, squares, rtol=1e-10)


def span_is_of(span, side, z, rows):
    """Compare inner products and sums by a span with those of contributions."""
    tree, weight = jax.tree.map(np.cos, side.params), np.linspace(-1, 2, len(rows))

    @jax.jit
    def read(params):
        gram, inner, combine = span(params, side, z)
        return gram, inner(tree), combine(weight)

    gram, inner, total = read(side.params)
    assert jax.tree.structure(total) == jax.tree.structure(side.params)
    np.testing.assert_allclose(gram, rows @ rows.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(inner, rows @ flat(tree), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(flat(total), weight @ rows, rtol=1e-9, atol=1e-12)
