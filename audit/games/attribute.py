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
from jax import Array

from audit.data import DataError
from audit.data.pool import which_values
from audit.engine.precision import double
from audit.engine.shadow import Learner
from audit.errors import did_you_mean
from audit.games import base, controls, guarantees, leave_one_out, scoring
from audit.games.base import Game, Problem, Result, Runs, Table, take
from audit.games.guarantees import Guarantees
from audit.mechanisms.output_perturbation import objective_of
from audit.rng import stream
from audit.scorecard import view
from audit.scorecard.view import Column, Line, View, number, of_best, with_error
from audit.statistics import metrics
from audit.types import Attack, Attribute, Examples

MOST_VALUES = 50  # of one attribute
REFITS = 128  # records whose candidates are fitted together
CLOSE = 0.25  # of the floor's share of wrong guesses: attributes are told


def attribute(*, attribute: str) -> Game:
    """Tell one attribute of every record, all else about it known.

    Args:
      attribute: the column, or the prefix of the columns `NAME=...` of one category.
    """

    def account(key: Array, runs: Runs[None], table: Table) -> Guarantees:
        """Account for every record; eta is about the attribute's columns alone."""
        columns = find(table.problem, attribute).columns
        return guarantees.in_turn(key, runs.learner, table, columns)

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
        trainings=leave_one_out.trainings,
    )


def find(problem: Problem, name: str) -> Attribute:
    """Return the columns called `name` or `name=...`, and the values they take.

    Raises:
      DataError: no such column, columns a projection has mixed, or only one value.
    """
    names = problem.dataset.columns
    columns = [i for i, c in enumerate(names) if f"{c}=".startswith(f"{name}=")]
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


def candidates(attribute: Attribute, x: Any) -> Any:
    """Return a record with every value in place of its own [v, d]."""
    many = jnp.broadcast_to(x, (len(attribute.values), *x.shape))
    return many.at[:, attribute.columns].set(attribute.values.astype(x.dtype))


def play(
    name: str, key: Array, attack: Attack, runs: Runs, limits: Guarantees, table: Table
) -> Result:
    """Let one attack tell every record's value at every release; return its scores."""
    learner, splits, model = runs.learner, table.problem.splits, attack.threat_model
    column = find(table.problem, name)
    if base.shown(model, "fixed") and not base.is_oracle(model):
        raise ValueError("the records hold the answers: only an oracle may know them")
    knowledge = base.grant(model, learner, table)._replace(attribute=column)
    state, diagnostics = attack.fit(stream(key, "fit"), knowledge)
    with jax.enable_x64("exact" in learner.defense.traits):
        z = double(splits.fixed)
        refits = _refits(learner, z, column) if base.shown(model, "refits") else None
        guess = _guesser(stream(key, "guess"), attack, state, column)
        each = np.arange(len(runs.releases.params)), runs.releases.params
        guessed = np.asarray(guess(each, np.arange(len(z.y)), z, refits))
    truth = which_values(column, splits.fixed.x).argmax(1)
    successes = (guessed == truth).T  # [n, runs]; all records share a release's noise
    right = successes.mean(1)
    # what is told of one record, taken for another's: it must not beat the floor
    partners = controls.partner(np.zeros(len(truth), int))
    null_errors = (guessed[:, partners] != truth).T
    null = null_errors.mean(1)
    success, se = float(right.mean()), metrics.crossed_standard_error(successes)
    floor = None if table.floor is None else 1 - float(table.floor.mean())
    high = low = None  # on the tenths of records with largest and smallest eta
    if limits.eta is not None:
        order, tenth = np.argsort(limits.eta, kind="stable"), max(1, len(right) // 10)
        high, low = (float(right[r].mean()) for r in (order[-tenth:], order[:tenth]))
    control = {
        "error": float(null.mean()),
        "error_se": metrics.crossed_standard_error(null_errors),
    }
    numbers = {
        "success": success,
        "success_se": se,
        "targets": len(right),
        "runs": len(guessed),
        "fit": diagnostics,
        "success_high_eta": high,
        "success_low_eta": low,
        "controls": {"null": control},
    }
    headline = base.headline("success", success, se, better="higher", floor=floor)
    return Result(headline, numbers, {"wrong": 1 - right, "null": null}, 1 - right)


def _refits(learner: Learner, fixed: Examples, column: Attribute) -> np.ndarray:
    """Return the noiseless release with every candidate in place [n, v, D]."""
    objective, n = objective_of(learner.defense), len(fixed.y)
    assert objective is not None
    shared = jax.jit(objective.known)(learner.side, fixed)

    @jax.jit
    def some(rows: Any, z: Examples) -> Array:
        def one(row: Any, z: Examples) -> Array:
            placed = lambda x: objective.refit(shared, row, Examples(x, z.y))
            return jax.vmap(placed)(candidates(column, z.x))

        return jax.vmap(one)(rows, z)

    parts = [np.asarray(some(r, take(fixed, r))) for r in base.blocks(n, REFITS)]
    return np.concatenate(parts)[:n]


def _guesser(key: Array, attack: Attack, state: Any, column: Attribute) -> Any:
    """Return ((numbers, params) of runs, rows, records, refits) -> values [runs, n]."""

    def one(k: Any, i: Any, w: Any, z: Examples, refits: Any) -> Array:
        observation = base.observe(
            attack.threat_model,
            params=w,
            label=z.y,
            target=z.x,
            candidates=candidates(column, z.x),
            refits=refits,
        )
        guess_key = jax.random.fold_in(jax.random.fold_in(key, k), i)
        return attack.guess(state, guess_key, observation).argmax()

    every = jax.vmap(one, (None, 0, None, 0, 0))

    @jax.jit
    def guess(runs: tuple, rows: Any, z: Examples, refits: Any) -> Array:
        return jax.lax.map(lambda run: every(run[0], rows, run[1], z, refits), runs)

    return guess


def _verdict(line: Line) -> tuple[str, str]:
    """Return how often the attribute is named rightly: a few words, and sentences."""
    result, card = line.result, line.card
    assert result is not None
    share, se = float(result.success or 0), float(result.success_se or 0)
    text = f"It names the attribute rightly for {share:.1%} of the records (± {se:.1%})"
    if card.floor.mse is None:
        return f"right for {share:.0%}", text + "."
    ground, spread = 1 - float(card.floor.mse), float(card.floor.mse_se or 0)
    text += f"; always naming the commonest value is right for {ground:.1%}."
    if share - ground <= view.STANDARD_ERRORS * math.hypot(se, spread):
        return view.NOT_TOLD_APART, text
    closely = 1 - share <= CLOSE * (1 - ground)
    return ("attributes are told" if closely else "some attributes are told"), text


VIEW = View(
    units=lambda card: (
        f"guessed: share of records whose attribute is told, ± one standard error over "
        f"{scoring.units_drawn(card)}; floor: the commonest value"
    ),
    attack=(
        view.STRONGEST,
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
    eta_words=lambda card: f"about {card.scenario['attribute']} alone",
    spare=True,
)
