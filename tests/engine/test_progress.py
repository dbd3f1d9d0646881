"""Progress: plain lines off a terminal, bars on one."""

import io
import time

import pytest

from audit.engine.progress import Progress, quiet


def lines_of(*counts, total=1_000):
    """Return what is printed of these counts off a terminal."""
    out = io.StringIO()
    with Progress(out) as progress:
        for done in counts:
            progress.report("dpsgd", done, total)
    return out.getvalue().splitlines()


def test_one_line_at_the_end_of_each_stage_of_one_name():
    lines = lines_of(0, 500, 1_000, 0, 1_000)
    assert len(lines) == 2
    assert all(line.startswith("dpsgd: 1,000 of 1,000, ") for line in lines)
    assert all(line.endswith(" models/s") for line in lines)


@pytest.fixture
def clock(monkeypatch):
    """The time of every report, in seconds; one list, read from the front."""
    times = []
    monkeypatch.setattr("audit.engine.progress.time.monotonic", lambda: times.pop(0))
    return times


def test_slow_stages_speak_in_between(clock):
    clock += [0, 11, 22, 33]
    lines = lines_of(0, 250, 500, 1_000)
    assert len(lines) == 3
    assert "s left" in lines[0]


def test_what_the_store_had_is_said_and_not_counted_as_speed(clock):
    clock += [0, 5]
    want = "dpsgd: 1,000 of 1,000 (900 from the store), 20 models/s"
    assert lines_of(900, 1_000) == [want]


@pytest.mark.parametrize("total", [0, 10])
def test_bars(total):
    out = io.StringIO()
    with Progress(out, plain=False) as progress:
        progress.report("dpsgd", 0, total)
        progress.report("dpsgd", total, total)
    assert "dpsgd" in out.getvalue()


def test_stages_can_overlap_and_finish_apart():
    with Progress(io.StringIO(), plain=False) as progress:
        progress.report("sgd", 0, 2)
        progress.report("dpsgd", 0, 10)
        assert len(progress.bars.tasks) == 2
        progress.report("dpsgd", 10, 10)
        progress.report("sgd", 1, 2)
        assert [task.completed for task in progress.bars.tasks] == [1]
        progress.report("sgd", 2, 2)
        assert not progress.bars.tasks


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_stage_that_broke_off_can_begin_again(is_plain):
    out = io.StringIO()
    with Progress(out, is_plain) as progress:
        for done in (0, 800, 500):
            progress.report("dpsgd", done, 1_000)
        assert progress.bars is None or len(progress.bars.tasks) == 1
        assert progress.stored == 500
        progress.report("dpsgd", 1_000, 1_000)
    assert "dpsgd: 1,000 of 1,000 (500 from the store)" in out.getvalue()


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_is_an_error(is_plain, encoding, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")  # so narrow that names are cut
    raw = io.BytesIO()
    with Progress(io.TextIOWrapper(raw, encoding), is_plain) as progress:
        name = "\u03b5 = 1 [/red] " + "long " * 20
        progress.report(name, 0, 10)
        progress.report(name, 5, 10)
        progress.note("\u03c3 was [bold]read[/bold]")
        progress.report(name, 10, 10)
        progress.stream.flush()
        text = raw.getvalue().decode(encoding)
    assert ("\u03b5 = 1 [/red]" if encoding == "utf-8" else "? = 1 [/red]") in text
    assert " was [bold]read[/bold]" in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "term", "is_plain"),
    [
        (io.StringIO(), "xterm", True),
        (Terminal(), "xterm", False),
        (Terminal(), "dumb", True),
    ],
)
def test_bars_are_for_terminals(stream, term, is_plain, monkeypatch):
    monkeypatch.setenv("TERM", term)
    assert Progress(stream).plain == is_plain


def test_notes_and_units(capsys):
    out = io.StringIO()
    progress = Progress(out)
    progress.note("one shard was damaged")
    progress.report("dpsgd: guesses", 0, 3)
    progress.report("dpsgd: guesses", 3, 3)
    first, second = out.getvalue().splitlines()
    assert first == "one shard was damaged"
    assert second.startswith("dpsgd: guesses: 3 of 3, ")
    assert second.endswith(" records/s")
    quiet("dpsgd", 1, 2)
    assert capsys.readouterr() == ("", "")


class NobodyReads(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_a_run_goes_on_when_nobody_reads_its_progress():
    with Progress(NobodyReads(), plain=True) as progress:
        progress.report("x", 1, 1)


def test_what_is_not_counted_is_named_after_two_seconds(monkeypatch):
    monkeypatch.setattr("audit.engine.progress.SILENCE", 0.05)
    out = io.StringIO()
    with Progress(out) as progress:
        with progress.activity("dpsgd: ridge"):
            time.sleep(0.5)
        with progress.activity("dpsgd: class_mean"):
            pass
    assert out.getvalue().splitlines() == ["dpsgd: ridge: 0 s"]  # the next after ten


def test_an_activity_that_speaks_is_not_named(monkeypatch):
    monkeypatch.setattr("audit.engine.progress.SILENCE", 0.5)
    out = io.StringIO()
    with Progress(out) as progress, progress.activity("sgd: training"):
        for _ in range(20):
            time.sleep(0.05)
            progress.report("sgd", 1, 1)
    assert "training" not in out.getvalue()


def test_an_activity_in_which_something_is_counted_is_named_once(monkeypatch):
    monkeypatch.setattr("audit.engine.progress.SILENCE", 0.1)
    monkeypatch.setattr("audit.engine.progress.EVERY", 0.3)
    out = io.StringIO()
    with Progress(out) as progress, progress.activity("sgd: training"):
        for done in range(25):
            time.sleep(0.05)
            progress.report("sgd: steps", done, 100)
    lines = out.getvalue().splitlines()
    assert sum("training" in line for line in lines) == 1
    assert sum("steps" in line for line in lines) >= 2


def test_an_activity_is_a_bar_on_a_terminal():
    with Progress(io.StringIO(), plain=False) as progress:
        with progress.activity("sgd: ridge"):
            assert [task.total for task in progress.bars.tasks] == [None]
        assert progress.bars.tasks == []


def test_slow_models_are_counted_in_seconds(clock):
    clock += [0, 40]
    assert lines_of(0, 2, total=2) == ["dpsgd: 2 of 2, 20 s per model"]
