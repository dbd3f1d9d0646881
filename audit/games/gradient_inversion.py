"""The game of gradient inversion: whoever receives one step's update attacks it.

A defense is trained on the fixed records, `runs` times; that model's accuracy is the
card's utility. At its parameters, or at the start's, each target then takes one step
alone, and the attacker sees parameters and noised update (Geiping et al. 2020: the
honest but curious server, batch of one). Bounds are on that one update.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.accounting import bounds
from audit.data.pool import originals
from audit.engine import shadow
from audit.engine.precision import double
from audit.games import base, controls, guarantees, leave_one_out, scoring
from audit.games.base import Game, Runs, Table
from audit.games.guarantees import Guarantees
from audit.rng import stream
from audit.statistics import metrics
from audit.types import Attack, Examples, Exposed, Observation, Release, Task

TOGETHER = 32  # targets whose updates are alive, and attacked, at a time


def release(key: jax.Array, of: shadow.Learner, table: Table) -> Runs:
    """Train on the fixed records; remember by which key their updates are drawn."""
    made = leave_one_out.release(key, of, table)
    return made._replace(looked=stream(key, "exposed"))


def account(
    key: jax.Array, of: shadow.Learner, table: Table, runs: int, delta: float
) -> Guarantees:
    """Account for one update of each target, at every run's parameters.

    `rdp2` and the bounds are of that update; epsilon is of the training run.
    """
    problem, made = table.problem, table.made
    assert made is not None
    splits, n = problem.splits, len(problem.splits.fixed.y)
    epsilon = guarantees.epsilon(of, n, delta)
    shown = of.defense.exposed
    held = Guarantees(None, None, (), epsilon, nominal=guarantees.nominal(of, n))
    if shown is None:
        return held
    trace = None
    if shown.trace is not None:
        each = np.stack(
            [
                _traces(jax.random.fold_in(key, i), of, table, made.releases, i)
                for i in range(min(runs, _count(made.releases)))
            ],
            1,
        )
        trace = each.mean(1)
        dfil = trace / splits.targets.x[0].size
        held = held._replace(dfil=dfil, bounds=(bounds.cramer_rao(dfil),))
    others = guarantees.of_others(problem, trace, shown.rdp, None)
    curve = shown.rdp and shown.rdp(np.array([2.0]))
    if curve is None or not np.isfinite(curve).all():
        return held._replace(bounds=(*held.bounds, *others))
    order2 = float(curve[0])
    limit = bounds.hammersley_chapman_robbins(order2, problem.task.domain)
    return held._replace(rdp2=order2, bounds=(*held.bounds, limit, *others))


def _count(releases: Release) -> int:
    return len(jax.tree.leaves(releases)[0])


def _params(of: shadow.Learner, table: Table, releases: Release, run: int) -> Any:
    """Return where the step is taken: at a run's end, or where all runs start."""
    if table.problem.exposed == "start":
        return of.side.params
    return jax.tree.map(lambda a: a[run], releases.params)


def _traces(
    key: jax.Array, of: shadow.Learner, table: Table, releases: Release, run: int
) -> np.ndarray:
    """Return the Fisher information of one update about every target, in float64."""
    with jax.enable_x64(True):
        read = _programs(of.factory, of.task, of.static).trace
        side, params, z = double(
            (of.side, _params(of, table, releases, run), table.problem.splits.targets)
        )
        found = []
        for start in range(0, len(z.y), TOGETHER):
            part = jax.tree.map(lambda a, s=start: a[s : s + TOGETHER], z)
            found.append(np.asarray(read(of.floats, key, side, params, part)))
        return np.concatenate(found)


class _Programs(NamedTuple):
    """A defense's exposed step; floats are traced, so that a sweep compiles once."""

    update: Any  # (floats, side, params, records [m], keys [m]) -> updates [m]
    trace: Any  # (floats, key, side, params, records [m]) -> [m]
    log_density: Any  # (floats, side, params, record, update) -> []


@functools.cache
def _programs(factory: Any, task: Task, static: tuple) -> _Programs:
    def shown(floats: dict) -> Exposed:
        return factory(task, **dict(static), **floats).exposed

    def update(floats: dict, side: Any, params: Any, z: Examples, keys: Any) -> Any:
        def alone(z: Examples, key: Any) -> Any:
            one = jax.tree.map(lambda a: a[None], z)
            return shown(floats).update(key, side, params, one)

        return jax.vmap(alone)(z, keys)

    def trace(floats: dict, *at: Any) -> Any:
        read = shown(floats).trace
        assert read is not None
        return read(*at)

    def log_density(floats: dict, *at: Any) -> Any:
        weigh = shown(floats).log_density
        assert weigh is not None
        return weigh(*at)

    return _Programs(jax.jit(update), jax.jit(trace), log_density)


def play(
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let one attack rebuild every target from its update; return its scores."""
    problem = table.problem
    splits, targets = problem.splits, problem.splits.targets
    granted = base.grant(attack.threat_model, of, splits, table.engine)
    if "mechanism" in attack.threat_model.knows:
        law = _programs(of.factory, of.task, of.static).log_density
        known = jax.tree_util.Partial(law, of.floats, of.side)
        granted = granted._replace(likelihood=known)
    state, info = attack.fit(stream(key, "fit"), granted)
    drawn = table.made.looked if table.made is not None else key
    guesses = [
        _guess_all(key, attack, state, of, releases, table, run, drawn)
        for run in range(
            _count(releases) if "update" in attack.threat_model.sees else 1
        )
    ]
    each = np.stack(guesses, 1)  # [targets, runs, *features]
    summary, arrays = scoring.errors(each, targets.x)
    se = scoring.run_errors(each, targets.x)
    against = {b.name: scoring.against(b, arrays["mse"], se) for b in held.bounds}
    pictures = scoring.images(each[:, 0], targets.x, table.lpips)
    own = normalised(each, targets.x, originals(splits).x)
    told: dict[str, Any] = {
        "mse_normalised": float(own.mean()),
        "mse_normalised_median": float(np.median(own)),
        "matching": metrics.matching(each[:, 0], targets.x),
    }
    null, more = controls.of_guesses(each, targets, splits.pool)
    told |= {"against": against, "fit": info, "controls": null}
    return {**summary, **pictures, **told}, {**arrays, **more}


def normalised(guesses: np.ndarray, targets: np.ndarray, pool: Any) -> np.ndarray:
    """Return each target's error in standard deviations of its channel, squared.

    The mean image's is about 1 less what images have in common; 2 is noise of the
    right contrast (the units of Faustini et al. 2023, Table 4).

    Args:
      guesses: [targets, runs, *features].
      targets: [targets, *features].
      pool: [m, *features] whose channels have the deviations.

    Returns:
      [targets] means over runs.
    """
    pool = np.asarray(pool, float)
    sd = pool.std(tuple(range(pool.ndim - 1)))
    gap = (np.asarray(guesses, float) - np.asarray(targets, float)[:, None]) / sd
    return (gap**2).mean(tuple(range(1, gap.ndim)))


def _guess_all(
    key: jax.Array,
    attack: Attack,
    state: Any,
    of: shadow.Learner,
    releases: Release,
    table: Table,
    run: int,
    drawn: jax.Array,
) -> np.ndarray:
    """Guess every target at one run, TOGETHER at a time; the last lot is padded."""
    z, params = table.problem.splits.targets, None
    looks = "update" in attack.threat_model.sees
    if looks:
        params = _params(of, table, releases, run)
    guess, shown = _guesser(attack), _programs(of.factory, of.task, of.static)
    n, found = len(z.y), []
    size = min(TOGETHER, n)
    table.engine.report(f"{of.label}: guesses", 0, n)
    for start in range(0, n, size):
        rows = np.minimum(np.arange(start, start + size), n - 1)  # the last is padded
        part = jax.tree.map(lambda a, r=rows: np.asarray(a)[r], z)
        own, of_noise = (_keys(k, run, rows) for k in (stream(key, "guess"), drawn))
        seen = None
        if looks:
            seen = shown.update(of.floats, of.side, params, part, of_noise)
        found.append(np.asarray(guess(state, params, part, seen, own)))
        table.engine.report(f"{of.label}: guesses", min(start + size, n), n)
    return np.concatenate(found)[:n]


def _keys(key: jax.Array, run: int, rows: np.ndarray) -> jax.Array:
    """Return a key for each target of one run."""
    root = jax.random.fold_in(key, run)
    return jax.vmap(lambda i: jax.random.fold_in(root, i))(rows)


@functools.lru_cache(maxsize=16)
def _guesser(attack: Attack) -> Any:
    """Return (state, params, records, updates, keys) -> guesses; all defenses share it.

    Second derivatives take long to compile.
    """
    model = attack.threat_model

    def one(state: Any, params: Any, z: Examples, update: Any, key: Any) -> jax.Array:
        seen = Observation(
            params=params if "params" in model.sees else None,
            update=update,
            label=z.y if "label" in model.knows else None,
            target=z.x if "target" in model.sees else None,
        )
        return attack.guess(state, key, seen)

    return jax.jit(jax.vmap(one, (None, None, 0, 0, 0)))


GAME = Game(
    goal="inversion",
    grants=frozenset({"label", "init", "public", "mechanism", "update"}),
    release=release,
    account=account,
    play=play,
    floor="class_mean",
    prior_only=True,
)
