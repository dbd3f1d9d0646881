"""The scorecard: every row of an audit with where it came from; JSON in and out.

A scorecard is plain data. Figures and tables are functions of it and of the arrays
beside it, so that they can be drawn again without running anything.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SCHEMA = 1


class Scorecard(NamedTuple):
    """One audit."""

    scenario: dict[str, Any]  # resolved: everything that can change a number
    provenance: dict[str, Any]
    data: dict[str, Any]  # name, origin, digest, note, sizes of the splits
    floor: dict[str, Any]  # mse and se of the attacker who ignores the release
    defenses: dict[str, Any]  # label -> settings, utility, dfil, bounds, epsilon
    trials: list[dict[str, Any]]  # one a (defense, attack): ok, skipped or failed
    arrays: dict[str, np.ndarray]  # per-target values; saved beside the JSON


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
        "versions": {p: _version(p) for p in packages},
        "device": f"{device.platform}: {device.device_kind}, {len(jax.devices())}",
        "cpus": os.cpu_count(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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


def to_json(card: Scorecard) -> str:
    """Return a scorecard as JSON; infinity and nan as strings, arrays left out."""
    fields = {k: v for k, v in card._asdict().items() if k != "arrays"}
    return json.dumps({"schema": SCHEMA, **_plain(fields)}, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(text: str, arrays: dict[str, np.ndarray] | None = None) -> Scorecard:
    """Read a scorecard; "inf" and "nan" stay strings where JSON has no number.

    Raises:
      ValueError: if it was written by another schema.
    """
    fields = json.loads(text)
    schema = fields.pop("schema", None)
    if schema != SCHEMA:
        raise ValueError(f"scorecard schema {schema}, this version reads {SCHEMA}")
    return Scorecard(**fields, arrays=arrays or {})


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
    return from_json((folder / "scorecard.json").read_text(), kept)


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
