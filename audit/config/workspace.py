"""What a run needs before it starts: a folder, a store, a configured JAX."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from audit.config import code, objects, registry
from audit.config.compose import Scenario
from audit.data import untrusted
from audit.engine import store as stores
from audit.errors import UserError

if TYPE_CHECKING:
    from audit.engine.progress import Progress
    from audit.engine.shadow import Engine


MOST_BYTES = 2**26  # of a card
# objects made between searches for garbage: JAX makes and keeps many, and with Python's
# 700 the searches take 3 seconds of a first run
COLLECT = 50_000
MALLOC = {  # parameters of malloc.h
    -8: 2,  # M_ARENA_MAX, heaps
    -3: 2**30,  # M_MMAP_THRESHOLD, bytes from which memory is not of a heap
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD, bytes that a heap may keep at its end
    -2: 2**26,  # M_TOP_PAD, bytes by which it grows at least
}


def folder_of(typed: str) -> Path:
    """Return the folder that a word names: `~` is home, as in a shell."""
    return Path(os.path.expanduser(typed))


def place(scenario: Scenario, runs: Path) -> tuple[Path, str]:
    """Return where a run's results go, and the digest of what can change them."""
    digest = stores.digest(scenario.resolved())
    name = f"{scenario.spec.name}-{scenario.data}-{digest[:8]}"
    out = scenario.spec.out
    return folder_of(out) if out else runs / name, digest


def code_version(scenario: Scenario) -> str:
    """Return a hash of the code that can change a scorecard: `scorecard.json`'s `code`.

    The plug-ins of the line-up, and every room of the suite up to the pipeline.
    Installed packages do not count: their versions stand beside it.
    """
    line_up = {p for k, name in used(scenario) for p in registry.sources(k, name)}
    places = [registry.place(*plugin) for plugin in used(scenario)]
    files = code.version([*line_up, *code.up_to(code.SCORING)])
    objs = [objects.version(at.factory) for at in places if at.factory is not None]
    return stores.digest(files, sorted(objs)) if objs else files


def used(scenario: Scenario) -> list[tuple[str, str]]:
    """Return kind and name of every plug-in of the line-up, once each.

    Models and data sets count where they are not the suite's own.
    """
    line_ups = scenario.line_ups.items()
    every = {(kind, entry.name) for kind, line in line_ups for entry in line}
    model, name = scenario.spec.task.model, scenario.spec.data
    every |= {("model", model)} - {("model", n) for n in registry.built_in("model")}
    every |= {("data", name)} & {("data", n) for n in registry.names("data")}
    return sorted(every)


def from_elsewhere(scenario: Scenario) -> list[dict[str, str]]:
    """Return what of a scenario is not the suite's own: kind, name, origin, code."""
    origins = [registry.elsewhere(*plugin) for plugin in used(scenario)]
    return [origin for origin in (*origins, scenario.elsewhere) if origin is not None]


def open_folder(scenario: Scenario, runs: Path) -> tuple[Path, str]:
    """Make the run's folder and prove it can be written; return it and the digest.

    The default name holds the digest of everything that can change a number, so the
    same command finds the same folder, and two different runs never share one. Raises
    UserError if it cannot be written, or holds another run.
    """
    folder, digest = place(scenario, runs)
    stores.make_writable(folder, "out")
    card, before = folder / "scorecard.json", None
    broken = (UserError, ValueError, KeyError, TypeError, OSError, RecursionError)
    with contextlib.suppress(*broken):
        text = untrusted.text(card)
        before = json.loads(text)["provenance"]["scenario_digest"]
    if card.exists() and before != digest:
        raise UserError(
            f"out={folder} holds the scorecard of another run; name another folder or "
            f"remove it"
        )
    ours = ("scorecard.*", "report.html", "*.png") if scenario.spec.out else ()
    files = sorted(path.name for name in ours for path in folder.glob(name))
    if files and before is None:
        raise UserError(
            f"out={folder} holds {files[0]} and no scorecard: a run would write over "
            f"it; name another folder"
        )
    return folder, digest


def engine(scenario: Scenario, folder: Path, runs: Path, progress: Progress) -> Engine:
    """Return tiles, store and progress for one scenario."""
    from audit.engine.shadow import Engine

    spec = scenario.spec
    place = (folder if spec.out else runs) / "store"
    if spec.store:
        place = folder_of(spec.store)
    once = functools.cache(progress.note)  # a full disk is told of by every shard
    store = stores.open_store(place, once)
    elsewhere = connected(scenario)
    return Engine(
        scenario.lanes,
        store,
        progress.report,
        results=store,
        activity=progress.activity,
        elsewhere=elsewhere,
    )


def connected(scenario: Scenario) -> Callable | None:
    """Return what computes tiles, once it is there; None = this process.

    Raises:
      UserError: if Ray or its cluster is not there.
    """
    if scenario.spec.engine == "local":
        return None
    from audit.engine import cluster

    cluster.connect()
    return cluster.compute


def prepare_jax() -> None:
    """Ask for full float32 products, and compile each program once per machine."""
    import jax

    from audit.data.dataset import cache_folder

    _tune_malloc()
    gc.set_threshold(COLLECT)
    jax.config.update("jax_default_matmul_precision", "highest")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))


def _tune_malloc() -> None:
    """Let threads share two heaps that keep what is freed, where glibc allocates.

    A thread that compiles leaves hundreds of MiB in a heap of its own, which no other
    thread uses; a first run took 2.1 GiB instead of 1.7. Arrays of a program that go
    back to the system come again page by page, which takes up to a sixth of the time of
    dense networks.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in MALLOC.items():
            mallopt(ctypes.c_int(parameter), ctypes.c_int(value))
