"""Builders: parts -> Defense.

A defense is Query x Sampler x Noise. Each part acts in training and is read twice in
accounting; the builders here do all three from the same objects, so that what is
trained is what is accounted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from audit.accounting import fisher
from audit.mechanisms.batch import (
    MICRO_BATCH,
    count,
    noised_sum,
    records,
    split,
    sum_fixed,
    weights,
)
from audit.mechanisms.dissection import dissector
from audit.mechanisms.query import Side, masked, start
from audit.rng import stream
from audit.types import (
    Batch,
    Defense,
    Examples,
    Exposed,
    Noise,
    Parts,
    Query,
    Release,
    Sampler,
    State,
    StepView,
    Task,
    TrainingSet,
)

TRACE_PROBES = 8  # Rademacher probes a step where no closed form exists


def predictor(task: Task) -> Callable:
    """Return `predict` of a defense that releases parameters of the task's model."""

    def predict(side: Any, release: Release, x: jax.Array) -> jax.Array:
        del side
        return jax.vmap(task.logits, (None, 0))(release.params, x)

    return predict


def noisy_sgd(
    task: Task,
    query: Query,
    sampler: Sampler,
    noise: Noise,
    *,
    optimizer: optax.GradientTransformation,
    steps: int,
    prepare: Callable = start,
    refresh: Callable | None = None,
) -> Defense:
    """Iterate: draw a batch, sum the query over it, add noise, take an optimizer step.

    Division by the batch size, the optimizer and the mask on the noise are
    post-processing of the noised sum, which is what the accounting reads
    (Guo et al. 2022, Theorems 3 and 4).

    Args:
      task: what is learnt.
      query: one example's contribution; owns the sensitivity.
      sampler: who takes part; owns the amplification.
      noise: what is added; owns the precision.
      optimizer: turns the noised mean into an update.
      steps: how many.
      prepare: (key, Public) -> Side; default: the common starting point.
      refresh: (params, side, t) -> Side before step t, from what is public by then: the
        parameters are post-processing of earlier releases, the side is public. None =
        the side stays as it was prepared.

    Returns:
      A Defense whose `fisher` is None without noise or with a query that is not smooth,
      and whose `rdp` and `pld` are None without noise or sensitivity.
    """

    def init(key: jax.Array, side: Side) -> State:
        del key  # one public initialisation, shared by all lanes
        return State(side.params, optimizer.init(side.params), side, jnp.zeros((), int))

    def step(key: jax.Array, state: State, data: TrainingSet) -> tuple:
        return advance(key, state, data, sampler.draw(key, state.t, count(data)))

    def advance(
        key: jax.Array, state: State, data: TrainingSet, batch: Batch
    ) -> tuple[State, StepView]:
        if refresh is not None:
            side = refresh(state.params, state.side, state.t)
            state = state._replace(side=side)
        step_key = stream(jax.random.fold_in(key, state.t), "noise")
        noised = noised_sum(query, noise, step_key, state, data, batch)
        noised = masked(state.side.mask, noised)
        mean = jax.tree.map(lambda u: u / sampler.denominator(count(data)), noised)
        updates, opt = optimizer.update(mean, state.optimizer, state.params)
        # weight decay must not move what is frozen
        updates = masked(state.side.mask, updates)
        params = optax.apply_updates(state.params, updates)
        view = StepView(state.params, state.side, noised, batch, state.t)
        return State(params, opt, state.side, state.t + 1), view

    def train(key: jax.Array, side: Side, data: TrainingSet) -> Release:
        batches = None
        if sampler.schedule is not None:
            batches = sampler.schedule(key, steps, count(data))

        def body(state: State, batch: Batch | None) -> tuple:
            if batch is None:
                return step(key, state, data)[0], None
            return advance(key, state, data, batch)[0], None

        start = init(key, side)
        return Release(jax.lax.scan(body, start, batches, length=steps)[0].params)

    return _account(
        Defense(
            prepare=prepare,
            init=init,
            step=step,
            train=train,
            predict=predictor(task),
            fisher=None,
            log_likelihood=None,
            rdp=None,
            pld=None,
            traits=_traits(task, noise),
            steps=steps,
            # a side that is made anew before each step has no value at given parameters
            exposed=_exposed(query, noise) if refresh is None else None,
            parts=Parts(noise, query, sampler),
        ),
        query,
        sampler,
        noise,
        steps,
    )


def _account(
    defense: Defense, query: Query, sampler: Sampler, noise: Noise, steps: int
) -> Defense:
    """Fill the accounting fields from the parts that trained."""
    init, step = defense.init, defense.step
    if init is None or step is None:
        return defense
    leak = partial(_leak, query, sampler, noise)
    told = {"full_batch": sampler.everybody, "gaussian": noise.stddev is not None}
    defense = defense._replace(
        dissect=dissector(query, step, leak),
        traits=defense.traits | {name for name, holds in told.items() if holds},
    )
    if noise.precision is None:
        return defense

    def along(key: jax.Array, side: Side, data: TrainingSet, see: Callable) -> Any:
        """Sum `see(StepView)` over the steps of one run."""

        def body(carry: tuple, _: None) -> tuple:
            state, total = carry
            state, view = step(key, state, data)
            return (state, jax.tree.map(jnp.add, total, see(view))), None

        state = init(key, side)
        shape = jax.eval_shape(lambda s: see(step(key, s, data)[1]), state)
        zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
        return jax.lax.scan(body, (state, zero), length=steps)[0][1]

    def fisher_trace(key: jax.Array, side: Side, data: TrainingSet, rows: Any) -> Any:
        see = leak(key, data, rows)
        assert see is not None  # there is noise, and the query is smooth
        return along(key, side, data, see)

    def log_likelihood(
        key: jax.Array, side: Side, data: TrainingSet, candidates: Examples
    ) -> jax.Array:
        own = jax.tree.map(lambda a: jnp.asarray(a)[None], data.target)

        def see(view: StepView) -> jax.Array:
            fixed, weight, present = split(data, view.batch)
            own_side = view.side
            known = sum_fixed(query, view.params, own_side, fixed, weight)
            known = masked(own_side.mask, known)
            rest = jax.tree.map(jnp.subtract, view.update, known)
            ratio = partial(_log_ratio, query, view.params, own_side, rest)
            both = jnp.concatenate([ratio(candidates), ratio(own)])
            return present * noise.precision * both

        return along(key, side, data, see)

    exact = noise.stddev is not None  # the log-ratio below is the Gaussian's
    return defense._replace(
        fisher=fisher_trace if query.smooth else None,
        log_likelihood=log_likelihood if exact else None,
        rdp=lambda n, orders, adj: sampler.rdp(noise, query, n, steps, orders, adj),
        pld=lambda n, adj: sampler.pld(noise, query, n, steps, adj),
    )


def _leak(
    query: Query,
    sampler: Sampler,
    noise: Noise,
    key: jax.Array,
    data: TrainingSet,
    rows: Any,
) -> Callable | None:
    """Return StepView -> Fisher information of one step about `rows` [m], or None."""
    if noise.precision is None or not query.smooth:
        return None
    n = count(data)

    def read(view: StepView, rows: Any, weight: Any) -> jax.Array:
        factor = sampler.fisher_factor(noise, query, n, weight)
        probe_key = stream(jax.random.fold_in(key, view.t), "probes")
        probed = records(data, rows)
        own = _information(query, noise, probe_key, view.side, view.params, probed)
        return factor * own

    def see(view: StepView) -> jax.Array:
        present = view.batch.rows
        if not sampler.members_only or present is None or len(present) > len(rows):
            return read(view, rows, weights(view.batch, rows))
        # absent records count nothing: look at the batch alone
        own = read(view, present, view.batch.weight)
        return jnp.zeros(n, own.dtype).at[present].add(own)[rows]

    return see


def _information(
    query: Query, noise: Noise, key: Any, side: Side, params: Any, z: Examples
) -> jax.Array:
    """Return the Fisher information of one release about each record that is in it [m].

    precision x ||J||_F^2, summed over modules where each has its own noise.
    """
    apart = isinstance(noise.precision, dict)
    if query.trace is not None and not apart:
        return noise.precision * query.trace(params, side, z)

    def one(key: jax.Array, z: Examples) -> jax.Array:
        def fn(x: jax.Array) -> Any:
            own = query.fn(params, side, z._replace(x=x))
            if not apart:
                return own
            root = {name: jnp.sqrt(p) for name, p in noise.precision.items()}
            return {
                name: jax.tree.map(lambda a, r=root[name]: r * a, part)
                for name, part in own.items()
            }

        return fisher.hutchinson(key, fn, z.x, TRACE_PROBES)[0]

    each = jax.vmap(one)(jax.random.split(key, len(z.y)), z)
    return each if apart else noise.precision * each


def _traits(task: Task, noise: Noise) -> frozenset[str]:
    linear, noisy = task.linear is not None, noise.log_density is not None
    said = {"noisy_sgd": True, "rows": True, "linear": linear, "noisy": noisy}
    return frozenset(word for word, holds in said.items() if holds)


def _exposed(query: Query, noise: Noise) -> Exposed:
    """Return one step as whoever receives its update sees it."""

    def update(key: jax.Array, side: Side, params: Any, z: Examples) -> Any:
        state = State(params, None, side, jnp.zeros((), int))
        data, everybody = TrainingSet(z, None), Batch(None, None)
        noised = noised_sum(query, noise, key, state, data, everybody)
        return jax.tree.map(lambda u: u / len(z.y), masked(side.mask, noised))

    def log_density(side: Side, params: Any, z: Examples, seen: Any) -> jax.Array:
        assert noise.log_density is not None
        own = query.fn(params, side, z)
        return noise.log_density(own, masked(side.mask, seen))

    weighed = None if noise.log_density is None else log_density
    if noise.precision is None:
        return Exposed(update, None, None, None)

    def curve(orders: Any) -> Any:
        return noise.rdp and noise.rdp(orders, query.sensitivity)

    trace = partial(_information, query, noise) if query.smooth else None
    return Exposed(update, trace, curve if noise.rdp is not None else None, weighed)


def _log_ratio(
    query: Query, params: Any, side: Side, rest: Any, z: Examples
) -> jax.Array:
    """Return s^2 log N(rest; fn(z), s^2) up to what all z share: <r, f> - ||f||^2/2."""
    if query.score is not None:
        inner, square = query.score(params, side, z, rest)
        return inner - square / 2

    def one(z: Examples) -> jax.Array:
        f = query.fn(params, side, z)
        return optax.tree.vdot(rest, f) - optax.tree.vdot(f, f) / 2

    return jax.lax.map(one, z, batch_size=MICRO_BATCH)
