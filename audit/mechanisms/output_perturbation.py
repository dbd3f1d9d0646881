"""Builder of single releases: a function of the whole set, plus noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from audit.accounting import fisher
from audit.mechanisms.query import Side
from audit.mechanisms.sampler import composed_pld, composed_rdp
from audit.rng import stream
from audit.types import (
    Adjacency,
    Defense,
    Examples,
    Minimiser,
    Noise,
    Objective,
    Predict,
    Prepare,
    Release,
    Solve,
    TrainingSet,
    Trait,
)

CANDIDATES = 64  # solved together when a likelihood asks for many


def objective_of(defense: Defense) -> Objective | None:
    """Return what a defense's release minimises; None where it minimises nothing."""
    mechanism = defense.mechanism
    return mechanism.objective if isinstance(mechanism, Minimiser) else None


def output_perturbation(
    solve: Solve,
    noise: Noise,
    *,
    norm_bound: Callable | None,
    sensitivity: Callable | None,
    predict: Predict | None = None,
    trace: Callable | None = None,
    prepare: Prepare | None = None,
    likelihood: bool = True,
    traits: frozenset[Trait] = frozenset(),
) -> Defense:
    """One release: solve(side, data) + noise; without noise there are no readings.

    Args:
      solve: the function of the whole set.
      noise: what is added.
      norm_bound: (n) -> add-or-remove L2 sensitivity of `solve`; None or an infinite
        one = unbounded.
      sensitivity: (n) -> replace-one L2 sensitivity of `solve`; as `norm_bound`.
      predict: where the release is a model.
      trace: (side, TrainingSet, rows [m]) -> ||d solve / d x_row||_F^2 [m] in closed
        form; default: an exact sweep of Jacobian-vector products about the target, or
        about every row where there is none.
      prepare: makes the side; default: nothing.
      likelihood: whether many candidates can be solved for, one at a time.
      traits: what attacks may assume.
    """

    def publish(key: jax.Array, params: Any) -> Any:
        return noise.sample(stream(key, "noise"), params)

    def train(key: jax.Array, side: Any, data: TrainingSet) -> Release:
        return Release(publish(key, solve(side, data)))

    def fisher_trace(key: jax.Array, side: Any, data: TrainingSet, rows: Any) -> Any:
        del key
        if trace is not None:
            return noise.precision * trace(side, data, rows)

        def about(row: Any) -> jax.Array:
            x, with_x = _movable(data, row)
            return fisher.exact_trace(lambda x: solve(side, with_x(x)), x)

        return noise.precision * jax.lax.map(about, jnp.asarray(rows))

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

    moves: Any = {"replace_one": sensitivity, "add_remove": norm_bound}

    def distance(n: int, adjacency: Adjacency) -> Any:
        move = moves[adjacency]
        return math.inf if move is None else move(n)

    def rdp(n: int, orders: Any, adjacency: Adjacency) -> Any:
        moved = distance(n, adjacency)
        if math.isinf(moved):
            return None
        return composed_rdp(noise, moved, 1, orders, adjacency)

    def pld(n: int, adjacency: Adjacency) -> Any:
        moved = distance(n, adjacency)
        return None if math.isinf(moved) else composed_pld(noise, moved, 1, adjacency)

    noisy = noise.precision is not None
    bounded = noisy and sensitivity is not None
    gaussian = noise.stddev is not None  # `log_likelihood` holds for no other law
    return Defense(
        prepare=prepare or (lambda key, public: Side(None)),
        train=train,
        predict=predict,
        fisher=fisher_trace if noisy else None,
        log_likelihood=log_likelihood if likelihood and gaussian else None,
        rdp=rdp if bounded else None,
        pld=pld if bounded else None,
        traits=traits,
        mechanism=Minimiser(solve, publish, noise),
    )


def _movable(data: TrainingSet, row: Any) -> tuple[Any, Callable]:
    """Return the target's x, or without one that of `row`; and x -> the set with it."""
    target, fixed = data.target, data.fixed
    if target is not None:
        return target.x, lambda x: data._replace(target=target._replace(x=x))
    every = jnp.asarray(fixed.x)
    at = lambda x: fixed._replace(x=every.at[row].set(x))
    return every[row], lambda x: data._replace(fixed=at(x))
