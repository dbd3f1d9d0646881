"""Audits of a claimed epsilon with canaries: many runs of two worlds, or one run.

`canary`: one canary is in half of the runs and not in the others; a test tells the
worlds apart. `one_run`: many canaries, each in with chance 1/2, in every run; each run
is an audit of its own (Steinke et al. 2023). Neighbours are add-or-remove, and so is
the epsilon that stands above the lower bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from audit.engine import shadow
from audit.errors import UserError
from audit.games import base, epsilon_audit, guarantees
from audit.games.base import Game, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms import canaries
from audit.rng import stream
from audit.types import (
    Attack,
    Examples,
    Observation,
    Release,
    TrainingSet,
)

if TYPE_CHECKING:
    from audit.config.schema import Canaries
    from audit.games.base import Problem

MODELS = 16  # trained whole, for the utility
TOGETHER = 100_000  # runs of one sweep
GRANTS = frozenset({"transcript", "fixed", "init", "public", "canaries"})


class Worlds(NamedTuple):
    """What the transcripts of both worlds say; None where noise has no density."""

    ratios: np.ndarray | None  # [audits, 2, runs] first with the canary, then without


class Bits(NamedTuple):
    """Which canaries were in."""

    canaries: Examples  # [m, ...]
    member: np.ndarray  # [audits, m] bool


def planted(problem: Problem) -> tuple[Canaries, Examples]:
    """Return what was asked for, and the canaries.

    Raises:
      UserError: if the pool has too few records for input canaries.
    """
    asked = problem.canaries
    assert asked is not None
    pool = problem.splits.pool
    try:
        return asked, canaries.records(asked.kind, asked.count, problem.task, pool)
    except ValueError as error:
        raise UserError(f"canaries.count={asked.count}: {error}") from None


def fits(of: shadow.Learner, table: Table) -> None:
    """Refuse what cannot be audited, before anything is trained.

    Raises:
      UserError: no such records, or a defense that sums no gradients.
    """
    planted(table.problem)
    if "noisy_sgd" not in of.defense.traits:
        raise UserError(
            f"defense.{of.label}: sums no gradients a canary could be in; leave it out"
        )


def account(
    key: jax.Array, of: shadow.Learner, table: Table, runs: int, delta: float
) -> Guarantees:
    """Account for epsilon with every slot counted; records are not what is asked."""
    del key, runs
    asked, _ = planted(table.problem)
    n = len(table.problem.splits.fixed.y) + asked.count
    return Guarantees(None, None, (), guarantees.epsilon(of, n, delta))


# Two worlds ---------------------------------------------------------------------------


def two_worlds(key: jax.Array, of: shadow.Learner, table: Table) -> Runs:
    """Make `runs` transcripts of each world, for every audit; keep what they say.

    The ratio of every run is folded step by step inside the run: no transcript exists.
    """
    asked, canary = planted(table.problem)
    fixed, engine = table.problem.splits.fixed, table.engine
    some = TrainingSet(fixed, _slots(canary, np.ones(MODELS, bool)))
    made = Runs(
        shadow.sweep(
            "train", of, stream(key, "models"), some, engine=_cut(engine, MODELS),
            what=f"{of.label}: models",
        )
    )  # fmt: skip
    if of.defense.log_likelihood is None:
        return made._replace(looked=Worlds(None))
    key, what = stream(key, "transcripts"), f"{of.label}: transcripts"
    together = min(asked.audits, max(1, TOGETHER // (2 * table.runs)))
    engine.report(what, 0, asked.audits)
    ratios = []
    for start in range(0, asked.audits, together):
        audits = min(together, asked.audits - start)
        member = np.tile(np.repeat([True, False], table.runs), audits)
        found = shadow.sweep(
            "log_likelihood",
            of,
            jax.random.fold_in(key, start),
            TrainingSet(fixed, _slots(canary, member)),
            canary,
            engine=engine._replace(report=_quiet),
        )
        ratios.append(found[:, 0].reshape(audits, 2, table.runs))
        engine.report(what, start + audits, asked.audits)
    return made._replace(looked=Worlds(np.concatenate(ratios)))


def _slots(canary: Examples, member: np.ndarray) -> Examples:
    """Return the target slot of every run: the canary, or nobody."""
    m = len(member)
    many = jax.tree.map(lambda a: np.repeat(a, m, 0), canary)
    return canaries.present(many, member)


def _cut(engine: shadow.Engine, runs: int) -> shadow.Engine:
    """Return the engine with tiles no larger than there are runs."""
    lanes = engine.lanes
    return engine._replace(lanes=lanes._replace(tile=min(lanes.tile, runs)))


def _quiet(what: str, done: int, total: int) -> None:
    """Report nothing."""


def tell_apart(
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let one attack score every run of both worlds; return what that proves."""
    del releases
    splits, engine = table.problem.splits, table.engine
    assert table.made is not None
    ratios = table.made.looked.ratios
    assert ratios is not None, "an attack on transcripts assumes noise with a density"
    granted = base.grant(attack.threat_model, of, splits, engine)
    state, info = attack.fit(stream(key, "fit"), granted)
    keys = jax.random.split(stream(key, "guess"), ratios.size)
    guess = jax.jit(jax.vmap(attack.guess, (None, 0, 0)))
    scores = guess(state, keys, Observation(ratios=ratios.reshape(-1)))
    scores = np.asarray(scores, float).reshape(ratios.shape)
    claim = epsilon_audit.claim(of, held, len(splits.fixed.y) + 1)
    result, arrays = epsilon_audit.two_worlds(scores, claim)
    return {**result, "fit": info}, arrays


# One run ------------------------------------------------------------------------------


def one_run(key: jax.Array, of: shadow.Learner, table: Table) -> Runs:
    """Train once an audit, each canary in with chance 1/2 of its own."""
    asked, many = planted(table.problem)
    fixed, what = table.problem.splits.fixed, f"{of.label}: models"
    chance = jax.random.bernoulli(
        stream(key, "members"), shape=(asked.audits, asked.count)
    )
    member = np.asarray(chance)
    engine, made = _cut(table.engine, 1), []
    table.engine.report(what, 0, asked.audits)
    for i in range(asked.audits):
        slots = canaries.present(many, member[i])
        joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), fixed, slots)
        release = shadow.sweep(
            "train",
            of,
            jax.random.fold_in(stream(key, "models"), i),
            TrainingSet(joined, None),
            engine=engine._replace(report=_quiet),
        )
        made.append(release)
        table.engine.report(what, i + 1, asked.audits)
    releases = jax.tree.map(lambda *a: np.concatenate(a), *made)
    return Runs(releases, looked=Bits(many, member))


def tell_members(
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let one attack score every canary of every run; return what that proves."""
    assert table.made is not None
    bits, splits = table.made.looked, table.problem.splits
    granted = base.grant(attack.threat_model, of, splits, table.engine)
    state, info = attack.fit(stream(key, "fit"), granted)

    def one(key: jax.Array, params: Any) -> jax.Array:
        seen = Observation(params=params, candidates=bits.canaries)
        return attack.guess(state, key, seen)

    keys = jax.random.split(stream(key, "guess"), len(bits.member))
    scores = np.asarray(jax.jit(jax.vmap(one))(keys, releases.params), float)
    n = len(splits.fixed.y) + scores.shape[1]
    result, arrays = epsilon_audit.one_run(
        scores, bits.member, epsilon_audit.claim(of, held, n)
    )
    return {**result, "fit": info}, arrays


CANARY = Game("membership", GRANTS, two_worlds, account, tell_apart, None, fits)
ONE_RUN = Game("membership", GRANTS, one_run, account, tell_members, None, fits)
