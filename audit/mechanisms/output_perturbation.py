"""Builder of single releases: a function of the whole set, plus noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from audit.accounting import fisher
from audit.mechanisms.query import Side
from audit.mechanisms.sampler import full_batch
from audit.rng import stream
from audit.types import Defense, Examples, Noise, Parts, Query, Release, TrainingSet

CANDIDATES = 64  # solved together when a likelihood asks for many


def output_perturbation(
    solve: Callable,
    noise: Noise,
    *,
    norm_bound: Callable | None,
    sensitivity: Callable | None,
    predict: Callable | None = None,
    trace: Callable | None = None,
    prepare: Callable | None = None,
    likelihood: bool = True,
    traits: frozenset[str] = frozenset(),
) -> Defense:
    """One release: solve(side, data) + noise.

    Args:
      solve: (side, TrainingSet) -> params, differentiable in the target's x.
      noise: what is added.
      norm_bound: (n) -> add-or-remove L2 sensitivity of `solve`; None = unbounded.
      sensitivity: (n) -> replace-one L2 sensitivity of `solve`; None = unbounded.
      predict: (side, Release, x [m]) -> logits, where the release is a model.
      trace: (side, TrainingSet, rows [m]) -> ||d solve / d x_row||_F^2 [m] in closed
        form; default: an exact sweep of Jacobian-vector products about the target.
      prepare: (key, public) -> side; default: nothing.
      likelihood: whether many candidates can be solved for, one at a time.
      traits: what attacks may assume.

    Returns:
      A Defense without steps; without noise it has no Fisher or Renyi reading.
    """

    def train(key: jax.Array, side: Any, data: TrainingSet) -> Release:
        return Release(noise.sample(stream(key, "noise"), solve(side, data)))

    def fisher_trace(key: jax.Array, side: Any, data: TrainingSet, rows: Any) -> Any:
        del key
        if trace is not None:
            return noise.precision * trace(side, data, rows)
        target = data.target
        assert target is not None, "without a closed form: about the target"

        def about(x: jax.Array) -> Any:
            return solve(side, data._replace(target=target._replace(x=x)))

        return noise.precision * fisher.exact_trace(about, target.x)[None]

    def log_likelihood(
        key: jax.Array, side: Any, data: TrainingSet, candidates: Examples
    ) -> jax.Array:
        """Return log N(release; solve(z)) [m + 1] up to what all z share."""
        release = ravel_pytree(train(key, side, data).params)[0]

        def ratio(z: Examples | None) -> jax.Array:
            # a function of the candidate alone: under a vmap over runs, done once
            mean = ravel_pytree(solve(side, data._replace(target=z)))[0]
            return release @ mean - mean @ mean / 2

        each = jax.lax.map(ratio, candidates, batch_size=CANDIDATES)
        return noise.precision * jnp.append(each, ratio(data.target))

    def query(n: int) -> Query:
        assert norm_bound is not None
        assert sensitivity is not None
        return Query(solve, norm_bound(n), sensitivity(n))

    once, noisy = full_batch(), noise.precision is not None
    bounded = noisy and sensitivity is not None
    exact = noise.stddev is not None  # the log-ratio above is the Gaussian's
    return Defense(
        prepare=prepare or (lambda key, public: Side(None)),
        init=None,
        step=None,
        train=train,
        predict=predict,
        fisher=fisher_trace if noisy else None,
        log_likelihood=log_likelihood if likelihood and exact else None,
        rdp=(lambda n, orders, adj: once.rdp(noise, query(n), n, 1, orders, adj))
        if bounded
        else None,
        pld=(lambda n, adj: once.pld(noise, query(n), n, 1, adj)) if bounded else None,
        traits=traits,
        parts=Parts(noise) if noisy else None,
    )
