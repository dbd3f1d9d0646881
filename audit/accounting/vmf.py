"""The von Mises-Fisher law on the unit sphere of R^K: moments, and an exact sampler.

Its density, with respect to the uniform law, is exp(kappa <mu, y> - L(kappa)): a unit
mean direction mu, and a concentration kappa >= 0 (0 is uniform). Everything depends
on the cosine t = <mu, y>, whose density is proportional to
e^(kappa t) (1 - t^2)^((K-3)/2). For K = 1 the sphere is {-1, 1}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import special

from audit.rng import normal, normal_like

# A proposal is accepted with probability .657 at least (attained as kappa grows, at
# K = 2), so that all of them are rejected with probability below 1e-18.
PROPOSALS = 40
_SERIES = 160  # terms, where kappa^2 <= 40 K: the ratio of term m is at most 20 / m
_FEW = 256  # dimensions in which a random direction may be close to a given one
_STEPS = 64  # of the recurrence for the mean cosine
# Squared length of what a unit vector adds to the span of others, below which float32
# cannot tell that it adds anything.
_RANK = 1e-5


def mean_cosine(dimension: int, concentration: Any) -> Any:
    """Return A_K(kappa) = E <mu, y> = I_{K/2}(kappa) / I_{K/2 - 1}(kappa), in [0, 1).

    The ratio R_v = I_{v+1} / I_v by its recurrence R_{v-1} = kappa / (2 v + kappa R_v)
    downwards, where errors shrink, from a two-term uniform approximation far above. K
    is static; kappa >= 0 is NumPy, JAX or a number of any shape. In float64 exact to
    1e-10 for K from 1 to 1e7 and kappa up to 3e5.
    """
    kappa = concentration
    top = dimension / 2 - 1 + _STEPS
    a = top + 0.5
    h = (a * a + kappa * kappa) ** 0.5
    one_minus = 1 - a / (h * (a + h))
    ratio = kappa * one_minus / (a + (a * a + kappa * kappa * one_minus) ** 0.5)
    for k in range(_STEPS):
        ratio = kappa / (2 * (top - k) + kappa * ratio)
    return ratio


def log_mean_exp(dimension: int, concentration: Any) -> np.ndarray:
    """Return L(kappa) = log E e^(kappa t) under the uniform law, in float64.

    It is log 0F1(; K/2; kappa^2 / 4), L' = A_K, for kappa >= 0 of any shape; exact to
    2e-10 relative.
    """
    kappa = np.asarray(concentration, float)
    order = dimension / 2 - 1
    flat = kappa.reshape(-1)
    value = np.empty_like(flat)
    small = flat**2 <= 40 * dimension
    value[small] = _series(dimension, flat[small])
    large = _uniform if order >= 15 else _bessel
    value[~small] = large(order, flat[~small])
    return value.reshape(kappa.shape)[()]


def _series(dimension: int, kappa: np.ndarray) -> np.ndarray:
    """log1p of sum_m (kappa^2 / 4)^m / (m! (K/2)_m): all terms are positive."""
    m = np.arange(1, _SERIES + 1)
    ratios = (kappa[:, None] ** 2 / 4) / (m * (dimension / 2 + m - 1))
    return np.log1p(np.cumprod(ratios, 1).sum(1))


def _uniform(order: float, kappa: np.ndarray) -> np.ndarray:
    """Debye's expansion in 1 / order, Stirling's of Gamma cancelled against it."""
    z = kappa / order
    r = np.sqrt(1 + z**2)
    w, p = z**2 / (1 + r), 1 / r
    debye = (
        (3 * p - 5 * p**3) / 24,
        (81 * p**2 - 462 * p**4 + 385 * p**6) / 1152,
        (30375 * p**3 - 369603 * p**5 + 765765 * p**7 - 425425 * p**9) / 414720,
        (
            4465125 * p**4
            - 94121676 * p**6
            + 349922430 * p**8
            - 446185740 * p**10
            + 185910725 * p**12
        )
        / 39813120,
    )
    stirling = (
        1 / (12 * order)
        - 1 / (360 * order**3)
        + 1 / (1260 * order**5)
        - 1 / (1680 * order**7)
    )
    tail = sum(u / order**k for k, u in enumerate(debye, 1))
    return (
        order * (w - np.log1p(w / 2)) - np.log1p(z**2) / 4 + stirling + np.log1p(tail)
    )


def _bessel(order: float, kappa: np.ndarray) -> np.ndarray:
    """Few dimensions, kappa not small; beyond 1e5 by Hankel's expansion."""
    near = np.minimum(kappa, 1e5)
    log_ive = np.log(special.ive(order, near))
    term, hankel = np.ones_like(kappa), np.ones_like(kappa)
    for k in range(1, 7):
        term = -term * (4 * order**2 - (2 * k - 1) ** 2) / (k * 8 * kappa)
        hankel = hankel + term
    far = np.log(hankel) - np.log(2 * np.pi * kappa) / 2
    log_scaled = np.where(kappa > near, far, log_ive)
    return special.gammaln(order + 1) + order * np.log(2 / kappa) + log_scaled + kappa


# Sampling -----------------------------------------------------------------------------


def sample(key: jax.Array, mean: jax.Array, concentration: Any) -> jax.Array:
    """Draw one unit vector [K]; `vmap` for more. Exact, and safe in float32.

    y = t mu + sqrt(1 - t^2) v, v uniform on the unit sphere orthogonal to mu. It is not
    a number if no proposal was accepted, which has a probability below 1e-18.

    Args:
      key: used for this draw only.
      mean: [K] unit vector.
      concentration: kappa >= 0, may be traced.
    """
    (dimension,) = mean.shape
    of_cosine, of_tangent = jax.random.split(key)
    t, sine = sample_cosine(of_cosine, dimension, concentration, mean.dtype)
    if dimension == 1:
        return t * mean
    tangent = normal(of_tangent, mean.shape, mean.dtype)
    # in few dimensions it may be so close to mu that one pass leaves rounding errors
    for _ in range(2 if dimension < _FEW else 1):
        tangent = tangent - (tangent @ mean) * mean
        tangent = tangent / jnp.sqrt(tangent @ tangent)
    return t * mean + sine * tangent


def sample_cosine(
    key: jax.Array, dimension: int, concentration: Any, dtype: Any = float
) -> tuple[jax.Array, jax.Array]:
    """Draw the cosine t and its sine, without cancellation near t = 1.

    Rejection of Ulrich (1984) and Wood (1994), written around the mode x0 of the
    envelope: with m = K - 1, b = m / (2 kappa + sqrt(4 kappa^2 + m^2)) and zeta a
    Beta(m/2, m/2) less a half, t = x0 + delta. The Beta is half a coordinate of a
    uniform point of the sphere, R cos(2 pi U) with 1 - R^2 = U'^(2 / (m - 1)).
    K is static, kappa may be traced.
    """
    kappa = jnp.asarray(concentration, dtype)
    if dimension == 1:
        up = jax.random.bernoulli(key, jax.nn.sigmoid(2 * kappa))
        return jnp.where(up, 1, -1).astype(dtype), jnp.zeros((), dtype)
    m = dimension - 1
    b, x0 = envelope(m, kappa)
    draws = jax.random.uniform(key, (3, PROPOSALS), dtype)
    height, radius, turn = jnp.maximum(draws, jnp.finfo(dtype).tiny)
    # m = 1: the circle, R = 1
    square = -jnp.expm1(2 * jnp.log(radius) / (m - 1)) if m > 1 else 1.0
    zeta = jnp.sqrt(square) * jnp.cos(2 * jnp.pi * turn) / 2
    delta = -4 * b * zeta / ((1 + b) * ((1 + b) / 2 - (1 - b) * zeta))
    one_minus_square = 4 * b / (1 + b) ** 2
    excess = kappa * delta + m * jnp.log1p(-x0 * delta / one_minus_square)
    accepted = excess >= jnp.log(height)
    chosen = jnp.where(accepted.any(), delta[jnp.argmax(accepted)], jnp.nan)
    t = x0 + chosen
    sine = jnp.sqrt(jnp.maximum((2 * b / (1 + b) - chosen) * (1 + t), 0))
    return t, sine


def envelope(m: int, kappa: Any) -> tuple[Any, Any]:
    """Return b and x0 = (1 - b) / (1 + b) of `sample_cosine`.

    1 - b has no digits in float32 where m is large beside kappa: x0 is written without
    it.
    """
    root = jnp.sqrt(4 * kappa**2 + float(m) ** 2)
    return m / (2 * kappa + root), 2 * kappa / (m + root)


def sample_sum(
    key: jax.Array,
    concentration: Any,
    weight: jax.Array,
    gram: jax.Array,
    inner: Callable,
    combine: Callable,
    like: Any,
) -> Any:
    """Draw sum_i w_i y_i, each y_i around a vector u_i of R^K, without any of the y_i.

    y_i = t_i m_i + s_i v_i with m_i = u_i / ||u_i||, v_i = P_i z_i / ||P_i z_i|| and
    P_i the projection off m_i. Of z_i only the part in the span M of all u, which has
    dimension r, is drawn: B numbers instead of K. Off M the z_i have independent
    uniform directions, and squared lengths of law chi^2 with K - r degrees of freedom.
    A sum of such vectors has a uniform direction, one draw for all, and a length that
    grows vector by vector, |a + b|^2 = |a|^2 + |b|^2 + 2 |a| |b| cos, by the cosines of
    independent directions. So B draws cost one Gaussian vector and B^3 operations; the
    law is exact. Records of weight 0 change nothing, whatever their u is.

    Args:
      key: used for this sum only.
      concentration: kappa >= 0, around a vector of norm 1; may be traced. Around a
        shorter vector it is kappa times the norm, around zero y_i is uniform.
      weight: [B].
      gram: [B, B] of <u_i, u_j>; K is at least B + 2.
      inner: (vector like `like`) -> its inner products [B] with the u_i.
      combine: coefficients [B] -> sum_i c_i u_i, like `like`.
      like: a pytree of K numbers, for its shapes.

    Raises:
      ValueError: if K is less than B + 2.
    """
    leaves = jax.tree.leaves(like)
    count, dimension = len(weight), sum(leaf.size for leaf in leaves)
    dtype = jnp.result_type(*leaves)
    if dimension < count + 2:
        raise ValueError(f"{count} draws at once need {count + 2} dimensions or more")
    keys = jax.random.split(key, 5)
    square = jnp.where(weight != 0, jnp.diagonal(gram), 0)
    some = square > 0
    norm = jnp.where(some, jnp.sqrt(jnp.where(some, square, 1)), 1)
    unit = some / norm  # of contributions to directions
    among = jnp.where(some[:, None] & some, gram * unit[:, None] * unit, 0)
    # an orthonormal basis of M: directions @ basis; a row of `means` is an m_i in it
    means, basis, spans = _factor(among)

    one = lambda k, kappa: sample_cosine(k, dimension, kappa, dtype)
    cosine, sine = jax.vmap(one)(
        jax.random.split(keys[0], count), concentration * jnp.where(some, norm, 0)
    )
    cosine, sine = jnp.where(some, cosine, 0), jnp.where(some, sine, 1)
    inside = jnp.where(spans, normal(keys[1], gram.shape, dtype), 0)
    along = (inside * means).sum(1) / jnp.where(some, (means**2).sum(1), 1)
    inside = inside - along[:, None] * means
    free = (dimension - spans.sum()).astype(dtype)  # at least 2
    off, other = (
        _chi_square(keys[2], free, count),
        _chi_square(keys[3], free - 1, count),
    )
    scale = weight * sine / jnp.sqrt((inside**2).sum(1) + off)

    turns, vector = normal_like(keys[4], (jnp.zeros(count, dtype), like))
    turns = turns / jnp.sqrt(turns**2 + other)

    def longer(square: Any, step: tuple) -> tuple:
        more, turn = step  # the signed length of one vector, its cosine with the sum
        return square + more**2 + 2 * jnp.sqrt(square) * more * turn, None

    zero = jnp.zeros((), dtype)
    length = jax.lax.scan(longer, zero, (scale * jnp.sqrt(off), turns))[0]
    shadow = basis.T @ (unit * inner(vector))  # of the one vector on M
    off_m = optax.tree.norm(vector, squared=True) - shadow @ shadow
    ratio = jnp.sqrt(jnp.maximum(length, 0) / off_m)
    parts = weight * cosine + basis @ (inside.T @ scale - ratio * shadow)
    return jax.tree.map(lambda a, b: a + ratio * b, combine(unit * parts), vector)


def _factor(gram: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return L [B, B] with gram = L L^T, L^-T, and which columns [B] are not zero.

    By Cholesky, in the vectors' order; a vector in the span of those before adds no
    column to L, nor to its inverse. Unlike eigenvectors, L moves little where rounding
    moves the matrix. LAPACK would do the same, but only in one program at a time
    (`engine.cores`).
    """
    rows = jnp.arange(len(gram))

    def column(k: Any, carry: tuple) -> tuple:
        # a column of L is a row here, which memory favours
        columns, inverse, spans = carry
        before = columns[:, k]  # row k of L up to its diagonal
        rest = gram[k] - before @ columns
        new = rest[k] > _RANK
        root = jnp.sqrt(jnp.where(new, rest[k], 1))
        part = jnp.where(new & (rows >= k), rest / root, 0)
        solved = jnp.where(new, ((rows == k) - before @ inverse) / root, 0)
        return columns.at[k].set(part), inverse.at[k].set(solved), spans.at[k].set(new)

    start = jnp.zeros_like(gram), jnp.zeros_like(gram), jnp.zeros(len(gram), bool)
    columns, inverse, spans = jax.lax.fori_loop(0, len(gram), column, start)
    return columns.T, inverse.T, spans


def _chi_square(key: jax.Array, freedom: Any, count: int) -> jax.Array:
    return 2 * jax.random.gamma(key, freedom / 2, (count,))
