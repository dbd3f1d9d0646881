"""Progress: plain lines off a terminal, bars on one."""

import io

import pytest

from audit.progress import Progress


def plain():
    out = io.StringIO()
    return out, Progress(out)


def test_one_line_at_the_end():
    out, progress = plain()
    with progress:
        for done in (0, 500, 1_000):
            progress.report("dpsgd", done, 1_000)
    lines = out.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("dpsgd: 1,000 of 1,000, ")
    assert lines[0].endswith(" models/s")


def test_slow_stages_speak_in_between(monkeypatch):
    now = iter(range(0, 1000, 11))
    monkeypatch.setattr("audit.progress.time.monotonic", lambda: next(now))
    out, progress = plain()
    for done in (0, 250, 500, 1_000):
        progress.report("dpsgd", done, 1_000)
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert "s left" in lines[1]


def test_what_the_store_had_is_said_and_not_counted_as_speed():
    out, progress = plain()
    progress.report("dpsgd", 900, 1_000)
    progress.report("dpsgd", 1_000, 1_000)
    assert "(900 from the store)" in out.getvalue()


def test_names_can_be_used_again():
    out, progress = plain()
    for _ in range(2):
        progress.report("dpsgd", 0, 10)
        progress.report("dpsgd", 10, 10)
    assert len(out.getvalue().splitlines()) == 2


@pytest.mark.parametrize("total", [0, 10])
def test_bars(total):
    out = io.StringIO()
    with Progress(out, plain=False) as progress:
        progress.report("dpsgd", 0, total)
        progress.report("dpsgd", total, total)
    assert "dpsgd" in out.getvalue()
