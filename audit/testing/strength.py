"""How strong an attack is, held in golden bands: weaker fails, stronger is asked about.

A *cell* is one number of a scorecard: attack, defense, metric. Its golden value is the
mean over the seeds `GOLDEN`. A check plays some of them and asks whether their mean
lies within three standard errors of the golden one,

    3 sd sqrt(1 / seeds played + 1 / golden seeds),

sd between seeds. That is the spread of what the check computes under *fresh* random
bits: a change of code may shift every draw and must not be called weaker for it. On one
machine, with nothing changed, the check plays the very bits of the golden file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from audit.errors import UserError, did_you_mean
from audit.scorecard.flags import is_void, refuting
from audit.scorecard.path import read, trial

if TYPE_CHECKING:
    from audit.scorecard.card import Scorecard

GOLDEN = tuple(range(10))  # seeds of a golden value
PLAYED = 5  # of them a check plays, the first ones
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
    "gini": True,  # 2 AUC - 1: 0 at chance, so that a share of it means something
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
    """Return a number of a scorecard; UserError says what there is instead."""
    if cell.metric not in STRONGER:
        hint = did_you_mean(cell.metric, STRONGER)
        raise UserError(f"unknown metric {cell.metric!r}{hint}")
    name = {"auc": "auc.value", "gini": "auc.value"}.get(cell.metric, cell.metric)
    pairs = ", ".join(f"{t.attack} on {t.defense}" for t in card.trials)
    instead = f"; there is {pairs or 'no trial'}"
    try:
        row = trial(card, cell.defense, cell.attack)
        instead = f" (the trial was {row.status}: {row.reason})" if row.reason else ""
        number = read(row.result, name)
    except LookupError as error:
        raise UserError(f"{cell.name}: {error}{instead}") from None
    return 2 * number - 1 if cell.metric == "gini" else number


def band(golden: Iterable[float], seeds: int = PLAYED) -> Band:
    """Return the band in which the mean over the seeds that a check plays must lie."""
    each = np.array(list(golden), float)
    se = each.std(ddof=1) * np.sqrt(1 / seeds + 1 / len(each))
    mean = float(each.mean())
    return Band(mean, float(max(STANDARD_ERRORS * se, LEAST * abs(mean))))


def judge(cell: Cell, allowed: Band, mean: float) -> Word:
    """Return what a check says of a mean over its seeds; nan is weaker."""
    gain = mean - allowed.value
    if abs(gain) <= allowed.width:
        return "holds"
    better = gain > 0 if STRONGER[cell.metric] else gain < 0
    return "stronger" if better else "weaker"


def play(
    words: Iterable[str], seeds: Iterable[int] = (0,), store: Path | None = None
) -> list[Scorecard]:
    """Run one scenario under several seeds, in memory; data and split are the same.

    `words` are as after `python -m audit run`, `--plugins DIR` among them, without
    `seed=`; UserError names one that is wrong. `store` is where releases are kept, so
    that the next line-up need not train again; None = nowhere.
    """
    from audit.config import plugins
    from audit.config.hydra_app import composed

    typed, folders = plugins.words(list(words))
    with plugins.using([plugins.existing(folder) for folder in folders]):
        scenario, _ = composed(typed)
        from audit import pipeline
        from audit.engine import shadow
        from audit.engine import store as stores

        releases = None if store is None else stores.open_store(store)
        engine = shadow.Engine(scenario.lanes, releases)
        specs = [scenario.spec.model_copy(update={"seed": seed}) for seed in seeds]
        return [pipeline.audit(scenario._replace(spec=spec), engine) for spec in specs]


# Whether a theorem holds --------------------------------------------------------------


def broken(card: Scorecard, defense: str) -> list[str]:
    """Return why the theorems about one defense do not hold, as the card's flags say.

    An attack gets more than they allow, or the runs are of another mechanism than the
    one that they are about.

    Raises UserError: no such defense, no theorem about it, or no valid attack that saw
    its release.
    """
    if defense not in card.defenses:
        hint = did_you_mean(defense, card.defenses)
        raise UserError(f"unknown defense {defense!r}{hint}")
    guarantees = card.defenses[defense]
    ranked = any(b["ranked"] for b in guarantees["bounds"])
    if not guarantees["epsilon"] and not ranked:
        raise UserError(f"{defense}: no theorem bounds it, so that none can hold")
    played = [t for t in card.trials if t.defense == defense and t.status == "ok"]
    sound = [t for t in played if not is_void(t.flags)]
    valid = [t for t in sound if t.result and not t.result.get("oracle")]
    if all(t.blind for t in valid):  # one that saw nothing has tried no release
        raise UserError(
            f"{defense}: no valid attack saw its release, so that no bound was tested"
        )
    of_runs = {flag.text: defense for flag in refuting(guarantees["flags"])}
    of_attacks = {
        flag.text: f"{t.attack} on {defense}"
        for t in valid
        for flag in refuting(t.flags)
        if flag.text not in of_runs
    }
    return [f"{who}: {text}" for text, who in {**of_runs, **of_attacks}.items()]


# The golden file ----------------------------------------------------------------------


class Golden(NamedTuple):
    """What one scenario's file holds."""

    words: list[str]  # what was run
    seeds: list[int]
    cells: dict[str, list[float]]  # by name, one value per seed
    reasons: list[str]  # of every update, oldest first


def load(path: Path) -> Golden | None:
    """Read a golden file; None if there is none."""
    return Golden(**json.loads(path.read_text())) if path.exists() else None


def save(path: Path, golden: Golden) -> None:
    """Write a golden file, values to six digits, one line per cell."""
    rounded = {k: [float(f"{v:.6g}") for v in vs] for k, vs in golden.cells.items()}
    cells = ",\n".join(f"    {json.dumps(k)}: {vs}" for k, vs in rounded.items())
    rest = {k: v for k, v in golden._asdict().items() if k != "cells"}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rest.items()]
    lines.append(f'  "cells": {{\n{cells}\n  }}')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
