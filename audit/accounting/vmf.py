"""The von Mises-Fisher law on the unit sphere of R^K: moments, and an exact sampler.

Its density, with respect to the uniform law, is exp(kappa <mu, y> - L(kappa)): a unit
mean direction mu, and a concentration kappa >= 0 (0 is uniform). Everything depends
on the cosine t = <mu, y>, whose density is proportional to
e^(kappa t) (1 - t^2)^((K-3)/2). For K = 1 the sphere is {-1, 1}.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from audit.rng import normal

# A proposal is accepted with probability .657 at least (attained as kappa grows, at
# K = 2), so that all of them are rejected with probability below 1e-18.
PROPOSALS = 40
_SERIES = 160  # terms, where kappa^2 <= 40 K: the ratio of term m is at most 20 / m
_FEW = 256  # dimensions in which a random direction may be close to a given one
_STEPS = 64  # of the recurrence for the mean cosine


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
    1e-10 relative.
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
    b = m / (2 * kappa + jnp.sqrt(4 * kappa**2 + float(m) ** 2))
    x0 = (1 - b) / (1 + b)
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
