"""How far off `plan=true` is: `python -m tests.benchmarks.plan_accuracy [ROUNDS]`.

Eleven scenarios, each in a process of its own, with an empty cache at the start. In the
first round nothing is known of a scenario but what its attacks took in earlier ones; in
later rounds, with other seeds, it has run before. A run's last line says what was
planned. Beside the minutes stand the processor's, which other work on the machine does
not change.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile

from tests import ROOT

SCENARIOS = {
    "calibration": "mnist5k",
    "epsilon_one_run": "digits",
    "glm_adult": "breast_cancer",
    "dirdp_mnist5k": "mnist5k",
    "dirdp_scale": "digits",
    "epsilon_audit": "digits",
    "binary_mnist": "mnist5k",
    "closed_world": "digits_mixture",
    "mia_mnist5k": "mnist5k",
    "glm_reconstruction": "mnist5k",
    "fim_network": "mnist5k",
}
LINE = re.compile(r"took (.+) min, planned (.+); memory (.+), planned (.+)")
UNITS = {"B": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 2**10}


def mib(text):
    """Return a size in MiB."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


def measured(name, data, seed, folder):
    """Return minutes and MiB of one run: took and planned; and processor minutes."""
    words = [f"scenario={name}", f"data={data}", f"seed={seed}"]
    out = f"out={folder}/{name}-{seed}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "audit", "run", *words, out],
        cwd=ROOT, text=True, capture_output=True, check=False,
        env=os.environ | {"AUDIT_CACHE": f"{folder}/cache"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    line = LINE.search(done.stdout)
    assert line, done.stderr[-2000:]
    took, planned = (float(line[i].replace(",", "")) for i in (1, 2))
    return took, planned, mib(line[3]), mib(line[4]), busy / 60


def main(rounds):
    """Print one line per run."""
    print(
        f"{'run':<24} {'minutes':>15} {'ratio':>6} {'MiB':>13} {'ratio':>6}  processor"
    )
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(rounds):
            for name, data in SCENARIOS.items():
                took, planned, held, meant, busy = measured(name, data, seed, folder)
                print(
                    f"{name} {seed:<{23 - len(name)}} {planned:>6.1f} of {took:>5.1f} "
                    f"{planned / max(took, 0.05):>6.2f} {meant:>5.0f} of {held:>4.0f} "
                    f"{meant / held:>6.2f}  {busy:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
