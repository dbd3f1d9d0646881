"""The laws of a query: what is summed is what is accounted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from audit.engine.precision import double
from audit.testing import fixtures
from audit.testing.defense import DefenseCase
from audit.testing.laws import broken, close, does_not_apply
from audit.types import Examples

RECORDS = 7


def _closed_form(case: DefenseCase, name: str) -> Any:
    form = getattr(case.parts.query.closed_forms, name)
    if form is None:
        does_not_apply(f"its query has no closed form `{name}`")
    return form


def _at(case: DefenseCase) -> tuple[Any, Any, Examples]:
    """Return the last step's parameters and side, and RECORDS records."""
    view = case.steps[1][-1]
    pool = double(case.world.splits.pool)
    z = jax.tree.map(lambda a: jnp.asarray(a[:RECORDS]), pool)
    return view.params, view.side, z


def the_sum_is_the_weighted_sum_of_contributions(case: DefenseCase) -> None:
    """`total` == sum_i w_i fn(z_i); a record of weight 0 takes no part."""
    total = _closed_form(case, "total")
    with jax.enable_x64(True):
        params, side, z = _at(case)
        total, weight = jax.jit(total), jnp.arange(float(RECORDS))
        got = ravel_pytree(total(params, side, z, weight))[0]
        each = case.contributions(params, side, z)
        close(got, weight @ each, "`total` and the sum", 1e-8)
        blank = z._replace(x=jnp.asarray(z.x).at[0].set(0.5))
        other = ravel_pytree(total(params, side, blank, weight))[0]
        close(other, got, "another record of weight 0", 1e-12)


def the_trace_is_the_jacobians(case: DefenseCase) -> None:
    """The closed form of ||d fn / d x||_F^2 is what a sweep of jvps finds."""
    trace = _closed_form(case, "trace")
    with jax.enable_x64(True):
        at = _at(case)
        close(jax.jit(trace)(*at), case.jacobians(*at), "closed form and sweep", 1e-6)


def the_score_is_the_inner_product(case: DefenseCase) -> None:
    """`score` == (<u, fn>, ||fn||^2)."""
    score = _closed_form(case, "score")
    with jax.enable_x64(True):
        params, side, z = _at(case)
        u = jax.tree.map(jnp.cos, params)
        each = case.contributions(params, side, z)
        inner, square = jax.jit(score)(params, side, z, u)
        close(inner, each @ ravel_pytree(u)[0], "<u, fn>", 1e-8)
        close(square, (each**2).sum(1), "||fn||^2", 1e-8)


def the_sensitivity_is_not_exceeded(case: DefenseCase) -> None:
    """No two records' contributions differ by more, nor is one longer than its bound.

    Looked for among corners of the domain, at parameters up to 30 times as large.
    """
    query = case.parts.query
    with jax.enable_x64(True):
        params, side, z = _at(case)
        bounds = float(query.norm_bound), float(query.sensitivity)
        if not np.isfinite(bounds).all():
            does_not_apply("it claims none")
        rng, (low, high) = np.random.default_rng(0), case.world.task.domain
        if not np.isfinite((low, high)).all():
            low, high = -1e3, 1e3
        corners = z._replace(x=jnp.asarray(rng.choice([low, high], z.x.shape)))
        for factor in (1, 5, 30):
            moved = jax.tree.map(lambda a, f=factor: f * a, params)
            each = np.concatenate(
                [case.contributions(moved, side, r) for r in (z, corners)]
            )
            longest = np.linalg.norm(each, axis=1).max()
            furthest = np.linalg.norm(each[:, None] - each[None], axis=2).max()
            for what, value, limit in (
                ("norm", longest, bounds[0]),
                ("sensitivity", furthest, bounds[1]),
            ):
                if value > limit * (1 + 1e-9):
                    broken(f"{what} {value:.6g} above the claimed {limit:.6g}")


def information_is_summed_along_the_run(case: DefenseCase) -> None:
    """The reading == sum over the steps trained of factor x precision x ||J||^2."""
    query, sampler, noise, *_ = case.parts
    if case.information is None:
        does_not_apply("no bound")
    if query.closed_forms.trace is None or isinstance(noise.precision, dict):
        does_not_apply("its trace is estimated by probes")
    slot, want = fixtures.FIXED, 0.0
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
            square = case.jacobians(view.params, view.side, z)[0]
            want += float(factor * noise.precision * square)
    got = float(case.information[0, 0])
    if abs(got - want) > 1e-5 * max(abs(want), 1e-12):
        broken(f"{got:.8g} read, {want:.8g} summed over the steps")
