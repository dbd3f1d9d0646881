"""The scorecard: every row of an audit with where it came from; files in and out.

A scorecard is plain data. Figures and tables are functions of it and of the arrays
beside it, so that they can be drawn again without running anything.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from audit.data import untrusted
from audit.engine import store as stores
from audit.engine.store import installed
from audit.errors import UserError
from audit.scorecard import portable, schema
from audit.scorecard.schema import VERSION, Number, Scorecard, TrialRow, from_json

# metric -> per-target errors on a card: the headline is their mean, or 1 minus that
ERRORS = {"mse": "mse", "success": "wrong"}
ROUNDING = 1e-5  # relative, of such a mean

__all__ = ["Scorecard", "from_json"]


def provenance(command: str, seconds: float, digest: str, code: str) -> dict[str, Any]:
    """Return where a scorecard comes from: command, code, versions, device."""
    import jax

    packages = "breachmark", "jax", "jaxlib", "flax", "optax", "numpy", "dp-accounting"
    device = jax.devices()[0]
    return {
        "command": portable.command(command),
        "scenario_digest": digest,
        "code": code,
        "seconds": round(seconds, 1),
        "git": _git(),
        "python": platform.python_version(),
        "versions": installed(*packages),
        "device": f"{device.platform}: {device.device_kind}, {len(jax.devices())}",
        "cpus": os.cpu_count(),
    }


def _git(here: Path | None = None) -> dict[str, Any] | None:
    """Return commit and dirty bit of the checkout the code runs from, if it is one.

    What stands under `results/` makes no result: a run before this one left it there.
    """
    git = "git", "-C", str(here or Path(__file__).resolve().parent)
    ask = functools.partial(
        subprocess.run, capture_output=True, text=True, timeout=5, check=True
    )
    try:
        commit = ask([*git, "rev-parse", "HEAD"]).stdout.strip()
        paths = ":/", ":(top,exclude)results"
        changes = ask([*git, "status", "--porcelain", "--", *paths]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def of_parts(*, arrays: dict[str, np.ndarray], **parts: Any) -> Scorecard:
    """Return the scorecard of an audit that has just run, its parts as nested data.

    Raises:
      UserError: if a part is not what `schema` says it is.
    """
    fields = {"schema": VERSION, **plain(parts, portable.portable)}
    return from_json(json.dumps(fields, allow_nan=False), "this run's card", arrays)


def to_json(card: Scorecard) -> str:
    """Return a scorecard as JSON; infinity and nan as strings, arrays left out."""
    fields = {k: v for k, v in card._asdict().items() if k != "arrays"}
    return json.dumps({"schema": VERSION, **plain(fields)}, indent=2, allow_nan=False)


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """Return nested data as JSON holds it: no arrays, no tuples, no infinity.

    `text` changes every text on the way.
    """
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_unset=True), text)
    if isinstance(value, dict):
        return {str(k): plain(v, text) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, text) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist(), text)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def save(card: Scorecard, folder: Path) -> None:
    """Write scorecard.json and scorecard.npz, each whole or not at all."""
    with replacing(folder / "scorecard.json") as path:  # first: it says whose folder
        path.write_text(to_json(card) + "\n")
    with replacing(folder / "scorecard.npz") as path, path.open("wb") as file:
        np.savez_compressed(file, **card.arrays)  # type: ignore[arg-type]


def load(folder: Path) -> Scorecard:
    """Read what `save` wrote.

    Raises:
      UserError: if there is none, or one of both files cannot be read.
    """
    card, path = schema.load(folder / "scorecard.json"), folder / "scorecard.npz"
    try:
        return card._replace(arrays=untrusted.arrays(path, schema.MOST_OF_ARRAYS))
    except untrusted.UNREADABLE as error:
        raise UserError(f"cannot read {path}: {error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which takes the place of `path` on success only.

    Raises:
      UserError: if the disk is full, or the folder cannot be written.
    """
    try:
        stores.remove_left_over(path.parent)
        temporary = stores.temporary(path)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def errors(card: Scorecard, trial: TrialRow) -> np.ndarray | None:
    """Return the errors a headline is the mean of, [targets]; None = not there.

    Arrays that another run left beside the card have another mean.
    """
    assert trial.result is not None
    headline = trial.result.headline
    name = f"{trial.defense}/{trial.attack}/{ERRORS.get(headline.metric)}"
    right = headline.better == "higher"
    return _averaging(card, name, headline.value, right=right)


def floor_errors(card: Scorecard) -> np.ndarray | None:
    """Return the floor's errors, [targets]; None as of `errors`."""
    return _averaging(card, "floor", card.floor.mse)


def _averaging(
    card: Scorecard, name: str, value: Number | None, *, right: bool = False
) -> np.ndarray | None:
    """Return an array whose mean, or 1 minus that, is the value; None = not there."""
    errors = card.arrays.get(name)
    if errors is None or errors.ndim != 1 or value is None:
        return None
    mean = float(errors.mean())
    mean = 1 - mean if right else mean
    return errors if math.isclose(mean, float(value), rel_tol=ROUNDING) else None
