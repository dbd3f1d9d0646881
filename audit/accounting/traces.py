"""Traces and spectral norms of matrices that are known by their quadratic forms alone.

A form maps directions u [m, d], one per record, to u^T A u [m], for m positive
semidefinite matrices A at once: ||J u||^2 for the Jacobian J of a record's
contribution. It can be differentiated, and A u is half of its gradient. One probe is
one evaluation of the form; one record's probes have a key each.

The variance of one probe's u^T A u about Tr A, divided by the number of probes where
they are independent:

    gaussian      2 ||A||_F^2
    rademacher    2 (||A||_F^2 - sum_i A_ii^2)
    coordinate    (d sum_i A_ii^2 - (Tr A)^2) (d - probes) / (d - 1)
    coordinate_replaced    d sum_i A_ii^2 - (Tr A)^2

`hutch++` (Meyer et al. 2021) finds the span of the largest eigenvectors and probes what
is left; `exact` has no variance and needs d evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Form = Callable[[jax.Array], jax.Array]  # u [m, d] -> u^T A u [m]
Law = Literal[
    "exact", "gaussian", "rademacher", "coordinate", "coordinate_replaced", "hutch++"
]
AT_ONCE = 8  # evaluations of a form in memory at a time


@jax.tree_util.register_static
@dataclass(frozen=True)
class Probing:
    """How Fisher information is read along a run; part of what is compiled."""

    law: Law = "rademacher"
    probes: int = 8  # per record and step
    every: int = 1  # steps of which one, drawn at random, stands for all of them
    lanczos: int = 0  # products for the spectral norm of each step; 0 = it is not read
    released: bool = False  # whether the reading comes with the release of its run


class Traced(NamedTuple):
    """Estimates of traces, without bias; the variance counts probes alone."""

    trace: jax.Array  # [m]
    variance: jax.Array  # [m] unbiased; nan = one probe cannot tell
    norm: jax.Array | None = None  # [m] spectral norms; of a sum, the sum of them

    def scaled(self, factor: jax.Array | float) -> Traced:
        """Return the estimates of `factor` times the matrices."""
        norm = None if self.norm is None else factor * self.norm
        return Traced(factor * self.trace, factor**2 * self.variance, norm)


def estimate(
    how: Probing, key: jax.Array, form: Form, shape: tuple[int, int], dtype: Any
) -> Traced:
    """Return the traces of the matrices of a form of directions of `shape` [m, d].

    Raises:
      ValueError: if there are more probes than coordinates, for `coordinate`; fewer
        than 4, for `hutch++`.
    """
    d = shape[1]
    if how.law == "exact":
        each = lambda i: form(jnp.zeros(shape, dtype).at[:, i].set(1))
        total = jax.lax.map(each, jnp.arange(d), batch_size=AT_ONCE).sum(0)
        return Traced(total, jnp.zeros_like(total))
    if how.law == "hutch++":
        return _sketched(key, form, shape, dtype, how.probes)
    directions = _directions(how.law, key, how.probes, shape, dtype)
    values = _each(form, directions)
    # without replacement: d probes have no error
    remaining = 1 - how.probes / d if how.law == "coordinate" else 1.0
    return Traced(values.mean(0), remaining * _variance(values))


def _each(form: Form, directions: jax.Array) -> jax.Array:
    """Return the form of many directions [k, m, d], AT_ONCE in memory at a time."""
    if len(directions) <= AT_ONCE:
        return jax.vmap(form)(directions)
    return jax.lax.map(form, directions, batch_size=AT_ONCE)


def _variance(values: jax.Array) -> jax.Array:
    """Return the variance of the mean of independent values [probes, m]."""
    n = len(values)
    return values.var(0, ddof=1) / n if n > 1 else jnp.full_like(values[0], jnp.nan)


def _directions(
    law: Law, key: jax.Array, probes: int, shape: tuple[int, int], dtype: Any
) -> jax.Array:
    """Return u [probes, m, d] with E u u^T the identity."""
    m, d = shape
    if law == "gaussian":
        return jax.random.normal(key, (probes, m, d), dtype)
    if law == "rademacher":
        return jax.random.rademacher(key, (probes, m, d), dtype)
    if law == "coordinate_replaced":
        chosen = jax.random.randint(key, (probes, m), 0, d)
    else:
        if probes > d:
            raise ValueError(f"probes={probes} is more than the {d} coordinates of x")
        shuffled = lambda k: jax.random.permutation(k, d)[:probes]
        chosen = jax.vmap(shuffled, out_axes=1)(jax.random.split(key, m))
    return d**0.5 * jax.nn.one_hot(chosen, d, dtype=dtype)


def product(form: Form, u: jax.Array) -> jax.Array:
    """Return A u [m, d], half of the gradient of u^T A u."""
    return jax.grad(lambda u: form(u).sum())(u) / 2


def _sketched(
    key: jax.Array, form: Form, shape: tuple[int, int], dtype: Any, probes: int
) -> Traced:
    """Return Tr(Q^T A Q) + Tr((I - Q Q^T) A), the latter by probes; Q spans A S.

    A third of the probes are products A S, a third columns of Q, which is exact.
    """
    if probes < 4:
        raise ValueError(f"probes={probes}: hutch++ needs 4 or more")
    k, keys = probes // 3, jax.random.split(key)
    sketch = _directions("rademacher", keys[0], k, shape, dtype)
    span = jax.vmap(lambda u: product(form, u))(sketch)  # [k, m, d]
    q = jnp.linalg.qr(span.transpose(1, 2, 0))[0]  # [m, d, k]
    inside = _each(form, q.transpose(2, 0, 1)).sum(0)
    u = _directions("rademacher", keys[1], probes - 2 * k, shape, dtype)
    u = u - jnp.einsum("mdk,mek,pme->pmd", q, q, u)
    rest = _each(form, u)
    return Traced(inside + rest.mean(0), _variance(rest))


def spectral_norm(
    key: jax.Array, form: Form, shape: tuple[int, int], dtype: Any, steps: int = 12
) -> jax.Array:
    """Return the largest eigenvalue of every matrix [m], by Lanczos' iteration.

    It is approached from below, exact after as many steps as there are distinct
    eigenvalues. Vectors are made orthogonal to all earlier ones, twice.
    """
    v = jax.random.normal(key, shape, dtype)
    v = v / jnp.linalg.norm(v, axis=-1, keepdims=True)
    steps = min(steps, shape[1])

    def step(carry: tuple, i: jax.Array) -> tuple[tuple, jax.Array]:
        v, basis = carry
        basis = basis.at[i].set(v)
        image = product(form, v)
        w = image
        for _ in range(2):
            w = w - jnp.einsum("imd,im->md", basis, jnp.einsum("imd,md->im", basis, w))
        length = jnp.linalg.norm(w, axis=-1, keepdims=True)
        # an invariant subspace is left: zero vectors add zero eigenvalues alone
        apart = length > 1e-6 * jnp.linalg.norm(image, axis=-1, keepdims=True)
        return (jnp.where(apart, w / jnp.where(apart, length, 1), 0), basis), image

    start = v, jnp.zeros((steps, *shape), v.dtype)
    carry, images = jax.lax.scan(step, start, jnp.arange(steps))
    basis = carry[1]
    projected = jnp.einsum("imd,jmd->mij", basis, images)
    projected = (projected + projected.transpose(0, 2, 1)) / 2
    return jnp.linalg.eigvalsh(projected)[:, -1]
