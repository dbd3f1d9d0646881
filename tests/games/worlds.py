"""Tiny worlds in which games are played, and an attack that keeps what it is shown."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit.config import registry
from audit.config.schema import Features
from audit.data import Dataset
from audit.engine import shadow
from audit.games.base import Problem, Result, Runs, Table
from audit.games.guarantees import Guarantees
from audit.types import Attack, Lanes, Splits, ThreatModel
from tests.conftest import public

KEY = jax.random.key(0)
ENGINE = shadow.Engine(Lanes(8))


def problem(task, fixed, pool, *, targets=None, public_records=None, columns=()):
    """Return what is audited; without targets each fixed record is one in turn."""
    nobody = jax.tree.map(lambda a: a[:0], fixed)
    parts = [nobody if z is None else z for z in (public_records, fixed, targets, pool)]
    splits = Splits(*parts, pool, np.arange(len(pool.y)))
    dataset = Dataset("made", *fixed, None, None, "embedded", "", columns)
    pictures = fixed.x if targets is None else None
    return Problem(task, splits, dataset, pictures, Features())


def learner(task, defense, *, start=None, **given):
    """Return a defense of the suite with some settings, or what a factory makes."""
    settings, factory = given, defense
    if isinstance(defense, str):
        settings = registry.check("defense", defense, given, defense)
        factory = registry.find("defense", defense)
    start = public(task) if start is None else start
    return shadow.learner(factory, task, settings, key=KEY, public=start)


def table(problem, runs=1, tile=8):
    """Return the table of an audit without LPIPS or a floor."""
    return Table(problem, shadow.Engine(Lanes(tile)), runs, "none", delta=1e-5)


class Played(NamedTuple):
    """What came of one game."""

    result: Result
    runs: Runs
    limits: Guarantees

    @property
    def numbers(self) -> dict[str, Any]:
        return self.result.numbers

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.result.arrays


def play(game, attack, learner, table, delta=None):
    """Release, account if there is a delta, and let one attack play."""
    runs, limits = game.release(KEY, learner, table), Guarantees()
    if delta is not None:
        limits = game.account(KEY, runs, table._replace(delta=delta))
    result = game.play(KEY, attack, runs, limits, table)
    return Played(result, runs, limits)


class Spy(NamedTuple):
    """An attack, and what it was shown once it has played."""

    attack: Attack
    knowledge: list
    observations: list

    def granted(self):
        """Return the names of the fields of `Knowledge` that somebody filled."""
        return fields(self.knowledge[0]) - {"task", "pool", "pool_source", "attribute"}

    def shown(self):
        """Return the names of the fields of `Observation` that somebody filled."""
        return set().union(*map(fields, self.observations))


def fields(record):
    """Return the names of the fields that are not None."""
    return {name for name, value in record._asdict().items() if value is not None}


def spy(goal, guess, sees=(), knows=()):
    """Return an attack that makes a guess of an observation, or always the same."""
    knowledge, observations = [], []

    def fit(key, granted):
        knowledge.append(granted)
        return jnp.zeros(()), {"fitted": True}

    def make(state, key, observation):
        observations.append(observation)
        return guess(observation) if callable(guess) else guess

    model = ThreatModel(goal, frozenset(sees), frozenset(knows))
    return Spy(Attack(model, fit, make), knowledge, observations)
