"""Before every private step: g_phi, fitted on public data to the current parameters.

Parameters are releases of earlier steps, so that everything here is post-processing of
what is public by then. phi is fitted in float32 even where accounting is in float64.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit.compilation import once
from audit.mechanisms.fim.fitters import Fitter, Ground
from audit.mechanisms.fim.networks import places
from audit.mechanisms.fim.objectives import Learnt, Schedule, adam_of, fit
from audit.mechanisms.query import Side
from audit.mechanisms.stepwise import PublicFit
from audit.rng import stream
from audit.types import Defense, Iterative, Public, SideOfStep, State, TrainingSet


def first_fit(
    fitter: Fitter, schedule: Schedule, side: Side, public: Public, key: jax.Array
) -> PublicFit:
    """Return the fit of phi to the common starting point, a step being an epoch.

    It serves all runs. Its state is phi and Adam's averages.

    Raises:
      ValueError: if there is no public record.
    """
    if not len(public.records.y):
        raise ValueError("fim learns from public records and the split has none")
    records, params = _single((public.records, side.params))
    trained, key_data = places(side.mask, params), jax.random.key_data(key)
    learnt = Learnt(None, None, records, key_data, trained)
    ground = Ground(params, side.mask, learnt.places, records)

    def begun(key: Any, on: Ground) -> tuple[Any, Any]:
        phi = fitter.init(key, on)
        return phi, adam_of(schedule).init(phi)

    phi, opt = once(begun)(stream(key, "phi"), ground)
    fitted = jax.jit(partial(_fitted, fitter, schedule))

    def side_after(state: tuple, begin: int, end: int) -> Side:
        phi, opt = state
        start = side._replace(learnt=learnt._replace(phi=phi, optimizer=opt))
        return fitted(params, start, 0, (begin, end))

    def part(state: tuple, begin: int, end: int) -> tuple:
        learnt = side_after(state, begin, end).learnt
        return learnt.phi, learnt.optimizer

    end = schedule.epochs_before(0, max)
    return PublicFit((phi, opt), part, lambda state: side_after(state, end, end))


def refresher(fitter: Fitter, schedule: Schedule) -> SideOfStep:
    """Return the `side` of a refresh: fit again before every step but the first."""

    def refresh(params: Any, side: Side, t: Any) -> Side:
        def again(params: Any, side: Side, t: Any) -> Side:
            fitted = _fitted(fitter, schedule, params, side, t)
            return jax.tree.map(lambda a, b: a.astype(b.dtype), fitted, side)

        keep = lambda params, side, t: side
        return jax.lax.cond(t == 0, keep, again, params, side, t)

    return refresh


def _fitted(
    fitter: Fitter,
    schedule: Schedule,
    params: Any,
    side: Side,
    t: Any,
    span: tuple | None = None,
) -> Side:
    """Return the side whose phi is fitted to the parameters of one trajectory."""
    bundle = jax.tree.map(lambda a: jnp.asarray(a)[None], params)
    return _fitted_to_all(fitter, schedule, bundle, side, t, span)


def _fitted_to_all(
    fitter: Fitter,
    schedule: Schedule,
    bundle: Any,
    side: Side,
    t: Any,
    span: tuple | None = None,
) -> Side:
    """Return the side fitted to trajectories [s, ...], as in Edmunds' Equation 2.4.

    `span` are the epochs, from the first to the one after the last; None = all.
    """
    learnt, span = side.learnt, span or (0, schedule.epochs_before(t))
    key = jax.random.fold_in(jax.random.wrap_key_data(learnt.key), t)
    bundle, mask, public, phi, opt = _single(
        (bundle, side.mask, learnt.public, learnt.phi, learnt.optimizer)
    )
    ground = Ground(None, mask, learnt.places, public)
    look = lambda p: fitter.look(stream(key, "look"), ground._replace(params=p))
    views = jax.vmap(look)(bundle)
    params, first = jax.tree.map(lambda a: a[0], (bundle, views))

    def loss(phi: Any, rows: Any, weight: Any, key: Any) -> jax.Array:
        one = lambda p, view: fitter.loss(
            ground._replace(params=p), view, phi, rows, weight, key
        )
        return jax.vmap(one)(bundle, views).mean()

    if not schedule.warm:
        draw = fitter.init(stream(key, "phi"), ground._replace(params=params))
        start = draw, adam_of(schedule).init(draw)
        choose = partial(jnp.where, span[0] == 0)
        phi, opt = jax.tree.map(choose, start, (phi, opt))
    n = len(public.y)
    phi, opt = fit(loss, phi, opt, schedule, t, n, stream(key, "fit"), span)
    offset, aside = fitter.settle(ground._replace(params=params), first, phi)
    learnt = learnt._replace(phi=phi, optimizer=opt, aside=aside)
    return side._replace(offset=offset, learnt=learnt)


def _single(tree: Any) -> Any:
    """Return a tree whose floats are float32."""

    def cast(a: Any) -> Any:
        a = jnp.asarray(a)
        return a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(cast, tree)


# One phi per step, for all runs -------------------------------------------------------


def share(
    fitter: Fitter,
    schedule: Schedule,
    pilot: Defense,
    side: Side,
    key: jax.Array,
    *,
    runs: int,
    steps: int,
) -> Side:
    """Return a side with one phi for every step, fitted to pilot runs on public data.

    The pilots are trained like the real runs, with the public records for the private
    ones; phi_t is fitted to what their parameters look like before step t. `pilot` is
    the defense without a refresh, `side` is from `first_fit`.
    """
    assert isinstance(pilot.mechanism, Iterative)
    move, data = pilot.mechanism.step, TrainingSet(side.learnt.public, None)
    keys = jax.random.split(key, runs)

    @jax.jit
    def step(bundle: State, side: Side) -> State:
        def one(key: Any, state: State) -> State:
            return move(key, state._replace(side=side), data)[0]._replace(side=None)

        return jax.vmap(one)(keys, bundle)

    again = jax.jit(partial(_fitted_to_all, fitter, schedule))
    state = pilot.mechanism.init(key, side)._replace(side=None)
    bundle = jax.tree.map(lambda a: jnp.broadcast_to(a, (runs, *a.shape)), state)
    used = []
    for t in range(steps):
        side = again(bundle.params, side, t) if t else side
        phi = side.learnt.phi if side.offset is None else None
        used.append((side.offset, phi, side.learnt.aside))  # what the query reads
        bundle = step(bundle, side)
    table = jax.tree.map(lambda *a: np.stack(a), *jax.device_get(used))
    learnt = Learnt(None, None, None, None, side.learnt.places, table=table)
    return pick(None, side._replace(learnt=learnt), 0)


def pick(params: Any, side: Side, t: Any) -> Side:
    """Return the side of step t; that of a shared phi."""
    del params
    offset, phi, aside = jax.tree.map(lambda a: a[t], side.learnt.table)
    learnt = side.learnt._replace(phi=phi, aside=aside)
    return side._replace(offset=offset, learnt=learnt)
