"""Fisher information: traces of J^T J, and what subsampling does to them.

dFIL of a record is Tr I / d, I its Fisher information matrix and d its dimension (Guo et
al. 2022). For Gaussian noise of standard deviation s on a sum, one step contributes
factor x ||J||_F^2 / s^2 with J the Jacobian of the record's own contribution, and steps
add (Theorem 3). The factor belongs to the sampler, 1 / s^2 to the noise; this module
owns the traces and kappa.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

SWEEP = 64  # Jacobian-vector products at a time
NODES = 4001  # trapezoid rule on [-12, 12]; agrees with adaptive quadrature to 1e-13
GRID = 64  # candidate shifts where the supremum need not be at the largest one


def exact_trace(fn: Callable, x: jax.Array) -> jax.Array:
    """Return ||d fn / d x||_F^2 by one Jacobian-vector product per coordinate of x.

    Args:
      fn: x [*features] -> pytree.
      x: one example.
    """

    def column(i: jax.Array) -> jax.Array:
        basis = jnp.zeros(x.size, x.dtype).at[i].set(1).reshape(x.shape)
        return _square(jax.jvp(fn, (x,), (basis,))[1])

    return jax.lax.map(column, jnp.arange(x.size), batch_size=SWEEP).sum()


def _square(tree: Any) -> jax.Array:
    return (ravel_pytree(tree)[0] ** 2).sum()


def hutchinson(
    key: jax.Array,
    fn: Callable,
    x: jax.Array,
    probes: int,
    law: Literal["rademacher", "gaussian", "coordinate"] = "rademacher",
) -> tuple[jax.Array, jax.Array]:
    """Estimate ||d fn / d x||_F^2 = E ||J u||^2 from random directions u.

    E u u^T is the identity for the first two laws. `coordinate` draws directions e_i
    without replacement and scales by d, the estimator of Guo et al. (whose code draws
    the same coordinate every time; here every probe has its own).

    Args:
      key: split once a probe.
      fn: x [*features] -> pytree.
      x: one example.
      probes: how many directions; at most d for `coordinate`.
      law: of a direction.

    Returns:
      The estimate, unbiased, and its standard error; the latter is nan for one probe.
    """
    d = x.size
    if law == "coordinate":
        chosen = jax.random.permutation(key, d)[:probes]
        directions = jnp.sqrt(d) * jax.nn.one_hot(chosen, d, dtype=x.dtype)
    else:
        draw = {"rademacher": jax.random.rademacher, "gaussian": jax.random.normal}[law]
        keys = jax.random.split(key, probes)
        directions = jax.vmap(lambda k: draw(k, (d,), x.dtype))(keys)
    value = jax.vmap(lambda u: _square(jax.jvp(fn, (x,), (u.reshape(x.shape),))[1]))(
        directions
    )
    spread = value.std(ddof=1) if probes > 1 else jnp.full((), jnp.nan)
    finite = jnp.sqrt((d - probes) / (d - 1)) if law == "coordinate" else 1.0
    return value.mean(), finite * spread / jnp.sqrt(probes)


def mixture_moments(q: Any, nu: Any) -> tuple[jax.Array, jax.Array]:
    """Return a = E[r] and b = E[r xi^2], the two moments of a subsampled Gaussian step.

    r = sigmoid(log(q / (1-q)) - nu xi + nu^2 / 2) is the posterior probability that the
    record took part, xi ~ N(0, 1) the noise along the line between the two means, given
    that it did. With u that line's direction the Fisher information of the step is
    q / rho^2 J^T [a (Id - u u^T) + b u u^T] J (derived in docs/bounds/cramer_rao.md).

    Args:
      q: probability of taking part, in (0, 1]; may be traced.
      nu: distance of the two means over the noise's standard deviation; may be traced.
    """
    xi = jnp.linspace(-12.0, 12.0, NODES)
    density = jnp.exp(-(xi**2) / 2) / jnp.sqrt(2 * jnp.pi) * (xi[1] - xi[0])
    logit = jnp.log(q) - jnp.log1p(-jnp.asarray(q, xi.dtype))
    r = jax.nn.sigmoid(logit - nu * xi + nu**2 / 2)
    return (density * r).sum(), (density * r * xi**2).sum()


def subsampling_factor(q: Any, nu: Any) -> jax.Array:
    """Return kappa(q, nu) = sup over nu' <= nu of max(a, b), at most 1.

    Tr I <= q kappa ||J||_F^2 / rho^2 for one step with independent uniform batches: the
    exact Gaussian replacement of Guo et al. (2022), Theorem 4, which needs no epsilon.
    a is increasing in nu because it is an f-divergence (proved); b is increasing for
    q <= 1/2 (verified numerically), so the supremum is at nu; for larger q it is taken
    over a grid.

    Args:
      q: probability of taking part; may be traced.
      nu: largest distance of the two means over the noise's standard deviation, which
        is the add-or-remove shift for Poisson batches and the replace-one shift for
        batches of fixed size; may be traced.
    """
    shares = jnp.linspace(1.0 / GRID, 1.0, GRID)
    a, b = jax.vmap(lambda share: mixture_moments(q, share * nu))(shares)
    at_nu = jnp.maximum(a[-1], b[-1])
    over_grid = jnp.maximum(a, b).max()
    return jnp.minimum(1.0, jnp.where(jnp.asarray(q) <= 0.5, at_nu, over_grid))


def poisson_trace(q: Any, square: Any, along: Any, nu: Any) -> jax.Array:
    """Return the factor-free trace of a Poisson step for one record, no worst case.

    q (a (||J||_F^2 - ||u^T J||^2) + b ||u^T J||^2), to be divided by the noise variance.

    Args:
      q: sampling probability.
      square: ||J||_F^2 of the clipped contribution.
      along: ||u^T J||^2, its part along the contribution itself.
      nu: norm of the contribution over the noise's standard deviation.
    """
    a, b = mixture_moments(q, nu)
    return q * (a * square + (b - a) * along)
