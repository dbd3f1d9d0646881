"""Jobs in a few threads at once: while one compiles or fits, the other computes.

Most stages of an audit keep one core busy and a half: compiling, small products, linear
algebra in float64. Two defenses at once use what one leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import TypeVar

from audit.engine.shadow import Engine

Job = TypeVar("Job")
Result = TypeVar("Result")


class Stopped(BaseException):
    """Another job failed, or the command was stopped.

    It is no `Exception`: an attack that is stopped has not failed.
    """


def results(
    function: Callable[[Job, Engine], Result],
    jobs: Sequence[Job],
    engine: Engine,
    together: int,
    what: str,
) -> list[Result]:
    """Return what the function makes of each job, in the order of the jobs.

    Args:
      function: called with a job and the engine to use. What it returns must not depend
        on what runs beside it.
      jobs: at least one.
      engine: where runs are computed.
      together: jobs at once; 1 = in turn, in this thread.
      what: the jobs are, in reports of how many are finished.

    Raises:
      The first error of a job. Others that run then end when they next report.
    """
    stop, count, counting = Event(), iter(range(1, 1 + len(jobs))), Lock()

    def counted(job: Job, engine: Engine) -> Result:
        result = function(job, engine)
        with counting:
            engine.report(what, next(count), len(jobs))
        return result

    engine.report(what, 0, len(jobs))
    if together == 1:
        return [counted(job, engine) for job in jobs]

    def check() -> None:
        if stop.is_set():
            raise Stopped

    def report(what: str, done: int, total: int) -> None:
        check()
        engine.report(what, done, total)

    @contextlib.contextmanager
    def activity(what: str) -> Iterator[None]:
        check()
        with engine.activity(what):
            yield

    stoppable = engine._replace(report=report, activity=activity)
    with ThreadPoolExecutor(together) as threads:
        futures = [threads.submit(counted, job, stoppable) for job in jobs]
        try:
            for failed in wait(futures, return_when=FIRST_EXCEPTION).done:
                failed.result()
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
