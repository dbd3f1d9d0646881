"""What a store of finished models and attacks holds: list, check, remove."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from audit.engine import store as stores
from audit.errors import UserError, brief, counted, did_you_mean

ACTIONS = ("ls", "rm", "verify")
DAY = 24 * 60 * 60  # seconds
ATTACK = "finished attack"  # what a key without a description is of
LETTERS = 12  # of a key that are printed: enough to name it


class Kept(NamedTuple):
    """All that a store keeps under one key."""

    folder: Path
    what: str  # of which method and defense, on which task
    defense: str  # "" where the key does not say
    shards: int
    size: int  # bytes
    changed: float  # seconds since the epoch

    @property
    def key(self) -> str:
        """The digest of everything that can change what is kept."""
        return self.folder.name


def kept(folder: Path) -> list[Kept]:
    """Return what a store holds, newest first; nothing is changed.

    Raises:
      UserError: if there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"store={folder}: no such folder")
    every = [_kept(path) for path in stores.keys(folder)]
    return sorted(every, key=lambda each: -each.changed)


def _kept(folder: Path) -> Kept:
    sizes, times = [], [folder.stat().st_mtime]
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run is writing
            sizes.append(path.stat().st_size)
            times.append(path.stat().st_mtime)
    made_of = _description(folder)
    defense = str(made_of.get("defense", ""))
    what = f"{made_of.get('method')} of {defense} on {made_of.get('task')}"
    shards = len(stores.shards(folder))
    what = what if defense else ATTACK
    return Kept(folder, what, defense, shards, sum(sizes), max(times))


def _description(folder: Path) -> dict[str, Any]:
    """Return the parts of a key, as far as they can be read."""
    with contextlib.suppress(OSError, *stores.BROKEN):
        return _parts(_described_in(folder))
    return {}


def _described_in(folder: Path) -> Path:
    return folder / f"{stores.DESCRIPTION}.json"


def _parts(path: Path) -> dict[str, Any]:
    """Return the parts of a key; raise OSError or one of `BROKEN`."""
    read = json.loads(path.read_bytes())
    if not isinstance(read, dict):
        raise ValueError("it does not say what the key is made of")
    return read


def chosen(every: list[Kept], names: Sequence[str], days: float | None) -> list[Kept]:
    """Return what words choose: the first letters of a key, or a defense's name.

    Args:
      every: what there is.
      names: of which one must fit; () = all.
      days: least age; None = any.

    Raises:
      UserError: naming a word that fits nothing.
    """
    for name in names:
        if not any(_fits(each, name) for each in every):
            defenses = sorted({each.defense for each in every if each.defense})
            hint = did_you_mean(name, defenses)
            raise UserError(f"no key or defense {brief(name)} in this store{hint}")
    oldest = float("inf") if days is None else time.time() - days * DAY
    return [
        each
        for each in every
        if each.changed <= oldest and (not names or any(_fits(each, n) for n in names))
    ]


def _fits(each: Kept, name: str) -> bool:
    return name == each.defense or (len(name) >= 4 and each.key.startswith(name))


def days(typed: str) -> float:
    """Read an age in days.

    Raises:
      UserError: for what is no number of at least 0.
    """
    with contextlib.suppress(ValueError):
        if float(typed) >= 0:
            return float(typed)
    raise UserError(f"older={brief(typed)}: a number of days, 0 or more")


def remove(every: list[Kept]) -> int:
    """Remove what is kept under some keys; return the bytes that are free again."""
    for each in every:
        shutil.rmtree(each.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the folder of other keys, too
            each.folder.parent.rmdir()
    return sum(each.size for each in every if not each.folder.exists())


def problems(every: list[Kept]) -> list[str]:
    """Return what is damaged or left over, one line per file.

    The next run computes a damaged shard again. No run reads a description.
    """
    lines = []
    for each in every:
        path = _described_in(each.folder)
        try:
            _parts(path)
        except FileNotFoundError:  # a finished attack has none
            pass
        except (OSError, *stores.BROKEN) as error:
            lines.append(f"damaged: {path}: {error}; remove it, a run writes it again")
        for shard in stores.shards(each.folder):
            why = stores.damage(shard)
            lines += [f"damaged: {shard}: {why}"] if why else []
        lines += [f"left over: {path}" for path in stores.left_over(each.folder)]
    return lines


def table(folder: Path, every: list[Kept]) -> str:
    """Return what is kept, one line per key, and the sum."""
    lines = [f"store {folder}"]
    if every:
        lines.append(f"{'key':<{LETTERS}}  {'days':>5}  {'size':>9}  shards  what")
    for each in every:
        age = f"{max(time.time() - each.changed, 0) / DAY:.1f}"
        lines.append(
            f"{each.key[:LETTERS]}  {age:>5}  {size(each.size):>9}  "
            f"{each.shards:>6}  {each.what}"
        )
    shards = counted(sum(each.shards for each in every), "shard")
    total = size(sum(each.size for each in every))
    return "\n".join([*lines, f"{counted(len(every), 'key')}, {shards}, {total}"])


def size(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
