"""Thousands of runs of one defense: lanes under vmap, tiles of one fixed size, a store.

A *lane* is one run. Lanes run in tiles of `Lanes.tile`, the last one padded, and every
tile is the same compiled program; the key of lane i is fold_in(root, i). The number of
tiles in flight, their order and interruptions therefore change only how long a sweep
takes: within a backend, JAX version, tile size and number of devices the bits are the
same. For several devices XLA compiles another program, which may round differently. The
fixed set is shared: no lane copies it, and the first layer of all lanes of a tile is
one large matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.engine import store as stores
from audit.engine.ahead import Ahead
from audit.engine.checkpoint import Checkpoints, SideBySide, run_in_parts
from audit.engine.cluster import Tiles
from audit.engine.cores import COPYING, Cores, cores_for
from audit.engine.precision import double
from audit.engine.program import Parts, Recipe, lanes_of, threads
from audit.engine.program import parts as _parts
from audit.engine.program import program as _program
from audit.mechanisms.stepwise import Preparation, Stepwise
from audit.types import Defense, Lanes, Public, Task, TrainingSet

NAME = "tile-{:05d}"  # of a shard in the store
PREPARED = "side"  # the name under which the state of a preparation is kept
PARTS = 50  # that a preparation is computed in
ROUNDING = 1e-5  # relative change of a release under another tile size
AMPLE = 10.0  # allowed multiple of the change that one rounding of inputs makes


class Engine(NamedTuple):
    """Where and how runs are computed; the same for every defense of an audit."""

    lanes: Lanes = Lanes()
    store: stores.Store | None = None
    report: Callable[[str, int, int], None] = lambda what, done, total: None
    shrink: bool = False  # cut a tile over the memory budget; changes rounding only
    doubt: Callable[[str, str], None] | None = None  # called with (label, text) if a
    # stored run differs from the same run computed now; None = stored runs are trusted
    results: stores.Store | None = None  # of finished attacks; None = all are played
    # says what goes on while nothing is counted
    activity: Callable[[str], AbstractContextManager] = nullcontext
    # computes tiles on other machines, as `cluster.compute`; None = here
    elsewhere: Callable | None = None
    ahead: Ahead | None = None  # compiles what the next defenses run; None = nothing
    # addresses in the store of runs that this audit made, or compared with runs made
    # now: they are not compared again; None = every run from the store is
    trusted: set[str] | None = None

    @property
    def devices(self) -> int:
        """Devices that compute tiles together, at most; a worker elsewhere has one."""
        return len(jax.devices()) if self.elsewhere is None else 1

    def few(self, runs: int) -> Engine:
        """Return the engine with tiles no larger than there are runs."""
        tile = min(self.lanes.tile, runs)
        return self._replace(lanes=self.lanes._replace(tile=tile))


class Learner(NamedTuple):
    """A defense with its settings and public side state, ready to be run."""

    label: str  # its name in the line-up
    recipe: Recipe
    floats: dict[str, float]  # traced: a new value compiles nothing
    side: Any  # what `prepare` computes from public data
    defense: Defense  # built with host values, for accounting on the host
    version: str  # hash of the code that can change results

    @property
    def task(self) -> Task:
        """The task of the defense."""
        return self.recipe.task

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as host values."""
        return dict(self.recipe.static) | self.floats

    def build(self, floats: dict[str, Any] | None = None) -> Defense:
        """Return the defense in the current precision of JAX; None = `self.floats`."""
        return self.recipe.build(self.floats if floats is None else floats)


def learner(
    factory: Callable,
    task: Task,
    settings: dict[str, Any],
    *,
    key: jax.Array,
    public: Public,
    label: str = "",
    version: str = "",
    engine: Engine = Engine(),  # noqa: B008
) -> Learner:
    """Build a defense `(task, *, settings)` and prepare its public side state once.

    The key is for `prepare` and shared by every run; `label` is the name in progress
    reports, by default that of the factory; `version` is part of the store key. What
    is fitted before all runs is kept in the engine's store; a fit that was stopped goes
    on from there.

    Raises:
      UserError: if it is no defense, or has a trait that does not exist.
    """
    floats = {k: v for k, v in settings.items() if isinstance(v, float)}
    static = tuple(sorted((k, v) for k, v in settings.items() if k not in floats))
    recipe = Recipe(factory, task, static)
    defense = recipe.build(floats)
    draft = Learner(label or factory.__name__, recipe, floats, None, defense, version)
    side = _side(draft, key, public, engine)
    return draft._replace(side=jax.tree.map(np.asarray, side))


def _side(learner: Learner, key: jax.Array, public: Public, engine: Engine) -> Any:
    """Return the side; what is fitted for it is computed in parts.

    All parts are calls of one program: where they end changes no bit.
    """
    prepare, store, checkpoints = learner.defense.prepare, engine.store, None
    if not isinstance(prepare, Preparation):
        return prepare(key, public)
    fit, steps, what = prepare.fit(key, public), prepare.steps, f"{learner.label}: fit"
    if store is not None:
        inputs = {"floats": learner.floats, "public": public, "key": key}
        made_of = origin("prepare", learner) | inputs
        address = stores.digest(made_of)
        stores.describe(store, address, made_of)
        checkpoints = Checkpoints(store, address, (PREPARED,))
    state = run_in_parts(
        lambda: fit.first,
        fit.part,
        steps,
        -(-steps // PARTS),
        checkpoints,
        lambda done: engine.report(f"{what}: steps", done, steps),
    )
    if checkpoints is not None:
        checkpoints.save(steps, jax.tree.leaves(jax.device_get(state)))
    return fit.last(state)


def origin(method: str, learner: Learner) -> dict[str, Any]:
    """Return what can change anything that a defense computes, for keys of the store.

    What it is given is not part of it.
    """
    recipe = learner.recipe
    return {
        "method": method,
        "defense": recipe.factory.__name__,
        "code": learner.version,
        "task": recipe.task.name,
        "static": dict(recipe.static),
        "backend": jax.default_backend(),
        "threads": threads() if jax.default_backend() == "cpu" else None,
        "versions": stores.versions(),
        "threefry partitionable": jax.config.jax_threefry_partitionable,  # type: ignore[attr-defined]
    }


def check_pure(learner: Learner, key: jax.Array, data: TrainingSet) -> None:
    """Refuse a defense that gives two results for one key and one training set.

    It is traced and run twice: randomness that is not drawn from the key, and state
    kept outside of the function, show.

    Raises:
      ValueError: with the remedy.
    """

    def once() -> list[np.ndarray]:
        train = jax.jit(lambda k, side, z: learner.build().train(k, side, z))
        return jax.tree.leaves(jax.device_get(train(key, learner.side, data)))

    same = (
        np.array_equal(*p, equal_nan=True) for p in zip(once(), once(), strict=True)
    )
    if not all(same):
        raise ValueError(
            "`train` is not pure: one key and one training set gave two results; draw "
            "all randomness from the key, by jax.random, and keep no state outside"
        )


def sweep(
    method: str,
    learner: Learner,
    key: jax.Array,
    data: TrainingSet,
    *extra: Any,
    engine: Engine,
    what: str = "",
    precise: bool = False,
    runs: int = 1,
    then: Callable | None = None,
) -> Any:
    """Run one method of a defense once per target, or `runs` times without targets.

    Args:
      method: "train", "fisher" or "log_likelihood" of the defense, "fil" of its
        mechanism, or "transcript" or "alignment" of a mechanism that takes steps.
      learner: the defense to run.
      key: root key; lane i runs with fold_in(key, i).
      data: `fixed` is shared by all lanes. `target` has leading axis m, or is None.
        `rows` [m, n] are the fixed records that each lane trains on; None = all of
        them. Without the trait `rows` no slot may be empty.
      *extra: further arguments of the method, or of `then`, shared by all lanes.
      engine: tile size, memory, store, progress.
      what: name in progress reports; default: the label of the defense.
      precise: in float64 (accounting); runs of an `exact` defense always are.
      runs: m, if there is neither a target nor rows.
      then: (defense, side, result of the method, *extra) -> what a lane returns instead
        of that result; a function of a room up to `engine`.

    Returns:
      What the method or `then` returns, as NumPy arrays with leading axis m.

    Raises:
      MemoryError: if not even one tile fits.
    """
    precise = precise or "exact" in learner.defense.traits
    with jax.enable_x64(precise):
        shared = double((learner.floats, learner.side, data.fixed, extra))
        per_lane = double((data.target, data.rows))
        each = jax.tree.leaves(per_lane)
        m = len(each[0]) if each else runs
        if method != "train":  # shadow models and target models share one program
            engine = engine.few(m)
        tiles = _Sweep(method, learner, key, shared, per_lane, m, engine, what, then)
        return tiles.affordable().run()


class _Sweep(NamedTuple):
    """The tiles of one sweep."""

    method: str
    learner: Learner
    key: Any
    shared: tuple  # (floats, side, fixed, extra)
    per_lane: tuple  # (target, rows) of every lane, or None
    m: int
    engine: Engine
    what: str
    then: Callable | None = None

    def affordable(self) -> _Sweep:
        """Return the sweep with a tile that fits the budget, if it may be cut."""
        lanes = self.engine.lanes
        if not self.engine.shrink:
            return self
        need, budget = _bytes(self._analysed(1)), lanes.memory_gib * 2**30
        if need <= budget:
            return self
        smaller = lanes._replace(tile=max(1, int(lanes.tile * budget // need)))
        return self._replace(engine=self.engine._replace(lanes=smaller))

    def run(self) -> Any:
        tiles, address = range(self._tiles()), self._address()
        shards = self._stored(tiles, address)
        self._forget(shards, address)  # of a run that was killed in between
        trusted = set() if self.engine.trusted is None else self.engine.trusted
        if not address or address not in trusted:
            self._check_stored(shards)
            self._report(len(shards))
        shapes = self._program().eval_shape(*self._arguments([0]))
        whole = jax.tree.map(
            lambda a: np.empty((self.m, *a.shape[1:]), a.dtype), shapes
        )
        self._place(shards, whole)
        done = len(shards)
        for finished in self._compute([t for t in tiles if t not in shards]):
            self._keep(finished, address)
            self._place(finished, whole)
            done += len(finished)
            self._report(done)
        trusted.add(address)
        return whole

    def _tiles(self) -> int:
        return -(-self.m // self.engine.lanes.tile)

    def _once(self) -> bool:
        """Return whether one tile is all that the program computes.

        What trains the runs that are attacked also trains shadow models.
        """
        return self.method != "train" and self._tiles() == 1

    def _place(self, shards: dict[int, list[np.ndarray]], whole: Any) -> None:
        """Copy tiles to where they belong in the arrays of all lanes."""
        size = self.engine.lanes.tile
        for t, leaves in shards.items():
            for leaf, lanes in zip(leaves, jax.tree.leaves(whole), strict=True):
                part = lanes[t * size : (t + 1) * size]
                part[:] = leaf[: len(part)]

    def _report(self, tiles: int) -> None:
        done, what = tiles * self.engine.lanes.tile, self.what or self.learner.label
        self.engine.report(what, min(done, self.m), self.m)

    def _program(self, devices: int = 1) -> Any:
        recipe, once = self.learner.recipe, self._once()
        return _program(self.method, recipe, devices, self.then, once)

    def _arguments(self, tiles: list[int]) -> tuple:
        size = self.engine.lanes.tile
        return self.shared, self.key, *lanes_of(tiles, size, self.m, self.per_lane)

    def _compute(self, tiles: list[int]) -> Iterator[dict[int, list[np.ndarray]]]:
        """Yield finished tiles, as many in flight as the memory budget holds.

        Each core of a processor computes one: most steps of a program are too small to
        keep two busy. The next tiles are computed while the caller writes those that it
        gets.
        """
        if not tiles:
            return
        if self.engine.elsewhere is not None and len(tiles) > 1:
            yield from self.engine.elsewhere(self._portable(), tiles)
            return
        devices = self._devices()
        groups = [tiles[i : i + devices] for i in range(0, len(tiles), devices)]
        flight, cores = self._in_flight(devices)
        counted = self._counted(len(groups))
        program = self._by_parts(devices, counted) or self._program(devices)
        shared = jax.device_put(self.shared)  # once, not with every tile

        def run(group: list[int]) -> Any:
            padded = group + [group[-1]] * (devices - len(group))
            return program(shared, *self._arguments(padded)[1:])

        futures: list[Future] = []  # of the first groups
        with Cores(cores) as pool, counted:
            while groups:
                try:
                    begun = len(futures)
                    futures += [pool.submit(run, g) for g in groups[begun:flight]]
                    leaves = jax.device_get(jax.tree.leaves(futures[0].result()))
                except jax.errors.JaxRuntimeError as error:
                    wait(futures)  # for the memory that they hold
                    flight, futures = _fewer(flight, error, self.engine.lanes), []
                    continue
                finished, groups, futures = groups[0], groups[1:], futures[1:]
                size = self.engine.lanes.tile
                yield {
                    t: [a[i * size : (i + 1) * size] for a in leaves]
                    for i, t in enumerate(finished)
                }

    def _devices(self) -> int:
        """Return on how many devices tiles are computed, however many are stored."""
        return min(self.engine.devices, self._tiles())

    def _stepwise(self) -> Stepwise | None:
        """Return the method if its runs are so long that their states are saved."""
        run = getattr(self.learner.defense, self.method, None)
        long = (
            isinstance(run, Stepwise) and 0 < self.engine.lanes.checkpoint < run.steps
        )
        return run if long else None

    def _counted(self, groups: int) -> SideBySide:
        """Return what counts the steps of so many groups of runs in parts."""
        run, label = self._stepwise(), self.what or self.learner.label
        report = partial(self.engine.report, f"{label}: steps")
        return SideBySide(report, run.steps * groups if run else 0)

    def _by_parts(self, devices: int, counted: SideBySide) -> Callable | None:
        """Return the program, computed part by part; None = runs are short."""
        run, store = self._stepwise(), self.engine.store
        if run is None:
            return None
        parts, every = self._parts(devices), self.engine.lanes.checkpoint

        def program(*arguments: Any) -> Any:
            tiles = arguments[2][:: self.engine.lanes.tile] // self.engine.lanes.tile
            runs = tuple(NAME.format(t) for t in tiles)
            saved = store and Checkpoints(store, self._address(), runs)
            state = run_in_parts(
                lambda: parts.begin(*arguments),
                lambda state, *steps: parts.advance(*arguments, state, *steps),
                run.steps,
                every,
                saved,
                partial(counted.count, runs),
            )
            return parts.finish(*arguments, state)

        return program

    def _portable(self) -> Tiles:
        recipe, size = self.learner.recipe, self.engine.lanes.tile
        need = _bytes(self._analysed(1))
        given = self.shared, self.key, self.per_lane, self.m, size, need
        run = self._stepwise()
        return Tiles(self.method, recipe, self.then, *given, run.steps if run else None)

    def _in_flight(self, devices: int) -> tuple[int, int]:
        """Return how many groups of tiles fit the budget, by the compiler's count.

        And how many threads call them: 1 for what several devices compute. Runs in
        parts are in flight while a core computes them, and one at a time on a GPU.
        """
        in_parts, on_cpu = self._stepwise(), jax.default_backend() == "cpu"
        if in_parts and (devices > 1 or not on_cpu):
            return 1, 1
        budget = self.engine.lanes.memory_gib * 2**30
        compiled = self._analysed(devices)
        flight = int(min(8, max(1, budget // max(_bytes(compiled), 1))))
        if devices > 1:
            return flight, 1
        if not on_cpu:
            return flight, min(flight, COPYING)
        called = [compiled, *self._lowered(devices)[1:]]
        cores = min(flight, *map(cores_for, called))
        return cores if in_parts else flight, cores

    def _analysed(self, devices: int) -> Any:
        """Return the compiled program, for what the compiler says of it."""
        ahead = self.engine.ahead
        if ahead is not None:
            ahead.wait(self._signature(devices))
        compiled = self._compiled(devices)
        if ahead is not None and not self._stepwise():
            for learner in ahead.learners:
                self._compile_ahead(ahead, learner, devices)
        return compiled

    def _compiled(self, devices: int) -> Any:
        return self._lowered(devices)[0].compile()

    def _lowered(self, devices: int) -> list[Any]:
        """Return the program; or that of a part, and what comes before and after it."""
        arguments = self._arguments([0] * devices)
        if not self._stepwise():
            return [self._program(devices).lower(*arguments)]
        parts = self._parts(devices)
        state = parts.begin(*arguments)  # a shape alone has not its place on devices
        part = parts.advance.lower(*arguments, state, 0, 1)
        return [
            part,
            parts.begin.lower(*arguments),
            parts.finish.lower(*arguments, state),
        ]

    def _parts(self, devices: int) -> Parts:
        return _parts(self.method, self.learner.recipe, devices, self.then)

    def _signature(self, devices: int) -> Hashable:
        """Return what tells the program from others, arguments' shapes included."""
        leaves, tree = jax.tree.flatten(self._arguments([0] * devices))
        shapes = tuple((np.shape(a), str(jax.dtypes.result_type(a))) for a in leaves)
        program = self.method, self.learner.recipe, self.then, self._once()
        return program, tree, shapes

    def _compile_ahead(self, ahead: Ahead, learner: Learner, devices: int) -> None:
        """Compile the same sweep of another defense meanwhile, if it needs that."""
        if learner.recipe == self.learner.recipe:
            return
        shared = *double((learner.floats, learner.side)), *self.shared[2:]
        sweep = self._replace(learner=learner, shared=shared)
        sweep._program(devices)  # in this thread: both must call the one that is kept
        precise = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

        def compiled() -> None:
            with jax.enable_x64(precise):
                sweep._compiled(devices)

        ahead.compile(sweep._signature(devices), compiled)

    # The store ----------------------------------------------------------------------

    def _address(self) -> str:
        """Return the key of everything that can change these runs, described once."""
        store = self.engine.store
        if store is None:
            return ""
        made_of = origin(self.method, self.learner) | {
            "floats, side, fixed, extra": self.shared,
            "target, rows": self.per_lane,
            "then": self.then and self.then.__qualname__,
            "key": self.key,
            "tile": self.engine.lanes.tile,
        }
        # other programs, which round differently
        if self._stepwise():  # computed in parts, of whatever length
            made_of["in parts"] = True
        if (devices := self._devices()) > 1:
            made_of["devices"] = devices
        if self._once():
            made_of["once"] = True
        address = stores.digest(made_of)
        stores.describe(store, address, made_of)
        return address

    def _stored(self, tiles: range, address: str) -> dict[int, list[np.ndarray]]:
        store = self.engine.store
        if store is None:
            return {}
        files = {t: stores.get(store, address, NAME.format(t)) for t in tiles}
        return {
            t: [f[f"leaf_{i}"] for i in range(len(f))] for t, f in files.items() if f
        }

    def _check_stored(self, shards: dict[int, list[np.ndarray]]) -> None:
        """Compute the first stored lane again, and report it if it differs.

        A tile of one lane rounds sums differently, and training may enlarge that: a
        third run, from inputs that differ in their last digit, measures how much. Runs
        so long that their states are saved are not computed again, nor are so few that
        the store would save nothing.
        """
        lanes, tell = self.engine.lanes, self.engine.doubt
        if not shards or tell is None or self._stepwise():
            return
        first, alone_and_nudged = min(shards), 2
        if min(len(shards) * lanes.tile, self.m) <= alone_and_nudged:
            return
        alone = self.engine._replace(lanes=lanes._replace(tile=1))
        one = self._replace(engine=alone)
        program, arguments = one._program(), one._arguments([first * lanes.tile])
        anew, nudged = (
            jax.tree.leaves(jax.device_get(program(*given)))
            for given in (arguments, _nudged(arguments))
        )
        if not same_lane(anew, nudged, shards[first]):
            label = self.learner.label
            tell(label, f"{self.what or label}: stored runs are not what is made now")

    def _keep(self, finished: dict[int, list[np.ndarray]], address: str) -> None:
        store = self.engine.store
        if store is None:
            return
        for t, leaves in finished.items():
            arrays = {f"leaf_{i}": a for i, a in enumerate(leaves)}
            stores.put(store, address, NAME.format(t), arrays)
        self._forget(finished, address)

    def _forget(self, finished: Iterable[int], address: str) -> None:
        """Remove the saved states of tiles that are kept."""
        store = self.engine.store
        if store is not None and self._stepwise():
            names = tuple(NAME.format(t) for t in finished)
            Checkpoints(store, address, names).clear()


def _bytes(compiled: Any) -> int:
    """Return the bytes that one tile per device takes, by the compiler's count."""
    used = compiled.memory_analysis()
    return used.temp_size_in_bytes + used.output_size_in_bytes if used else 0


def _nudged(arguments: tuple) -> tuple:
    """Return a program's arguments, side state and records moved by one rounding."""
    (floats, side, fixed, extra), key, lanes, per_lane = arguments
    rng = np.random.default_rng(0)

    def nudge(a: Any) -> Any:
        if not np.issubdtype(a.dtype, np.floating):
            return a
        sign = rng.choice(np.array([-1, 1], a.dtype), a.shape)
        return a * (1 + sign * np.finfo(a.dtype).eps)

    side, fixed, per_lane = jax.tree.map(nudge, (side, fixed, per_lane))
    return (floats, side, fixed, extra), key, lanes, per_lane


def same_lane(
    anew: list[np.ndarray], nudged: list[np.ndarray], stored: list[np.ndarray]
) -> bool:
    """Return whether the first lane of a stored tile equals the lane computed now.

    Args:
      anew: leaves [1, ...] of the lane, computed in a tile of one.
      nudged: the same from inputs that are one rounding away: how much that changes.
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
