"""Whether training can end: lower bounds of memory and time, before it starts.

Both are low on purpose. Memory is what the releases of all runs hold, and parameters
and gradient of every lane of one tile. Time is four operations per step, record and
parameter, at a speed no such device exceeds. What is refused is hopeless; what is not
may still be slow, and the engine counts the bytes of a tile as the compiler does.
"""

from __future__ import annotations

import os

from audit.errors import UserError

DAY = 24 * 60 * 60  # seconds
GIB = 2**30
# operations per second: of one core, and of any other device
CORE, ACCELERATOR = 2e11, 1e15


def check(
    where: str,
    *,
    runs: int,
    tile: int,
    parameters: int,
    steps: int,
    records: float,
    devices: int = 0,
) -> None:
    """Refuse what cannot fit this machine's memory or would take more than a day.

    Args:
      where: what is trained, for the message.
      runs: how many releases are made, at least.
      tile: lanes that are computed together, needed or not.
      parameters: numbers in one release.
      steps: of one run.
      records: that take part in a step.
      devices: accelerators; 0 = the processor's cores.

    Raises:
      UserError: with the estimate, and the word that runs it all the same.
    """
    need = 4 * parameters * (runs + 2 * tile) / GIB
    there = memory() / GIB
    lanes = -(-runs // tile) * tile
    speed = devices * ACCELERATOR or (os.cpu_count() or 1) * CORE
    days = 4.0 * lanes * steps * records * parameters / speed / DAY
    anyway = f"runs={runs:,} in all, lanes.tile={tile:,}; estimate=ignored runs it"
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
