"""Membership rates of models trained elsewhere: `python -m audit membership PATH`.

Scores are rated as they are. Models are attacked by the suite's own plug-ins: the last
`targets` of them are the targets, the `calibration` before those choose thresholds, all
others are the attacker's. No epsilon is read into any of it: records of one model are
no independent runs, and nothing is known of a mechanism.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.cli import score_formats
from audit.cli.score_formats import Models, Scored
from audit.config import registry
from audit.engine.signals import Shadows, Signals
from audit.errors import UserError, did_you_mean
from audit.statistics import roc
from audit.statistics.intervals import Estimate
from audit.types import (
    Knowledge,
    Observation,
)

ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "loss_threshold": ("loss_threshold", {}),
    "attack_r": ("attack_r", {}),
    "lira": ("lira", {}),
    "lira, fixed variance": ("lira", {"variance": "fixed"}),
    "lira, offline": ("lira", {"mode": "offline"}),
    "lira, offline, fixed": ("lira", {"mode": "offline", "variance": "fixed"}),
}  # those that ask for no population
LEAST = 2  # attacker's models with a record, and without


class Asked(NamedTuple):
    """What `membership PATH [targets=1] [calibration=1]` asks for."""

    path: Path
    targets: int
    calibration: int


class Row(NamedTuple):
    """One attack."""

    attack: str
    summary: roc.Summary
    over: Estimate | None  # AUC minus that of loss_threshold, paired


def parse(words: list[str]) -> Asked:
    """Return what the command line asks for.

    Raises:
      UserError: naming the word that is wrong.
    """
    paths, counts = [], {"targets": 1, "calibration": 1}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            paths.append(word)
        elif name not in counts:
            raise UserError(f"unknown word {name!r}{did_you_mean(name, counts)}")
        elif not value.isdecimal() or (name == "targets" and int(value) == 0):
            raise UserError(
                f"{word}: a whole number is wanted, and one target at least"
            )
        else:
            counts[name] = int(value)
    if len(paths) != 1:
        raise UserError(
            f"membership of what? one .npz file or folder, got {len(paths)}: a file "
            f"holds {score_formats.LAYOUTS}"
        )
    return Asked(Path(paths[0]), **counts)


def rate(asked: Asked) -> list[Row]:
    """Read the file and rate every attack that applies.

    Raises:
      UserError: if the file cannot be used.
    """
    held = score_formats.read(asked.path)
    if isinstance(held, Scored):
        summary = roc.summarise(held.members, held.nonmembers, shadows=held.shadows)
        return [Row("scores", summary, None)]
    return _attack(held, asked)


def _attack(held: Models, asked: Asked) -> list[Row]:
    """Let every attack score the target models, fitted on the attacker's."""
    models = len(held.keep)
    own = models - asked.targets - asked.calibration
    if own < 1:
        raise UserError(
            f"{asked.path}: {models} models; {asked.targets} targets and "
            f"{asked.calibration} for thresholds leave none to the attacker"
        )
    parts = np.split(np.arange(models), [own, own + asked.calibration])
    references, calibration, targets = (
        Models(held.keep[p], held.signals[p], tuple(held.names[i] for i in p))
        for p in parts
    )
    knowledge = Knowledge(None, None, None, shadows=_halved(references, asked))  # type: ignore[arg-type]
    rows: list[Row] = []
    base: Any = None
    for label, (name, settings) in ATTACKS.items():
        attack = registry.find("attack", name)(None, **settings)
        state, _ = attack.fit(None, knowledge)
        on = [_groups(attack, state, part) for part in (targets, calibration)]
        shadows = on[1][0] if asked.calibration else None
        groups, clusters = on[0]
        summary = roc.summarise(*groups, shadows=shadows, clusters=clusters)
        over = None
        if base is not None:
            over = roc.auc_difference(groups, base, clusters=clusters)
        else:
            base = groups
        rows.append(Row(label, summary, over))
    return rows


def _groups(attack: Any, state: Any, part: Models) -> tuple[Any, Any]:
    """Return the scores of members and non-members, and which records they are of."""
    if not len(part.keep):
        return None, None
    scores = np.array(
        [
            attack.guess(state, None, Observation(signals=Signals(signals, None)))
            for signals in part.signals
        ]
    )
    ids = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    keep = part.keep
    return (scores[keep], scores[~keep]), (ids[keep], ids[~keep])


def _halved(held: Models, asked: Asked) -> Shadows:
    """Return as many models with every record as without, each record its own ones.

    Attacks take what a record's models say as two samples, so that which models they
    are may differ between records; what a record has too many of is left out.
    """
    keep = held.keep
    half = int(min(keep.sum(0).min(), (~keep).sum(0).min()))
    if half < LEAST:
        raise UserError(
            f"{asked.path}: some record is in, or out of, {half} of the attacker's "
            f"{len(keep)} models; at least {LEAST} each are needed"
        )
    order = np.argsort(~keep, 0, kind="stable")  # models with the record first
    rows = np.concatenate([order[:half], order[len(keep) - half :]])
    signals = np.take_along_axis(held.signals, rows[:, :, None], 0)
    member = np.repeat([True, False], half)[:, None]
    return Shadows(
        np.broadcast_to(member, rows.shape),
        np.zeros(rows.shape[1], np.int32),  # no attack here asks for labels
        Signals(signals, np.zeros((2 * half, 0, signals.shape[2]), np.float16)),
    )


# For human eyes -----------------------------------------------------------------------


def render(rows: list[Row]) -> str:
    """Return the rows as two terminal tables and what must be known of them."""
    from rich import box
    from rich.table import Table

    from audit.report.terminal import render as drawn

    look: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "header_style": ""}
    first, second = Table(**look), Table(**look)
    for header in ("attack", "AUC [95%]", "over loss_threshold", "balanced accuracy"):
        first.add_column(header)
    for header in ("attack", "threshold from", "FPR", "realised", "TPR [95%]"):
        second.add_column(header)
    for row in rows:
        seen = row.summary
        told = ", ".join(f"{a.value:.4f} (from {a.chosen_on})" for a in seen.accuracy)
        over = "-" if row.over is None else _estimate(row.over)
        first.add_row(row.attack, _estimate(seen.auc), over, told)
        sources = [a.chosen_on for a in seen.accuracy]
        each = len(seen.operating) // len(sources)
        for i, point in enumerate(seen.operating):
            second.add_row(row.attack, sources[i // each], *_point(point, i % each))
    m, n = rows[0].summary.members, rows[0].summary.nonmembers
    counted = f"{m} scores of members, {n} of non-members"
    return "\n\n".join([counted, drawn(first), drawn(second), SAID])


SAID = (
    "from shadows: chosen where an attacker can; from targets: optimistic.\n"
    "unavailable (n): fewer than 10 / FPR non-members.\n"
    "No epsilon: records of one model are not independent runs of one mechanism."
)


def _estimate(held: Estimate) -> str:
    return f"{held.value:.4f} [{held.low:.4f}, {held.high:.4f}]"


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
