"""What is fitted before a step: parametrisation x objective, as functions of phi.

A fitter is written for one trajectory's parameters, so that the same code serves one
trajectory and a bundle of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from audit.clipping import Clip, clip_tree
from audit.mechanisms.fim.networks import Inputs, gather, scatter
from audit.mechanisms.fim.objectives import LEAST, Objective, penalty
from audit.mechanisms.fim.shifted_gradients import PROBES, reader
from audit.mechanisms.query import Side, masked
from audit.types import Examples, Task

# Least deviation an input is divided by, as a share of the typical one: what hardly
# varies in public records may well do so in private ones.
SPREAD = 0.1


class Ground(NamedTuple):
    """Parameters and records that phi is fitted on."""

    params: Any  # of one trajectory
    mask: Any
    places: Any  # [K] which entries of the flat parameters are trained
    public: Any  # Examples


class Fitter(NamedTuple):
    """One parametrisation under one objective."""

    look: Callable  # (key, Ground) -> view: what does not depend on phi
    loss: Callable  # (Ground, view, phi, rows, lambda, key) -> value []
    init: Callable  # (key, Ground) -> phi
    settle: Callable  # (Ground, view, phi) -> (offset, aside) that the query needs
    perturb: Callable | None  # for `query.gradient`; None where the offset is enough


def constant(
    task: Task,
    clip: Clip,
    objective: Objective,
    make: Callable,
    *,
    at_mean: bool = False,
) -> Fitter:
    """Return the fitter of a perturbation that is the same for all examples.

    Args:
      task: whose gradients are perturbed.
      clip: of the query.
      objective: see `fim.objectives`.
      make: K -> module () -> [K], from `audit.mechanisms.fim.networks`.
      at_mean: whether `Direct` starts from the mean public gradient. The loss is flat
        along the sphere: from zero, Adam finds the length long before the direction.
    """
    prepare, measure = reader(task)

    def look(key: Any, on: Ground) -> Any:
        return prepare(on.params, on.mask, on.public, key)

    def perturbation(on: Ground, phi: Any) -> Any:
        vector = make(on.places.size).apply(phi)
        return scatter(on.places, vector, on.params)

    def loss(
        on: Ground, shifted: Any, phi: Any, rows: Any, weight: Any, key: Any
    ) -> Any:
        del key
        c = perturbation(on, phi)
        cost = optax.tree.norm(c, squared=True)
        if objective == "replacement":  # a constant has no Jacobian to penalise
            return cost - 2 * optax.tree.vdot(c, shifted.mean)
        norms = measure(on.params, shifted, on.public, c, rows)
        leakage = penalty(objective, clip, norms)
        return cost + weight * leakage.mean()

    def init(key: Any, on: Ground) -> Any:
        if not at_mean:
            return dict(make(on.places.size).init(key))
        return {"params": {"constant": gather(on.places, look(key, on).mean)}}

    settle = lambda on, shifted, phi: (perturbation(on, phi), None)
    replaced = lambda params, side, z, base: jax.tree.map(jnp.negative, base)
    perturb = replaced if objective == "replacement" else None
    return Fitter(look, loss, init, settle, perturb)


def network(
    task: Task, clip: Clip, objective: Objective, make: Callable, *, static: bool
) -> Fitter:
    """Return the fitter of a perturbation that does depend on the example.

    Arguments: `constant`; `make` is K -> module Inputs -> [K], and only `snr_gradient`
    shows g_phi the gradient. If `static`, inputs are standardised by public means and
    deviations and weights are not shown (Edmunds 2024, appendix A.4); else the module
    normalises.
    """

    def base_of(on: Ground, z: Examples) -> Any:
        return masked(on.mask, jax.grad(task.loss)(on.params, z))

    def inputs(on: Ground, scaling: dict, z: Examples, base: Any) -> Inputs:
        slope, weights = gather(on.places, base), gather(on.places, on.params)
        if static:
            slope = (slope - scaling["mean"]) / scaling["spread"]
            weights = weights[:0]
        label = jax.nn.one_hot(z.y, task.classes, dtype=slope.dtype)
        shown = objective == "snr_gradient"
        return Inputs(z.x, label, weights, slope if shown else slope[:0])

    def added(on: Ground, scaling: dict, phi: Any, z: Examples, base: Any) -> Any:
        """Return what is added to the gradient `base`, a pytree like the parameters."""
        module = make(on.places.size)
        vector = module.apply(phi, inputs(on, scaling, z, base))
        out = scatter(on.places, vector, base)
        if objective == "replacement":
            return jax.tree.map(jnp.subtract, out, base)
        return out

    def one(on: Ground, scaling: dict, phi: Any, weight: Any, z: Any, key: Any) -> Any:
        """Return one example's loss; the trace by Gaussian probes."""

        def see(x: Any) -> tuple:
            here = z._replace(x=x)
            base = base_of(on, here)
            extra = added(on, scaling, phi, here, base)
            total = jax.tree.map(jnp.add, base, extra)
            if objective not in ("replacement", "perturbation"):
                total = clip_tree(clip, total)
            return ravel_pytree(total)[0], optax.tree.norm(extra, squared=True)

        probes = jax.random.normal(key, (PROBES, *z.x.shape), z.x.dtype)
        (v, cost), push = jax.linearize(see, z.x)
        trace = (jax.vmap(lambda u: push(u)[0])(probes) ** 2).sum() / PROBES
        by_signal = objective in ("snr", "snr_gradient")
        return cost + weight * ((trace + LEAST) / (v @ v) if by_signal else trace)

    def look(key: Any, on: Ground) -> dict:
        del key
        if not static:
            return {}
        slopes = jax.vmap(lambda z: gather(on.places, base_of(on, z)))(on.public)
        spread = slopes.std(0)
        least = SPREAD * jnp.sqrt((spread**2).mean())
        return {"mean": slopes.mean(0), "spread": jnp.maximum(spread, least)}

    def loss(
        on: Ground, scaling: dict, phi: Any, rows: Any, weight: Any, key: Any
    ) -> Any:
        z = on.public if rows is None else jax.tree.map(lambda a: a[rows], on.public)
        keys = jax.random.split(key, len(z.y))
        each = lambda z, key: one(on, scaling, phi, weight, z, key)
        return jax.vmap(each)(z, keys).mean()

    def init(key: Any, on: Ground) -> Any:
        z = jax.tree.map(lambda a: a[0], on.public)
        example = inputs(on, look(key, on), z, base_of(on, z))
        return dict(make(on.places.size).init(key, example))

    def perturb(params: Any, side: Side, z: Examples, base: Any) -> Any:
        on = Ground(params, side.mask, side.learnt.places, None)
        return added(on, side.learnt.aside, side.learnt.phi, z, base)

    settle = lambda on, scaling, phi: (None, scaling)
    return Fitter(look, loss, init, settle, perturb)
