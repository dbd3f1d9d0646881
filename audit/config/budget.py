"""Whether training can end: lower bounds of memory and time, before it starts.

Both are low on purpose. Memory is what the releases of one kind of runs hold, and
parameters and gradient of every lane of one tile. Time is four operations per step,
record and parameter, of the referee's runs, the attackers' and those of the accounting,
at a speed no such device exceeds. What is refused is hopeless; what is not may still be
slow, and the engine counts the bytes of a tile as the compiler does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from audit.errors import UserError

DAY = 24 * 60 * 60  # seconds
GIB = 2**30
# operations per second: of one core, and of any other device
CORE, ACCELERATOR = 2e11, 1e15


def check(
    where: str,
    *,
    held: Mapping[str, int],
    folded: Mapping[str, int],
    tile: int,
    parameters: int,
    steps: int,
    records: float,
    devices: int = 0,
) -> None:
    """Refuse what cannot fit this machine's memory or would take more than a day.

    Args:
      where: what is trained, for the message.
      held: what runs are for -> of how many the releases are held in memory together.
      folded: the same of runs of which readings alone are kept.
      tile: lanes that are computed together, needed or not.
      parameters: numbers in one release.
      steps: of one run.
      records: that take part in a step.
      devices: accelerators; 0 = the processor's cores.

    Raises:
      UserError: with the estimate, and the word that runs it all the same.
    """
    need = 4 * parameters * (max(held.values()) + 2 * tile) / GIB
    there = memory() / GIB
    lanes = max(sum(held.values()) + sum(folded.values()), tile)
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
