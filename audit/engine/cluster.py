"""Tiles on a Ray cluster: the same tiles as here, computed elsewhere, to the same bits.

The cluster is the one of RAY_ADDRESS, or one that is made on the spot of this machine's
cores. A tile is a task. What all tiles share is put into the object store once, as
NumPy arrays that workers read without a copy; results come back, and the caller keeps
them, so that the store has one writer. A tile is a pure function of what it is given:
one whose worker died is computed again, elsewhere. Workers compute with as many threads
as the caller, on which rounding depends, and each keeps to a core of its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.engine.program import Recipe, lanes_of, program, program_in_parts, threads
from audit.errors import UserError

RETRIES = 3  # of a tile whose worker died
AHEAD = 4  # tiles per worker that are asked for before one is done
CONFIG = ("jax_default_matmul_precision", "jax_compilation_cache_dir")


class Tiles(NamedTuple):
    """The tiles of one sweep."""

    method: str
    recipe: Recipe
    then: Any
    shared: tuple  # (floats, side, fixed, extra)
    key: Any
    per_lane: tuple  # (target, rows) of every lane, or None
    m: int  # lanes
    size: int  # lanes of a tile
    bytes: int  # of one tile in memory
    steps: int | None = None  # of what is computed in parts; a worker saves none


class Settings(NamedTuple):
    """What a worker has in common with the caller."""

    paths: tuple[str, ...]  # where modules are found
    threads: int
    backend: str
    config: dict[str, Any]
    precise: bool
    partitionable: bool


def connect() -> Any:
    """Return Ray, connected to the cluster of RAY_ADDRESS or to one made now.

    Raises:
      UserError: if Ray is not installed, or there is no such cluster.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent
        # Ray may not hide GPUs from tasks that ask for none: JAX_PLATFORMS says it
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
    except ImportError:
        raise UserError(
            "engine=ray needs the extra `ray`: pip install 'breachmark[ray]'"
        ) from None
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    given: dict[str, Any] = {"address": address} if address else {
        "address": "local", "include_dashboard": False
    }  # fmt: skip
    try:
        with _own_signals(), warnings.catch_warnings():
            # JAX warns of forks; what Ray forks becomes another program at once
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(**given, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        why = str(error).split("\n")[0]
        raise UserError(f"engine=ray: RAY_ADDRESS={address}: {why}") from None
    return ray


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what SIGTERM does to this process: Ray would end it with a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def compute(work: Tiles, tiles: list[int]) -> Iterator[dict[int, list[np.ndarray]]]:
    """Yield the leaves of finished tiles, in the order in which they end.

    Raises:
      UserError: if the workers have other devices than the caller, or a tile's workers
        died more than `RETRIES` times.
      MemoryError: if a tile does not fit a worker.
    """
    ray = connect()
    task = ray.remote(**_resources(ray, work))(_tile)
    arrays = ray.put(_arrays(work))
    program = _put(ray, work)
    given = settings()
    waiting, running = list(tiles), dict[Any, int]()
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        while waiting or running:
            while waiting and len(running) < most:
                tile = waiting.pop(0)
                running[task.remote(program, arrays, given, tile)] = tile
            (done,), _ = ray.wait(list(running), num_returns=1)
            yield {running.pop(done): _result(ray, done)}
    finally:
        for left in running:
            ray.cancel(left, force=True)


def _arrays(work: Tiles) -> tuple:
    """Return what all tiles share, as NumPy arrays.

    An array of JAX's, a key too, would start JAX where it is read, before the worker
    keeps to a core of its own.
    """
    key = jax.random.key_data(work.key), str(jax.random.key_impl(work.key))
    return (*jax.device_get((work.shared, *key, work.per_lane)), work.m, work.size)


def _result(ray: Any, done: Any) -> list[np.ndarray]:
    try:
        return [np.array(leaf) for leaf in ray.get(done)]
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        why = str(error).strip().split("\n")[0]
        raise UserError(f"engine=ray: a tile's worker died: {why}") from None


def _resources(ray: Any, work: Tiles) -> dict[str, Any]:
    """Return what one tile needs of a node."""
    retries = {"max_retries": RETRIES, "retry_exceptions": [OSError]}
    if jax.default_backend() != "cpu":  # `max_calls`: a worker keeps what it compiled
        return {**retries, "num_cpus": 1, "num_gpus": 1, "max_calls": 0}
    most = largest_memory(ray)
    if work.bytes > most:
        raise MemoryError(
            f"one tile of {work.size} lanes needs {work.bytes / 2**30:.1f} GiB, the "
            f"largest node has {most / 2**30:.1f}: set lanes.tile to "
            f"{max(1, work.size // 2)} or less"
        )
    return {**retries, "num_cpus": 1, "memory": work.bytes}


def largest_memory(ray: Any) -> int:
    """Return the most bytes that any node of the cluster offers."""
    offers = (node["Resources"].get("memory", 0) for node in ray.nodes())
    return int(max(offers, default=0))


def _put(ray: Any, work: Tiles) -> tuple[str, list[Any]]:
    """Give the cluster the program; what no worker can import goes with it.

    Returns:
      What tells the program from others, and where it is: in a list, for Ray would
      otherwise fetch it for every tile.
    """
    from ray import cloudpickle

    made_of = (work.recipe.factory, work.then, *work.recipe.task)
    names = {getattr(part, "__module__", None) or "audit" for part in made_of}
    foreign = [sys.modules[n] for n in names if n in sys.modules and not _findable(n)]
    for module in foreign:
        cloudpickle.register_pickle_by_value(module)
    try:
        parts = work.method, work.recipe, work.then, work.steps
        return hashlib.sha256(cloudpickle.dumps(parts)).hexdigest(), [ray.put(parts)]
    finally:
        for module in foreign:
            cloudpickle.unregister_pickle_by_value(module)


def _findable(name: str) -> bool:
    """Return whether another process can import a module by its name.

    Plug-ins that are loaded from a file have a name that nobody else can find.
    """
    top = name.partition(".")[0]
    built_in = top in sys.builtin_module_names
    return built_in or PathFinder.find_spec(top) is not None


def settings() -> Settings:
    """Return what workers are given of this process."""
    return Settings(
        tuple(sys.path),
        threads(),
        jax.default_backend(),
        {name: getattr(jax.config, name) for name in CONFIG},
        bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        bool(jax.config.jax_threefry_partitionable),  # type: ignore[attr-defined]
    )


# In a worker --------------------------------------------------------------------------


def _tile(
    program: tuple[str, list[Any]], arrays: tuple, settings: Settings, tile: int
) -> list[np.ndarray]:
    """Compute one tile."""
    from threadpoolctl import threadpool_limits

    _prepare(settings)
    shared, key_data, impl, per_lane, m, size = arrays
    key = jax.random.wrap_key_data(key_data, impl=impl)
    lanes, rows = lanes_of([tile], size, m, per_lane)
    with (
        threadpool_limits(limits=1, user_api="blas"),  # as the pipeline has it
        jax.enable_x64(settings.precise),
        jax.threefry_partitionable(settings.partitionable),
    ):
        try:
            outputs = _compiled(*program)(shared, key, lanes, rows)
            return jax.device_get(jax.tree.leaves(outputs))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            less = max(1, size // 2)
            raise MemoryError(
                f"one tile of {size} lanes does not fit a worker: set lanes.tile to "
                f"{less} or less"
            ) from None


def _prepare(settings: Settings) -> None:
    """Give the worker what it has in common with the caller, before it uses JAX."""
    sys.path += [path for path in settings.paths if path not in sys.path]
    for name in ("NPROC", "PJRT_NPROC"):
        os.environ[name] = str(settings.threads)
    if settings.backend == "cpu":
        own_core()
        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")
    for name, value in settings.config.items():
        jax.config.update(name, value)
    if jax.default_backend() != settings.backend:
        raise UserError(
            f"engine=ray: the command runs on {settings.backend}, a worker on "
            f"{jax.default_backend()}: results would not be the same"
        )


@functools.cache
def own_core() -> Any:
    """Keep to a core that no other worker of this machine has, where one is free.

    Workers that share cores wait for each other; how many threads a worker computes
    with, and hence what it computes, is the same. The lock ends with the process.
    """
    if not hasattr(os, "sched_setaffinity"):  # Linux alone can
        return None
    import fcntl

    folder = Path(tempfile.gettempdir()) / f"breachmark-cores-{os.getuid()}"
    for core in sorted(os.sched_getaffinity(0)):
        with contextlib.suppress(OSError):  # another's, or no folder of ours
            folder.mkdir(exist_ok=True)
            lock = (folder / str(core)).open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.sched_setaffinity(0, {core})
            return lock
    return None


COMPILED: dict[str, Any] = {}  # programs of a worker


def _compiled(name: str, where: list[Any]) -> Any:
    """Return a program, compiled once in every worker."""
    import ray

    if name not in COMPILED:
        method, recipe, then, steps = ray.get(where[0])
        if steps is not None:
            COMPILED[name] = program_in_parts(method, recipe, then, steps)
        else:
            COMPILED[name] = program(method, recipe, 1, then, False)
    return COMPILED[name]
