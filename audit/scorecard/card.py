"""The scorecard: every row of an audit with where it came from; files in and out.

A scorecard is plain data. Figures and tables are functions of it and of the arrays
beside it, so that they can be drawn again without running anything.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from audit.engine.store import installed
from audit.scorecard.schema import VERSION, Scorecard, from_json

__all__ = ["Scorecard", "from_json"]


def provenance(command: str, seconds: float, digest: str, code: str) -> dict[str, Any]:
    """Return where a scorecard comes from: command, code, versions, device."""
    import jax

    packages = (
        "breachmark",
        "jax",
        "jaxlib",
        "flax",
        "optax",
        "numpy",
        "dp-accounting",
    )
    device = jax.devices()[0]
    return {
        "command": command,
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
    here = here or Path(__file__).resolve().parent

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words],
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = ask("status", "--porcelain", "--", ":/", ":(top,exclude)results")
    return {"commit": commit, "dirty": bool(changed)}


def of_parts(*, arrays: dict[str, np.ndarray], **parts: Any) -> Scorecard:
    """Return the scorecard of an audit that has just run.

    Args:
      arrays: per-target values.
      **parts: the other fields of `Scorecard` as nested data.

    Raises:
      UserError: if a part is not what `schema` says it is.
    """
    text = json.dumps({"schema": VERSION, **plain(parts)}, allow_nan=False)
    return from_json(text, "this run's card", arrays)


def to_json(card: Scorecard) -> str:
    """Return a scorecard as JSON; infinity and nan as strings, arrays left out."""
    fields = {k: v for k, v in card._asdict().items() if k != "arrays"}
    return json.dumps({"schema": VERSION, **plain(fields)}, indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """Return nested data as JSON holds it: no arrays, no tuples, no infinity."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_unset=True))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def save(card: Scorecard, folder: Path) -> None:
    """Write scorecard.json and scorecard.npz, each whole or not at all."""
    with replacing(folder / "scorecard.npz") as path, path.open("wb") as file:
        np.savez_compressed(file, **card.arrays)  # type: ignore[arg-type]
    with replacing(folder / "scorecard.json") as path:
        path.write_text(to_json(card) + "\n")


def load(folder: Path) -> Scorecard:
    """Read what `save` wrote."""
    with np.load(folder / "scorecard.npz", allow_pickle=False) as arrays:
        kept = {k: arrays[k] for k in arrays}
    path = folder / "scorecard.json"
    return from_json(path.read_text(), str(path), kept)


class replacing:
    """Context of a temporary path that takes the place of `path` on success only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        handle, name = tempfile.mkstemp(
            dir=self.path.parent, prefix=".", suffix=self.path.suffix
        )
        os.close(handle)
        self.temporary = Path(name)
        return self.temporary

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            os.chmod(self.temporary, 0o644)
            os.replace(self.temporary, self.path)
        else:
            self.temporary.unlink(missing_ok=True)
