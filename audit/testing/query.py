"""The laws of a query: what is summed is what is accounted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from audit.accounting import fisher
from audit.engine.precision import double
from audit.testing import worlds
from audit.testing.defense import DefenseCase
from audit.testing.laws import Law, broken, close
from audit.types import Examples, Query

RECORDS = 7
NO_PARTS = "it is made of no query, sampler and noise"


def _at(case: DefenseCase, form: str = "") -> tuple[Query, Any, Any, Examples] | str:
    """Return the query, parameters, side and records; or why a law does not apply."""
    if case.mechanism is None:
        return NO_PARTS
    query = case.mechanism.query
    if form and getattr(query.closed_forms, form) is None:
        return f"its query has no closed form `{form}`"
    _, views = case.steps
    pool = double(case.world.splits.pool)
    z = jax.tree.map(lambda a: jnp.asarray(a[:RECORDS]), pool)
    return query, views[-1].params, views[-1].side, z


class _QueryPrograms(NamedTuple):
    """What laws compute of a query, compiled once; z has RECORDS records."""

    contributions: Callable  # (params, side, z) -> [m, D] flat
    jacobians: Callable  # (params, side, z) -> ||d fn / d x||_F^2 [m]


def _programs(query: Query) -> _QueryPrograms:
    fn: Any = query.fn  # a function, hence hashable
    return _compiled(fn)


@functools.lru_cache(maxsize=4)
def _compiled(fn: Any) -> _QueryPrograms:
    def flat(params: Any, side: Any, z: Examples) -> jax.Array:
        return ravel_pytree(fn(params, side, z))[0]

    def squared(params: Any, side: Any, z: Examples) -> jax.Array:
        about = lambda x: fn(params, side, z._replace(x=x))  # noqa: E731
        return fisher.exact_trace(about, z.x)

    def each(function: Callable) -> Callable:
        return jax.jit(jax.vmap(function, (None, None, 0)))

    return _QueryPrograms(each(flat), each(squared))


def the_sum_is_the_weighted_sum_of_contributions(case: DefenseCase) -> str | None:
    """`total` == sum_i w_i fn(z_i); a record of weight 0 takes no part."""
    with jax.enable_x64(True):
        at = _at(case, "total")
        if isinstance(at, str):
            return at
        query, params, side, z = at
        assert query.closed_forms.total is not None
        total, weight = jax.jit(query.closed_forms.total), jnp.arange(float(RECORDS))
        got = ravel_pytree(total(params, side, z, weight))[0]
        each = _programs(query).contributions(params, side, z)
        close(got, weight @ each, "`total` and the sum", 1e-8)
        blank = z._replace(x=jnp.asarray(z.x).at[0].set(0.5))
        other = ravel_pytree(total(params, side, blank, weight))[0]
        close(other, got, "another record of weight 0", 1e-12)
    return None


def the_trace_is_the_jacobians(case: DefenseCase) -> str | None:
    """The closed form of ||d fn / d x||_F^2 is what a sweep of jvps finds."""
    with jax.enable_x64(True):
        at = _at(case, "trace")
        if isinstance(at, str):
            return at
        query, params, side, z = at
        assert query.closed_forms.trace is not None
        got = jax.jit(query.closed_forms.trace)(params, side, z)
        swept = _programs(query).jacobians(params, side, z)
        close(got, swept, "closed form and sweep", 1e-6)
    return None


def the_score_is_the_inner_product(case: DefenseCase) -> str | None:
    """`score` == (<u, fn>, ||fn||^2)."""
    with jax.enable_x64(True):
        at = _at(case, "score")
        if isinstance(at, str):
            return at
        query, params, side, z = at
        assert query.closed_forms.score is not None
        u = jax.tree.map(jnp.cos, params)
        each = _programs(query).contributions(params, side, z)
        inner, square = jax.jit(query.closed_forms.score)(params, side, z, u)
        close(inner, each @ ravel_pytree(u)[0], "<u, fn>", 1e-8)
        close(square, (each**2).sum(1), "||fn||^2", 1e-8)
    return None


def the_sensitivity_is_not_exceeded(case: DefenseCase) -> str | None:
    """No two records' contributions differ by more, nor is one longer than its bound.

    Looked for among corners of the domain, at parameters up to 30 times as large.
    """
    with jax.enable_x64(True):
        at = _at(case)
        if isinstance(at, str):
            return at
        query, params, side, z = at
        bounds = float(query.norm_bound), float(query.sensitivity)
        if not np.isfinite(bounds).all():
            return "it claims none"
        rng, (low, high) = np.random.default_rng(0), case.world.task.domain
        if not np.isfinite((low, high)).all():
            low, high = -1e3, 1e3
        corners = z._replace(x=jnp.asarray(rng.choice([low, high], z.x.shape)))
        program = _programs(query).contributions
        for factor in (1, 5, 30):
            moved = jax.tree.map(lambda a, f=factor: f * a, params)
            each = np.concatenate([program(moved, side, r) for r in (z, corners)])
            longest = np.linalg.norm(each, axis=1).max()
            furthest = np.linalg.norm(each[:, None] - each[None], axis=2).max()
            for what, value, limit in (
                ("norm", longest, bounds[0]),
                ("sensitivity", furthest, bounds[1]),
            ):
                if value > limit * (1 + 1e-9):
                    broken(f"{what} {value:.6g} above the claimed {limit:.6g}")
    return None


def information_is_summed_along_the_run(case: DefenseCase) -> str | None:
    """The reading == sum over the steps trained of factor x precision x ||J||^2."""
    if case.mechanism is None:
        return NO_PARTS
    query, sampler, noise, *_ = case.mechanism
    if case.information is None:
        return "no bound"
    if query.closed_forms.trace is None or isinstance(noise.precision, dict):
        return "its trace is estimated by probes"
    slot, want = worlds.FIXED, 0.0
    with jax.enable_x64(True):
        target = double(case.one(0).target)
        z = jax.tree.map(lambda a: np.stack([a] * RECORDS), target)
        for view in case.steps[1]:
            batch = view.batch
            here = jnp.asarray(1.0)
            if batch.rows is not None:
                here = ((batch.rows == slot) * batch.weight).sum()
            elif batch.weight is not None:
                here = batch.weight[slot]
            factor = here
            if sampler.fisher_factor is not None:
                factor = sampler.fisher_factor(noise, query, slot + 1)
            square = _programs(query).jacobians(view.params, view.side, z)[0]
            want += float(factor * noise.precision * square)
    got = float(case.information[0, 0])
    if abs(got - want) > 1e-5 * max(abs(want), 1e-12):
        broken(f"{got:.8g} read, {want:.8g} summed over the steps")
    return None


LAWS: tuple[Law, ...] = (
    the_sum_is_the_weighted_sum_of_contributions,
    the_trace_is_the_jacobians,
    the_score_is_the_inner_product,
    the_sensitivity_is_not_exceeded,
    information_is_summed_along_the_run,
)
