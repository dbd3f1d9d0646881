"""Thousands of runs of one defense: lanes under vmap, tiles of one fixed size, a store.

A *lane* is one run. Lanes run in tiles of `Lanes.tile`, the last one padded, and every
tile is the same compiled program; the key of lane i is fold_in(root, i). How many tiles
are in flight, in what order, on how many devices and after how many interruptions
therefore changes only how long it takes: within a backend, JAX version and tile size
the bits are the same. The fixed set is shared: no lane copies it, and the first layer
of all lanes of a tile is one large matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.engine import store as stores
from audit.engine.program import program as _program
from audit.types import Defense, Lanes, Public, Task, TrainingSet

ROUNDING = 1e-5  # of a release's size: what another width of a product may do
AMPLE = 10.0  # times what one rounding of the inputs does to a lane


class Engine(NamedTuple):
    """Where and how runs are made; the same for every defense of an audit."""

    lanes: Lanes = Lanes()
    store: stores.Store | None = None
    report: Callable[[str, int, int], None] = lambda what, done, total: None
    shrink: bool = False  # a tile over the memory budget is cut; changes rounding only
    doubt: Callable[[str, str], None] | None = None  # told (label, text) of stored runs
    # that are made otherwise now; None = what is stored is taken as it is


class Learner(NamedTuple):
    """A defense with its settings and public side state, ready to be run."""

    label: str  # how the line-up calls it
    factory: Callable  # (task, *, settings) -> Defense
    task: Task
    static: tuple[tuple[str, Any], ...]  # int, str, bool: a new value compiles anew
    floats: dict[str, float]  # traced: a new value does not
    side: Any  # what `prepare` made of public data
    defense: Defense  # built with host values, for accounting on the host
    version: str  # hash of the code that can change results


def learner(
    factory: Callable,
    task: Task,
    settings: dict[str, Any],
    *,
    key: jax.Array,
    public: Public,
    label: str = "",
    version: str = "",
) -> Learner:
    """Build a defense and prepare its public side state once.

    Args:
      factory: the defense, `(task, *, settings) -> Defense`.
      task: what is learnt.
      settings: all of them, resolved.
      key: for `prepare` (initialisation, masks); shared by every run.
      public: records anyone may use, and where every run starts.
      label: for progress.
      version: part of the store key.
    """
    floats = {k: v for k, v in settings.items() if isinstance(v, float)}
    static = tuple(sorted((k, v) for k, v in settings.items() if k not in floats))
    defense = factory(task, **settings)
    side = jax.tree.map(np.asarray, defense.prepare(key, public))
    name = label or factory.__name__
    return Learner(name, factory, task, static, floats, side, defense, version)


def sweep(
    method: str,
    of: Learner,
    key: jax.Array,
    data: TrainingSet,
    *extra: Any,
    engine: Engine,
    what: str = "",
    precise: bool = False,
    runs: int = 1,
    then: Callable | None = None,
) -> Any:
    """Run one method of a defense once for every target, or so often without one.

    Args:
      method: "train", "fisher", "fil" or "log_likelihood".
      of: whose.
      key: root key; lane i runs with fold_in(key, i).
      data: `fixed` shared by all lanes; `target` with leading axis m, or None where
        there is none; `rows` [m, n] what each lane trains on, or None for all of
        `fixed`. A defense without the trait `rows` gets its records gathered, which no
        empty slot survives.
      *extra: further arguments of the method, or of `then`, shared by all lanes.
      engine: tile size, memory, store, progress.
      what: for progress; default: the defense's label.
      precise: in float64 (accounting); runs of an `exact` defense always are.
      runs: m where there is neither target nor rows.
      then: (defense, side, what the method returned, *extra) -> what is kept of a lane
        instead, so that models need not be; a function of a room up
        to `engine`.

    Returns:
      What the method or `then` returns, as NumPy arrays with leading axis m.

    Raises:
      MemoryError: if not even one tile fits.
    """
    precise = precise or "exact" in of.defense.traits
    with jax.enable_x64(precise):
        dtype = np.float64 if precise else np.float32
        shared, own = jax.tree.map(
            lambda a: _cast(a, dtype),
            ((of.floats, of.side, data.fixed, extra), (data.target, data.rows)),
        )
        each = jax.tree.leaves(own)
        m = len(each[0]) if each else runs
        sweep_ = _Sweep(method, of, key, shared, own, m, engine, what, then)
        return sweep_.affordable().run()


def _cast(a: Any, dtype: Any) -> np.ndarray:
    a = np.asarray(a)
    return a.astype(dtype) if np.issubdtype(a.dtype, np.floating) else a


class _Sweep(NamedTuple):
    """The tiles of one sweep."""

    method: str
    of: Learner
    key: Any
    shared: tuple  # (floats, side, fixed, extra)
    own: tuple  # (target, rows) of every lane, or None
    m: int
    engine: Engine
    what: str
    then: Callable | None = None

    def affordable(self) -> _Sweep:
        """Return the sweep with a tile that fits the budget, if it may be cut."""
        lanes = self.engine.lanes
        if not self.engine.shrink:
            return self
        need, budget = self._bytes(1), lanes.memory_gib * 2**30
        if need <= budget:
            return self
        smaller = lanes._replace(tile=max(1, int(lanes.tile * budget // need)))
        return self._replace(engine=self.engine._replace(lanes=smaller))

    def run(self) -> Any:
        size, m = self.engine.lanes.tile, self.m
        tiles = range(-(-m // size))
        address = self._address()
        shards = self._stored(tiles, address)
        self._look_again(shards)
        self._report(len(shards) * size, m)
        missing = [t for t in tiles if t not in shards]
        for finished in self._compute(missing):
            self._keep(finished, address)
            shards.update(finished)
            self._report(len(shards) * size, m)
        leaves = zip(*(shards[t] for t in tiles), strict=True)
        joined = [np.concatenate(parts)[:m] for parts in leaves]
        return jax.tree.unflatten(jax.tree.structure(self._shape()), joined)

    def _report(self, done: int, m: int) -> None:
        self.engine.report(self.what or self.of.label, min(done, m), m)

    def _program(self, devices: int = 1) -> Any:
        of = self.of
        return _program(self.method, of.factory, of.task, of.static, devices, self.then)

    def _arguments(self, tiles: list[int]) -> tuple:
        size = self.engine.lanes.tile
        lanes = np.concatenate([np.arange(t * size, (t + 1) * size) for t in tiles])
        at = np.minimum(lanes, self.m - 1)  # the last tile is padded
        own = jax.tree.map(lambda a: a[at], self.own)
        return self.shared, self.key, lanes.astype(np.uint32), own

    def _shape(self) -> Any:
        return jax.eval_shape(self._program(), *self._arguments([0]))

    def _compute(self, tiles: list[int]) -> Iterator[dict[int, list[np.ndarray]]]:
        """Yield finished tiles, as many in flight as the memory budget holds."""
        if not tiles:
            return
        devices = min(len(jax.devices()), len(tiles))
        groups = [tiles[i : i + devices] for i in range(0, len(tiles), devices)]
        program, flight = self._program(devices), self._in_flight(devices)
        shared = jax.device_put(self.shared)  # once, not with every tile
        while groups:
            now = groups[:flight]
            padded = [g + [g[-1]] * (devices - len(g)) for g in now]
            try:
                outputs = [program(shared, *self._arguments(g)[1:]) for g in padded]
                leaves = [jax.device_get(jax.tree.leaves(o)) for o in outputs]
            except jax.errors.JaxRuntimeError as error:
                flight = _fewer(flight, error, self.engine.lanes)
                continue
            groups = groups[len(now) :]
            size = self.engine.lanes.tile
            yield {
                t: [a[i * size : (i + 1) * size] for a in leaf]
                for group, leaf in zip(now, leaves, strict=True)
                for i, t in enumerate(group)
            }

    def _in_flight(self, devices: int) -> int:
        """Return how many groups of tiles fit the budget, by the compiler's count."""
        budget = self.engine.lanes.memory_gib * 2**30
        return int(min(8, max(1, budget // max(self._bytes(devices), 1))))

    def _bytes(self, devices: int) -> int:
        """Return what one tile a device takes, by the compiler's count."""
        arguments = self._arguments([0] * devices)
        used = self._program(devices).lower(*arguments).compile().memory_analysis()
        return used.temp_size_in_bytes + used.output_size_in_bytes if used else 0

    # The store ----------------------------------------------------------------------

    def _address(self) -> str:
        """Return the key of everything that can change these runs, described once."""
        of, store = self.of, self.engine.store
        if store is None:
            return ""
        made_of = {
            "method": self.method,
            "defense": of.factory.__name__,
            "code": of.version,
            "task": of.task.name,
            "static": dict(of.static),
            "floats, side, fixed, extra": self.shared,
            "target, rows": self.own,
            "then": self.then and self.then.__qualname__,
            "key": self.key,
            "tile": self.engine.lanes.tile,
            "backend": jax.default_backend(),
            "versions": stores.versions(),
            "threefry partitionable": jax.config.jax_threefry_partitionable,  # type: ignore[attr-defined]
        }
        address = stores.digest(made_of)
        stores.describe(store, address, made_of)
        return address

    def _stored(self, tiles: range, address: str) -> dict[int, list[np.ndarray]]:
        store = self.engine.store
        if store is None:
            return {}
        found = {t: stores.get(store, address, _name(t)) for t in tiles}
        return {
            t: [f[f"leaf_{i}"] for i in range(len(f))] for t, f in found.items() if f
        }

    def _look_again(self, shards: dict[int, list[np.ndarray]]) -> None:
        """Make the first stored lane anew, and say so if it is another one.

        Alone in its tile the lane is rounded otherwise, and training may enlarge that.
        How much is measured: the lane is made once more from inputs that differ in
        their last digit.
        """
        lanes, tell = self.engine.lanes, self.engine.doubt
        if not shards or tell is None:
            return
        first = min(shards)
        alone = self.engine._replace(lanes=lanes._replace(tile=1))
        one = self._replace(engine=alone)
        program, arguments = one._program(), one._arguments([first * lanes.tile])
        anew, nudged = (
            jax.tree.leaves(jax.device_get(program(*given)))
            for given in (arguments, _nudged(arguments))
        )
        if not same_lane(anew, nudged, shards[first]):
            what = self.what or self.of.label
            tell(self.of.label, f"{what}: stored runs are not what is made now")

    def _keep(self, finished: dict[int, list[np.ndarray]], address: str) -> None:
        store = self.engine.store
        if store is None:
            return
        for t, leaves in finished.items():
            arrays = {f"leaf_{i}": a for i, a in enumerate(leaves)}
            stores.put(store, address, _name(t), arrays)


def _nudged(arguments: tuple) -> tuple:
    """Return a program's arguments with side state and records moved by one rounding.

    Args:
      arguments: (shared, key, lanes, own), see `_Sweep`.
    """
    (floats, side, fixed, extra), key, lanes, own = arguments
    rng = np.random.default_rng(0)

    def nudge(a: Any) -> Any:
        if not np.issubdtype(a.dtype, np.floating):
            return a
        sign = rng.choice(np.array([-1, 1], a.dtype), a.shape)
        return a * (1 + sign * np.finfo(a.dtype).eps)

    side, fixed, own = jax.tree.map(nudge, (side, fixed, own))
    return (floats, side, fixed, extra), key, lanes, own


def same_lane(
    anew: list[np.ndarray], nudged: list[np.ndarray], stored: list[np.ndarray]
) -> bool:
    """Return whether the first lane of a stored tile is what is made now.

    Args:
      anew: leaves [1, ...] of the lane made alone.
      nudged: leaves [1, ...] of the lane made from inputs one rounding away: what
        rounding may do to it.
      stored: leaves [tile, ...].
    """
    if [a.shape[1:] for a in anew] != [a.shape[1:] for a in stored]:
        return False
    one, near, first = (
        np.nan_to_num(np.concatenate([np.ravel(a[0]).astype(float) for a in leaves]))
        for leaves in (anew, nudged, stored)
    )
    coarse = max(np.finfo(a.dtype).eps if a.dtype.kind == "f" else 0 for a in stored)
    least = max(ROUNDING, float(coarse)) * np.linalg.norm(first)
    allowed = max(least, AMPLE * np.linalg.norm(one - near))
    return bool(np.linalg.norm(one - first) <= allowed)


def _name(tile: int) -> str:
    return f"tile-{tile:05d}"


def _fewer(flight: int, error: Exception, lanes: Lanes) -> int:
    """Return a smaller number of tiles in flight, or give up with advice."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        raise error
    if flight > 1:
        return flight // 2
    raise MemoryError(
        f"one tile of {lanes.tile} lanes does not fit this device: "
        f"set lanes.tile to {max(1, lanes.tile // 2)} or less"
    ) from error
