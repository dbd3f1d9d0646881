"""The laws of a defense's parts: what is summed is what is accounted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from audit import fisher, worlds
from audit.defense_laws import Case
from audit.laws import Law, broken, close
from audit.precision import double
from audit.types import Examples, Query

NO_PARTS = "it is made of no query, sampler and noise"


def _at(case: Case, form: str) -> tuple[Query, Any, Any, Examples] | str:
    """Return the query, where it is looked at, and records; or why there is no form."""
    parts = case.defense.parts
    if parts is None:
        return NO_PARTS
    if getattr(parts[0], form) is None:
        return f"its query has no closed form `{form}`"
    _, views = case.steps
    pool = double(case.world.splits.pool)
    z = jax.tree.map(lambda a: jnp.asarray(a[:7]), pool)
    return parts[0], views[-1].params, views[-1].side, z


def _each(query: Query, params: Any, side: Any, z: Examples) -> jax.Array:
    """Return every record's contribution, flat [m, D]."""
    one = jax.jit(jax.vmap(lambda r: ravel_pytree(query.fn(params, side, r))[0]))
    return one(z)


def the_sum_is_the_weighted_sum_of_contributions(case: Case) -> str | None:
    """`total` == sum_i w_i fn(z_i); a record of weight 0 takes no part."""
    with jax.enable_x64(True):
        at = _at(case, "total")
        if isinstance(at, str):
            return at
        query, params, side, z = at
        weight = jnp.arange(7.0)
        assert query.total is not None
        got = ravel_pytree(query.total(params, side, z, weight))[0]
        close(got, weight @ _each(query, params, side, z), "`total` and the sum", 1e-8)
        blank = z._replace(x=jnp.asarray(z.x).at[0].set(0.5))
        other = ravel_pytree(query.total(params, side, blank, weight))[0]
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
        got = query.trace(params, side, z)

        def swept(r: Examples) -> jax.Array:
            fn = lambda x: query.fn(params, side, r._replace(x=x))  # noqa: E731
            return fisher.exact_trace(fn, r.x)

        close(got, jax.jit(jax.vmap(swept))(z), "closed form and sweep", 1e-6)
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
        each = _each(query, params, side, z)
        inner, square = query.score(params, side, z, u)
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
        corner = rng.choice([low, high], z.x.shape)
        z = jax.tree.map(
            lambda a, b: jnp.concatenate([a, jnp.asarray(b)]), z, z._replace(x=corner)
        )
        for factor in (1, 5, 30):
            moved = jax.tree.map(lambda a, f=factor: f * a, params)
            each = np.asarray(_each(query, moved, side, z))
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
    if parts is None:
        return NO_PARTS
    query, sampler, noise = parts
    if case.information is None:
        return "no bound"
    if query.trace is None or isinstance(noise.precision, dict):
        return "its trace is estimated by probes"
    if case.defense.steps != len(case.steps[1]):
        return "nothing iterates"
    own, want = worlds.FIXED, 0.0
    with jax.enable_x64(True):
        z = double(case.one(0).target)
        for view in case.steps[1]:
            batch = view.batch
            here = jnp.asarray(1.0)
            if batch.rows is not None:
                here = ((batch.rows == own) * batch.weight).sum()
            elif batch.weight is not None:
                here = batch.weight[own]
            factor = sampler.fisher_factor(noise, query, own + 1, here)
            fn = lambda x, v=view: query.fn(v.params, v.side, z._replace(x=x))  # noqa: E731
            want += float(factor * noise.precision * fisher.exact_trace(fn, z.x))
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
