"""Data of one's own: an .npz file or arrays, checked before anything is trained.

============  =====================================  ==================================
array         shape                                  meaning
============  =====================================  ==================================
`x`           [N, H, W], [N, H, W, C] or [N, d]      images (bytes to 255, or floats in
                                                     [0, 1]) or a table, in its own
                                                     units
`y`           [N]                                    whole numbers from 0: classes;
                                                     floats: numbers
`names`       [d], may be left out                   what the columns of a table are
`split`       [N], may be left out                   "train" or "test" of each record
============  =====================================  ==================================

Records stay where they are: a card names the data by their digest, and neither holds
nor draws a record (`Dataset.private`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit.data import untrusted
from audit.data.dataset import DataError, Dataset, digest, repeats, unit
from audit.errors import brief, counted

PREFIX = "file:"  # of the word that names a file
NEEDED, OTHERS = ("x", "y"), ("names", "split")  # arrays of a file
PARTS = ("train", "test")
MOST_CLASSES = 10_000
DARKEST = 16  # bytes of images no larger than this, as of scikit-learn's digits
ROUNDING = 1e-6  # by which images may leave [0, 1]; they are clipped


def located(word: str) -> Path:
    """Return the file that `data=file:PATH.npz` names.

    Raises:
      DataError: if there is none.
    """
    path = Path(os.path.expanduser(word.removeprefix(PREFIX)))  # as a shell would
    if not path.is_file():
        wrong = "a folder, and a file is wanted" if path.is_dir() else "no such file"
        raise DataError(f"data={word}: {wrong}")
    return path


def read(path: Path) -> Dataset:
    """Return the data set of an .npz file; its name has the digest of what it holds.

    Raises:
      DataError: naming the file, what is wrong with it, and the remedy.
    """
    if path.suffix != ".npz":
        raise DataError(f"{path}: an .npz file is wanted; write it by np.savez")
    try:
        arrays = untrusted.arrays(path)
    except untrusted.UNREADABLE as error:
        raise DataError(f"{path}: {error}; save plain arrays by np.savez") from None
    if wrong := untrusted.misnamed(arrays, NEEDED, OTHERS):
        arrays_wanted = " and ".join(NEEDED)
        raise DataError(
            f"{path} {wrong}; {arrays_wanted} are wanted, {' and '.join(OTHERS)} may "
            f"be left out"
        )
    origin = f"file {path.name}"
    try:
        return dataset(**arrays, name=path.stem, origin=origin)  # type: ignore[arg-type]
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def dataset(
    x: Any,
    y: Any,
    *,
    names: Sequence[str] | None = None,
    split: Sequence[Any] | None = None,
    name: str = "arrays",
    origin: str = "Python",
    private: bool = True,
) -> Dataset:
    """Return checked arrays as a data set.

    Args:
      x: [N, H, W], [N, H, W, C] images, bytes 0 .. 255 or floats in [0, 1]; or a table
        [N, d].
      y: [N] whole numbers from 0 (classes), or floats (numbers).
      names: of the columns of a table; default: x0, x1, ...
      split: "train" or "test" of each record; default: a test part is cut by settings.
      name: letters, digits, _ and -; the digest of the arrays is added to it.
      origin: where they are from, in words.
      private: whether records stay out of cards and figures.

    Raises:
      DataError: naming the array, what is wrong with it, and the remedy.
    """
    x, y = _records(_plain("x", x)), _labels(_plain("y", y))
    if len(x) != len(y):
        raise DataError(f"x has {len(x)} records and y {len(y)} labels: give one each")
    parts = None if split is None else _split(_plain("split", split), len(y))
    label = re.sub(r"[^A-Za-z0-9_-]+", "_", str(name))[:60].strip("_") or "data"
    test = np.zeros(len(y), bool) if parts is None else parts
    checked = Dataset(
        name=label,
        x_train=x[~test],
        y_train=y[~test],
        x_test=x[test] if test.any() else None,
        y_test=y[test] if test.any() else None,
        origin=origin,
        note=_note(x, y),
        columns=_columns(names, x),
        private=private,
    )
    return _versioned(checked)


def check(data: Any, name: str) -> Dataset:
    """Return what a plug-in of the kind `data` made, checked as a file would be.

    It is called `name` with the digest of what it holds, as a file is.

    Raises:
      DataError: if it is no `Dataset`, or one of its arrays is wrong.
    """
    if not isinstance(data, Dataset):
        raise DataError(
            f"data {name}: returns {type(data).__name__}; return audit.dataset(x, y)"
        )
    fields = data._asdict()
    for part in PARTS:
        x, y = fields[f"x_{part}"], fields[f"y_{part}"]
        if part == "test" and x is None and y is None:
            continue
        try:
            x, y = _records(_plain(f"x_{part}", x)), _labels(_plain(f"y_{part}", y))
        except DataError as error:
            raise DataError(f"data {name}: {error}") from None
        if len(x) != len(y):
            raise DataError(
                f"data {name}: x_{part} has {len(x)} records and y_{part} {len(y)} "
                f"labels: give one each"
            )
        fields |= {f"x_{part}": x, f"y_{part}": y}
    columns = _columns(data.columns or None, fields["x_train"])
    return _versioned(Dataset(**fields | {"name": name, "columns": columns}))


def _versioned(data: Dataset) -> Dataset:
    """Return the data set with the digest of what it holds at the end of its name.

    Two versions of the data then have two names, and one version has one.
    """
    arrays = [data.x_train, data.y_train, np.array(data.columns, str)]
    if data.x_test is not None and data.y_test is not None:
        arrays += [data.x_test, data.y_test]
    end = f"-{digest(*arrays)[:8]}"
    return data._replace(name=data.name.removesuffix(end) + end)


def _plain(name: str, values: Any) -> np.ndarray:
    """Return an array of numbers or text, never of objects or with a mask."""
    if np.ma.is_masked(values):
        raise DataError(
            f"{name} holds {np.ma.count_masked(values)} masked entries, which are not "
            f"finite numbers: drop or fill them"
        )
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} is no array: {error}") from None
    if array.dtype.hasobject and any(isinstance(v, str) for v in array.flat):
        return array.astype(str)
    if array.dtype.hasobject:
        raise DataError(
            f"{name} holds Python objects or ragged lists, not numbers: give all "
            f"records one shape and one type, as np.stack(records).astype(np.float32)"
        )
    if not array.size:
        raise DataError(f"{name} has shape {array.shape}: it holds nothing")
    return array


def _records(x: np.ndarray) -> np.ndarray:
    """Return images as float32 [N, H, W, C], or a table as float64 [N, d].

    Columns are prepared before they are cast to float32: timestamps differ by less than
    its step, which is 128 at 1.6e9.
    """
    if x.dtype.kind not in "biuf":
        raise DataError(f"x holds {x.dtype}, not numbers: encode text as columns")
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"x has shape {x.shape}; [N, H, W], [N, H, W, C] or [N, d] is wanted: "
            f"reshape it"
        )
    if bad := _not_finite(x):
        raise DataError(
            f"x holds {bad} values that are not finite numbers of float32: drop, fill "
            f"or rescale them"
        )
    if x.ndim == 2:
        return x.astype(np.float64)
    x = x[..., None] if x.ndim == 3 else x
    if x.shape[-1] not in (1, 3):
        raise DataError(
            f"x has images with {x.shape[-1]} channels; 1 or 3 stand last: move the "
            f"axis by np.moveaxis, or flatten to a table [N, d]"
        )
    low, high = x.min(), x.max()
    if x.dtype == np.uint8:
        if high <= DARKEST:
            raise DataError(
                f"x has bytes from {low} to {high}, of which 255 is 1: give floats in "
                f"[0, 1], as (x / {max(high, 1)}).astype(np.float32)"
            )
        return unit(x)
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise DataError(
            f"x has images from {low:.7g} to {high:.7g}, outside [0, 1]: save bytes to "
            f"255, or rescale, as (x - x.min()) / (x.max() - x.min())"
        )
    return np.clip(x, 0, 1).astype(np.float32)


def _not_finite(values: np.ndarray) -> int:
    """Return how many values are no finite numbers once they are float32."""
    return int((~(np.abs(values) <= np.finfo(np.float32).max)).sum())


def _labels(y: np.ndarray) -> np.ndarray:
    """Return labels [N]: int32 for classes, float32 for numbers."""
    if y.ndim != 1:
        column = y.shape[:1] == (y.size,)  # of whose only entry argmax says 0
        remedy = "y.ravel()" if column else "y.argmax(1) of one-hot labels"
        raise DataError(
            f"y has shape {y.shape}; one label per record, [N], is wanted: take "
            f"{remedy}"
        )
    if y.dtype.kind in "US":
        example = brief(str(y[0]), 30)
        raise DataError(
            f"y holds text, such as {example}: number the classes by "
            f"np.unique(y, return_inverse=True)[1]"
        )
    if y.dtype.kind not in "biuf":
        raise DataError(f"y holds {y.dtype}, not numbers: number the classes from 0")
    if y.dtype.kind == "f":
        if bad := _not_finite(y):
            raise DataError(
                f"y holds {bad} labels that are not finite numbers of float32: drop "
                f"these records, or rescale"
            )
        return y.astype(np.float32)
    if y.dtype.kind in "iu" and (y.min() < 0 or y.max() >= MOST_CLASSES):
        raise DataError(
            f"y has labels from {y.min()} to {y.max()}; classes are whole numbers from "
            f"0 to {MOST_CLASSES - 1}: number them by np.unique(y, "
            f"return_inverse=True)[1], or save floats where labels are numbers"
        )
    return y.astype(np.int32)


def _split(split: np.ndarray, records: int) -> np.ndarray:
    """Return whether each record is of the test part [N]."""
    given = np.unique(split.astype(str)).tolist()
    if split.shape != (records,) or not set(given) <= set(PARTS):
        raise DataError(
            f"split has shape {split.shape} and words {brief(given)}; one of "
            f"{', '.join(PARTS)} per record is wanted"
        )
    test = split.astype(str) == "test"
    if test.all() or not test.any():
        raise DataError(
            f"split says {given[0]!r} of every record: leave it out, or name both parts"
        )
    return test


def _columns(names: Sequence[str] | None, x: np.ndarray) -> tuple[str, ...]:
    """Return the names of a table's columns; none for images."""
    if x.ndim != 2:
        if names is not None:
            raise DataError("names are of a table's columns, and x holds images")
        return ()
    columns = [f"x{i}" for i in range(x.shape[1])] if names is None else names
    columns = [str(name) for name in _plain("names", columns).ravel()]
    if len(columns) != x.shape[1] or len(set(columns)) < len(columns):
        raise DataError(
            f"names has {len(columns)} names, {len(set(columns))} of them different, "
            f"and x {x.shape[1]} columns: name each column once"
        )
    return tuple(columns)


def _note(x: np.ndarray, y: np.ndarray) -> str:
    """Return one line: shapes, pixels, labels, records that stand there twice."""
    shape = "x".join(map(str, x.shape[1:]))
    if x.ndim == 4:
        records = f"images of {shape}, pixels from {x.min():.3g} to {x.max():.3g}"
    else:
        records = f"rows of a table of {shape}"
    if y.dtype.kind == "f":
        labels = f"labels are numbers from {y.min():g} to {y.max():g}"
    else:
        labels = counted(len(np.unique(y)), "class", "es")
    again = repeats(x)
    twice = f"; {again} records stand there more than once" if again else ""
    return f"{len(y)} {records}, {labels}{twice}"
