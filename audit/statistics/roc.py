"""Scores of members and non-members: ROC, AUC, rates at a threshold, and intervals.

A high score says "member". The rule is always `score > threshold`, so that a threshold
chosen on the non-members has at most its nominal false-positive rate, even with ties.
Scores may be infinite, never nan. Every rate is reported with its counts.

The scores that a threshold is chosen on are part of its name: `shadows`, those of the
attacker's shadow models, as an attacker can do; `targets`, the scores that are rated,
which is optimistic, but usual in papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from audit.statistics.intervals import (
    Estimate,
    Proportion,
    difference_of,
    logit_normal,
    proportion,
)

FPRS = (1e-2, 1e-3, 1e-4)
EXPECTED = 10  # least expected number of false positives at a rate

ChosenOn = Literal["shadows", "targets"]


class Roc(NamedTuple):
    """All pairs of rates, from a threshold above all scores to one below all scores."""

    fpr: np.ndarray  # [p] not decreasing, from 0 to 1
    tpr: np.ndarray  # [p] the same
    threshold: np.ndarray  # [p] not increasing; the last is -inf, or the least score


class Operating(NamedTuple):
    """One threshold and the rates it gives."""

    nominal: float  # the false-positive rate it was chosen for
    chosen_on: ChosenOn
    threshold: float | tuple[float, ...]  # one for all scores, or one per model
    tpr: Proportion
    fpr: Proportion  # realised


class Accuracy(NamedTuple):
    """Balanced accuracy, (TPR + 1 - FPR) / 2, at one threshold."""

    value: float
    chosen_on: ChosenOn
    threshold: float | tuple[float, ...]


class Summary(NamedTuple):
    """All numbers of one attack."""

    auc: Estimate
    accuracy: tuple[Accuracy, ...]  # chosen on shadows, if there are any; on targets
    operating: tuple[Operating | str, ...]  # one per FPR; a string = why it is missing
    members: int
    nonmembers: int


class Scores(NamedTuple):
    """Scores of both groups."""

    members: np.ndarray  # [m]
    nonmembers: np.ndarray  # [n]


def scores(members: Any, nonmembers: Any) -> Scores:
    """Return both groups as flat float64 arrays.

    Raises:
      ValueError: if a group is empty or holds nan, naming it.
    """
    flat = Scores(*(np.asarray(a, float).ravel() for a in (members, nonmembers)))
    for name, a in zip(Scores._fields, flat, strict=True):
        if not a.size:
            raise ValueError(f"there are no scores of {name}")
        if np.isnan(a).any():
            raise ValueError(f"{np.isnan(a).sum()} of {a.size} {name}' scores are nan")
    return flat


def roc(members: Any, nonmembers: Any) -> Roc:
    """Return the empirical ROC; tied scores are one diagonal step.

    Args:
      members: [m] scores.
      nonmembers: [n] scores.
    """
    data = scores(members, nonmembers)
    cut = np.unique(np.concatenate([*data, [-np.inf]]))[::-1]
    tpr, fpr = (
        1 - np.searchsorted(np.sort(a), cut, side="right") / a.size for a in data
    )
    # `> -inf` misses scores of -inf: the last step accuses all of them
    if tpr[-1] < 1 or fpr[-1] < 1:
        cut, tpr, fpr = np.append(cut, -np.inf), np.append(tpr, 1), np.append(fpr, 1)
    return Roc(fpr, tpr, cut)


def threshold_at(nonmembers: Any, fpr: float) -> float:
    """Return the lowest threshold with at most `fpr` of these non-members above it."""
    ordered = np.sort(np.asarray(nonmembers, float).ravel())[::-1]
    allowed = math.floor(fpr * ordered.size + 1e-9)
    return float(ordered[allowed]) if allowed < ordered.size else -math.inf


def operating(
    members: Any,
    nonmembers: Any,
    fpr: float,
    *,
    shadows: Any = None,
    confidence: float = 0.95,
) -> Operating | str:
    """Return the rates of the threshold chosen for one nominal false-positive rate.

    Members [m] and nonmembers [n] are rated. `shadows`, scores of non-members of shadow
    models, choose the threshold; None = it is chosen on `nonmembers`. The answer is
    "unavailable (n)" where n non-members, fewer than 10 / fpr, choose or rate the
    threshold: fewer than ten false positives would decide.
    """
    data = scores(members, nonmembers)
    chosen_on: ChosenOn = "targets" if shadows is None else "shadows"
    choosing = data.nonmembers if shadows is None else np.asarray(shadows, float)
    fewest = min(choosing.size, data.nonmembers.size)
    if fewest * fpr < EXPECTED * (1 - 1e-9):
        return f"unavailable ({fewest})"
    cut = threshold_at(choosing, fpr)
    tpr, realised = (proportion(int((a > cut).sum()), a.size, confidence) for a in data)
    return Operating(fpr, chosen_on, cut, tpr, realised)


def of_models(
    each: Sequence[Operating | str], confidence: float = 0.95
) -> Operating | str:
    """Return the rates over several models, each at its own threshold.

    The counts of `each`, one nominal rate of every model, are added up. A string, the
    first, if a model's rates are missing.
    """
    points = [point for point in each if not isinstance(point, str)]
    if len(points) < len(each):
        return next(point for point in each if isinstance(point, str))
    tpr, fpr = (
        proportion(sum(r.k for r in rates), sum(r.n for r in rates), confidence)
        for rates in zip(*((p.tpr, p.fpr) for p in points), strict=True)
    )
    cuts = tuple(np.ravel([p.threshold for p in points]).tolist())
    return points[0]._replace(threshold=cuts, tpr=tpr, fpr=fpr)


def balanced_accuracy(
    members: Any, nonmembers: Any, *, shadows: tuple[Any, Any] | None = None
) -> Accuracy:
    """Return the balanced accuracy at the threshold of the largest TPR - FPR.

    The threshold is best on `shadows`, (members, nonmembers) of shadow models; without
    them on the rated scores, which is optimistic.
    """
    data = scores(members, nonmembers)
    curve = roc(*(data if shadows is None else shadows))
    cut = float(curve.threshold[np.argmax(curve.tpr - curve.fpr)])
    tpr, fpr = ((a > cut).mean() for a in data)
    where: ChosenOn = "targets" if shadows is None else "shadows"
    return Accuracy(float((tpr + 1 - fpr) / 2), where, cut)


def _placements(members: Any, nonmembers: Any) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the AUC, and the share of the other group that each score is right about.

    These are [m] and [n], ties counted half: the influence values of the AUC.
    """
    from scipy.stats import rankdata  # which takes half a second to import

    data = scores(members, nonmembers)
    m, n = (a.size for a in data)
    ranks = rankdata(np.concatenate(data))
    above = (ranks[:m] - rankdata(data.members)) / n
    below = 1 - (ranks[m:] - rankdata(data.nonmembers)) / m
    return float(above.mean()), above, below


def _variance(a: np.ndarray, b: np.ndarray, clusters: Any) -> float:
    """Return the variance of mean(a) + mean(b) over independent clusters.

    DeLong, DeLong and Clarke-Pearson (1988) where every score is its own cluster,
    Obuchowski (1997) else.
    """
    if clusters is None:
        return sum(v.var(ddof=1) / v.size if v.size > 1 else math.inf for v in (a, b))
    ids = np.concatenate([np.asarray(c).ravel() for c in clusters])
    if ids.size != a.size + b.size:
        raise ValueError(f"{ids.size} cluster ids for {a.size + b.size} scores")
    influence = np.concatenate([(v - v.mean()) / v.size for v in (a, b)])
    _, where = np.unique(ids, return_inverse=True)
    sums = np.bincount(where, influence)
    if sums.size < 2:
        return math.inf
    return float((sums**2).sum() * sums.size / (sums.size - 1))


def auc(
    members: Any, nonmembers: Any, *, clusters: Any = None, confidence: float = 0.95
) -> Estimate:
    """Return the area under the ROC, P(member > non-member) + P(tie) / 2.

    The interval has DeLong's variance, and is normal in the logit of the AUC (Pepe
    2003). Under perfect separation, where that variance cannot be estimated, it is
    exact: all of min(m, n) independent pairs are in order, which has probability at
    most AUC^min(m, n). `clusters` are (ids [m], ids [n]) of independent units, the
    models or the records, where scores are dependent.
    """
    data = scores(members, nonmembers)
    value, above, below = _placements(*data)
    if value in (0, 1):
        pairs = min(a.size for a in data)
        if clusters is not None:
            pairs = min(pairs, *(len(np.unique(c)) for c in clusters))
        room = 1 - ((1 - confidence) / 2) ** (1 / pairs)
        return Estimate(value, max(value - room, 0.0), min(value + room, 1.0))
    return logit_normal(value, _variance(above, below, clusters), confidence)


def auc_by_chance(members: int, nonmembers: int) -> np.ndarray:
    """Return the law of an AUC where nothing tells members: P(AUC = k / (m n)), [k].

    It is that of the Mann-Whitney statistic of m and n exchangeable scores without ties
    (Mann and Whitney 1947), from its generating function, the product over i <= m of
    (1 - x^(n + i)) / (1 - x^i).
    """
    law = np.zeros(members * nonmembers + 1)
    law[0] = 1.0
    for i in range(1, members + 1):
        shift = nonmembers + i
        law[shift:] -= law[:-shift].copy()
        for start in range(i):
            law[start::i] = np.cumsum(law[start::i])
        law /= law.sum()
    return law


def auc_difference(
    ours: tuple[Any, Any],
    theirs: tuple[Any, Any],
    *,
    clusters: Any = None,
    confidence: float = 0.95,
) -> Estimate:
    """Return AUC(ours) - AUC(theirs) of two attacks on the same records, paired.

    Each is (members [m], nonmembers [n]), with records in the same order; `clusters` as
    in `auc`. The interval joins those of both, as Zou (2007) joins intervals of paired
    estimates, by the covariance of DeLong, DeLong and Clarke-Pearson (1988).

    Raises:
      ValueError: if the numbers of scores differ.
    """
    (_, *first), (_, *second) = _placements(*ours), _placements(*theirs)
    shapes = [tuple(p.size for p in pair) for pair in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"paired scores differ in number: {shapes[0]}, {shapes[1]}")
    difference = [p - q for p, q in zip(first, second, strict=True)]
    pairs = first, second, difference
    a, b, both = (_variance(above, below, clusters) for above, below in pairs)
    correlation = (a + b - both) / (2 * math.sqrt(a * b)) if a * b > 0 else 0.0
    more: dict[str, Any] = {"clusters": clusters, "confidence": confidence}
    return difference_of(auc(*ours, **more), auc(*theirs, **more), correlation)


def summarise(
    members: Any,
    nonmembers: Any,
    *,
    shadows: tuple[Any, Any] | None = None,
    clusters: Any = None,
    fprs: tuple[float, ...] = FPRS,
    confidence: float = 0.95,
) -> Summary:
    """Return all numbers of one attack, from members [m] and nonmembers [n].

    `shadows` are (members, nonmembers) of shadow models, scored as the targets were;
    `clusters` as in `auc`; `fprs` are nominal rates.
    """
    data = scores(members, nonmembers)
    given = [shadows, None] if shadows is not None else [None]
    points = [
        operating(*data, f, shadows=s if s is None else s[1], confidence=confidence)
        for s in given
        for f in fprs
    ]
    accuracies = tuple(balanced_accuracy(*data, shadows=s) for s in given)
    area = auc(*data, clusters=clusters, confidence=confidence)
    return Summary(area, accuracies, tuple(points), *(a.size for a in data))
