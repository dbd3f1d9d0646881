"""Scores and logits of models trained elsewhere: which files there are; reading them.

============================  ========================================================
what a file (.npz) may hold   meaning
============================  ========================================================
`members`, `nonmembers`       scores of one attack, high = member; [m], [n]
`scores`, `member`            the same in one array, with bits; [n], [n]
`keep`, `scores`              many models' log-odds of every record's label, and which
                              model was trained on which: [models, records(, queries)]
`keep`, `logits`, `labels`    the same from logits [models, records(, queries), classes]
============================  ========================================================

The first two may be doubled for shadow models, `shadow_members` and so on: thresholds
chosen there are deployable. A folder is the tree that the scripts of Carlini et al.
(2022) write: a sub-folder a model with `keep.npy` and `scores/*.npy` or `logits/*.npy`,
and `y_train.npy` beside them. Nothing is ever unpickled.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.errors import UserError


class Scored(NamedTuple):
    """Scores of one attack on models of one kind."""

    members: np.ndarray  # [m]
    nonmembers: np.ndarray  # [n]
    shadows: tuple[np.ndarray, np.ndarray] | None = None  # the same of shadow models


class Models(NamedTuple):
    """Many models, what they say of every record, and who was in which."""

    keep: np.ndarray  # [models, records] bool
    signals: np.ndarray  # [models, records, queries] log-odds of the own label, float16
    names: tuple[str, ...]  # [models]


LAYOUTS = (
    "members and nonmembers; scores and member; keep and scores; or keep, logits and "
    "labels"
)
KNOWN = {
    "members", "nonmembers", "shadow_members", "shadow_nonmembers",
    "scores", "member", "shadow_scores", "shadow_member", "keep", "logits", "labels",
}  # fmt: skip


def read(path: Path) -> Scored | Models:
    """Read scores or models from a file or a folder.

    Raises:
      UserError: naming the path, what is wrong with it and what is expected.
    """
    if path.is_dir():
        return _tree(path)
    if not path.exists():
        raise UserError(f"no such file or folder: {path}")
    if path.suffix != ".npz":
        raise UserError(f"{path}: an .npz file or a folder is expected")
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot be read as plain arrays: {error}") from None
    unknown = sorted(set(held) - KNOWN)
    if unknown:
        words = ", ".join(unknown)
        raise UserError(f"{path}: unknown arrays {words}; a file holds {LAYOUTS}")
    try:
        return _layout(held)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _layout(held: dict[str, np.ndarray]) -> Scored | Models:
    names = set(held)
    core = {n for n in names if not n.startswith("shadow_")}
    if core == {"members", "nonmembers"}:
        shadows = _pair(held, names - core, "shadow_members", "shadow_nonmembers")
        return Scored(_flat(held, "members"), _flat(held, "nonmembers"), shadows)
    if core == {"scores", "member"}:
        pair = _pair(held, names - core, "shadow_scores", "shadow_member")
        own = _by_bit(_flat(held, "scores"), held["member"], "member")
        if pair is None:
            return Scored(*own)
        bits = held["shadow_member"]
        return Scored(*own, _by_bit(pair[0], bits, "shadow_member"))
    if core == names and core == {"keep", "scores"}:
        return _models(held["keep"], held["scores"], "scores")
    if core == names and core == {"keep", "logits", "labels"}:
        odds = [_odds(of_one, held["labels"]) for of_one in held["logits"]]
        return _models(held["keep"], np.array(odds), "logits")
    found = ", ".join(sorted(names)) or "nothing"
    raise ValueError(f"holds {found}; a file holds {LAYOUTS}")


def _pair(
    held: dict[str, np.ndarray], extra: set[str], first: str, second: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the arrays of shadow models, if both or neither are there."""
    if not extra:
        return None
    if extra != {first, second}:
        raise ValueError(
            f"holds {', '.join(sorted(extra))}: {first} and {second} wanted"
        )
    return _flat(held, first), np.asarray(held[second]).ravel()


def _flat(held: dict[str, np.ndarray], name: str) -> np.ndarray:
    values = held[name]
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{name} is of type {values.dtype}, not numbers")
    if values.ndim != 1 or not values.size:
        raise ValueError(
            f"{name} has shape {values.shape}; one score a record is wanted"
        )
    if np.isnan(values.astype(float)).any():
        raise ValueError(f"{np.isnan(values).sum()} of {values.size} {name} are nan")
    return values.astype(float)


def _bits(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise ValueError(f"{name} holds other values than true and false")
    return values.astype(bool)


def _by_bit(
    scores: np.ndarray, member: np.ndarray, name: str
) -> tuple[np.ndarray, np.ndarray]:
    member = _bits(np.asarray(member), name).ravel()
    if member.size != scores.size:
        raise ValueError(f"{scores.size} scores, but {member.size} bits in {name}")
    if member.all() or not member.any():
        raise ValueError(f"{name} is the same for all: both kinds are needed")
    return scores[member], scores[~member]


def _odds(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return one model's log-odds [records, queries] of the labels, float16."""
    labels = np.asarray(labels).ravel()
    if logits.ndim < 2 or len(logits) != labels.size:
        raise ValueError(f"logits {logits.shape} of a model, but {labels.size} labels")
    k = logits.shape[-1]
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= k:
        raise ValueError(f"labels are not integers from 0 to {k - 1}")
    from scipy.special import logsumexp

    wide = np.asarray(logits, float).reshape(labels.size, -1, k)
    own = np.eye(k, dtype=bool)[labels][:, None]
    others = logsumexp(np.where(own, -np.inf, wide), -1)
    odds = np.where(own, wide, 0).sum(-1) - others
    largest = float(np.finfo(np.float16).max)
    return np.clip(odds, -largest, largest).astype(np.float16)


def _models(
    keep: np.ndarray, signals: np.ndarray, what: str, names: Any = ()
) -> Models:
    keep = _bits(np.asarray(keep), "keep")
    if keep.ndim != 2 or signals.shape[:2] != keep.shape or signals.ndim > 3:
        raise ValueError(
            f"keep has shape {keep.shape}, {what} {signals.shape}; [models, records] "
            f"and [models, records(, queries)] are wanted"
        )
    signals = signals.reshape(*keep.shape, -1)
    if signals.dtype.kind != "f" or np.isnan(signals).any():
        raise ValueError(f"{what} are not all numbers")
    if signals.dtype != np.float16:
        largest = float(np.finfo(np.float16).max)
        signals = np.clip(signals, -largest, largest).astype(np.float16)
    return Models(keep, signals, tuple(names) or tuple(map(str, range(len(keep)))))


def _tree(folder: Path) -> Models:
    """Read a folder of models; of several checkpoints of a model the last by name."""
    models = sorted(p.parent for p in folder.glob("*/keep.npy"))
    if not models:
        raise UserError(
            f"{folder}: no model in it; a sub-folder a model is expected, with "
            f"keep.npy and scores/*.npy or logits/*.npy"
        )
    keeps, signals = [], []
    for model in models:
        keeps.append(_array(model / "keep.npy"))
        signals.append(_signals(folder, model))
    shapes = {(k.shape, s.shape) for k, s in zip(keeps, signals, strict=True)}
    if len(shapes) > 1:
        raise UserError(f"{folder}: models differ in shape: {sorted(shapes)}")
    names = [m.name for m in models]
    try:
        return _models(np.array(keeps), np.array(signals), "scores", names)
    except ValueError as error:
        raise UserError(f"{folder}: {error}") from None


def _signals(folder: Path, model: Path) -> np.ndarray:
    """Return one model's log-odds, from its scores or else its logits."""
    scores, logits = (sorted((model / d).glob("*.npy")) for d in ("scores", "logits"))
    if scores:
        return _array(scores[-1])
    if not logits:
        raise UserError(f"{model}: neither scores/*.npy nor logits/*.npy")
    labels = folder / "y_train.npy"
    if not labels.exists():
        raise UserError(f"{model} has logits alone, and there is no {labels}")
    try:
        return _odds(_array(logits[-1]), _array(labels))
    except ValueError as error:
        raise UserError(f"{logits[-1]}: {error}") from None


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read as a plain array: {error}") from None
