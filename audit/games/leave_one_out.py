"""The game of Guo et al. (2022, section 7): one training set, each record in turn.

One set is trained on, `runs` releases differ in their noise alone, and every record of
the set is the target of every release; the attacker knows all the others. Records times
releases is many guesses, so they are scored where they are made and never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.config.compose import Scenario
from audit.engine.precision import double
from audit.engine.shadow import Learner
from audit.errors import UserError
from audit.games import base, controls, guarantees, scoring
from audit.games.base import Game, Result, Runs, Table, Trainings, take
from audit.games.guarantees import Guarantees
from audit.mechanisms.output_perturbation import objective_of
from audit.rng import stream
from audit.scorecard.schema import Scorecard
from audit.scorecard.view import Column, Line, View, bound_column
from audit.statistics import metrics
from audit.types import (
    Attack,
    Examples,
    Iterative,
    Minimiser,
    Objective,
    Release,
    TrainingSet,
)

ROWS = 256  # records guessed together
RUNS = 32  # releases whose totals are taken together
PICTURES = 300  # records whose first guess is judged as an image
SAME = 2  # runs that show that nothing differs between them


def leave_one_out(*, trajectories: Literal["fresh", "released"] = "fresh") -> Game:
    """Rebuild every record of one training set in turn, all the others known.

    Args:
      trajectories: along which dFIL is read: those of runs drawn anew, from the law of
        the releases, or those of the releases themselves, trained and accounted for at
        once, so that a long run is made once.
    """
    accounted = trajectories == "released"
    return Game(
        goal="reconstruction",
        grants=base.granting("label", "init", "public", "objective"),
        release=release_accounted if accounted else release,
        account=account,
        play=play,
        view=VIEW,
        floor="class_mean",
        check=check_released if accounted else None,
        sizes=base.in_turn,
        trainings=_accounted_alone if accounted else trainings,
        squared_error=True,
    )


def check_released(scenario: Scenario) -> None:
    """Refuse settings by which releases cannot be accounted for while they are trained.

    Raises:
      UserError: naming the setting.
    """
    spec, where = scenario.spec, "trajectories=released"
    if spec.runs != spec.accounting_runs:
        raise UserError(
            f"{where}: the runs accounted for are the releases, so that runs="
            f"{spec.runs} and accounting_runs={spec.accounting_runs} must be equal"
        )
    if spec.fisher.precision != "single":
        raise UserError(
            f"{where}: releases are trained in single precision; set "
            f"fisher.precision=single"
        )
    if spec.fisher.every != 1 and spec.runs == 1:
        raise UserError(
            f"{where}: fisher.every={spec.fisher.every} has an error that one run does "
            f"not tell; leave it at 1, and take fewer fisher.records"
        )


def trainings(table: Table) -> Trainings:
    """Return the runs of `release`; accounting is of one lane at a time."""
    return Trainings({"target": table.runs}, {}, table.runs)


def _accounted_alone(table: Table) -> Trainings:
    return Trainings({"target": 0}, {"accounting": table.trajectories}, 1)


def account(key: Array, runs: Runs, table: Table) -> Guarantees:
    """Account for every fixed record, unless that was done while it was trained on."""
    return runs.evidence or guarantees.in_turn(key, runs.learner, table)


def release_accounted(key: Array, learner: Learner, table: Table) -> Runs:
    """Train on all fixed records and account for them at once, where there is dFIL."""
    steps = isinstance(learner.defense.mechanism, Iterative)
    if not steps or not guarantees.reads(learner.defense, table.fisher):
        return release(key, learner, table)
    limits = guarantees.in_turn(key, learner, table, released=True)
    releases, limits = limits.releases, limits._replace(releases=None)
    return Runs(learner, releases, limits, alike=table.runs)


def release(key: Array, learner: Learner, table: Table) -> Runs:
    """Train on all fixed records, `runs` times with fresh noise; once without noise."""
    records = TrainingSet(table.problem.splits.fixed, None)
    differ = "noiseless" not in learner.defense.traits
    runs = table.runs if differ else min(SAME, table.runs)
    mechanism = learner.defense.mechanism
    if not isinstance(mechanism, Minimiser) or mechanism.objective is None:
        # few runs of many records: lanes to fill up a tile would cost more than they do
        more: Any = {"engine": table.engine.few(runs), "runs": runs}
        releases = base.train("target runs", key, learner, records, **more)
        return Runs(learner, releases, None, alike=table.runs)
    key = stream(key, "target runs")  # solved once for all releases
    with jax.enable_x64("exact" in learner.defense.traits):
        plain = jax.jit(mechanism.solve)(learner.side, double(records))
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(runs))
        noised = jax.jit(jax.vmap(mechanism.publish, (0, None)))(keys, plain)
        releases, noiseless = Release(np.asarray(noised)), Release(np.asarray(plain))
        return Runs(learner, releases, None, noiseless, table.runs)


class BlockScores(NamedTuple):
    """What is kept of the guesses at one block of records."""

    mse: Any  # [b, runs]
    mean: Any  # [b, *features] guess averaged over runs
    first: Any  # [b, *features] guess at the first release
    inside: Any  # [b] whether every guess of a record lies in the domain


def play(
    key: Array, attack: Attack, runs: Runs, limits: Guarantees, table: Table
) -> Result:
    """Let one attack guess every record at every release; return its scores."""
    learner, splits = runs.learner, table.problem.splits
    state, diagnostics = base.fitted(key, attack, learner, table)
    with jax.enable_x64("exact" in learner.defense.traits):
        scores = _guess_all(stream(key, "guess"), attack, state, runs, table)
    parts, mse = _decomposed(scores, splits.fixed.x), scores.mse
    judged = np.unique(np.linspace(0, len(mse) - 1, PICTURES).astype(int))
    numbers: dict[str, Any] = {"lpips": None}
    if splits.fixed.x.ndim == 4:
        x, first = splits.fixed.x[judged], scores.first[judged]
        numbers = scoring.images(first, x, table) | {"pictures": len(judged)}
    null, arrays = controls.of_guesses(scores.first[:, None], splits.fixed, splits.pool)
    typical = np.median(mse, 1)
    numbers = {
        "mse_typical": float(np.median(typical)),
        **numbers,
        "against": scoring.against(limits.bounds, parts.mse, mse, table.floor),
        "fit": diagnostics,
        **_within_reach(limits, parts.mse, learner.task.domain),
        "controls": null,
    }
    arrays |= {"mse_median": typical, "mean_guess": scores.mean.astype(np.float16)}
    se = metrics.crossed_standard_error(mse)  # all records share a release's noise
    return scoring.squared(parts, se, mse.shape[1], table, numbers, arrays)


def _guess_all(
    key: Array, attack: Attack, state: Any, runs: Runs, table: Table
) -> BlockScores:
    """Guess every record at every release, a block of records on every core."""
    learner, model = runs.learner, attack.threat_model
    objective = objective_of(learner.defense)
    fixed = double(table.problem.splits.fixed)
    n, released = len(fixed.y), runs.releases.params
    params = released if base.shown(model, "params") else None
    weight, totals = np.ones(n), None
    if base.shown(model, "rest") and objective is not None:
        weight = np.asarray(jax.jit(objective.weights)(learner.side, fixed))
        totals = _totals(objective, fixed, weight, released)
    leaves = jax.tree.leaves(params)
    each = np.arange(len(leaves[0]) if leaves else min(SAME, table.runs))
    return base.guesses(
        _scorer(attack, state, learner, key),
        (each, params, totals),
        lambda rows: (take(fixed, rows), weight[rows]),
        n,
        table.engine.report,
        f"{learner.label}: guesses",
        on_core=ROWS,
    )


def _totals(
    objective: Objective, fixed: Examples, weight: Any, params: Any
) -> np.ndarray:
    """Return the objective's gradient over all records at every release [runs, D]."""

    def one(w: Array) -> Array:
        return objective.total(w, fixed, weight) + objective.ridge(len(fixed.y)) * w

    whole = jax.jit(lambda ws: jax.lax.map(one, ws, batch_size=RUNS))
    return np.asarray(whole(params))


def _scorer(
    attack: Attack, state: Any, learner: Learner, key: Array
) -> Callable[..., BlockScores]:
    """Return the compiled scoring of some records at some releases."""
    model, objective = attack.threat_model, objective_of(learner.defense)
    low, high = learner.task.domain

    def one(z: Examples, omega: Any, k: Any, w: Any, total: Any) -> Any:
        rest = None
        if total is not None:  # what the others leave of it, per unit of own weight
            assert objective is not None
            rest = total / omega - objective.gradient(w, z)
        observation = base.observe(model, params=w, label=z.y, target=z.x, rest=rest)
        return attack.guess(state, jax.random.fold_in(key, k), observation)

    @jax.jit
    def score(
        ks: Any, params: Any, totals: Any, z: Examples, omega: Any
    ) -> BlockScores:
        def guess(k: Any, w: Any, total: Any) -> Any:
            return jax.vmap(one, (0, 0, None, None, None))(z, omega, k, w, total)

        def step(carry: tuple, run: tuple) -> tuple[tuple, Array]:
            total, inside = carry
            guesses = guess(*run)
            axes = tuple(range(1, guesses.ndim))
            inside &= ((guesses >= low) & (guesses <= high)).all(axes)
            mse = ((guesses - z.x) ** 2).mean(axes)
            return (total + guesses, inside), mse

        # one release at a time: its guesses stay in the processor's cache
        every = (ks, params, totals)
        first = guess(*jax.tree.map(lambda a: a[0], every))
        start = (jnp.zeros_like(first), jnp.ones(len(first), bool))
        (total, inside), each = jax.lax.scan(step, start, every)
        return BlockScores(each.T, total / len(ks), first, inside)

    return score


def _decomposed(scores: BlockScores, targets: np.ndarray) -> metrics.Decomposition:
    """Return every record's error, split into bias^2 and variance where it can be.

    The split is left out where a guess leaves the domain: an unbounded guess need not
    have a mean.
    """
    runs, each = scores.mse.shape[1], scores.mse.mean(1)
    if runs < 2 or not scores.inside.all():
        return metrics.Decomposition(each, None, None)
    axes = tuple(range(1, targets.ndim))
    apart = ((scores.mean - targets) ** 2).mean(axes)  # bias^2 + variance / runs
    # it is at least 0, but for rounding where guesses hardly differ
    variance = np.maximum(each - apart, 0) * runs / (runs - 1)
    return metrics.Decomposition(each, each - variance, variance)


def _within_reach(limits: Guarantees, mse: np.ndarray, domain: tuple) -> dict[str, Any]:
    """Count records whose Cramer-Rao bound says anything, and those below it.

    On a box of this width every guess inside has an error of at most width^2 ("perfect
    privacy" in Guo et al.), so a larger bound cannot bind.
    """
    bound = next((b for b in limits.bounds if b.name == "cramer_rao"), None)
    width2 = (domain[1] - domain[0]) ** 2
    if bound is None or not np.isfinite(width2):
        return {}
    says = np.asarray(bound.value) < width2
    below = mse < np.asarray(bound.value)
    return {
        "below_bound": {
            "limit": width2,
            "within": int(says.sum()),
            "within_below": int((says & below).sum()),
            "below": int(below.sum()),
        }
    }


def _beaten(line: Line) -> str:
    shares = scoring.beaten(line, oracles=True)
    return f"{max(shares):.0%}" if shares else "none"


def _units(card: Scorecard) -> str:
    return (
        f"MSE per coordinate, mean over releases; ± one standard error over "
        f"{scoring.units_drawn(card)}; beaten: records an attack rebuilds better than "
        f"the floor does, by the median over releases"
    )


VIEW = View(
    units=_units,
    attack=(
        *scoring.REBUILT[:2],
        scoring.REBUILT[2]._replace(narrow=False),
        scoring.REBUILT[3],
        Column("beaten", _beaten),
    ),
    trial=scoring.TRIAL,
    trial_words=scoring.TRIAL_WORDS,
    trial_sections=scoring.by_record,
    verdict=scoring.verdict,
    bounds=(
        bound_column("cramer_rao", narrow=True),
        bound_column("hammersley_chapman_robbins", narrow=True),
        bound_column("van_trees", narrow=False),
    ),
)
