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

from audit.accounting import bounds
from audit.data.pool import originals
from audit.engine import shadow
from audit.engine.precision import double
from audit.engine.program import Recipe
from audit.games import base, guarantees, leave_one_out, scoring
from audit.games.base import Game, Result, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms.batch import noised_sum
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
    State,
    ThreatModel,
    TrainingSet,
)

TOGETHER = 32  # targets whose updates are alive, and attacked, at a time


Place = Literal["trained", "start"]


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
        release=release,
        account=partial(account, exposed),
        play=partial(play, exposed),
        view=VIEW,
        floor="class_mean",
        refuses=_refuses,
        targets=True,
        squared_error=True,
        prior_only=True,
    )


def _refuses(model: ThreatModel, defense: Defense) -> str | None:
    if base.shown(model, "update") and exposed_step(defense) is None:
        return "the defense shows no step before its release"
    return None


def release(key: jax.Array, learner: shadow.Learner, table: Table) -> Runs[jax.Array]:
    """Train on the fixed records; keep the key by which their updates are drawn."""
    runs = leave_one_out.release(key, learner, table)
    return Runs(runs.releases, stream(key, "exposed"), runs.noiseless, runs.alike)


def account(
    place: Place,
    key: jax.Array,
    learner: shadow.Learner,
    table: Table,
    runs: Runs[jax.Array],
    trajectories: int,
    delta: float,
) -> Guarantees:
    """Account for one update of each target, at every run's parameters.

    `rdp2` and the bounds are of that update; epsilon is of the training run.
    """
    problem, n = table.problem, len(table.problem.splits.fixed.y)
    limits = Guarantees(
        epsilon=guarantees.epsilon(learner, n, delta),
        nominal=guarantees.nominal(learner, n),
    )
    step = exposed_step(learner.defense)
    if step is None:
        return limits
    trace, bounds_here = None, []
    if step.trace is not None:
        each = [
            _traces(place, jax.random.fold_in(key, i), learner, table, runs, i)
            for i in range(min(trajectories, _count(runs)))
        ]
        trace = np.stack(each, 1).mean(1)
        limits = limits._replace(dfil=trace / problem.splits.targets.x[0].size)
        bounds_here.append(bounds.cramer_rao(limits.dfil))
    curve = None if step.rdp is None else step.rdp(np.array([2.0]))
    if curve is not None and np.isfinite(curve).all():
        order2, domain = float(curve[0]), problem.task.domain
        limits = limits._replace(rdp2=order2)
        bounds_here.append(bounds.hammersley_chapman_robbins(order2, domain))
    bounds_here += guarantees.from_plug_ins(problem, trace, step.rdp, None)
    return limits._replace(bounds=tuple(bounds_here))


def _count(runs: Runs) -> int:
    return len(jax.tree.leaves(runs.releases)[0])


def _params(place: Place, learner: shadow.Learner, runs: Runs, run: int) -> Any:
    """Return where the step is taken: at a run's end, or where all runs start."""
    if place == "start":
        return learner.side.params
    return jax.tree.map(lambda a: a[run], runs.releases.params)


def _traces(
    place: Place,
    key: jax.Array,
    learner: shadow.Learner,
    table: Table,
    runs: Runs,
    run: int,
) -> np.ndarray:
    """Return the Fisher information of one update about every target, in float64."""
    with jax.enable_x64(True):
        read = _programs(learner.recipe).trace
        params = _params(place, learner, runs, run)
        targets = table.problem.splits.targets
        side, params, z = double((learner.side, params, targets))
        parts = []
        for start in range(0, len(z.y), TOGETHER):
            part = jax.tree.map(lambda a, s=start: a[s : s + TOGETHER], z)
            parts.append(np.asarray(read(learner.floats, key, side, params, part)))
        return np.concatenate(parts)


class Exposed(NamedTuple):
    """One step at given parameters, as whoever receives its update sees it."""

    update: Callable  # (key, side, params, Examples [b]) -> Updates, their noised mean
    trace: Callable | None  # (key, side, params, Examples [m]) -> Fisher information of
    # one such update about each record [m]; None = no bound
    rdp: Callable | None  # (orders) -> [orders], replace-one; None = no bound
    log_density: Callable | None  # (side, params, example, Updates) -> [], of the
    # update of that record alone, up to what all records share; None = not known


def exposed_step(defense: Defense) -> Exposed | None:
    """Return one step of a defense; None where nothing is shown before the release."""
    mechanism = base.steppable(defense)
    if mechanism is None:
        return None
    query, noise = mechanism.query, mechanism.noise

    def update(key: jax.Array, side: Any, params: Any, z: Examples) -> Any:
        state = State(params, None, side, jnp.zeros((), int))
        data, everybody = TrainingSet(z, None), Batch(None, None)
        noised = noised_sum(query, noise, key, state, data, everybody)
        return jax.tree.map(lambda u: u / len(z.y), masked(side.mask, noised))

    def log_density(side: Any, params: Any, z: Examples, update: Any) -> jax.Array:
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
    )


class _ExposedPrograms(NamedTuple):
    """A defense's exposed step; floats are traced, so that a sweep compiles once."""

    update: Any  # (floats, side, params, records [m], keys [m]) -> updates [m]
    trace: Any  # (floats, key, side, params, records [m]) -> [m]
    log_density: Any  # (floats, side, params, record, update) -> []


@functools.cache
def _programs(recipe: Recipe) -> _ExposedPrograms:
    def step(floats: dict) -> Exposed:
        exposed = exposed_step(recipe.build(floats))
        assert exposed is not None
        return exposed

    def update(floats: dict, side: Any, params: Any, z: Examples, keys: Any) -> Any:
        def alone(z: Examples, key: Any) -> Any:
            one = jax.tree.map(lambda a: a[None], z)
            return step(floats).update(key, side, params, one)

        return jax.vmap(alone)(z, keys)

    def trace(floats: dict, *at: Any) -> Any:
        read = step(floats).trace
        assert read is not None
        return read(*at)

    def log_density(floats: dict, *at: Any) -> Any:
        density = step(floats).log_density
        assert density is not None
        return density(*at)

    return _ExposedPrograms(jax.jit(update), jax.jit(trace), log_density)


def play(
    place: Place,
    key: jax.Array,
    attack: Attack,
    learner: shadow.Learner,
    runs: Runs[jax.Array | None],
    limits: Guarantees,
    table: Table,
) -> Result:
    """Let one attack rebuild every target from its update; return its scores."""
    model, splits = attack.threat_model, table.problem.splits
    likelihood = None
    if base.shown(model, "likelihood"):
        law = _programs(learner.recipe).log_density
        likelihood = jax.tree_util.Partial(law, learner.floats, learner.side)
    knowledge = base.grant(model, learner, table, likelihood=likelihood)
    state, diagnostics = base.fitted(key, attack, knowledge)
    number = _count(runs) if base.shown(model, "update") else 1
    each = [
        _guess_all(place, key, attack, state, learner, runs, table, run)
        for run in range(number)
    ]
    guesses = np.stack(each, 1)  # [targets, runs, *features]
    result = scoring.result(guesses, splits.targets, limits, table, diagnostics)
    error = normalised(guesses, splits.targets.x, originals(splits).x)
    numbers = {
        "mse_normalised": float(error.mean()),
        "mse_normalised_median": float(np.median(error)),
        "matching": metrics.matching(guesses[:, 0], splits.targets.x),
    }
    return result._replace(numbers=result.numbers | numbers)


def normalised(guesses: np.ndarray, targets: np.ndarray, pool: Any) -> np.ndarray:
    """Return each target's error in standard deviations of its channel, squared.

    The mean image's is about 1 less what images have in common; 2 is noise of the
    right contrast (the units of Faustini et al. 2023, Table 4).

    Args:
      guesses: [targets, runs, *features].
      targets: [targets, *features].
      pool: [m, *features] whose channels have the deviations.

    Returns:
      [targets] means over runs.
    """
    pool = np.asarray(pool, float)
    sd = pool.std(tuple(range(pool.ndim - 1)))
    gap = (np.asarray(guesses, float) - np.asarray(targets, float)[:, None]) / sd
    return (gap**2).mean(tuple(range(1, gap.ndim)))


def _guess_all(
    place: Place,
    key: jax.Array,
    attack: Attack,
    state: Any,
    learner: shadow.Learner,
    runs: Runs[jax.Array | None],
    table: Table,
    run: int,
) -> np.ndarray:
    """Guess every target at one run, TOGETHER at a time; the last lot is padded."""
    z, guess = table.problem.splits.targets, _guesser(attack)
    params: Any = None
    update: Any = None
    looks = base.shown(attack.threat_model, "update")
    if looks:
        params = _params(place, learner, runs, run)
        update = _programs(learner.recipe).update
    n, what, parts = len(z.y), f"{learner.label}: guesses", []
    size = min(TOGETHER, n)
    table.engine.report(what, 0, n)
    for start in range(0, n, size):
        rows = np.minimum(np.arange(start, start + size), n - 1)  # the last is padded
        part = jax.tree.map(lambda a, r=rows: np.asarray(a)[r], z)
        shown = None
        if looks:
            noise_keys = _keys(runs.evidence, run, rows)
            shown = update(learner.floats, learner.side, params, part, noise_keys)
        keys = _keys(stream(key, "guess"), run, rows)
        parts.append(np.asarray(guess(state, params, part, shown, keys)))
        table.engine.report(what, min(start + size, n), n)
    return np.concatenate(parts)[:n]


def _keys(key: Any, run: int, rows: np.ndarray) -> jax.Array:
    """Return a key for each target of one run."""
    root = jax.random.fold_in(key, run)
    return jax.vmap(lambda i: jax.random.fold_in(root, i))(rows)


@functools.lru_cache(maxsize=16)
def _guesser(attack: Attack) -> Callable:
    """Return (state, params, records, updates, keys) -> guesses; all defenses share it.

    Second derivatives take long to compile.
    """

    def one(state: Any, params: Any, z: Examples, update: Any, key: Any) -> jax.Array:
        observation = base.observe(
            attack.threat_model, params=params, update=update, label=z.y, target=z.x
        )
        return attack.guess(state, key, observation)

    return jax.jit(jax.vmap(one, (None, None, 0, 0, 0)))


VIEW = View(
    units="MSE per pixel, pixels in [0, 1]; ± one standard error over targets; "
    "normalised: in variances of the pool's channels, median over targets; bounds are "
    "on one exposed update, epsilon is of the training run",
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
