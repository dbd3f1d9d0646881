"""What a game is: who knows what, who plays, how guesses are scored.

A game is one file, found by name as every plug-in is: a function that takes the game's
settings and returns a `Game`. The referee trains the runs, grants each attacker exactly
what its threat model declares, and never edits a guess. An attack that forgot a
declaration is shown None. (The words are those of Guo et al. 2022, Figure 1.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from audit import data
from audit.config.compose import Entry, Scenario
from audit.config.schema import FisherReading
from audit.engine.cores import Cores, cores_for
from audit.engine.shadow import Engine, Learner, sweep
from audit.errors import did_you_mean
from audit.mechanisms.output_perturbation import objective_of
from audit.rng import stream
from audit.scorecard.flags import Flag
from audit.scorecard.schema import Headline
from audit.scorecard.view import View
from audit.types import (
    TRAITS,
    Attack,
    Defense,
    Examples,
    Knowledge,
    Observation,
    Release,
    Splits,
    Task,
    ThreatModel,
    TrainingSet,
)

TOGETHER = 128  # guesses that a GPU makes at a time; fewer leave it idle
LARGE = 2**20  # numbers that guesses share, a model's first of all, in no core's cache

# Which declared words show an attack a field: one of them is enough, for most fields
# the field's own name.
OBSERVED_BY = {
    **{f: {f} for f in ("params", "label", "update", "target", "refits", "signals")},
    "rest": {"objective"},
    "candidates": {"record", "canaries", "candidates"},
    "alignment": {"transcript"},
    "ratios": {"transcript"},
    "steps": {"transcript"},
}
KNOWN_BY = {
    **{f: {f} for f in ("fixed", "init", "public", "train", "objective", "shadows")},
    "shadow_key": {"train"},
    "noiseless": {"train"},
    "replay": {"replay"},
    "likelihood": {"mechanism"},
    "mechanism": {"mechanism"},
    "variance": {"mechanism"},
    "mask": {"update"},
    "prior": {"prior"},
}
# The words of every game; a game adds its own. An oracle sees the target.
WORDS = {
    "params": "the released parameters",
    "target": "the target itself (an oracle)",
    "fixed": "all other records",
    "label": "the target's label",
    "init": "the initialisation",
    "train": "the algorithm with its initialisation, never its noise",
    "replay": "the whole run but for the target",
    "public": "the public data",
    "objective": "all other records' part in what the release minimises",
    "transcript": "every noised update",
    "mechanism": "how a record enters a step, and the size of the noise",
    "prior": "the law that records are drawn from, where one is published",
}

Evidence = TypeVar("Evidence")


class Runs(NamedTuple, Generic[Evidence]):
    """What the referee trained of one defense."""

    learner: Learner
    releases: Release  # leading axis: runs
    evidence: Evidence  # what else the game keeps of them, of a type of its own
    noiseless: Release | None = None  # one release before noise, for utility only
    alike: int = 1  # releases in a row that differ in their noise alone


class Result(NamedTuple):
    """What one attack got against one defense."""

    headline: Headline
    numbers: dict[str, Any]  # further fields of the card's row
    arrays: dict[str, np.ndarray]  # per target, for figures
    error: np.ndarray | None  # [targets], compared with the floor's; None = no error
    squared: bool = False  # whether that error is squared, as bounds are
    flags: tuple[Flag, ...] = ()


class Problem(NamedTuple):
    """Everything public and private about what is audited."""

    task: Task
    splits: Splits
    dataset: data.Dataset
    pictures: np.ndarray | None = None  # [fixed, ...] before features were prepared
    features: Any = None  # what was done to the records: `schema.Features`
    bounds: tuple[Callable, ...] = ()  # (Readings) -> Bound | None: plug-ins
    known_targets: int = 0  # how many targets stand among what attackers hold
    ends: tuple[Any, Any] | None = None  # of each coordinate [d]; None = the domain's

    @property
    def room(self) -> tuple[Any, Any] | None:
        """Return the ends of the coordinates; None where some has none."""
        if self.ends is not None:
            return self.ends
        return self.task.domain if np.isfinite(self.task.domain).all() else None


class Table(NamedTuple):
    """What every trial of an audit shares."""

    problem: Problem
    engine: Engine
    runs: int  # releases per target, or in all where one release serves all targets
    lpips: Any = None  # weights, or the reason why there are none
    trajectories: int = 1  # that are accounted for, per target
    delta: float = 0.0  # at which epsilon is given
    fisher: FisherReading = FisherReading()
    floor: np.ndarray | None = None  # [targets] error of who ignores the release
    address: Any = None  # (Learner, Entry of an attack) -> `pipeline.addresses`
    seed: int = 0  # of the audit


class Trial(NamedTuple):
    """One planned (defense, attack), whatever came of it."""

    defense: str
    attack: Entry
    threat_model: ThreatModel
    sentence: str  # the threat model in words
    status: Literal["ok", "skipped", "failed"]
    reason: str | None = None
    trace: str | None = None  # where a failed one failed
    result: Result | None = None


class Trainings(NamedTuple):
    """How many runs of one defense are made, by what they are for."""

    held: dict[str, int]  # whose releases are held together in memory
    folded: dict[str, int]  # of which readings alone are kept
    tile: int | None = None  # most lanes of the game's own tiles; None = lanes.tile


class Game(NamedTuple):
    """How one kind of audit is played."""

    goal: str  # of the attacks that can play
    grants: Mapping[str, str]  # words it can grant, and what they mean; see `words`
    release: Callable  # (key, Learner, Table) -> Runs
    account: Callable  # (key, Runs, Table) -> Guarantees
    play: Callable  # (key, Attack, Runs, Guarantees, Table) -> Result
    view: View
    floor: str | None = None  # the attack that ignores the release; None = a test
    floor_error: Callable | None = None  # (Table) -> [targets] instead of playing it
    check: Callable | None = None  # (Scenario) -> None; UserError before any loading
    fits: Callable | None = None  # (Learner, Table) -> None; UserError with the remedy
    refuses: Callable | None = None  # (ThreatModel, Defense) -> why not, or None
    task: Callable | None = None  # (Task) -> Task: what the game adds to what is learnt
    records: Callable | None = None  # (Splits) -> records of one run; None = all there
    compare: Callable | None = None  # (list[Trial]) -> the same, set side by side
    sizes: Callable | None = None  # (Scenario) -> what is trained, for the banner
    trainings: Callable | None = None  # (Table) -> Trainings; None = `runs` per target
    trajectories: bool = True  # whether dFIL is read along `accounting_runs` of them
    targets: bool = False  # the split `targets`; else each fixed record, in turn
    squared_error: bool = False  # whether bounds on squared errors apply
    prior_only: bool = False  # attacks of other goals can play if they see no release


# Threat models ------------------------------------------------------------------------


def words(game: Game) -> dict[str, str]:
    """Return every word a game can grant, and what it means."""
    return {**{w: WORDS[w] for w in ("params", "target")}, **game.grants}


def granting(*common: str, **more: str) -> dict[str, str]:
    """Return the words a game grants: `common` ones of `WORDS`, and its own."""
    return {**{word: WORDS[word] for word in common}, **more}


def mismatch(model: ThreatModel, defense: Defense, game: Game) -> str | None:
    """Return why an attack cannot play against a defense, or None if it can.

    Raises:
      ValueError: if the threat model declares a word no game can grant, or assumes a
        trait no defense can have.
    """
    declared = model.sees | model.knows
    vocabulary = set(words(game)).union(*(OBSERVED_BY | KNOWN_BY).values())
    if declared - vocabulary:
        raise ValueError(
            f"threat model says {sorted(declared - vocabulary)}; a game can grant "
            f"{sorted(vocabulary)}"
        )
    for word in sorted(model.assumes - TRAITS):
        raise ValueError(
            f"threat model assumes {word!r}, which no defense can be"
            f"{did_you_mean(word, TRAITS)}"
        )
    missing = sorted(model.assumes - defense.traits)
    if missing:
        return f"the defense is not {', not '.join(missing)}"
    refusal = game.refuses and game.refuses(model, defense)
    if refusal:
        return refusal
    blind = model.sees <= {"target"}
    if model.goal != game.goal and not (game.prior_only and blind):
        return f"its goal is {model.goal}, the game is about {game.goal}"
    lacking = sorted(declared - set(words(game)))
    return f"this game cannot grant {', '.join(lacking)}" if lacking else None


def sentence(model: ThreatModel, game: Game) -> str:
    """Return a threat model in words."""
    sees, knows = (
        ", ".join(words(game).get(word, word) for word in sorted(declared))
        for declared in (model.sees, model.knows)
    )
    knowledge = f"; knows {knows}" if knows else ""
    return f"sees {sees or 'nothing'}; has a pool of similar records{knowledge}"


def is_oracle(model: ThreatModel) -> bool:
    """Return whether the referee shows an attack the answer."""
    return "target" in model.sees


def shown(model: ThreatModel, field: str) -> bool:
    """Return whether an attack declared a word that shows it a field."""
    return bool((OBSERVED_BY | KNOWN_BY)[field] & (model.sees | model.knows))


def observe(model: ThreatModel, **available: Any) -> Observation:
    """Return what an attack is shown of one run: what it declared, and nothing else.

    `available` are the fields of `Observation` that the game has to show.
    """
    return Observation(**{f: v for f, v in available.items() if shown(model, f)})


def grant(
    model: ThreatModel, learner: Learner, table: Table, **available: Any
) -> Knowledge:
    """Return what an attack knows before the release: what it declared, nothing else.

    `available` are the fields of `Knowledge` that only this game has to grant.
    """
    splits = table.problem.splits

    def train(key: Array, records: TrainingSet) -> Release:
        what = f"{learner.label}: shadow models"
        return sweep("train", learner, key, records, engine=table.engine, what=what)

    root = jax.random.key(table.seed)
    available = {
        "fixed": splits.fixed,
        "public": splits.public,
        "init": getattr(learner.side, "params", None),
        "mask": getattr(learner.side, "mask", None),
        "train": train,
        "shadow_key": stream(root, f"shadow models {learner.label}"),
        "noiseless": "noiseless" in learner.defense.traits,
        "objective": objective_of(learner.defense),
        "prior": table.problem.dataset.prior,
        **available,
    }
    granted = {f: v for f, v in available.items() if shown(model, f)}
    return Knowledge(learner.task, splits.pool, splits.pool_source, **granted)


def fitted(
    key: Array, attack: Attack, learner: Learner, table: Table, **available: Any
) -> tuple[Any, dict]:
    """Return the state of an attack that knows what it declared, and diagnostics."""
    knowledge = grant(attack.threat_model, learner, table, **available)
    return attack.fit(stream(key, "fit"), knowledge)


# Runs ---------------------------------------------------------------------------------


def train(name: str, key: Array, learner: Learner, *data: Any, **more: Any) -> Any:
    """Return what `engine.shadow.sweep` does, under the keys and the title `name`."""
    what, key = f"{learner.label}: {name}", stream(key, name)
    return sweep("train", learner, key, *data, what=what, **more)


def silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


def blocks(
    n: int, size: int, report: Callable = silent, what: str = ""
) -> Iterator[np.ndarray]:
    """Yield the rows of n records, `size` at a time; the last block repeats row n - 1.

    One compiled program serves all blocks. `report` is called as `Engine.report` is.
    """
    report(what, 0, n)
    for start in range(0, n, size):
        yield np.minimum(np.arange(start, start + size), n - 1)
        report(what, min(start + size, n), n)


def guesses(
    program: Any,
    shared: tuple,
    arguments: Callable[[np.ndarray], tuple],
    n: int,
    report: Callable = silent,
    what: str = "",
    on_core: int | None = None,
) -> Any:
    """Return what a program guesses of n records, a few on every core.

    One record leaves room for its derivatives in a core's cache, and programs as small
    as its own do not keep two cores busy. Of a model that is read from memory at every
    step, two records share the reading; more would wait for their own updates. On how
    many cores they are computed changes no bit. A GPU computes `TOGETHER` at a time.

    Args:
      program: compiled, (*shared, *arguments of b records) -> guesses, or a tree of
        what is read of them; arrays are [b, ...], and [n, ...] in what is returned.
      shared: its arguments that no record changes.
      arguments: rows [b] -> its other arguments, each with leading axis b.
      n: how many records there are.
      report: as `Engine.report`.
      what: name in progress reports.
      on_core: records of a call on a processor; None = 1, or 2 of a large model.
    """
    many = sum(np.size(a) for a in jax.tree.leaves(shared))
    on_core = on_core or (1 if many < LARGE else 2)
    size = min(on_core if jax.default_backend() == "cpu" else TOGETHER, n)
    lowered = program.lower(*shared, *arguments(np.arange(size)))
    cores, parts = min(cores_for(lowered), -(-n // size)), list[Any]()
    slices = [slice(i * size, (i + 1) * size) for i in range(cores)]
    waiting = cores if cores > 1 else 0  # calls, so that no core waits for its next
    begun = deque[Future]()
    with Cores(cores) as pool:
        for rows in blocks(n, size * cores, report, what):
            block = arguments(rows)
            begun += [pool.submit(program, *shared, *take(block, s)) for s in slices]
            while len(begun) > waiting:
                parts.append(jax.device_get(begun.popleft().result()))
        parts += [jax.device_get(future.result()) for future in begun]
    return jax.tree.map(lambda *of_parts: np.concatenate(of_parts)[:n], *parts)


def take(tree: Any, rows: Any) -> Any:
    """Return some rows of every array."""
    return jax.tree.map(lambda a: a[rows], tree)


def repeated(targets: Examples, runs: int) -> Examples:
    """Return every target `runs` times in a row: [T * runs, ...]."""
    return jax.tree.map(lambda a: np.repeat(np.asarray(a), runs, 0), targets)


def in_turn(scenario: Scenario) -> str:
    """Return how many records there are where each is the target in turn."""
    return f"{fixed_records(scenario)} records, each the target in turn"


def fixed_records(scenario: Scenario) -> str:
    """Return the number of fixed records in words."""
    fixed = scenario.splits.fixed
    return "all other" if fixed is None else str(fixed)


# Numbers ------------------------------------------------------------------------------


def headline(
    metric: str,
    value: float,
    standard_error: float | None,
    *,
    better: Literal["higher", "lower"],
    floor: float | None,
) -> Headline:
    """Return the number an attack is ranked by, called as the row's field is.

    `standard_error` is over targets, None = too few to tell; `better` is the stronger
    attack's direction; `floor` is what who ignores the release gets, None = not known.
    """
    return Headline.model_construct(
        metric=metric,
        value=value,
        standard_error=standard_error,
        better=better,
        floor=floor,
    )
