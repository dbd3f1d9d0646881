"""Cut a data set into pairwise disjoint splits, and augment the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from audit.data.dataset import DataError, Dataset, digest
from audit.types import Examples, Splits


def choose_classes(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Keep some classes, relabelled 0 .. k-1 in the order given.

    Where labels are numbers there is nothing to choose: `classes` must be empty.

    Raises:
      DataError: if a class does not exist, or is named twice, or none is.
    """
    asked = list(classes)
    if dataset.y_train.dtype.kind == "f":
        if asked:
            raise DataError(
                f"classes {asked}: the labels of {dataset.name} are numbers"
            )
        return dataset
    known = np.unique(dataset.y_train).tolist()
    if not asked or not set(asked) <= set(known) or len(set(asked)) < len(asked):
        raise DataError(f"classes {asked}: {dataset.name} has {known}, each once")
    relabel = np.full(max(known) + 1, -1, np.int32)
    relabel[asked] = np.arange(len(asked))

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
      dataset: what to cut.
      public: records anyone may use; a number below 1 is a share of the training part.
      fixed: records the informed adversary knows; None = all that the others leave.
      pool: distinct records of the adversary's prior.
      targets: records to be rebuilt, the last slice (Edmunds 2024).
      test: of the official test part, None = all of it; where a set has none, one more
        slice of the same records.
      order: of the records before cutting.
      augment: size of the pool after augmentation; 0 = none. Only pool images move.
      seed: of the shuffle and of the augmentation.
      pool_from: `test` takes the whole test part for the pool, whose size is then 0.
        The attacker's prior and the utility are measured on the same records, none of
        which any defense trains on.

    Raises:
      DataError: if the data hold fewer records, or a size makes no sense.
    """
    held = len(dataset.y_train)
    own = round(public * held) if isinstance(public, float) else public
    left = held - own - pool - targets if fixed is None else fixed
    sizes = {"public": own, "fixed": left, "pool": pool, "targets": targets}
    for name, size in {**sizes, "test": test or 0, "augment": augment}.items():
        if size < 0 and not (name == "fixed" and fixed is None):
            raise DataError(f"{name}={size}: a size is at least 0")
    if pool_from == "test" and (pool or augment):
        raise DataError(
            f"pool={pool}, augment={augment}: with pool_from=test the pool is the test "
            "part, and both must be 0"
        )
    if augment and dataset.x_train.ndim != 4:
        raise DataError(f"augment={augment}: {dataset.name} holds no images")
    official = dataset.x_test is not None
    if not official:
        if test is None:
            raise DataError(
                f"{dataset.name} has no official test part: say how many test"
            )
        sizes["test"] = test
        if fixed is None:
            sizes["fixed"] -= test
    if fixed is None and sizes["fixed"] < 1:
        raise DataError(f"{dataset.name} holds {held} records: none is left for fixed")
    if sum(sizes.values()) > held:
        asked = " + ".join(f"{k}={v}" for k, v in sizes.items())
        raise DataError(
            f"{asked} = {sum(sizes.values())} records asked, "
            f"{dataset.name} holds {held}"
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
    if pool_from == "test":
        parts["pool"] = parts["test"]
    source = np.arange(len(parts["pool"].y), dtype=np.int32)
    if augment > len(source) > 0:
        parts["pool"], source = _augmented(parts["pool"], augment, seed)
    return Splits(pool_source=source, **parts)


def _take(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> Examples:
    return Examples(x[rows], y[rows])


def _test_part(dataset: Dataset, test: int | None) -> Examples:
    assert dataset.x_test is not None
    assert dataset.y_test is not None
    held = len(dataset.y_test)
    if test is not None and test > held:
        raise DataError(f"test={test} asked, {dataset.name}'s test part holds {held}")
    return _take(
        dataset.x_test, dataset.y_test, np.arange(held if test is None else test)
    )


def _augmented(pool: Examples, size: int, seed: int) -> tuple[Examples, np.ndarray]:
    """Return the originals followed by small affine moves of them, and sources."""
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
    splits: Splits,
    domain: tuple[float, float] = (0.0, 1.0),
    *,
    in_turn: bool = False,
) -> None:
    """Refuse values that are no numbers or outside the domain, and empty splits.

    Args:
      splits: what `split` returned.
      domain: of every coordinate.
      in_turn: every fixed record is the target in turn; `targets` may be empty.

    Raises:
      DataError: naming the split and how many values.
    """
    may_be_empty = {"public", "targets"} if in_turn else {"public"}
    for name in splits._fields[:-1]:
        x, y = (np.asarray(a) for a in getattr(splits, name))
        if len(x) == 0 and name not in may_be_empty:
            raise DataError(f"{name} is empty")
        for what, a in (("values", x), ("labels", y)):
            bad = int((~np.isfinite(a)).sum())
            if bad:
                raise DataError(
                    f"{name} holds {bad} {what} that are not finite numbers"
                )
        out = int(((x < domain[0]) | (x > domain[1])).sum())
        if out:
            raise DataError(f"{name} holds {out} values outside {domain}")
    attacked = "fixed" if in_turn else "targets"
    wanted, known = np.asarray(getattr(splits, attacked).y), np.asarray(splits.pool.y)
    lacking = np.setdiff1d(wanted, known)
    if len(lacking) and wanted.dtype.kind != "f":
        listed = ", ".join(map(str, lacking))
        raise DataError(f"pool holds no record of class {listed}, unlike {attacked}")


def duplicates(splits: Splits) -> int:
    """Return how many targets stand, value for value, in fixed or pool as well.

    The splits are disjoint as records; real data may hold one picture twice. Without
    targets: how many fixed records have a twin.
    """
    fixed, pool, targets = map(_rows, (splits.fixed, splits.pool, splits.targets))
    if targets:
        known = {*fixed, *pool}
        return sum(row in known for row in targets)
    seen = Counter(fixed + pool)
    return sum(seen[row] > 1 for row in fixed)


def known_targets(splits: Splits) -> int:
    """Return how many targets stand in what the attacker holds; images to 8 bits.

    Without targets: how many fixed records stand in the pool.
    """

    def rounded(z: Examples) -> Examples:
        x = np.asarray(z.x, np.float32)
        return z._replace(x=np.round(x * 255) if x.ndim == 4 else x)

    sets = {"fixed": splits.fixed, "pool": splits.pool, "targets": splits.targets}
    splits = splits._replace(**{name: rounded(z) for name, z in sets.items()})
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
