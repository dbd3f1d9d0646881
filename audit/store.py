"""A content-addressed store of finished tiles: npz shards with a manifest each.

    <folder>/<key[:2]>/<key>/<name>.npz    the arrays
    <folder>/<key[:2]>/<key>/<name>.json   sha256 of the npz; written last

The key is a digest of everything that can change the arrays. Files are written under a
temporary name, synced and renamed, so that a killed run leaves whole shards or none. A
shard that does not match its manifest is rebuilt, never trusted.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.types import UserError


class StoreError(UserError):
    """The folder cannot be written; the text names it."""


class Store(NamedTuple):
    """A folder that was found writable."""

    folder: Path


def open_store(folder: Path) -> Store:
    """Make the folder and prove it can be written.

    Raises:
      StoreError: if it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(
            f"cannot write store={folder}: {error.strerror}; use another store=DIR"
        ) from None
    return Store(folder)


def digest(*parts: Any) -> str:
    """Return the sha256 of plain data, arrays and nestings of them.

    Order in a dict does not matter; 1, 1.0 and True are different.

    Raises:
      TypeError: for anything else, naming its type.
    """
    seen = hashlib.sha256()
    _feed(seen, parts)
    return seen.hexdigest()


def _feed(seen: Any, value: Any) -> None:
    if isinstance(value, dict):
        seen.update(f"dict{len(value)}".encode())
        for key in sorted(value):
            _feed(seen, key)
            _feed(seen, value[key])
    elif isinstance(value, (list, tuple)):
        seen.update(f"list{len(value)}".encode())
        for item in value:
            _feed(seen, item)
    elif value is None or isinstance(value, (bool, int, float, str)):
        seen.update(f"{type(value).__name__}:{value!r};".encode())
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.ascontiguousarray(np.asarray(value))
        if array.dtype == object:
            raise TypeError("cannot digest an array of objects")
        seen.update(f"array{array.dtype.str}{array.shape}".encode())
        seen.update(array.tobytes())
    else:
        raise TypeError(f"cannot digest a {type(value).__name__}")


def code_version(paths: Iterable[Path]) -> str:
    """Return a hash of what Python files do: comments and docstrings do not count."""
    seen = hashlib.sha256()
    for path in sorted(paths):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_text(body[0]):
                del body[0]
        seen.update(path.name.encode())
        seen.update(ast.dump(tree).encode())
    return seen.hexdigest()


def _is_text(node: ast.AST) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]


def put(store: Store, key: str, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Write one shard; writers of the same shard at the same time do no harm.

    Raises:
      StoreError: if the disk does not take it.
    """
    folder = _folder(store, key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".npz")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            _sync(file)
        seen = hashlib.sha256(Path(temporary).read_bytes()).hexdigest()
        os.replace(temporary, folder / f"{name}.npz")
        shapes = {k: [str(a.dtype), list(a.shape)] for k, a in arrays.items()}
        _write(folder / f"{name}.json", json.dumps({"sha256": seen, "arrays": shapes}))
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}") from None


def get(store: Store, key: str, name: str) -> dict[str, np.ndarray] | None:
    """Return a shard's arrays, or None if it is missing or damaged.

    A damaged shard is removed, so that the caller's rebuilding it is all that happens.
    """
    folder = _folder(store, key)
    shard, manifest = folder / f"{name}.npz", folder / f"{name}.json"
    try:
        said = json.loads(manifest.read_text())["sha256"]
        raw = shard.read_bytes()
        if hashlib.sha256(raw).hexdigest() == said:
            with np.load(io.BytesIO(raw), allow_pickle=False) as file:
                return {k: file[k] for k in file}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error):
        pass  # damaged, like a wrong sum: removed below and made again
    manifest.unlink(missing_ok=True)
    shard.unlink(missing_ok=True)
    return None


def _folder(store: Store, key: str) -> Path:
    return store.folder / key[:2] / key


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=".", suffix=path.suffix
    )
    with os.fdopen(handle, "w") as file:
        file.write(text)
        _sync(file)
    os.replace(temporary, path)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
