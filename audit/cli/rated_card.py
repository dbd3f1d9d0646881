"""The card of models trained elsewhere: `python -m audit membership PATH out=DIR`.

It has one defense, `models`, of which nothing but its scores is known: no accounting,
no utility, no settings. Its row stands on a leaderboard as any other, in a table of the
file's own.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from audit.cli.rate_scores import RatedAttack, Rating, flags
from audit.config import code
from audit.engine import store
from audit.games.membership_rates import CURVE, plain_summary
from audit.scorecard import card as cards
from audit.scorecard.card import Scorecard
from audit.statistics import intervals

MODELS = "models"  # the label of the one defense
SCENARIO = "elsewhere"


def card(rating: Rating, path: Path, command: str, began: float) -> Scorecard:
    """Return the scorecard of a rating.

    Args:
      rating: what `rate_scores.rate` found.
      path: of the file or folder, for its name.
      command: that made it.
      began: when, on the clock of `time.perf_counter`.
    """
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem)[:60].strip("_") or "scores"
    name = f"{stem}-{rating.digest[:8]}"
    named = {_label(row): row for row in rating.attacks}
    scenario = {
        "scenario": SCENARIO,
        "title": "Membership in models that were trained elsewhere",
        "source": "docs/score_files.md",
        "game": "membership",
        "seed": 0,
        "data": name,
        "defense": {MODELS: {"use": SCENARIO}},
        "attack": {k: {"use": row.plug_in, **row.settings} for k, row in named.items()},
    }
    seconds = time.perf_counter() - began
    version = code.version(code.up_to(code.SCORING))
    digest = store.digest(scenario)
    first = rating.attacks[0].summary
    arrays: dict[str, np.ndarray] = {}
    for label, row in named.items():
        if row.curve is not None:
            at = np.searchsorted(row.curve.fpr, CURVE, side="right") - 1
            arrays[f"{MODELS}/{label}/fpr"] = row.curve.fpr[at]
            arrays[f"{MODELS}/{label}/tpr"] = row.curve.tpr[at]
    return cards.of_parts(
        scenario=scenario,
        provenance=cards.provenance(command, seconds, digest, version),
        data={
            "name": name,
            "origin": f"file {path.name}",
            "note": f"{first.members} scores of members, {first.nonmembers} of others",
            "digest": rating.digest,
            "splits": {"records": rating.records, "models": max(1, rating.models)},
            "duplicates": 0,
        },
        floor={"mse": 0.5, "mse_se": 0.0},
        defenses={
            MODELS: {
                "use": SCENARIO, "passed": {}, "settings": {}, "utility": None,
                "dfil": None, "bounds": [], "rdp2": None, "epsilon": None,
            }
        },
        trials=[_trial(label, row, rating) for label, row in named.items()],
        arrays=arrays,
    )  # fmt: skip


def _label(row: RatedAttack) -> str:
    return re.sub(r"[^a-z0-9]+", "_", row.attack)


def _trial(label: str, row: RatedAttack, rating: Rating) -> dict[str, Any]:
    """Return one attack's rates as a membership game's card has them."""
    summary = row.summary
    auc = summary.auc
    numbers: dict[str, Any] = {
        **plain_summary(summary),
        "success": summary.accuracy[0].value,
        "targets": rating.records,
        "runs": max(1, len(rating.targets)),
        "fit": {},
    }
    if row.over is not None:
        numbers["over_loss_threshold"] = row.over._asdict()
    headline = {
        "metric": "auc",
        "value": auc.value,
        "standard_error": intervals.standard_error(*auc),
        "better": "higher",
        "floor": 0.5,
    }
    return {
        "defense": MODELS,
        "attack": label,
        "use": row.plug_in,
        "passed": row.settings,
        "settings": row.settings,
        "threat_model": "sees scores of models that were trained elsewhere",
        "status": "ok",
        "reason": None,
        "result": {"headline": headline, "oracle": False, **numbers},
        "flags": [flag._asdict() for flag in flags(row, rating)],
    }
