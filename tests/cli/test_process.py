"""However a command ends, it says so in one line, with its exit code."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from audit.cli import process
from tests import ROOT


class Swallows:
    """Its destructor is interrupted, and Python drops what is raised there."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(process, "AGAIN", 0.05)
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_stop_that_is_swallowed_is_raised_again(number, code, capsys):
    def command():
        Swallows(number)
        time.sleep(20)
        return 0

    began = time.monotonic()
    assert process.run(command) == code
    assert time.monotonic() - began < 5
    assert capsys.readouterr().err == f"{process.STOPPED}\n"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(number) is signal.default_int_handler


def test_a_stop_ends_a_command_and_what_its_finally_does():
    ended = []

    def command():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # as `timeout` sends it twice
            ended.append(1)

    assert process.run(command) == 143
    assert ended == [1]


def test_a_thread_that_a_stop_waits_for_is_not_taken_for_ended():
    ended = []

    def work():
        time.sleep(4 * process.AGAIN)
        ended.append(1)

    def command():
        with ThreadPoolExecutor(1) as threads:
            threads.submit(work)
            signal.raise_signal(signal.SIGTERM)

    assert process.run(command) == 143
    assert ended == [1]


def test_an_ignored_signal_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert process.run(lambda: signal.raise_signal(signal.SIGINT) or 0) == 0


SECOND = """
import signal, time
from audit.cli import process
process.ONE_STOP = 0
def command():
    while True:
        try:
            time.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            pass
process.run(command)
"""


def test_a_second_stop_ends_at_once():
    done = subprocess.run(
        [sys.executable, "-c", SECOND], capture_output=True, text=True, cwd=ROOT,
        timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (143, f"{process.STOPPED}\n")


# Streams ------------------------------------------------------------------------------


def shell(line):
    """Return exit code and standard error of a line in which `{}` is the suite."""
    python = f"{sys.executable} -m audit"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.format(python)], capture_output=True,
        text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ("(sleep .2; {} help) | true", 141, ""),
        ("(sleep .2; {} nonsense 2>&1 >/dev/null) | true", 2, ""),
        ("{} help >&-", 0, ""),
        ("{} help 2>&-", 0, ""),
        ("{} nonsense 2>&-", 2, ""),
        ("{} help </dev/null >&- 2>&- <&-", 0, ""),
        ("{} help > /dev/full", 2, "error: cannot write standard output: No space"),
    ],
)
def test_closed_and_full_streams(line, code, error):
    ended, lines = shell(line)
    assert ended == code
    assert lines.startswith(error)
    assert lines.count("\n") == bool(error)
