"""What a run will take, before anything is trained, and how far off that was.

Runs, operations and disk follow from the scenario: the compiler counts the operations
of one record's gradient, and nothing is trained, pre-trained or prepared. Minutes are
those of so many gradients, at the pace of a few that are taken here and now, of the
noise and updates of large models and of passes of a network's fit, timed likewise, and
what programs take to compile, times a factor of experience: every finished run leaves
a line with what it took (`LINES`), and the nearest such runs correct the next forecast.
An attack's operations are those of its shadow models, of the network it trains, of its
searches through gradients, of images that it weighs by a transcript and of those that
it guesses; what else it does is known by experience alone.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from audit import pipeline, rng
from audit.cli.bench.clock import fastest, matmul_rate
from audit.cli.cache import size as in_bytes
from audit.clipping import no_clip
from audit.config import budget, compose, registry
from audit.config.compose import Entry, Scenario
from audit.config.schema import FisherReading
from audit.data.dataset import cache_folder
from audit.engine.cores import Cores
from audit.engine.program import Recipe, threads
from audit.engine.shadow import Engine
from audit.errors import UserError
from audit.games.base import Table, mismatch, take
from audit.games.guarantees import calibrated
from audit.mechanisms import batch, gradient, shadow_models
from audit.mechanisms.query import Side
from audit.mechanisms.stepwise import PublicFit
from audit.models import optimizers
from audit.scorecard.card import Scorecard
from audit.types import (
    Attack,
    Defense,
    Examples,
    Iterative,
    Optimizer,
    Public,
    Splits,
    Task,
)

LINES = "took.jsonl"  # in the user's cache: one line per finished run
MOST_LINES = 400  # the last ones count
LONG = 60.0  # minutes; a run that takes longer is asked for
START = 5.0  # seconds: data, the card and its figures
COMPILE = 5.0  # seconds, of the programs of one defense; floats compile nothing
AGAIN = 0.5  # of that where the scenario has run before
EACH = 0.5  # seconds, of a defense whose programs are compiled
TRIAL = 0.2  # seconds of an attack beside its operations
FITTED = 1.0  # the same if it learns from shadow models or from every step
EARLY = 0.25  # of the epochs or rounds an attack may take, those before it stops
WEIGHED = 250.0  # operations per pixel of an image that a transcript weighs,
GUESSED = 150.0  # and of an image that is guessed and compared with the target
SEARCH = 3.0  # gradients per step of a search whose objective holds a gradient
WEIGHT = 1e-9  # seconds per weight of such a step, which reads the update of its image
SHARE = 0.3  # of the product rate that the training of attack networks reaches
PRIVATE = 1.5  # seconds of clipping and noise, over those of the gradients alone
TIMED = 2e9  # operations of the gradients that are timed,
TIMED_RECORDS = 256  # which are those of so many records at most,
LANES = 32  # and of so many models where a network perturbs each, which takes long
READING = 10.0  # a step whose derivatives are accounted for, in steps that are taken,
# where settings of `fisher` do not say how; else so much more per probe of all records
PROBE = 1.2  # in single precision
# A fit of a network is timed if it visits the records that are timed so many times.
WORTH = 100
# A fit of a constant to public records, as FIM makes one before every step, takes their
# gradients and derivatives first, and then reads what it keeps of them in every pass.
LOOK = 10.0  # gradients per record that take as long as the former
KEPT = 3  # numbers per weight and record that are kept, of a model that is not affine
FIT = 1.2e-9  # seconds per weight of a record's part in a pass
AUTO = 16  # probes, where accuracy decides
PROCESS = 0.6 * budget.GIB  # bytes, once everything is imported
PROGRAMS = 0.05 * budget.GIB  # what the programs of one defense add,
LEARNING = 0.3 * budget.GIB  # those of an attack that learns,
SEARCHING = 0.1 * budget.GIB  # and those of an attack that searches
COPIES = 3  # of a tile's arrays, of releases that are held, and of errors and images
GUESSES = 2  # of a target, that are held as images
CARD = 1e6  # bytes, with its page and figures


class Trials(NamedTuple):
    """What one attack takes, before experience."""

    defenses: int  # that it plays against
    fixed: float  # seconds against one of them, of what does not grow
    operations: float  # the same of what does, on the average


class Timed(NamedTuple):
    """What is timed of the programs of a defense, beside gradients."""

    update: float  # seconds of what a step does beside its gradients
    visit: float  # gradients that take as long as a public record in a pass of a fit
    contribution: float  # the same of a record of a step


class Forecast(NamedTuple):
    """What a run will take."""

    works: tuple[budget.Workload, ...]  # of each defense
    operations: tuple[float, ...]  # the same order
    gflops: float  # of a matrix product, measured now
    model_seconds: float  # of all but attacks and shadow models, before experience
    model_memory: float  # bytes at the peak, before experience
    sizes: dict[str, Trials]  # attack -> what it takes
    disk: float  # bytes of the store and the card
    time_factor: float = 1.0  # by experience
    memory_factor: float = 1.0
    trials: float = 0.0  # seconds of all attacks against all defenses
    new: tuple[str, ...] = ()  # attacks that never ran here
    # what the factors rest on
    basis: str = "no run of this scenario on this machine yet"

    @property
    def models(self) -> int:
        """Runs of all defenses."""
        return sum(work.runs for work in self.works)

    @property
    def minutes(self) -> float:
        """Of wall time."""
        return (self.model_seconds * self.time_factor + self.trials) / 60

    @property
    def memory(self) -> float:
        """Bytes at the peak."""
        return self.model_memory * self.memory_factor


class Took(NamedTuple):
    """What a finished run took: one line of `LINES`."""

    scenario: str
    data: str
    gflops: float
    model_seconds: float
    seconds: float  # of all but the attacks
    model_memory: float
    memory: float
    trials: dict[str, list[float]]  # attack -> operations, seconds against a defense


def forecast(scenario: Scenario, history: Sequence[Took] = ()) -> Forecast:
    """Return what a checked scenario takes; `history` is what runs took here.

    Raises:
      UserError: if the run could not start.
    """
    spec, game = scenario.spec, compose.play(scenario)
    problem = pipeline.load(scenario, game)
    task, splits = problem.task, problem.splits
    n = pipeline.records_of_a_run(game, splits)
    params = jax.eval_shape(task.init, jax.random.key(0))
    attacks = [(e, pipeline.make_attack(e, task)) for e in scenario.attacks]
    trajectories, engine = spec.accounting_runs, Engine(scenario.lanes)
    about = spec.runs, None, trajectories, spec.delta, spec.fisher
    table = Table(problem, engine, *about)
    entries = [calibrated(e, task, n, spec.delta) for e in scenario.defenses]
    defenses = [_built(entry, task) for entry in entries]
    works = [
        pipeline.workload(entry.label, defense, params, table, game, attacks)
        for entry, defense in zip(entries, defenses, strict=True)
    ]
    pipeline.check_plays(attacks, game, defenses, task)
    each = gradient_operations(task, params, splits.fixed)
    read = reading(spec.fisher, n)
    gflops = matmul_rate(1024, 1024, 1024, times=5)
    tile = scenario.lanes.tile
    cores = min(threads(), -(-max(work.runs for work in works) // tile))
    step = int(max(work.records for work in works))
    some = take(splits.fixed, slice(min(step, TIMED_RECORDS)))
    how = params, some, each
    pace = gradient_pace(trained(task), *how, tile, cores)
    timed_of = dict[str, Timed]()  # program -> what is timed of it
    for i, (entry, defense) in enumerate(zip(entries, defenses, strict=True)):
        program, mechanism = _compiled_in(entry), defense.mechanism
        if program not in timed_of:
            fit = public_fit(entry.label, mechanism, task, splits.public)
            visit = visit_seconds(works[i], fit)
            sums = fit and contributions(mechanism, fit)
            timed_of[program] = Timed(
                update_seconds(mechanism, _optimizer(entry), params),
                visit * pace / max(each, 1.0),
                pace / gradient_pace(sums, *how, LANES, cores) if sums else 1.0,
            )
        timed = timed_of[program]
        works[i] = works[i]._replace(visit=timed.visit, contribution=timed.contribution)
    built = list(zip(works, defenses, strict=True))
    plays = [
        [work for work, defense in built if mismatch(model, defense, game) is None]
        for model in (attack.threat_model for _, attack in attacks)
    ]
    operations = tuple(_operations(work, each, read) for work in works)
    pace_of_one = pace
    if any("restarts" in entry.settings for entry, _ in attacks):
        pace_of_one = gradient_pace(searched(task), params, some, each, tile)
    search = SEARCH * each / pace_of_one + WEIGHT * works[0].parameters
    search /= threads()
    rate = SHARE * gflops * 1e9
    # shadow models that an attack asks for are among the operations of `trials`
    shadows = not any(pipeline.shadow_runs(*pair, splits) for pair in attacks)
    gradients = sum(_operations(work, each, read, shadows) for work in works)
    computing = PRIVATE * gradients / pace
    for entry, work in zip(entries, works, strict=True):
        seconds = timed_of[_compiled_in(entry)].update
        computing += sum(_lanes(work, shadows).values()) * work.steps * seconds
    ran = any((t.scenario, t.data) == (spec.name, scenario.data) for t in history)
    compiling = COMPILE * len(timed_of) * (AGAIN if ran else 1)
    width = int(np.prod(task.features))
    arrays = sum(np.asarray(a).nbytes for part in splits for a in jax.tree.leaves(part))
    if task.linear is None:
        most = max((w.public * w.parameters for w in works if _fitted(w)), default=0)
        arrays += 4 * COPIES * KEPT * most
    in_turn = game.squared_error and not game.targets
    targets = len((splits.fixed if in_turn else splits.targets).y)
    arrays += 4 * COPIES * targets * (spec.runs + GUESSES * width)
    programs = PROGRAMS * len(timed_of)
    for entry, attack in attacks:
        programs += LEARNING * _learns(entry, attack, splits)
        programs += SEARCHING * ("restarts" in entry.settings)
    guesses = spec.runs * targets
    plain = Forecast(
        tuple(works),
        operations,
        gflops,
        START + EACH * len(works) + compiling + computing,
        _memory(works, arrays, programs, scenario.lanes.memory_gib),
        trials(attacks, plays, splits, each / pace * rate, search * rate, guesses),
        CARD + sum(_disk(work, width) for work in works),
    )
    return _with_experience(plain, scenario, history)


def _built(entry: Entry, task: Task) -> Defense:
    """Build a defense for its mechanism; its public side state is not prepared."""
    try:
        recipe = Recipe(registry.find("defense", entry.name), task, ())
        return recipe.build(entry.settings)
    except ValueError as error:
        raise UserError(f"defense.{entry.label}: {error}") from None


def gradient_operations(task: Task, params: Any, records: Examples) -> float:
    """Return the operations of one record's gradient, by the compiler's count."""
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), records)
    counted = jax.jit(jax.grad(task.loss)).lower(params, one).cost_analysis()
    return float((counted or {}).get("flops", 0.0))


def trained(task: Task) -> Callable:
    """Return (parameters, records) -> the sum of gradients, as the engine makes it."""
    query = gradient(task, no_clip())
    return lambda params, z: batch.sum_fixed(query, params, Side(params), z, None)


def searched(task: Task) -> Callable:
    """Return the same as a search makes it, which differentiates it again."""
    total = lambda params, z: jax.vmap(task.loss, (None, 0))(params, z).sum()
    return jax.grad(total)


def gradient_pace(
    gradients: Callable,
    params: Any,
    records: Examples,
    each: float,
    most: int,
    cores: int = 1,
) -> float:
    """Return operations per second of `gradients`, which are `trained` or `searched`.

    They are those of the records in one step, as small as it is. `each` are the
    operations of one record's; at most `most` models share a program, and so many
    cores compute one each.
    """
    size = len(records.y)
    models = int(np.clip(TIMED / max(each * size, 1), 1, most))
    many = jax.tree.map(lambda a: jnp.zeros((models, *a.shape), a.dtype), params)
    program = jax.jit(jax.vmap(gradients, (0, None)))
    jax.block_until_ready(program(many, records))  # compiled once, not once per core
    with Cores(cores) as pool:

        def run() -> None:
            futures = [pool.submit(program, many, records) for _ in range(cores)]
            jax.block_until_ready([future.result() for future in futures])

        seconds = fastest(run, 3)
    return max(each, 1.0) * size * models * cores / seconds


def update_seconds(mechanism: Any, optimizer: Optimizer, params: Any) -> float:
    """Return seconds of what a step does beside its gradient: noise, and the update.

    0 for fewer than `rng.LARGE` parameters, of which that takes next to nothing, and
    where no steps are taken.
    """
    leaves = jax.tree.leaves(params)
    if not isinstance(mechanism, Iterative) or sum(a.size for a in leaves) < rng.LARGE:
        return 0.0
    rule = optimizers.named(optimizer, 0.1)

    @jax.jit
    def update(key: jax.Array, params: Any, state: Any) -> tuple:
        noised = mechanism.noise.sample(key, params)
        change, state = rule.update(noised, state, params)
        return optax.apply_updates(params, change), state

    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), params)
    given = jax.random.key(0), zeros, rule.init(zeros)
    return fastest(lambda: jax.block_until_ready(update(*given)), 3)


def public_fit(
    label: str, mechanism: Any, task: Task, public: Examples
) -> PublicFit | None:
    """Return the fit of a network to some public records, if a defense has one.

    Raises:
      UserError: if there is no such record.
    """
    if not isinstance(mechanism, Iterative) or mechanism.refresh is None:
        return None
    if mechanism.refresh.fit is None:
        return None
    key, some = jax.random.key(0), take(public, slice(TIMED_RECORDS))
    try:
        return mechanism.refresh.fit(key, Public(some, task.init(key)))
    except ValueError as error:
        raise UserError(f"defense.{label}: {error}") from None


def visit_seconds(work: budget.Workload, fit: PublicFit | None) -> float:
    """Return seconds of a public record's part in a pass of a fit, of one run.

    0 where nothing is fitted. A pass of a network's fit is timed if the fits are long
    beside it: its operations say little of convolutions that are differentiated twice.
    """
    if not _fitted(work):
        return 0.0
    some = min(work.public, TIMED_RECORDS)
    visits = work.public * (work.first_passes + work.passes)
    if fit is None or visits < WORTH * some:
        return FIT * work.parameters
    one_pass = lambda: jax.block_until_ready(fit.part(fit.first, 0, 1))
    return fastest(one_pass, 2) / some / PRIVATE


def contributions(mechanism: Any, fit: PublicFit) -> Callable:
    """Return (parameters, records) -> the sum of what a fitted network perturbs."""
    side = fit.last(fit.first)
    return lambda params, z: batch.sum_fixed(mechanism.query, params, side, z, None)


def trials(
    attacks: list[tuple[Entry, Attack]],
    plays: list[list[budget.Workload]],
    splits: Splits,
    each: float,
    search: float,
    guesses: int,
) -> dict[str, Trials]:
    """Return label -> what an attack takes.

    The operations are shadow models, once for attacks that share them; the network that
    is trained on them, at six per weight and example; steps of searches, from every
    restart, for every guess; a weight of every image of the pool, for every transcript;
    derivatives of a run that nothing random enters, for every target; and guesses that
    are not searched for. There are so many `guesses` of one defense, one per target and
    run. `plays` are the defenses that each attack plays against.
    `each` are the operations of a network that take as long as one record's gradient,
    `search` as long as a step of a search.
    """
    result: dict[str, Trials] = {}
    trained = set[tuple[int, int]]()
    images, *features = np.shape(splits.pool.x)
    outputs, targets = int(np.prod(features)), len(splits.targets.y)
    for (entry, attack), works in zip(attacks, plays, strict=True):
        asked, epochs = pipeline.shadow_runs(entry, attack, splits), 0
        shadows, anew = (sum(n for _, n in r) for r in (asked, asked - trained))
        given, unrolls = entry.settings, "replay" in attack.threat_model.knows
        steps = given.get("steps", 0) * given.get("restarts", 1)
        total = steps * search * guesses * len(works)
        if attack.threat_model.sees and not steps:
            total += GUESSED * guesses * outputs * len(works)
        if "transcript" in attack.threat_model.sees:
            total += WEIGHED * guesses * images * outputs * len(works)
        for work in works:
            total += anew * _gradients(work) * each
            epochs = EARLY * given.get("epochs", 0)
            weights = given.get("width", 0) * (work.parameters + outputs)
            total += 6 * weights * epochs * shadow_models.held(shadows, images)
            if unrolls:
                rounds = EARLY * given.get("rounds", 1) * targets
                total += rounds * outputs * _gradients(work) * each
        trained |= asked
        fixed = FITTED if unrolls or _learns(entry, attack, splits) else TRIAL
        result[entry.label] = Trials(len(works), fixed, total / max(len(works), 1))
    return result


def _learns(entry: Entry, attack: Attack, splits: Splits) -> bool:
    """Return whether an attack learns from shadow models or from every step."""
    sees = attack.threat_model.sees
    return bool(pipeline.shadow_runs(entry, attack, splits)) or "transcript" in sees


def _optimizer(entry: Entry) -> Optimizer:
    return entry.settings.get("optimizer", "sgd")


def _compiled_in(entry: Entry) -> str:
    """Return what tells the programs of two defenses apart: all but floats."""
    static = {k: v for k, v in entry.settings.items() if not isinstance(v, float)}
    return f"{entry.name} {sorted(static.items())}"


def _lanes(work: budget.Workload, shadows: bool = True) -> dict[str, int]:
    """Return purpose -> lanes that are computed, in whole tiles.

    A tile of runs that are not held is no larger than there are such runs. Without
    `shadows` those of attackers are left out.
    """
    every = {k: (n, work.tile) for k, n in work.held.items()}
    every |= {k: (n, min(n, work.tile)) for k, n in work.folded.items()}
    if not shadows:
        every.pop("shadow", None)
    return {k: -(-n // tile) * tile for k, (n, tile) in every.items() if n}


def reading(fisher: FisherReading, records: int) -> float:
    """Return what an accounted step takes, in steps of so many records."""
    if fisher == FisherReading():
        return READING
    probes = AUTO if fisher.probes == "auto" else fisher.probes
    share = min(1.0, (fisher.records or records) / records) / fisher.every
    double = 2 if fisher.precision == "double" else 1
    return 1 + PROBE * double * probes * share


def _operations(
    work: budget.Workload,
    each: float,
    reading: float = READING,
    shadows: bool = True,
) -> float:
    lanes = _lanes(work, shadows)
    training = sum(lanes.values()) * _gradients(work)
    training += work.visit * work.public * work.first_passes
    step = work.records * work.contribution
    read = (reading - 1) * lanes.get("accounting", 0) * work.steps * step
    return (training + read) * each


def _gradients(work: budget.Workload) -> float:
    """Return how many gradients one run takes as long as, its fits included."""
    looks = LOOK * work.steps if work.passes else 0.0  # one fit per step
    fits = work.public * (looks + work.visit * work.passes)
    return work.steps * work.records * work.contribution + fits


def _fitted(work: budget.Workload) -> bool:
    """Return whether a defense is fitted to public records."""
    return work.first_passes + work.passes > 0


def _memory(
    works: list[budget.Workload], arrays: int, programs: float, most_gib: float
) -> float:
    """Return bytes at the peak, of a run whose arrays and programs take so many."""
    of_works = max(_peak(work, most_gib) for work in works)
    return PROCESS + programs + 2 * arrays + of_works


def _peak(work: budget.Workload, most_gib: float) -> float:
    """Return bytes of the releases that are held and of the tiles in flight."""
    lanes = min(work.tile, max(_lanes(work).values(), default=1))
    tile = 4 * COPIES * lanes * (work.parameters + work.records)
    releases = 4 * COPIES * work.in_memory * work.parameters
    return releases + min(8 * tile, max(most_gib * budget.GIB, tile))


def _disk(work: budget.Workload, width: int) -> float:
    """Return bytes of what the store keeps: releases, and a reading per folded run."""
    releases = sum(work.held.values()) * work.parameters
    return 4.0 * (releases + sum(work.folded.values()) * width)


# Experience ---------------------------------------------------------------------------


def _with_experience(
    plain: Forecast, scenario: Scenario, history: Sequence[Took]
) -> Forecast:
    name, data = scenario.spec.name, scenario.data
    same = [t for t in history if t.scenario == name]
    like = [t for t in same if t.data == data]
    runs, whose = (like, f"{name} on {data}") if like else (same, name)
    timed = {name for took in history for name in took.trials}
    seconds = (
        # where no operations are counted, other data say nothing about these
        size.defenses
        * _trial(size, history if size.operations else like, attack, plain.gflops)
        for attack, size in plain.sizes.items()
    )
    plain = plain._replace(
        trials=sum(seconds), new=tuple(sorted(set(plain.sizes) - timed))
    )
    if not runs:
        return plain
    return plain._replace(
        time_factor=statistics.median(t.seconds / t.model_seconds for t in runs),
        memory_factor=statistics.median(t.memory / t.model_memory for t in runs),
        basis=f"{len(runs)} finished runs of {whose} on this machine",
    )


def _trial(size: Trials, history: Sequence[Took], name: str, gflops: float) -> float:
    """Return seconds of one trial, as counted and corrected by one that has run.

    That is the nearest in operations; the correction is what it took over its count.
    """
    counted = lambda size, gflops: size.fixed + size.operations / (SHARE * gflops * 1e9)
    history = [took for took in history if name in took.trials]
    if not history:
        return counted(size, gflops)
    ours = 1 + size.operations
    distance = lambda took: abs(np.log((1 + took.trials[name][0]) / ours))
    nearest = min(reversed(history), key=distance)
    operations, seconds = nearest.trials[name]
    before = size._replace(operations=operations)
    return seconds * counted(size, gflops) / counted(before, nearest.gflops)


def history(folder: Path | None = None) -> list[Took]:
    """Return what the last runs took; a line that cannot be read does not count."""
    took = []
    with contextlib.suppress(OSError):
        for line in _lines(folder).read_text("utf-8").splitlines()[-MOST_LINES:]:
            with contextlib.suppress(ValueError, TypeError):
                took.append(Took(**json.loads(line)))
    return took


def keep(took: Took, folder: Path | None = None) -> None:
    """Add a line, where there is room."""
    path = _lines(folder)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(took._asdict()) + "\n")


def _lines(folder: Path | None) -> Path:
    return (folder or cache_folder()) / LINES


def took(plan: Forecast, scenario: Scenario, card: Scorecard, peak: float) -> Took:
    """Return what a run took; its peak in bytes."""
    trials: dict[str, list[float]] = {}
    total = 0.0
    for trial in card.trials:
        seconds = getattr(trial.result, "seconds", None) or 0.0
        total += seconds
        if seconds and trial.attack in plan.sizes:
            trials.setdefault(trial.attack, []).append(seconds)
    return Took(
        scenario.spec.name,
        scenario.data,
        plan.gflops,
        plan.model_seconds,
        max(card.provenance.seconds - total, 1e-3),
        plan.model_memory,
        peak,
        {k: [plan.sizes[k].operations, statistics.mean(s)] for k, s in trials.items()},
    )


def forget_peak() -> None:
    """Let `peak` begin anew, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """Return the most bytes this process held in memory since `forget_peak`."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * int(next(x for x in lines if x.startswith("VmHWM")).split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most) * (1 if sys.platform == "darwin" else 1024)


# For people ---------------------------------------------------------------------------


def render(plan: Forecast) -> str:
    """Return a forecast as text, before the run."""
    lines = []
    for work, operations in zip(plan.works, plan.operations, strict=True):
        every = (*work.held.items(), *work.folded.items())
        runs = ", ".join(f"{n:,} {what}" for what, n in every if n)
        lines.append(f"  {work.where}: {runs} runs, {operations:.1e} operations")
    new = f"; attacks that never ran here: {', '.join(plan.new)}" if plan.new else ""
    return "\n".join(
        [
            "plan",
            *lines,
            f"  models      {plan.models:,}",
            f"  operations  {sum(plan.operations):.1e}, where a matrix product has "
            f"{plan.gflops:,.0f} GFLOP/s now",
            f"  memory      {in_bytes(plan.memory)} of {in_bytes(budget.memory())}",
            f"  disk        {in_bytes(plan.disk)}",
            f"  minutes     {plan.minutes:,.1f}",
            f"  rests on    {plan.basis}{new}",
        ]
    )


def compared(plan: Forecast, seconds: float, peak: float, resumed: bool) -> str:
    """Return, after the run, how far off its forecast was.

    No forecast knows of what a run takes from the store when it is `resumed`.
    """
    why = ", for a part was in the store" if resumed else ""
    return (
        f"took {seconds / 60:,.1f} min, planned {plan.minutes:,.1f}{why}; "
        f"memory {in_bytes(peak)}, planned {in_bytes(plan.memory)}"
    )


def ask(plan: Forecast) -> None:
    """Ask, in a terminal, before a run that takes longer than `LONG`.

    Raises:
      UserError: unless the answer is y.
    """
    if plan.minutes <= LONG or not sys.stdin.isatty():
        return
    print(render(plan))
    hours = plan.minutes / 60
    with contextlib.suppress(EOFError):
        if input(f"this takes about {hours:,.1f} hours; run it? [y/N] ").lower() == "y":
            return
    raise UserError("not started; nothing was trained")
