"""The game of Balle et al. (2022): one unknown record joins the fixed ones, per run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from audit.accounting.closed_world import closed_world
from audit.compilation import options
from audit.engine.precision import double
from audit.engine.program import Recipe
from audit.engine.shadow import Learner, sweep
from audit.games import base, controls, guarantees, scoring
from audit.games.base import Game, Result, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms.batch import gathered
from audit.mechanisms.output_perturbation import objective_of
from audit.mechanisms.stepwise import Stepwise
from audit.rng import stream
from audit.scorecard.flags import is_void
from audit.scorecard.view import Column, Line, View, number
from audit.types import (
    Attack,
    Defense,
    Examples,
    Iterative,
    Release,
    Replay,
    Splits,
    StepLaw,
    Steps,
    ThreatModel,
    TrainingSet,
)

# the steps of all runs, made when an attack asks for them
Transcript = Callable[[], Steps]
CALL = 8  # guesses from whole runs that a core makes when it is called, one by one
TOGETHER = 32  # of them that a GPU makes at a time
# Releases that are guessed at together, so that memory does not grow with their number.
FEW = 512  # Guesses at so few take less time than their program's compilation.


def reconstruction() -> Game:
    """Rebuild the one unknown record of each run from what it released."""
    return Game(
        goal="reconstruction",
        grants=base.granting(
            "fixed",
            "label",
            "init",
            "train",
            "replay",
            "public",
            "objective",
            "transcript",
            "mechanism",
            "prior",
        ),
        release=release,
        account=account,
        play=play,
        view=VIEW,
        floor="class_mean",
        targets=True,
        squared_error=True,
        refuses=refuses,
    )


def refuses(model: ThreatModel, defense: Defense) -> str | None:
    """Return why there is no transcript, if an attack wants one."""
    if "transcript" not in model.sees and "mechanism" not in model.knows:
        return None
    if has_transcript(defense):
        return None
    return "the defense adds no Gaussian noise to the sums of steps"


def has_transcript(defense: Defense) -> bool:
    """Return whether a defense takes steps, each a sum with Gaussian noise."""
    return {"noisy_sgd", "gaussian"} <= defense.traits


def release(key: Array, learner: Learner, table: Table) -> Runs[Transcript]:
    """Train on fixed + {target}, `runs` times per target; noise is always fresh.

    Every attack is shown the same releases, so that their errors are paired.

    Returns:
      Releases with leading axis [targets * runs].
    """
    splits, name = table.problem.splits, "target runs"
    records = TrainingSet(splits.fixed, base.repeated(splits.targets, table.runs))
    releases = base.train(name, key, learner, records, engine=table.engine)

    @functools.cache
    def transcript() -> Steps:
        """Make the same runs again and keep their steps, for who asks for them."""
        what = f"{learner.label}: transcripts"
        engine = table.engine._replace(store=None)
        again = stream(key, name)
        return sweep("transcript", learner, again, records, engine=engine, what=what)

    return Runs(learner, releases, transcript, alike=table.runs)


@functools.cache
def _contribution(recipe: Recipe) -> Callable:
    """Return (floats, params, side, example) -> the example's part of a step."""

    def contribution(floats: dict, params: Any, side: Any, example: Examples) -> Any:
        return _steps_of(recipe, floats).query.fn(params, side, example)

    return contribution


@functools.cache
def _sides(recipe: Recipe) -> Callable:
    """Return (floats, side at the start, params [T]) -> the side of every step [T]."""

    def sides(floats: dict, start: Any, params: Any) -> Any:
        mechanism = _steps_of(recipe, floats)

        def body(side: Any, at: tuple) -> tuple:
            if mechanism.refresh is not None:
                side = mechanism.refresh.side(at[0], side, at[1])
            return side, side

        return jax.lax.scan(body, start, (params, jnp.arange(mechanism.steps)))[1]

    return sides


def _steps_of(recipe: Recipe, floats: dict) -> Iterative:
    mechanism = recipe.build(floats).mechanism
    assert isinstance(mechanism, Iterative), "others are refused"
    return mechanism


@functools.cache
def _replayed(recipe: Recipe) -> Callable:
    """Return (floats, side, fixed, example) -> what the run releases, without noise."""

    def replayed(floats: dict, side: Any, fixed: Examples, example: Examples) -> Any:
        defense, data = recipe.build(floats), TrainingSet(fixed, example)
        if "rows" not in defense.traits:
            data = gathered(data)
        train = defense.train
        if isinstance(train, Stepwise):
            # the first step starts from what no record has moved: written out, it has
            # no derivatives for the others' gradients, and in a loop they would be 0
            train = replace(train, apart=1)
        return train(jax.random.key(0), side, data).params

    return replayed


def replay_of(learner: Learner, fixed: Examples) -> Replay:
    """Return what a defense releases of the fixed records and one more, noise apart."""
    arrays = jax.tree.map(jnp.asarray, fixed)
    return Partial(_replayed(learner.recipe), learner.floats, learner.side, arrays)


def step_law(learner: Learner) -> StepLaw:
    """Return how a record enters the steps of a defense that `refuses` lets through."""
    recipe, floats, side = learner.recipe, learner.floats, learner.side
    mechanism = _steps_of(recipe, floats)
    return StepLaw(
        Partial(_contribution(recipe), floats),
        mechanism.noise.stddev,
        Partial(_sides(recipe), floats, side),
        mechanism.steps,
    )


def account(key: Array, runs: Runs[Transcript], table: Table) -> Guarantees:
    """Account for trajectories drawn anew, from the law of the runs.

    Where the data publish their prior, also for the very transcripts that attacks see.
    """
    learner, problem = runs.learner, table.problem
    limits = guarantees.joined(key, learner, table)
    prior, defense = problem.dataset.prior, learner.defense
    if prior is None or "full_batch" not in defense.traits:
        return limits
    if not has_transcript(defense):
        return limits
    bound = closed_world(
        stream(key, "closed world"),
        step_law(learner),
        runs.evidence(),
        prior,
        problem.splits.targets,
        table.runs,
    )
    return limits._replace(bounds=(*limits.bounds, bound))


def play(
    key: Array,
    attack: Attack,
    runs: Runs[Transcript],
    limits: Guarantees,
    table: Table,
) -> Result:
    """Let one attack guess every run; return its scores."""
    model, splits, releases = attack.threat_model, table.problem.splits, runs.releases
    learner, same_noise = runs.learner, list[float]()
    law = step_law(learner) if base.shown(model, "mechanism") else None
    shown = base.shown(model, "replay")
    replay = replay_of(learner, splits.fixed) if shown else None
    knowledge = base.grant(model, learner, table, mechanism=law, replay=replay)
    if knowledge.train is not None:
        train = knowledge.train

        def watched(key: Array, records: TrainingSet) -> Release:
            shadows = train(key, records)
            sure = controls.same_noise(runs.releases, shadows, table.runs)
            same_noise.extend([] if sure is None else [sure])
            return shadows

        knowledge = knowledge._replace(train=watched)
    state, diagnostics = attack.fit(stream(key, "fit"), knowledge)
    # runs that nothing random enters release the same, which is guessed once
    alike = table.runs if "noiseless" in learner.defense.traits else 1
    releases = base.take(releases, slice(None, None, alike))
    targets = base.repeated(splits.targets, table.runs // alike)
    rest = None
    if base.shown(model, "rest") and objective_of(learner.defense) is not None:
        with jax.enable_x64(True):
            rest = known_part(learner, releases, splits)
    steps = None
    if base.shown(model, "steps"):
        steps = runs.evidence()
    observation = base.observe(
        model,
        params=releases.params,
        target=targets.x,
        label=targets.y,
        rest=rest,
        steps=steps,
    )
    keys = jax.random.split(stream(key, "guess"), len(targets.y))
    # a solver's release has more digits than float32 holds, and attacks need them
    with jax.enable_x64("exact" in learner.defense.traits):
        many, few = len(targets.y), len(targets.y) <= FEW
        draws = np.asarray(jax.random.key_data(keys))  # of which rows cost nothing
        of_rows = lambda rows: base.take((draws, observation), rows)
        if steps is None and knowledge.replay is None:
            program = _all_at_once(attack, few)
            blocks = base.blocks(many, min(many, FEW))
            parts = [np.asarray(program(state, *of_rows(rows))) for rows in blocks]
            guesses = np.concatenate(parts)[:many]
        else:
            # a replay is differentiated in all pixels at once, and a transcript's
            # posterior needs a core's whole cache
            alone = knowledge.replay is not None or jax.default_backend() == "cpu"
            guesses = base.guesses(
                _in_turn(attack, None if alone else TOGETHER, few),
                (state,),
                of_rows,
                many,
                table.engine.report,
                f"{learner.label}: guesses",
                on_core=CALL,
            )
        guesses = np.repeat(guesses, alike, 0)
    shape = (len(splits.targets.y), table.runs, *learner.task.features)
    sure = max(same_noise, default=None)
    result = scoring.result(
        guesses.reshape(shape),
        splits.targets,
        limits,
        table,
        diagnostics,
        same_noise=sure,
    )
    if steps is None:
        return result
    return result._replace(numbers=result.numbers | {"shown": "transcript"})


def _guess(attack: Attack, state: Any, draws: Array, observation: Any) -> Array:
    return attack.guess(state, jax.random.wrap_key_data(draws), observation)


@functools.lru_cache(maxsize=64)
def _all_at_once(attack: Attack, few: bool) -> Callable:
    """Return the compiled guesses of an attack at releases, for all defenses.

    Guesses at `few` releases are compiled as what is called `once`.
    """
    each = jax.vmap(functools.partial(_guess, attack), (None, 0, 0))
    return jax.jit(each, compiler_options=options(once=few))


@functools.lru_cache(maxsize=64)
def _in_turn(attack: Attack, together: int | None, few: bool) -> Callable:
    """Return compiled guesses that each compute a whole run, or several.

    So many of them are made `together`; None = one after the other.
    """

    def each(state: Any, *of_records: Any) -> Array:
        one = lambda at: _guess(attack, state, *at)
        # a block of one would be batched as well, which is slower
        return jax.lax.map(one, of_records, batch_size=together)

    return jax.jit(each, compiler_options=options(once=few))


def known_part(learner: Learner, releases: Release, splits: Splits) -> Array:
    """Return the known records' part of the stationarity condition [T * runs, D].

    It is per unit of the target's weight: the weights of a release, which may depend
    on the target, are taken as known to everybody.
    """
    objective, n = objective_of(learner.defense), len(splits.fixed.y)
    assert objective is not None
    fixed, targets = double(splits.fixed), double(splits.targets)

    def weights(target: Examples) -> Array:
        every = jax.tree.map(lambda a, z: jnp.append(a, z[None], 0), fixed, target)
        return objective.weights(learner.side, every)

    def one(w: Array, weight: Array) -> Any:
        gradient = objective.total(w, splits.fixed, weight[:n])
        return (gradient + objective.ridge(n + 1) * w) / weight[n]

    of_targets = jax.jit(lambda z: jax.lax.map(weights, z))(targets)
    runs = len(releases.params) // len(of_targets)
    of_releases = jnp.repeat(of_targets, runs, axis=0)
    return jax.jit(jax.vmap(one))(releases.params, of_releases)


def _of_transcripts(line: Line) -> str:
    """Return the least error of an attack that is shown every noised step."""
    each = [
        float(trial.result.mse)
        for trial in line.card.trials
        if trial.defense == line.label and trial.result is not None
        if trial.result.shown == "transcript" and trial.result.mse is not None
        if not is_void(trial.flags)
    ]
    return number(min(each)) if each else "-"


VIEW = View(
    units=lambda card: f"{scoring.units(card)}; ± one standard error over targets",
    attack=(
        *scoring.REBUILT[:2],
        Column("transcript", _of_transcripts, optional=True),
        *scoring.REBUILT[2:],
    ),
    trial=scoring.TRIAL,
    trial_words=scoring.TRIAL_WORDS,
    trial_sections=scoring.by_record,
    verdict=scoring.verdict,
    bounds=scoring.BOUNDS,
)
