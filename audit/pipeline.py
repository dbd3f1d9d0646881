"""The audit, on one page: load, train, account, attack, score.

scenario -> game, task, splits
  for each defense: prepare -> target runs -> dFIL, bounds, epsilon, utility
    for each attack: skip with a reason, or fit -> guess -> score
  flags, once every row is there
"""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from audit import data
from audit.config import registry
from audit.config.compose import Entry, Scenario
from audit.engine import shadow
from audit.errors import UserError
from audit.games import (
    attribute,
    gradient_inversion,
    judge,
    leave_one_out,
    membership,
    membership_rates,
    reconstruction,
    rows,
    self_checks,
    step_diagnostics,
)
from audit.games import (
    base as games,
)
from audit.games import (
    canary as canary_games,
)
from audit.games.base import Game, Problem, Table, Trial
from audit.games.guarantees import Guarantees
from audit.mechanisms import canaries
from audit.models import pretrain
from audit.rng import stream
from audit.scorecard import flags
from audit.scorecard.card import Scorecard
from audit.scorecard.flags import Measured
from audit.statistics import lpips
from audit.types import (
    Attack,
    Bound,
    Public,
    Readings,
    Release,
    Task,
    TrainingSet,
)

GAMES = {
    "reconstruction": reconstruction.GAME,
    "leave_one_out": leave_one_out.GAME,
    "anatomy": step_diagnostics.GAME,
    "attribute": attribute.GAME,
    "exposed": gradient_inversion.GAME,
    "canary": canary_games.CANARY,
    "one_run": canary_games.ONE_RUN,
    "membership": membership.IN_OUT,
    "membership_replace_one": membership.REPLACE_ONE,
}
# in all others every fixed record is the target in turn
IN_TURN = set(GAMES) - {"reconstruction", "exposed"}


def audit(scenario: Scenario, engine: shadow.Engine) -> Scorecard:
    """Run a scenario and return its scorecard; provenance is filled by the caller.

    Args:
      scenario: checked, see `compose.validate`.
      engine: tiles, store and progress.

    Raises:
      UserError, data.DataError: before any training, if something cannot work.
    """
    spec, key = scenario.spec, jax.random.key(scenario.spec.seed)
    game = GAMES[spec.game]
    problem = load(scenario)
    public = begin(key, scenario, problem)
    learners = [build(key, e, problem, public) for e in scenario.defenses]
    attacks = [(e, make_attack(e, problem.task)) for e in scenario.attacks]
    asked = scenario.membership
    seen = judge.Seen({}, [])
    engine = engine._replace(doubt=lambda *said: seen.stale.append(said))
    table = Table(problem, engine, spec.runs, _lpips_weights(), asked)
    for of in learners:
        if game.fits is not None:
            game.fits(of, table)
    floor = _floor(key, game, learners[0], table) if attacks else {}

    defenses, held, trials = {}, {}, []
    for entry, of in zip(scenario.defenses, learners, strict=True):
        own = stream(key, f"defense {entry.label}")
        runs = game.release(own, of, table)
        at = table._replace(made=runs)
        guaranteed = game.account(own, of, at, spec.accounting_runs, spec.delta)
        held[entry.label] = guaranteed
        utility = rows.utility(of, runs, problem.splits)
        looked = look(own, game, of, runs.releases, problem, spec.runs)
        seen.measured[entry.label] = looked
        defenses[entry.label] = rows.describe(entry, guaranteed, utility, looked)
        trials += [
            trial(own, e, attack, game, of, runs.releases, guaranteed, at)
            for e, attack in attacks
        ]
    trials = rows.with_shares(membership_rates.compared(trials), floor)
    flagged = [
        judge.row(t, held, trials, learners, floor, scenario, problem, seen)
        for t in trials
    ]
    for label, own_part in defenses.items():
        ran = flags.of_runs(seen.ran(label))
        own_part["flags"] = [f._asdict() for f in ran]
    return Scorecard(
        scenario=scenario.resolved(),
        provenance={},
        data=rows.provenance(scenario, problem),
        floor=rows.floor_summary(floor),
        defenses=defenses,
        trials=[
            judge.plain(t, row, seen.ran(t.defense))
            for t, row in zip(trials, flagged, strict=True)
        ],
        arrays=rows.arrays(problem, held, trials, floor),
    )


def load(scenario: Scenario) -> Problem:
    """Load the data, cut the splits, prepare the features, build the task."""
    spec = scenario.spec
    dataset = data.choose_classes(data.load(scenario.data), spec.task.classes)
    cut = data.split(dataset, **scenario.splits.model_dump())
    leave_one_out = spec.game in IN_TURN
    splits = data.prepare_features(cut, **spec.features.model_dump())
    as_they_are = splits is cut and dataset.columns == ()
    domain = (0.0, 1.0) if as_they_are else (-np.inf, np.inf)
    data.check(splits, domain, in_turn=leave_one_out)
    features = tuple(splits.fixed.x.shape[1:])
    task = _task(
        registry.find("model", spec.task.model),
        features,
        len(spec.task.classes),
        tuple(sorted(spec.task.settings.items())),
        (spec.canaries.count, spec.canaries.norm) if spec.canaries else None,
    )
    task = task._replace(domain=domain, label_private=spec.task.label_private)
    asked = None
    if scenario.attribute is not None:
        asked = attribute.find(dataset, splits, scenario.attribute, spec.features)
    shown = cut.fixed.x if leave_one_out else None
    problem = Problem(task, splits, dataset, shown, asked)
    bounds = tuple(make_bound(entry) for entry in scenario.bounds)
    return problem._replace(
        canaries=spec.canaries,
        exposed=spec.exposed,
        bounds=bounds,
        known_targets=data.known_targets(cut),
    )


def make_bound(entry: Entry) -> Callable:
    """Build one bound from elsewhere, (Readings) -> Bound | None, named as asked."""
    bound = registry.find("bound", entry.name)

    def named(readings: Readings) -> Bound | None:
        found = bound(readings, **entry.settings)
        return found and found._replace(name=entry.label)

    return named


def look(
    key: jax.Array,
    game: Game,
    of: shadow.Learner,
    releases: Release,
    problem: Problem,
    runs: int,
) -> Measured:
    """Measure what a defense's runs do; see `measured`."""
    splits, planted = problem.splits, problem.canaries
    n = len(splits.fixed.y) + bool(len(splits.targets.y))
    n += planted.count if planted is not None else 0
    alike = 1 if game.goal == "membership" else runs  # its runs differ in their records
    return self_checks.measure(key, of, splits.fixed, n, releases, alike)


@functools.lru_cache(maxsize=32)
def _task(
    model: Callable,
    features: tuple[int, ...],
    classes: int,
    settings: tuple,
    canary: tuple[int, float] | None,
) -> Task:
    """Build what is learnt once, so that other seeds find their programs compiled."""
    try:
        task = model(features, classes, **dict(settings))
    except ValueError as error:
        raise UserError(f"task: {error}") from None
    return task if canary is None else canaries.plant(task, *canary)


def begin(key: jax.Array, scenario: Scenario, problem: Problem) -> Public:
    """Initialise and pre-train once, for all defenses."""
    settings = scenario.spec.pretrain.model_dump()
    records = problem.splits.public
    try:
        return pretrain.start(problem.task, stream(key, "prepare"), records, **settings)
    except ValueError as error:
        raise UserError(f"pretrain.epochs={settings['epochs']}: {error}") from None


def build(
    key: jax.Array, entry: Entry, problem: Problem, public: Public
) -> shadow.Learner:
    """Build one defense and trace one run of it, so that nothing fails later."""
    targets = problem.splits.targets
    one = jax.tree.map(lambda a: a[0], targets) if len(targets.y) else None
    try:
        of = shadow.learner(
            registry.find("defense", entry.name),
            problem.task,
            entry.settings,
            key=stream(key, "prepare"),
            public=public,
            label=entry.label,
            version=registry.version("defense", entry.name),
        )
        if of.defense.check is not None:
            of.defense.check(problem.splits.fixed)
        data_of_one = TrainingSet(problem.splits.fixed, one)
        jax.eval_shape(of.defense.train, key, of.side, data_of_one)
        return of
    except ValueError as error:
        raise UserError(f"defense.{entry.label}: {error}") from None


def make_attack(entry: Entry, task: Task) -> Attack:
    """Build one attack from its settings."""
    factory = registry.find("attack", entry.name)
    return _attack(factory, task, tuple(sorted(entry.settings.items())))


@functools.lru_cache(maxsize=64)
def _attack(factory: Callable, task: Task, settings: tuple) -> Attack:
    return factory(task, **dict(settings))


def trial(
    key: jax.Array,
    entry: Entry,
    attack: Attack,
    game: Game,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> Trial:
    """Play one attack against one defense; whatever happens is a Trial."""
    model = attack.threat_model
    base = Trial(of.label, entry, games.sentence(model), "skipped")
    reason = games.mismatch(model, of.defense, game)
    if reason is not None:
        return base._replace(reason=reason)
    began = time.perf_counter()
    try:
        key = stream(key, f"attack {entry.name}")
        result, arrays = game.play(key, attack, of, releases, held, table)
    except Exception as error:  # one broken attack must not cost the other rows
        text = f"{type(error).__name__}: {error}"
        where = traceback.format_exc(limit=-3)
        return base._replace(status="failed", reason=text, result={"trace": where})
    result |= {
        "oracle": games.is_oracle(model),
        "seconds": round(time.perf_counter() - began, 2),
    }
    return base._replace(status="ok", result=result, arrays=arrays, knows=model.knows)


def _floor(
    key: jax.Array, game: Game, of: shadow.Learner, table: Table
) -> dict[str, np.ndarray]:
    """Return guesses and scores of the attacker who ignores the release, if any."""
    if game.floor is None:
        return {}
    attack = make_attack(Entry(game.floor, game.floor, {}, {}), table.problem.task)
    n = len(table.problem.splits.targets.y)
    nothing = Release(np.zeros(max(n, 1), np.float32))
    held = Guarantees(None, None, (), None)
    once = table._replace(runs=1, engine=table.engine._replace(report=_silent))
    return game.play(key, attack, of, nothing, held, once)[1]


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def _lpips_weights() -> Any:
    try:
        return lpips.load_weights()
    except lpips.WeightsUnavailable as error:
        return str(error)
