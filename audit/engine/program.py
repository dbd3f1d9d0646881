"""One method of a defense as one compiled program over the lanes of a tile."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from audit.errors import UserError, did_you_mean
from audit.mechanisms.batch import gathered
from audit.mechanisms.noisy_sgd import alignment, information_matrix, transcript
from audit.types import TRAITS, Defense, Task, TrainingSet


class Recipe(NamedTuple):
    """A defense without its float settings; hashable, so that programs are cached."""

    factory: Callable  # (task, *, settings) -> Defense
    task: Task
    static: tuple[tuple[str, Any], ...]  # int, str, bool: a new value recompiles

    def build(self, floats: dict[str, Any]) -> Defense:
        """Return the defense; the float settings may be traced.

        Raises:
          UserError: if the defense has a trait that does not exist.
        """
        defense = self.factory(self.task, **dict(self.static), **floats)
        for word in sorted(defense.traits - TRAITS):
            raise UserError(
                f"defense {self.factory.__name__}: unknown trait {word!r}"
                f"{did_you_mean(word, TRAITS)}"
            )
        return defense


def threads() -> int:
    """Return how many threads JAX computes with on a processor.

    Products are cut into blocks accordingly, which changes how their sums round.
    """
    for name in ("PJRT_NPROC", "NPROC"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lanes_of(tiles: list[int], size: int, m: int, per_lane: Any) -> tuple:
    """Return the indices of the lanes of some tiles, and what they do not share.

    There are m lanes, so the last tile is padded: its last lane is repeated.
    """
    lanes = np.concatenate([np.arange(t * size, (t + 1) * size) for t in tiles])
    at = np.minimum(lanes, m - 1)
    return lanes.astype(np.uint32), jax.tree.map(lambda a: a[at], per_lane)


# (mechanism, key, side, data, ...) -> what is read of its steps
OF_STEPS: dict[str, Callable] = {
    "transcript": transcript,
    "alignment": alignment,
    "information_matrix": information_matrix,
}


@functools.cache
def program(
    method: str, recipe: Recipe, devices: int, then: Callable | None = None
) -> Any:
    """Return one method, vmapped over the lanes of a tile, on every device.

    Floats are arguments, so that a sweep over noise levels compiles once. `method` is
    one of the defense, of its mechanism, or of `OF_STEPS`; `then` is explained in
    `shadow.sweep`. The program maps (floats, side, fixed, extra), the root key, indices
    and (target, rows) of the lanes to what the method or `then` returns.
    """

    def lane(shared: tuple, root: Any, index: Any, per_lane: tuple) -> Any:
        floats, side, fixed, extra = shared
        defense = recipe.build(floats)
        key, data = jax.random.fold_in(root, index), TrainingSet(fixed, *per_lane)
        if "rows" not in defense.traits:
            data = gathered(data)
        owner = defense if method in Defense._fields else defense.mechanism
        run = getattr(owner, method, None) or partial(OF_STEPS[method], owner)
        if then is None:
            return run(key, side, data, *extra)
        return then(defense, side, run(key, side, data), *extra)

    tile = jax.vmap(lane, in_axes=(None, None, 0, 0))
    mesh = Mesh(np.array(jax.devices()[:devices]), ("shadow",))
    whole, part = PartitionSpec(), PartitionSpec("shadow")
    inputs = (whole, whole, part, part)
    shards = jax.shard_map(
        tile, mesh=mesh, in_specs=inputs, out_specs=part, check_vma=False
    )
    return jax.jit(shards)
