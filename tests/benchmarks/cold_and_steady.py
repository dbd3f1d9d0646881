"""A first sweep over its steady rate: `python -m tests.benchmarks.cold_and_steady`.

10,000 linear shadow models of the benchmark's size each by sgd, dpsgd and prune: once
with nothing compiled, as an audit does it (the next defense's program is compiled
meanwhile), and into a store; and once more with new keys, compiled, without a store.
The ratio of the two times is printed, and beside it what the processor's seconds
alone make of it: no faster way to keep all cores busy takes it below that. Compare on
an otherwise idle machine.
"""

import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from audit.cli.bench import subjects
from audit.config.workspace import prepare_jax
from audit.engine import shadow, store
from audit.engine.ahead import Ahead
from audit.engine.program import threads
from audit.types import Lanes, TrainingSet

MODELS, TARGETS, DEFENSES = 10_000, 500, ("sgd", "dpsgd", "prune")


def main():
    """Print seconds, cold and steady, and their ratio."""
    subject = subjects.SUBJECTS["linear"]
    few = subjects.training_set(subject, TARGETS)
    every = jax.tree.map(lambda a: np.resize(a, (MODELS, *a.shape[1:])), few.target)
    data, lanes = TrainingSet(few.fixed, every), Lanes(subject.tile)
    with tempfile.TemporaryDirectory() as folder:
        prepare_jax()
        jax.config.update("jax_compilation_cache_dir", f"{folder}/xla")
        learners = [subjects.make(name, subject) for name in DEFENSES]
        kept = store.open_store(Path(folder))

        def seconds(key, where):
            root = jax.random.key(key)
            began, before = time.perf_counter(), time.process_time()
            with Ahead(learners) as ahead:
                engine = shadow.Engine(lanes, store=where, ahead=ahead)
                for learner in learners:
                    shadow.sweep("train", learner, root, data, engine=engine)
            return time.perf_counter() - began, time.process_time() - before

        (cold, busy), (steady, trained) = seconds(0, kept), seconds(1, None)
    print(f"{MODELS:,} models each by {', '.join(DEFENSES)}")
    print(f"compiling and storing {cold:.1f} s, steady {steady:.1f} s")
    print(f"seconds of the processor: {busy:.1f}, and {trained:.1f}")
    print(f"ratio {cold / steady:.2f}, at least {busy / threads() / steady:.2f}")


if __name__ == "__main__":
    main()
