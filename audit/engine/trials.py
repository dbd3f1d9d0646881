"""Whole runs on a Ray cluster, each as the command that makes it.

A run of one long model has one tile, so that only whole runs can be computed side by
side. A task is the command itself, in a process of its own, in the caller's folder: the
nodes must share it, and the store. It computes with as many threads as the caller, on
which rounding depends, and keeps to a core of its own, so that its card has the bits of
the same command here. A command that is stopped, or whose worker died, goes on from the
states that it saved.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from audit.engine import cluster
from audit.errors import UserError
from audit.types import Lanes

KEPT = ("AUDIT_DATA", "AUDIT_CACHE")  # of the caller's environment
GRACE = 60  # seconds in which a command that is told to end saves its state


class RemoteRun(NamedTuple):
    """One run, and what it needs of a node."""

    command: str  # python -m audit run ...
    memory: int  # bytes


def remote(command: str, lanes: Lanes) -> RemoteRun:
    """Return the run of a command whose tiles take the memory of `lanes`."""
    return RemoteRun(command, int(lanes.memory_gib * 2**30))


class Ended(NamedTuple):
    """How a run ended."""

    command: str
    code: int | None  # exit code; None = there was no time left
    last: str  # line that it printed


def announce(
    trials: Sequence[RemoteRun], until: float | None, say: Callable[[str], None]
) -> Iterator[Ended]:
    """Do what `compute` does, and say of each run how it ended."""
    how = {None: "no time left", 0: "finished"}
    for i, ended in enumerate(compute(trials, until), 1):
        words = how.get(ended.code, f"exit code {ended.code}: {ended.last}")
        say(f"{i} of {len(trials)}: {words}: {ended.command}")
        yield ended


def compute(trials: Sequence[RemoteRun], until: float | None = None) -> Iterator[Ended]:
    """Run commands side by side, in this order; yield each as it ends.

    Args:
      trials: what to run.
      until: when runs are told to end, in seconds since 1970; None = never.

    Raises:
      UserError: if Ray is not installed, there is no such cluster, or a run's workers
        died more often than tiles may.
    """
    ray, given = cluster.connect(), _given()
    most = cluster.largest_memory(ray)
    running = {
        ray.remote(
            num_cpus=1,
            num_gpus=int(given.backend != "cpu"),
            memory=min(trial.memory, most),
            max_retries=cluster.RETRIES,
        )(_run).remote(trial.command, given, until): trial.command
        for trial in trials
    }
    try:
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            command = running.pop(done)
            try:
                yield Ended(command, *ray.get(done))
            except ray.exceptions.RayError as error:
                why = str(error).strip().split("\n")[0]
                raise UserError(f"engine=ray: {command}: {why}") from None
    finally:
        for left in running:
            ray.cancel(left, force=True)


class _Given(NamedTuple):
    """What a command has in common with the caller."""

    folder: str
    environment: dict[str, str]
    backend: str


def _given() -> _Given:
    settings = cluster.settings()
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    kept = {name: str(Path(value).absolute()) for name, value in kept.items()}
    count = str(settings.threads)
    environment = {
        **kept,
        "PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in settings.paths),
        "NPROC": count,
        "PJRT_NPROC": count,
    }
    if settings.backend == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    return _Given(str(Path.cwd()), environment, settings.backend)


# In a worker --------------------------------------------------------------------------


def _run(command: str, given: _Given, until: float | None) -> tuple[int | None, str]:
    """Run one command; return its exit code and the last line that it printed."""
    left = None if until is None else until - time.time()
    if left is not None and left <= 0:
        return None, ""
    if given.backend == "cpu":
        cluster.own_core()
    words = [sys.executable, *shlex.split(command)[1:]]
    with tempfile.TemporaryFile() as text:
        child = subprocess.Popen(
            words,
            cwd=given.folder,
            env=os.environ | given.environment,
            stdin=subprocess.DEVNULL,
            stdout=text,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_the_worker,
        )
        try:
            code: int | None = child.wait(left)
        except subprocess.TimeoutExpired:
            code = None
            child.terminate()
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        text.seek(0)
        lines = text.read().decode(errors="replace").split("\n")
    return code, next((line for line in reversed(lines) if line.strip()), "")


def _end_with_the_worker() -> None:
    """Have the system end this process, saving its state, when the worker dies."""
    if sys.platform == "linux":  # no other system can
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
