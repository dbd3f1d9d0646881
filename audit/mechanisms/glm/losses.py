"""Generalised linear models: losses of u = <w, x>, and their exact minimisers.

    w* = argmin_w  sum_i weight_i l(<w, x_i>, y_i) + (ridge / 2) ||w||^2

Newton's method in whatever precision the arrays have; the last step taken is below the
square root of the machine's resolution, so that the error left is of its order. Runs
that share all records but one are solved from the shared ones' Hessian (`refit`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

MOST_STEPS = 100  # Newton steps; separable data without a ridge never settle
MOST_INNER = 200  # conjugate-gradient steps within one Newton step


class Loss(NamedTuple):
    """One record's loss l(u, y) and its derivatives in u; d slope / d y is -1."""

    value: Callable  # (u, y) -> l
    slope: Callable  # (u, y) -> dl/du
    curvature: Callable  # (u, y) -> d2l/du2
    steepest: float  # sup |dl/du|, the Lipschitz constant in u; inf = unbounded
    encode: Callable  # class labels 0, 1 -> y


def _sign(y: Any) -> Any:
    return 2 * y - 1


LOSSES = {
    # (u - y)^2 / 2 with y = -1 or 1 for classes 0 and 1, or any real number
    "linear": Loss(
        value=lambda u, y: (u - y) ** 2 / 2,
        slope=lambda u, y: u - y,
        curvature=lambda u, y: jnp.ones_like(u),
        steepest=float("inf"),
        encode=_sign,
    ),
    # cross-entropy; written so that a well-fitted record keeps its relative precision
    "logistic": Loss(
        value=lambda u, y: jax.nn.softplus(-_sign(y) * u),
        slope=lambda u, y: -_sign(y) * jax.nn.sigmoid(-_sign(y) * u),
        curvature=lambda u, y: jax.nn.sigmoid(u) * jax.nn.sigmoid(-u),
        steepest=1.0,
        encode=lambda y: y,
    ),
}


def design(x: Any, intercept: bool) -> jax.Array:
    """Return x [n, *features] as [n, d], with a last column of ones if `intercept`."""
    flat = jnp.asarray(x).reshape(len(x), -1)
    return jnp.append(flat, jnp.ones_like(flat[:, :1]), -1) if intercept else flat


def hessian(loss: Loss, x: Any, y: Any, weight: Any, ridge: Any, w: Any) -> jax.Array:
    """Return the objective's second derivative at w [D, D]."""
    curved = weight * loss.curvature(x @ w, y)
    return (x * curved[:, None]).T @ x + ridge * jnp.eye(x.shape[1], dtype=x.dtype)


def minimise(loss: Loss, x: Any, y: Any, weight: Any, ridge: Any) -> jax.Array:
    """Return w* [D], by Newton steps of O(n D^2) each; not a number if there is none.

    x [n, D] has the constant feature, if there is one; y [n] are encoded. The ridge is
    n lambda; 0 needs a Hessian of full rank and labels that no plane separates.
    """

    def objective(w: jax.Array) -> jax.Array:
        return (weight * loss.value(x @ w, y)).sum() + ridge * (w @ w) / 2

    def direction(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient = x.T @ (weight * loss.slope(x @ w, y)) + ridge * w
        factor = cho_factor(hessian(loss, x, y, weight, ridge, w))
        return gradient, cho_solve(factor, gradient)

    return _newton(objective, direction, jnp.zeros(x.shape[1], x.dtype))


class Known(NamedTuple):
    """Records that all runs share, with the curvature at their own minimiser."""

    x: jax.Array  # [n, D]
    y: jax.Array  # [n] encoded
    weight: jax.Array  # [n]
    ridge: Any
    w: jax.Array  # [D] minimiser of the shared records alone
    inverse: jax.Array  # [D, D] inverse Hessian there


def known(loss: Loss, x: Any, y: Any, weight: Any, ridge: Any) -> Known:
    """Fit the shared records once; under a vmap over runs this stays one fit."""
    w = minimise(loss, x, y, weight, ridge)
    inverse = jnp.linalg.inv(hessian(loss, x, y, weight, ridge, w))
    return Known(x, y, weight, ridge, w, inverse)


def refit(loss: Loss, shared: Known, x: Any, y: Any, weight: Any, out: Any) -> Any:
    """Return w* [D] of the shared records but one, and one more: O(n D) a step.

    Newton's method whose linear systems are solved by conjugate gradients. The inverse
    Hessian of the shared records preconditions them, so a handful of products with the
    shared x suffices, and over many runs each is one large matrix product. x [D], y []
    (encoded) and weight [] are those of the record that joins; `out` [] is the row of
    the shared records that is left out, None = none.
    """
    n = len(shared.y)
    kept = shared.weight
    if out is not None:
        kept = kept * (jnp.arange(n) != out)

    def objective(w: jax.Array) -> jax.Array:
        mine = weight * loss.value(x @ w, y) + shared.ridge * (w @ w) / 2
        return (kept * loss.value(shared.x @ w, shared.y)).sum() + mine

    def direction(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        u, u_new = shared.x @ w, x @ w
        gradient = shared.x.T @ (kept * loss.slope(u, shared.y))
        gradient += weight * loss.slope(u_new, y) * x + shared.ridge * w
        curved = kept * loss.curvature(u, shared.y)
        curved_new = weight * loss.curvature(u_new, y)

        def product(v: jax.Array) -> jax.Array:
            across = shared.x.T @ (curved * (shared.x @ v))
            return across + curved_new * (x @ v) * x + shared.ridge * v

        return gradient, _conjugate_gradients(product, gradient, shared.inverse)

    return _newton(objective, direction, shared.w)


def _newton(objective: Callable, direction: Callable, w: jax.Array) -> jax.Array:
    """Iterate w - step until the relative step is below sqrt(eps): see the module.

    After `MOST_STEPS` that are all longer w is not a number: where the iteration stops
    says nothing about a minimiser, and a row of it is flagged in place of believed.
    """
    small = jnp.finfo(w.dtype).eps ** 0.5

    def go_on(state: tuple) -> jax.Array:
        _, moved, steps = state
        return moved & (steps < MOST_STEPS)

    def step(state: tuple) -> tuple:
        w, _, steps = state
        gradient, full = direction(w)
        new = _backtrack(objective, w, full, gradient @ full)
        change = jnp.linalg.norm(new - w)
        return new, change > small * jnp.linalg.norm(new), steps + 1

    w, moved, _ = jax.lax.while_loop(go_on, step, (w, jnp.array(True), 0))
    return jnp.where(moved, jnp.nan, w)


def _backtrack(objective: Callable, w: Any, full: Any, descent: Any) -> jax.Array:
    """Return w - s full, s the first of 1, 1/2, 1/4, ... that lowers the objective."""
    start = objective(w)
    # what rounding alone can add: near the minimum the full step is the right one
    slack = 100 * jnp.finfo(w.dtype).eps * jnp.abs(start)

    def too_long(state: tuple) -> jax.Array:
        size, value = state
        return ~(value <= start - size * descent / 10 + slack) & (size > 1e-8)

    def halve(state: tuple) -> tuple:
        size = state[0] / 2
        return size, objective(w - size * full)

    one = jnp.ones((), w.dtype)
    return w - jax.lax.while_loop(too_long, halve, (one, objective(w - full)))[0] * full


def _conjugate_gradients(product: Callable, b: Any, inverse: Any) -> jax.Array:
    """Solve H v = b to 1e-6 relative in the preconditioner's norm."""

    def go_on(state: tuple) -> jax.Array:
        _, _, _, rz, steps = state
        return (rz > 1e-12 * first) & (steps < MOST_INNER)

    def step(state: tuple) -> tuple:
        v, residual, along, rz, steps = state
        image = product(along)
        size = rz / (along @ image)
        v, residual = v + size * along, residual - size * image
        z = inverse @ residual
        new = residual @ z
        return v, residual, z + new / rz * along, new, steps + 1

    z = inverse @ b
    first = b @ z
    start = (jnp.zeros_like(b), b, z, first, 0)
    return jax.lax.while_loop(go_on, step, start)[0]
