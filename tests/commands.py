"""Commands called as a person would type them."""

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
    """Return the one line of a command that is refused."""
    assert call(*words) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err + out
    assert not (silently and out)
    return err


def composed(*words):
    """Return the scenario that words describe, and the words that replay it."""
    return hydra_app.composed(list(words))
