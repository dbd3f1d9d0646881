"""Files from anywhere: what they say of their size is checked before they are read."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

# what a damaged, encrypted or oversized file raises: RuntimeError asks for a password,
# and `NotImplementedError` is one
UNREADABLE = (
    ValueError, OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError,
)  # fmt: skip


def text(path: Path, most: int = 20_000_000) -> str:
    """Return a file's text.

    Raises:
      OSError: if it cannot be read.
      ValueError: if it is no regular file, has more than `most` bytes or is no UTF-8.
    """
    if path.exists() and not path.is_file():
        raise ValueError("no regular file")
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"larger than {most:,} bytes")
    return raw.decode()


def arrays(path: Path, most: float = math.inf) -> dict[str, np.ndarray]:
    """Return the plain arrays of an .npz file by name.

    Raises one of `UNREADABLE`: for a damaged or encrypted file, for Python objects, and
    for more than `most` bytes or half of the free memory.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if size > most:
            raise ValueError(f"its arrays take {size / 1e9:.1f} of {most / 1e9:g} GB")
        check_memory(size)
        plain = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as stream:
                plain[name] = array(stream, member.file_size, name)
    return plain


def misnamed(
    names: Iterable[str], needed: Iterable[str], others: Iterable[str] = ()
) -> str:
    """Return which needed arrays are lacking and which are unknown; "" = all is well.

    Args:
      names: of the arrays that a file holds.
      needed: names that must be there.
      others: names that may be there.
    """
    names, needed = set(names), list(needed)
    lacking = [f"lacks {name}" for name in needed if name not in names]
    unknown = [f"has {name}" for name in sorted(names.difference(needed, others))]
    return ", ".join([*lacking, *unknown])


def array(stream: IO[bytes], size: int, name: str) -> np.ndarray:
    """Read one array, after its header is found to speak of `size` bytes.

    Raises:
      ValueError: if it does not, or the array holds Python objects.
    """
    version = np.lib.format.read_magic(stream)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in headers:
        raise ValueError(f"{name} is in version {version} of the format, not plain")
    shape, _, dtype = headers[version](stream)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{name} holds Python objects or ragged lists, not numbers")
    if math.prod(shape) * dtype.itemsize + stream.tell() != size:
        raise ValueError(
            f"{name} says shape {shape} of {dtype}, which is not its size: truncated?"
        )
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def check_memory(size: int) -> None:
    """Refuse what would not fit the machine's free memory twice.

    Raises:
      ValueError: with both sizes.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 2 * size > free:
        raise ValueError(
            f"its arrays take {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of "
            f"memory are free; half of that can be read"
        )
