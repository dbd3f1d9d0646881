"""How a command ends: its exit code, one line where it is stopped, closed streams.

Code 130 is a command that Ctrl-C stopped, 143 one that SIGTERM stopped, and 141 one
whose reader (`| head`) went away, as shells have it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from audit.errors import Refused, UserError

AGAIN = 2.0  # seconds until a KeyboardInterrupt that got lost is raised again
ONE_STOP = 0.5  # seconds within which signals are one: launchers pass on a terminal's
STOPPED = "\nstopped; the same command finishes it"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READER_GONE = 141


def run(command: Callable[[], int]) -> int:
    """Call a command; return its exit code, or that of what ended it, in one line."""
    _open_streams()
    try:
        with _stoppable():
            code = command()
            sys.stdout.flush()
            return code
    except (UserError, Refused) as error:
        code, text = 2, f"error: {error}"
    except KeyboardInterrupt as stop:
        code, text = 128 + (stop.args or (signal.SIGINT,))[0], STOPPED
    except BrokenPipeError:
        code, text = READER_GONE, None
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = error.filename or "standard output"
        code, text = 2, f"error: cannot write {where}: {error.strerror}"
    _complain(text)
    return code


def _complain(text: str | None) -> None:
    """Print a line on standard error, and lose what a closed stream cannot take."""
    with contextlib.suppress(OSError):
        if text is not None:
            print(text, file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # Python would try again at exit, with a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Open what is closed of the standard streams, or the next file is taken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for number, name in enumerate(("stdout", "stderr"), 1):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _on_its_way() -> bool:
    """Return whether a `with` or `finally` is ending what an interrupt stopped.

    It waits for threads and saves their work. Python 3.11 takes a thread for ended
    where the wait for it is interrupted, and then aborts the process (code 134).
    """
    raised = sys.exception()
    while raised is not None:
        if isinstance(raised, (KeyboardInterrupt, GeneratorExit)):
            return True
        raised = raised.__context__
    return False


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt(signal) on SIGINT and SIGTERM until it leaves the block.

    One raised in a destructor, or in a callback of a garbage collection, is lost; a
    timer therefore raises it again, unless it is on its way out. A second signal ends
    the process at once. A signal that is ignored (`nohup`, `&`) stays so.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or not hasattr(signal, "setitimer"):
        yield
        return
    first: list[tuple[int, float]] = []  # the first signal and its time

    def stop(number: int, frame: Any) -> None:
        if not first:
            first.append((number, time.monotonic()))
            signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)
        elif number != signal.SIGALRM:
            if time.monotonic() - first[0][1] > ONE_STOP:
                _complain(STOPPED)
                os._exit(128 + number)
            return
        elif _on_its_way():
            return
        raise KeyboardInterrupt(first[0][0])

    def lost(what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            hook(what)

    hook = sys.unraisablehook
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, sys, "unraisablehook", hook)
        sys.unraisablehook = lost
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None) or number == signal.SIGALRM:
                signal.signal(number, stop)
                stack.callback(signal.signal, number, before or signal.SIG_DFL)
        stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
        yield
