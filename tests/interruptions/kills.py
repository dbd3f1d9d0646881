"""Kill a run again and again: `python -m tests.interruptions.kills`.

KILLS, SEED and WORDS may follow, in this order.

A run is killed by SIGKILL at a random moment, started again by the same command, killed
again, until it ends. Its scorecard is then compared with that of a run that was left
alone, its store is emptied, and the next run begins, until there were KILLS kills (50).
After every kill the store is read: no finished tile may be damaged or missing, and at
most one may be half written. In the end no temporary file may be left. Words go to the
run, `engine=ray` among them: then a worker of the cluster is killed as often as the
command. With `lanes.checkpoint=1` runs are computed in parts, and their states are
written after every part, not once a minute.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.engine import store as stores
from tests import ROOT

RUN = (
    "scenario=binary_mnist", "data=digits", "runs=2", "accounting_runs=1",
    "defenses=[sgd,dpsgd]", "attacks=[matched_filter,ridge]", "lanes.tile=64",
    "attack.matched_filter.repeats=1", "sets.digits.splits.augment=0",
)  # fmt: skip


# the command, with the state of a run written whenever there is a new one
ALWAYS = (
    "import sys; from audit.engine import checkpoint; checkpoint.SECONDS = 0.0; "
    "from audit.__main__ import main; sys.exit(main())"
)
STAGE = re.compile(r"^[^:]+: (.+): [\d,]+ of [\d,]+")  # a line of progress


class Ended(NamedTuple):
    """One start of the command."""

    seconds: float
    stage: str  # where it was
    killed: bool  # the command, or a worker
    done: bool


def start(folder, words, after=None, worker=False):
    """Run the command; kill it, or one of its workers, `after` so many seconds."""
    parts = any(word.startswith("lanes.checkpoint=") for word in words)
    python = [sys.executable, *(("-c", ALWAYS) if parts else ("-m", "audit"))]
    command = [*python, "run", *RUN, *words, f"out={folder}"]
    began, lines, pids = time.monotonic(), [], []
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    reader = threading.Thread(target=lambda: lines.extend(process.stdout))
    reader.start()
    if after is not None:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            pids = [] if worker else [process.pid]
            while not pids and process.poll() is None:  # until one computes
                pids = workers(process.pid)[:1]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
    code = process.wait()
    reader.join()
    assert code in (0, -signal.SIGKILL), "".join(lines)[-3000:]
    done = code == 0
    killed = bool(pids) and (worker or not done)
    return Ended(time.monotonic() - began, stage(lines), killed, done)


def stage(lines):
    """Return what a run was at, by what it had printed."""
    if any("strongest" in line for line in lines):
        return "report"
    matches = map(STAGE.search, lines)
    stages = [match[1] for match in matches if match]
    if stages:
        return f"after {stages[-1]}"
    return "compile" if lines else "start"


def workers(parent, task=b"ray::_tile"):
    """Return the processes below another that compute tiles, or another task."""
    below = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            above = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            name = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if above == parent:
            below += [int(path.name)] if name.startswith(task) else []
            below += workers(int(path.name), task)
    return below


def card(folder):
    """Return the numbers of a card: all but how long it took and what was typed."""
    plain = json.loads((folder / "scorecard.json").read_text())
    del plain["provenance"]
    for trial in plain["trials"]:
        (trial["result"] or {}).pop("seconds", None)
    with np.load(folder / "scorecard.npz") as arrays:
        return plain, {name: arrays[name].tobytes() for name in arrays}


def whole(folder):
    """Return the finished shards of a store, and how many are half written."""
    shards = [p for key in stores.keys(folder / "store") for p in key.glob("*.npz")]
    damage = {path: stores.damage(path) for path in shards}
    half = [path for path, why in damage.items() if why == "never finished"]
    broken = {p: why for p, why in damage.items() if why and p not in half}
    assert not broken, broken
    finished = {path for path, why in damage.items() if why is None}
    return {path for path in finished if "-step-" not in path.stem}, len(half)


def main(kills, seed, words):
    """Print one line per kill, and what all of them show."""
    rng, stages, count, runs, halves = random.Random(seed), Counter(), 0, 0, 0
    worker = "engine=ray" in words
    with tempfile.TemporaryDirectory() as top:
        alone, again, folder = (Path(top) / name for name in ("alone", "again", "run"))
        start(alone, words)  # which compiles what the next ones find compiled
        length = start(again, words).seconds
        expected, finished = card(alone), set()
        assert card(again) == expected
        print(f"left alone: {length:.0f} s, {len(whole(alone)[0])} shards", flush=True)
        while count < kills:
            after = rng.uniform(0, length)
            ended = start(folder, words, after, worker and count % 2 == 1)
            now, half = whole(folder)
            assert finished <= now, "a finished tile was lost"
            assert half <= 1, "more than one tile was half written"
            finished, halves = now, halves + half
            if ended.killed:
                count += 1
                stages[ended.stage] += 1
                print(
                    f"kill {count}: {after:.1f} s, {ended.stage}, {len(now)} shards, "
                    f"{half} half written", flush=True,
                )  # fmt: skip
            if ended.done or count == kills:
                if not ended.done:
                    start(folder, words)
                assert card(folder) == expected, "the scorecard differs"
                left = [p for p in folder.rglob(".*") if p.is_file()]
                left += folder.rglob("*-step-*")
                assert not left, left
                runs, finished = runs + 1, set()
                shutil.rmtree(folder)
    print(f"{count} kills: " + ", ".join(f"{n} {s}" for s, n in stages.most_common()))
    print(f"{runs} runs finished, each with the scorecard of the run left alone")
    print(
        f"{halves} tiles half written, no finished tile lost or damaged, no file left"
    )


if __name__ == "__main__":
    given = sys.argv[1:]
    numbers = [int(word) for word in given if word.isdecimal()]
    main(*(numbers + [50, 0][len(numbers) :]), [w for w in given if not w.isdecimal()])
