"""Fisher information loss of a fitted linear model, at every granularity.

The minimiser moves with record i's features and label by (Hannun et al. 2021; the
implicit function theorem)

    J_i = d w* / d (x_i, y_i) = -omega_i [ a A_F + b (A x_i) w_F^T , -A x_i ]

with A the inverse Hessian, a and b the loss's slope and curvature at <w*, x_i>, omega_i
the record's weight, and _F the columns that belong to features (all but a constant
one). Gaussian noise of standard deviation s makes the Fisher information J^T J / s^2:
everything here is at s = 1. Nothing of the size of all J_i is ever formed:

    J_i J_i^T = omega_i^2 [ a^2 G + a b (v z^T + z v^T) + c z z^T ]
    G = A_F A_F^T,   v = A_F w_F,   z = A x_i,   c = b^2 ||w_F||^2 + (label private)

The derivation is in docs/bounds/fisher_information_loss.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from audit.mechanisms.glm import losses

HALVINGS = 60  # of a bracket a few times the eigenvalue: to the last bit in float64
BLOCK = 2048  # records whose eigenvalues are sought together


class Fitted(NamedTuple):
    """A minimiser with what its derivatives are made of."""

    w: jax.Array  # [D]
    inverse: jax.Array  # [D, D] A
    x: jax.Array  # [n, D] records asked about, with the constant feature if any
    slope: jax.Array  # [n] a
    curvature: jax.Array  # [n] b
    weight: jax.Array  # [n] omega
    features: int  # F: the first so many of the D columns


def fitted(
    loss: losses.Loss, w: Any, hessian: Any, x: Any, y: Any, weight: Any, features: int
) -> Fitted:
    """Return the derivatives at w* of the records x [n, D] with encoded labels y."""
    u, inverse = x @ w, jnp.linalg.inv(hessian)
    a, b = loss.slope(u, y), loss.curvature(u, y)
    return Fitted(w, inverse, x, a, b, weight, features)


def chosen(at: Fitted, rows: Any) -> Fitted:
    """Return the derivatives of the records at `rows` [m] alone."""
    x, a, b, omega = (v[rows] for v in (at.x, at.slope, at.curvature, at.weight))
    return at._replace(x=x, slope=a, curvature=b, weight=omega)


def trace(at: Fitted) -> jax.Array:
    """Return ||d w* / d x_i||_F^2 of every record [n]; the label is public.

    omega^2 [ a^2 ||A_F||_F^2 + 2 a b (v . z) + b^2 ||w_F||^2 ||z||^2 ].
    """
    wide, w, v, z = _parts(at)
    a, b = at.slope, at.curvature
    each = a**2 * (wide**2).sum() + 2 * a * b * (z @ v)
    return at.weight**2 * (each + b**2 * (w @ w) * (z**2).sum(1))


def example(at: Fitted, *, label: bool) -> jax.Array:
    """Return the spectral norm of every record's Fisher information [n], O(D) each.

    The square of Hannun et al.'s (2021) eta for one example. `label` says whether the
    label is private too, a real number like the features.
    """
    wide, w, v, z = _parts(at)
    square, basis = jnp.linalg.eigh(wide @ wide.T)
    square = jnp.maximum(square, 0)
    c = at.curvature**2 * (w @ w) + label
    v, z, mixed = basis.T @ v, z @ basis, at.curvature * at.slope
    return at.weight**2 * _largest(square, v, z, at.slope, mixed, c)


def attribute(at: Fitted, columns: Any, basis: Any = None) -> jax.Array:
    """Return the spectral norm of the Fisher information about some features [n].

    The attribute is `columns` [s]. `basis` [s, r] are orthonormal directions they can
    move in; None = all. One-hot columns sum to one: `sum_zero(s)` (Hannun et al.'s
    constrained loss).
    """
    wide, w, _, z = _parts(at)
    columns = jnp.asarray(columns)
    wide, w = wide[:, columns], w[columns]
    if basis is not None:
        wide, w = wide @ basis, basis.T @ w
    a, b, z_wide = at.slope, at.curvature, z @ wide
    cross = z_wide[:, :, None] * w  # [n, s, s]
    gram = (a**2)[:, None, None] * (wide.T @ wide)
    gram += (a * b)[:, None, None] * (cross + cross.swapaxes(1, 2))
    gram += (b**2 * (z**2).sum(1))[:, None, None] * jnp.outer(w, w)
    return at.weight**2 * jnp.linalg.eigvalsh(gram)[:, -1]


def sum_zero(s: int) -> jax.Array:
    """Return an orthonormal basis [s, s - 1] of the vectors whose sum is zero."""
    ones = jnp.ones((s, 1))
    return jnp.linalg.qr(jnp.concatenate([ones, jnp.eye(s)[:, 1:]], 1))[0][:, 1:]


def group(at: Fitted, rows: Any = None, *, label: bool) -> jax.Array:
    """Return the spectral norm [] of the Fisher information about the records `rows`.

    J = [J_1 ... J_m] has the norm of sum_i J_i J_i^T, a D x D matrix: the m (F + 1)
    columns are never written down. None stands for the whole set; `label` says whether
    the labels are private too.
    """
    if rows is not None:
        at = chosen(at, jnp.asarray(rows))
    wide, w, v, _ = _parts(at)
    a, b, square = at.slope, at.curvature, at.weight**2
    mixed = at.inverse @ (at.x.T @ (square * a * b))
    outer = (at.x * (square * (b**2 * (w @ w) + label))[:, None]).T @ at.x
    total = (square * a**2).sum() * (wide @ wide.T)
    total += jnp.outer(v, mixed) + jnp.outer(mixed, v)
    return jnp.linalg.eigvalsh(total + at.inverse @ outer @ at.inverse)[-1]


def _parts(at: Fitted) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return A_F [D, F], w_F, v = A_F w_F and every z = A x_i [n, D]."""
    wide, w = at.inverse[:, : at.features], at.w[: at.features]
    return wide, w, wide @ w, at.x @ at.inverse


def _largest(square: Any, v: Any, z: Any, slope: Any, mixed: Any, c: Any) -> jax.Array:
    """Return the largest eigenvalue of a^2 diag(g) + ab (v z^T + z v^T) + c z z^T [n].

    Above any t there are as many as of D = a^2 diag(g), plus the positive ones of K,
    minus one (Haynsworth's inertia), and bisection finds where none is left:

        K = [[c - (ab)^2 vv, -1 - ab vz], [-1 - ab vz, -zz]],  xy = x^T (D - t)^-1 y

    The largest can lie below the largest of D, but not below its second. The g are
    `square` [D], ascending; v [D] and z [n, D] are in their eigenbasis; the others [n].
    """

    def one(z: jax.Array, a: jax.Array, ab: jax.Array, c: jax.Array) -> jax.Array:
        bulk = a**2 * square
        most = bulk[-1] + 2 * jnp.abs(ab) * jnp.linalg.norm(v) * jnp.linalg.norm(z)
        most += c * (z @ z)
        least = bulk[-2] if len(square) > 1 else jnp.zeros_like(most)

        def any_above(t: jax.Array) -> jax.Array:
            gap = bulk - t
            rest = 1 / jnp.where(gap == 0, jnp.finfo(t.dtype).tiny, gap)
            vv, vz, zz = (v**2 * rest).sum(), (v * z * rest).sum(), (z**2 * rest).sum()
            corner, side = c - ab**2 * vv, 1 + ab * vz
            determinant = -corner * zz - side**2
            both = jnp.where(corner - zz > 0, 2, 0)
            positive = jnp.where(determinant < 0, 1, both)
            return (gap > 0).sum() + positive - 1 > 0

        def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple:
            middle = (ends[0] + ends[1]) / 2
            over = any_above(middle)
            return jnp.where(over, middle, ends[0]), jnp.where(over, ends[1], middle)

        low, high = jax.lax.fori_loop(0, HALVINGS, halve, (least, most))
        return (low + high) / 2

    each = (z, slope, mixed, c)
    return jax.lax.map(lambda r: one(*r), each, batch_size=BLOCK)
