"""The game of Guo et al. (2022, section 7): one training set, each record in turn.

One set is trained on, `runs` releases differ in their noise alone, and every record of
the set is the target of every release; the attacker knows all the others. Records times
releases is many guesses, so they are scored where they are made and never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit.engine import shadow
from audit.engine.precision import double
from audit.games import base, controls, guarantees, scoring
from audit.games.base import Game, Result, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms.output_perturbation import objective_of
from audit.rng import stream
from audit.scorecard.view import Column, Line, View, bound_column
from audit.statistics import metrics
from audit.types import (
    Attack,
    Examples,
    Minimiser,
    Objective,
    Release,
    Splits,
    TrainingSet,
)

ROWS = 256  # records guessed together
RUNS = 32  # releases whose totals are taken together
PICTURES = 300  # records whose first guess is judged as an image


def leave_one_out() -> Game:
    """Rebuild every record of one training set in turn, all the others known."""
    return Game(
        goal="reconstruction",
        grants=base.granting("label", "init", "public", "objective"),
        release=release,
        account=account,
        play=play,
        view=VIEW,
        floor="class_mean",
        sizes=base.in_turn,
        squared_error=True,
    )


def release(key: jax.Array, learner: shadow.Learner, table: Table) -> Runs[None]:
    """Train on all fixed records, `runs` times with fresh noise; once without noise."""
    records = TrainingSet(table.problem.splits.fixed, None)
    key = stream(key, "target runs")
    runs = _enough("noiseless" not in learner.defense.traits, table)
    mechanism = learner.defense.mechanism
    if isinstance(mechanism, Minimiser) and mechanism.objective is not None:
        # solved once for all releases
        with jax.enable_x64("exact" in learner.defense.traits):
            plain = jax.jit(mechanism.solve)(learner.side, double(records))
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(runs))
            noised = jax.jit(jax.vmap(mechanism.publish, (0, None)))(keys, plain)
            releases = Release(np.asarray(noised))
            return Runs(releases, None, Release(np.asarray(plain)), alike=table.runs)
    what, lanes = f"{learner.label}: target runs", table.engine.lanes
    # few runs of many records: lanes to fill up a tile would cost more than they do
    engine = table.engine._replace(lanes=lanes._replace(tile=min(lanes.tile, runs)))
    releases = shadow.sweep(
        "train", learner, key, records, engine=engine, what=what, runs=runs
    )
    return Runs(releases, None, alike=table.runs)


def _enough(differ: bool, table: Table) -> int:
    """Return how many runs to make: two show that nothing differs between them."""
    return table.runs if differ else min(2, table.runs)


def account(
    key: jax.Array,
    learner: shadow.Learner,
    table: Table,
    runs: Runs[None],
    trajectories: int,
    delta: float,
) -> Guarantees:
    """Account for every record of the one training set."""
    del runs  # drawn anew, from the same law
    return guarantees.in_turn(
        key, learner, table.problem, trajectories, delta, table.engine
    )


class BlockScores(NamedTuple):
    """What is kept of the guesses at one block of records."""

    mse: Any  # [b, runs]
    mean: Any  # [b, *features] guess averaged over runs
    first: Any  # [b, *features] guess at the first release
    inside: Any  # [] whether every guess lies in the domain


def play(
    key: jax.Array,
    attack: Attack,
    learner: shadow.Learner,
    runs: Runs,
    limits: Guarantees,
    table: Table,
) -> Result:
    """Let one attack guess every record at every release; return its scores."""
    splits = table.problem.splits
    knowledge = base.grant(attack.threat_model, learner, table)
    state, diagnostics = base.fitted(key, attack, knowledge)
    with jax.enable_x64("exact" in learner.defense.traits):
        scores = _guess_all(
            stream(key, "guess"), attack, state, learner, runs.releases, splits, table
        )
    parts, mse = _decomposed(scores, splits.fixed.x), scores.mse
    se = mse.std(1, ddof=1) / np.sqrt(mse.shape[1]) if mse.shape[1] > 1 else None
    judged = np.unique(np.linspace(0, len(mse) - 1, PICTURES).astype(int))
    pictures: dict[str, Any] = {"lpips": None}
    if splits.fixed.x.ndim == 4:
        x, first = splits.fixed.x[judged], scores.first[judged]
        pictures = scoring.images(first, x, table.lpips) | {"pictures": len(judged)}
    null, arrays = controls.of_guesses(scores.first[:, None], splits.fixed, splits.pool)
    typical = np.median(mse, 1)
    numbers = {
        "mse_typical": float(np.median(typical)),
        **pictures,
        "against": {b.name: scoring.against(b, parts.mse, se) for b in limits.bounds},
        "fit": diagnostics,
        **_within_reach(limits, parts.mse, learner.task.domain),
        "controls": null,
    }
    arrays |= {"mse_median": typical, "mean_guess": scores.mean.astype(np.float16)}
    return scoring.squared(parts, mse.shape[1], table, numbers=numbers, arrays=arrays)


def _guess_all(
    key: jax.Array,
    attack: Attack,
    state: Any,
    learner: shadow.Learner,
    releases: Release,
    splits: Splits,
    table: Table,
) -> BlockScores:
    """Guess every record at every release, a block of records at a time."""
    model, objective = attack.threat_model, objective_of(learner.defense)
    fixed = double(splits.fixed)
    params = releases.params if base.shown(model, "params") else None
    weight, totals = np.ones(len(fixed.y)), None
    if base.shown(model, "rest") and objective is not None:
        weight = np.asarray(jax.jit(objective.weights)(learner.side, fixed))
        totals = _totals(objective, fixed, weight, releases.params)
    leaves = jax.tree.leaves(params)
    runs = np.arange(len(leaves[0]) if leaves else _enough(False, table))
    score = _scorer(attack, state, learner, key)

    def pick(tree: Any, rows: np.ndarray) -> Any:
        return jax.tree.map(lambda a: a[rows], tree)

    blocks = []
    n = len(fixed.y)
    table.engine.report(f"{learner.label}: guesses", 0, n)
    for start in range(0, n, ROWS):
        rows = np.minimum(np.arange(start, start + ROWS), n - 1)  # the last is padded
        scores = score(pick(fixed, rows), weight[rows], runs, params, totals)
        blocks.append(jax.device_get(scores))
        table.engine.report(f"{learner.label}: guesses", min(start + ROWS, n), n)

    def whole(name: str) -> np.ndarray:
        return np.concatenate([getattr(block, name) for block in blocks])[:n]

    inside = all(block.inside for block in blocks)
    return BlockScores(whole("mse"), whole("mean"), whole("first"), inside)


def _totals(
    objective: Objective, fixed: Examples, weight: Any, params: Any
) -> np.ndarray:
    """Return the objective's gradient over all records at every release [runs, D]."""

    def one(w: jax.Array) -> jax.Array:
        return objective.total(w, fixed, weight) + objective.ridge(len(fixed.y)) * w

    whole = jax.jit(lambda ws: jax.lax.map(one, ws, batch_size=RUNS))
    return np.asarray(whole(params))


def _scorer(
    attack: Attack, state: Any, learner: shadow.Learner, key: jax.Array
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
        z: Examples, omega: Any, ks: Any, params: Any, totals: Any
    ) -> BlockScores:
        def guess(k: Any, w: Any, total: Any) -> Any:
            return jax.vmap(one, (0, 0, None, None, None))(z, omega, k, w, total)

        def step(carry: tuple, run: tuple) -> tuple[tuple, jax.Array]:
            total, inside = carry
            guesses = guess(*run)
            inside &= ((guesses >= low) & (guesses <= high)).all()
            error = (guesses - z.x) ** 2
            mse = error.mean(tuple(range(1, error.ndim)))
            return (total + guesses, inside), mse

        # one release at a time: its guesses stay in the processor's cache
        every = (ks, params, totals)
        first = guess(*jax.tree.map(lambda a: a[0], every))
        start = (jnp.zeros_like(first), jnp.array(True))
        (total, inside), each = jax.lax.scan(step, start, every)
        return BlockScores(each.T, total / len(ks), first, inside)

    return score


def _decomposed(scores: BlockScores, targets: np.ndarray) -> metrics.Decomposition:
    """Return every record's error, split into bias^2 and variance where it can be.

    The split is left out where a guess leaves the domain: an unbounded guess need not
    have a mean.
    """
    runs, each = scores.mse.shape[1], scores.mse.mean(1)
    if runs < 2 or not scores.inside:
        return metrics.Decomposition(each, None, None)
    axes = tuple(range(1, targets.ndim))
    apart = ((scores.mean - targets) ** 2).mean(axes)  # bias^2 + variance / runs
    variance = (each - apart) * runs / (runs - 1)
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
    """Return the largest share of records an attack rebuilds better than the floor."""
    shares = [
        float(trial.result["beats_floor"])
        for trial in line.card.trials
        if trial.defense == line.label and trial.result is not None
    ]
    return f"{max(shares):.0%}" if shares else "none"


VIEW = View(
    units="MSE per coordinate, mean over releases; ± one standard error over records; "
    "beaten: records an attack rebuilds better than the floor does, by the median over "
    "releases",
    attack=(
        *scoring.REBUILT[:2],
        scoring.REBUILT[2]._replace(narrow=False),
        scoring.REBUILT[3],
        Column("beaten", _beaten),
    ),
    trial=scoring.TRIAL,
    trial_words=scoring.TRIAL_WORDS,
    verdict=scoring.verdict,
    bounds=(
        bound_column("cramer_rao", narrow=True),
        bound_column("hammersley_chapman_robbins", narrow=True),
        bound_column("van_trees", narrow=False),
    ),
)
