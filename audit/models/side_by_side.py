"""One core per part: linear algebra and small programs that one core computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def side_by_side(
    function: Callable[..., Result], *parts: Iterable[Any]
) -> list[Result]:
    """Return what `map` does, computed in threads.

    Worth it where the function spends its time outside of Python. It must not call
    compiled programs that factor matrices: two of these at once wait for each other
    for ever where XLA has two threads.
    """
    with ThreadPoolExecutor() as threads:
        return list(threads.map(function, *parts))
