"""Gradients shifted by one vector c, as functions of c alone.

With g the gradient of one example, J = d g / d x, and c the same for all examples,

    s^2 = ||g + c||^2,   raw = ||J||_F^2,   q = ||J^T (g + c)||^2

are all that a clip's Fisher information and its signal depend on (`models.affine`).
Neither g nor J depends on c. Both are computed once, and each evaluation then costs one
product with the records instead of a pass through the model: a search for c is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from audit.clipping import Clip
from audit.models import affine
from audit.models.affine import Head
from audit.types import Examples, Task

PROBES = 2  # Gaussian probes per example where no closed form exists, as in the thesis
TOGETHER = 64  # examples whose gradients are taken at a time


class Shifted(NamedTuple):
    """What does not depend on c; all arrays have the examples as leading axis."""

    fixed: Any  # arrays for `measure`; the examples, shared by all, are not in it
    mean: Any  # pytree: the mean gradient


class ShiftedNorms(NamedTuple):
    """Squared norms of g + c and of its Jacobian, one entry per example [m]."""

    square: Any  # s^2
    raw: Any
    leak: Any  # q


def clipped_trace(clip: Clip, at: ShiftedNorms) -> Any:
    """Return ||d CLIP(g + c) / d x||_F^2 and ||CLIP(g + c)||^2, each [m]."""
    s = jnp.sqrt(jnp.maximum(at.square, 1e-30))
    phi, slope = clip.scale(s), clip.slope(s)
    trace = phi**2 * at.raw + (2 * phi * slope / s + slope**2) * at.leak
    return trace, (phi * s) ** 2


def reader(task: Task) -> tuple[Callable, Callable]:
    """Return (prepare, measure) for a task: exact where logits are affine.

    prepare: (params, mask, Examples [m], key) -> Shifted.
    measure: (params, Shifted, Examples [m], c like params, rows | None) -> Measured;
      `rows` chooses examples.
    """
    if task.linear is None:
        return _probed(task)
    to_head, from_head = task.linear

    def prepare(params: Any, mask: Any, z: Examples, key: Any) -> Shifted:
        del key
        x = z.x.reshape(len(z.y), -1)
        inside = None if mask is None else to_head(mask)
        fixed, mean = _affine_parts(to_head(params), x, z.y, inside, task.classes)
        return Shifted(fixed, from_head(mean))

    def measure(
        params: Any, shifted: Shifted, z: Examples, c: Any, rows: Any = None
    ) -> ShiftedNorms:
        fixed, x = _rows((shifted.fixed, z.x.reshape(len(z.y), -1)), rows)
        return _affine_measure(to_head(params), fixed, x, to_head(c))

    return prepare, measure


def _rows(tree: Any, rows: Any) -> Any:
    return tree if rows is None else jax.tree.map(lambda a: a[rows], tree)


# Affine logits ------------------------------------------------------------------------


def _affine_parts(
    head: Head, x: Any, y: Any, mask: Head | None, classes: int
) -> tuple[dict[str, Any], Head]:
    """Precompute; e, S, a, M as in `affine`, J^T g = x o r + W h with h = S(e a).

    The product of `across` [m, d] with c gives <J^T g, C_W e>; it is None where r is
    the same for all pixels that are trained, and x itself serves.
    """
    e, p = affine.residual(head, x, y, classes)
    w, cov = head.kernel, affine.covariance(e, p)
    raw, leak = affine.raw_and_leak(head, x, e, p, mask, None)
    if mask is None:
        a = jnp.broadcast_to(affine.inputs(head, x)[:, None], e.shape)
        inside = None
    else:
        a, inside = affine.affine(mask, x**2), mask.kernel
    h = (cov * (a * e)[:, None, :]).sum(-1)
    ee = (e**2).sum(-1)
    if inside is None or e.shape[-1] == 1:
        across, same = None, ee
        xw = x @ (w if inside is None else inside * w)
        gw = ee[:, None] * xw + h @ (w.T @ w)
    else:
        across, same = x * (e**2 @ inside.T) + h @ w.T, None
        gw = across @ w
    n = len(y)
    bias = None if head.bias is None else e.mean(0)
    mean = affine.masked(mask, Head(x.T @ e / n, bias))
    fixed = {
        "e": e, "cov": cov, "square": (a * e**2).sum(-1), "raw": raw,
        "leak": leak, "h": h, "gw": gw, "across": across, "same": same,
    }  # fmt: skip
    return fixed, mean


def _affine_measure(head: Head, fixed: dict[str, Any], x: Any, c: Head) -> ShiftedNorms:
    """Evaluate at c, which lies inside the mask.

    J^T c = C_W e + W k with k = S u, u = C_W^T x + c_b, so that ||J^T (g + c)||^2 needs
    only products of x, C and W with each other.
    """
    e, w = fixed["e"], head.kernel
    xc = x @ c.kernel
    u = xc if c.bias is None else xc + c.bias
    # not einsum: products of k x k matrices, one per example, are slow on CPU
    k = (fixed["cov"] * u[:, None, :]).sum(-1)
    wc, cc, gram = w.T @ c.kernel, c.kernel.T @ c.kernel, w.T @ w
    if fixed["across"] is None:
        v = fixed["same"][:, None] * xc + _times(fixed["h"], wc)
    else:
        v = fixed["across"] @ c.kernel
    square = fixed["square"] + 2 * (u * e).sum(-1) + optax.tree.norm(c, squared=True)
    signal = 2 * v + _times(e, cc) + 2 * _times(k, wc)
    leak = fixed["leak"] + (signal * e).sum(-1)
    leak = leak + ((2 * fixed["gw"] + _times(k, gram)) * k).sum(-1)
    return ShiftedNorms(square, fixed["raw"], leak)


def _times(rows: Any, matrix: Any) -> Any:
    """Return rows @ matrix; one number per row needs no matrix product."""
    return rows * matrix[0, 0] if matrix.size == 1 else rows @ matrix


# Any model ----------------------------------------------------------------------------


def _probed(task: Task) -> tuple[Callable, Callable]:
    """Keep every gradient and a few Jacobian-vector products; q is then estimated."""

    def prepare(params: Any, mask: Any, z: Examples, key: Any) -> Shifted:
        def one(pair: tuple) -> tuple:
            key, example = pair

            def gradient(x: Any) -> Any:
                slope = jax.grad(task.loss)(params, example._replace(x=x))
                return ravel_pytree(affine.masked(mask, slope))[0]

            probes = jax.random.normal(key, (PROBES, *example.x.shape), example.x.dtype)
            push = lambda u: jax.jvp(gradient, (example.x,), (u,))[1]
            return gradient(example.x), jax.vmap(push)(probes)

        keys = jax.random.split(key, len(z.y))
        g, j = jax.lax.map(one, (keys, z), batch_size=TOGETHER)
        unravel = ravel_pytree(params)[1]
        fixed = {
            "g": g, "j": j, "square": (g**2).sum(-1),
            "raw": (j**2).sum((1, 2)) / PROBES, "gj": jnp.einsum("mk,msk->ms", g, j),
        }  # fmt: skip
        return Shifted(fixed, unravel(g.mean(0)))

    def measure(
        params: Any, shifted: Shifted, z: Examples, c: Any, rows: Any = None
    ) -> ShiftedNorms:
        del params, z
        fixed, flat = _rows(shifted.fixed, rows), ravel_pytree(c)[0]
        square = fixed["square"] + 2 * fixed["g"] @ flat + flat @ flat
        leak = ((fixed["gj"] + fixed["j"] @ flat) ** 2).mean(1)
        return ShiftedNorms(square, fixed["raw"], leak)

    return prepare, measure
