"""Programs side by side: each core of a processor computes one.

XLA computes one program at a time, and most steps of the programs here are too small to
keep two cores busy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from audit.engine.program import threads

# Libraries that XLA calls wait for XLA's threads, LAPACK where it factors several
# matrices: two programs that call one wait for each other for ever where XLA has two.
CALL = "custom_call"
CALLS = re.compile(CALL + r'(?:_target="| @)(\w+)')
HARMLESS = {"TopK", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
LAPACK = "lapack_"
SHAPES = re.compile(r"\w\d+\[([\d,]+)\]|tensor<((?:\d+x)+)")  # of a program's arrays

COPYING = 3  # programs of a GPU at a time: one copied in, one computed, one copied out


def cores_for(program: Any) -> int:
    """Return on how many cores a lowered or compiled program is computed side by side.

    On one where a GPU computes, and where the program calls a library; but for LAPACK
    where each call factors a single matrix.
    """
    if jax.default_backend() != "cpu":
        return 1
    calls = [line for line in program.as_text().splitlines() if CALL in line]
    return 1 if any(map(_waits, calls)) else threads()


def _waits(line: str) -> bool:
    """Return whether a call in a program waits for XLA's threads."""
    libraries = set(CALLS.findall(line)) - HARMLESS
    if not all(name.startswith(LAPACK) for name in libraries):
        return True
    sizes = (re.findall(r"\d+", a or b) for a, b in SHAPES.findall(line))
    return bool(libraries) and any(math.prod(map(int, n[:-2])) > 1 for n in sizes)


class Cores:
    """Threads that call programs, configured as JAX is where they are made; a context.

    With one, `submit` itself calls the program, and JAX computes while the caller goes
    on.
    """

    def __init__(self, number: int) -> None:
        self.number, self.threads = number, ThreadPoolExecutor(number)
        config: Any = jax.config
        self.precise = config.jax_enable_x64
        self.partitionable = config.jax_threefry_partitionable

    def __enter__(self) -> Cores:
        return self

    def __exit__(self, *_: Any) -> None:
        self.threads.shutdown(wait=True, cancel_futures=True)

    def submit(self, program: Callable, *arguments: Any) -> Future:
        """Return a future of what the program returns."""
        if self.number > 1:
            return self.threads.submit(self._computed, program, *arguments)
        future: Future = Future()
        future.set_result(program(*arguments))
        return future

    def _computed(self, program: Callable, *arguments: Any) -> Any:
        with (
            jax.enable_x64(self.precise),
            jax.threefry_partitionable(self.partitionable),
        ):
            return jax.device_get(program(*arguments))
