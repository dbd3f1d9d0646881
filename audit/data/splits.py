"""Cut a data set into pairwise disjoint splits, and augment the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from audit.data.dataset import DataError, Dataset, digest
from audit.types import Examples, Mixture, Splits


def choose_classes(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Keep some classes, relabelled 0 .. k-1 in the order given.

    Where labels are numbers there is nothing to choose: `classes` must be empty.

    Raises:
      DataError: if a class does not exist or is repeated, or if `classes` is empty.
    """
    chosen = list(classes)
    if dataset.y_train.dtype.kind == "f":
        if chosen:
            raise DataError(
                f"classes {chosen}: the labels of {dataset.name} are numbers"
            )
        return dataset
    existing = np.unique(dataset.y_train).tolist()
    distinct = set(chosen)
    if not chosen or not distinct <= set(existing) or len(distinct) < len(chosen):
        raise DataError(f"classes {chosen}: {dataset.name} has {existing}, each once")
    parts = ("train", "test") if dataset.x_test is not None else ("train",)
    fields = dataset._asdict()
    largest = max(int(fields[f"y_{part}"].max(initial=0)) for part in parts)
    relabel = np.full(largest + 1, -1, np.int32)
    relabel[chosen] = np.arange(len(chosen))
    for part in parts:
        y = relabel[fields[f"y_{part}"]]
        fields |= {f"x_{part}": fields[f"x_{part}"][y >= 0], f"y_{part}": y[y >= 0]}
    if dataset.prior is not None:
        fields["prior"] = Mixture(*(part[chosen] for part in dataset.prior))
    return Dataset(**fields)


def split(
    dataset: Dataset,
    *,
    public: int | float,
    fixed: int | None,
    pool: int,
    targets: int,
    test: int | None = None,
    order: Literal["file", "shuffled"] = "file",
    augment: int = 0,
    seed: int = 0,
    pool_from: Literal["train", "test"] = "train",
) -> Splits:
    """Cut consecutive slices public, fixed, pool, targets of the training part.

    Args:
      dataset: records to cut.
      public: records anyone may use; a number below 1 is a share of the training part.
      fixed: records the informed adversary knows; None = all remaining records.
      pool: distinct records of the adversary's prior.
      targets: records to be rebuilt, the last slice (Edmunds 2024).
      test: size of the test split. It is cut from the official test part, None = all
        of it. If there is no official part, it is one more slice of the same records.
      order: of the records before they are cut.
      augment: size of the pool after augmentation; 0 = none. Only pool images move.
      seed: for the shuffle and the augmentation.
      pool_from: `test` takes the whole test part for the pool, whose size is then 0.

    Raises:
      DataError: if there are too few records, or a size is not allowed.
    """
    if pool_from == "test" and (pool or augment):
        raise DataError(
            f"pool={pool}, augment={augment}: with pool_from=test the pool is the test "
            "part, and both must be 0"
        )
    if augment and dataset.x_train.ndim != 4:
        raise DataError(f"augment={augment}: {dataset.name} holds no images")
    sizes = _sizes(dataset, public, fixed, pool, targets, test, augment)
    rows = np.arange(len(dataset.y_train))
    if order == "shuffled":
        rows = np.random.default_rng(seed).permutation(rows)
    ends = np.cumsum(list(sizes.values()))
    parts = {
        name: Examples(dataset.x_train[part], dataset.y_train[part])
        for name, part in zip(sizes, np.split(rows[: ends[-1]], ends[:-1]), strict=True)
    }
    if dataset.x_test is not None and dataset.y_test is not None:
        parts["test"] = Examples(dataset.x_test[:test], dataset.y_test[:test])
    if pool_from == "test":
        parts["pool"] = parts["test"]
    source = np.arange(len(parts["pool"].y), dtype=np.int32)
    if augment > len(source) > 0:
        parts["pool"], source = _augmented(parts["pool"], augment, seed)
    return Splits(pool_source=source, **parts)


def _sizes(
    dataset: Dataset,
    public: int | float,
    fixed: int | None,
    pool: int,
    targets: int,
    test: int | None,
    augment: int,
) -> dict[str, int]:
    """Return how many records of the training part each split takes, in order."""
    records, name = len(dataset.y_train), dataset.name
    if isinstance(public, float):
        public = round(public * records)
    left = records - public - pool - targets if fixed is None else fixed
    sizes = {"public": public, "fixed": left, "pool": pool, "targets": targets}
    for split, size in {**sizes, "test": test or 0, "augment": augment}.items():
        if size < 0 and not (split == "fixed" and fixed is None):
            raise DataError(f"{split}={size}: a size is at least 0")
    if dataset.y_test is None:
        if test is None:
            raise DataError(f"{name} has no official test part: say how many test")
        sizes["test"] = test
        if fixed is None:
            sizes["fixed"] -= test
    elif test is not None and test > len(dataset.y_test):
        size = len(dataset.y_test)
        raise DataError(f"test={test} asked, {name}'s test part holds {size}")
    if fixed is None and sizes["fixed"] < 1:
        raise DataError(f"{name} holds {records} records: none is left for fixed")
    total = sum(sizes.values())
    if total > records:
        requested = " + ".join(f"{k}={v}" for k, v in sizes.items())
        raise DataError(f"{requested} = {total} records asked, {name} holds {records}")
    return sizes


def _augmented(pool: Examples, size: int, seed: int) -> tuple[Examples, np.ndarray]:
    """Return the originals, followed by copies under small affine maps, and sources."""
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
    matrix = (
        np.array([[cos, shear - sin], [sin, cos]]).transpose(2, 0, 1) / grow[..., None]
    )
    moved = np.empty((len(extra), *x.shape[1:]), np.float32)
    for i, source in enumerate(extra):
        offset = centre - matrix[i] @ (centre + move[i])
        for c in range(x.shape[3]):
            ndimage.affine_transform(
                x[source, ..., c], matrix[i], offset, output=moved[i, ..., c], order=1
            )
    both = np.concatenate([x, np.clip(moved, 0, 1)])
    sources = np.concatenate([np.arange(len(y)), extra]).astype(np.int32)
    return Examples(both, y[sources]), sources


def check(
    splits: Splits, domain: tuple[float, float] = (0.0, 1.0), *, in_turn: bool = False
) -> None:
    """Refuse values that are not finite or outside the domain, and empty splits.

    With `in_turn` every fixed record is the target in turn, and `targets` may be empty.
    The DataError names the split and the number of values.
    """
    may_be_empty = {"public", "targets"} if in_turn else {"public"}
    for name in splits._fields[:-1]:
        x, y = (np.asarray(a) for a in getattr(splits, name))
        if len(x) == 0 and name not in may_be_empty:
            raise DataError(f"{name} is empty")
        for what, a in (("values", x), ("labels", y)):
            if bad := int((~np.isfinite(a)).sum()):
                raise DataError(
                    f"{name} holds {bad} {what} that are not finite numbers"
                )
        out = int(((x < domain[0]) | (x > domain[1])).sum())
        if out:
            raise DataError(f"{name} holds {out} values outside {domain}")
    attacked = "fixed" if in_turn else "targets"
    labels = np.asarray(getattr(splits, attacked).y)
    lacking = np.setdiff1d(labels, np.asarray(splits.pool.y))
    if len(lacking) and labels.dtype.kind != "f":
        listed = ", ".join(map(str, lacking))
        raise DataError(f"pool holds no record of class {listed}, unlike {attacked}")


def duplicates(splits: Splits) -> int:
    """Return the number of targets with an exact copy in `fixed` or `pool`.

    The splits are disjoint as records, but a data set may contain one picture twice.
    Without targets, return the number of fixed records with such a copy.
    """
    fixed, pool, targets = map(_rows, (splits.fixed, splits.pool, splits.targets))
    if targets:
        others = {*fixed, *pool}
        return sum(row in others for row in targets)
    count = Counter(fixed + pool)
    return sum(count[row] > 1 for row in fixed)


def known_targets(splits: Splits) -> int:
    """Return the number of targets with a copy in `fixed` or `pool`, images in 8 bits.

    Without targets, return the number of fixed records with a copy in the pool.
    """
    for name in ("fixed", "pool", "targets"):
        x, y = getattr(splits, name)
        x = np.asarray(x, np.float32)
        x = np.round(x * 255) if x.ndim == 4 else x
        splits = splits._replace(**{name: Examples(x, y)})
    if len(splits.targets.y):
        return duplicates(splits)
    pool = set(_rows(splits.pool))
    return sum(row in pool for row in _rows(splits.fixed))


def _rows(z: Examples) -> list[bytes]:
    return [row.tobytes() for row in np.asarray(z.x)]


def splits_digest(splits: Splits) -> str:
    """Return the sha256 of every array of the splits, in order."""
    arrays = [a for s in splits[:-1] for a in s] + [splits.pool_source]
    return digest(*arrays)
