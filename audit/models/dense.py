"""Closed forms for layered networks: clipped sums without per-example gradients.

In a dense layer l one example's gradient is the outer product a_l e_l^T of the layer's
input (with a 1 for the bias) and the error that is propagated back to it. One forward
and one backward pass over a batch give every a_l and e_l, and from them, for the
gradient
g = mask o (a_l e_l^T)_l + offset,

    ||g||^2 = sum_l <mask_l, a_l^2 (e_l^2)^T> + 2 <offset_l, a_l e_l^T> + ||offset||^2
    sum_i c_i g_i = mask o (sum_i c_i a_il e_il^T)_l + offset sum_i c_i, c_i = w_i phi_i

so that no array has a batch axis and a parameter axis (Goodfellow 2015; "ghost
clipping", Li et al. 2022). The rows e_l scaled by phi give the clipped sum directly,
without a second backward pass. Without a hidden layer the model is `affine`.

A convolution is a dense layer that an example passes at T positions: its input is the
T patches A [T, D], its error B [T, p], and its gradient A^T B. The norm of that is
either sum (A A^T o B B^T), which no gradient is needed for, or that of the gradient
itself: whichever takes less memory (Bu et al. 2022). Such gradients are at hand when
they are summed, and their weighted sum spares a second product of A and B ("book
keeping", Bu et al. 2023).

Examples come as x [m, d] and y [m]; nothing is vmapped over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from audit.clipping import norm_of
from audit.models import affine
from audit.models.affine import Head, Treatment, masked
from audit.types import Span, Task

PART = 32  # examples of a convolutional network whose patches are in memory at a time,
PATCHES = 2**23  # or fewer: numbers in them
REUSE = 8  # products per parameter and example from which one at a time is fastest


class Stack(NamedTuple):
    """Dense and convolutional layers, and how an example passes through them.

    Either one activation stands between them and the last gives the logits, or `passes`
    says what each layer gets, forward and backward.
    """

    layers: tuple[Any, ...]  # where `params` holds each {"kernel", "bias"}: a name, or
    # a path of names
    activation: Callable = lambda z: z  # element by element
    width: int = 0  # of the first hidden layer
    # (params, x [m, d], y [m]) -> inputs, errors, each [m, width] or, at more than one
    # position, [m, positions, width] per layer; None = by `activation`, and the loss is
    # the cross-entropy
    passes: Callable | None = None
    unbiased: frozenset = frozenset()  # of `layers`: those without a bias
    positions: tuple[int, ...] = ()  # per layer; () = one each

    @property
    def convolutional(self) -> bool:
        """Return whether a layer has more than one position."""
        return any(t > 1 for t in self.positions)

    @property
    def every_position(self) -> tuple[int, ...]:
        """Return `positions`, written out."""
        return self.positions or (1,) * len(self.layers)


class Passes(NamedTuple):
    """The factors of one example's gradient, one entry per layer."""

    inputs: list[Any]  # [m, width before], or [m, positions, width before]
    errors: list[Any]  # [m, width after], or [m, positions, width after]


def norms(stack: Stack, params: Any) -> str:
    """Say how the norms of gradients are made; `params` may be shapes."""
    if not stack.convolutional:
        return "ghost clipping: every layer is dense"
    direct = [
        f"{'/'.join(map(str, path(name)))} ({t} positions)"
        for name, (t, *sizes) in zip(stack.layers, shapes(stack, params), strict=True)
        if t > 1 and not is_ghost(t, *sizes)
    ]
    text = "ghost clipping: every layer is dense or a convolution"
    return f"{text}; norms by the gradients of {', '.join(direct)}" if direct else text


def patches(task: Task) -> int:
    """Return how many numbers the layers' inputs have for one example, at positions."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    return _patches(shapes(task.dense, params))


def at_a_time(stack: Stack, params: Any) -> tuple[int, int]:
    """Return how many examples a convolutional network's sum and span take at a time.

    Patches of `PART` fit into memory. A sum takes one in a processor's cache, unless
    the sum itself, which is read and written every time, is as much work as one
    example's products: dense layers need several. `params` may be shapes.
    """
    layers = shapes(stack, params)
    most = min(PART, 2 ** int(math.log2(max(1, PATCHES // _patches(layers)))))
    products = sum(math.prod(layer) for layer in layers)
    parameters = sum(inputs * outputs for _, inputs, outputs in layers)
    alone = jax.default_backend() == "cpu" and products >= REUSE * parameters
    return 1 if alone else most, most


def shapes(stack: Stack, params: Any) -> list[tuple[int, int, int]]:
    """Return (positions, inputs, outputs) of every layer; `params` may be shapes."""
    kernels = [_at(params, name)["kernel"].shape for name in stack.layers]
    layers = zip(stack.every_position, kernels, strict=True)
    return [(t, math.prod(inputs), outputs) for t, (*inputs, outputs) in layers]


def _patches(layers: list[tuple[int, int, int]]) -> int:
    return sum(t * inputs for t, inputs, _ in layers)


def is_ghost(positions: int, before: int, after: int) -> bool:
    """Return whether two Gram matrices are smaller than the gradient of a layer."""
    return 2 * positions**2 <= before * after


def _heads(stack: Stack, tree: Any) -> list[Head]:
    layers = (_at(tree, name) for name in stack.layers)
    return [Head(_flat(layer["kernel"]), layer.get("bias")) for layer in layers]


def _flat(kernel: Any) -> Any:
    """Return [rows, width] of a kernel [*sizes, before, after] or of [m, T, width]."""
    return kernel.reshape(-1, kernel.shape[-1])


def path(name: Any) -> tuple:
    """Return where a layer of a `Stack` is, step by step."""
    return name if isinstance(name, tuple) else (name,)


def _at(tree: Any, name: Any) -> Any:
    for step in path(name):
        tree = tree[step]
    return tree


def _masks(stack: Stack, mask: Any) -> list[Any]:
    return [None] * len(stack.layers) if mask is None else _heads(stack, mask)


def _tree(stack: Stack, heads: list[Head], like: Any) -> Any:
    tree: dict[Any, Any] = {}
    for name, head in zip(stack.layers, heads, strict=True):
        into = tree
        for step in path(name):
            into = into.setdefault(step, {})
        into["kernel"] = head.kernel.reshape(_at(like, name)["kernel"].shape)
        if head.bias is not None:
            into["bias"] = head.bias
    return tree


def factors(stack: Stack, params: Any, x: Any, y: Any, classes: int) -> Passes:
    """Return what every layer gets of every example, forward and backward."""
    if stack.passes is not None:
        return Passes(*stack.passes(params, x, y))
    z = affine.affine(_heads(stack, params)[0], x)
    later = _after(stack, params, z, y, classes)
    return later._replace(inputs=[x, *later.inputs])


def _both_ways(
    stack: Stack, params: Any, x: Any, y: Any, to: Treatment
) -> tuple[Passes, Any]:
    """Return both passes of every example, in its unit, and the masked offset."""
    passes = factors(stack, params, x, y, to.classes)
    passes = passes._replace(errors=_measured(passes.errors, _units(passes, to)))
    return passes, masked(to.mask, to.offset)


def _units(passes: Passes, to: Treatment) -> Any:
    """Return the unit [m] in which gradients are measured (`affine.units`).

    It is that of the largest error: in its own, one of several heads may be too small
    for those of the others to have a square.
    """
    largest = [jnp.abs(e).reshape(len(e), -1).max(-1) for e in passes.errors]
    return affine.units(jnp.stack(largest, -1), to)


def _measured(errors: list[Any], one: Any) -> list[Any]:
    """Return errors, or their derivatives, each [m, ...], in the unit [m]."""
    return [e / one.reshape(-1, *[1] * (e.ndim - 1)) for e in errors]


def _after(stack: Stack, params: Any, z: Any, y: Any, classes: int) -> Passes:
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
    return Passes(inputs, errors)


def _kernels(stack: Stack, passes: Passes, mask: Any) -> list[Any]:
    """Return a layer's gradients [m, p, D] where their norm needs them, or None.

    Nothing is masked in them.
    """
    partly = [m is not None for m in _masks(stack, mask)]
    return [
        _kernel(a, e)
        if a.ndim > 2 and (m or not is_ghost(a.shape[-2], a.shape[-1], e.shape[-1]))
        else None
        for a, e, m in zip(*passes, partly, strict=True)
    ]


def _kernel(a: Any, e: Any) -> jax.Array:
    """Return the gradients E^T A [m, p, D] of a convolution's kernel, transposed.

    A^T E takes twice as long, for rows of p numbers are shorter than a processor's
    vectors.
    """
    return jnp.swapaxes(e, -1, -2) @ a


def _square(
    stack: Stack, passes: Passes, mask: Any, offset: Any, kernels: list | None = None
) -> jax.Array:
    """Return the squared norm of every masked gradient plus offset [m].

    `kernels` are those of `_kernels`, where the caller has them.
    """
    square = jnp.zeros(passes.inputs[0].shape[:1], passes.inputs[0].dtype)
    kernels = _kernels(stack, passes, mask) if kernels is None else kernels
    layers = zip(stack.layers, *passes, _masks(stack, mask), kernels, strict=True)
    for name, a, e, m, kernel in layers:
        if a.ndim > 2:
            square += _at_positions(a, e, m, name not in stack.unbiased, kernel)
        elif m is None:
            square += ((a**2).sum(-1) + (name not in stack.unbiased)) * (e**2).sum(-1)
        else:
            square += (affine.affine(m, a**2) * e**2).sum(-1)
    if offset is not None:
        square += 2 * _inner(stack, passes, offset)
        square += sum((leaf**2).sum() for leaf in jax.tree.leaves(offset))
    return square


def _at_positions(
    a: Any, e: Any, m: Head | None, biased: bool, kernel: Any
) -> jax.Array:
    """Return ||m o (A^T E, the sum of the rows of E)||^2 of every example [m].

    `a` is [m, T, D], `e` is [m, T, p], `kernel` E^T A or None.
    """
    bias = e.sum(-2) ** 2 * biased
    if kernel is None:
        return (_gram(a) * _gram(e)).sum((-1, -2)) + bias.sum(-1)
    square = kernel**2
    if m is None:
        return square.sum((-1, -2)) + bias.sum(-1)
    if m.bias is not None:
        bias = bias * m.bias
    return (square * m.kernel.T).sum((-1, -2)) + bias.sum(-1)


def _norm(
    stack: Stack, passes: Passes, mask: Any, offset: Any, kernels: list | None = None
) -> jax.Array:
    return norm_of(_square(stack, passes, mask, offset, kernels))


def _inner(stack: Stack, passes: Passes, tree: Any) -> jax.Array:
    """Return <tree, gradient> of every example [m]; `tree` lies inside the mask."""
    layers = zip(*passes, _heads(stack, tree), strict=True)
    parts = [affine.affine(h, a) * e for a, e, h in layers]
    sums = [part.sum(tuple(range(1, part.ndim))) for part in parts]
    return sum(sums[1:], sums[0])


def clipped_total(
    stack: Stack, params: Any, x: Any, y: Any, weight: Any, to: Treatment
) -> Any:
    """Return sum_i w_i gbar_i, a pytree like `params`; a weight of None is ones."""
    passes, offset = _both_ways(stack, params, x, y, to)
    kernels = _kernels(stack, passes, to.mask)
    phi = to.clip.scale(_norm(stack, passes, to.mask, offset, kernels))
    phi = phi if weight is None else phi * weight
    heads = []
    for name, a, e, kernel in zip(stack.layers, *passes, kernels, strict=True):
        scaled = _flat(jnp.einsum("i,i...->i...", phi, e))
        if kernel is None:
            total = (scaled.T @ _flat(a)).T
        else:
            total = jnp.einsum("i,ipd->dp", phi, kernel)
        heads.append(Head(total, None if name in stack.unbiased else scaled.sum(-2)))
    total = masked(to.mask, _tree(stack, heads, params))
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


def clipped_span(stack: Stack, params: Any, x: Any, y: Any, to: Treatment) -> Span:
    """Return the span of every gbar_i, without a mask and without an offset.

    <a e^T, a' e'^T> = <a, a'> <e, e'> in a dense layer; those of a convolution are
    formed, and all are flat then.
    """
    biases = [name not in stack.unbiased for name in stack.layers]

    def layers_of(x: Any, y: Any) -> list[tuple]:
        passes, _ = _both_ways(stack, params, x, y, to)
        return [
            (a, e) if a.ndim == 2 else (None, _formed(a, e, biased))
            for a, e, biased in zip(*passes, biases, strict=True)
        ]

    def layers_of_one(z: tuple) -> list[tuple]:
        return jax.tree.map(lambda a: a[0], layers_of(z[0][None], z[1][None]))

    if stack.convolutional:
        part, _ = at_a_time(stack, params)
        layers = jax.lax.map(layers_of_one, (x, y), batch_size=part)
    else:
        layers = layers_of(x, y)
    gram = jnp.zeros((len(y), len(y)), x.dtype)
    for (a, e), biased in zip(layers, biases, strict=True):
        gram += _gram(e) if a is None else (_gram(a) + biased) * _gram(e)
    phi = to.clip.scale(norm_of(jnp.diagonal(gram)))

    def inner(tree: Any) -> jax.Array:
        parts = [
            e @ ravel_pytree(_transposed(head))[0]
            if a is None
            else (affine.affine(head, a) * e).sum(-1)
            for (a, e), head in zip(layers, _heads(stack, tree), strict=True)
        ]
        return phi * sum(parts[1:], parts[0])

    def combine(weight: Any) -> Any:
        heads = []
        every = zip(layers, biases, _heads(stack, params), strict=True)
        for (a, e), biased, like in every:
            if a is None:
                unravel = ravel_pytree(_transposed(like))[1]
                heads.append(_transposed(unravel((weight * phi) @ e)))
                continue
            rows = (weight * phi)[:, None] * e
            heads.append(Head(a.T @ rows, rows.sum(0) if biased else None))
        return _tree(stack, heads, params)

    return Span(phi[:, None] * gram * phi, inner, combine)


def _formed(a: Any, e: Any, biased: bool) -> jax.Array:
    """Return the gradient of a convolution's head, `_transposed` and flat, [m, K]."""
    head = Head(_kernel(a, e), e.sum(-2) if biased else None)
    return jax.vmap(lambda head: ravel_pytree(head)[0])(head)


def _transposed(head: Head) -> Head:
    return head._replace(kernel=head.kernel.T)


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
    return phi**2 * _raw(stack, params, x, y, to) + curved * q


def clipped_motion(
    stack: Stack, params: Any, x: Any, y: Any, u: Any, to: Treatment
) -> Any:
    """Return ||(d gbar_i / d x_i) u_i||^2 [m] along directions u [m, d], exact.

    With g' = (d g / d x) u, s = ||g|| and c = <g, g'> it is
    phi^2 ||g'||^2 + (2 phi phi'/s + phi'^2) c^2. In a layer g' = A'^T B + A^T B' is the
    gradient of twice as many positions: neither its norm nor c needs a gradient.
    """
    offset = masked(to.mask, to.offset)
    both = lambda x: _both_ways(stack, params, x, y, to)[0]
    passes, moved = jax.jvp(both, (x,), (u,))
    c = jnp.zeros(x.shape[:1], x.dtype)
    square = c
    layers = zip(stack.layers, *passes, *moved, _masks(stack, to.mask), strict=True)
    for name, a, e, da, de, m in layers:
        rows = [r if r.ndim > 2 else r[:, None] for r in (a, e, da, de)]
        kernel, bias = _motion((rows[0], rows[1]), (rows[2], rows[3]), m)
        each = kernel if name in stack.unbiased else [*map(jnp.add, kernel, bias)]
        c, square = c + each[0], square + each[1]
    if offset is not None:  # <offset, g'>: it adds to g, and not to g'
        layers = zip(*passes, *moved, _heads(stack, offset), strict=True)
        for a, e, da, de, h in layers:
            part = (da @ h.kernel) * e + affine.affine(h, a) * de
            c += part.sum(tuple(range(1, part.ndim)))
    phi, curved = affine.curvature(to.clip, _norm(stack, passes, to.mask, offset))
    return phi**2 * square + curved * c**2


def _motion(at: tuple, moved: tuple, m: Head | None) -> tuple:
    """Return <G, G'> and ||G'||^2 [m] of a layer's kernel, and the same of its bias.

    G = m o A^T E and G' = m o (A'^T E + A^T E'); all are [m, T, width].
    """
    (a, e), (da, de) = at, moved
    change = de.sum(-2)
    bias = e.sum(-2) * change, change**2
    if m is not None and m.bias is not None:
        bias = tuple(m.bias * b for b in bias)
    bias = tuple(b.sum(-1) for b in bias)
    if m is None and is_ghost(2 * a.shape[-2], a.shape[-1], e.shape[-1]):
        grams = [_gram(jnp.concatenate(r, -2)) for r in ((a, da), (e, de))]
        (aa, ad, dd), (ee, ef, ff) = (_blocks(g) for g in grams)
        flip = jnp.swapaxes(ad, -1, -2)
        inner = (flip * ee).sum((-1, -2)) + (aa * ef).sum((-1, -2))
        square = dd * ee + 2 * flip * ef + aa * ff
        return (inner, square.sum((-1, -2))), bias
    outer = lambda a, e: jnp.einsum("itd,itp->idp", a, e)
    kernel, change = outer(a, e), outer(da, e) + outer(a, de)
    pair = kernel * change, change**2
    if m is not None:
        pair = pair[0] * m.kernel, pair[1] * m.kernel
    return tuple(p.sum((-1, -2)) for p in pair), bias


def _gram(rows: Any) -> Any:
    return rows @ jnp.swapaxes(rows, -1, -2)


def _blocks(gram: Any) -> tuple:
    """Return the blocks of a Gram matrix of [R; R']: R R^T, R R'^T, R' R'^T."""
    t = gram.shape[-1] // 2
    return gram[..., :t, :t], gram[..., :t, t:], gram[..., t:, t:]


def _raw(stack: Stack, params: Any, x: Any, y: Any, to: Treatment) -> Any:
    """Return ||J||_F^2 [m]; the offset is constant and has no part in it.

    sum_v ||m o (a' e^T + a e'^T)||^2 over unit directions v of x, layer by layer;
    a' and e' are A u and E u for u = W^T v, and sum_v u u^T is W^T W.
    """
    first = _heads(stack, params)[0]
    w, z = first.kernel, affine.affine(first, x)
    later = lambda z, y: _after(stack, params, z, y, to.classes)
    by_z = jax.vmap(jax.jacfwd(later))(z, y)
    passes = factors(stack, params, x, y, to.classes)
    one = _units(passes, to)
    passes, by_z = (p._replace(errors=_measured(p.errors, one)) for p in (passes, by_z))
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
