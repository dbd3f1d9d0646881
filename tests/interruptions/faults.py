"""Take what a run stands on: `python -m tests.interruptions.faults [FAULT ...]`.

The same small run meets a full disk, a folder that becomes read-only, a clock that
jumps, and too little memory. It must end with a documented exit code and a line that
says why, never with a traceback; and the same command, once the fault is gone, must
finish with the scorecard of a run that was left alone, and leave no temporary file.
Mounts and a limit on memory need root on Linux: without it a fault is skipped, and says
so.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import ROOT
from tests.interruptions.kills import RUN, card

# every second call a day later, or a day earlier
JUMPS = (
    "import sys, time; real = time.time; calls = [0]\n"
    "def jumping():\n"
    "    calls[0] += 1\n"
    "    return real() + 86400 * (1, -1)[calls[0] % 2]\n"
    "time.time = jumping\n"
    "from audit.__main__ import main; sys.exit(main())\n"
)
GROUPS = Path("/sys/fs/cgroup/memory")  # version 1


def run(folder, *words, python=("-m", "audit"), before=None, cache=None):
    """Return exit code and output of one start of the command."""
    done = subprocess.run(
        [sys.executable, *python, "run", *RUN, *words, f"out={folder}"],
        cwd=ROOT, text=True, capture_output=True, check=False, preexec_fn=before,
        env=os.environ | ({"AUDIT_CACHE": str(cache)} if cache else {}),
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def mounted(folder, size):
    """Give a folder a small disk of its own."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def finishes(folder, expected, **how):
    """Check that a run ends well, with the card of the run left alone."""
    code, text = run(folder, **how)
    assert code == 0, text[-3000:]
    assert "Traceback" not in text, text[-3000:]
    assert "strongest" in text, text[-3000:]
    assert card(folder) == expected


def full_disk(top, expected):
    """A disk that fills up: the run goes on without the store, its card elsewhere."""
    with mounted(top / "small", "1m") as small:
        code, text = run(small / "run")
        assert code == 0, text[-3000:]
        assert "Traceback" not in text, text[-3000:]
        assert re.search("No space left|no room", text), text[-3000:]
        assert (small / "run" / "scorecard.json").exists() or "kept in" in text, text
    finishes(top / "run", expected)


def read_only_folder(top, expected):
    """A folder that cannot be written to is refused before anything is trained."""
    with mounted(top / "disk", "50m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        began = time.monotonic()
        code, text = run(disk / "run")
        seconds = time.monotonic() - began
        assert code == 2, text[-3000:]
        assert "Traceback" not in text, text[-3000:]
        assert "Read-only file system" in text, text[-3000:]
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        finishes(disk / "run", expected)
    return f"refused after {seconds:.0f} s"


def read_only_cache(top, expected):
    """Programs and embedded data that cannot be kept are made again."""
    with mounted(top / "cache", "50m") as cache:
        subprocess.run(["mount", "-o", "remount,ro", cache], check=True)
        finishes(top / "run", expected, cache=cache)


def jumping_clock(top, expected):
    """Every reading of the clock is a day off, to either side."""
    finishes(top / "run", expected, python=("-c", JUMPS))


def little_memory(top, expected):
    """The system kills the run at 400 MiB; the same command finishes it."""
    group = GROUPS / f"breachmark-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(400 * 2**20))
        joins = lambda: (group / "tasks").write_text(str(os.getpid()))
        code, text = run(top / "run", before=joins)
        assert code == -signal.SIGKILL, (code, text[-3000:])
    finally:
        time.sleep(1)  # until the system has let go of the process
        group.rmdir()
    finishes(top / "run", expected)


ROOT_ALONE = {full_disk, read_only_folder, read_only_cache, little_memory}
FAULTS = {
    f.__name__: f
    for f in (
        full_disk,
        read_only_folder,
        read_only_cache,
        jumping_clock,
        little_memory,
    )
}


def cannot(fault):
    """Return why this machine cannot make a fault, or None."""
    if fault in ROOT_ALONE and (sys.platform != "linux" or os.getuid() != 0):
        return "it needs root on Linux"
    if fault is little_memory and not os.access(GROUPS, os.W_OK):
        return "it needs control groups of version 1 for memory"
    return None


def main(names):
    """Print one line per fault."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        assert run(top / "alone")[0] == 0
        expected = card(top / "alone")
        for name in names or FAULTS:
            if why := cannot(FAULTS[name]):
                print(f"{name}: skipped: {why}", flush=True)
                continue
            (top / name).mkdir()
            more = FAULTS[name](top / name, expected)
            left = [p for p in (top / name).rglob(".*") if p.is_file()]
            assert not left, left
            print(f"{name}: {more or 'held'}; the card is that of the run left alone",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
