"""Programs that are compiled before they are needed, while others compute.

An audit meets one defense after the other, and compiling their programs takes a core
about as long as running them. What one defense runs, the next will run, with a query or
a noise of its own: a thread compiles that meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Ahead:
    """Compilations in a thread; a context, at whose end what has not begun is dropped.

    `learners` are the defenses of an audit (`shadow.Learner`), in the order in which
    they are run. Programs are the same as without it, and so are all results.
    """

    def __init__(self, learners: Iterable[Any]) -> None:
        self.learners, self.thread = tuple(learners), ThreadPoolExecutor(1)
        self.begun: dict[Hashable, Future] = {}

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: Any) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)

    def compile(self, key: Hashable, function: Callable[[], Any]) -> None:
        """Call the function in the thread, once per key."""
        if key not in self.begun:
            self.begun[key] = self.thread.submit(function)

    def wait(self, key: Hashable) -> None:
        """Wait for what is being compiled under the key, and drop it if not begun.

        The caller then compiles, or finds it compiled: this is a head start, and an
        error in the thread comes up again where the program is needed.
        """
        future = self.begun.setdefault(key, Future())
        if not future.cancel():
            future.exception()
