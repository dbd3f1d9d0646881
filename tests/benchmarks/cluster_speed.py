"""Two Ray workers beside one: `python -m tests.benchmarks.cluster_speed lenet`.

50,000 linear shadow models of the benchmark's size (`linear`, which is what no word
means), or 64 LeNets, by DP-SGD. Every count of workers, of one core each, gets a
cluster of its own, compiles, and is timed on a second root key; all must give the bits
of this process. With two workers one is then killed while it computes. Compare on an
otherwise idle machine.
"""

import os
import signal
import sys
import threading
import time

import jax
import numpy as np

from audit.cli.bench import subjects
from audit.config.workspace import prepare_jax
from audit.engine import cluster, shadow
from audit.types import Lanes, TrainingSet
from tests.interruptions.kills import workers

MODELS = {"linear": 50_000, "lenet": 64}
TARGETS = 500  # different ones, each many times


def kill_a_worker(stop):
    """Kill the first worker that computes; return its process."""
    while not stop.is_set():
        for pid in workers(os.getpid())[:1]:
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)
            print("a worker was killed", flush=True)
            return
        time.sleep(0.05)


def main(name):
    """Print models per second of each count of workers."""
    os.environ["RAY_ADDRESS"] = ""
    prepare_jax()
    subject, models = subjects.SUBJECTS[name], MODELS[name]
    few = subjects.training_set(subject, min(TARGETS, models))
    every = jax.tree.map(lambda a: np.resize(a, (models, *a.shape[1:])), few.target)
    data, lanes = TrainingSet(few.fixed, every), Lanes(subject.tile)
    learner = subjects.make("dpsgd", subject)

    def run(key, elsewhere):
        engine, root = shadow.Engine(lanes, elsewhere=elsewhere), jax.random.key(key)
        began = time.perf_counter()
        runs = shadow.sweep("train", learner, root, data, engine=engine)
        seconds = time.perf_counter() - began
        return seconds, [leaf.tobytes() for leaf in jax.tree.leaves(runs)]

    run(0, None)  # compiles
    seconds, expected = run(1, None)
    print(f"this process, all cores: {models / seconds:,.1f} models/s", flush=True)
    first = None
    for count in (1, 2):
        import ray

        ray.init(address="local", num_cpus=count, include_dashboard=False,
                 logging_level="ERROR", log_to_driver=False)  # fmt: skip
        run(0, cluster.compute)
        seconds, got = run(1, cluster.compute)
        assert got == expected, "other bits"
        first = first or seconds
        print(
            f"{count} worker: {models / seconds:,.1f} models/s, "
            f"{first / seconds:.2f} times one; equal bits", flush=True,
        )  # fmt: skip
        if count == 2:
            stop = threading.Event()
            threading.Thread(target=kill_a_worker, args=(stop,), daemon=True).start()
            _, got = run(1, cluster.compute)
            stop.set()
            assert got == expected, "other bits"
            print("finished all the same; equal bits", flush=True)
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "linear")
