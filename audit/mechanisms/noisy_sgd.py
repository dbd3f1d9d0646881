"""Builder of defenses that take noised steps: Query x Sampler x Noise -> Defense.

Each part acts in training and is read twice in accounting. The builder does all three
from the same objects, so that what is trained is what is accounted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from audit.accounting.traces import Probing, Traced, estimate, spectral_norm
from audit.mechanisms import batch as batches
from audit.mechanisms.query import Side, masked, start
from audit.mechanisms.stepwise import Loop, Stepwise
from audit.rng import stream
from audit.types import (
    Adjacency,
    Alignment,
    Batch,
    Defense,
    Examples,
    Iterative,
    Noise,
    Prepare,
    Query,
    Refresh,
    Release,
    Sampler,
    State,
    Steps,
    StepView,
    Task,
    TrainingSet,
    Trait,
)

PART = 32  # records whose traces are estimated at a time
FEW = 8  # the same where a number known only at run time is read: fewer are in vain


@functools.lru_cache(maxsize=32)  # one program for all defenses of a task
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
    prepare: Prepare = start,
    refresh: Refresh | None = None,
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
      prepare: makes the side; default: the common starting point.
      refresh: makes the side of every step from what is public by then: parameters are
        post-processing of earlier releases. None = the side stays as it was prepared.

    Without noise there are no readings; `fisher` needs a smooth query, too.
    """
    advance = _advance(query, sampler, noise, optimizer, refresh)

    def init(key: jax.Array, side: Side) -> State:
        del key  # one public initialisation, shared by all lanes
        return State(side.params, optimizer.init(side.params), side, jnp.zeros((), int))

    def step(key: jax.Array, state: State, data: TrainingSet) -> tuple:
        batch = sampler.draw(key, state.t, batches.count(data))
        return advance(key, state, data, batch)

    def train(key: jax.Array, side: Side, data: TrainingSet) -> Loop:
        def body(state: State, batch: Batch | None) -> State:
            if batch is None:
                return step(key, state, data)[0]
            return advance(key, state, data, batch)[0]

        planned = None
        if sampler.schedule is not None:
            planned = sampler.schedule(key, steps, batches.count(data))
        return Loop(init(key, side), body, lambda s: Release(s.params), planned)

    def rdp(n: int, orders: Any, adjacency: Adjacency) -> Any:
        return sampler.rdp(noise, query, n, steps, orders, adjacency)

    def pld(n: int, adjacency: Adjacency) -> Any:
        return sampler.pld(noise, query, n, steps, adjacency)

    mechanism = Iterative(query, sampler, noise, init, step, steps, refresh)
    readable = noise.precision is not None
    gaussian = noise.stddev is not None  # `_log_likelihood` holds for no other law
    traits: dict[Trait, bool] = {
        "noisy_sgd": True,
        "rows": True,
        "linear": task.linear is not None,
        "noisy": noise.law.log_density is not None,
        "full_batch": sampler.presence == "certain",
        "gaussian": gaussian,
    }
    return Defense(
        prepare=prepare,
        train=Stepwise(train, steps),
        predict=predictor(task),
        fisher=_fisher(mechanism) if readable and query.smooth else None,
        log_likelihood=partial(_log_likelihood, mechanism) if gaussian else None,
        rdp=rdp if readable else None,
        pld=pld if readable else None,
        traits=frozenset(trait for trait, holds in traits.items() if holds),
        mechanism=mechanism,
    )


def _advance(
    query: Query,
    sampler: Sampler,
    noise: Noise,
    optimizer: optax.GradientTransformation,
    refresh: Refresh | None,
) -> Callable:
    """Return (run key, State, TrainingSet, Batch) -> (State, StepView)."""

    def advance(
        key: jax.Array, state: State, data: TrainingSet, batch: Batch
    ) -> tuple[State, StepView]:
        if refresh is not None:
            side = refresh.side(state.params, state.side, state.t)
            state = state._replace(side=side)
        step_key = stream(jax.random.fold_in(key, state.t), "noise")
        sums = batches.known_and_noised(query, noise, step_key, state, data, batch)
        known, noised = (masked(state.side.mask, total) for total in sums)
        size = sampler.denominator(batches.count(data))
        mean = jax.tree.map(lambda u: u / size, noised)
        updates, opt = optimizer.update(mean, state.optimizer, state.params)
        # weight decay must not move what is frozen
        updates = masked(state.side.mask, updates)
        params = optax.apply_updates(state.params, updates)
        view = StepView(state.params, state.side, noised, batch, state.t, known)
        return State(params, opt, state.side, state.t + 1), view

    return advance


# The readings -------------------------------------------------------------------------


def _along(
    mechanism: Iterative,
    key: jax.Array,
    side: Side,
    data: TrainingSet,
    read: Callable,
    every: int = 1,
) -> Loop:
    """Return the loop to the sum of `read(StepView)` over the steps of one run.

    With `every` above 1 the sum is of `Traced`, and one step of each stretch of so many
    stands for the stretch. Every run draws its own, so that runs differ by what the
    draws add to the error. The step is kept until the stretch ends, for all runs at
    once, and is read there: under a vmap the readings of other steps cost nothing.
    """

    def body(carry: tuple, _: None) -> tuple:
        state, total = carry
        state, view = mechanism.step(key, state, data)
        return state, jax.tree.map(jnp.add, total, read(view))

    def stretched(carry: tuple, planned: tuple) -> tuple:
        (state, total, kept), (drawn, length) = carry, planned
        state, view = mechanism.step(key, state, data)
        kept = jax.tree.map(partial(jnp.where, drawn), _unsummed(view), kept)
        counted = lambda view: read(view).scaled(length)
        more = jax.lax.cond(length > 0, counted, lambda view: zero, kept)
        return state, jax.tree.map(jnp.add, total, more), kept

    def looked_at(state: State) -> tuple:
        view = mechanism.step(key, state, data)[1]
        return read(view), _unsummed(view)

    state = mechanism.init(key, side)
    shapes = jax.eval_shape(looked_at, state)
    zero, empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    if every == 1:
        return Loop((state, zero), body, lambda carry: carry[1])
    planned = _drawn(stream(key, "every"), mechanism.steps, every)
    return Loop((state, zero, empty), stretched, lambda carry: carry[1], planned)


def _unsummed(view: StepView) -> StepView:
    """Return the step without its sums, which say nothing of what a record adds."""
    return view._replace(update=None, known=None)


def _drawn(key: jax.Array, steps: int, every: int) -> tuple[jax.Array, jax.Array]:
    """Return whether a step is drawn [steps]; and the length of the stretch it ends.

    One step of each stretch is drawn; the length [steps] is 0 where no stretch ends.
    """
    first = np.arange(0, steps, every)
    lengths = np.minimum(every, steps - first)
    chosen = first + jax.random.randint(key, first.shape, 0, lengths)
    drawn = jnp.zeros(steps, bool).at[chosen].set(True)
    return drawn, jnp.zeros(steps).at[first + lengths - 1].set(lengths)


def _fisher(mechanism: Iterative) -> Stepwise:
    """Return `Defense.fisher`; with settings for what is estimated, of `Traced`.

    With `Probing.released`, of `Traced` and the `Release` of the run that is read.
    """

    def fisher(
        key: jax.Array,
        side: Side,
        data: TrainingSet,
        rows: Any,
        how: Probing | None = None,
    ) -> Loop:
        probing = how or Probing()
        read = step_traces(mechanism, key, data, rows, probing)
        assert read is not None  # there is noise, and the query is smooth
        loop = _along(mechanism, key, side, data, read, probing.every)
        if probing.released:
            both = lambda carry: (carry[1], Release(carry[0].params))
            return loop._replace(last=both)
        if how is not None:
            return loop
        return loop._replace(last=lambda carry: loop.last(carry).trace)

    return Stepwise(fisher, mechanism.steps)


def step_information(
    mechanism: Iterative, key: jax.Array, data: TrainingSet, rows: Any
) -> Callable | None:
    """Return StepView -> Fisher information [m] of that step about `rows` [m].

    The rows are those of the training set, and slot N is the target; `key` is that of
    the run. None without noise, or with a query that is not smooth.
    """
    read = step_traces(mechanism, key, data, rows)
    return None if read is None else lambda view: read(view).trace


def step_traces(
    mechanism: Iterative,
    key: jax.Array,
    data: TrainingSet,
    rows: Any,
    how: Probing = Probing(),  # noqa: B008
) -> Callable | None:
    """Return StepView -> `Traced` [m]; as `step_information`."""
    query, sampler, noise, *_ = mechanism
    if noise.precision is None or not query.smooth:
        return None
    n = batches.count(data)

    def of_release(view: StepView, rows: Any, first: Any = None) -> Traced:
        probe_key = stream(jax.random.fold_in(key, view.t), "probes")
        z = batches.records(data, rows)
        parts = probe_key, view.side, view.params, z, how
        return traced(query, noise, *parts, first=first)

    def read(view: StepView) -> Traced:
        if sampler.fisher_factor is not None:
            factor = sampler.fisher_factor(noise, query, n)
            return of_release(view, rows).scaled(factor)
        present = view.batch.rows
        if present is None or len(rows) <= min(PART, len(present)):
            return of_release(view, rows).scaled(batches.weights(view.batch, rows))
        assert view.batch.weight is not None, "a batch of rows has weights"
        # a record outside the batch counts nothing: look at those in both alone
        wanted = jnp.zeros(n, bool).at[rows].set(True)
        weight = view.batch.weight * wanted[present]
        order = jnp.argsort(weight == 0)
        present, weight = present[order], weight[order]
        inside = of_release(view, present, (weight != 0).sum()).scaled(weight)
        spread = lambda a: jnp.zeros(n, a.dtype).at[present].add(a)[rows]
        return jax.tree.map(spread, inside)

    return read


def information(
    query: Query, noise: Noise, key: Any, side: Side, params: Any, z: Examples
) -> jax.Array:
    """Return the Fisher information [m] of one release about the records z in it [m].

    precision x ||J||_F^2 at `params`, summed over modules where each has its own noise.
    By the query's closed form where it has one, else by `Probing`'s random probes.
    """
    return traced(query, noise, key, side, params, z, Probing()).trace


def traced(
    query: Query,
    noise: Noise,
    key: Any,
    side: Side,
    params: Any,
    z: Examples,
    how: Probing,
    *,
    first: Any = None,
) -> Traced:
    """Return `information` and all that `Traced` has, PART records at a time.

    With `first`, so many of the records are read, and more up to a multiple of FEW;
    the rest are 0. It may be traced: records that nobody asks for cost nothing.
    """
    apart = isinstance(noise.precision, dict)
    closed = None if apart else query.closed_forms.trace

    def exact(z: Examples) -> Traced:
        assert closed is not None, "looked for below"
        trace = noise.precision * closed(params, side, z)
        return Traced(trace, jnp.zeros_like(trace))

    if closed is not None and not how.lanczos:
        return exact(z)

    def moved(z: Examples, u: jax.Array) -> jax.Array:
        """Return ||J u||^2 of one record, in units of the noise."""

        def fn(x: jax.Array) -> Any:
            return query.fn(params, side, z._replace(x=x))

        change = jax.jvp(fn, (z.x,), (u.reshape(z.x.shape),))[1]
        blocks = change if apart else {"": change}
        precision = noise.precision if apart else {"": noise.precision}
        return sum(precision[k] * optax.tree.vdot(b, b) for k, b in blocks.items())

    def form(z: Examples, u: jax.Array) -> jax.Array:
        motion = query.closed_forms.motion
        if motion is None or apart:
            return jax.vmap(moved)(z, u)
        return noise.precision * motion(params, side, z, u)

    def part(key: jax.Array, z: Examples) -> Traced:
        of = partial(form, z), (len(z.y), z.x[0].size), z.x.dtype
        read = exact(z) if closed is not None else estimate(how, key, *of)
        if not how.lanczos:
            return read
        return read._replace(norm=spectral_norm(key, *of, how.lanczos))

    n, size = len(z.y), PART if first is None else FEW
    if n <= size:
        return part(key, z)
    at = jnp.arange(n + -n % size).reshape(-1, size) % n  # the last part is filled
    keys = jax.random.split(key, len(at))

    def more(i: Any, parts: Traced) -> Traced:
        new = part(keys[i], batches.take(z, at[i]))
        return jax.tree.map(lambda a, b: a.at[i].set(b), parts, new)

    zero = jax.eval_shape(part, key, batches.take(z, at[0]))
    empty = jax.tree.map(lambda a: jnp.zeros((len(at), *a.shape), a.dtype), zero)
    last = len(at) if first is None else (first + size - 1) // size
    parts = jax.lax.fori_loop(0, last, more, empty)
    return jax.tree.map(lambda a: a.reshape(-1)[:n], parts)


class TargetInformation(NamedTuple):
    """Fisher information about the target in all steps of one run, and its trace.

    I = diag(diagonal) + sum_t factor_t core_t factor_t^T
    """

    trace: Any  # [] as `Defense.fisher` reads it
    diagonal: Any  # [d]
    factor: Any  # [T, d, r]
    core: Any  # [T, r, r]


def information_matrix(
    mechanism: Iterative, key: jax.Array, side: Side, data: TrainingSet
) -> TargetInformation:
    """Return the information of the run of `key`, of queries whose matrix is known."""
    query, sampler, noise, *_ = mechanism
    n = batches.count(data)
    rows = jnp.array([n - 1])
    matrix, trace = query.closed_forms.information, query.closed_forms.trace
    assert matrix is not None
    assert trace is not None

    def body(state: State, _: None) -> tuple:
        state, view = mechanism.step(key, state, data)
        if sampler.fisher_factor is not None:
            factor = sampler.fisher_factor(noise, query, n)
        else:
            factor = batches.weights(view.batch, rows)[0]
        z = batches.records(data, rows)
        total = trace(view.params, view.side, z)[0]
        diagonal, sides, core = (a[0] for a in matrix(view.params, view.side, z))
        scale = factor * noise.precision
        return state, TargetInformation(
            scale * total, scale * diagonal, sides, scale * core
        )

    first = mechanism.init(key, side)
    each: TargetInformation = jax.lax.scan(body, first, length=mechanism.steps)[1]
    return each._replace(trace=each.trace.sum(0), diagonal=each.diagonal.sum(0))


def transcript(
    mechanism: Iterative, key: jax.Array, side: Side, data: TrainingSet
) -> Steps:
    """Return the steps of the run that `train` makes with the same key and data.

    What they show has a known law where noise is added to the sum: `Noise.at`.
    """

    def body(state: State, _: None) -> tuple:
        state, view = mechanism.step(key, state, data)
        return state, Steps(view.params, view.update, _rest(view))

    first = mechanism.init(key, side)
    return jax.lax.scan(body, first, length=mechanism.steps)[1]


def _rest(view: StepView) -> Any:
    """Return the noised sum of a step less what the known records contribute."""
    return jax.tree.map(jnp.subtract, view.update, view.known)


def _log_likelihood(
    mechanism: Iterative,
    key: jax.Array,
    side: Side,
    data: TrainingSet,
    candidates: Examples,
) -> jax.Array:
    query, noise = mechanism.query, mechanism.noise
    target = jax.tree.map(lambda a: jnp.asarray(a)[None], data.target)

    def read(view: StepView) -> jax.Array:
        present = batches.split(data, view.batch)[2]
        ratio = partial(_log_ratio, query, view.params, view.side, _rest(view))
        both = jnp.concatenate([ratio(candidates), ratio(target)])
        return present * noise.precision * both

    return _along(mechanism, key, side, data, read).whole(mechanism.steps)


def _log_ratio(
    query: Query, params: Any, side: Side, rest: Any, z: Examples
) -> jax.Array:
    """Return s^2 log N(rest; fn(z), s^2) up to what all z share: <r, f> - ||f||^2/2."""
    inner, square = _score(query, params, side, rest, z)
    return inner - square / 2


def _score(query: Query, params: Any, side: Side, rest: Any, z: Examples) -> tuple:
    """Return <rest, fn(z)> and ||fn(z)||^2 of every z [m], by closed form if any."""
    if query.closed_forms.score is not None:
        return query.closed_forms.score(params, side, z, rest)

    def one(z: Examples) -> tuple:
        f = query.fn(params, side, z)
        return optax.tree.vdot(rest, f), optax.tree.vdot(f, f)

    return jax.lax.map(one, z, batch_size=batches.MICRO_BATCH)


def alignment(
    mechanism: Iterative,
    key: jax.Array,
    side: Side,
    data: TrainingSet,
    candidates: Examples,
) -> Alignment:
    """Return what the run's noised steps say of every candidate, folded step by step.

    The reader knows all records but the target, and which of them are in each batch,
    but not whether the target is: with share q of the steps and l the log-likelihood
    ratio of a step that it is in, the step's is log(1 - q + q e^l).

    Noise is added to the sum, or is one draw around the sum of a batch of everybody.
    """
    query, sampler, noise, *_ = mechanism
    assert sampler.presence is not None, "batches of which one part tells the other"
    n = batches.count(data)
    share = 1.0 if sampler.presence == "certain" else sampler.denominator(n) / n

    def added(view: StepView) -> Alignment:
        scored = _score(query, view.params, view.side, _rest(view), candidates)
        inner, square = scored
        ratio = noise.precision * (inner - square / 2)
        if share < 1:
            ratio = jnp.logaddexp(math.log1p(-share), math.log(share) + ratio)
        return Alignment(inner, square, ratio)

    def around(view: StepView) -> Alignment:
        drawn = optax.tree.scale(1 / n, view.update)

        def one(z: Examples) -> Alignment:
            f = query.fn(view.params, view.side, z)
            total = optax.tree.add(view.known, masked(view.side.mask, f))
            assert noise.law.log_density is not None
            ratio = noise.law.log_density(total, drawn)
            return Alignment(optax.tree.vdot(drawn, f), optax.tree.vdot(f, f), ratio)

        return jax.lax.map(one, candidates, batch_size=batches.MICRO_BATCH)

    read = {"sum": added, "batch": around}[noise.at]
    return _along(mechanism, key, side, data, read).whole(mechanism.steps)
