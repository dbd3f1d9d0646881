"""Games: who knows what, who plays, how guesses are scored (Guo et al. 2022, Fig. 1).

The referee trains the target's runs, grants each attacker exactly what its threat model
declares, and never edits a guess. An attack that forgot a declaration finds None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit import data
from audit.config.compose import Entry
from audit.config.schema import Canaries
from audit.engine import shadow
from audit.games import controls
from audit.rng import stream
from audit.types import (
    Attack,
    Attribute,
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

GOALS = {"reconstruction", "inversion", "attribute", "membership"}
SEES = {"params", "update", "target", "signals", "transcript"}
KNOWS = {
    "fixed", "label", "init", "train", "public", "objective", "record", "refits",
    "mechanism", "shadows", "canaries",
}  # fmt: skip


class Problem(NamedTuple):
    """Everything public and private about what is audited."""

    task: Task
    splits: Splits
    dataset: data.Dataset
    pictures: np.ndarray | None = None  # [fixed, ...] before features were prepared
    attribute: Attribute | None = None  # in attribute games
    exposed: str = "trained"  # where the step is taken, in exposed games
    canaries: Canaries | None = None  # in the games canary and one_run
    bounds: tuple = ()  # (Readings) -> Bound | None: those from elsewhere
    known_targets: int = 0  # how many targets stand in what attackers hold


class Trial(NamedTuple):
    """One planned (defense, attack), whatever came of it."""

    defense: str
    attack: Entry
    threat_model: str
    status: str  # "ok", "skipped" or "failed"
    reason: str | None = None
    result: dict[str, Any] | None = None
    arrays: dict[str, np.ndarray] | None = None
    knows: frozenset[str] = frozenset()  # words of the threat model


class Runs(NamedTuple):
    """What the referee trained."""

    releases: Release  # leading axis: runs
    noiseless: Release | None = None  # one release before noise, for utility only
    looked: Any = None  # what a game that looks inside its runs saw


class Game(NamedTuple):
    """How one kind of audit is played; the words of a scenario's `game`."""

    goal: str  # of the attacks that can play
    # words of SEES and KNOWS the referee can grant; "params" and "target" it always can
    grants: frozenset[str]
    release: Callable  # (key, Learner, Table) -> Runs
    account: Callable  # (key, Learner, Table, runs, delta) -> Guarantees
    play: Callable  # (key, Attack, Learner, Release, Guarantees, Table) -> two dicts
    floor: str | None  # the attack that ignores the release; None = a test has none
    fits: Callable | None = None  # (Learner, Table) -> None; UserError names the remedy
    prior_only: bool = False  # other goals' attacks can play if they look at no release


class Table(NamedTuple):
    """What every trial of an audit shares."""

    problem: Problem
    engine: shadow.Engine
    runs: int  # releases a target, or in all where one release serves all targets
    lpips: Any  # weights, or the reason why there are none
    membership: Any = None  # spec.Membership, in membership games
    made: Runs | None = None  # of the defense at hand, once there are any


class Played(NamedTuple):
    """What one attack did in a reconstruction game."""

    guesses: np.ndarray  # [targets, runs, *features]
    info: dict  # the fit's diagnostics
    same_noise: float | None = None  # s.e. by which the attacker's runs share noise


def mismatch(
    threat_model: ThreatModel, defense: Defense, game: Game | None = None
) -> str | None:
    """Return why an attack does not apply to a defense, or None if it does.

    Args:
      threat_model: of the attack.
      defense: what is attacked.
      game: what is played; None = any.

    Raises:
      ValueError: if the threat model says a word no game can grant.
    """
    for said, known in (
        ({threat_model.goal}, GOALS),
        (threat_model.sees, SEES),
        (threat_model.knows, KNOWS),
    ):
        if said - known:
            raise ValueError(
                f"threat model says {sorted(said - known)}; a game can grant "
                f"{sorted(known)}"
            )
    missing = sorted(threat_model.assumes - defense.traits)
    if missing:
        return f"the defense is not {', not '.join(missing)}"
    if "update" in threat_model.sees and defense.exposed is None:
        return "the defense shows no step before its release"
    blind = threat_model.sees <= {"target"}
    other = game is not None and threat_model.goal != game.goal
    if game is not None and other and not (game.prior_only and blind):
        return f"its goal is {threat_model.goal}, the game is about {game.goal}"
    if game is None:
        return None
    asked = threat_model.knows | (threat_model.sees - {"params", "target"})
    lacking = sorted(asked - game.grants)
    return f"this game cannot grant {', '.join(lacking)}" if lacking else None


def sentence(threat_model: ThreatModel) -> str:
    """Return a threat model in words."""
    words = {
        "params": "the released parameters",
        "update": "one step's noised gradient",
        "target": "the target itself (an oracle)",
        "fixed": "all other records",
        "label": "the target's label",
        "init": "the initialisation",
        "train": "the algorithm with its initialisation, never its noise",
        "public": "the public data",
        "objective": "all other records' part in what the release minimises",
        "record": "all of the target but one attribute",
        "refits": "how to fit with any value in its place",
        "mechanism": "the law of the noise",
        "signals": "the model's confidence in any record's label",
        "shadows": "what models trained like it, with and without the record, say",
        "transcript": "every noised update",
        "canaries": "which records were planted",
    }
    sees = ", ".join(words[w] for w in sorted(threat_model.sees)) or "nothing"
    knows = ", ".join(words[w] for w in sorted(threat_model.knows)) or "nothing more"
    return f"sees {sees}; knows {knows} and a pool of similar records"


def is_oracle(threat_model: ThreatModel) -> bool:
    """Return whether the referee shows it the answer: a reference, never ranked."""
    return "target" in threat_model.sees


def grant(
    threat_model: ThreatModel,
    of: shadow.Learner,
    splits: Splits,
    engine: shadow.Engine,
) -> Knowledge:
    """Return what the attacker may know before the release, and nothing else."""

    def train(key: jax.Array, data: TrainingSet) -> Release:
        what = f"{of.label}: shadow models"
        return shadow.sweep("train", of, key, data, engine=engine, what=what)

    all_of_it: dict[str, Any] = {
        "fixed": splits.fixed,
        "public": splits.public,
        "init": getattr(of.side, "params", None),
        "train": train,
        "objective": of.defense.objective,
    }
    granted = {k: v for k, v in all_of_it.items() if k in threat_model.knows}
    return Knowledge(of.task, splits.pool, splits.pool_source, **granted)


def repeated(targets: Examples, runs: int) -> Examples:
    """Return every target `runs` times in a row: [T * runs, ...]."""
    return jax.tree.map(lambda a: np.repeat(np.asarray(a), runs, 0), targets)


def play_targets(
    key: jax.Array,
    of: shadow.Learner,
    splits: Splits,
    runs: int,
    engine: shadow.Engine,
) -> Release:
    """Train on fixed + {target}, `runs` times for every target; noise always fresh.

    Every attack is shown the same releases, so their errors are paired.

    Returns:
      Release with leading axis [targets * runs].
    """
    data = TrainingSet(splits.fixed, repeated(splits.targets, runs))
    key = stream(key, "target runs")
    what = f"{of.label}: target runs"
    return shadow.sweep("train", of, key, data, engine=engine, what=what)


def rest(of: shadow.Learner, releases: Release, splits: Splits) -> jax.Array:
    """Return the known records' part of the stationarity condition [T * runs, D]."""
    objective, n = of.defense.objective, len(splits.fixed.y)
    assert objective is not None
    weight = jnp.ones(n, releases.params.dtype)

    def one(w: jax.Array) -> jax.Array:
        known = objective.total(w, splits.fixed, weight)
        return known + objective.ridge(n + 1) * w

    return jax.jit(jax.vmap(one))(releases.params)


def reconstruction_game(
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    splits: Splits,
    runs: int,
    engine: shadow.Engine,
) -> Played:
    """Let one attack fit, then guess every target run.

    Args:
      key: of the attack; independent of the releases'.
      attack: who plays.
      of: the defense that made the releases.
      releases: from `play_targets`.
      splits: the data.
      runs: releases per target.
      engine: for the attacker's own shadow runs.
    """
    threat_model = attack.threat_model
    granted = known = grant(threat_model, of, splits, engine)
    doubts: list[float | None] = []

    def watched(key: jax.Array, data: TrainingSet) -> Release:
        assert known.train is not None
        own = known.train(key, data)
        doubts.append(controls.same_noise(releases, own, runs))
        return own

    if known.train is not None:
        granted = known._replace(train=watched)
    state, info = attack.fit(stream(key, "fit"), granted)
    sure = max((z for z in doubts if z is not None), default=None)
    targets = repeated(splits.targets, runs)
    seen: dict[str, Any] = {
        "params": releases.params if "params" in threat_model.sees else None,
        "target": targets.x if "target" in threat_model.sees else None,
        "label": targets.y if "label" in threat_model.knows else None,
    }
    if "objective" in threat_model.knows and of.defense.objective is not None:
        with jax.enable_x64(True):
            seen["rest"] = rest(of, releases, splits)
    m = len(targets.y)
    keys = jax.random.split(stream(key, "guess"), m)
    # a solver's release has more digits than float32 holds, and attacks need them
    with jax.enable_x64("exact" in of.defense.traits):
        guesses = jax.jit(jax.vmap(attack.guess, (None, 0, 0)))(
            state, keys, Observation(**seen)
        )
    shape = (m // runs, runs, *of.task.features)
    return Played(np.asarray(guesses).reshape(shape), info, sure)
