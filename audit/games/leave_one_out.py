"""The game of Guo et al. (2022, section 7): one training set, each record in turn.

One set is trained on, `runs` releases differ in their noise alone, and every record of
the set is the target of every release; the attacker knows all the others. Records times
releases is many guesses, so they are scored where they are made and never stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit.engine import shadow
from audit.engine.precision import double
from audit.games import base, controls, guarantees, scoring
from audit.games.base import Game, Runs, Table
from audit.games.guarantees import Guarantees
from audit.rng import stream
from audit.statistics import metrics
from audit.types import Attack, Examples, Observation, Release, Splits, TrainingSet

ROWS = 256  # records guessed together
RUNS = 32  # releases whose totals are taken together
PICTURES = 300  # records whose first guess is judged as an image


def release(key: jax.Array, of: shadow.Learner, table: Table) -> Runs:
    """Train on all fixed records, `runs` times with fresh noise; once without noise."""
    data = TrainingSet(table.problem.splits.fixed, None)
    key = stream(key, "target runs")
    runs = _enough("noiseless" not in of.defense.traits, table)
    objective = of.defense.objective
    if objective is not None:  # solved once for all releases
        with jax.enable_x64("exact" in of.defense.traits):
            plain = jax.jit(objective.solve)(of.side, double(data))
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(runs))
            noised = jax.jit(jax.vmap(objective.publish, (0, None)))(keys, plain)
            return Runs(Release(np.asarray(noised)), Release(np.asarray(plain)))
    what, lanes = f"{of.label}: target runs", table.engine.lanes
    # few runs of many records: lanes to fill up a tile would cost more than they do
    engine = table.engine._replace(lanes=lanes._replace(tile=min(lanes.tile, runs)))
    return Runs(
        shadow.sweep("train", of, key, data, engine=engine, what=what, runs=runs)
    )


def _enough(differ: bool, table: Table) -> int:
    """Return how many runs to make: two show that nothing differs between them."""
    return table.runs if differ else min(2, table.runs)


def account(
    key: jax.Array, of: shadow.Learner, table: Table, runs: int, delta: float
) -> Guarantees:
    """Account for every record of the one training set."""
    return guarantees.in_turn(key, of, table.problem, runs, delta, table.engine)


class Scores(NamedTuple):
    """What is kept of the guesses at one block of records."""

    mse: Any  # [b, runs]
    mean: Any  # [b, *features] guess averaged over runs
    first: Any  # [b, *features] guess at the first release
    inside: Any  # [] whether every guess lies in the domain


def play(
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let one attack guess every record at every release; return its scores."""
    splits = table.problem.splits
    granted = base.grant(attack.threat_model, of, splits, table.engine)
    state, info = attack.fit(stream(key, "fit"), granted)
    with jax.enable_x64("exact" in of.defense.traits):
        scores = _guess_all(
            stream(key, "guess"), attack, state, of, releases, splits, table
        )
    mse = scores.mse
    summary, arrays = _summary(scores, splits.fixed.x)
    se = mse.std(1, ddof=1) / np.sqrt(mse.shape[1]) if mse.shape[1] > 1 else None
    against = {b.name: scoring.against(b, arrays["mse"], se) for b in held.bounds}
    judged = np.unique(np.linspace(0, len(mse) - 1, PICTURES).astype(int))
    pictures: dict[str, Any] = {"lpips": None}
    if splits.fixed.x.ndim == 4:
        x, first = splits.fixed.x[judged], scores.first[judged]
        pictures = scoring.images(first, x, table.lpips) | {"pictures": len(judged)}
    limit = _within_reach(held, arrays["mse"], of.task.domain)
    null, more = controls.of_guesses(scores.first[:, None], splits.fixed, splits.pool)
    told = {**summary, **pictures, "against": against, "fit": info, **limit}
    return {**told, "controls": null}, {**arrays, **more}


def _guess_all(
    key: jax.Array,
    attack: Attack,
    state: Any,
    of: shadow.Learner,
    releases: Release,
    splits: Splits,
    table: Table,
) -> Scores:
    """Guess every record at every release, a block of records at a time."""
    model, objective = attack.threat_model, of.defense.objective
    fixed = double(splits.fixed)
    params = releases.params if "params" in model.sees else None
    weight, totals = np.ones(len(fixed.y)), None
    if "objective" in model.knows and objective is not None:
        weight = np.asarray(jax.jit(objective.weights)(of.side, fixed))
        totals = _totals(objective, fixed, weight, releases.params)
    made = jax.tree.leaves(params)
    runs = np.arange(len(made[0]) if made else _enough(False, table))
    score = _scorer(attack, state, of, key)

    def pick(tree: Any, rows: np.ndarray) -> Any:
        return jax.tree.map(lambda a: a[rows], tree)

    kept = []
    n = len(fixed.y)
    table.engine.report(f"{of.label}: guesses", 0, n)
    for start in range(0, n, ROWS):
        rows = np.minimum(np.arange(start, start + ROWS), n - 1)  # the last is padded
        scores = score(pick(fixed, rows), weight[rows], runs, params, totals)
        kept.append(jax.device_get(scores))
        table.engine.report(f"{of.label}: guesses", min(start + ROWS, n), n)

    def whole(name: str) -> np.ndarray:
        return np.concatenate([getattr(s, name) for s in kept])[:n]

    inside = all(s.inside for s in kept)
    return Scores(whole("mse"), whole("mean"), whole("first"), inside)


def _totals(objective: Any, fixed: Examples, weight: Any, params: Any) -> np.ndarray:
    """Return the objective's gradient over all records at every release [runs, D]."""

    def one(w: jax.Array) -> jax.Array:
        return objective.total(w, fixed, weight) + objective.ridge(len(fixed.y)) * w

    whole = jax.jit(lambda ws: jax.lax.map(one, ws, batch_size=RUNS))
    return np.asarray(whole(params))


def _scorer(attack: Attack, state: Any, of: shadow.Learner, key: jax.Array) -> Any:
    """Return the compiled scoring of some records at some releases."""
    model, objective = attack.threat_model, of.defense.objective
    low, high = of.task.domain

    def one(z: Examples, omega: Any, k: Any, w: Any, total: Any) -> Any:
        seen = Observation(
            params=w,
            label=z.y if "label" in model.knows else None,
            target=z.x if "target" in model.sees else None,
        )
        if total is not None:  # what the others leave of it, per unit of own weight
            assert objective is not None
            seen = seen._replace(rest=total / omega - objective.gradient(w, z))
        return attack.guess(state, jax.random.fold_in(key, k), seen)

    @jax.jit
    def score(z: Examples, omega: Any, ks: Any, params: Any, totals: Any) -> Scores:
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
        return Scores(each.T, total / len(ks), first, inside)

    return score


def _summary(scores: Scores, targets: np.ndarray) -> tuple[dict, dict]:
    """Return the error summary and the per-record arrays.

    Bias and variance are left out where a guess leaves the domain: an unbounded guess
    need not have a mean.
    """
    runs, each = scores.mse.shape[1], scores.mse.mean(1)
    parts = metrics.Decomposition(each, None, None)
    if runs > 1 and scores.inside:
        axes = tuple(range(1, targets.ndim))
        apart = ((scores.mean - targets) ** 2).mean(axes)  # bias^2 + variance / runs
        own = (each - apart) * runs / (runs - 1)
        parts = metrics.Decomposition(each, each - own, own)
    summary, arrays = scoring.summarise(parts, runs)
    typical = np.median(scores.mse, 1)
    summary["mse_typical"] = float(np.median(typical))
    mean_guess = scores.mean.astype(np.float16)
    return summary, {**arrays, "mse_median": typical, "mean_guess": mean_guess}


def _within_reach(held: Guarantees, mse: np.ndarray, domain: tuple) -> dict[str, Any]:
    """Count records whose Cramer-Rao bound says anything, and those below it.

    On a box of this width every guess inside has an error of at most width^2 ("perfect
    privacy" in Guo et al.), so a larger bound cannot bind.
    """
    bound = next((b for b in held.bounds if b.name == "cramer_rao"), None)
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


GAME = Game(
    goal="reconstruction",
    grants=frozenset({"label", "init", "public", "objective"}),
    release=release,
    account=account,
    play=play,
    floor="class_mean",
)
