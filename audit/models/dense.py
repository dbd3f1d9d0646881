"""Closed forms for dense networks: clipped sums without per-example gradients.

In layer l one example's gradient is the outer product a_l e_l^T of the layer's input
(with a 1 for the bias) and the error that is propagated back to it. One forward and one
backward pass over a batch give every a_l and e_l, and from them, for the gradient
g = mask o (a_l e_l^T)_l + offset,

    ||g||^2 = sum_l <mask_l, a_l^2 (e_l^2)^T> + 2 <offset_l, a_l e_l^T> + ||offset||^2
    sum_i c_i g_i = mask o (sum_i c_i a_il e_il^T)_l + offset sum_i c_i, c_i = w_i phi_i

so that no array has a batch axis and a parameter axis (Goodfellow 2015; "ghost
clipping", Li et al. 2022). The rows e_l scaled by phi give the clipped sum directly,
without a second backward pass. Without a hidden layer the model is `affine`.

Examples come as x [m, d] and y [m]; nothing is vmapped over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from audit.models import affine
from audit.models.affine import Head, Treatment, masked


class Stack(NamedTuple):
    """Dense layers, and how an example passes through them.

    Either one activation stands between them and the last gives the logits, or `passes`
    says what each layer gets, forward and backward.
    """

    layers: tuple[Any, ...]  # where `params` holds each {"kernel", "bias"}: a name, or
    # a path of names
    activation: Callable = lambda z: z  # element by element
    width: int = 0  # of the first hidden layer
    # (params, x [m, d], y [m]) -> inputs, errors, each [m, width] per layer; None = by
    # `activation`, and the loss is the cross-entropy
    passes: Callable | None = None
    unbiased: frozenset = frozenset()  # of `layers`: those without a bias


class _Passes(NamedTuple):
    """The factors of one example's gradient, one entry per layer."""

    inputs: list[Any]  # [m, width before]
    errors: list[Any]  # [m, width after]


def _heads(stack: Stack, tree: Any) -> list[Head]:
    found = (_at(tree, name) for name in stack.layers)
    return [Head(layer["kernel"], layer.get("bias")) for layer in found]


def _path(name: Any) -> tuple:
    return name if isinstance(name, tuple) else (name,)


def _at(tree: Any, name: Any) -> Any:
    for step in _path(name):
        tree = tree[step]
    return tree


def _masks(stack: Stack, mask: Any) -> list[Any]:
    return [None] * len(stack.layers) if mask is None else _heads(stack, mask)


def _tree(stack: Stack, heads: list[Head]) -> Any:
    tree: dict[Any, Any] = {}
    for name, head in zip(stack.layers, heads, strict=True):
        into = tree
        for step in _path(name):
            into = into.setdefault(step, {})
        into |= {k: v for k, v in head._asdict().items() if v is not None}
    return tree


def _both_ways(
    stack: Stack, params: Any, x: Any, y: Any, to: Treatment
) -> tuple[_Passes, Any]:
    """Return both passes of every example, and the masked offset."""
    if stack.passes is not None:
        return _Passes(*stack.passes(params, x, y)), masked(to.mask, to.offset)
    z = affine.affine(_heads(stack, params)[0], x)
    later = _after(stack, params, z, y, to.classes)
    passes = later._replace(inputs=[x, *later.inputs])
    return passes, masked(to.mask, to.offset)


def _after(stack: Stack, params: Any, z: Any, y: Any, classes: int) -> _Passes:
    """Return the passes from the output of the first layer [..., width] on."""
    _, *rest = _heads(stack, params)
    inputs, slopes = [], []
    for layer in rest:
        a, slope = jax.jvp(stack.activation, (z,), (jnp.ones_like(z),))
        inputs.append(a)
        slopes.append(slope)
        z = affine.affine(layer, a)
    errors = [affine.residual(rest[-1], inputs[-1], y, classes)[0]]
    for layer, slope in zip(rest[::-1], slopes[::-1], strict=True):
        errors.insert(0, slope * (errors[0] @ layer.kernel.T))
    return _Passes(inputs, errors)


def _square(stack: Stack, passes: _Passes, mask: Any, offset: Any) -> jax.Array:
    """Return the squared norm of every masked gradient plus offset [m]."""
    square = jnp.zeros(passes.inputs[0].shape[:1], passes.inputs[0].dtype)
    layers = zip(stack.layers, *passes, _masks(stack, mask), strict=True)
    for name, a, e, m in layers:
        if m is None:
            square += ((a**2).sum(-1) + (name not in stack.unbiased)) * (e**2).sum(-1)
        else:
            square += (affine.affine(m, a**2) * e**2).sum(-1)
    if offset is not None:
        square += 2 * _inner(stack, passes, offset)
        square += sum((leaf**2).sum() for leaf in jax.tree.leaves(offset))
    return square


def _norm(stack: Stack, passes: _Passes, mask: Any, offset: Any) -> jax.Array:
    return jnp.sqrt(jnp.maximum(_square(stack, passes, mask, offset), 0))


def _inner(stack: Stack, passes: _Passes, tree: Any) -> jax.Array:
    """Return <tree, gradient> of every example [m]; `tree` lies inside the mask."""
    layers = zip(*passes, _heads(stack, tree), strict=True)
    parts = [(affine.affine(h, a) * e).sum(-1) for a, e, h in layers]
    return sum(parts[1:], parts[0])


def clipped_total(
    stack: Stack, params: Any, x: Any, y: Any, weight: Any, to: Treatment
) -> Any:
    """Return sum_i w_i gbar_i, a pytree like `params`; a weight of None is ones."""
    passes, offset = _both_ways(stack, params, x, y, to)
    phi = to.clip.scale(_norm(stack, passes, to.mask, offset))
    phi = phi if weight is None else phi * weight
    scaled = [phi[..., None] * e for e in passes.errors]
    heads = [
        Head(a.T @ e, None if name in stack.unbiased else e.sum(-2))
        for name, a, e in zip(stack.layers, passes.inputs, scaled, strict=True)
    ]
    total = masked(to.mask, _tree(stack, heads))
    if offset is None:
        return total
    count = phi.sum(-1)
    return jax.tree.map(lambda t, o: t + count * o, total, offset)


def clipped_score(
    stack: Stack, params: Any, x: Any, y: Any, update: Any, to: Treatment
) -> tuple[Any, Any]:
    """Return <update, gbar_i>, `update` like `params`, and ||gbar_i||^2, each [m]."""
    passes, offset = _both_ways(stack, params, x, y, to)
    s = _norm(stack, passes, to.mask, offset)
    inner = _inner(stack, passes, masked(to.mask, update))
    if offset is not None:
        pairs = zip(jax.tree.leaves(offset), jax.tree.leaves(update), strict=True)
        inner += sum((o * u).sum() for o, u in pairs)
    phi = to.clip.scale(s)
    return phi * inner, (phi * s) ** 2


def clipped_trace(stack: Stack, params: Any, x: Any, y: Any, to: Treatment) -> Any:
    """Return ||d gbar_i / d x_i||_F^2 [m], exact.

    With J = d g / d x and s = ||g|| it is phi^2 ||J||_F^2 + (2 phi phi'/s + phi'^2) q,
    q = ||J^T g||^2. J^T g is the gradient of s^2 / 2 in x. The record reaches all but
    the first layer's input through the first layer's output z = W^T x + b alone, so
    that ||J||_F^2 needs as many tangents as z has entries, not as many as x has.
    """

    def half(x: Any) -> jax.Array:
        passes, offset = _both_ways(stack, params, x, y, to)
        return _square(stack, passes, to.mask, offset).sum() / 2

    q = (jax.grad(half)(x) ** 2).sum(-1)
    passes, offset = _both_ways(stack, params, x, y, to)
    phi, curved = affine.curvature(to.clip, _norm(stack, passes, to.mask, offset))
    return phi**2 * _raw(stack, params, x, y, passes, to) + curved * q


def _raw(
    stack: Stack, params: Any, x: Any, y: Any, passes: _Passes, to: Treatment
) -> Any:
    """Return ||J||_F^2 [m]; the offset is constant and has no part in it.

    sum_v ||m o (a' e^T + a e'^T)||^2 over unit directions v of x, layer by layer;
    a' and e' are A u and E u for u = W^T v, and sum_v u u^T is W^T W.
    """
    first = _heads(stack, params)[0]
    w, z = first.kernel, affine.affine(first, x)
    later = lambda z, y: _after(stack, params, z, y, to.classes)  # noqa: E731
    by_z = jax.vmap(jax.jacfwd(later))(z, y)
    gram = w.T @ w
    a, e = passes.inputs[0], passes.errors[0]
    errors_by_z = by_z.errors[0]  # [m, F, F]
    m, *masks = _masks(stack, to.mask)
    if m is None:
        along = jnp.einsum("...j,...jk,...k->...", e, errors_by_z, x @ w)
        total = x.shape[-1] * (e**2).sum(-1) + 2 * along
    else:
        along = e[..., :, None] * errors_by_z * affine.pairs(x, m.kernel, w)
        along = along.sum((-1, -2))
        total = e**2 @ m.kernel.sum(0) + 2 * along
    total += (_weights(m, a) * _moved(errors_by_z, gram, errors_by_z)).sum(-1)
    rest = (passes.inputs[1:], passes.errors[1:], by_z.inputs, by_z.errors[1:])
    for a, e, da, de, m in zip(*rest, masks, strict=True):
        spread = (e**2).sum(-1, keepdims=True) if m is None else e**2 @ m.kernel.T
        total += (_moved(da, gram, da) * spread).sum(-1)
        total += (_weights(m, a) * _moved(de, gram, de)).sum(-1)
        if m is None:
            both = [jnp.einsum("...i,...ik->...k", *p) for p in ((a, da), (e, de))]
            total += 2 * jnp.einsum("...k,kl,...l->...", both[0], gram, both[1])
        else:
            cross = jnp.einsum("...ik,kl,...jl->...ij", da, gram, de) * m.kernel
            total += 2 * jnp.einsum("...i,...ij,...j->...", a, cross, e)
    return total


def _weights(m: Head | None, a: Any) -> Any:
    """Return the squared norm of each output's masked inputs [m, width after]."""
    if m is None:
        return ((a**2).sum(-1) + 1)[..., None]
    return affine.affine(m, a**2)


def _moved(left: Any, gram: Any, right: Any) -> Any:
    """Return the diagonal of left gram right^T [m, width]."""
    return jnp.einsum("...ik,kl,...il->...i", left, gram, right)
