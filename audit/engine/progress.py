"""Progress for people: nested bars on a terminal, plain lines elsewhere.

The engine sees one function, `report(what, done, total)`; all else is for the command
line. A finished stage leaves one line, on a terminal too, so that only what is running
has a bar.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

EVERY = 10.0  # seconds between two plain lines of one stage

Report = Callable[[str, int, int], None]  # (what, done, total)


def quiet(what: str, done: int, total: int) -> None:
    """Report nothing."""
    del what, done, total


UNITS = {"guesses": "records"}  # what a stage counts, where it is not models


class _Stage(NamedTuple):
    """What is known of one named stage."""

    total: int
    unit: str
    done: int
    first: int  # found in the store, not computed now
    began: float
    said: float  # when its last line was written
    bar: TaskID | None


class _Legible:
    """A stream that writes "?" for what its encoding lacks."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        legible = text.encode(self.encoding, "replace").decode(self.encoding)
        return self.stream.write(legible)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Rate(ProgressColumn):
    """Models per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {task.fields['unit']}/s" if speed else "")


class Progress:
    """Context manager whose `report(what, done, total)` the engine calls.

    Args:
      stream: where to write; standard error by default.
      plain: lines instead of bars; by default where the stream is no terminal, or one
        that cannot move its cursor.
    """

    def __init__(self, stream: TextIO | None = None, plain: bool | None = None) -> None:
        stream = stream if stream is not None else sys.stderr
        dumb = os.environ.get("TERM") in ("dumb", "unknown")
        self.stream: Any = _Legible(stream)
        self.plain = (dumb or not stream.isatty()) if plain is None else plain
        self.stages: dict[str, _Stage] = {}
        self.bars = None if self.plain else _bars(self.stream)

    def __enter__(self) -> Progress:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def report(self, what: str, done: int, total: int) -> None:
        """Say that `done` of `total` models of the stage `what` are finished."""
        stage = self.stages.get(what)
        if stage is None or done < stage.done:  # new, or begun again after a failure
            unit = UNITS.get(what.rpartition(": ")[2], "models")
            self.start(what, total, unit, first=done)
        self.stages[what] = self.stages[what]._replace(total=total)
        self.advance(what, done - self.stages[what].done)
        if done >= total:
            self.finish(what)

    def start(
        self, name: str, total: int, unit: str = "models", *, first: int = 0
    ) -> None:
        """Begin a stage, of which `first` models are there already."""
        self._drop(name)
        now, bar = time.monotonic(), None
        if self.bars is not None:
            bar = self.bars.add_task(name, total=total, completed=first, unit=unit)
        self.stages[name] = _Stage(total, unit, first, first, now, now, bar)

    def advance(self, name: str, n: int = 1) -> None:
        """Say that n more are finished."""
        stage = self.stages[name]
        stage = self.stages[name] = stage._replace(done=stage.done + n)
        if self.bars is not None and stage.bar is not None:
            self.bars.update(stage.bar, completed=stage.done, total=stage.total)
            return
        now = time.monotonic()
        if now - stage.said >= EVERY and stage.done < stage.total:
            self.note(_line(name, stage, now))
            self.stages[name] = stage._replace(said=now)

    def finish(self, name: str) -> None:
        """End a stage; its name may be used again."""
        line = _line(name, self.stages[name], time.monotonic())
        self._drop(name)
        self.note(line)

    def note(self, text: str) -> None:
        """Write one line, above the bars where there are any."""
        if self.bars is not None:
            self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)

    def _drop(self, name: str) -> None:
        stage = self.stages.pop(name, None)
        if self.bars is not None and stage is not None and stage.bar is not None:
            self.bars.remove_task(stage.bar)
            self.bars.refresh()  # or the next line is written above the old bar


def _bars(stream: Any) -> Bars:
    columns = (
        TextColumn("{task.description:<34}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    return Bars(*columns, console=Console(file=stream, force_terminal=True))


def _line(name: str, stage: _Stage, now: float) -> str:
    """Return one plain line: what, how many, from where, how fast, how long still."""
    made, seconds = stage.done - stage.first, now - stage.began
    text = f"{name}: {stage.done:,} of {stage.total:,}"
    if stage.first:
        text += f" ({stage.first:,} from the store)"
    if made and seconds > 0:
        rate = made / seconds
        text += f", {rate:,.0f} {stage.unit}/s"
        if stage.done < stage.total:
            text += f", {(stage.total - stage.done) / rate:,.0f} s left"
    return text
