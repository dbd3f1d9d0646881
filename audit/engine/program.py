"""One method of a defense as one program: lanes under vmap, a tile a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from audit.mechanisms.batch import gathered
from audit.types import Task, TrainingSet


@functools.cache
def program(
    method: str,
    factory: Callable,
    task: Task,
    static: tuple,
    devices: int,
    then: Callable | None = None,
) -> Any:
    """Return one defense method, vmapped over the lanes of a tile, on every device.

    Floats are arguments, so that a sweep over noise levels compiles once.

    Args:
      method: of the defense.
      factory: the defense, `(task, *, settings) -> Defense`.
      task: what is learnt.
      static: settings that are no floats.
      devices: how many.
      then: see `shadow.sweep`.

    Returns:
      (shared = (floats, side, fixed, extra), root key, indices, own = (target, rows) of
      every lane) -> what the method or `then` returns.
    """

    def lane(shared: tuple, root: Any, index: Any, own: tuple) -> Any:
        floats, side, fixed, extra = shared
        defense = factory(task, **dict(static), **floats)
        key, data = jax.random.fold_in(root, index), TrainingSet(fixed, *own)
        if "rows" not in defense.traits:
            data = gathered(data)
        run = getattr(defense, method)
        if then is None:
            return run(key, side, data, *extra)
        return then(defense, side, run(key, side, data), *extra)

    tile = jax.vmap(lane, in_axes=(None, None, 0, 0))
    mesh = Mesh(np.array(jax.devices()[:devices]), ("shadow",))
    whole, part = PartitionSpec(), PartitionSpec("shadow")
    return jax.jit(
        jax.shard_map(
            tile,
            mesh=mesh,
            in_specs=(whole, whole, part, part),
            out_specs=part,
            check_vma=False,
        )
    )
