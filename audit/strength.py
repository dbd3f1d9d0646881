"""How strong an attack is, held in golden bands: weaker fails, stronger is asked about.

A *cell* is one number of a scorecard: (attack, defense, scenario). Its golden value is
the mean over `GOLDEN` seeds. A check plays a few of them and asks whether the mean of
these lies within three standard errors of the golden one,

    3 sd sqrt(1 / seeds played + 1 / golden seeds),

sd between seeds. That is the spread of what the check computes under *fresh* random
bits: a change of code may shift every draw and must not be called weaker for it. On one
machine, with nothing changed, both means are of the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from audit.places import read
from audit.registry import did_you_mean
from audit.types import UserError

if TYPE_CHECKING:
    from audit.scorecard import Scorecard

GOLDEN = tuple(range(20))  # seeds of a golden value
PLAYED = GOLDEN[:5]  # those a check plays
STANDARD_ERRORS = 3.0
MOST = 0.05  # of the value: a wider band would let a weakened attack through
LEAST = 1e-3  # of the value: what another machine's rounding may do

# A number of a trial -> whether more of it is a stronger attack
STRONGER = {
    "mse": False,  # mean over targets and runs
    "mse_median": False,
    "mse_typical": False,  # median over targets of the median over runs
    "mse_normalised": False,
    "mse_normalised_median": False,
    "lpips": False,
    "psnr_median": True,
    "ssim": True,
    "matching": True,
    "auc": True,
    "success": True,
    "advantage": True,
    "epsilon_lower": True,
}
Word = Literal["holds", "weaker", "stronger"]


class Cell(NamedTuple):
    """One number of one scorecard."""

    attack: str  # labels of the line-up
    defense: str
    metric: str  # of `STRONGER`

    @property
    def name(self) -> str:
        """Return how tests and the golden file call it."""
        return f"{self.attack} on {self.defense}: {self.metric}"


class Band(NamedTuple):
    """What a check of one cell allows."""

    value: float  # mean over the golden seeds
    width: float  # on either side

    @property
    def share(self) -> float:
        """Return the width as a share of the value."""
        return self.width / abs(self.value) if self.value else float("inf")


def value(card: Scorecard, cell: Cell) -> float:
    """Return one number of a scorecard.

    Raises:
      UserError: no such metric, or no finite number there; the text says what there is.
    """
    if cell.metric not in STRONGER:
        hint = did_you_mean(cell.metric, STRONGER)
        raise UserError(f"unknown metric {cell.metric!r}{hint}")
    where = f"trials[defense={cell.defense},attack={cell.attack}].result"
    last = ".value" if cell.metric == "auc" else ""
    try:
        return read(card._asdict(), f"{where}.{cell.metric}{last}")
    except LookupError as error:
        raise UserError(f"{cell.name}: {error}{_instead(card, cell)}") from None


def _instead(card: Scorecard, cell: Cell) -> str:
    """Return why a trial has no numbers, or which trials there are."""
    for t in card.trials:
        if (t["defense"], t["attack"]) == (cell.defense, cell.attack):
            return f" (the trial was {t['status']}: {t['reason']})" * bool(t["reason"])
    pairs = ", ".join(f"{t['attack']} on {t['defense']}" for t in card.trials)
    return f"; there is {pairs or 'no trial'}"


def band(golden: Iterable[float], seeds: int = len(PLAYED)) -> Band:
    """Return the band a mean over `seeds` seeds must lie in.

    Args:
      golden: values of the golden seeds.
      seeds: how many of them a check plays.
    """
    each = np.array(list(golden), float)
    se = each.std(ddof=1) * np.sqrt(1 / seeds + 1 / len(each))
    mean = float(each.mean())
    return Band(mean, float(max(STANDARD_ERRORS * se, LEAST * abs(mean))))


def judge(cell: Cell, allowed: Band, found: float) -> Word:
    """Return what a check says of a mean over its seeds."""
    gain = found - allowed.value
    if abs(gain) <= allowed.width:  # nan is not
        return "holds"
    return "stronger" if (gain > 0) == STRONGER[cell.metric] else "weaker"


def play(words: Iterable[str], seeds: Iterable[int]) -> list[Scorecard]:
    """Run one scenario under several seeds, in memory; nothing is stored.

    Args:
      words: as after `python -m audit run`, without `seed=`.
      seeds: of the runs; the data and their split are the same for all.

    Raises:
      UserError, launch.Refused: naming the word that is wrong.
    """
    from audit.launch import launch

    found: list[Any] = []
    launch(list(words), lambda scenario, _: found.append(scenario))
    if len(found) != 1:
        raise UserError(f"{len(found)} scenarios, not one: a sweep is not for here")
    from audit.run import audit
    from audit.shadow import Engine

    def one(seed: int) -> Scorecard:
        spec = found[0].spec.model_copy(update={"seed": seed})
        return audit(found[0]._replace(spec=spec), Engine(found[0].lanes))

    return [one(seed) for seed in seeds]


# The golden file -----------------------------------------------------------------------


class Golden(NamedTuple):
    """What one scenario's file holds."""

    words: list[str]  # what was run
    seeds: list[int]
    cells: dict[str, list[float]]  # by name, a value a seed
    reasons: list[str]  # of every update, oldest first


def load(path: Path) -> Golden | None:
    """Read a golden file; None if there is none."""
    return Golden(**json.loads(path.read_text())) if path.exists() else None


def save(path: Path, golden: Golden) -> None:
    """Write a golden file, values to six digits, a cell a line."""
    short = {k: [float(f"{v:.6g}") for v in each] for k, each in golden.cells.items()}
    cells = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in short.items())
    rest = {k: v for k, v in golden._asdict().items() if k != "cells"}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rest.items()]
    lines.append(f'  "cells": {{\n{cells}\n  }}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
