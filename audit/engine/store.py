"""A content-addressed store of finished tiles: npz shards with a manifest each.

    <folder>/<key[:2]>/<key>/<name>.npz    the arrays
    <folder>/<key[:2]>/<key>/<name>.json   sha256 of the npz, key, name; written last
    <folder>/<key[:2]>/<key>/key.json      the parts of the key, for people

The key is a digest of everything that can change the arrays. Files are written under a
temporary name, synced and renamed, so that a killed run leaves whole shards or none. A
shard that does not match its manifest is rebuilt, never trusted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import platform
import re
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.errors import UserError

ROOM = 1_000_000  # bytes, of a card with its page
DESCRIPTION = "key"  # the one name no shard may have
HOST = platform.node().replace(".", "-") or "here"
TEMPORARY = re.compile(r"\..*\.(?P<host>[^.]+)\.(?P<pid>\d+)\.[0-9a-f]+\.tmp(\.\w+)?")
# what reading a damaged shard raises
BROKEN = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RecursionError,  # of JSON that is nested too deeply
    zipfile.BadZipFile,
)
VISIBLE = "[!.]*"  # any name but that of a temporary file


def _ignore(problem: str) -> None:
    del problem


class Store(NamedTuple):
    """A folder that can be written."""

    folder: Path
    # called with a sentence per damaged shard, and per shard that finds no room
    on_problem: Callable[[str], None] = _ignore


def open_store(folder: Path, on_problem: Callable[[str], None] = _ignore) -> Store:
    """Make the folder if it does not exist, and check that it can be written.

    Raises:
      UserError: if the folder cannot be written.
    """
    make_writable(folder, "store")
    return Store(folder, on_problem)


def make_writable(folder: Path, word: str) -> None:
    """Make a folder and prove that a card fits there.

    Raises:
      UserError: if none does; the text names the folder as `word`=FOLDER.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
    except (OSError, ValueError) as error:  # a name may hold what no path does
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot write {word}={folder}: {why}; use another {word}=DIR"
        ) from None


# Keys ---------------------------------------------------------------------------------


def digest(*parts: Any) -> str:
    """Return the sha256 of plain data, arrays, typed keys, dataclasses and nestings.

    Order in a dict does not matter; 1, 1.0 and True are different. TypeError names the
    type of anything else.
    """
    sha = hashlib.sha256()
    _feed(sha, parts)
    return sha.hexdigest()


def _feed(sha: Any, value: Any) -> None:
    if isinstance(value, dict):
        sha.update(f"dict{len(value)}".encode())
        for key in sorted(value, key=lambda k: (type(k).__name__, str(k))):
            _feed(sha, key)
            _feed(sha, value[key])
    elif isinstance(value, (list, tuple)):
        sha.update(f"list{len(value)}".encode())
        for item in value:
            _feed(sha, item)
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        _feed_array(sha, value)  # before the scalars: np.float64 is a float, too
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed(sha, {type(value).__name__: dataclasses.asdict(value)})
    elif value is None or isinstance(value, (bool, int, float, str)):
        sha.update(f"{type(value).__name__}:{value!r};".encode())
    else:
        raise TypeError(f"cannot digest a {type(value).__name__}")


def _feed_array(sha: Any, value: Any) -> None:
    """Feed dtype, shape and bytes; the full dtype, as bfloat16 has no short name."""
    if not isinstance(value.dtype, np.dtype):
        dtype, value = value.dtype, _key_data(value)
        sha.update(f"{dtype}".encode())  # the generator
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"cannot digest an array of {array.dtype}")
    sha.update(f"array{array.dtype!r}{array.shape}".encode())
    sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # no copy


def _key_data(value: Any) -> Any:
    import jax  # here: the command line digests settings without importing JAX

    if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise TypeError(f"cannot digest a {type(value).__name__}")
    return jax.random.key_data(value)


# Shards -------------------------------------------------------------------------------


def put(store: Store, key: str, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Write one shard; two processes may write the same shard at once.

    One that cannot be written is reported by `store.on_problem` and not kept.

    Raises:
      TypeError: for an array that an npz file cannot represent.
    """
    shard, manifest = _paths(store, key, name)
    raw = _npz(arrays)
    description = {
        "sha256": hashlib.sha256(raw).hexdigest(),
        "key": key,
        "name": name,
        "arrays": {k: [str(a.dtype), list(a.shape)] for k, a in arrays.items()},
        "made_by": versions(),
    }
    if _write(store, shard, raw):
        _write(store, manifest, json.dumps(description).encode())


def get(store: Store, key: str, name: str) -> dict[str, np.ndarray] | None:
    """Return a shard's arrays, or None if it is missing or damaged.

    A damaged shard is removed and reported by `store.on_problem`; the caller computes
    it again.
    """
    shard, manifest = _paths(store, key, name)
    try:
        return _read(shard, manifest)
    except FileNotFoundError:
        return None  # never finished, or removed
    except OSError as error:  # may be temporary: the shard stays
        store.on_problem(f"cannot read {shard}: {error.strerror}; made again")
        return None
    except BROKEN as error:
        store.on_problem(f"{shard} is damaged ({error}); made again")
    remove(store, key, name)  # the next `put` replaces what could not be removed
    return None


def names(store: Store, key: str) -> list[str]:
    """Return the names of the shards of a key that were finished, sorted."""
    manifests = (p.stem for p in _folder(store, key).glob(f"{VISIBLE}.json"))
    return sorted(name for name in manifests if name != DESCRIPTION)


def shards(folder: Path) -> list[Path]:
    """Return the npz files of a key, also one of which the manifest alone is there."""
    files = (p for kind in ("npz", "json") for p in folder.glob(f"{VISIBLE}.{kind}"))
    return sorted({p.with_suffix(".npz") for p in files if p.stem != DESCRIPTION})


def remove(store: Store, key: str, name: str) -> None:
    """Remove a shard, whether or not it is there."""
    shard, manifest = _paths(store, key, name)
    with contextlib.suppress(OSError):
        manifest.unlink(missing_ok=True)  # first: without it the shard is not finished
        shard.unlink(missing_ok=True)


def damage(shard: Path) -> str | None:
    """Return why a shard would be made again, or None if it is whole."""
    manifest = shard.with_suffix(".json")
    try:
        _read(shard, manifest)
    except FileNotFoundError:
        # a killed run leaves arrays without a manifest, never the other way round
        return "its arrays are gone" if manifest.exists() else "never finished"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except BROKEN as error:
        return str(error)
    return None


def keys(folder: Path) -> list[Path]:
    """Return the folder of every key of a store."""
    return sorted(p for p in folder.glob("??/*") if p.is_dir() and len(p.name) == 64)


def temporary(path: Path) -> Path:
    """Return a name that no other writer of `path` has, in its folder, of its kind."""
    unique = f"{HOST}.{os.getpid()}.{os.urandom(8).hex()}"
    return path.with_name(f".{path.name}.{unique}.tmp{path.suffix}")


def left_over(folder: Path) -> list[Path]:
    """Return temporary files of a folder that no process will rename any more.

    Their name says which process of which machine wrote them. What another machine
    wrote counts after a day.
    """
    paths = []
    for path in folder.glob(".*.tmp*"):
        writer = TEMPORARY.fullmatch(path.name)
        if writer is None:
            continue
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            old = path.stat().st_mtime < time.time() - 24 * 60 * 60
            if _gone(int(writer["pid"])) if writer["host"] == HOST else old:
                paths.append(path)
    return paths


def remove_left_over(folder: Path) -> None:
    """Remove what killed processes left in a folder."""
    for path in left_over(folder):
        with contextlib.suppress(OSError):
            path.unlink()


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def describe(store: Store, key: str, made_of: dict[str, Any]) -> None:
    """Write the parts of a key once, for people to read, where there is room.

    Temporary files that a killed run left under this key are removed.
    """
    remove_left_over(_folder(store, key))
    path = _folder(store, key) / f"{DESCRIPTION}.json"
    if not path.exists():
        _write(store, path, json.dumps(made_of, indent=2, default=_in_words).encode())


def _in_words(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)} {digest(value)[:16]}"
    return str(value)


def _folder(store: Store, key: str) -> Path:
    return store.folder / key[:2] / key


def _paths(store: Store, key: str, name: str) -> tuple[Path, Path]:
    if name == DESCRIPTION:
        raise ValueError(
            f"no shard may be called {name!r}: {name}.json says what it is"
        )
    folder = _folder(store, key)
    return folder / f"{name}.npz", folder / f"{name}.json"


def _read(shard: Path, manifest: Path) -> dict[str, np.ndarray]:
    description = json.loads(manifest.read_bytes())
    expected = description["sha256"]
    # a manifest of earlier code does not say whose it is
    for word, here in (("key", shard.parent.name), ("name", shard.stem)):
        if (stated := description.get(word, here)) != here:
            raise ValueError(f"the manifest is of the {word} {stated!s:.16}")
    raw = shard.read_bytes()
    sha = hashlib.sha256(raw).hexdigest()
    if sha != expected:
        raise ValueError(f"sha256 {sha[:16]}..., the manifest says {expected!s:.16}...")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of an npz file: the same for the same arrays, never a pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            # bfloat16 has no name in the format: it would come back as raw bytes
            if array.dtype.hasobject or np.dtype(array.dtype.str) != array.dtype:
                raise TypeError(f"cannot store {name!r}: npz cannot hold {array.dtype}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def _write(store: Store, path: Path, raw: bytes) -> bool:
    """Write a file whole or not at all, first under a temporary name."""
    hidden = temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with hidden.open("xb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
    except OSError as error:
        problem = f"cannot write store={store.folder}: {error.strerror}"
        store.on_problem(f"{problem}; runs are not kept there, and the audit goes on")
        return False
    return True


def installed(*packages: str) -> dict[str, str | None]:
    """Return the versions of packages; None where one is not installed."""
    result: dict[str, str | None] = dict.fromkeys(packages)
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            result[package] = metadata.version(package)
    return result


@functools.cache
def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that results depend on."""
    packages = ("breachmark", "jax", "jaxlib", "flax", "optax", "numpy")
    return {"python": platform.python_version(), **installed(*packages)}
