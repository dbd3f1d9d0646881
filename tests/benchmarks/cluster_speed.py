"""Two Ray workers beside one: `python -m tests.benchmarks.cluster_speed [N]`.

N linear shadow models of the benchmark's size (50,000), by DP-SGD. Every count of
workers, of one core each, gets a cluster of its own, compiles, and is timed on a second
root key; all must give the bits of this process. Compare on an otherwise idle machine.
"""

import os
import sys
import time

import jax
import numpy as np

from audit.cli import bench
from audit.config.workspace import prepare_jax
from audit.engine import cluster, shadow
from audit.models import networks
from audit.types import Lanes, TrainingSet

MODELS = 50_000
TARGETS = 500  # different ones, each many times


def main(models):
    """Print models per second of each count of workers."""
    os.environ["RAY_ADDRESS"] = ""
    prepare_jax()
    rng = np.random.default_rng(0)
    few = bench.draw(TARGETS, rng)
    every = jax.tree.map(lambda a: np.resize(a, (models, *a.shape[1:])), few)
    data = TrainingSet(bench.draw(bench.FIXED, rng), every)
    learner = bench.make("dpsgd", networks.binary_linear(bench.PIXELS, 2))

    def timed(elsewhere):
        engine = shadow.Engine(Lanes(), elsewhere=elsewhere)
        for key in (0, 1):
            began = time.perf_counter()
            root = jax.random.key(key)
            runs = shadow.sweep("train", learner, root, data, engine=engine)
            seconds = time.perf_counter() - began
        return seconds, [leaf.tobytes() for leaf in jax.tree.leaves(runs)]

    seconds, expected = timed(None)
    print(f"this process, all cores: {models / seconds:,.0f} models/s", flush=True)
    first = None
    for workers in (1, 2):
        import ray

        ray.init(address="local", num_cpus=workers, include_dashboard=False,
                 logging_level="ERROR", log_to_driver=False)  # fmt: skip
        seconds, got = timed(cluster.compute)
        assert got == expected, "other bits"
        first = first or seconds
        print(
            f"{workers} worker: {models / seconds:,.0f} models/s, "
            f"{first / seconds:.2f} times one; equal bits", flush=True,
        )  # fmt: skip
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MODELS)
