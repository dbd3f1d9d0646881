"""Closed forms for models whose logits are affine in x: z = W^T x + b.

With residual e = p - onehot(y) over the trainable logits F, S_F the rows F of
diag(p) - p p^T, and xb = (x, 1), one example's gradient is g = mask o (xb e^T) + offset
and everything the suite asks of it costs one forward pass and k x k algebra:

    s = ||g||,   J = d g / d x,   q = J^T g,   gbar = phi(s) g
    ||d gbar / d x||_F^2 = phi^2 ||J||_F^2 + (2 phi phi'/s + phi'^2) ||q||^2

The derivation is in docs/bounds/cramer_rao.md; tests compare with autodiff to 1e-10.
Examples come as x [m, d] and y [m]. Nothing is vmapped over examples, so that under a
vmap over lanes the products with a shared x become one large matrix product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from audit.clip import Clip


class Head(NamedTuple):
    """Weights of the trainable logits; also shapes masks, offsets and updates."""

    kernel: Any  # [d, F]
    bias: Any  # [F]


def residual(head: Head, x: Any, y: Any, classes: int) -> tuple[Any, Any]:
    """Return (p - onehot(y)) over the trainable logits [m, F], and p [m, classes].

    Logits are z_1 .. z_F, followed by a constant 0 where F = classes - 1. The entry of
    the true class is minus the sum of the other probabilities, which keeps its relative
    precision when the example is fitted.
    """
    z = x @ head.kernel + head.bias
    trainable = z.shape[-1]
    if trainable == 1 and classes == 2:
        # two logits, one of them 0: a sigmoid, one pass over the examples instead of six
        sign = jnp.where(y == 0, -1, 1).astype(z.dtype)[..., None]
        one = jax.nn.sigmoid(z)
        return sign * jax.nn.sigmoid(sign * z), jnp.concatenate([one, 1 - one], -1)
    if trainable == classes - 1:
        z = jnp.concatenate([z, jnp.zeros_like(z[..., :1])], -1)
    p = jax.nn.softmax(z)
    hot = jax.nn.one_hot(y, classes, dtype=p.dtype)
    others = p * (1 - hot)
    e = others - hot * others.sum(-1, keepdims=True)
    return e[..., :trainable], p


def _square_norm(x: Any, e: Any, mask: Head | None, offset: Head | None) -> Any:
    """Return ||mask o (xb e^T) + offset||^2 [m]; the offset lies inside the mask."""
    if mask is None:
        square = ((x**2).sum(-1) + 1) * (e**2).sum(-1)
    else:
        square = ((x**2 @ mask.kernel + mask.bias) * e**2).sum(-1)
    if offset is None:
        return square
    cross = ((x @ offset.kernel + offset.bias) * e).sum(-1)
    return square + 2 * cross + (offset.kernel**2).sum() + (offset.bias**2).sum()


def _norm(square: Any) -> Any:
    return jnp.sqrt(jnp.maximum(square, 0))


def _inside(mask: Head | None, offset: Head | None) -> Head | None:
    if mask is None or offset is None:
        return offset
    return Head(mask.kernel * offset.kernel, mask.bias * offset.bias)


def clipped_total(
    head: Head,
    x: Any,
    y: Any,
    weight: Any,
    *,
    clip: Clip,
    classes: int,
    mask: Head | None = None,
    offset: Head | None = None,
) -> Head:
    """Return sum_i w_i gbar_i in two matrix products.

    Args:
      head: parameters.
      x: [m, d].
      y: [m] integer labels.
      weight: [m], or None for ones.
      clip: from `audit.clip`.
      classes: number of labels.
      mask: 0/1; None = everything is trained.
      offset: constant added before clipping; None = none.
    """
    offset = _inside(mask, offset)
    e, _ = residual(head, x, y, classes)
    phi = clip.scale(_norm(_square_norm(x, e, mask, offset)))
    phi = phi if weight is None else phi * weight
    scaled = phi[..., None] * e
    total = Head(x.T @ scaled, scaled.sum(-2))
    if mask is not None:
        total = Head(mask.kernel * total.kernel, mask.bias * total.bias)
    if offset is not None:
        count = phi.sum(-1)
        total = jax.tree.map(lambda t, c: t + count * c, total, offset)
    return total


def clipped_score(
    head: Head,
    x: Any,
    y: Any,
    update: Head,
    *,
    clip: Clip,
    classes: int,
    mask: Head | None = None,
    offset: Head | None = None,
) -> tuple[Any, Any]:
    """Return <update, gbar_i> and ||gbar_i||^2, each [m]. Arguments: `clipped_total`."""
    offset = _inside(mask, offset)
    e, _ = residual(head, x, y, classes)
    s = _norm(_square_norm(x, e, mask, offset))
    phi = clip.scale(s)
    seen = _inside(mask, update) if mask is not None else update
    assert seen is not None
    inner = ((x @ seen.kernel + seen.bias) * e).sum(-1)
    if offset is not None:
        inner += (offset.kernel * update.kernel).sum()
        inner += (offset.bias * update.bias).sum()
    return phi * inner, (phi * s) ** 2


def clipped_trace(
    head: Head,
    x: Any,
    y: Any,
    *,
    clip: Clip,
    classes: int,
    mask: Head | None = None,
    offset: Head | None = None,
) -> Any:
    """Return ||d gbar_i / d x_i||_F^2 [m], exact. Arguments: `clipped_total`."""
    offset = _inside(mask, offset)
    e, p = residual(head, x, y, classes)
    raw, q = (_dense if mask is None else _masked)(head, x, e, p, mask, offset)
    s = _norm(_square_norm(x, e, mask, offset))
    safe = jnp.where(s > 0, s, 1)
    phi, slope = clip.scale(s), clip.slope(s)
    curved = jnp.where(s > 0, 2 * phi * slope / safe + slope**2, 0)
    return phi**2 * raw + curved * q


def _covariance(e: Any, p: Any) -> Any:
    """Return S_F [m, F, F]: rows and columns of diag(p) - p p^T of trainable logits."""
    trainable = p[..., : e.shape[-1]]
    outer = trainable[..., :, None] * trainable[..., None, :]
    return trainable[..., None] * jnp.eye(e.shape[-1], dtype=p.dtype) - outer


def _dense(
    head: Head, x: Any, e: Any, p: Any, mask: Head | None, offset: Head | None
) -> tuple[Any, Any]:
    """Return ||J||_F^2 and ||J^T g||^2, each [m], with everything trained.

    J^T g = ||e||^2 x + M^T (||xb||^2 e + C^T xb) + C_W e with M = S_F W^T, where C is
    the offset; only k x k products of W are formed, never M.
    """
    del mask
    w = head.kernel
    cov = _covariance(e, p)
    gram = w.T @ w  # [F, F], once for all examples
    ee, xx = (e**2).sum(-1), (x**2).sum(-1)
    xb, v = xx + 1, x @ w
    c = jnp.einsum("...ji,...j->...i", cov, e)
    mm = jnp.einsum("...ij,jk,...ik->...", cov, gram, cov)  # ||M||_F^2
    raw = x.shape[-1] * ee + 2 * (c * v).sum(-1) + xb * mm
    u = xb[..., None] * e
    if offset is not None:
        u = u + x @ offset.kernel + offset.bias
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
    head: Head, x: Any, e: Any, p: Any, mask: Head | None, offset: Head | None
) -> tuple[Any, Any]:
    """Return ||J||_F^2 and ||J^T g||^2, each [m], with part of it frozen; O(d k)."""
    assert mask is not None
    m, mb = mask.kernel, mask.bias
    jac = jnp.einsum("...ij,dj->...id", _covariance(e, p), head.kernel)  # M [.., F, d]
    a = x**2 @ m + mb  # [m, F] squared norms of the masked xb, one a logit
    raw = (e**2 @ m.T).sum(-1)
    raw = raw + 2 * jnp.einsum("...d,dj,...j,...jd->...", x, m, e, jac)
    raw = raw + (a * (jac**2).sum(-1)).sum(-1)
    u = a * e
    if offset is not None:
        u = u + x @ offset.kernel + offset.bias
    q = x * (e**2 @ m.T) + jnp.einsum("...jd,...j->...d", jac, u)
    if offset is not None:
        q = q + e @ offset.kernel.T
    return raw, (q**2).sum(-1)
