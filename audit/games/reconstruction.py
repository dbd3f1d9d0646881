"""The game of Balle et al. (2022): one unknown record joins the fixed ones, per run."""

from __future__ import annotations

from typing import Any

import jax

from audit.engine import shadow
from audit.games import base, controls, guarantees, scoring
from audit.games.base import Game, Runs, Table
from audit.games.guarantees import Guarantees
from audit.types import Attack, Release


def release(key: jax.Array, of: shadow.Learner, table: Table) -> Runs:
    """Train on fixed + {target}, so often for every target."""
    splits = table.problem.splits
    return Runs(base.play_targets(key, of, splits, table.runs, table.engine))


def account(
    key: jax.Array, of: shadow.Learner, table: Table, runs: int, delta: float
) -> Guarantees:
    """Account for the very runs that are attacked, target by target."""
    return guarantees.joined(key, of, table.problem, runs, delta, table.engine)


def play(
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let one attack guess every run; return its scores and per-target arrays."""
    splits = table.problem.splits
    played = base.reconstruction_game(
        key, attack, of, releases, splits, table.runs, table.engine
    )
    summary, arrays = scoring.errors(played.guesses, splits.targets.x)
    se = scoring.run_errors(played.guesses, splits.targets.x)
    against = {b.name: scoring.against(b, arrays["mse"], se) for b in held.bounds}
    pictures = scoring.images(played.guesses[:, 0], splits.targets.x, table.lpips)
    null, more = controls.of_guesses(played.guesses, splits.targets, splits.pool)
    held_to = {"controls": {**null, "same_noise": played.same_noise}}
    told = {**summary, **pictures, "against": against, "fit": played.info}
    return {**told, **held_to}, {**arrays, **more}


GAME = Game(
    goal="reconstruction",
    grants=frozenset({"fixed", "label", "init", "train", "public", "objective"}),
    release=release,
    account=account,
    play=play,
    floor="class_mean",
)
