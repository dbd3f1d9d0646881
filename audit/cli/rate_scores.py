"""Membership rates of models trained elsewhere: `python -m audit membership PATH`.

Scores are rated as they are. Models are attacked by the suite's own plug-ins, every
model in turn or one by its name: the `calibration` models after it, in a circle, choose
its thresholds, and all others are the attacker's. No epsilon is read into any of it:
records of one model are no independent runs, and nothing is known of a mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.cli import score_formats
from audit.cli.score_formats import Models, Scored
from audit.config import registry
from audit.data.dataset import digest
from audit.engine.signals import Shadows, Signals
from audit.errors import UserError, counted
from audit.games import membership_rates
from audit.scorecard.flags import Flag
from audit.statistics import intervals, roc
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
    curve: roc.Roc | None = None
    plug_in: str = "scores"  # what scored; "scores" = they were given
    settings: dict[str, Any] = {}  # noqa: RUF012


class Rating(NamedTuple):
    """All attacks on the models of one path."""

    targets: tuple[str, ...]  # names of the models attacked; () = scores as they are
    attacks: list[RatedAttack]
    digest: str = ""  # sha256 of the arrays that were read
    records: int = 0
    models: int = 0


def flags(row: RatedAttack, rating: Rating) -> list[Flag]:
    """Return what must be known before an attack's rates are believed."""
    auc = row.summary.auc
    se = intervals.standard_error(*auc)
    return membership_rates.sign_flags(auc.value, se, rating.records)


def calibration_models(typed: str) -> int:
    """Read how many models choose thresholds.

    Raises:
      UserError: if that is no whole number.
    """
    if not typed.isdecimal() or len(typed) > 6:
        raise UserError(f"calibration={typed}: a whole number of models is wanted")
    return int(typed)


def rate(path: Path, target: str | None = None, calibration: int = 1) -> Rating:
    """Read a file or folder and rate every attack that applies.

    Args:
      path: what `score_formats.read` takes.
      target: the name of the model that is attacked; None = every model in turn, their
        scores pooled.
      calibration: how many models choose thresholds. Where there are scores, not read.

    Raises:
      UserError: if the file cannot be used, or holds no such model, or none at all.
    """
    content = score_formats.read(path)
    if isinstance(content, Scored):
        if target is not None:
            raise UserError(f"target={target}: {path} holds scores, and no models")
        groups, shadows = (content.members, content.nonmembers), content.shadows
        summary = roc.summarise(*groups, shadows=shadows)
        rated = RatedAttack("scores", summary, None, roc.roc(*groups))
        arrays = (*groups, *(shadows or ()))
        return Rating((), [rated], digest(*arrays), sum(map(len, groups)))
    count = len(content.keep)
    if count - 1 - calibration < 1:
        raise UserError(
            f"{path}: {counted(count, 'model')}; one target and {calibration} for "
            f"thresholds leave none to the attacker"
        )
    if target is None:
        chosen = range(count)
    elif target in content.names:
        chosen = range((i := content.names.index(target)), i + 1)
    else:
        raise UserError(
            f"{path}: no model {target!r}; there are {listed(content.names)}"
        )
    return Rating(
        tuple(content.names[i] for i in chosen),
        _attack(content, chosen, calibration),
        digest(content.keep, content.signals),
        content.keep.shape[1],
        count,
    )


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many there are."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _attack(
    models: Models, chosen: Sequence[int], calibration: int
) -> list[RatedAttack]:
    """Let every attack score the target models, each with an attacker of its own.

    Args:
      models: all of them, in a circle.
      chosen: which are targets.
      calibration: how many after a target choose its thresholds; the rest of the circle
        is its attacker's.
    """
    attacks = {
        label: registry.find("attack", name)(None, **settings)
        for label, (name, settings) in ATTACKS.items()
    }
    scored: dict[str, list[Any]] = {label: [] for label in ATTACKS}
    calibrated: dict[str, list[Any]] = {label: [] for label in ATTACKS}
    circle = np.arange(len(models.keep))
    for i in chosen:  # one after the other: each has a copy of nearly all models
        parts = np.split(np.roll(circle, -i), [1, 1 + calibration])
        target, after, others = (
            Models(models.keep[part], models.signals[part], ()) for part in parts
        )
        knowledge = Knowledge(None, None, None, shadows=_halved(others))  # type: ignore[arg-type]
        for label, attack in attacks.items():
            state, _ = attack.fit(None, knowledge)
            scored[label].append(_groups(attack, state, target))
            if calibration:
                calibrated[label].append(_groups(attack, state, after)[0])
    rows: list[RatedAttack] = []
    base: Any = None
    for label, (name, settings) in ATTACKS.items():
        groups, records = _pooled(scored[label])
        summary = roc.summarise(*groups, clusters=records)
        if calibration:
            each = [both for both, _ in scored[label]]
            summary = _with_shadows(summary, each, calibrated[label])
        base = base or groups
        over = roc.auc_difference(groups, base, clusters=records) if rows else None
        curve = roc.roc(*groups)
        rows.append(RatedAttack(label, summary, over, curve, name, settings))
    return rows


def _with_shadows(
    summary: roc.Summary, targets: list[Any], shadows: list[Any]
) -> roc.Summary:
    """Add the rates at thresholds from shadows, of each target from its own.

    A threshold from all targets' calibration models would be one from the targets, for
    each of these models is a target too. The balanced accuracy is the targets' mean.

    Args:
      summary: of all targets' scores together.
      targets: of every target: its scores of members, and of others.
      shadows: the same of its calibration models.
    """
    pairs = list(zip(targets, shadows, strict=True))
    accuracies = [roc.balanced_accuracy(*t, shadows=s) for t, s in pairs]
    cuts = tuple(np.ravel([a.threshold for a in accuracies]).tolist())
    value = float(np.mean([a.value for a in accuracies]))
    rates = [
        roc.of_models([roc.operating(t[0], t[1], fpr, shadows=s[1]) for t, s in pairs])
        for fpr in roc.FPRS
    ]
    return summary._replace(
        accuracy=(roc.Accuracy(value, "shadows", cuts), *summary.accuracy),
        operating=(*rates, *summary.operating),
    )


def _pooled(each: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Concatenate the members and the non-members of several models."""
    groups, records = zip(*each, strict=True)
    return (
        tuple(np.concatenate(kind) for kind in zip(*groups, strict=True)),
        tuple(np.concatenate(kind) for kind in zip(*records, strict=True)),
    )


def _groups(attack: Any, state: Any, models: Models) -> tuple[Any, Any]:
    """Return the scores of members and non-members, and which records they are of."""
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
    members = keep.sum(0)
    fewest = np.minimum(members, len(keep) - members)
    half = int(fewest.min())
    if half < LEAST:
        record = int(fewest.argmin())
        raise UserError(
            f"{members[record]} of the attacker's {len(keep)} models were trained with "
            f"record {record} of keep, and {len(keep) - members[record]} without it; "
            f"at least {LEAST} of each are needed: give more models"
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


def render(rating: Rating) -> str:
    """Return the rows as two terminal tables and what must be known of them."""
    rows = rating.attacks
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
    if rating.targets:
        which = "target model" if len(rating.targets) == 1 else "target models in turn"
        counted = f"{which}: {listed(rating.targets)}\n{counted}"
    raised = [
        f"flag {flag.name}: {row.attack}: {flag.text}"
        for row in rows
        for flag in flags(row, rating)
    ]
    notes = "\n".join([*raised, NOTES])
    return "\n\n".join([counted, _drawn(first, rates), _drawn(second, points), notes])


def _drawn(header: list[str], rows: list[list[str]]) -> str:
    from rich import box
    from rich.table import Table

    from audit.report.terminal import render as drawn

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, header_style="")
    for row in rows:
        table.add_row(*row)
    return drawn(table)


NOTES = (
    "95%: over records, given these models; other models would differ by more.\n"
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
