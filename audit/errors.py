"""Errors a person can mend, and the hint at what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something its reader can mend; the text names what was typed and what exists."""


class Refused(SystemExit):
    """A user's error inside Hydra, which prints tracebacks but lets an exit through."""


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?; there is A, B, C" for an error about `word`."""
    words = sorted(words)
    close = difflib.get_close_matches(str(word), words, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint}; there is {', '.join(words) or 'nothing'}"
