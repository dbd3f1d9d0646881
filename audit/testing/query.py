"""The laws of a defense's parts: what is summed is what is accounted."""

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
from audit.testing.defense import Case
from audit.testing.laws import Law, broken, close
from audit.types import Examples, Query

RECORDS = 7
NO_PARTS = "it is made of no query, sampler and noise"


def _at(case: Case, form: str) -> tuple[Query, Any, Any, Examples] | str:
    """Return the query, where it is looked at, and records; or why there is no form."""
    parts = case.defense.parts
    if parts is None or parts.query is None:
        return NO_PARTS
    if getattr(parts.query, form) is None:
        return f"its query has no closed form `{form}`"
    _, views = case.steps
    pool = double(case.world.splits.pool)
    z = jax.tree.map(lambda a: jnp.asarray(a[:RECORDS]), pool)
    return parts.query, views[-1].params, views[-1].side, z


class _Programs(NamedTuple):
    """What laws compute of a query, compiled once; z has RECORDS records."""

    contributions: Callable  # (params, side, z) -> [m, D] flat
    jacobians: Callable  # (params, side, z) -> ||d fn / d x||_F^2 [m]


@functools.lru_cache(maxsize=4)
def _programs(fn: Callable) -> _Programs:
    def flat(params: Any, side: Any, z: Examples) -> jax.Array:
        return ravel_pytree(fn(params, side, z))[0]

    def squared(params: Any, side: Any, z: Examples) -> jax.Array:
        about = lambda x: fn(params, side, z._replace(x=x))  # noqa: E731
        return fisher.exact_trace(about, z.x)

    def each(function: Callable) -> Callable:
        return jax.jit(jax.vmap(function, (None, None, 0)))

    return _Programs(each(flat), each(squared))


def the_sum_is_the_weighted_sum_of_contributions(case: Case) -> str | None:
    """`total` == sum_i w_i fn(z_i); a record of weight 0 takes no part."""
    with jax.enable_x64(True):
        at = _at(case, "total")
        if isinstance(at, str):
            return at
        query, params, side, z = at
        assert query.total is not None
        total, weight = jax.jit(query.total), jnp.arange(float(RECORDS))
        got = ravel_pytree(total(params, side, z, weight))[0]
        each = _programs(query.fn).contributions(params, side, z)
        close(got, weight @ each, "`total` and the sum", 1e-8)
        blank = z._replace(x=jnp.asarray(z.x).at[0].set(0.5))
        other = ravel_pytree(total(params, side, blank, weight))[0]
        close(other, got, "another record of weight 0", 1e-12)
    return None


def the_trace_is_the_jacobians(case: Case) -> str | None:
    """The closed form of ||d fn / d x||_F^2 is what a sweep of jvps finds."""
    with jax.enable_x64(True):
        at = _at(case, "trace")
        if isinstance(at, str):
            return at
        query, params, side, z = at
        assert query.trace is not None
        got = jax.jit(query.trace)(params, side, z)
        swept = _programs(query.fn).jacobians(params, side, z)
        close(got, swept, "closed form and sweep", 1e-6)
    return None


def the_score_is_the_inner_product(case: Case) -> str | None:
    """`score` == (<u, fn>, ||fn||^2)."""
    with jax.enable_x64(True):
        at = _at(case, "score")
        if isinstance(at, str):
            return at
        query, params, side, z = at
        assert query.score is not None
        u = jax.tree.map(jnp.cos, params)
        each = _programs(query.fn).contributions(params, side, z)
        inner, square = jax.jit(query.score)(params, side, z, u)
        close(inner, each @ ravel_pytree(u)[0], "<u, fn>", 1e-8)
        close(square, (each**2).sum(1), "||fn||^2", 1e-8)
    return None


def the_sensitivity_is_not_exceeded(case: Case) -> str | None:
    """No two records' contributions differ by more, nor is one longer than its bound.

    Looked for among corners of the domain, at parameters up to 30 times as large.
    """
    with jax.enable_x64(True):
        at = _at(case, "fn")
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
        program = _programs(query.fn).contributions
        for factor in (1, 5, 30):
            moved = jax.tree.map(lambda a, f=factor: f * a, params)
            each = np.concatenate([program(moved, side, r) for r in (z, corners)])
            longest = np.linalg.norm(each, axis=1).max()
            furthest = np.linalg.norm(each[:, None] - each[None], axis=2).max()
            for what, seen, limit in (
                ("norm", longest, bounds[0]),
                ("sensitivity", furthest, bounds[1]),
            ):
                if seen > limit * (1 + 1e-9):
                    broken(f"{what} {seen:.6g} above the claimed {limit:.6g}")
    return None


def information_is_summed_along_the_run(case: Case) -> str | None:
    """The reading == sum over the steps trained of factor x precision x ||J||^2."""
    parts = case.defense.parts
    if parts is None or parts.query is None or parts.sampler is None:
        return NO_PARTS
    query, sampler, noise = parts.query, parts.sampler, parts.noise
    if case.information is None:
        return "no bound"
    if query.trace is None or isinstance(noise.precision, dict):
        return "its trace is estimated by probes"
    own, want = worlds.FIXED, 0.0
    with jax.enable_x64(True):
        target = double(case.one(0).target)
        z = jax.tree.map(lambda a: np.stack([a] * RECORDS), target)
        for view in case.steps[1]:
            batch = view.batch
            here = jnp.asarray(1.0)
            if batch.rows is not None:
                here = ((batch.rows == own) * batch.weight).sum()
            elif batch.weight is not None:
                here = batch.weight[own]
            factor = sampler.fisher_factor(noise, query, own + 1, here)
            square = _programs(query.fn).jacobians(view.params, view.side, z)[0]
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
