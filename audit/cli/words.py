"""The words of every command but `run` and `show`, whose words Hydra composes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from audit.errors import UserError, did_you_mean

Reader = Callable[[Any], Any]  # what was typed -> its value, or UserError


def parse(
    verb: str,
    given: Iterable[str],
    positional: str = "",
    options: Mapping[str, Reader] | None = None,
    which: str | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Return the positional words of a command, and name -> value of typed options.

    Args:
      verb: the command, for messages.
      given: the words that follow it.
      positional: how the help calls its positional words; "" = it takes none.
      options: how an option is written (`out=DIR`, or `--config-dir DIR`) -> what reads
        its value. A flag at the end of the words reads None.
      which: the question to ask unless there is exactly one positional word; None = any
        number of them will do.

    Raises:
      UserError: naming the word that is wrong, and the options there are.
    """
    options = options or {}
    readers = {re.split("[ =]", usage)[0]: read for usage, read in options.items()}
    plain, values = [], dict[str, Any]()
    stream = iter(given)
    for word in stream:
        name, equals, value = word.partition("=")
        if name in readers and (equals or name.startswith("-")):
            typed = value if equals else next(stream, None)
            if typed == "":
                raise UserError(f"{verb}: {word} says nothing")
            key = name.lstrip("-").replace("-", "_")
            if key in values:
                raise UserError(f"{verb}: {name} stands twice; which one?")
            values[key] = readers[name](typed)
        elif equals or word.startswith("-") or not positional:
            raise UserError(_unexpected(verb, word, [positional, *options], readers))
        else:
            plain.append(word)
    if which is not None and len(plain) != 1:
        raise UserError(f"{which}; got {len(plain)}")
    return plain, values


def _unexpected(verb: str, word: str, usage: list[str], options: Iterable[str]) -> str:
    """Return what a command takes, and the option that is nearest to `word`."""
    shown = [u for u in usage if u and not u.startswith("-")]
    if not shown:
        return f"{verb} takes no words, got {word!r}"
    hint = did_you_mean(word.partition("=")[0], options) if options else ""
    several = " and ".join([*filter(None, [", ".join(shown[:-1])]), shown[-1]])
    return f"{verb} takes {several}, not {word!r}{hint}"


def choice(what: str, *words: str) -> Reader:
    """Return a reader of one of `words`, called `what` where another is typed."""

    def read(typed: str) -> str:
        if typed not in words:
            raise UserError(f"unknown {what} {typed!r}{did_you_mean(typed, words)}")
        return typed

    return read
