"""The state of one long run, saved now and then: a run that is stopped goes on from it.

A state is a shard of the store, under the key of the run and a name that tells how many
steps it has taken. The new one is whole before the old one goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.engine import store as stores

SECONDS = 60.0  # between two saved states
NAME = "{}-step-{}"


class Checkpoints(NamedTuple):
    """The saved states of some runs that go on together, each with its own shard."""

    store: stores.Store
    key: str  # of the sweep, in the store
    runs: tuple[str, ...]  # their names; leaves of several have an equal part for each

    def load(self) -> tuple[int, list[np.ndarray]] | None:
        """Return the steps taken and the leaves of the last whole state, if any.

        None where not all of the runs have taken as many.
        """
        steps = [set(self._saved(run)) for run in self.runs]
        for step in sorted(set.intersection(*steps), reverse=True):
            names = (NAME.format(run, step) for run in self.runs)
            shards = [stores.get(self.store, self.key, name) for name in names]
            whole = [shard for shard in shards if shard is not None]
            if len(whole) == len(shards):
                leaves = ([s[f"leaf_{i}"] for s in whole] for i in range(len(whole[0])))
                alone = len(self.runs) == 1
                return step, [p[0] if alone else np.concatenate(p) for p in leaves]
        return None

    def save(self, step: int, leaves: list[np.ndarray]) -> None:
        """Keep a state, and no other."""
        n = len(self.runs)
        split = ([a] if n == 1 else np.split(a, n) for a in leaves)
        parts = zip(*split, strict=True)
        for run, part in dict(zip(self.runs, parts, strict=True)).items():
            old = self._saved(run)
            if step not in old:
                arrays = {f"leaf_{i}": a for i, a in enumerate(part)}
                stores.put(self.store, self.key, NAME.format(run, step), arrays)
                self._remove(run, old)

    def clear(self) -> None:
        """Remove what is left of runs that are finished."""
        for run, steps in self._states():
            if run in self.runs:
                self._remove(run, [steps])

    def _saved(self, run: str) -> list[int]:
        """Return after how many steps there is a state of a run."""
        return [steps for whose, steps in self._states() if whose == run]

    def _states(self) -> list[tuple[str, int]]:
        """Return every run with a state, and after how many steps."""
        split = (n.rpartition("-step-") for n in stores.names(self.store, self.key))
        return [(run, int(s)) for run, _, s in split if run and s.isdecimal()]

    def _remove(self, run: str, steps: list[int]) -> None:
        for step in steps:
            stores.remove(self.store, self.key, NAME.format(run, step))


class SideBySide:
    """Runs in parts of which each core computes one; a context that they end with.

    Their steps are counted together. What ends one of them, or the context, ends every
    other after the part that it is in, with its state saved.

    Args:
      report: called with the steps that all of them have taken, and with how many there
        are; one call at a time.
      steps: of all runs.
    """

    def __init__(self, report: Callable[[int, int], None], steps: int) -> None:
        self.report, self.steps = report, steps
        self.taken: dict[tuple[str, ...], int] = {}
        self.error: BaseException | None = None
        self.lock = threading.Lock()

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, _: Any, error: BaseException | None, *__: Any) -> None:
        self.error = self.error or error

    def count(self, runs: tuple[str, ...], steps: int) -> None:
        """Report that these runs have taken so many steps; raise what ended another."""
        with self.lock:
            if self.error is not None:
                raise self.error
            self.taken[runs] = steps
            try:
                self.report(sum(self.taken.values()), self.steps)
            except BaseException as error:
                self.error = error
                raise


def run_in_parts(
    begin: Callable[[], Any],
    advance: Callable[[Any, int, int], Any],
    steps: int,
    every: int,
    checkpoints: Checkpoints | None,
    report: Callable[[int], None],
) -> Any:
    """Return the state after `steps` steps, `every` of them at a time.

    Args:
      begin: returns the state before the first step.
      advance: (state, first, last) -> the state after the steps from first to last.
      steps: how many there are.
      every: how many are computed in one piece.
      checkpoints: where states are kept; None = nowhere. Whatever ends the run, the
        last state that was reached is saved.
      report: called with the number of steps taken.
    """
    found = checkpoints.load() if checkpoints is not None else None
    if found is None:
        at, state = 0, begin()
    else:
        shape = jax.tree.structure(jax.eval_shape(begin))
        at, state = found[0], jax.tree.unflatten(shape, found[1])
    saved = time.monotonic()

    def save() -> None:
        if checkpoints is not None and at:
            checkpoints.save(at, jax.tree.leaves(jax.device_get(state)))

    try:
        report(at)
        while at < steps:
            last = min(at + every, steps)
            state, at = jax.block_until_ready(advance(state, at, last)), last
            if time.monotonic() - saved >= SECONDS:
                save()
                saved = time.monotonic()
            report(at)
    except BaseException:
        save()
        raise
    return state
