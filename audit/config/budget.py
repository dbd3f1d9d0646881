"""Whether training can end: lower bounds of memory and time, before it starts.

Both are low on purpose. Memory is what the releases of one kind of runs hold, and
parameters and gradient of every lane of one tile, which is as large as the game makes
it. Time is four operations per step, record and parameter, of the referee's runs, the
attackers' and those of the accounting, at a speed no such device exceeds. What is
refused is hopeless; what is not may still be slow, and the engine counts the bytes of a
tile as the compiler does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from audit.errors import UserError

DAY = 24 * 60 * 60  # seconds
GIB = 2**30
# operations per second: of one core, and of any other device
CORE, ACCELERATOR = 2e11, 1e15


class Workload(NamedTuple):
    """What training one defense for an audit consists of."""

    where: str  # what is trained, for messages
    held: Mapping[str, int]  # purpose of runs -> whose releases are held in memory
    folded: Mapping[str, int]  # the same of runs of which readings alone are kept
    tile: int  # lanes that are computed together, needed or not
    parameters: int  # numbers in one release
    steps: int  # of one run
    records: float  # that take part in a step
    devices: int = 0  # accelerators; 0 = the processor's cores
    shard: int | None = None  # an attacker's shadow models that are held; None = all
    public: int = 0  # public records
    first_passes: float = 0.0  # over them, by fits before all runs
    passes: float = 0.0  # the same in each run
    visit: float = 0.0  # gradients that take as long as a public record in a pass
    contribution: float = 1.0  # the same of a record of a step

    @property
    def in_memory(self) -> int:
        """Releases that are held together, at most."""
        parts = {"shadow": self.shard or sum(self.held.values())}
        return max(min(n, parts.get(what, n)) for what, n in self.held.items())

    @property
    def runs(self) -> int:
        """Runs of the defense, whatever they are for."""
        return sum(self.held.values()) + sum(self.folded.values())


def check(work: Workload) -> None:
    """Refuse what cannot fit this machine's memory or would take more than a day.

    Raises:
      UserError: with the estimate, and the word that runs it all the same.
    """
    where, held, folded, tile, parameters, steps, records, devices, *_ = work
    need = 4 * parameters * (work.in_memory + 2 * tile) / GIB
    there = memory() / GIB
    lanes = max(work.runs, tile)
    speed = devices * ACCELERATOR or (os.cpu_count() or 1) * CORE
    days = 4.0 * lanes * steps * records * parameters / speed / DAY
    each = ", ".join(f"{n:,} {what}" for what, n in (*held.items(), *folded.items()))
    anyway = f"{each} runs, lanes.tile={tile:,}; estimate=ignored runs it"
    if need > there:
        raise UserError(
            f"{where}: needs at least {need:,.0f} GiB of memory, this machine has "
            f"{there:,.0f}: {anyway}"
        )
    if days > 1:
        raise UserError(f"{where}: takes at least {days:,.0f} days: {anyway}")


def memory() -> float:
    """Return the bytes of memory of this machine; infinite where it does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
