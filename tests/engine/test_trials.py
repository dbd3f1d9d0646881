"""Whole runs on a cluster: the commands' own cards, stopped and killed or not."""

import os
import signal
import threading
import time

import pytest

from audit.__main__ import main
from audit.engine import trials
from audit.engine.trials import RemoteRun
from tests.engine.test_cluster import SMALL, ray, same_but_for_time  # noqa: F401
from tests.interruptions.kills import workers

COMMAND = " ".join(["python", "-m", "audit", *SMALL, "seed={}"])
GIB = 2**30


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ends(*commands, until=None):
    every = trials.compute([RemoteRun(c, GIB) for c in commands], until)
    return {one.command: one for one in every}


@pytest.mark.slow
def test_cards_are_those_of_the_same_commands_here(ray, folder, monkeypatch):  # noqa: F811
    commands = [COMMAND.format(seed) for seed in (0, 1)]
    assert {one.code for one in ends(*commands).values()} == {0}
    there = sorted(folder.glob("results/runs/calibration-*"))
    assert len(there) == 2
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")  # where nothing is stored
    for command in commands:
        assert main(command.split()[3:]) == 0
    for run in there:
        same_but_for_time(run, folder / "here/results/runs" / run.name)


@pytest.mark.slow
def test_what_fails_says_why_and_costs_no_other(ray, folder):  # noqa: F811
    good, bad = COMMAND.format(0), COMMAND.format(0) + " runs=none"
    every = ends(bad, good)
    assert every[good].code == 0
    assert every[bad].code == 2
    assert "runs" in every[bad].last


@pytest.mark.slow
def test_a_run_whose_worker_dies_is_made_again(ray, folder):  # noqa: F811
    killed = []

    def kill():
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for pid in workers(os.getpid(), b"ray::_run"):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    assert {one.code for one in ends(COMMAND.format(3)).values()} == {0}
    thread.join()
    assert killed


@pytest.mark.slow
def test_without_time_nothing_is_begun(ray, folder):  # noqa: F811
    (one,) = ends(COMMAND.format(0), until=time.time() - 1).values()
    assert one.code is None
    assert not list(folder.glob("results/runs/calibration-*"))
    (one,) = ends(COMMAND.format(0), until=time.time() + 3).values()
    assert one.code is None  # it takes longer to start
