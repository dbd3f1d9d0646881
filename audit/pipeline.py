"""The audit, on one page: load, train, account, attack, score.

scenario -> game, problem (task, splits)
  for each defense: prepare -> target runs -> guarantees (bounds, epsilon), utility
    for each attack: skip with a reason, or fit -> guess -> score
  rows with their flags, once every trial is there -> card
"""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
from jax import Array
from threadpoolctl import threadpool_limits

from audit import data
from audit.config import budget, compose, registry, schema, workspace
from audit.config.compose import Entry, Scenario
from audit.engine import shadow, store
from audit.engine.ahead import Ahead
from audit.engine.shadow import Engine, Learner
from audit.errors import UserError, expect
from audit.games import base, rows, self_checks
from audit.games.base import Game, Problem, Result, Runs, Table, Trial, take
from audit.games.guarantees import Guarantees, calibrated, check_smooth, reads
from audit.games.rows import Audited, SelfChecks
from audit.mechanisms import shadow_models
from audit.models import pretrain
from audit.rng import stream
from audit.scorecard import card as cards
from audit.scorecard import finished
from audit.scorecard.card import Scorecard
from audit.statistics import lpips
from audit.types import (
    Attack,
    Bound,
    Defense,
    Iterative,
    Minimiser,
    Public,
    Readings,
    Release,
    Splits,
    Task,
    TrainingSet,
)


# XLA calls LAPACK from threads of its own; more threads of LAPACK's would wait for each
# other, and eigenvalues of a small matrix take thirty times as long
@threadpool_limits.wrap(limits=1, user_api="blas")
def audit(scenario: Scenario, engine: Engine, command: str = "") -> Scorecard:
    """Run a checked scenario (`compose.validate`) and return its scorecard.

    The engine has tiles, store and progress; the card keeps `command`, which replays
    the run. UserError or DataError before any training, if something cannot work.
    """
    spec, key = scenario.spec, jax.random.key(scenario.spec.seed)
    began, code = time.perf_counter(), workspace.code_version(scenario)
    game = compose.play(scenario)
    checks = SelfChecks({}, [])
    engine = engine._replace(
        doubt=lambda *stale: checks.stale.append(stale), trusted=set()
    )
    with engine.activity("loading data, preparing defenses"):
        problem = load(scenario, game)
        public = begin(key, scenario, problem)
        splits = problem.splits
        n = records_of_a_run(game, splits)
        entries = [
            calibrated(e, problem.task, n, spec.delta) for e in scenario.defenses
        ]
        learners = [build(key, entry, problem, public, engine) for entry in entries]
        attacks = [(e, make_attack(e, problem.task)) for e in scenario.attacks]
        weights, trajectories = _lpips_weights(), spec.accounting_runs
        about = spec.runs, weights, trajectories, spec.delta, spec.fisher
        table = Table(problem, engine, *about, seed=spec.seed)
        check_smooth(problem.task, spec.fisher)
        played = table, game, attacks
        for learner in learners:
            if game.fits is not None:
                game.fits(learner, table)
            if spec.estimate == "enforced":
                budget.check(
                    workload(learner.label, learner.defense, public.params, *played)
                )
        check_plays(attacks, game, [each.defense for each in learners], problem.task)
        floor, floor_guess = _floor(key, game, learners[0], table, attacks)
        table = table._replace(floor=floor)

    used = rows.data_used(scenario, problem)
    address = addresses(scenario, used["digest"], table.lpips, engine.devices)
    table = table._replace(address=address)
    guarantees, defenses, trials = {}, {}, []
    with Ahead(learners) as ahead:
        table = table._replace(engine=engine._replace(ahead=ahead))
        for i, (entry, learner) in enumerate(zip(entries, learners, strict=True)):
            engine.report("defenses", i, len(entries))
            label, key_of_defense = entry.label, stream(key, f"defense {entry.label}")
            with engine.activity(f"{label}: compiling and training"):
                runs = game.release(key_of_defense, learner, table)
            with engine.activity(f"{label}: accounting"):
                limits = guarantees[label] = game.account(key_of_defense, runs, table)
            with engine.activity(f"{label}: measuring noise and utility"):
                measured = self_checks.measure(key_of_defense, runs, splits.fixed, n)
                checks.measured[label] = measured
                defenses[label] = entry, limits, rows.utility(runs, splits)
            for pair in attacks:
                with engine.activity(f"{label}: {pair[0].label}"):
                    trial = play(key_of_defense, *pair, game, runs, limits, table)
                trials.append(trial)
    engine.report("defenses", len(entries), len(entries))
    trials = rows.with_shares(game.compare(trials) if game.compare else trials, floor)
    audited = Audited(scenario, problem, learners, guarantees, trials, floor, checks)
    return cards.of_parts(
        scenario=scenario.resolved(),
        provenance=_provenance(
            scenario, command, code, time.perf_counter() - began, problem.task.notes
        ),
        data=used,
        floor=rows.floor_error(floor),
        defenses={k: rows.defense_row(*v, checks.ran(k)) for k, v in defenses.items()},
        trials=[rows.trial_row(trial, audited) for trial in trials],
        arrays=rows.arrays(audited, floor_guess),
    )


# Before any training ------------------------------------------------------------------


def records_of_a_run(game: Game, splits: Splits) -> int:
    """Return on how many records one run is trained."""
    if game.records is not None:
        return game.records(splits)
    return len(splits.fixed.y) + bool(len(splits.targets.y))


def load(scenario: Scenario, game: Game) -> Problem:
    """Load the data, cut the splits, prepare the features, build the task."""
    spec = scenario.spec
    dataset = compose.dataset(scenario)
    cut = data.split(dataset, **scenario.splits.model_dump())
    splits = data.prepare_features(cut, **spec.features.model_dump())
    pixels = dataset.columns == () and dataset.prior is None
    if splits is not cut:  # of prepared features no prior is known
        dataset = dataset._replace(prior=None)
    domain = (0.0, 1.0) if pixels and splits is cut else (-np.inf, np.inf)
    data.check(splits, domain, in_turn=not game.targets)
    ends, channels = None, spec.features.channels
    if pixels and channels and spec.features == schema.Features(channels=channels):
        data.check(cut, (0.0, 1.0), in_turn=not game.targets)
        ends = data.pixel_domain(cut, channels)
    task = _task(
        registry.find("model", spec.task.model),
        tuple(splits.fixed.x.shape[1:]),
        len(scenario.classes),
        tuple(sorted(spec.task.settings.items())),
    )
    name = _name(task, spec.task)
    task = task._replace(
        name=name, domain=domain, label_private=spec.task.label_private
    )
    return Problem(
        task if game.task is None else game.task(task),
        splits,
        dataset,
        pictures=None if game.targets else cut.fixed.x,
        features=spec.features,
        bounds=tuple(make_bound(entry) for entry in scenario.bounds),
        # pixels are counted as they are, columns once they are float32
        known_targets=data.known_targets(cut if cut.fixed.x.ndim == 4 else splits),
        ends=ends,
    )


def _name(task: Task, chosen: schema.TaskSpec) -> str:
    """Return the task in words; by them the store tells runs of two models apart.

    The suite's own say their settings themselves.
    """
    origin = registry.elsewhere("model", chosen.model)
    if origin is None:
        return task.name
    settings = store.digest(chosen.settings)[:8] if chosen.settings else ""
    return " ".join(filter(None, [task.name, origin["code"][:16], settings]))


@functools.lru_cache(maxsize=32)
def _task(
    model: Callable, features: tuple[int, ...], classes: int, settings: tuple
) -> Task:
    """Build what is learnt once, so that other seeds find their programs compiled."""
    try:
        built = model(features, classes, **dict(settings))
        task = expect(built, Task, f"model {model.__name__}")
    except ValueError as error:
        raise UserError(f"task: {error}") from None
    if task.features == features and task.classes and not classes:
        raise UserError(
            f"task: {task.name} tells {task.classes} classes apart, and y holds "
            f"floats, which are numbers: save whole numbers, which are classes, or "
            f"give the model 1 output"
        )
    if (task.features, task.classes) != (features, classes):
        raise UserError(
            f"task: {task.name} does not fit the data: records of shape {features}, "
            f"{classes or 'no'} classes; give the model an input of that shape and "
            f"{classes or 1} outputs"
        )
    return task


def make_bound(entry: Entry) -> Callable:
    """Build one plug-in's bound, (Readings) -> Bound | None, named by its label."""
    bound = registry.find("bound", entry.name)

    def named(readings: Readings) -> Bound | None:
        value = bound(readings, **entry.settings)
        if value is None:
            return None
        return expect(value, Bound, f"bound {entry.name}")._replace(name=entry.label)

    return named


def begin(key: Array, scenario: Scenario, problem: Problem) -> Public:
    """Initialise and pre-train once, for all defenses."""
    settings = scenario.spec.pretrain.model_dump()
    records = problem.splits.public
    try:
        return pretrain.start(problem.task, stream(key, "prepare"), records, **settings)
    except ValueError as error:
        raise UserError(f"pretrain.epochs={settings['epochs']}: {error}") from None


def build(
    key: Array,
    entry: Entry,
    problem: Problem,
    public: Public,
    engine: Engine = Engine(),  # noqa: B008
) -> Learner:
    """Build one defense and trace one run of it, so that nothing fails later."""
    targets = problem.splits.targets
    one = take(targets, 0) if len(targets.y) else None
    try:
        learner = shadow.learner(
            registry.find("defense", entry.name),
            problem.task,
            entry.settings,
            key=stream(key, "prepare"),
            public=public,
            label=entry.label,
            version=registry.version("defense", entry.name),
            engine=engine,
        )
        mechanism = learner.defense.mechanism
        if isinstance(mechanism, Minimiser) and mechanism.accepts is not None:
            mechanism.accepts.check(problem.splits.fixed, targets)
        records = TrainingSet(problem.splits.fixed, one)
        jax.eval_shape(learner.defense.train, key, learner.side, records)
        if mechanism is None:  # written by hand
            shadow.check_pure(learner, key, records)
        return learner
    except ValueError as error:
        raise UserError(f"defense.{entry.label}: {error}") from None


def make_attack(entry: Entry, task: Task) -> Attack:
    """Build one attack from its settings."""
    factory = registry.find("attack", entry.name)
    return _attack(factory, task, tuple(sorted(entry.settings.items())))


@functools.lru_cache(maxsize=64)
def _attack(factory: Callable, task: Task, settings: tuple) -> Attack:
    built = factory(task, **dict(settings))
    return expect(built, Attack, f"attack {factory.__name__}")


def workload(
    label: str,
    defense: Defense,
    params: Any,
    table: Table,
    game: Game,
    attacks: list[tuple[Entry, Attack]],
) -> budget.Workload:
    """Return what training one defense consists of, as far as settings say.

    Of `params`, what one run releases, the shapes alone count.
    """
    splits, mechanism = table.problem.splits, defense.mechanism
    targets, steps = len(splits.targets.y), 1
    first_passes = passes = 0.0
    each = max(targets, 1)
    trainings = base.Trainings({"target": table.runs * each}, {})
    if game.trainings is not None:
        trainings = game.trainings(table)
    held, folded = dict(trainings.held), dict(trainings.folded)
    each_attack = [shadow_runs(*pair, splits) for pair in attacks]
    shared = set[tuple[int, int]]().union(*each_attack)
    if "noiseless" in defense.traits:
        shared = {(first, count) for first, count in shared if first == 0}
    if total := sum(count for _, count in shared):
        held["shadow"] = total
    tile = table.engine.lanes.tile
    if trainings.tile is not None and not total:  # attackers always fill theirs up
        tile = min(tile, trainings.tile)
    accounted = game.trajectories and reads(defense, table.fisher)
    if accounted and "accounting" not in folded:
        folded["accounting"] = table.trajectories * each
    records: float = len(splits.fixed.y) + bool(targets)
    if isinstance(mechanism, Iterative):
        records = min(records, float(mechanism.sampler.denominator(int(records))))
        steps = mechanism.steps
        if mechanism.refresh is not None:
            first_passes = mechanism.refresh.first_passes
            passes = mechanism.refresh.passes
    return budget.Workload(
        f"defense.{label}",
        held=held,
        folded=folded,
        tile=tile,
        parameters=sum(np.size(a) for a in jax.tree.leaves(params)),
        steps=steps,
        records=records,
        devices=0 if jax.default_backend() == "cpu" else jax.device_count(),
        shard=shadow_models.held(
            max(sum(n for _, n in runs) for runs in [*each_attack, ()]),
            len(splits.pool.y),
        ),
        public=len(splits.public.y),
        first_passes=first_passes,
        passes=passes,
    )


def shadow_runs(entry: Entry, attack: Attack, splits: Splits) -> set[tuple[int, int]]:
    """Return which runs of its own an attack makes, as far as its settings say.

    They are `repeats` per image of the pool, or of its first `shadows` images; in pairs
    of the first repeat and how many runs there are of it and of the next ones. Attacks
    share equal pairs (`mechanisms.shadow_models`).
    """
    if "train" not in attack.threat_model.knows or "repeats" not in entry.settings:
        return set()
    images = len(splits.pool.y)
    images = min(entry.settings.get("shadows") or images, images)
    further = int(images * (entry.settings["repeats"] - 1))
    return {(0, images)} | ({(1, further)} if further else set())


def check_plays(
    attacks: list[tuple[Entry, Attack]], game: Game, defenses: list[Defense], task: Task
) -> None:
    """Refuse an attack that could play against no defense, with those that could.

    One that only assumes what no defense of the line-up is, such as noise, is skipped
    beside others that can play, with its reason: line-ups are cut by `defenses=`.

    Raises:
      UserError: with the reason it would be skipped for, or with the word of its threat
        model that no game can grant.
    """

    def reason(attack: Attack) -> str | None:
        model = attack.threat_model
        reasons = [base.mismatch(model, each, game) for each in defenses]
        return None if None in reasons else reasons[0]

    reasons = {}
    for entry, attack in attacks:
        try:
            reasons[entry.label] = reason(attack)
        except ValueError as error:
            raise UserError(f"attack {entry.label!r}: {error}") from None
    for entry, attack in attacks:
        missing = [attack.threat_model.assumes - each.traits for each in defenses]
        beside = all(missing) and None in reasons.values()
        if (why := reasons[entry.label]) is not None and not beside:
            _refuse(entry, why, reason, task)


def _refuse(entry: Entry, why: str, reason: Callable, task: Task) -> NoReturn:
    able = []
    for name in registry.names("attack"):
        with contextlib.suppress(Exception):  # a plug-in may be broken, or need words
            settings = registry.check("attack", name, {}, name)
            other = make_attack(Entry(name, name, {}, settings), task)
            able += [name] * (reason(other) is None)
    raise UserError(
        f"attack {entry.label!r} can play against no defense of the line-up: {why}; "
        f"those that can are {', '.join(able) or 'none'}"
    )


def _floor(
    key: Array, game: Game, learner: Learner, table: Table, attacks: list
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return errors and guesses of the attacker who ignores the release, if any."""
    if attacks and game.floor_error is not None:
        return game.floor_error(table), None
    if not attacks or game.floor is None:
        return None, None
    attack = make_attack(Entry(game.floor, game.floor, {}, {}), table.problem.task)
    targets = max(len(table.problem.splits.targets.y), 1)
    nothing = Runs(learner, Release(np.zeros(targets, np.float32)), None)
    silent = table.engine._replace(report=base.silent)
    once = table._replace(runs=1, engine=silent)
    result = game.play(key, attack, nothing, Guarantees(), once)
    return result.error, result.arrays.get("guess")


# Per defense --------------------------------------------------------------------------


def addresses(
    scenario: Scenario, digest: str, weights: Any, devices: int
) -> Callable[[Learner, Entry], str]:
    """Return (defense, attack) -> where the store keeps what the attack gets.

    The address is made of everything that can change the result. Of the line-ups that
    is the pair alone: another defense or attack has no pair played again. `digest` is
    the data's, `weights` are those of LPIPS, or why there are none. Runs in parts, and
    those of several devices, are computed by other programs, which round differently.
    """
    suite = workspace.code_version(scenario._replace(defenses=(), attacks=()))
    rounding = scenario.lanes.checkpoint > 0, devices
    shared = suite, digest, store.digest(weights), *rounding
    version = functools.cache(registry.version)

    def address(learner: Learner, attack: Entry) -> str:
        defenses = tuple(e for e in scenario.defenses if e.label == learner.label)
        alone = scenario._replace(defenses=defenses, attacks=(attack,)).resolved()
        made_of = shadow.origin("attack", learner), version("attack", attack.name)
        return store.digest(alone, *made_of, *shared)

    return address


def play(
    key: Array,
    entry: Entry,
    attack: Attack,
    game: Game,
    runs: Runs,
    guarantees: Guarantees,
    table: Table,
) -> Trial:
    """Play one attack against one defense; whatever happens is a Trial."""
    model, learner = attack.threat_model, runs.learner
    trial = Trial(learner.label, entry, model, base.sentence(model, game), "skipped")
    reason = base.mismatch(model, learner.defense, game)
    if reason is not None:
        return trial._replace(reason=reason)
    began, shelf = time.perf_counter(), table.engine.results
    if shelf is not None:
        place = table.address(learner, entry)
        if (kept := finished.get(shelf, place)) is not None:
            return trial._replace(status="ok", result=Result(**kept))
    try:
        key = stream(key, f"attack {entry.name}")
        result: Result = game.play(key, attack, runs, guarantees, table)
    except Exception as error:  # one broken attack must not cost the other rows
        reason = f"{type(error).__name__}: {error}"
        trace = traceback.format_exc(limit=-3)
        return trial._replace(status="failed", reason=reason, trace=trace)
    numbers = result.numbers | {"seconds": round(time.perf_counter() - began, 2)}
    result = result._replace(numbers=numbers)
    if shelf is not None:
        finished.put(shelf, place, result._asdict())
    return trial._replace(status="ok", result=result)


def _provenance(
    scenario: Scenario,
    command: str,
    code: str,
    seconds: float,
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return where the card comes from; `code` is that of the files before the run."""
    digest = store.digest(scenario.resolved())
    others = workspace.from_elsewhere(scenario)
    chosen = {k: v.model_dump() for k, v in scenario.spec.chosen.items()}
    origin = cards.provenance(command, seconds, digest, code) | {"chosen": chosen}
    more = {"plugins": others, "model": list(notes)}
    return origin | {name: lines for name, lines in more.items() if lines}


def _lpips_weights() -> Any:
    try:
        return lpips.load_weights()
    except lpips.WeightsUnavailable as error:
        return str(error)
