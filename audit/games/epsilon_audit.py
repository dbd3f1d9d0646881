"""Both sides of epsilon: what an accountant claims, and what an audit proves.

Every number is of the add-or-remove game the canaries are in. An audit whose lower end
exceeds the accountant's upper one by more than chance has found a fault: in the noise,
the clip, the sampler, the accounting, or the audit itself.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from audit.accounting import rdp, tradeoff
from audit.engine import shadow
from audit.games.guarantees import Guarantees
from audit.scorecard.flags import Flag
from audit.statistics import epsilon_lower, epsilon_lower_one_run, roc

CONFIDENCE = 0.95
SURE = 0.999  # of a flag: twenty clean runs must not raise one by chance
THRESHOLD = 0.0  # of a log-likelihood ratio: fixed in advance
# How the threshold of each method's row is found. Without a Gaussian claim the tails
# tell most, and where they begin is not known in advance.
HEADLINE: dict[str, Any] = {
    "gdp": "fixed",
    "clopper_pearson": "bonferroni",
    "bayesian": "bonferroni",
}
SHARE = 0.3  # of canaries guessed in one run: fixed in advance
SHUFFLES = 9  # of the null control of one run
POINTS = 200  # of a stored ROC


class Claim(NamedTuple):
    """What the accountants say of one defense."""

    delta: float
    epsilon: float | None  # the tightest; None = no theorem
    rdp: float | None
    loss: Any  # reads like a PrivacyLossDistribution; None = there is none
    gaussian: bool  # the claim is a Gaussian one, mu-GDP


def claim(of: shadow.Learner, held: Guarantees, n: int) -> Claim:
    """Return what is claimed of `n` records, one of which is in or out."""
    loss = of.defense.pld and of.defense.pld(n, "add_remove")
    said = held.epsilon or {"delta": 0.0, "add_remove": {"tight": None, "rdp": None}}
    upper = said["add_remove"]
    known = [v for v in (upper["tight"], upper["rdp"]) if v is not None]
    gaussian = isinstance(loss, rdp.GaussianPrivacy)
    least = min(known) if known else None
    return Claim(said["delta"], least, upper["rdp"], loss, gaussian)


# Two worlds ---------------------------------------------------------------------------


def two_worlds(scores: np.ndarray, claim: Claim) -> tuple[dict, dict]:
    """Return what the scores of both worlds prove, and arrays for the figure.

    Args:
      scores: [audits, 2, runs], with the canary first; the first audit is the row, all
        of them count how often a lower end exceeds the upper one.
      claim: of the accountants.
    """
    methods = [m for m in epsilon_lower.METHODS if m != "gdp" or claim.gaussian]
    members, nonmembers = scores[0]
    found = {
        m: {
            s: _lower(members, nonmembers, m, s, claim)
            for s in epsilon_lower.SELECTIONS
        }
        for m in methods
    }
    main = "gdp" if claim.gaussian else "clopper_pearson"
    above = {  # the posterior promises no confidence
        m: sum(_row(a, b, m, claim).epsilon > _upper(claim) for a, b in scores)
        for m in methods
        if m != "bayesian"
    }
    summary = roc.summarise(members, nonmembers, fprs=roc.FPRS)
    result = {
        "auc": summary.auc._asdict(),
        "advantage": 2 * summary.accuracy[-1].value - 1,
        "operating": [
            {"nominal": f, **_operating(point)}
            for f, point in zip(roc.FPRS, summary.operating, strict=True)
        ],
        "runs": members.size,
        "delta": claim.delta,
        "upper": claim.epsilon,
        "upper_rdp": claim.rdp,
        "lower": {m: {s: _plain(v) for s, v in by.items()} for m, by in found.items()},
        "method": main,
        "headline": HEADLINE,
        "epsilon_lower": found[main][HEADLINE[main]].epsilon,
        "audits": len(scores),
        "above_upper": above,
        "in_band": _in_band(members, nonmembers, claim),
        "flags": [f._asdict() for f in _raised(members, nonmembers, main, claim)],
    }
    return result, {**_roc_arrays(members, nonmembers, claim)}


def _upper(claim: Claim) -> float:
    return math.inf if claim.epsilon is None else claim.epsilon


def _lower(
    members: Any,
    nonmembers: Any,
    method: Any,
    selection: Any,
    claim: Claim,
    confidence: float = CONFIDENCE,
) -> epsilon_lower.Lower:
    return epsilon_lower.lower(
        members,
        nonmembers,
        delta=claim.delta,
        method=method,
        selection=selection,
        threshold=THRESHOLD if selection == "fixed" else None,
        confidence=confidence,
    )


def _row(
    members: Any, nonmembers: Any, method: Any, claim: Claim, confidence: Any = None
) -> epsilon_lower.Lower:
    """Return what the row of the table prints."""
    how = HEADLINE[method]
    return _lower(members, nonmembers, method, how, claim, confidence or CONFIDENCE)


def _plain(found: Any) -> dict[str, Any]:
    return {k: v for k, v in found._asdict().items() if v is not None}


def _operating(point: roc.Operating | str) -> dict[str, Any]:
    if isinstance(point, str):
        return {"unavailable": point}
    tpr, fpr = ({**p._asdict(), "value": p.value} for p in (point.tpr, point.fpr))
    return {**point._asdict(), "tpr": tpr, "fpr": fpr}


def _in_band(members: np.ndarray, nonmembers: np.ndarray, claim: Claim) -> Any:
    """Return whether the ROC is the claimed Gaussian one, within its 95% band.

    Both empirical laws are within e of the true ones at once (Dvoretzky, Kiefer and
    Wolfowitz; Massart 1990), so the ROC is within e of the closed form both ways.
    None where no closed form is claimed. A canary weaker than the worst case may lie
    below; above, nothing may.
    """
    if not claim.gaussian:
        return None
    curve, spread = roc.roc(members, nonmembers), math.log(2 / ((1 - CONFIDENCE) / 2))
    e_tpr, e_fpr = (math.sqrt(spread / 2 / a.size) for a in (members, nonmembers))
    most = claim.loss.tpr(np.minimum(curve.fpr + e_fpr, 1)) + e_tpr
    least = claim.loss.tpr(np.maximum(curve.fpr - e_fpr, 0)) - e_tpr
    return {
        "above": bool((curve.tpr > most).any()),
        "below": bool((curve.tpr < least).any()),
    }


def _raised(members: Any, nonmembers: Any, main: Any, claim: Claim) -> list[Flag]:
    """Return what is wrong with an audit of two worlds."""
    first, second = np.array_split(nonmembers, 2)
    null = _row(first, second, main, claim, SURE).epsilon
    sure = _row(members, nonmembers, main, claim, SURE).epsilon
    return _judged(null, sure, _row(members, nonmembers, main, claim).epsilon, claim)


def _judged(null: float, sure: float, found: float, claim: Claim) -> list[Flag]:
    flags = []
    if null > 0:
        text = "the audit finds a leak between runs that do not differ; it is void"
        flags.append(Flag("null-leak", "error", text))
    if sure > _upper(claim):
        text = "more leaks than is accounted for: noise, clip, sampler or accountant"
        flags.append(Flag("lower-above-upper", "error", text))
    elif found > _upper(claim):
        text = "above the upper end at 95%, not at 99.9%: as chance does now and then"
        flags.append(Flag("lower-above-upper-by-chance", "note", text))
    if claim.epsilon is None:
        flags.append(Flag("no-epsilon", "note", "no accountant bounds this defense"))
    return flags


# One run ------------------------------------------------------------------------------


def one_run(scores: np.ndarray, member: np.ndarray, claim: Claim) -> tuple[dict, dict]:
    """Return what canaries in single runs prove, each run an audit of its own.

    Args:
      scores: [audits, m].
      member: [audits, m] who was in.
      claim: of the accountants.
    """
    methods = [
        m for m in epsilon_lower_one_run.METHODS if m == "one_run" or claim.gaussian
    ]
    every = {
        m: [_guess(*one, m, claim) for one in zip(scores, member, strict=True)]
        for m in methods
    }
    found = {m: {"fixed": every[m][0]} for m in methods}
    for m in methods:
        for s in epsilon_lower_one_run.SELECTIONS[1:]:
            found[m][s] = epsilon_lower_one_run.lower(
                scores[0], member[0], delta=claim.delta, method=m, selection=s
            )
    main = methods[-1]
    first = scores[0][member[0]], scores[0][~member[0]]
    epsilons = {m: np.array([one.epsilon for one in every[m]]) for m in methods}
    null = _shuffled(scores[0], member[0], main, claim)
    sure = _guess(scores[0], member[0], main, claim, SURE).epsilon
    result = {
        "auc": roc.auc(*first)._asdict(),
        "canaries": scores.shape[1],
        "runs": 1,
        "delta": claim.delta,
        "upper": claim.epsilon,
        "upper_rdp": claim.rdp,
        "lower": {m: {s: _plain(v) for s, v in by.items()} for m, by in found.items()},
        "method": main,
        "epsilon_lower": found[main]["fixed"].epsilon,
        "epsilon_lower_median": {m: float(np.median(e)) for m, e in epsilons.items()},
        "audits": len(scores),
        "above_upper": {m: int((e > _upper(claim)).sum()) for m, e in epsilons.items()},
        "in_band": None,
        "flags": [
            f._asdict()
            for f in _judged(null, sure, found[main]["fixed"].epsilon, claim)
        ],
    }
    return result, _roc_arrays(*first, claim)


def _shuffled(scores: Any, member: Any, method: Any, claim: Claim) -> float:
    """Return what is proved of bits that have nothing to do with the scores.

    The median over shuffles: one of them alone looks like a leak now and then.
    """
    rng = np.random.default_rng(0)
    each = [
        _guess(scores, rng.permutation(member), method, claim, SURE).epsilon
        for _ in range(SHUFFLES)
    ]
    return float(np.median(each))


def _guess(
    scores: Any, member: Any, method: Any, claim: Claim, confidence: Any = None
) -> epsilon_lower_one_run.Guessed:
    return epsilon_lower_one_run.lower(
        scores,
        member,
        delta=claim.delta,
        method=method,
        selection="fixed",
        share=SHARE,
        confidence=confidence or CONFIDENCE,
    )


def _roc_arrays(members: Any, nonmembers: Any, claim: Claim) -> dict[str, np.ndarray]:
    """Return the ROC at chosen rates, and the most that is claimed there."""
    fpr = np.geomspace(0.5 / len(nonmembers), 1, POINTS)
    curve = roc.roc(members, nonmembers)
    at = np.searchsorted(curve.fpr, fpr, side="right") - 1
    arrays = {"fpr": fpr, "tpr": curve.tpr[at]}
    if claim.epsilon is not None:
        arrays["most_epsilon"] = tradeoff.tpr_from_epsilon(
            fpr, claim.epsilon, claim.delta
        )
    if claim.loss is not None:
        arrays["most_loss"] = tradeoff.tpr_from_loss(fpr, claim.loss)
    return arrays
