"""Tables with a binary column, for attribute inference (Hannun et al. 2021).

Two are in scikit-learn. UCI Adult is not shipped, but read from a local folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from audit.data.dataset import DataError, Dataset
from audit.data.files import only_local

ADULT = ("adult/adult.data", "adult/adult.test")
CONTINUOUS = (
    "age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week",
)  # fmt: skip
NAMES = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status",
    "occupation", "relationship", "race", "sex", "capital-gain", "capital-loss",
    "hours-per-week", "native-country", "income",
)  # fmt: skip
MARRIED = ("Married-civ-spouse", "Married-AF-spouse", "Married-spouse-absent")


def load_diabetes() -> Dataset:
    """Load the 442 patients of Efron et al. (2004); the label is a number."""
    from sklearn import datasets

    patients = datasets.load_diabetes(scaled=False)
    x, columns = patients.data.astype(np.float32), tuple(patients.feature_names)
    sex = columns.index("sex")
    x[:, sex] = x[:, sex] == x[:, sex].max()
    y = patients.target.astype(np.float32)
    note = (
        "442 patients that come with scikit-learn; label: disease progression; binary "
        "column: sex"
    )
    return Dataset("diabetes", x, y, None, None, "embedded", note, columns)


def load_breast_cancer() -> Dataset:
    """Load the 569 tumours of Street et al. (1993), with their size as a binary column.

    Every column that is computed from the size, or nearly determines it, is left out,
    so that the other columns do not give `large` away.
    """
    from sklearn import datasets

    tumours = datasets.load_breast_cancer()
    names = [str(name) for name in tumours.feature_names]
    of_size = [n for n in names if {"radius", "perimeter", "area"} & set(n.split())]
    area = tumours.data[:, names.index("mean area")]
    kept = [i for i, name in enumerate(names) if name not in of_size]
    large = (area > np.median(area))[:, None]
    x = np.append(tumours.data[:, kept], large, 1).astype(np.float32)
    y, columns = tumours.target.astype(np.int32), (*(names[i] for i in kept), "large")
    note = (
        "569 tumours that come with scikit-learn; label: benign; binary column: large, "
        f"a mean area above the median, which replaces the {len(of_size)} columns of "
        "radius, perimeter and area"
    )
    return Dataset("breast_cancer", x, y, None, None, "embedded", note, columns)


def load_adult() -> Dataset:
    """Read UCI Adult from two files in its official format.

    docs/data.md says how it is coded (Hannun et al. 2021).

    Raises:
      DataError: if a file is missing, or a line is no record.
    """
    place, origin = only_local("adult", ADULT)
    train, test = (list(_records(place / name)) for name in ADULT)
    for name, records in zip(ADULT, (train, test), strict=True):
        if not records:
            raise DataError(f"{place / name} holds no complete record")
    values = _one_hot_values([*train, *test])
    x_train, x_test = (_coded(records, values) for records in (train, test))
    y_train, y_test = (
        np.array([r["income"] == ">50K" for r in records], np.int32)
        for records in (train, test)
    )
    one_hot = [f"{name}={value}" for name, kept in values.items() for value in kept]
    note = (
        f"UCI Adult, {len(train)} + {len(test)} complete records; label: income above "
        "50K; binary column: married, which replaces marital status and relationship"
    )
    columns = (*CONTINUOUS, *one_hot, "married")
    return Dataset("adult", x_train, y_train, x_test, y_test, origin, note, columns)


def _records(path: Path) -> Iterator[dict[str, str]]:
    """Return the complete records of one file."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("|"):  # the test file's first line
            continue
        record = _record(line, f"{path}, line {number}")
        if "?" not in record.values():
            yield record


def _record(line: str, where: str) -> dict[str, str]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(NAMES):
        raise DataError(f"{where}: {len(fields)} fields, {len(NAMES)} expected")
    record = dict(zip(NAMES, fields, strict=True))
    record["income"] = record["income"].removesuffix(".")  # as in the test file
    if record["income"] not in ("<=50K", ">50K"):
        raise DataError(f"{where}: income {record['income']!r} is not <=50K or >50K")
    for name in CONTINUOUS:
        if record[name] != "?" and not record[name].isdecimal():
            raise DataError(f"{where}: {name} {record[name]!r} is not a whole number")
    return record


def _one_hot_values(records: list[dict[str, str]]) -> dict[str, list[str]]:
    """Return the values, in the records of both parts, that get a one-hot column."""
    binary = ("marital-status", "relationship", "income")
    return {
        name: sorted({record[name] for record in records})[:-1]
        for name in NAMES
        if name not in (*CONTINUOUS, *binary)
    }


def _coded(records: list[dict[str, str]], values: dict[str, list[str]]) -> np.ndarray:
    return np.array(
        [
            [float(record[name]) for name in CONTINUOUS]
            + [record[name] == value for name, kept in values.items() for value in kept]
            + [record["marital-status"] in MARRIED]
            for record in records
        ],
        np.float32,
    )
