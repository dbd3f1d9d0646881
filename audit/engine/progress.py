"""Progress for people: nested bars on a terminal, plain lines elsewhere.

The engine calls one function, `report(what, done, total)`; the rest serves the command
line. A finished stage becomes one line, also on a terminal, so that only running stages
have a bar.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from typing import NamedTuple, TextIO

from rich import progress
from rich.console import Console
from rich.text import Text

EVERY = 10.0  # seconds between two plain lines of one stage
SILENCE = 2.0  # seconds after which a line says what goes on

Report = Callable[[str, int, int], None]  # (what, done, total)


def quiet(what: str, done: int, total: int) -> None:
    """Ignore the report."""
    del what, done, total


UNITS = {
    "guesses": "records",
    "defenses": "defenses",
    "steps": "steps",
}  # what a stage counts if not models


class OutOfTime(BaseException):
    """The time a run was given is spent; the store has what was finished.

    It is no `Exception`: an attack that is stopped has not failed.
    """


class _Stage(NamedTuple):
    """One stage that is running."""

    unit: str
    first: int  # number of models taken from the store
    began: float  # seconds on a monotonic clock
    bar: progress.TaskID | None
    reported: float  # time of its last line on the same clock
    done: int
    total: int


class _Rate(progress.ProgressColumn):
    """Models per second."""

    def render(self, task: progress.Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {task.fields['unit']}/s" if speed else "")


class Progress:
    """Context manager whose `report(what, done, total)` the engine calls.

    Args:
      stream: where to write; standard error by default.
      plain: lines instead of bars; the default where the stream is no terminal, or is a
        terminal that cannot move its cursor.
      until: when `report` raises `OutOfTime`, on a monotonic clock; None = never.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        plain: bool | None = None,
        until: float | None = None,
    ) -> None:
        stream = stream if stream is not None else sys.stderr
        dumb = os.environ.get("TERM") in ("dumb", "unknown")
        if isinstance(stream, TextIOWrapper):  # "?" is what its encoding lacks
            stream.reconfigure(errors="replace")
        self.stream = stream
        self.plain = (dumb or not stream.isatty()) if plain is None else plain
        self.stages: dict[str, _Stage] = {}
        self.until = until
        self.bars = None if self.plain else _bars(self.stream)
        self.spoke = -EVERY  # when the last line was written, on a monotonic clock
        self.counted = -EVERY  # when something was counted, line or not
        self.stored = 0  # models that were in the store when their stage began

    def __enter__(self) -> Progress:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def report(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` models of the stage `what` are finished.

        Raises:
          OutOfTime: if the run may not go on.
        """
        now = time.monotonic()
        if self.until is not None and now >= self.until:
            raise OutOfTime
        self.counted = now
        stage = self.stages.get(what)
        if stage is None or done < stage.done:  # new, or restarted after a failure
            stage = self._begin(what, done, total, now)
        stage = stage._replace(done=done, total=total)
        if self.bars is not None and stage.bar is not None:
            self.bars.update(stage.bar, completed=done, total=total)
        elif now - stage.reported >= EVERY and done < total:
            self.note(_line(what, stage, now))
            stage = stage._replace(reported=now)
            self.spoke = now
        self.stages[what] = stage
        if done >= total:
            self._end(what)
            self.note(_line(what, stage, now))
            self.spoke = now

    @contextlib.contextmanager
    def activity(self, what: str) -> Iterator[None]:
        """Say what goes on while nothing is counted, such as compiling or fitting.

        On a terminal it has a bar without an end. Elsewhere a line says it after two
        seconds in which nothing was written, and then every ten in which nothing was
        counted either.
        """
        ended = threading.Event()
        if self.bars is not None:
            bar = self.bars.add_task(what, total=None, unit="")
        else:
            beat = threading.Thread(target=self._beat, args=(what, ended), daemon=True)
            beat.start()
        try:
            yield
        finally:
            ended.set()
            if self.bars is not None:
                self.bars.remove_task(bar)

    def _beat(self, what: str, ended: threading.Event) -> None:
        began, silence = time.monotonic(), SILENCE
        while not ended.wait(SILENCE / 4):
            now = time.monotonic()
            first = silence < EVERY  # later, what is counted is said by its own lines
            since = max(self.spoke, began, -EVERY if first else self.counted)
            if now - since >= silence:
                self.note(f"{what}: {now - began:.0f} s")
                self.spoke, silence = now, EVERY

    def note(self, text: str) -> None:
        """Write one line, above the bars where there are any."""
        if self.bars is not None:
            self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            with contextlib.suppress(BrokenPipeError):  # nobody reads on
                print(text, file=self.stream, flush=True)

    def _begin(self, what: str, done: int, total: int, now: float) -> _Stage:
        self._end(what)
        self.stored += done
        unit, bar = UNITS.get(what.rpartition(": ")[2], "models"), None
        if self.bars is not None:
            bar = self.bars.add_task(what, total=total, completed=done, unit=unit)
        return _Stage(unit, done, now, bar, now, done, total)

    def _end(self, what: str) -> None:
        stage = self.stages.pop(what, None)
        if self.bars is not None and stage is not None and stage.bar is not None:
            self.bars.remove_task(stage.bar)
            self.bars.refresh()  # else the next line appears above the old bar


def _bars(stream: TextIO) -> progress.Progress:
    columns = (
        progress.TextColumn("{task.description:<34}", markup=False),
        progress.BarColumn(bar_width=30),
        progress.MofNCompleteColumn(),
        _Rate(),
        progress.TimeRemainingColumn(),
    )
    console = Console(file=stream, force_terminal=True)
    return progress.Progress(*columns, console=console)


def _line(name: str, stage: _Stage, now: float) -> str:
    """Return one line: the stage, its progress, its speed, and the time left."""
    count, seconds = stage.done - stage.first, now - stage.began
    text = f"{name}: {stage.done:,} of {stage.total:,}"
    if stage.first:
        text += f" ({stage.first:,} from the store)"
    if count and seconds > 0:
        rate = count / seconds
        slow = f"{1 / rate:,.0f} s per {stage.unit[:-1]}"
        text += f", {rate:,.0f} {stage.unit}/s" if rate >= 1 else f", {slow}"
        if stage.done < stage.total:
            text += f", {(stage.total - stage.done) / rate:,.0f} s left"
    return text
