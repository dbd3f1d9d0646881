"""The type of a data set, and the error for data that cannot be used."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.errors import UserError
from audit.types import Mixture


class DataError(UserError):
    """Data that are missing, damaged or too few; the text says what to do."""


class Dataset(NamedTuple):
    """Records with labels: images in [0, 1], or tables in their own units."""

    name: str
    x_train: np.ndarray  # [N, H, W, C] or [N, d] float32; one's own tables float64
    y_train: np.ndarray  # [N] int32, or float32 where labels are numbers
    x_test: np.ndarray | None  # the official test part, where there is one
    y_test: np.ndarray | None
    origin: str  # "AUDIT_DATA", "cache", "download", "embedded", or a file's name
    note: str  # one line for the scorecard
    columns: tuple[str, ...] = ()  # names of a table's columns; () = images
    prior: Mixture | None = None  # that the records were drawn from; None = not known
    private: bool = False  # whether its records stay out of cards and figures


def cache_folder() -> Path:
    """Return the folder of downloads and parsed files; AUDIT_CACHE overrides it."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get("AUDIT_CACHE") or user_cache_dir("breachmark"))


def unit(pixels: np.ndarray, most: int = 255) -> np.ndarray:
    """Return pixels 0 .. most as float32 in [0, 1]."""
    return (pixels / np.float32(most)).astype(np.float32)


def repeats(x: np.ndarray) -> int:
    """Return how many of the records [N, ...] are exact copies of an earlier one."""
    return len(x) - len({row.tobytes() for row in x})


def digest(*arrays: np.ndarray) -> str:
    """Return the sha256 of arrays with their types and shapes, in order."""
    sha256 = hashlib.sha256()
    for a in arrays:
        a = np.ascontiguousarray(a)
        sha256.update(f"{a.dtype}{a.shape}".encode())
        sha256.update(a.tobytes())
    return sha256.hexdigest()
