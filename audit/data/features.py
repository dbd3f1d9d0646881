"""Preprocessing of records: scale, project, standardise.

Statistics come from the fixed records alone, with two exceptions: the norm of the
longest record comes from each official part separately (Hannun et al. 2021), the
statistics of colour channels from the public records.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from audit.data.dataset import DataError
from audit.types import Examples, Splits

Parts = dict[str, Examples]

# Means and standard deviations of the channels of CIFAR-10 in most code. The latter are
# averages of the standard deviation within an image; those over all pixels are .247,
# .243 and .262. `centred` maps every channel from [0, 1] to [-1, 1], x -> 2 x - 1.
USUAL = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "centred": ((0.5,), (0.5,)),
}


def prepare_features(
    splits: Splits,
    *,
    channels: bool | Literal["cifar10", "centred"] = False,
    unit_ball: bool = False,
    pca: int = 0,
    standardise: bool = False,
) -> Splits:
    """Return the splits with their features prepared, in this order.

    The privacy cost of the statistics is not accounted: they are assumed to be public.
    docs/data.md says why each step is done so.

    Args:
      splits: from `split`.
      channels: standardise each channel by the public records; images keep their shape.
        A name takes the numbers of `USUAL` instead: of a data set, or `centred`.
      unit_ball: flatten, and divide the training side (public, fixed, targets, pool) by
        its largest norm, the test part by its own. A pool that equals the test part is
        scaled as the test part.
      pca: subtract the mean of `fixed` and project on its first so many principal
        directions, the largest entry of each positive, no whitening; 0 = none.
      standardise: subtract the mean of `fixed` and divide by its standard deviation,
        in every column except those of zeros and ones; numeric labels, too.

    Returns:
      The same splits if no step is selected and x is no table in float64; else x is
      float32, and [n, d] unless `channels` is the only step.

    Raises:
      DataError: if there are no records for the statistics, a value is not finite, the
        records span fewer directions than `pca`, or a column is constant.
    """
    if channels:
        splits = _by_channel(splits, channels)
    x = splits.fixed.x
    to_cast = x.ndim == 2 and x.dtype == np.float64  # not before: it rounds
    if not (unit_ball or pca or standardise or to_cast):
        return splits
    parts = {name: _flat(name, getattr(splits, name)) for name in splits._fields[:-1]}
    if len(parts["fixed"].y) == 0:
        raise DataError("features: fixed is empty, there is nothing to learn them from")
    if unit_ball:
        parts = _into_ball(parts)
    if pca:
        parts = _projected(parts, pca)
    if standardise:
        parts = _standardised(parts)
    for name, (x, y) in parts.items():
        y = y.astype(np.float32) if y.dtype.kind == "f" else y
        parts[name] = Examples(x.astype(np.float32), y)
    return Splits(pool_source=splits.pool_source, **parts)


def pixel_domain(splits: Splits, channels: bool | str) -> tuple[Any, Any]:
    """Return the least and the largest value of every coordinate [d].

    Of images with pixels in [0, 1] whose channels were standardised, and nothing else
    was done; `splits` are those before that.
    """
    mean, sd = _of_channels(splits, channels)
    shape = splits.fixed.x.shape[1:]
    ends = ((end - mean) / sd for end in (0.0, 1.0))
    low, high = (np.broadcast_to(end, shape).reshape(-1) for end in ends)
    return low, high


def _by_channel(splits: Splits, channels: bool | str) -> Splits:
    mean, sd = _of_channels(splits, channels)
    parts = {
        name: z._replace(x=((z.x - mean) / sd).astype(np.float32))
        for name, z in zip(splits._fields[:-1], splits[:-1], strict=True)
    }
    return splits._replace(**parts)


def _of_channels(splits: Splits, channels: bool | str) -> tuple[Any, Any]:
    """Return the mean and the standard deviation that each channel is taken to have."""
    if isinstance(channels, str):
        mean, sd = map(np.array, USUAL[channels])
        if len(mean) not in (1, splits.fixed.x.shape[-1]):
            raise DataError(
                f"features.channels={channels}: is of {len(mean)} channels, records "
                f"have shape {splits.fixed.x.shape[1:]}"
            )
    else:
        x = splits.public.x
        if x.ndim != 4 or not len(x):
            raise DataError(
                f"features.channels: needs public images, has {len(x)} records of "
                f"shape {x.shape[1:]}"
            )
        mean, sd = x.mean((0, 1, 2), np.float64), x.std((0, 1, 2), np.float64)
        if not sd.all():
            raise DataError(
                "features.channels: a channel of the public images is constant"
            )
    return mean, sd


def _flat(name: str, z: Examples) -> Examples:
    x, y = np.asarray(z.x, float), np.asarray(z.y)
    if not np.isfinite(x).all():
        raise DataError(f"{name} holds values that are not finite numbers")
    y = y.astype(float) if y.dtype.kind == "f" else y
    return Examples(x.reshape(len(x), int(np.prod(x.shape[1:]))), y)


def _into_ball(parts: Parts) -> Parts:
    """Divide each official part by its own largest norm."""
    shared = np.array_equal(parts["pool"].x, parts["test"].x)
    of_test = {"test", "pool"} if shared else {"test"}
    longest = {True: 0.0, False: 0.0}
    for name, z in parts.items():
        norm = np.max(np.linalg.norm(z.x, axis=1), initial=0.0)
        longest[name in of_test] = max(longest[name in of_test], float(norm))
    if min(longest.values()) == 0:
        raise DataError("features.unit_ball: all records of one part are zero")
    return {
        name: z._replace(x=z.x / longest[name in of_test]) for name, z in parts.items()
    }


def _projected(parts: Parts, pca: int) -> Parts:
    x = parts["fixed"].x
    mean = x.mean(0)
    scatter = (x - mean).T @ (x - mean)
    sizes, directions = np.linalg.eigh(scatter)  # ascending
    rank = int((sizes > sizes[-1] * max(x.shape) * np.finfo(float).eps).sum())
    if pca > rank:
        raise DataError(
            f"features.pca={pca}: the {len(x)} fixed records of {x.shape[1]} features "
            f"span {rank} directions"
        )
    basis = directions[:, ::-1][:, :pca]
    largest = np.take_along_axis(basis, np.abs(basis).argmax(0)[None], 0)
    basis = basis * np.sign(largest)  # LAPACK leaves the sign undetermined
    return {name: z._replace(x=(z.x - mean) @ basis) for name, z in parts.items()}


def _standardised(parts: Parts) -> Parts:
    fixed = parts["fixed"]
    # in every part: a column may be 0 in all fixed records and any number in others
    binary = np.all([((z.x == 0) | (z.x == 1)).all(0) for z in parts.values()], 0)
    constant = np.flatnonzero((np.ptp(fixed.x, axis=0) == 0) & ~binary)
    if len(constant):
        listed = ", ".join(map(str, constant[:5]))
        raise DataError(
            f"features.standardise: {len(constant)} features are constant over the "
            f"fixed records (first: {listed}); leave them out or use features.pca"
        )
    mean = np.where(binary, 0, fixed.x.mean(0))
    sd = np.where(binary, 1, fixed.x.std(0))
    numeric = fixed.y.dtype.kind == "f"
    if numeric and np.ptp(fixed.y) == 0:
        raise DataError("features.standardise: the labels of the fixed are constant")
    y_mean, y_sd = (fixed.y.mean(), fixed.y.std()) if numeric else (0, 1)
    return {
        name: Examples((x - mean) / sd, (y - y_mean) / y_sd if numeric else y)
        for name, (x, y) in parts.items()
    }
