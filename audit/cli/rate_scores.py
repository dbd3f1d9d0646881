"""Membership rates of models trained elsewhere: `python -m audit membership PATH`.

Scores are rated as they are. Models are attacked by the suite's own plug-ins: the last
`targets` of them are the targets, the `calibration` before those choose thresholds, all
others are the attacker's. No epsilon is read into any of it: records of one model are
no independent runs, and nothing is known of a mechanism.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.cli import score_formats
from audit.cli.score_formats import Models, Scored
from audit.config import registry
from audit.engine.signals import Shadows, Signals
from audit.errors import UserError
from audit.statistics import roc
from audit.statistics.intervals import Estimate
from audit.types import Knowledge, Observation

ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "loss_threshold": ("loss_threshold", {}),
    "attack_r": ("attack_r", {}),
    "lira": ("lira", {}),
    "lira, fixed variance": ("lira", {"variance": "fixed"}),
    "lira, offline": ("lira", {"mode": "offline"}),
    "lira, offline, fixed": ("lira", {"mode": "offline", "variance": "fixed"}),
}  # those that ask for no population
LEAST = 2  # attacker's models with a record, and without


class RatedAttack(NamedTuple):
    """One attack."""

    attack: str
    summary: roc.Summary
    over: Estimate | None  # AUC minus that of loss_threshold, paired


def whole_number(least: int) -> Callable[[str], int]:
    """Return a reader of a number of models that is typed.

    Args:
      least: the smallest number that will do.
    """

    def read(typed: str) -> int:
        if not typed.isdecimal() or int(typed) < least:
            raise UserError(
                f"{typed!r} models: a whole number is wanted, and one target at least"
            )
        return int(typed)

    return read


def rate(path: Path, targets: int = 1, calibration: int = 1) -> list[RatedAttack]:
    """Read a file or folder and rate every attack that applies.

    Args:
      path: what `score_formats.read` takes.
      targets: how many models are attacked; where there are scores, not read.
      calibration: how many models choose thresholds; as `targets`.

    Raises:
      UserError: if the file cannot be used.
    """
    read = score_formats.read(path)
    if isinstance(read, Scored):
        summary = roc.summarise(read.members, read.nonmembers, shadows=read.shadows)
        return [RatedAttack("scores", summary, None)]
    references = len(read.keep) - targets - calibration
    if references < 1:
        raise UserError(
            f"{path}: {len(read.keep)} models; {targets} targets and "
            f"{calibration} for thresholds leave none to the attacker"
        )
    cuts = [references, references + calibration]
    parts = [
        Models(read.keep[p], read.signals[p], tuple(read.names[i] for i in p))
        for p in np.split(np.arange(len(read.keep)), cuts)
    ]
    return _attack(*parts)


def _attack(
    references: Models, calibration: Models, targets: Models
) -> list[RatedAttack]:
    """Let every attack score the target models, fitted on the attacker's."""
    knowledge = Knowledge(None, None, None, shadows=_halved(references))  # type: ignore[arg-type]
    rows: list[RatedAttack] = []
    base: Any = None
    for label, (name, settings) in ATTACKS.items():
        attack = registry.find("attack", name)(None, **settings)
        state, _ = attack.fit(None, knowledge)
        groups, records = _groups(attack, state, targets)
        shadows, _ = _groups(attack, state, calibration)
        summary = roc.summarise(*groups, shadows=shadows, clusters=records)
        base = base or groups
        over = roc.auc_difference(groups, base, clusters=records) if rows else None
        rows.append(RatedAttack(label, summary, over))
    return rows


def _groups(attack: Any, state: Any, models: Models) -> tuple[Any, Any]:
    """Return the scores of members and non-members, and which records they are of."""
    if not len(models.keep):
        return None, None
    scores = np.array(
        [
            attack.guess(state, None, Observation(signals=Signals(signals, None)))
            for signals in models.signals
        ]
    )
    records = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    keep = models.keep
    return (scores[keep], scores[~keep]), (records[keep], records[~keep])


def _halved(models: Models) -> Shadows:
    """Return as many models with every record as without, each record its own ones.

    Attacks take what the models say of a record as two samples, so that which models
    they are may differ between records; models that one half has more of are left out.

    Raises:
      UserError: if a half has fewer than `LEAST` models.
    """
    keep = models.keep
    half = int(min(keep.sum(0).min(), (~keep).sum(0).min()))
    if half < LEAST:
        raise UserError(
            f"some record is in, or out of, {half} of the attacker's "
            f"{len(keep)} models; at least {LEAST} each are needed"
        )
    order = np.argsort(~keep, 0, kind="stable")  # models with the record first
    rows = np.concatenate([order[:half], order[len(keep) - half :]])
    signals = np.take_along_axis(models.signals, rows[:, :, None], 0)
    member = np.repeat([True, False], half)[:, None]
    return Shadows(
        np.broadcast_to(member, rows.shape),
        np.zeros(rows.shape[1], np.int32),  # no attack here asks for labels
        Signals(signals, np.zeros((2 * half, 0, signals.shape[2]), np.float16)),
    )


# For human eyes -----------------------------------------------------------------------


def render(rows: list[RatedAttack]) -> str:
    """Return the rows as two terminal tables and what must be known of them."""
    first = ["attack", "AUC [95%]", "over loss_threshold", "balanced accuracy"]
    second = ["attack", "threshold from", "FPR", "realised", "TPR [95%]"]
    rates, points = [], []
    for row in rows:
        accuracy = row.summary.accuracy
        cells = [f"{a.value:.4f} (from {a.chosen_on})" for a in accuracy]
        over = "-" if row.over is None else _estimate(row.over)
        rates.append([row.attack, _estimate(row.summary.auc), over, ", ".join(cells)])
        each = len(row.summary.operating) // len(accuracy)
        for i, point in enumerate(row.summary.operating):
            source = accuracy[i // each].chosen_on
            points.append([row.attack, source, *_point(point, i % each)])
    m, n = rows[0].summary.members, rows[0].summary.nonmembers
    counted = f"{m} scores of members, {n} of non-members"
    return "\n\n".join([counted, _drawn(first, rates), _drawn(second, points), NOTES])


def _drawn(header: list[str], rows: list[list[str]]) -> str:
    from rich import box
    from rich.table import Table

    from audit.report.terminal import render as drawn

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, header_style="")
    for row in rows:
        table.add_row(*row)
    return drawn(table)


NOTES = (
    "from shadows: chosen where an attacker can; from targets: optimistic.\n"
    "unavailable (n): fewer than 10 / FPR non-members.\n"
    "No epsilon: records of one model are not independent runs of one mechanism."
)


def _estimate(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"


def _point(point: roc.Operating | str, at: int) -> tuple[str, str, str]:
    nominal = f"{roc.FPRS[at]:.2%}"
    if isinstance(point, str):
        return nominal, "-", point
    tpr, fpr = point.tpr, point.fpr
    return (
        nominal,
        f"{fpr.value:.3%} ({fpr.k}/{fpr.n})",
        f"{tpr.value:.4f} [{tpr.low:.4f}, {tpr.high:.4f}] ({tpr.k}/{tpr.n})",
    )
