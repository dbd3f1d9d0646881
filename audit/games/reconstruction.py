"""The game of Balle et al. (2022): one unknown record joins the fixed ones, per run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.engine.shadow import Learner
from audit.games import base, controls, guarantees, scoring
from audit.games.base import Game, Result, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms.output_perturbation import objective_of
from audit.rng import stream
from audit.scorecard.view import View
from audit.types import Attack, Release, Splits, TrainingSet


def reconstruction() -> Game:
    """Rebuild the one unknown record of each run from what it released."""
    return Game(
        goal="reconstruction",
        grants=base.granting("fixed", "label", "init", "train", "public", "objective"),
        release=release,
        # trajectories are drawn anew, from the law of the runs
        account=lambda key, runs, table: guarantees.joined(key, runs.learner, table),
        play=play,
        view=VIEW,
        floor="class_mean",
        targets=True,
        squared_error=True,
    )


def release(key: Array, learner: Learner, table: Table) -> Runs[None]:
    """Train on fixed + {target}, `runs` times per target; noise is always fresh.

    Every attack is shown the same releases, so that their errors are paired.

    Returns:
      Releases with leading axis [targets * runs].
    """
    splits = table.problem.splits
    records = TrainingSet(splits.fixed, base.repeated(splits.targets, table.runs))
    releases = base.train("target runs", key, learner, records, engine=table.engine)
    return Runs(learner, releases, None, alike=table.runs)


def play(
    key: Array, attack: Attack, runs: Runs[None], limits: Guarantees, table: Table
) -> Result:
    """Let one attack guess every run; return its scores."""
    model, splits, releases = attack.threat_model, table.problem.splits, runs.releases
    learner, same_noise = runs.learner, []
    knowledge = base.grant(model, learner, table)
    if knowledge.train is not None:
        train = knowledge.train

        def watched(key: Array, records: TrainingSet) -> Release:
            shadows = train(key, records)
            sure = controls.same_noise(releases, shadows, table.runs)
            same_noise.extend([] if sure is None else [sure])
            return shadows

        knowledge = knowledge._replace(train=watched)
    state, diagnostics = attack.fit(stream(key, "fit"), knowledge)
    targets = base.repeated(splits.targets, table.runs)
    rest = None
    if base.shown(model, "rest") and objective_of(learner.defense) is not None:
        with jax.enable_x64(True):
            rest = known_part(learner, releases, splits)
    observation = base.observe(
        model, params=releases.params, target=targets.x, label=targets.y, rest=rest
    )
    keys = jax.random.split(stream(key, "guess"), len(targets.y))
    # a solver's release has more digits than float32 holds, and attacks need them
    with jax.enable_x64("exact" in learner.defense.traits):
        guess = jax.jit(jax.vmap(attack.guess, (None, 0, 0)))
        guesses = np.asarray(guess(state, keys, observation))
    shape = (len(splits.targets.y), table.runs, *learner.task.features)
    sure = max(same_noise, default=None)
    return scoring.result(
        guesses.reshape(shape),
        splits.targets,
        limits,
        table,
        diagnostics,
        same_noise=sure,
    )


def known_part(learner: Learner, releases: Release, splits: Splits) -> Array:
    """Return the known records' part of the stationarity condition [T * runs, D]."""
    objective, n = objective_of(learner.defense), len(splits.fixed.y)
    assert objective is not None
    weight = jnp.ones(n, releases.params.dtype)

    def one(w: Array) -> Any:
        known = objective.total(w, splits.fixed, weight)
        return known + objective.ridge(n + 1) * w

    return jax.jit(jax.vmap(one))(releases.params)


VIEW = View(
    units="MSE per pixel, pixels in [0, 1]; ± one standard error over targets",
    attack=scoring.REBUILT,
    trial=scoring.TRIAL,
    trial_words=scoring.TRIAL_WORDS,
    verdict=scoring.verdict,
    bounds=scoring.BOUNDS,
)
