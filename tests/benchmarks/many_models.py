"""Memory of 1,000,000 shadow models: `python -m tests.benchmarks.many_models`.

`matched_filter` and `reconstructor` against DP-SGD on embedded digits. A pool of 4,000
images gives `repeats` times as many shadow models, which pass in parts and are never
held together. Each run is a process of its own, and its peak is read from the system.
"""

import os
import re
import subprocess
import sys
import tempfile

from tests import ROOT

WORDS = (
    "scenario=binary_mnist", "data=mnist5k", "defenses=[dpsgd]", "runs=1",
    "attacks=[class_mean,reconstructor,matched_filter]", "accounting_runs=1",
)  # fmt: skip
REPEATS = (3, 250)
POOL = 4_000
LINE = re.compile(r"took (.+) min, .*; memory (.+), planned")


def main():
    """Print minutes and memory of each run."""
    for repeats in REPEATS:
        with tempfile.TemporaryDirectory() as folder:
            each = [f"attack.{name}.repeats={repeats}"
                    for name in ("reconstructor", "matched_filter")]  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "audit", "run", *WORDS, *each,
                 f"out={folder}/run"],
                cwd=ROOT, text=True, capture_output=True, check=False,
                env=os.environ | {"AUDIT_CACHE": f"{folder}/cache"},
            )  # fmt: skip
        took = LINE.search(done.stdout)
        assert took, done.stderr[-2000:]
        print(
            f"{repeats * POOL:,} shadow models: {took[2]}, {took[1]} minutes",
            flush=True,
        )
        row = re.search(r"^ *dpsgd .*$", done.stdout, re.M)
        print(row[0] if row else done.stdout, flush=True)


if __name__ == "__main__":
    main()
