"""Errors a person can mend, and the hint at what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

Wanted = TypeVar("Wanted")


class UserError(Exception):
    """Something its reader can mend; the text names what was typed and what exists."""

    def __str__(self) -> str:
        """Return one line: what cannot be printed is written out, as `repr` does."""
        text = super().__str__()
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Refused(SystemExit):
    """A user's error inside Hydra, which prints tracebacks but lets an exit through."""


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?; there is A, B, C" for an error about `word`."""
    words = sorted(words)
    close = difflib.get_close_matches(str(word)[:80], words, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint}; there is {', '.join(words) or 'nothing'}"


def expect(value: Any, wanted: type[Wanted], where: str) -> Wanted:
    """Return what a plug-in's function returned.

    Raises:
      UserError: naming the plug-in, if that is of another type.
    """
    if isinstance(value, wanted):
        return value
    raise UserError(
        f"{where} returns {brief(value)}, of type {type(value).__name__}; "
        f"{wanted.__name__} is wanted"
    )


def counted(number: int, noun: str, ending: str = "s") -> str:
    """Return "1 record" or "1,000 records"."""
    return f"{number:,} {noun}{ending * (number != 1)}"


def in_words(error: BaseException) -> str:
    """Return the kind of an error that may be anybody's, and the first line of it."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}"


def brief(value: Any, most: int = 80) -> str:
    """Return the `repr` of a value, or how it begins and how long it is."""
    text = repr(value)
    if len(text) <= most:
        return text
    return f"{text[: most - 20]}... ({len(text):,} characters)"
