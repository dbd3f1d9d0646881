"""Closed forms for models whose logits are affine in x: z = W^T x + b.

With residual e = p - onehot(y) over the trainable logits F, S_F the rows F of
diag(p) - p p^T, and xb = (x, 1), one example's gradient is g = mask o (xb e^T + offset)
and everything the suite asks of it costs one forward pass and k x k algebra:

    s = ||g||,   J = d g / d x,   q = J^T g,   gbar = phi(s) g
    ||d gbar / d x||_F^2 = phi^2 ||J||_F^2 + (2 phi phi'/s + phi'^2) ||q||^2

Without a bias xb is x. The derivation is in docs/bounds/cramer_rao.md; tests compare
with autodiff to 1e-10. Examples come as x [m, d] and y [m]. Nothing is vmapped over
examples, so that under a vmap over lanes the products with a shared x become one large
matrix product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from audit.clipping import Clip, norm_of, unit
from audit.types import Span


class Head(NamedTuple):
    """Weights of the trainable logits; also shapes masks, offsets and updates."""

    kernel: Any  # [d, F]
    bias: Any  # [F]; None = the model has none


class Treatment(NamedTuple):
    """What makes a contribution of a gradient g: CLIP(mask o (g + offset))."""

    clip: Clip
    classes: int
    mask: Any = None  # 0/1, like the weights; None = everything is trained
    offset: Any = None  # constant, like the weights; None = none


def residual(head: Head, x: Any, y: Any, classes: int) -> tuple[Any, Any]:
    """Return (p - onehot(y)) over the trainable logits [m, F], and p [m, classes].

    Where F = classes - 1 the last logit is 0.
    """
    z = affine(head, x)
    trainable = z.shape[-1]
    if trainable == 1 and classes == 2:
        # two logits, one of them 0: one pass over the examples, not six
        sign = jnp.where(y == 0, -1, 1).astype(z.dtype)[..., None]
        one = jax.nn.sigmoid(z)
        return sign * jax.nn.sigmoid(sign * z), jnp.concatenate([one, 1 - one], -1)
    if trainable == classes - 1:
        z = jnp.concatenate([z, jnp.zeros_like(z[..., :1])], -1)
    e, p = _slope(z, y)
    return e[..., :trainable], p


def _slope(z: Any, y: Any) -> tuple[Any, Any]:
    """Return the cross-entropy's derivative e and the probabilities p, each [..., k].

    The entry of the true class is minus the sum of the other probabilities: it keeps
    its relative precision in a fitted example, whose p - 1 is rounding or 0.
    """
    # a row per class: a processor's vectors are longer than there are classes
    p = jax.nn.softmax(jnp.moveaxis(z, -1, 0), 0)
    hot = jax.nn.one_hot(y, len(p), dtype=p.dtype, axis=0)
    others = p * (1 - hot)
    e = others - hot * others.sum(0)
    return jnp.moveaxis(e, 0, -1), jnp.moveaxis(p, 0, -1)


@jax.custom_jvp
def cross_entropy(logits: Any, label: Any) -> jax.Array:
    """Return -log p(label) [...] of logits [..., k], with the slope of `residual`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


@cross_entropy.defjvp
def _(at: tuple, moved: tuple) -> tuple[Any, Any]:
    return cross_entropy(*at), (_slope(*at)[0] * moved[0]).sum(-1)


def affine(head: Head, x: Any) -> Any:
    """Return W^T x + b [m, F] or, at the positions of a convolution, [m, T, F].

    Without a bias it is W^T x. Under a vmap over kernels their lanes are rows of this
    product, as they are of all else: of x W they would be columns, and a processor
    would transpose both ways. At positions, x is not what lanes share.
    """
    z = x @ head.kernel if x.ndim > 2 else (head.kernel.T @ x.T).T
    return z if head.bias is None else z + head.bias


def inputs(head: Head, x: Any) -> Any:
    """Return ||xb||^2 [m]."""
    square = (x**2).sum(-1)
    return square if head.bias is None else square + 1


def _dot(a: Any, b: Any) -> Any:
    pairs = zip(*map(jax.tree.leaves, (a, b)), strict=True)
    return sum((p * q).sum() for p, q in pairs)


def masked(mask: Any, tree: Any) -> Any:
    """Return the tree times the 0/1 mask; None leaves it, or is left, unchanged."""
    if mask is None or tree is None:
        return tree
    return jax.tree.map(jnp.multiply, mask, tree)


def _norm(
    head: Head, x: Any, e: Any, mask: Head | None, offset: Head | None
) -> jax.Array:
    """Return ||mask o (xb e^T) + offset|| [m]; the offset lies inside the mask."""
    if mask is None:
        square = inputs(head, x) * (e**2).sum(-1)
    else:
        square = (affine(mask, x**2) * e**2).sum(-1)
    if offset is not None:
        square += 2 * (affine(offset, x) * e).sum(-1) + _dot(offset, offset)
    return norm_of(square)


def _parts(head: Head, x: Any, y: Any, to: Treatment) -> tuple:
    """Return e and p of `residual`, the masked offset, every norm s and unit [m].

    e and s are in the unit, and so is what is made of them: it leaves no trace in a
    contribution, whose length does not depend on the gradient's where it is not 1.
    """
    offset = masked(to.mask, to.offset)
    e, p = residual(head, x, y, to.classes)
    one = units(e, to)
    e = e / one[..., None]
    return e, p, offset, _norm(head, x, e, to.mask, offset), one


def units(e: Any, to: Treatment) -> Any:
    """Return the unit [m] in which gradients with errors e [m, F] are measured.

    1 where lengths count, and beside an offset, which has its own.
    """
    if not to.clip.of_direction or to.offset is not None:
        return jnp.ones(e.shape[:-1], e.dtype)
    return unit(jnp.abs(e).max(-1))


def clipped_total(head: Head, x: Any, y: Any, weight: Any, to: Treatment) -> Head:
    """Return sum_i w_i gbar_i of x [m, d] with labels y [m] in two matrix products.

    A weight [m] of None stands for ones.
    """
    e, _, offset, s, _ = _parts(head, x, y, to)
    phi = to.clip.scale(s)
    phi = phi if weight is None else phi * weight
    scaled = phi[..., None] * e
    bias = None if head.bias is None else scaled.sum(-2)
    total = masked(to.mask, Head((scaled.T @ x).T, bias))
    if offset is not None:
        count = phi.sum(-1)
        total = jax.tree.map(lambda t, c: t + count * c, total, offset)
    return total


def clipped_score(
    head: Head, x: Any, y: Any, update: Head, to: Treatment
) -> tuple[Any, Any]:
    """Return <update, gbar_i> and ||gbar_i||^2, each [m]."""
    e, _, offset, s, _ = _parts(head, x, y, to)
    phi = to.clip.scale(s)
    inner = (affine(masked(to.mask, update), x) * e).sum(-1)
    if offset is not None:
        inner += _dot(offset, update)
    return phi * inner, (phi * s) ** 2


def clipped_span(head: Head, x: Any, y: Any, to: Treatment) -> Span:
    """Return the span of every gbar_i, without a mask and without an offset."""
    e, _, _, s, _ = _parts(head, x, y, to)
    scaled = to.clip.scale(s)[..., None] * e
    biased = head.bias is not None

    def inner(tree: Head) -> jax.Array:
        return (affine(tree, x) * scaled).sum(-1)

    def combine(weight: Any) -> Head:
        rows = weight[..., None] * scaled
        return Head(x.T @ rows, rows.sum(-2) if biased else None)

    gram = (x @ x.T + biased) * (scaled @ jnp.swapaxes(scaled, -1, -2))
    return Span(gram, inner, combine)


def clipped_trace(head: Head, x: Any, y: Any, to: Treatment) -> Any:
    """Return ||d gbar_i / d x_i||_F^2 [m], exact."""
    e, p, offset, s, one = _parts(head, x, y, to)
    raw, q = raw_and_leak(head, x, e, p, to.mask, offset, one)
    phi, curved = curvature(to.clip, s)
    return phi**2 * raw + curved * q


def raw_and_leak(
    head: Head,
    x: Any,
    e: Any,
    p: Any,
    mask: Head | None,
    offset: Head | None,
    one: Any = None,
) -> tuple[Any, Any]:
    """Return ||J||_F^2 and ||J^T g||^2, each [m]; e and p are those of `residual`.

    With a unit `one` [m], e is in it and so are J and g.
    """
    cov = covariance(e, p, one)
    if mask is None:
        return _dense(head, x, e, cov, offset)
    return _masked(head, x, e, cov, mask, offset)


def curvature(clip: Clip, s: Any) -> tuple[Any, Any]:
    """Return phi(s) and 2 phi phi'/s + phi'^2; the latter multiplies q = 0 at s = 0."""
    phi, slope = clip.scale(s), clip.slope(s)
    safe = jnp.where(s > 0, s, 1)
    return phi, jnp.where(s > 0, 2 * phi * slope / safe + slope**2, 0)


def clipped_information(head: Head, x: Any, y: Any, to: Treatment) -> tuple:
    """Return D [m, d], U [m, d, r] and S [m, r, r]: J^T J = diag(D) + U S U^T.

    J = d gbar / d x. U has the masked record of every trainable logit, the rows of M
    and J_g^T g, so that r = 2 F + 1, however large d is:

        J_g^T J_g = sum_j e_j^2 diag(m_j) + e_j [(m_j o x) M_j^T + M_j (m_j o x)^T]
                          + a_j M_j M_j^T,      a_j = ||m_j o xb||^2
        J^T J     = phi^2 J_g^T J_g + (2 phi phi'/s + phi'^2) (J_g^T g) (J_g^T g)^T
    """
    e, p, offset, s, one = _parts(head, x, y, to)
    mask = to.mask or jax.tree.map(jnp.ones_like, head)
    phi, curved = curvature(to.clip, s)
    a = affine(mask, x**2)  # [m, F]
    inner = x[..., :, None] * mask.kernel  # [m, d, F]
    outer = jnp.swapaxes(covariance(e, p, one) @ head.kernel.T, -1, -2)  # [m, d, F] M^T
    u = a * e
    if offset is not None:
        u = u + affine(offset, x)
    leak = inner @ (e**2)[..., None] + outer @ u[..., None]  # J_g^T g
    if offset is not None:
        leak = leak + (e @ offset.kernel.T)[..., None]
    diagonal = phi[..., None] ** 2 * (e**2 @ mask.kernel.T)
    cross, square = (jax.vmap(jnp.diag)(phi[..., None] ** 2 * v) for v in (e, a))
    zero, side = jnp.zeros_like(cross), jnp.zeros((*e.shape, 1), e.dtype)
    last = jnp.concatenate([side, side], -2)
    core = jnp.concatenate(
        [
            jnp.concatenate([jnp.block([[zero, cross], [cross, square]]), last], -1),
            jnp.concatenate([last.swapaxes(-1, -2), curved[..., None, None]], -1),
        ],
        -2,
    )
    return diagonal, jnp.concatenate([inner, outer, leak], -1), core


def covariance(e: Any, p: Any, one: Any = None) -> Any:
    """Return S_F [m, F, F]: rows and columns of diag(p) - p p^T of trainable logits.

    With a unit `one` [m], e is in it and so is S_F.

    The diagonal p (1 - p) is written |e| (1 - |e|), the same number: p - p^2 would lose
    all digits of a fitted example's true class, and with them a third of its trace.
    """
    p = p[..., : e.shape[-1]]
    one = 1.0 if one is None else one[..., None]
    outer = p[..., :, None] * (p / one)[..., None, :]
    variance = jnp.abs(e) * (1 - jnp.abs(e) * one)
    return jnp.where(jnp.eye(e.shape[-1], dtype=bool), variance[..., None], -outer)


def _dense(
    head: Head, x: Any, e: Any, cov: Any, offset: Head | None
) -> tuple[Any, Any]:
    """With all of W trained; only k x k products of W are formed, never M = S_F W^T.

    J^T g = ||e||^2 x + M^T (||xb||^2 e + C^T xb) + C_W e, where C is the offset.
    """
    w = head.kernel
    gram = w.T @ w  # [F, F], once for all examples
    ee, xx, xb, v = (e**2).sum(-1), (x**2).sum(-1), inputs(head, x), x @ w
    c = jnp.einsum("...ji,...j->...i", cov, e)
    mm = jnp.einsum("...ij,jk,...ik->...", cov, gram, cov)  # ||M||_F^2
    raw = x.shape[-1] * ee + 2 * (c * v).sum(-1) + xb * mm
    u = xb[..., None] * e
    if offset is not None:
        u = u + affine(offset, x)
    h = jnp.einsum("...ji,...j->...i", cov, u)  # M^T u = W h
    q = ee**2 * xx + 2 * ee * (h * v).sum(-1)
    q = q + jnp.einsum("...i,ij,...j->...", h, gram, h)
    if offset is not None:
        k = offset.kernel
        q = q + 2 * ee * ((x @ k) * e).sum(-1)
        q = q + 2 * jnp.einsum("...i,ij,...j->...", h, w.T @ k, e)
        q = q + jnp.einsum("...i,ij,...j->...", e, k.T @ k, e)
    return raw, q


def _masked(
    head: Head, x: Any, e: Any, cov: Any, mask: Head, offset: Head | None
) -> tuple[Any, Any]:
    """With part of W frozen; O(d k^2).

    J^T g = x o r + W h + C e with r = m (e o e), h = S (e a + C^T xb): sums over pairs
    of logits of <x, m_j o w_k> and the like, so that no array is [m, d].
    """
    m, w = mask.kernel, head.kernel
    e2, gram = e**2, w.T @ w
    a = affine(mask, x**2)  # [m, F] squared norms of the masked xb, one per logit
    xw = pairs(x, m, w)  # [m, F, F] <x o m_j, w_k>
    jac = jnp.einsum("...ij,jk,...ik->...i", cov, gram, cov)  # ||M_j||^2
    cross = (e[..., :, None] * cov * xw).sum((-1, -2))
    raw = e2 @ m.sum(0) + 2 * cross + (a * jac).sum(-1)
    u = a * e
    if offset is not None:
        u = u + affine(offset, x)
    h = (cov * u[..., None, :]).sum(-1)
    q = _form(e2, pairs(x**2, m, m), e2) + 2 * _form(e2, xw, h)
    q = q + ((h @ gram) * h).sum(-1)
    if offset is not None:
        k = offset.kernel
        q = q + 2 * _form(e2, pairs(x, m, k), e)
        q = q + 2 * ((h @ (w.T @ k)) * e).sum(-1) + ((e @ (k.T @ k)) * e).sum(-1)
    return raw, q


def pairs(x: Any, a: Any, b: Any) -> Any:
    """Return <x, a_j o b_k> [m, F, F] in one matrix product."""
    both = a[:, :, None] * b[:, None, :]
    out = x @ both.reshape(len(a), -1)
    return out.reshape(*x.shape[:-1], *both.shape[1:])


def _form(left: Any, matrix: Any, right: Any) -> Any:
    """Return left^T matrix right, one per example [m]."""
    return (left[..., :, None] * matrix * right[..., None, :]).sum((-1, -2))
