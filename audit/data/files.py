"""Data sets read from files: AUDIT_DATA, the cache, or a checked download."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from audit.data.dataset import DataError, Dataset, cache_folder, unit

IDX = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}
# what reading a damaged file of any kind may raise
UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
OFFICIAL = {  # sha256 of each file of IDX, in order
    "mnist": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
SHA256 = {
    f"{folder}/{file}": sha
    for folder, each in OFFICIAL.items()
    for file, sha in zip(IDX.values(), each, strict=True)
}


def locate(names: Sequence[str]) -> tuple[Path, str] | None:
    """Return the folder that holds all these files, and its `Dataset.origin`."""
    places = [(cache_folder(), "cache")]
    if user := os.environ.get("AUDIT_DATA"):
        if not Path(user).is_dir():
            raise DataError(f"AUDIT_DATA={user} is not a folder")
        places.insert(0, (Path(user), "AUDIT_DATA"))
    for folder, origin in places:
        if all((folder / name).is_file() for name in names):
            return folder, origin
    return None


def _fetch(names: Sequence[str], address: str, name: str) -> Path:
    """Download files into the cache and check them; fail fast without a network."""
    import pooch

    host = address.split("/")[2]
    where = f"put the files into the folder AUDIT_DATA names, or into {cache_folder()}"
    try:
        socket.create_connection((host, 443), timeout=1).close()
    except OSError as error:
        raise DataError(
            f"{name} is not on this machine and {host} cannot be reached ({error}); "
            f"{where} as {', '.join(names)}"
        ) from None
    logger = pooch.get_logger()  # its errors are raised anyway
    before, logger.disabled = logger.disabled, True
    try:
        for file in names:
            folder, leaf = cache_folder() / Path(file).parent, Path(file).name
            pooch.retrieve(address + leaf, f"sha256:{SHA256[file]}", leaf, folder)
    except Exception as error:
        raise DataError(f"cannot download {file}: {error}; {where}") from None
    finally:
        logger.disabled = before
    return cache_folder()


def read_idx(path: Path) -> np.ndarray:
    """Read one gzipped idx file of unsigned bytes.

    Raises:
      DataError: if the file is truncated, damaged or of another format.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
        rank = raw[3]
        shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
        if raw[:3] != b"\0\0\x08":
            raise ValueError("not an idx file of bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (*UNREADABLE, IndexError, struct.error) as error:
        raise DataError(
            f"{path} is damaged ({error}); remove it and run again, or fetch it anew"
        ) from None


def idx_files(folder: str) -> list[str]:
    """Return the four files of a set in MNIST's format."""
    return [f"{folder}/{file}" for file in IDX.values()]


def load_idx(name: str, folder: str, address: str) -> Dataset:
    """Load a set in MNIST's format; outside AUDIT_DATA only the official files.

    Raises:
      DataError: if files are missing or damaged, or must be official and are not.
    """
    local = locate(idx_files(folder))
    if local is None:
        local = _fetch(idx_files(folder), address, name), "download"
    place, origin = local
    parts = {k: read_idx(place / folder / file) for k, file in IDX.items()}
    for file in idx_files(folder) if origin != "AUDIT_DATA" else ():
        sha256 = hashlib.sha256((place / file).read_bytes()).hexdigest()
        if sha256 != SHA256[file]:
            raise DataError(
                f"{place / file} is not the official file (sha256 {sha256[:12]}..., "
                f"{SHA256[file][:12]}... expected): delete it and run again; files of "
                "your own belong into the folder AUDIT_DATA names"
            )
    for part in ("train", "test"):
        x, y = parts[f"x_{part}"], parts[f"y_{part}"]
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise DataError(
                f"{place / folder}: {part} has images {x.shape} and labels {y.shape}"
            )
    x, x_test = (unit(parts[k])[..., None] for k in ("x_train", "x_test"))
    y, y_test = (parts[k].astype(np.int32) for k in ("y_train", "y_test"))
    return Dataset(name, x, y, x_test, y_test, origin, "the official files")


def _sheet(path: Path, side: int = 32) -> np.ndarray:
    """Read a lossless contact sheet: images row by row, [N, side, side, 3] bytes."""
    from PIL import Image, UnidentifiedImageError

    try:
        a = np.asarray(Image.open(path).convert("RGB"))
        h, w, _ = a.shape
        tiles = a.reshape(h // side, side, w // side, side, 3).swapaxes(1, 2)
    except (OSError, ValueError, UnidentifiedImageError) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it anew") from None
    return tiles.reshape(-1, side, side, 3)


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Read these arrays of an npz file, without unpickling.

    Raises:
      DataError: if the file is damaged, of another format, or lacks an array.
    """
    try:
        # opened here, as NumPy leaks the handle of a file that is no zip
        with path.open("rb") as raw, zipfile.ZipFile(raw) as file:
            read = lambda name: io.BytesIO(file.read(f"{name}.npy"))
            return {n: np.lib.format.read_array(read(n)) for n in names}
    # RuntimeError: a zip variant that Python cannot read
    except (*UNREADABLE, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it anew") from None


def only_local(name: str, files: Sequence[str]) -> tuple[Path, str]:
    """Return the folder of files that cannot be downloaded, and its name.

    Raises:
      DataError: if they are missing; the text says where to put them.
    """
    place = locate(files)
    if place is None:
        raise DataError(
            f"{name} is not on this machine: put {', '.join(files)} into the folder "
            f"AUDIT_DATA names, or into {cache_folder()}"
        )
    return place


def load_cifar(name: str, sheets: int, note: str) -> Dataset:
    """Load CIFAR-10 or CIFAR-100 from contact sheets."""
    files = cifar_files(name, sheets)
    place, origin = only_local(name, files)
    *train, x_test = (unit(_sheet(place / f)) for f in files[:-1])
    labels = read_npz(place / files[-1], "y_train", "y_test")
    y_train, y_test = (y.astype(np.int32) for y in labels.values())
    x_train = np.concatenate(train)
    return Dataset(name, x_train, y_train, x_test, y_test, origin, note)


def cifar_files(name: str, sheets: int) -> list[str]:
    """Return the files of a CIFAR set: sheets of training images, test, labels."""
    train = [f"{name}/train_{i + 1}.webp" for i in range(sheets)]
    return [*train, f"{name}/test.webp", f"{name}/labels.npz"]


def load_lfw() -> Dataset:
    """Load the 106 people of LFW with 14 pictures each."""
    file = "lfw/lfw106_32x32.npz"
    place, origin = only_local("lfw", [file])
    arrays = read_npz(place / file, "x", "y")
    x, y = unit(arrays["x"]), arrays["y"].astype(np.int32)
    note = "106 people x 14 images; pictures of people stay out of committed reports"
    return Dataset("lfw", x, y, None, None, origin, note)
