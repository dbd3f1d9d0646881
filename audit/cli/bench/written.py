"""The benchmark as text, JSON and a roofline figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from audit.cli.bench.measure import Benchmark
from audit.cli.bench.rows import TOLERANCE, Row
from audit.report.figures import common

WIDTH = 42  # characters of a row's name


def text(benchmark: Benchmark) -> str:
    """Return the benchmark as a table."""
    m = benchmark.machine
    versions = ", ".join(f"{name} {v}" for name, v in m.versions.items() if v)
    lines = [
        f"{m.device}, {m.threads} threads; float32 products at {m.precision} precision",
        versions,
        f"large square matrix product: {m.square:,.0f} GFLOP/s "
        f"(in the engine's shapes {m.shapes:,.0f}); memory: {m.memory:,.0f} GB/s",
        f"{'':<{WIDTH}} {'per second':>23} {'GFLOP/s':>8} {'of product':>11} "
        f"{'of loop':>9}",
    ]
    for i, row in enumerate(benchmark.rows):
        if not i or row.group != benchmark.rows[i - 1].group:
            lines.append(row.group)
        lines.append(_line(benchmark, row))
    lines += benchmark.notes
    apart = [row.difference for row in benchmark.rows if row.difference is not None]
    if apart:
        lines.append(
            f"weights of the engine and of its rivals differ by {max(apart):.1e} at "
            f"most of what training moved them by; allowed are {TOLERANCE:.0e}"
        )
    return "\n".join(lines)


def _line(benchmark: Benchmark, row: Row) -> str:
    share, digits = benchmark.share(row), 0 if row.per_second >= 100 else 1
    cells = (
        f"{row.per_second:,.{digits}f} {row.unit}",
        f"{row.gflops:,.0f}" if row.gflops >= 1 else "",
        "" if share is None else f"{share:.0%}" if share >= 0.01 else f"{share:.1%}",
        "" if row.of_loop is None else f"{row.of_loop:,.1f}x",
    )
    name = f"  {row.name}"
    line = f"{name:<{WIDTH}} {cells[0]:>23} {cells[1]:>8} {cells[2]:>11} {cells[3]:>9}"
    return line.rstrip()


def plain(benchmark: Benchmark) -> dict[str, Any]:
    """Return the benchmark as JSON can hold it."""
    rows = [
        row._asdict() | {"gflops": row.gflops, "of_product": benchmark.share(row)}
        for row in benchmark.rows
    ]
    machine = benchmark.machine._asdict()
    return {"machine": machine, "rows": rows, "notes": list(benchmark.notes)}


def roofline(benchmark: Benchmark) -> Any:
    """Draw GFLOP/s against operations per byte, under what the machine can do.

    Bytes that stay in a cache are counted as well: a point may lie above the line of
    memory.
    """
    drawn = [row for row in benchmark.rows if row.intensity is not None]
    m = benchmark.machine
    figure, [[axis]] = common.grid(1, 1, (6.4, 4.2))
    if not drawn:
        axis.text(0.5, 0.5, "no row of models was measured", ha="center")
        return figure
    x = [float(row.intensity or 0) for row in drawn]
    low, high = min(*x, m.square / m.memory) / 4, max(*x, m.square / m.memory) * 4
    ends = np.geomspace(low, high, 200)
    axis.plot(ends, np.minimum(m.square, m.memory * ends), color=common.INK, lw=1)
    axis.text(
        high, m.square, f"large square product, {m.square:,.0f} GFLOP/s ",
        ha="right", va="bottom", fontsize=common.SMALL,
    )  # fmt: skip
    edge = low * 1.1
    axis.text(
        edge, m.memory * edge, f"memory, {m.memory:,.0f} GB/s", ha="left", va="bottom",
        fontsize=common.SMALL, rotation=math.degrees(math.atan(m.memory)),
        rotation_mode="anchor", transform_rotates_text=True,
    )  # fmt: skip
    models = common.looks(dict.fromkeys(row.group for row in drawn))
    defenses = common.looks(dict.fromkeys(row.name for row in drawn))
    for row in drawn:  # a shape per model, a colour per defense
        shape = {"marker": models[row.group].marker, "color": defenses[row.name].color}
        axis.scatter(float(row.intensity or 0), row.gflops, **shape, s=24, zorder=3)
    for name, look in models.items():
        axis.scatter([], [], marker=look.marker, color=common.MUTED, label=name)
    for name, look in defenses.items():
        axis.plot([], [], lw=4, color=look.color, label=name)
    axis.set(
        xscale="log", yscale="log", xlim=(low, high),
        xlabel="operations per byte that the program reads or writes",
        ylabel="GFLOP/s of the matrix products",
    )  # fmt: skip
    common.legend_below(figure, columns=5)
    return figure


def write(benchmark: Benchmark, folder: Path) -> list[Path]:
    """Write `bench.txt`, `bench.json` and `roofline.png`; return their paths."""
    paths = [folder / name for name in ("bench.txt", "bench.json", "roofline.png")]
    paths[0].write_text(text(benchmark) + "\n")
    paths[1].write_text(json.dumps(plain(benchmark), indent=1, allow_nan=False) + "\n")
    common.save(roofline(benchmark), paths[2])
    return paths
