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

from audit.compilation import options
from audit.errors import UserError, did_you_mean, expect
from audit.mechanisms.batch import gathered
from audit.mechanisms.noisy_sgd import alignment, information_matrix, transcript
from audit.mechanisms.stepwise import Loop, Stepwise
from audit.types import TRAITS, Defense, Task, TrainingSet


class Recipe(NamedTuple):
    """A defense without its float settings; hashable, so that programs are cached."""

    factory: Callable  # (task, *, settings) -> Defense
    task: Task
    static: tuple[tuple[str, Any], ...]  # int, str, bool: a new value recompiles

    def build(self, floats: dict[str, Any]) -> Defense:
        """Return the defense; the float settings may be traced.

        Raises:
          UserError: if it is no defense, or has a trait that does not exist.
        """
        built = self.factory(self.task, **dict(self.static), **floats)
        defense = expect(built, Defense, f"defense {self.factory.__name__}")
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
    at: Any = np.minimum(lanes, m - 1)
    if len(tiles) == 1 and lanes[-1] < m:
        at = slice(lanes[0], lanes[-1] + 1)  # a view, no copy
    return lanes.astype(np.uint32), jax.tree.map(lambda a: a[at], per_lane)


# (mechanism, key, side, data, ...) -> what is read of its steps
OF_STEPS: dict[str, Callable] = {
    "transcript": transcript,
    "alignment": alignment,
    "information_matrix": information_matrix,
}


@functools.cache
def program(
    method: str, recipe: Recipe, devices: int, then: Callable | None, once: bool
) -> Any:
    """Return one method, vmapped over the lanes of a tile, on every device.

    Floats are arguments, so that a sweep over noise levels compiles once. `method` is
    one of the defense, of its mechanism, or of `OF_STEPS`; `then` is explained in
    `shadow.sweep`; `options` compile what is called `once`. The program maps (floats,
    side, fixed, extra), the root key, indices and (target, rows) of the lanes to what
    the method or `then` returns.
    """

    def lane(*of_lane: Any) -> Any:
        run = _OneLane.of(method, recipe, *of_lane)
        if then is None:
            return run.method(*run.given, *run.extra)
        return then(run.defense, run.given[1], run.method(*run.given), *run.extra)

    return _over_lanes(lane, devices, once=once)


class Parts(NamedTuple):
    """A program that is computed in parts; each takes the program's arguments first."""

    begin: Any  # returns the state before the first step, of every lane
    advance: Any  # (..., state, first, last) -> the state after these steps
    finish: Any  # (..., state) -> what the program returns


@functools.cache
def parts(
    method: str, recipe: Recipe, devices: int, then: Callable | None = None
) -> Parts:
    """Return `program` in parts, where the method is `Stepwise`."""

    def begin(*of_lane: Any) -> Any:
        return _OneLane.of(method, recipe, *of_lane).loop(then).first

    def advance(*of_lane: Any) -> Any:
        *given, state, first, last = of_lane
        return _OneLane.of(method, recipe, *given).loop(then).part(state, first, last)

    def finish(*of_lane: Any) -> Any:
        *given, state = of_lane
        run = _OneLane.of(method, recipe, *given)
        result = run.loop(then).last(state)
        if then is None:
            return result
        return then(run.defense, run.given[1], result, *run.extra)

    return Parts(
        _over_lanes(begin, devices),
        _over_lanes(advance, devices, (True, False, False)),
        _over_lanes(finish, devices, (True,)),
    )


def program_in_parts(
    method: str, recipe: Recipe, then: Callable | None, steps: int
) -> Callable:
    """Return `program` with the bits of `parts`, for one device."""
    part = parts(method, recipe, 1, then)

    def whole(*given: Any) -> Any:
        state = part.advance(*given, part.begin(*given), 0, steps)
        return part.finish(*given, state)

    return whole


class _OneLane(NamedTuple):
    """One lane: a method of a defense and what it is given."""

    defense: Defense
    method: Callable
    given: tuple  # (key, side, data)
    extra: tuple

    @staticmethod
    def of(
        method: str, recipe: Recipe, shared: tuple, root: Any, index: Any, lane: tuple
    ) -> _OneLane:
        floats, side, fixed, extra = shared
        defense = recipe.build(floats)
        key, data = jax.random.fold_in(root, index), TrainingSet(fixed, *lane)
        if "rows" not in defense.traits:
            data = gathered(data)
        owner = defense if method in Defense._fields else defense.mechanism
        run = getattr(owner, method, None) or partial(OF_STEPS[method], owner)
        return _OneLane(defense, run, (key, side, data), extra)

    def loop(self, then: Callable | None) -> Loop:
        assert isinstance(self.method, Stepwise)
        return self.method.loop(*self.given, *(self.extra if then is None else ()))


def _over_lanes(
    lane: Callable,
    devices: int,
    more: tuple[bool, ...] = (),
    once: bool = False,
) -> Any:
    """Compile a function of (shared, root key, index, per lane, *more).

    `more` says of each further argument whether every lane has its own.
    """
    own = (False, False, True, True, *more)
    tile = jax.vmap(lane, in_axes=tuple(0 if each else None for each in own))
    mesh = Mesh(np.array(jax.devices()[:devices]), ("shadow",))
    whole, part = PartitionSpec(), PartitionSpec("shadow")
    shards = jax.shard_map(
        tile,
        mesh=mesh,
        in_specs=tuple(part if each else whole for each in own),
        out_specs=part,
        check_vma=False,
    )
    return jax.jit(shards, compiler_options=options(once))
