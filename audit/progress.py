"""Progress for people: nested bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

EVERY = 10.0  # seconds between two plain lines of one stage


class _Rate(ProgressColumn):
    """Models per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} models/s")


class _Stage:
    """What is known of one named stage."""

    def __init__(self, done: int) -> None:
        self.began = self.said = time.monotonic()
        self.first = done  # found in the store, not computed now
        self.bar: Any = None


class Progress:
    """Context manager whose `report(what, done, total)` the engine calls.

    Args:
      stream: where to write; standard error by default.
      plain: lines instead of bars; by default where the stream is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, plain: bool | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.plain = not self.stream.isatty() if plain is None else plain
        self.stages: dict[str, _Stage] = {}
        self.bars: Bars | None = None
        if not self.plain:
            columns = (
                TextColumn("{task.description:<34}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(),
            )
            self.bars = Bars(*columns, console=Console(file=self.stream))

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
        if stage is None:
            stage = self.stages[what] = _Stage(done)
        if self.bars is not None:
            if stage.bar is None:
                stage.bar = self.bars.add_task(what, total=total)
            self.bars.update(stage.bar, completed=done, total=total)
            return
        now = time.monotonic()
        if done >= total or now - stage.said >= EVERY:
            self._line(what, stage, done, total, now)
        if done >= total:
            del self.stages[what]  # the name may be used again

    def _line(
        self, what: str, stage: _Stage, done: int, total: int, now: float
    ) -> None:
        made, seconds = done - stage.first, now - stage.began
        text = f"{what}: {done:,} of {total:,}"
        if stage.first:
            text += f" ({stage.first:,} from the store)"
        if made and seconds > 0:
            rate = made / seconds
            text += f", {rate:,.0f} models/s"
            if done < total:
                text += f", {(total - done) / rate:,.0f} s left"
        stage.said = now
        print(text, file=self.stream, flush=True)
