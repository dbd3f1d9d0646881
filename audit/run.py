"""The audit, on one page: load, train, account, attack, score.

scenario -> task, splits
  for each defense: prepare -> target runs -> dFIL, bounds, epsilon, utility
    for each attack: skip with a reason, or fit -> guess -> score
  flags, once every row is there
"""

from __future__ import annotations

import time
import traceback
from typing import Any, NamedTuple

import jax
import numpy as np

from audit import (
    accounting,
    data,
    games,
    metrics,
    perceptual,
    registry,
    rows,
    scoring,
    shadow,
)
from audit.accounting import Guarantees
from audit.compose import Entry, Scenario
from audit.rng import stream
from audit.rows import Problem, Trial
from audit.scorecard import Scorecard
from audit.types import Attack, Release, Task, TrainingSet, UserError

FLOOR = Entry("class_mean", "class_mean", {}, {})


class Table(NamedTuple):
    """What every trial of an audit shares."""

    problem: Problem
    engine: shadow.Engine
    runs: int  # releases per target
    lpips: Any  # weights, or the reason why there are none


def audit(scenario: Scenario, engine: shadow.Engine) -> Scorecard:
    """Run a scenario and return its scorecard; provenance is filled by the caller.

    Args:
      scenario: checked, see `compose.validate`.
      engine: tiles, store and progress.

    Raises:
      UserError, data.DataError: before any training, if something cannot work.
    """
    spec, key = scenario.spec, jax.random.key(scenario.spec.seed)
    problem = load(scenario)
    learners = [build(key, e, problem) for e in scenario.defenses]
    attacks = [(e, make_attack(e, problem.task)) for e in scenario.attacks]
    table = Table(problem, engine, spec.runs, _lpips_weights())
    floor = _floor(key, learners[0], table)

    defenses, held, trials = {}, {}, []
    for entry, of in zip(scenario.defenses, learners, strict=True):
        own = stream(key, f"defense {entry.label}")
        releases = games.play_targets(own, of, problem.splits, spec.runs, engine)
        held[entry.label] = accounting.guarantees(
            own,
            of,
            problem.splits,
            runs=spec.accounting_runs,
            delta=spec.delta,
            engine=engine,
        )
        utility = rows.utility(of, releases, problem.splits)
        defenses[entry.label] = rows.describe(entry, held[entry.label], utility)
        trials += [
            trial(own, e, attack, of, releases, held[entry.label], table)
            for e, attack in attacks
        ]
    trials = rows.with_win_rates(trials)
    flagged = [
        rows.row(t, held, trials, learners, floor["mse"], scenario, problem)
        for t in trials
    ]
    mse = floor["mse"]
    return Scorecard(
        scenario=scenario.resolved(),
        provenance={},
        data=rows.provenance(scenario, problem),
        floor={"mse": float(mse.mean()), "mse_se": metrics.standard_error(mse)},
        defenses=defenses,
        trials=[rows.plain(t, row) for t, row in zip(trials, flagged, strict=True)],
        arrays=rows.arrays(problem, held, trials, floor),
    )


def load(scenario: Scenario) -> Problem:
    """Load the data, cut the splits, build the task."""
    spec = scenario.spec
    dataset = data.choose_classes(data.load(scenario.data), spec.task.classes)
    splits = data.split(dataset, **scenario.splits.model_dump())
    data.check(splits)
    model = registry.find("model", spec.task.model)
    features = tuple(splits.targets.x.shape[1:])
    try:
        task = model(features, len(spec.task.classes), **spec.task.settings)
    except ValueError as error:
        raise UserError(f"task: {error}") from None
    return Problem(task, splits, dataset)


def build(key: jax.Array, entry: Entry, problem: Problem) -> shadow.Learner:
    """Build one defense and trace one run of it, so that nothing fails later.

    The initialisation is the same for all defenses.
    """
    one = jax.tree.map(lambda a: a[0], problem.splits.targets)
    try:
        of = shadow.learner(
            registry.find("defense", entry.name),
            problem.task,
            entry.settings,
            key=stream(key, "prepare"),
            public=problem.splits.public,
            label=entry.label,
            version=registry.version("defense", entry.name),
        )
        data_of_one = TrainingSet(problem.splits.fixed, one)
        jax.eval_shape(of.defense.train, key, of.side, data_of_one)
        return of
    except ValueError as error:
        raise UserError(f"defense.{entry.label}: {error}") from None


def make_attack(entry: Entry, task: Task) -> Attack:
    """Build one attack from its settings."""
    return registry.find("attack", entry.name)(task, **entry.settings)


def trial(
    key: jax.Array,
    entry: Entry,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> Trial:
    """Play one attack against one defense; whatever happens is a Trial."""
    splits, model = table.problem.splits, attack.threat_model
    base = Trial(of.label, entry, games.sentence(model), "skipped")
    reason = games.mismatch(model, of.defense)
    if reason is not None:
        return base._replace(reason=reason)
    began = time.perf_counter()
    try:
        key = stream(key, f"attack {entry.name}")
        played = games.reconstruction_game(
            key, attack, of, releases, splits, table.runs, table.engine
        )
    except Exception as error:  # one broken attack must not cost the other rows
        text = f"{type(error).__name__}: {error}"
        where = traceback.format_exc(limit=-3)
        return base._replace(status="failed", reason=text, result={"trace": where})
    summary, arrays = scoring.errors(played.guesses, splits.targets.x)
    se = scoring.run_errors(played.guesses, splits.targets.x)
    against = {b.name: scoring.against(b, arrays["mse"], se) for b in held.bounds}
    result = {
        **summary,
        **scoring.images(played.guesses, splits.targets.x, table.lpips),
        "oracle": games.is_oracle(model),
        "against": against,
        "fit": played.info,
        "seconds": round(time.perf_counter() - began, 2),
    }
    return base._replace(status="ok", result=result, arrays=arrays)


def _floor(key: jax.Array, of: shadow.Learner, table: Table) -> dict[str, np.ndarray]:
    """Return guesses and errors of the attacker who ignores the release."""
    attack, splits = make_attack(FLOOR, table.problem.task), table.problem.splits
    nothing = Release(np.zeros(len(splits.targets.y), np.float32))
    played = games.reconstruction_game(
        key, attack, of, nothing, splits, 1, table.engine
    )
    return scoring.errors(played.guesses, splits.targets.x)[1]


def _lpips_weights() -> Any:
    try:
        return perceptual.load_weights()
    except perceptual.WeightsUnavailable as error:
        return str(error)
