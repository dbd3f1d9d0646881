"""Audits of a claimed epsilon with canaries: many runs of two worlds, or one run.

`canary`: one canary is in half of the runs and not in the others; a test tells the
worlds apart. `one_run`: many canaries, each in with chance 1/2, in every run; each run
is an audit of its own (Steinke et al. 2023). Neighbours are add-or-remove, and so is
the epsilon that stands above the lower bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import Array

from audit.config.compose import Scenario
from audit.config.schema import Section
from audit.engine.shadow import Learner, sweep
from audit.errors import UserError
from audit.games import base, epsilon_audit, guarantees
from audit.games.base import Game, Problem, Result, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms import canaries as planting
from audit.rng import stream
from audit.scorecard.view import View
from audit.types import Attack, Count, Examples, Positive, Splits, Task, TrainingSet

MODELS = 16  # trained whole, for the utility
TOGETHER = 100_000  # runs of one sweep


class Canaries(Section):
    """What is planted; see `mechanisms.canaries.plant`."""

    kind: Literal["gradient", "input"] = "gradient"
    count: Count = 1  # in one run
    norm: Positive = 1000.0  # of a gradient canary's gradient, before the clip
    audits: Count = 1  # independent repetitions; the first is the row


class Bits(NamedTuple):
    """Which canaries were in."""

    canaries: Examples  # [m, ...]
    member: np.ndarray  # [audits, m] bool


def canary(*, canaries: Canaries) -> Game:
    """Tell runs with one canary from runs without it."""

    def check(scenario: Scenario) -> None:
        if canaries.count != 1:
            raise UserError(
                f"canaries.count={canaries.count}: the game canary has one per run"
            )

    return _game(canaries, two_worlds, tell_apart, check, epsilon_audit.TWO_WORLDS)


def one_run(*, canaries: Canaries) -> Game:
    """Tell which of many canaries were in one run."""

    def check(scenario: Scenario) -> None:
        if canaries.count < 2:
            raise UserError(
                f"canaries.count={canaries.count}: the game one_run needs at least 2"
            )
        if scenario.spec.runs != 1:
            raise UserError(
                f"runs={scenario.spec.runs}: the game one_run has one run per audit; "
                f"canaries.audits repeats it"
            )

    return _game(canaries, single_runs, tell_members, check, epsilon_audit.ONE_RUN)


def _game(
    canaries: Canaries, release: Callable, play: Callable, check: Callable, view: View
) -> Game:
    def checked(scenario: Scenario) -> None:
        check(scenario)
        if not scenario.spec.task.classes:
            raise UserError("task.classes=[]: canaries need labels that are classes")

    def account(key: Array, runs: Runs, table: Table) -> Guarantees:
        """Account for epsilon, every slot counted; no guess is at a record."""
        n = records(canaries, table.problem.splits)
        return Guarantees(epsilon=guarantees.epsilon(runs.learner, n, table.delta))

    return Game(
        goal="membership",
        grants=base.granting(
            "fixed",
            "init",
            "public",
            transcript="every noised update",
            canaries="which records were planted",
        ),
        release=partial(release, canaries),
        account=account,
        play=play,
        view=view,
        check=checked,
        fits=partial(fits, canaries),
        task=lambda task: planted_task(task, canaries.count, canaries.norm),
        records=partial(records, canaries),
        sizes=partial(_sizes, canaries),
    )


@functools.lru_cache(maxsize=32)
def planted_task(task: Task, count: int, norm: float) -> Task:
    """Return a task with canaries; once, so that other seeds find their programs."""
    return planting.plant(task, count, norm)


def _sizes(canaries: Canaries, scenario: Scenario) -> str:
    fixed, plural = base.fixed_records(scenario), "y" if canaries.count == 1 else "ies"
    return f"{fixed} fixed records and {canaries.count} {canaries.kind} canar{plural}"


def records(canaries: Canaries, splits: Splits) -> int:
    """Return how many records one run has, every canary's slot counted."""
    return len(splits.fixed.y) + canaries.count


def planted(canaries: Canaries, problem: Problem) -> Examples:
    """Return the canaries [m, ...].

    Raises:
      UserError: if the pool has too few records for input canaries.
    """
    pool = problem.splits.pool
    try:
        return planting.records(canaries.kind, canaries.count, problem.task, pool)
    except ValueError as error:
        raise UserError(f"canaries.count={canaries.count}: {error}") from None


def fits(canaries: Canaries, learner: Learner, table: Table) -> None:
    """Refuse what cannot be audited, before anything is trained.

    Raises:
      UserError: no such records, or a defense that sums no gradients.
    """
    planted(canaries, table.problem)
    if "noisy_sgd" not in learner.defense.traits:
        raise UserError(
            f"defense.{learner.label}: sums no gradients a canary could be in; leave "
            f"it out"
        )


def _claim(runs: Runs, limits: Guarantees, table: Table, canaries: int) -> Any:
    n = len(table.problem.splits.fixed.y) + canaries
    return epsilon_audit.claim(runs.learner, limits, n)


# Two worlds ---------------------------------------------------------------------------


def two_worlds(
    canaries: Canaries, key: Array, learner: Learner, table: Table
) -> Runs[np.ndarray | None]:
    """Make `runs` transcripts of each world, for every audit; keep what they say.

    The ratio of every run is folded step by step inside the run: no transcript exists.

    Returns:
      Models for the utility, and log-likelihood ratios [audits, 2, runs], the world
      with the canary first; None where noise has no density.
    """
    canary, audits = planted(canaries, table.problem), canaries.audits
    fixed, engine = table.problem.splits.fixed, table.engine

    def records(member: np.ndarray) -> TrainingSet:
        """Return the records of every run, the canary or nobody in the last slot."""
        slots = planting.present(base.repeated(canary, len(member)), member)
        return TrainingSet(fixed, slots)

    some, few = records(np.ones(MODELS, bool)), base.few(engine, MODELS)
    releases = base.train("models", key, learner, some, engine=few)
    if learner.defense.log_likelihood is None:
        return Runs(learner, releases, None)
    key, what = stream(key, "transcripts"), f"{learner.label}: transcripts"
    together = min(audits, max(1, TOGETHER // (2 * table.runs)))
    engine.report(what, 0, audits)
    ratios, quiet = [], engine._replace(report=base.silent)
    for start in range(0, audits, together):
        number = min(together, audits - start)
        both = records(np.tile(np.repeat([True, False], table.runs), number))
        run_key = jax.random.fold_in(key, start)
        each = sweep("log_likelihood", learner, run_key, both, canary, engine=quiet)
        ratios.append(each[:, 0].reshape(number, 2, table.runs))
        engine.report(what, start + number, audits)
    return Runs(learner, releases, np.concatenate(ratios))


def tell_apart(
    key: Array, attack: Attack, runs: Runs, limits: Guarantees, table: Table
) -> Result:
    """Let one attack score every run of both worlds; return what that proves."""
    ratios, model = runs.evidence, attack.threat_model
    assert ratios is not None, "an attack on transcripts assumes noise with a density"
    knowledge = base.grant(model, runs.learner, table)
    state, diagnostics = attack.fit(stream(key, "fit"), knowledge)
    keys = jax.random.split(stream(key, "guess"), ratios.size)
    guess = jax.jit(jax.vmap(attack.guess, (None, 0, 0)))
    scores = guess(state, keys, base.observe(model, ratios=ratios.reshape(-1)))
    scores = np.asarray(scores, float).reshape(ratios.shape)
    claim = _claim(runs, limits, table, 1)
    return epsilon_audit.two_worlds(scores, claim, diagnostics)


# One run ------------------------------------------------------------------------------


def single_runs(
    canaries: Canaries, key: Array, learner: Learner, table: Table
) -> Runs[Bits]:
    """Train once per audit, each canary in with chance 1/2 of its own."""
    many, audits = planted(canaries, table.problem), canaries.audits
    fixed, what = table.problem.splits.fixed, f"{learner.label}: models"
    shape = (audits, canaries.count)
    member = np.asarray(jax.random.bernoulli(stream(key, "members"), shape=shape))
    engine, each = base.few(table.engine, 1)._replace(report=base.silent), []
    table.engine.report(what, 0, audits)
    for i in range(audits):
        run_key = jax.random.fold_in(stream(key, "models"), i)
        slots = planting.present(many, member[i])
        joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), fixed, slots)
        records = TrainingSet(joined, None)
        each.append(sweep("train", learner, run_key, records, engine=engine))
        table.engine.report(what, i + 1, audits)
    releases = jax.tree.map(lambda *a: np.concatenate(a), *each)
    return Runs(learner, releases, Bits(many, member))


def tell_members(
    key: Array, attack: Attack, runs: Runs[Bits], limits: Guarantees, table: Table
) -> Result:
    """Let one attack score every canary of every run; return what that proves."""
    bits, model = runs.evidence, attack.threat_model
    knowledge = base.grant(model, runs.learner, table)
    state, diagnostics = attack.fit(stream(key, "fit"), knowledge)

    def one(key: Array, params: Any) -> Array:
        observation = base.observe(model, params=params, candidates=bits.canaries)
        return attack.guess(state, key, observation)

    keys = jax.random.split(stream(key, "guess"), len(bits.member))
    scores = np.asarray(jax.jit(jax.vmap(one))(keys, runs.releases.params), float)
    claim = _claim(runs, limits, table, bits.member.shape[1])
    return epsilon_audit.one_run(scores, bits.member, claim, diagnostics)
