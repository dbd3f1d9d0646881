"""Samplers: who takes part in a step, and what that is worth in accounting.

A sampler owns its amplification, so that what is accounted is what was drawn:

===============  ============================  ===============================
sampler          Fisher factor on one step     Renyi curve
===============  ============================  ===============================
full_batch       1                             steps x one release
uniform_batch    q kappa(q, replace-one nu)    without replacement, replace-one
poisson          q kappa(q, add-remove nu)     Poisson, either adjacency
shuffled_epochs  1 on a visit, 0 otherwise     visits x one release, unamplified
===============  ============================  ===============================

kappa is the exact Gaussian replacement of Guo et al. (2022, Theorem 4), see
`fisher.subsampling_factor`. No theorem amplifies shuffled epochs, so nothing does here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit.accounting import fisher, rdp
from audit.rng import stream
from audit.types import Adjacency, Batch, Noise, Query, Sampler


def sensitivity(query: Query, adjacency: Adjacency) -> Any:
    """Return the L2 sensitivity of a sum of contributions under `adjacency`."""
    return {"replace_one": query.sensitivity, "add_remove": query.norm_bound}[adjacency]


# The readings that several samplers share ---------------------------------------------


def composed_rdp(
    noise: Noise, moved: Any, releases: int, orders: Any, adj: Adjacency
) -> Any:
    """Return the curve [orders] of a record that is in each of some releases, or None.

    `moved` is the sensitivity of each release under the adjacency.
    """
    if noise.rdp is None or not _covered(noise, adj):
        return None
    return releases * noise.rdp(np.asarray(orders), moved)


def composed_pld(noise: Noise, moved: Any, releases: int, adj: Adjacency) -> Any:
    """Return the privacy loss of the same record, or None."""
    if noise.law.pld is not None:
        return noise.law.pld(releases, 1.0) if _covered(noise, adj) else None
    if noise.stddev is None:
        return None
    return rdp.GaussianPrivacy(math.sqrt(releases) * (moved / noise.stddev))


def _covered(noise: Noise, adj: Adjacency) -> bool:
    """Whether there is a theorem: a noise that shows the batch size has one less."""
    return noise.at == "sum" or adj == "replace_one"


def _mixture(
    noise: Noise, query: Query, q: float, steps: int, orders: Any, adj: Adjacency
) -> Any:
    """Return the curve of steps that each include a record with probability q.

    For any noise: e^((alpha - 1) D_alpha) is jointly convex, so that for one step it is
    at most 1 - q + q e^((alpha - 1) D_alpha).
    """
    certain = composed_rdp(noise, sensitivity(query, adj), 1, orders, adj)
    if certain is None:
        return None
    less = np.asarray(orders, float) - 1
    with np.errstate(divide="ignore"):  # q = 1 leaves nobody out
        left_out = np.log1p(-np.float64(q))
    return steps * (np.logaddexp(left_out, math.log(q) + less * certain) / less)


def _unamplified(visits: Callable[[int, int], int]) -> dict[str, Any]:
    """Return the readings of a record that is in `visits(n, steps)` of the releases."""

    def curve(noise, query, n, steps, orders, adj):
        moved = sensitivity(query, adj)
        return composed_rdp(noise, moved, visits(n, steps), orders, adj)

    def loss(noise, query, n, steps, adj):
        return composed_pld(noise, sensitivity(query, adj), visits(n, steps), adj)

    return {"fisher_factor": None, "rdp": curve, "pld": loss}


def _amplified(noise: Noise, moved: Any, q: float) -> Any:
    """Return the Fisher factor of a record that is in a step with probability q."""
    if noise.stddev is None:  # convexity alone (Guo et al. 2022, Theorem 4)
        return q
    return q * fisher.subsampling_factor(q, moved * jnp.sqrt(noise.precision))


def full_batch(batch_size: int | None = None) -> Sampler:
    """Everybody, every step; the sum is a plain matrix product with no gather."""
    if batch_size is not None:
        raise ValueError(f"sampling=full takes no batch_size (got {batch_size})")
    return Sampler(
        draw=lambda key, t, n: Batch(None, None),
        denominator=float,
        presence="certain",
        **_unamplified(lambda n, steps: steps),
    )


def uniform_batch(batch_size: int | None) -> Sampler:
    """A fresh uniform subset of fixed size each step, without replacement.

    Adding or removing a record changes the law of everybody's membership: only
    replace-one has a curve here, add-remove is None.
    """
    batch_size = _needed(batch_size, "uniform")

    def draw(key, t, n):
        key, size = stream(jax.random.fold_in(key, t), "batch"), _at_most(batch_size, n)
        rows = jax.random.choice(key, n, (size,), replace=False)
        return Batch(rows, jnp.ones(rows.shape))

    def curve(noise, query, n, steps, orders, adj):
        if adj == "add_remove":
            return None
        if noise.stddev is None:
            return _mixture(noise, query, batch_size / n, steps, orders, adj)
        shift = query.sensitivity / noise.stddev
        return steps * rdp.without_replacement_gaussian(orders, batch_size / n, shift)

    def pld(noise, query, n, steps, adj):
        if noise.law.pld is None or adj == "add_remove":
            return None
        return noise.law.pld(steps, batch_size / n)

    def factor(noise, query, n):
        return _amplified(noise, query.sensitivity, batch_size / n)

    return Sampler(draw, lambda n: float(batch_size), factor, curve, pld)


def poisson(batch_size: int | None) -> Sampler:
    """Each record independently with probability q = batch_size / n.

    Drawn as a mask over all records, never truncated, so the law is exactly the one
    that is accounted; a step costs a full-batch step. The sum is divided by the
    expected size.
    """
    batch_size = _needed(batch_size, "poisson")

    def draw(key, t, n):
        key = stream(jax.random.fold_in(key, t), "batch")
        member = jax.random.bernoulli(key, _at_most(batch_size, n) / n, (n,))
        return Batch(None, member.astype(float))

    def curve(noise, query, n, steps, orders, adj):
        if noise.stddev is None:
            return _mixture(noise, query, batch_size / n, steps, orders, adj)
        shift = query.norm_bound / noise.stddev
        return steps * rdp.poisson_gaussian(orders, batch_size / n, shift, adj)

    def pld(noise, query, n, steps, adj):
        if noise.law.pld is not None and _covered(noise, adj):
            return noise.law.pld(steps, batch_size / n)
        if noise.stddev is None:
            return None
        shift = query.norm_bound / noise.stddev
        return rdp.poisson_gaussian_pld(batch_size / n, shift, steps, adj)

    def factor(noise, query, n):
        return _amplified(noise, query.norm_bound, batch_size / n)

    return Sampler(
        draw,
        lambda n: float(batch_size),
        factor,
        curve,
        pld,
        presence="independent",
    )


def shuffled_epochs(batch_size: int | None) -> Sampler:
    """A fresh permutation every epoch, cut into batches; the last one may be short.

    Every record is visited exactly once per epoch. The sum of the short batch too is
    divided by `batch_size`: the step length then depends on nothing private.
    """
    batch_size = _needed(batch_size, "shuffled")

    def per_epoch(n: int) -> int:
        return -(-n // _at_most(batch_size, n))

    def rows_of(key, epoch, n):
        """Return the rows of an epoch [batches, size]; -1 fills up the last batch."""
        key = stream(jax.random.fold_in(key, epoch), "epoch")
        pad = (0, -n % batch_size)
        rows = jnp.pad(jax.random.permutation(key, n), pad, constant_values=-1)
        return rows.reshape(per_epoch(n), batch_size)

    def batch(rows):
        return Batch(jnp.maximum(rows, 0), (rows >= 0).astype(float))

    def draw(key, t, n):
        epoch, index = t // per_epoch(n), t % per_epoch(n)
        return batch(rows_of(key, epoch, n)[index])

    def schedule(key, steps, n):
        """Permute every epoch once; `draw` permutes anew in each of its steps."""
        epochs = jnp.arange(-(-steps // per_epoch(n)))
        rows = jax.vmap(lambda epoch: rows_of(key, epoch, n))(epochs)
        return batch(rows.reshape(-1, batch_size)[:steps])

    return Sampler(
        draw=draw,
        denominator=lambda n: float(_at_most(batch_size, n)),
        schedule=schedule,
        **_unamplified(lambda n, steps: -(-steps // per_epoch(n))),
    )


def _needed(batch_size: int | None, sampling: str) -> int:
    if batch_size is None:
        raise ValueError(f"sampling={sampling} needs a batch_size")
    return batch_size


def _at_most(batch_size: int, n: int) -> int:
    if batch_size > n:
        raise ValueError(f"batch_size={batch_size} is larger than the {n} records")
    return batch_size


SAMPLERS = {
    "full": full_batch,
    "uniform": uniform_batch,
    "poisson": poisson,
    "shuffled": shuffled_epochs,
}
