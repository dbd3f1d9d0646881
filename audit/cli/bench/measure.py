"""The benchmark as a whole: the machine, then the rows of every group."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from audit.cli.bench import pytorch
from audit.cli.bench.clock import memory_rate, shapes_rate, square_rate
from audit.cli.bench.rows import GROUPS, Activity, Row
from audit.cli.bench.subjects import FIXED, PIXELS, sized
from audit.engine import store
from audit.engine.program import threads
from audit.errors import UserError, did_you_mean


class Machine(NamedTuple):
    """What it was measured on, and what that could do at best."""

    device: str
    threads: int
    precision: str  # of float32 products
    versions: dict[str, str | None]
    square: float  # GFLOP/s of the best large square product, before or after the rows
    shapes: float  # GFLOP/s of a linear step's products alone
    memory: float  # GB/s


class Benchmark(NamedTuple):
    """All that was measured in one run."""

    machine: Machine
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def share(self, row: Row) -> float | None:
        """Return the share of the large square product that a row reaches."""
        return row.gflops / self.machine.square if row.operations else None

    @property
    def unequal(self) -> list[Row]:
        """The rows whose weights differ from a rival's by more than rounding."""
        return [row for row in self.rows if not row.equal]


def groups(typed: str) -> list[str]:
    """Return the groups that `rows=A,B` names.

    Raises:
      UserError: naming the one that does not exist.
    """
    names = [name.strip() for name in typed.split(",")]
    for name in names:
        if name not in GROUPS:
            raise UserError(f"unknown rows {name!r}{did_you_mean(name, GROUPS)}")
    return [name for name in GROUPS if name in names]


def measure(
    chosen: Iterable[str] = GROUPS, activity: Activity = contextlib.nullcontext
) -> Benchmark:
    """Run the groups of rows that were chosen; `activity` says what goes on."""
    chosen, d = list(chosen), int(np.prod(PIXELS))
    with activity("matrix products"):
        before = square_rate()
        shapes, memory = shapes_rate(sized("linear").tile, FIXED, d), memory_rate()
    rows = tuple(row for name in chosen for row in GROUPS[name](name, activity))
    with activity("matrix products, once more"):
        square = max(before, square_rate())
    device, notes = jax.devices()[0], tuple[str, ...]()
    versions = store.versions()
    if "pytorch" in chosen and pytorch.installed():
        versions["torch"] = pytorch.version()
    elif "pytorch" in chosen:
        notes = ("PyTorch is not installed: its rows are left out",)
    precision = getattr(jax.config, "jax_default_matmul_precision", None) or "default"
    name = _processor() if device.platform == "cpu" else device.device_kind
    machine = Machine(
        f"{device.platform}: {name}", threads(), precision, versions, square, shapes,
        memory,
    )  # fmt: skip
    return Benchmark(machine, rows, notes)


def _processor() -> str:
    """Return what the processor is called."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or os.uname().machine
