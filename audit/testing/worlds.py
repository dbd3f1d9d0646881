"""Tiny worlds in which plug-ins are held against their laws."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from audit import data
from audit.models import networks, pretrain
from audit.rng import stream
from audit.types import Examples, Public, Splits, Task, TrainingSet

SHAPE = (4, 4, 1)
FIXED, TARGETS, POOL = 9, 3, 24


class World(NamedTuple):
    """Random records in the task's domain, labels in turn."""

    task: Task
    splits: Splits
    public: Public
    key: jax.Array


def make(task: Task | None = None, seed: int = 0) -> World:
    """Return a world for a task; by default two classes of 4 x 4 images."""
    task = networks.binary_linear(SHAPE, 2) if task is None else task
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    low, high = task.domain if np.isfinite(task.domain).all() else (-1.0, 1.0)

    def some(n: int) -> Examples:
        x = rng.uniform(low, high, (n, *task.features)).astype(np.float32)
        if not task.classes:
            return Examples(x, rng.normal(size=n).astype(np.float32))
        return Examples(x, (np.arange(n) % task.classes).astype(np.int32))

    public, fixed, targets, pool, test = map(some, (12, FIXED, TARGETS, POOL, 6))
    splits = Splits(public, fixed, targets, pool, test, np.arange(POOL))
    data.check(splits, task.domain)
    return World(task, splits, pretrain.start(task, stream(key, "start"), public), key)


def training_sets(world: World) -> TrainingSet:
    """Return one training set per target: the fixed records and that target."""
    return TrainingSet(world.splits.fixed, world.splits.targets)


def others(z: Examples, low: float, high: float) -> Examples:
    """Return other records of the same labels, inside the same domain."""
    x = np.asarray(z.x)
    if np.isfinite((low, high)).all():
        return z._replace(x=(low + high - x).astype(x.dtype))
    return z._replace(x=-x)
