"""Fisher information: traces of J^T J, and what subsampling does to them.

dFIL of a record is Tr I / d, I its Fisher information matrix and d its dimension (Guo
et al. 2022). For Gaussian noise of standard deviation s on a sum, one step contributes
factor x ||J||_F^2 / s^2 with J the Jacobian of the record's own contribution, and steps
add (Theorem 3). The factor belongs to the sampler, 1 / s^2 to the noise; this module
owns the traces and kappa.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from audit.accounting.traces import Law, Probing, estimate

EDGE, NODES = 12.0, 4001  # trapezoid rule; agrees with adaptive quadrature to 1e-13
APART = 100.0  # a larger shift gives the same r = 1 at every node


def exact_trace(fn: Callable, x: jax.Array, *, batch: int = 64) -> jax.Array:
    """Return ||d fn / d x||_F^2 by one Jacobian-vector product per coordinate of x.

    `fn` is [*features] -> pytree; `batch` products are held in memory at a time.
    """
    _, push = jax.linearize(fn, x)

    def column(i: jax.Array) -> jax.Array:
        return _square(push(jnp.zeros(x.size, x.dtype).at[i].set(1).reshape(x.shape)))

    return jax.lax.map(column, jnp.arange(x.size), batch_size=batch).sum()


def _square(tree: Any) -> jax.Array:
    return (ravel_pytree(tree)[0] ** 2).sum()


def hutchinson(
    key: jax.Array,
    fn: Callable,
    x: jax.Array,
    probes: int,
    law: Law = "rademacher",
) -> tuple[jax.Array, jax.Array]:
    """Estimate ||d fn / d x||_F^2 = E ||J u||^2 from random directions u.

    The laws are those of `traces`; `coordinate` is that of Guo et al. (2022), whose
    code draws one coordinate only. `fn` is [*features] -> pytree, x one example.

    Returns:
      The estimate and its standard error; it and the error's square are unbiased. The
      error of one probe is nan.

    Raises:
      ValueError: as `traces.estimate`.
    """

    def form(u: jax.Array) -> jax.Array:
        return _square(jax.jvp(fn, (x,), (u.reshape(x.shape),))[1])[None]

    how = Probing(law, probes)
    read = estimate(how, key, form, (1, x.size), x.dtype)
    return read.trace[0], jnp.sqrt(read.variance[0])


def mixture_moments(q: Any, nu: Any) -> tuple[jax.Array, jax.Array]:
    """Return a = E[r] and b = E[r xi^2], the two moments of a subsampled Gaussian step.

    r = sigmoid(log(q / (1-q)) - nu xi + nu^2 / 2) is the posterior probability that the
    record took part, xi ~ N(0, 1) the noise along the line between the two means, given
    that it did. With u that line's direction the Fisher information of the step, given
    the rest of the batch, is q / rho^2 J^T [a (Id - u u^T) + b u u^T] J. Its average
    over the rest bounds what is released (docs/bounds/cramer_rao.md). q in (0, 1] and
    the distance nu of the means, over the noise's standard deviation, may be traced; nu
    may be inf.
    """
    xi = jnp.linspace(-EDGE, EDGE, NODES)
    # the spacing is computed exactly: differences of xi are off by 1e-4 in float32
    density = jnp.exp(-(xi**2) / 2) * (2 * EDGE / (NODES - 1) / (2 * math.pi) ** 0.5)
    logit = jnp.log(q) - jnp.log1p(-jnp.asarray(q, xi.dtype))
    nu = jnp.minimum(nu, APART)
    r = jax.nn.sigmoid(logit - nu * xi + nu**2 / 2)
    return (density * r).sum(), (density * r * xi**2).sum()


def subsampling_factor(q: Any, nu: Any) -> jax.Array:
    """Return kappa(q, nu) = sup over nu' <= nu of max(a, b), at most 1.

    Tr I <= q kappa ||J||_F^2 / rho^2 for one step with independent uniform batches: the
    exact Gaussian replacement of Guo et al. (2022), Theorem 4, which needs no epsilon.

    The supremum is at nu itself, for every q. Let t be the argument of r and s the
    sigmoid. By Stein's lemma, with ' for d / d nu of moments,

        a' = 2 nu E[s'(t) (1 - s(t))] >= 0,      b - a = nu^2 E[s''(t)],
        b' = 2 nu (E[xi^2 s'(t) (1 - s(t))] + E[s''(t)]),

    and t ~ N(m, nu^2) with m = log(q / (1-q)) + nu^2 / 2. As s'' is odd and negative
    above 0, E[s''(t)] has the sign of -m: while m <= 0 the larger moment is b and
    increases, afterwards it is a and increases.

    Args:
      q: probability of taking part; may be traced.
      nu: largest distance of the two means over the noise's standard deviation: the
        add-or-remove shift for Poisson batches, the replace-one shift for batches of
        fixed size; may be traced, may be inf.
    """
    return jnp.minimum(1.0, jnp.maximum(*mixture_moments(q, nu)))
