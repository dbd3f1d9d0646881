"""Two unknown records instead of one: a game as one file, in no room of the suite."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from audit.engine.shadow import Learner
from audit.games import base
from audit.games.base import Game, Result, Runs, Table
from audit.games.guarantees import Guarantees, epsilon
from audit.rng import stream
from audit.scorecard.view import STRONGEST, Column, View, headline_verdict, of_best
from audit.statistics import metrics
from audit.types import Attack, TrainingSet


def pair(*, overlap: bool = False) -> Game:
    """Rebuild both of two unknown records that joined the training set together.

    Args:
      overlap: whether neighbouring pairs share a record; else each is in one pair.
    """

    def pairs(table: Table) -> np.ndarray:
        """Return which targets are together [pairs, 2]."""
        n = len(table.problem.splits.targets.y)
        first = np.arange(n - 1) if overlap else np.arange(0, n - 1, 2)
        return np.stack([first, first + 1], 1)

    def release(key: jax.Array, learner: Learner, table: Table) -> Runs[None]:
        """Train on fixed + both records, once per pair."""
        fixed, targets = table.problem.splits.fixed, table.problem.splits.targets
        everyone = jax.tree.map(lambda a, b: np.concatenate([a, b]), fixed, targets)
        n, together = len(fixed.y), pairs(table)
        known = np.broadcast_to(np.arange(n), (len(together), n))
        rows = np.concatenate([known, n + together], 1).astype(np.int32)
        records = TrainingSet(everyone, None, rows)
        releases = base.train("pairs", key, learner, records, engine=table.engine)
        return Runs(learner, releases, None)

    def account(key: Any, runs: Runs[None], table: Table) -> Guarantees:
        """Account for epsilon of one record; no bound is known for two."""
        n = len(table.problem.splits.fixed.y) + 2
        return Guarantees(epsilon=epsilon(runs.learner.defense, n, table.delta))

    def play(
        key: jax.Array,
        attack: Attack,
        runs: Runs[None],
        guarantees: Guarantees,
        table: Table,
    ) -> Result:
        """Score a guess of two records by the better of both orders."""
        model, together = attack.threat_model, pairs(table)
        x, y = (np.asarray(a)[together] for a in table.problem.splits.targets)
        knowledge = base.grant(model, runs.learner, table)
        state, diagnostics = attack.fit(stream(key, "fit"), knowledge)
        shown = base.observe(model, params=runs.releases.params, label=y, target=x)
        keys = jax.random.split(stream(key, "guess"), len(x))
        guess = np.asarray(jax.vmap(attack.guess, (None, 0, 0))(state, keys, shown))
        gaps = (((guess - other) ** 2).mean((1, 2, 3, 4)) for other in (x, x[:, ::-1]))
        error = np.minimum(*gaps)
        se = metrics.standard_error(error)
        floor = None if table.floor is None else float(table.floor.mean())
        mse = float(error.mean())
        return Result(
            base.headline("mse_of_both", mse, se, better="lower", floor=floor),
            {"runs": 1, "targets": len(x), "fit": diagnostics, "mse_of_both": mse},
            {"both": error},
            error=error,
        )

    return Game(
        goal="pair",
        grants=base.granting("label", "fixed", "public", "init"),
        release=release,
        account=account,
        play=play,
        view=View(
            units="both: MSE per pixel of both records, matched the better way",
            attack=(STRONGEST, Column("both", of_best(_both))),
            trial={"both": _both},
            verdict=headline_verdict,
            bound_table=False,
        ),
        floor="pair_mean",
        targets=True,
    )


def _both(result: Any) -> str:
    return f"{float(result['mse_of_both']):.4f}"
