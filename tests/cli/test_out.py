"""Where results go: which folders are refused, and what a full disk costs."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

import audit.__main__ as cli
from audit.scorecard import schema
from tests import ROOT, pages
from tests.commands import call, refused

RUN = ("run", "scenario=binary_mnist", "data=mnist5k")


@pytest.fixture(autouse=True)
def no_run(monkeypatch):
    """A run is a committed card, at once."""
    monkeypatch.setattr(cli, "_again", lambda *given: pages.card())


@pytest.mark.parametrize("name", ["scorecard.md", "scorecard.npz", "roc.png"])
def test_a_folder_with_files_of_somebody_else_is_left_alone(name, tmp_path, capsys):
    (tmp_path / name).write_text("theirs")
    line = refused(capsys, *RUN, f"out={tmp_path}", silently=True)
    assert f"out={tmp_path} holds {name} and no scorecard" in line
    assert [p.read_text() for p in tmp_path.iterdir()] == ["theirs"]
    (tmp_path / "scorecard.json").write_text("[" * 10**5)
    assert "another run" in refused(capsys, *RUN, f"out={tmp_path}")


def test_a_folder_that_no_path_can_name(capsys):
    line = refused(capsys, *RUN, 'out="a\0b"')
    assert "out='a\\x00b': string should match pattern" in line


def full(*given):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_before_a_run(tmp_path, monkeypatch, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        line = refused(capsys, *RUN, f"out={tmp_path}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"cannot write out={tmp_path}: File too large" in line


def test_a_card_that_finds_no_room_is_kept_elsewhere(tmp_path, monkeypatch, capsys):
    real, out, spare = Path.replace, tmp_path / "out", tmp_path / "spare"
    replace = lambda path, to: full() if out in to.parents else real(path, to)
    monkeypatch.setattr(Path, "replace", replace)
    spare.mkdir()
    monkeypatch.setattr(cli.tempfile, "mkdtemp", lambda **_: str(spare))
    assert call(*RUN, f"out={out}") == 2
    printed, lines = capsys.readouterr()  # the last line; what takes long is said above
    assert lines.splitlines()[-1] == (
        f"error: cannot write {out}/scorecard.json: No space left on device; "
        f"the results are in {spare}"
    )
    assert "matched_filter" in printed
    assert f"{spare}/scorecard.json" in printed
    kept = schema.load(spare / "scorecard.json")
    assert kept.trials == pages.card().trials
    assert list(out.iterdir()) == []


def test_a_card_that_finds_no_room_anywhere_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(cli.tempfile, "mkdtemp", lambda **_: full())
    assert call(*RUN, f"out={tmp_path}") == 2
    printed, line = capsys.readouterr()
    assert "matched_filter" in printed
    assert line.count("\n") == 1
    assert f"cannot write {tmp_path}/scorecard.json: No space left" in line


@pytest.mark.slow
def test_a_store_that_finds_no_room_costs_no_attack(tmp_path):
    """Files above 1.1 MB find no room: those of the store, not the card."""
    words = "scenario=binary_mnist data=mnist5k defenses=[sgd] attacks=[reconstructor]"
    run = f"{sys.executable} -m audit run {words} out={tmp_path}"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 1074; {run}"], capture_output=True, text=True,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot write store=") == 1
    (trial,) = schema.load(tmp_path / "scorecard.json").trials
    assert trial.status == "ok"
