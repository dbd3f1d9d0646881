"""From scores of candidates on target models to rates, and attacks side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.engine.signals import Shadows
from audit.scorecard.flags import Flag
from audit.statistics import intervals, roc

NULL = 5.0  # standard errors of a null AUC from .5 that are no chance
SURE = 0.999  # of a flag: clean runs must not raise one by chance
CURVE = np.geomspace(1e-5, 1, 151)  # false-positive rates at which a ROC is kept


def rates(
    scores: np.ndarray, of: Shadows, on_shadows: np.ndarray, shadows: Shadows
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rates of one attack, and its per-record arrays.

    Scores of all models and records are pooled: one threshold for all. The AUC's
    interval takes records as what is independent; the intervals of rates are
    Clopper-Pearson on the counts, as if every score were.

    Args:
      scores: [runs, records] on target models.
      of: who is a member of which.
      on_shadows: [models, records] on calibration models.
      shadows: who is a member of which.
    """
    members, others = scores[of.member], scores[~of.member]
    chosen = on_shadows[shadows.member], on_shadows[~shadows.member]
    ids = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    clusters = ids[of.member], ids[~of.member]
    seen = roc.summarise(members, others, shadows=chosen, clusters=clusters)
    told = scores > seen.accuracy[0].threshold
    wrong = (told != of.member).mean(0)
    curve = roc.roc(members, others)
    at = np.searchsorted(curve.fpr, CURVE, side="right") - 1
    result = {
        "auc": seen.auc._asdict(),
        "success": float(1 - wrong.mean()),
        "accuracy": [a._asdict() for a in seen.accuracy],
        "fprs": list(roc.FPRS),
        "operating": {
            "shadows": [_plain(o) for o in seen.operating[: len(roc.FPRS)]],
            "targets": [_plain(o) for o in seen.operating[len(roc.FPRS) :]],
        },
        "members": seen.members,
        "nonmembers": seen.nonmembers,
        "targets": scores.shape[1],
        "runs": len(scores),
    }
    if scores.shape[1] > 3:  # a pair of records, and another one
        # memberships of the next pair, in the same models: coins of their own
        other = np.roll(of.member, 2, 1)
        groups = ids[other], ids[~other]
        none = roc.auc(scores[other], scores[~other], clusters=groups)
        result["controls"] = {"null": none._asdict()}
    arrays = {"wrong": wrong, "fpr": curve.fpr[at], "tpr": curve.tpr[at]}
    return result, arrays | {"scores": scores.astype(np.float32), "member": of.member}


def _plain(point: roc.Operating | str) -> Any:
    if isinstance(point, str):
        return point
    fields = {**point._asdict()}
    for name in ("tpr", "fpr"):
        fields[name] = {**fields[name]._asdict(), "value": fields[name].value}
    return fields


def above_bound(result: dict[str, Any], most: np.ndarray) -> list[dict[str, Any]]:
    """Return a flag if the attack tells more than the accounting allows.

    Thresholds from shadow models, so that the rated scores have not chosen them; the
    limits of both rates hold with 99.9%, as if all scores were independent.

    Args:
      result: of `rates`.
      most: [2, p] false-positive rates and the most true positives at them.
    """
    points = [p for p in result["operating"]["shadows"] if not isinstance(p, str)]
    for point in points:
        tpr, fpr = (
            intervals.proportion(point[k]["k"], point[k]["n"], SURE)
            for k in ("tpr", "fpr")
        )
        at = min(np.searchsorted(most[0], fpr.high), most.shape[1] - 1)
        if tpr.low > most[1, at]:
            text = (
                f"TPR {tpr.value:.4g} at FPR {fpr.value:.4g}, accounted for "
                f"{most[1, at]:.4g}: noise, clip, sampler or accountant"
            )
            return [Flag("tpr-above-bound", "error", text)._asdict()]
    return []


def null(result: dict[str, Any]) -> list[Flag]:
    """Return a flag if scores tell the membership of records they are not about."""
    held = result.get("controls", {}).get("null")
    if held is None:
        return []
    se = (held["high"] - held["low"]) / 3.92  # a 95% interval is 3.92 s.e. wide
    if abs(held["value"] - 0.5) <= NULL * se:
        return []
    text = (
        f"AUC {held['value']:.3g} with other records' memberships: coins hang together"
    )
    return [Flag("null-leak", "error", text)]


def compared(trials: list[Any]) -> list[Any]:
    """Add every attack's AUC minus that of `loss_threshold` on the same scores.

    The records' scores are dropped: rows keep rates.
    """

    def groups(t: Any) -> Any:
        scores, member = t.arrays["scores"], t.arrays["member"]
        return scores[member], scores[~member]

    plain = {
        t.defense: t
        for t in trials
        if t.attack.name == "loss_threshold" and "scores" in (t.arrays or {})
    }

    def add(t: Any) -> Any:
        if "scores" not in (t.arrays or {}):
            return t
        result, base = dict(t.result), plain.get(t.defense)
        if base is not None and t.attack.name != "loss_threshold":
            member = t.arrays["member"]
            ids = np.broadcast_to(np.arange(member.shape[1]), member.shape)
            found = roc.auc_difference(
                groups(t), groups(base), clusters=(ids[member], ids[~member])
            )
            result["over_loss_threshold"] = found._asdict()
        kept = {k: v for k, v in t.arrays.items() if k not in ("scores", "member")}
        return t._replace(result=result, arrays=kept)

    return [add(t) for t in trials]
