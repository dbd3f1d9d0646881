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
(2022) write: one sub-folder per model with `keep.npy` and `scores/*.npy` or
`logits/*.npy`, and `y_train.npy` beside them. Names are read in natural order, so that
`experiment-9_18` comes before `experiment-17_18`. Nothing is ever unpickled, and what
an array says of its size is checked before anything of it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.config.schema import LARGE
from audit.data import untrusted
from audit.errors import UserError


class Scored(NamedTuple):
    """Scores of one attack on models of one kind."""

    members: np.ndarray  # [m]
    nonmembers: np.ndarray  # [n]
    shadows: tuple[np.ndarray, np.ndarray] | None = None  # the same of shadow models


class Models(NamedTuple):
    """Many models, what they say of every record, and who was in which."""

    keep: np.ndarray  # [models, records] bool
    signals: np.ndarray  # [models, records, queries] log-odds of labels, float32
    names: tuple[str, ...]  # [models]


LAYOUTS = (
    "members and nonmembers; scores and member; keep and scores; or keep, logits and "
    "labels"
)
ARRAYS = {
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
        arrays = untrusted.arrays(path)
    except untrusted.UNREADABLE as error:
        raise UserError(f"{path}: cannot be read as plain arrays: {error}") from None
    if wrong := untrusted.misnamed(arrays, (), ARRAYS):
        raise UserError(f"{path} {wrong}; a file holds {LAYOUTS}")
    try:
        return _layout(arrays)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _layout(arrays: dict[str, np.ndarray]) -> Scored | Models:
    """Return what a file's arrays are by their names.

    Raises:
      ValueError: if they are none of the layouts, or an array is not as it says.
    """
    names = set(arrays)
    core = {n for n in names if not n.startswith("shadow_")}
    for first, second in (("members", "nonmembers"), ("scores", "member")):
        if core == {first, second}:
            shadows = {f"shadow_{first}", f"shadow_{second}"}
            if names - core not in (set(), shadows):
                raise ValueError(
                    f"holds {', '.join(sorted(names - core))}: shadow_{first} and "
                    f"shadow_{second} wanted"
                )
            of_shadows = _groups(arrays, "shadow_", first) if names > core else None
            return Scored(*_groups(arrays, "", first), of_shadows)
    if names == {"keep", "scores"}:
        return _models(arrays["keep"], arrays["scores"], "scores")
    if names == {"keep", "logits", "labels"}:
        if arrays["logits"].ndim < 3:
            raise ValueError(
                f"logits has shape {arrays['logits'].shape}; [models, records"
                f"(, queries), classes] is wanted"
            )
        odds = [_odds(of_model, arrays["labels"]) for of_model in arrays["logits"]]
        return _models(arrays["keep"], np.array(odds), "logits")
    listed = ", ".join(sorted(names)) or "nothing"
    raise ValueError(f"holds {listed}; a file holds {LAYOUTS}")


def _groups(
    arrays: dict[str, np.ndarray], prefix: str, layout: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of members and of non-members, from either layout."""
    if layout == "members":
        members, nonmembers = (f"{prefix}{name}" for name in ("members", "nonmembers"))
        return _flat(arrays, members), _flat(arrays, nonmembers)
    scores, name = _flat(arrays, f"{prefix}scores"), f"{prefix}member"
    member = _bits(arrays[name], name).ravel()
    if member.size != scores.size:
        raise ValueError(f"{scores.size} scores, but {member.size} bits in {name}")
    if member.all() or not member.any():
        raise ValueError(f"{name} is the same for all: both kinds are needed")
    return scores[member], scores[~member]


def _flat(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    values = arrays[name]
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{name} is of type {values.dtype}, not numbers")
    if values.ndim != 1 or not values.size:
        raise ValueError(
            f"{name} has shape {values.shape}; one score per record is wanted"
        )
    if np.isnan(values.astype(float)).any():
        raise ValueError(f"{np.isnan(values).sum()} of {values.size} {name} are nan")
    return values.astype(float)


def _bits(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise ValueError(f"{name} holds other values than true and false")
    return values.astype(bool)


def _odds(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return one model's log-odds [records, queries] of the labels, float32."""
    labels = np.asarray(labels).ravel()
    if logits.dtype.kind not in "fiu":
        raise ValueError(f"logits are of type {logits.dtype}, not numbers")
    if logits.ndim < 2 or len(logits) != labels.size:
        raise ValueError(f"logits {logits.shape} of a model, but {labels.size} labels")
    k = logits.shape[-1]
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= k:
        raise ValueError(f"labels are not integers from 0 to {k - 1}")
    from scipy.special import logsumexp

    wide = np.asarray(logits, float).reshape(labels.size, -1, k)
    label = np.eye(k, dtype=bool)[labels][:, None]
    others = logsumexp(np.where(label, -np.inf, wide), -1)
    with np.errstate(over="ignore"):  # too large ones are refused as infinite
        return (np.where(label, wide, 0).sum(-1) - others).astype(np.float32)


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
    if signals.dtype.kind != "f":
        raise ValueError(f"{what} are of type {signals.dtype}, not floating-point")
    if not signals.size or np.isnan(signals).any():
        raise ValueError(f"{np.isnan(signals).sum()} of {signals.size} {what} are nan")
    if (largest := float(abs(signals).max())) > LARGE:
        raise ValueError(
            f"{what} as large as {largest:.3g} are no log-odds: at most {LARGE:g}"
        )
    names = tuple(names) or tuple(map(str, range(len(keep))))
    return Models(keep, signals.astype(np.float32), names)


def _tree(folder: Path) -> Models:
    """Read a folder of models; of several checkpoints of a model the last by name."""
    models = natural(p.parent for p in folder.glob("*/keep.npy"))
    if not models:
        raise UserError(
            f"{folder}: no model in it; one sub-folder per model is expected, "
            f"with keep.npy and scores/*.npy or logits/*.npy"
        )
    keeps = [_array(model / "keep.npy") for model in models]
    signals = [_signals(folder, model) for model in models]
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
    scores, logits = (natural((model / d).glob("*.npy")) for d in ("scores", "logits"))
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


def natural(paths: Iterable[Path]) -> list[Path]:
    """Return paths sorted by name, runs of digits in a name as numbers."""

    def key(path: Path) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", path.name)
        return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]

    return sorted(paths, key=key)


def _array(path: Path) -> np.ndarray:
    try:
        size = path.stat().st_size
        untrusted.check_memory(size)
        with path.open("rb") as stream:
            return untrusted.array(stream, size, path.name)
    except untrusted.UNREADABLE as error:
        raise UserError(f"{path}: cannot be read as a plain array: {error}") from None
