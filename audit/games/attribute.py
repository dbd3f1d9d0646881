"""The game of Hannun et al. (2021, supplement): everything is known but one attribute.

One set is trained on; for every record of it in turn, the attacker holds the label and
all other columns and tells which of the attribute's values is the record's.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit.data import DataError
from audit.data.pool import which_values
from audit.engine import shadow
from audit.engine.precision import double
from audit.errors import did_you_mean
from audit.games import base, controls, guarantees, leave_one_out
from audit.games.base import Game, Problem, Result, Runs, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms.output_perturbation import objective_of
from audit.rng import stream
from audit.scorecard.schema import Scorecard
from audit.scorecard.view import (
    NOT_TOLD_APART,
    STANDARD_ERRORS,
    STRONGEST,
    Column,
    Line,
    View,
    number,
    of_best,
    with_error,
)
from audit.statistics import metrics
from audit.types import Attack, Attribute, Examples, Release

MOST_VALUES = 50  # of one attribute
REFITS = 128  # records whose candidates are fitted together


CLOSE = 0.25  # of the floor's share of wrong guesses: attributes are told


def attribute(*, attribute: str) -> Game:
    """Tell one attribute of every record, all else about it known.

    Args:
      attribute: the column, or the prefix of the columns `NAME=...` of one category.
    """

    def account(
        key: jax.Array,
        learner: shadow.Learner,
        table: Table,
        runs: Runs[None],
        trajectories: int,
        delta: float,
    ) -> Guarantees:
        """Account for every record; eta is about the attribute's columns alone."""
        del runs  # drawn anew, from the same law
        problem = table.problem
        columns = find(problem, attribute).columns
        return guarantees.in_turn(
            key, learner, problem, trajectories, delta, table.engine, columns
        )

    return Game(
        goal="attribute",
        grants=base.granting(
            "label",
            "objective",
            "fixed",
            record="all of the target but one attribute",
            refits="how to fit with any value in its place",
        ),
        release=leave_one_out.release,
        account=account,
        play=partial(play, attribute),
        view=VIEW,
        floor="prior_mode",
        fits=lambda learner, table: find(table.problem, attribute) and None,
        sizes=base.in_turn,
    )


def find(problem: Problem, name: str) -> Attribute:
    """Return the columns called `name` or `name=...`, and the values they take.

    Raises:
      DataError: no such column, columns a projection has mixed, or only one value.
    """
    names = problem.dataset.columns
    columns = [
        i
        for i, column in enumerate(names)
        if column == name or column.startswith(f"{name}=")
    ]
    if not columns:
        attributes = {column.split("=")[0] for column in names}
        raise DataError(f"unknown attribute {name!r}{did_you_mean(name, attributes)}")
    if problem.features.pca:
        raise DataError("features.pca mixes the columns an attribute game is about")
    values = np.unique(np.asarray(problem.splits.fixed.x)[:, columns], axis=0)
    if len(values) < 2 or len(values) > MOST_VALUES:
        raise DataError(
            f"attribute {name!r} takes {len(values)} values here; a game needs 2 to "
            f"{MOST_VALUES}"
        )
    return Attribute(np.array(columns), values)


def candidates(asked: Attribute, x: Any) -> Any:
    """Return a record with every value in place of its own [v, d]."""
    many = jnp.broadcast_to(x, (len(asked.values), *x.shape))
    return many.at[:, asked.columns].set(asked.values.astype(x.dtype))


def play(
    name: str,
    key: jax.Array,
    attack: Attack,
    learner: shadow.Learner,
    runs: Runs[None],
    limits: Guarantees,
    table: Table,
) -> Result:
    """Let one attack tell every record's value at every release; return its scores."""
    splits, model = table.problem.splits, attack.threat_model
    column = find(table.problem, name)
    if base.shown(model, "fixed") and not base.is_oracle(model):
        raise ValueError("the records hold the answers: only an oracle may know them")
    knowledge = base.grant(model, learner, table)._replace(attribute=column)
    state, diagnostics = base.fitted(key, attack, knowledge)
    with jax.enable_x64("exact" in learner.defense.traits):
        fixed = double(splits.fixed)
        refits = None
        if base.shown(model, "refits"):
            refits = _refits(learner, fixed, column)
        guessed = _guess_all(
            stream(key, "guess"), attack, state, fixed, runs.releases, column, refits
        )
    truth = which_values(column, splits.fixed.x).argmax(1)
    right = (guessed == truth).mean(0)  # of [runs, n]
    # what is told of one record, taken for another's: it must not beat the floor
    null = (guessed[:, controls.partner(np.zeros(len(truth), int))] != truth).mean(0)
    success, se = float(right.mean()), metrics.standard_error(right)
    floor = None if table.floor is None else 1 - float(table.floor.mean())
    numbers = {
        "success": success,
        "success_se": se,
        "targets": len(right),
        "runs": len(guessed),
        "fit": diagnostics,
        **_by_loss(right, limits.eta),
        "controls": {
            "null": {
                "error": float(null.mean()),
                "error_se": metrics.standard_error(null),
            }
        },
    }
    return Result(
        base.headline("success", success, se, better="higher", floor=floor),
        numbers,
        {"wrong": 1 - right, "null": null},
        error=1 - right,
    )


def _refits(learner: shadow.Learner, fixed: Examples, column: Attribute) -> np.ndarray:
    """Return the noiseless release with every candidate in place [n, v, D]."""
    objective, n = objective_of(learner.defense), len(fixed.y)
    assert objective is not None
    shared = jax.jit(objective.known)(learner.side, fixed)

    @jax.jit
    def some(rows: Any, z: Examples) -> jax.Array:
        def one(row: Any, z: Examples) -> jax.Array:
            placed = lambda x: objective.refit(shared, row, Examples(x, z.y))  # noqa: E731
            return jax.vmap(placed)(candidates(column, z.x))

        return jax.vmap(one)(rows, z)

    parts = []
    for start in range(0, n, REFITS):
        rows = np.minimum(np.arange(start, start + REFITS), n - 1)
        z = jax.tree.map(lambda a, rows=rows: a[rows], fixed)
        parts.append(np.asarray(some(rows, z)))
    return np.concatenate(parts)[:n]


def _guess_all(
    key: jax.Array,
    attack: Attack,
    state: Any,
    fixed: Examples,
    releases: Release,
    column: Attribute,
    refits: Any,
) -> np.ndarray:
    """Return which value is told of every record at every release [runs, n]."""
    model = attack.threat_model

    def one(k: Any, i: Any, w: Any, z: Examples, refits: Any) -> jax.Array:
        observation = base.observe(
            model,
            params=w,
            label=z.y,
            target=z.x,
            candidates=candidates(column, z.x),
            refits=refits,
        )
        guess_key = jax.random.fold_in(jax.random.fold_in(key, k), i)
        return attack.guess(state, guess_key, observation).argmax()

    rows = np.arange(len(fixed.y))

    def run(part: tuple) -> jax.Array:
        k, w = part
        return jax.vmap(one, (None, 0, None, 0, 0))(k, rows, w, fixed, refits)

    runs = np.arange(len(releases.params))
    return np.asarray(jax.jit(lambda p: jax.lax.map(run, p))((runs, releases.params)))


def _by_loss(success: np.ndarray, eta: np.ndarray | None) -> dict[str, Any]:
    """Return the success on the tenths of records with largest and smallest loss."""
    if eta is None:
        return {"success_high_eta": None, "success_low_eta": None}
    order, tenth = np.argsort(eta, kind="stable"), max(1, len(eta) // 10)
    return {
        "success_high_eta": float(success[order[-tenth:]].mean()),
        "success_low_eta": float(success[order[:tenth]].mean()),
    }


def _verdict(line: Line) -> tuple[str, str]:
    """Return how often the attribute is named rightly: a few words, and sentences."""
    result, card = line.result, line.card
    if result is None:
        return "not attacked", "Nothing was measured."
    share, se = float(result.success or 0), float(result.success_se or 0)
    text = f"It names the attribute rightly for {share:.1%} of the records (± {se:.1%})"
    if card.floor.mse is None:
        return f"right for {share:.0%}", text + "."
    ground, spread = 1 - float(card.floor.mse), float(card.floor.mse_se or 0)
    text += f"; always naming the commonest value is right for {ground:.1%}."
    if share - ground <= STANDARD_ERRORS * math.hypot(se, spread):
        return NOT_TOLD_APART, text
    closely = 1 - share <= CLOSE * (1 - ground)
    return ("attributes are told" if closely else "some attributes are told"), text


def _eta_words(card: Scorecard) -> str:
    return f"about {card.scenario['attribute']} alone"


VIEW = View(
    units="guessed: share of records whose attribute is told, ± one standard error; "
    "floor: the commonest value",
    attack=(
        STRONGEST,
        Column("guessed", of_best(lambda r: with_error(r.success, r.success_se))),
        Column("floor", of_best(lambda r: number(r.headline.floor))),
    ),
    trial={
        "guessed ± s.e.": lambda r: with_error(r.success, r.success_se),
        "tenth with largest η": lambda r: number(r["success_high_eta"]),
        "tenth with smallest η": lambda r: number(r["success_low_eta"]),
    },
    verdict=_verdict,
    bound_table=False,
    eta_words=_eta_words,
    spare=True,
)
