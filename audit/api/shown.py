"""Progress where the caller looks, and figures that a notebook shows by themselves."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator
from typing import Any

from audit.engine.progress import Progress

EVERY = 0.5  # seconds between two updates of a cell


def in_notebooks(figure: Any) -> Any:
    """Return a figure that a notebook shows, though pyplot does not know of it."""

    def png() -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=100, bbox_inches="tight")
        return file.getvalue()

    figure._repr_png_ = png
    return figure


def notebook_or_terminal() -> Progress:
    """Return what shows progress here."""
    shell = _kernel()
    return Progress() if shell is None else CellProgress()


def _kernel() -> Any:
    """Return the shell of a notebook's kernel, if the caller runs in one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if hasattr(shell, "kernel") else None


class CellProgress(Progress):
    """One line under the cell, which is gone when the run is over."""

    def __init__(self) -> None:
        super().__init__(plain=True)
        self.handle: Any = None
        self.shown = 0.0

    def __exit__(self, *exception: object) -> None:
        """Empty the line."""
        self._show("")

    def report(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` models of the stage `what` are finished."""
        super().report(what, done, total)
        if time.monotonic() - self.shown >= EVERY:
            self._show(f"{what}: {done:,} of {total:,}")

    @contextlib.contextmanager
    def activity(self, what: str) -> Iterator[None]:
        """Show what goes on."""
        self._show(what)
        yield

    def note(self, text: str) -> None:
        """Show one line in place of the last."""
        self._show(text)

    def _show(self, text: str) -> None:
        from IPython.display import display

        self.shown = time.monotonic()
        shown = {"text/plain": text}
        if self.handle is None:
            self.handle = display(shown, raw=True, display_id=True)
        else:
            self.handle.update(shown, raw=True)
