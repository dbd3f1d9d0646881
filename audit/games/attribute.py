"""The game of Hannun et al. (2021, supplement): everything is known but one attribute.

One set is trained on; for every record of it in turn, the attacker holds the label and
all other columns and tells which of the attribute's values is the record's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit.config.schema import Features
from audit.data import DataError, Dataset
from audit.data.pool import which_values
from audit.engine import shadow
from audit.engine.precision import double
from audit.errors import did_you_mean
from audit.games import base, controls, leave_one_out
from audit.games.base import Game, Table
from audit.games.guarantees import Guarantees
from audit.rng import stream
from audit.statistics import metrics
from audit.types import Attack, Attribute, Examples, Observation, Release, Splits

MOST_VALUES = 50  # of one attribute
REFITS = 128  # records whose candidates are fitted together


def find(dataset: Dataset, splits: Splits, name: str, features: Features) -> Attribute:
    """Return the columns called `name` or `name=...`, and the values they take.

    Raises:
      DataError: no such column, columns a projection has mixed, or only one value.
    """
    columns = [
        i
        for i, column in enumerate(dataset.columns)
        if column == name or column.startswith(f"{name}=")
    ]
    if not columns:
        known = {column.split("=")[0] for column in dataset.columns}
        raise DataError(f"unknown attribute {name!r}{did_you_mean(name, known)}")
    if features.pca:
        raise DataError("features.pca mixes the columns an attribute game is about")
    values = np.unique(np.asarray(splits.fixed.x)[:, columns], axis=0)
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
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let one attack tell every record's value at every release; return its scores."""
    splits, model = table.problem.splits, attack.threat_model
    asked = table.problem.attribute
    assert asked is not None
    if "fixed" in model.knows and not base.is_oracle(model):
        raise ValueError("the records hold the answers: only an oracle may know them")
    granted = base.grant(model, of, splits, table.engine)
    state, info = attack.fit(stream(key, "fit"), granted._replace(attribute=asked))
    with jax.enable_x64("exact" in of.defense.traits):
        fixed = double(splits.fixed)
        refits = _refits(of, fixed, asked) if "refits" in model.knows else None
        guessed = _guess_all(
            stream(key, "guess"), attack, state, fixed, releases, asked, refits
        )
    truth = which_values(asked, splits.fixed.x).argmax(1)
    each = (guessed == truth).mean(0)  # of [runs, n]
    # what is told of one record, taken for another's: it must not beat the floor
    null = (guessed[:, controls.partner(np.zeros(len(truth), int))] != truth).mean(0)
    result = {
        "success": float(each.mean()),
        "success_se": float(metrics.standard_error(each)),
        "targets": len(each),
        "runs": len(guessed),
        "fit": info,
        **_by_loss(each, held.eta),
        "controls": {
            "null": {
                "error": float(null.mean()),
                "error_se": metrics.standard_error(null),
            }
        },
    }
    return result, {"wrong": 1 - each, "null": null}


def _refits(of: shadow.Learner, fixed: Examples, asked: Attribute) -> np.ndarray:
    """Return the noiseless release with every candidate in place [n, v, D]."""
    objective, n = of.defense.objective, len(fixed.y)
    assert objective is not None
    known = jax.jit(objective.known)(of.side, fixed)

    @jax.jit
    def some(rows: Any, z: Examples) -> jax.Array:
        def one(row: Any, z: Examples) -> jax.Array:
            placed = lambda x: objective.refit(known, row, Examples(x, z.y))  # noqa: E731
            return jax.vmap(placed)(candidates(asked, z.x))

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
    asked: Attribute,
    refits: Any,
) -> np.ndarray:
    """Return which value is told of every record at every release [runs, n]."""
    model = attack.threat_model

    def one(k: Any, i: Any, w: Any, z: Examples, refits: Any) -> jax.Array:
        seen = Observation(
            params=w if "params" in model.sees else None,
            label=z.y if "label" in model.knows else None,
            target=z.x if "target" in model.sees else None,
            candidates=candidates(asked, z.x) if "record" in model.knows else None,
            refits=refits,
        )
        own = jax.random.fold_in(jax.random.fold_in(key, k), i)
        return attack.guess(state, own, seen).argmax()

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


GAME = Game(
    goal="attribute",
    grants=frozenset({"label", "objective", "record", "refits", "fixed"}),
    release=leave_one_out.release,
    account=leave_one_out.account,
    play=play,
    floor="prior_mode",
)
