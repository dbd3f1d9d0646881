"""From scores of candidates on target models to rates, and attacks side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

from audit.engine.signals import Shadows
from audit.games.base import Trial
from audit.scorecard.flags import Flag
from audit.statistics import intervals, roc

NULL = 5.0  # standard errors of a null AUC from .5 that are no chance
FEWEST = 30  # records that tell a standard error; of four it is 0 now and then
ROUNDING = 1e-9  # of an AUC; scores that no model moves have no standard error
SURE = 0.999  # of a flag: clean runs must not raise one by chance
CURVE = np.geomspace(1e-5, 1, 151)  # false-positive rates at which a ROC is kept


def rates(
    scores: np.ndarray, models: Shadows, on_shadows: np.ndarray, shadows: Shadows
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rates of one attack, and its per-record arrays.

    Scores of all models and records are pooled: one threshold for all. The AUC's
    interval assumes that records are independent; the Clopper-Pearson intervals of
    rates assume that all scores are. `scores` [runs, records] are on the target models
    `models`, `on_shadows` [models, records] on the calibration models `shadows`, of
    which there may be none.
    """
    members, others = scores[models.member], scores[~models.member]
    calibration = None
    if len(shadows.member):
        calibration = on_shadows[shadows.member], on_shadows[~shadows.member]
    ids = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    clusters = ids[models.member], ids[~models.member]
    summary = roc.summarise(members, others, shadows=calibration, clusters=clusters)
    guessed = scores > summary.accuracy[0].threshold
    wrong = (guessed != models.member).mean(0)
    curve = roc.roc(members, others)
    at = np.searchsorted(curve.fpr, CURVE, side="right") - 1
    result = {
        **plain_summary(summary),
        "success": float(1 - wrong.mean()),
        "targets": scores.shape[1],
        "runs": len(scores),
    }
    if scores.shape[1] > 3:  # a pair of records, and another one
        # memberships of the next pair, in the same models: coins of their own
        other = np.roll(models.member, 2, 1)
        groups = ids[other], ids[~other]
        none = roc.auc(scores[other], scores[~other], clusters=groups)
        result["controls"] = {"null": none._asdict()}
    return result, {
        "wrong": wrong,
        "fpr": curve.fpr[at],
        "tpr": curve.tpr[at],
        "scores": scores.astype(np.float32),
        "member": models.member,
    }


def plain_summary(summary: roc.Summary) -> dict[str, Any]:
    """Return a summary as plain data, its rates by what their thresholds are from."""
    points = [o if isinstance(o, str) else plain(o) for o in summary.operating]
    many = len(roc.FPRS)
    return {
        "auc": summary.auc._asdict(),
        "accuracy": [a._asdict() for a in summary.accuracy],
        "fprs": list(roc.FPRS),
        "operating": {
            accuracy.chosen_on: points[i * many : (i + 1) * many]
            for i, accuracy in enumerate(summary.accuracy)
        },
        "members": summary.members,
        "nonmembers": summary.nonmembers,
    }


def plain(point: roc.Operating) -> dict[str, Any]:
    """Return the rates at one threshold as plain data."""
    tpr, fpr = ({**p._asdict(), "value": p.value} for p in (point.tpr, point.fpr))
    return {**point._asdict(), "tpr": tpr, "fpr": fpr}


def above_bound(result: dict[str, Any], most: np.ndarray) -> list[Flag]:
    """Return a flag if the attack tells more than the accounting allows.

    Thresholds from shadow models, so that the rated scores have not chosen them; the
    limits of both rates hold with 99.9%, as if all scores were independent. `most`
    [2, p] are false-positive rates and the most true positives at them. No flag without
    shadow models' thresholds.
    """
    for point in result["operating"].get("shadows", []):
        if isinstance(point, str):
            continue
        tpr, fpr = (
            intervals.proportion(point[k]["k"], point[k]["n"], SURE)
            for k in ("tpr", "fpr")
        )
        limit = most[1, min(np.searchsorted(most[0], fpr.high), most.shape[1] - 1)]
        if tpr.low > limit:
            text = (
                f"TPR {tpr.value:.4g} at FPR {fpr.value:.4g}, accounted for "
                f"{limit:.4g}: noise, clip, sampler or accountant"
            )
            return [Flag("tpr-above-bound", "error", text)]
    return []


def null_flags(result: dict[str, Any]) -> list[Flag]:
    """Return a flag if scores tell the membership of records they are not about."""
    null = result.get("controls", {}).get("null")
    if null is None or result["targets"] < FEWEST:
        return []
    se = intervals.standard_error(**null)
    if abs(null["value"] - 0.5) <= NULL * se + ROUNDING:
        return []
    text = (
        f"AUC {null['value']:.3g} with the memberships of other records: memberships "
        f"are not independent"
    )
    return [Flag("null-leak", "error", text)]


def wrong_sign(auc: float, standard_error: float, records: int) -> bool:
    """Return whether records that were in no training set score higher, beyond chance.

    The AUC's interval of confidence `SURE` lies below one half. A card has hundreds of
    rows, of which 1 in 40 that tell nothing lies below it at 95%.
    """
    reach = -special.ndtri((1 - SURE) / 2) * standard_error
    return bool(records >= FEWEST and auc + reach < 0.5)


def sign_flags(auc: float, standard_error: float, records: int) -> list[Flag]:
    """Return a flag if the scores are turned round: losses, say, in place of scores."""
    if not wrong_sign(auc, standard_error, records):
        return []
    text = (
        f"AUC {auc:.3g}: scores are lower for members; high must mean member, which a "
        f"loss does not"
    )
    return [Flag("wrong-sign", "warning", text)]


def compared(trials: list[Trial]) -> list[Trial]:
    """Add every attack's AUC minus that of `loss_threshold` on the same scores.

    The records' scores are dropped: rows keep rates.
    """
    plain = {
        trial.defense: trial.result
        for trial in trials
        if trial.attack.name == "loss_threshold" and trial.result is not None
    }

    def add(trial: Trial) -> Trial:
        result, base = trial.result, plain.get(trial.defense)
        if result is None:
            return trial
        numbers, arrays = dict(result.numbers), dict(result.arrays)
        scores, member = arrays.pop("scores"), arrays.pop("member")
        if base is not None and trial.attack.name != "loss_threshold":
            ids = np.broadcast_to(np.arange(member.shape[1]), member.shape)
            theirs = base.arrays["scores"]
            gain = roc.auc_difference(
                (scores[member], scores[~member]),
                (theirs[member], theirs[~member]),
                clusters=(ids[member], ids[~member]),
            )
            numbers["over_loss_threshold"] = gain._asdict()
        return trial._replace(result=result._replace(numbers=numbers, arrays=arrays))

    return [add(trial) for trial in trials]
