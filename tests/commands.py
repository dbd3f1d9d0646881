"""Commands called as a person would type them."""

import re

from audit.__main__ import main
from audit.config import hydra_app


def call(*words):
    """Return the exit code of a command."""
    try:
        return main(list(words))
    except SystemExit as stop:
        return stop.code


def printed(capsys, *words, code=0):
    """Return what a command prints, and check its exit code."""
    capsys.readouterr()
    assert call(*words) == code
    return capsys.readouterr().out


def refused(capsys, *words, silently=False):
    """Return the one line of a command that is refused.

    Before it there may be signs of life, which a slow machine gives.
    """
    assert call(*words) == 2
    out, err = capsys.readouterr()
    *alive, line = err.splitlines(keepends=True)
    assert all(re.fullmatch(r".+: \d+ s\n", sign) for sign in alive)
    assert line.startswith("error: ")
    assert line.endswith("\n")
    assert "Traceback" not in err + out
    assert not (silently and out)
    return line


def composed(*words):
    """Return the scenario that words describe, and the words that replay it."""
    return hydra_app.composed(list(words))
