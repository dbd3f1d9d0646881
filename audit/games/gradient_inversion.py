"""The game of gradient inversion: whoever receives one step's update attacks it.

A defense is trained on the fixed records, `runs` times; that model's accuracy is the
card's utility. At its parameters, or at the start's, each target then takes one step
alone, and the attacker sees parameters and noised update (Geiping et al. 2020: the
honest but curious server, batch of one). Bounds are on that one update.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.accounting import bounds
from audit.data.pool import originals
from audit.engine.precision import double
from audit.engine.program import Recipe
from audit.engine.shadow import Learner
from audit.games import base, guarantees, leave_one_out, scoring
from audit.games.base import Game, Result, Runs, Table, Trainings, take
from audit.games.guarantees import Guarantees
from audit.mechanisms.batch import known_and_noised
from audit.mechanisms.noisy_sgd import information
from audit.mechanisms.query import masked
from audit.rng import stream
from audit.scorecard.view import Column, View, number, of_best, rounded_share
from audit.statistics import metrics
from audit.types import (
    Attack,
    Batch,
    Defense,
    Examples,
    Iterative,
    Splits,
    State,
    ThreatModel,
    TrainingSet,
)

TOGETHER = 32  # targets whose dFIL is computed at a time
Place = Literal["trained", "start"]


class Exposure(NamedTuple):
    """Where the exposed steps are taken, and by which key their noise is drawn."""

    params: tuple[Any, ...]  # of each run
    key: Array


def exposed(*, exposed: Literal["trained", "start"] = "trained") -> Game:
    """Rebuild a record from the one noised update it takes alone.

    Args:
      exposed: where that step is taken: at each run's end, or where all runs start.
    """
    return Game(
        goal="inversion",
        grants=base.granting(
            "label",
            "init",
            "public",
            mechanism="the law of the noise",
            update="one step's noised gradient",
        ),
        release=partial(release, exposed),
        account=account,
        play=play,
        view=VIEW,
        floor="class_mean",
        records=in_one_run,
        # nothing is read along a whole run
        trainings=lambda table: Trainings(
            {"target": table.runs}, {"accounting": 0}, table.runs
        ),
        refuses=_refuses,
        targets=True,
        squared_error=True,
        prior_only=True,
    )


def in_one_run(splits: Splits) -> int:
    """Return how many records one run has, which are the fixed ones."""
    return len(splits.fixed.y)


def _refuses(model: ThreatModel, defense: Defense) -> str | None:
    hidden = base.shown(model, "update") and exposed_step(defense) is None
    return "the defense shows no step before its release" if hidden else None


def release(place: Place, key: Array, learner: Learner, table: Table) -> Runs[Exposure]:
    """Train on the fixed records; keep where and by which key updates are drawn."""
    runs = leave_one_out.release(key, learner, table)
    ends = runs.releases.params
    params = [take(ends, i) for i in range(len(jax.tree.leaves(ends)[0]))]
    if place == "start":
        params = [getattr(learner.side, "params", None)] * len(params)
    exposure = Exposure(tuple(params), stream(key, "exposed"))
    return Runs(learner, runs.releases, exposure, runs.noiseless, runs.alike)


def account(key: Array, runs: Runs[Exposure], table: Table) -> Guarantees:
    """Account for one update of each target, at every run's parameters.

    `rdp2` and the bounds are of that update; epsilon is of the training run.
    """
    problem, learner = table.problem, runs.learner
    n = in_one_run(problem.splits)
    limits = guarantees.without_bounds(learner, n, table.delta)
    step = exposed_step(learner.defense)
    if step is None:
        return limits
    trace, bounds_here = None, []
    if step.trace is not None and table.fisher.anybody:
        many = runs.evidence.params
        count, targets = min(table.trajectories, len(many)), problem.splits.targets
        each = [  # the second for the error, by other probes at least
            _traces(jax.random.fold_in(key, i), learner, many[i % len(many)], targets)
            for i in range(max(2, count))
        ]
        traces = np.stack(each, 1)
        trace = traces[:, :count].mean(1)
        limits = limits._replace(
            dfil=trace / targets.x[0].size,
            dfil_error=guarantees.relative_error(traces, count),
        )
        bounds_here.append(bounds.cramer_rao(limits.dfil))
    rdp2 = guarantees.order_two(step.rdp)
    if rdp2 is not None:
        limits = limits._replace(rdp2=rdp2)
        if problem.room is not None:
            bounds_here.append(bounds.hammersley_chapman_robbins(rdp2, problem.room))
    bounds_here += guarantees.from_plug_ins(problem, trace, step.rdp, None)
    return limits._replace(bounds=tuple(bounds_here))


def _traces(key: Array, learner: Learner, params: Any, targets: Examples) -> np.ndarray:
    """Return the Fisher information of one update about every target, in float64."""
    with jax.enable_x64(True):
        read = jax.jit(_program(learner.recipe, "trace"))
        side, params, z = double((learner.side, params, targets))
        parts = [
            read(learner.floats, key, side, params, take(z, slice(i, i + TOGETHER)))
            for i in range(0, len(z.y), TOGETHER)
        ]
        return np.concatenate(parts)


class Exposed(NamedTuple):
    """One step at given parameters, as whoever receives its update sees it."""

    update: Callable  # (key, side, params, Examples [b]) -> Updates, their noised mean
    trace: Callable | None  # (key, side, params, Examples [m]) -> Fisher information of
    # one such update about each record [m]; None = no bound
    rdp: Callable | None  # (orders) -> [orders], replace-one; None = no bound
    log_density: Callable | None  # (side, params, example, Updates) -> [], of the
    # update of that record alone, up to what all records share; None = not known
    variance: Any  # mean over the entries of such an update; None = not known


def exposed_step(defense: Defense) -> Exposed | None:
    """Return one step of a defense; None where nothing is shown before the release."""
    mechanism = defense.mechanism
    # a side that is made anew before each step has no value at given parameters
    if not isinstance(mechanism, Iterative) or mechanism.refresh is not None:
        return None
    query, noise = mechanism.query, mechanism.noise

    def update(key: Array, side: Any, params: Any, z: Examples) -> Any:
        state = State(params, None, side, jnp.zeros((), int))
        data, everybody = TrainingSet(z, None), Batch(None, None)
        noised = known_and_noised(query, noise, key, state, data, everybody)[1]
        return jax.tree.map(lambda u: u / len(z.y), masked(side.mask, noised))

    def log_density(side: Any, params: Any, z: Examples, update: Any) -> Array:
        assert noise.law.log_density is not None
        contribution = query.fn(params, side, z)
        return noise.law.log_density(contribution, masked(side.mask, update))

    def curve(orders: Any) -> Any:
        return noise.rdp and noise.rdp(orders, query.sensitivity)

    readable = noise.precision is not None
    return Exposed(
        update,
        partial(information, query, noise) if readable and query.smooth else None,
        curve if readable and noise.rdp is not None else None,
        log_density if readable and noise.law.log_density is not None else None,
        noise.law.variance,
    )


@functools.cache
def _program(recipe: Recipe, name: str) -> Callable:
    """Return a function of the exposed step, its floats the first argument: traced."""

    def run(floats: dict, *at: Any) -> Any:
        return getattr(exposed_step(recipe.build(floats)), name)(*at)

    return run


@functools.cache
def _updates(recipe: Recipe) -> Callable:
    """Return (floats, side, params, records [m], keys [m]) -> updates [m]."""
    update = _program(recipe, "update")

    def alone(floats: dict, side: Any, params: Any, z: Examples, key: Any) -> Any:
        return update(floats, key, side, params, take(z, None))

    return jax.jit(jax.vmap(alone, (None, None, None, 0, 0)))


def play(
    key: Array, attack: Attack, runs: Runs[Exposure], limits: Guarantees, table: Table
) -> Result:
    """Let one attack rebuild every target from its update; return its scores."""
    model, learner = attack.threat_model, runs.learner
    splits, step = table.problem.splits, exposed_step(learner.defense)
    law = _program(learner.recipe, "log_density")
    state, info = base.fitted(
        key,
        attack,
        learner,
        table,
        likelihood=jax.tree_util.Partial(law, learner.floats, learner.side),
        variance=None if step is None else step.variance,
    )
    number = len(runs.evidence.params) if base.shown(model, "update") else 1
    each = [_guess_all(key, attack, state, runs, table, run) for run in range(number)]
    guesses = np.stack(each, 1)  # [targets, runs, *features]
    result = scoring.result(guesses, splits.targets, limits, table, info)
    error = normalised(guesses, splits.targets.x, originals(splits).x)
    numbers = {
        "mse_normalised": float(error.mean()),
        "mse_normalised_median": float(np.median(error)),
        "matching": metrics.matching(guesses[:, 0], splits.targets.x),
    }
    return result._replace(numbers=result.numbers | numbers)


def normalised(guesses: np.ndarray, targets: np.ndarray, pool: Any) -> np.ndarray:
    """Return each target's error in variances of its channel, mean over runs [targets].

    The mean image's is about 1 less what images have in common; 2 is noise of the
    right contrast (the units of Faustini et al. 2023, Table 4). Guesses are [targets,
    runs, *features]; the variances are those of the channels of `pool` [m, *features].
    A channel in which the pool is constant has no unit, and does not count.
    """
    pool = np.asarray(pool, float)
    axes = tuple(range(pool.ndim - 1))
    gap = np.asarray(guesses, float) - np.asarray(targets, float)[:, None]
    varies = np.ptp(pool, axes) > 0  # rounding leaves a constant some deviation
    gap = np.compress(varies, gap, -1) / pool.std(axes)[varies]
    return (gap**2).mean(tuple(range(1, gap.ndim)))


def _guess_all(
    key: Array, attack: Attack, state: Any, runs: Runs[Exposure], table: Table, run: int
) -> np.ndarray:
    """Guess every target at one run."""
    z, learner, guess = table.problem.splits.targets, runs.learner, _guesser(attack)
    exposure, looks = runs.evidence, base.shown(attack.threat_model, "update")
    params = exposure.params[run] if looks else None

    def arguments(rows: np.ndarray) -> tuple:
        part, update = take(z, rows), None
        if looks:
            draw, keys = _updates(learner.recipe), _keys(exposure.key, run, rows)
            update = draw(learner.floats, learner.side, params, part, keys)
        return part, update, _keys(stream(key, "guess"), run, rows)

    report, what = table.engine.report, f"{learner.label}: guesses"
    return base.guesses(guess, (state, params), arguments, len(z.y), report, what)


def _keys(key: Any, run: int, rows: np.ndarray) -> Array:
    """Return a key for each target of one run."""
    root = jax.random.fold_in(key, run)
    return jax.vmap(lambda i: jax.random.fold_in(root, i))(rows)


@functools.lru_cache(maxsize=16)
def _guesser(attack: Attack) -> Callable:
    """Return (state, params, records, updates, keys) -> guesses; all defenses share it.

    Second derivatives take long to compile.
    """

    def one(state: Any, params: Any, z: Examples, update: Any, key: Any) -> Array:
        observation = base.observe(
            attack.threat_model, params=params, update=update, label=z.y, target=z.x
        )
        return attack.guess(state, key, observation)

    return jax.jit(jax.vmap(one, (None, None, 0, 0, 0)))


VIEW = View(
    units=lambda card: (
        f"{scoring.units(card)}; ± one standard error over targets; "
        "normalised: in variances of the pool's channels, median over targets; bounds "
        "are on one exposed update, epsilon is of the training run"
    ),
    attack=(
        *scoring.REBUILT,
        Column(
            "normalised median", of_best(lambda r: number(r["mse_normalised_median"]))
        ),
        Column("PSNR", of_best(lambda r: number(r["psnr_median"], 1)), narrow=False),
        Column(
            "matched", of_best(lambda r: rounded_share(r["matching"])), narrow=False
        ),
    ),
    trial=scoring.TRIAL
    | {
        "normalised": lambda r: number(r["mse_normalised"]),
        "normalised, median": lambda r: number(r["mse_normalised_median"]),
        "matched": lambda r: rounded_share(r["matching"]),
    },
    trial_words=scoring.TRIAL_WORDS,
    verdict=scoring.verdict,
    bounds=scoring.BOUNDS[:2],
)
