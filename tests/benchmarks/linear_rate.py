"""How many linear models a second, and which share of the device's best product.

    python -m tests.benchmarks.linear_rate

The rows `linear` of `python -m audit bench` for two defenses alone, in a minute: for a
device that is at hand for minutes.
"""

from __future__ import annotations

import json
from functools import partial

import jax

from audit.cli.bench import clock, rows, subjects
from audit.config.workspace import prepare_jax
from audit.engine import store
from audit.engine.shadow import Engine
from audit.types import Lanes


def main() -> None:
    """Print one line of JSON per defense, and one for the product."""
    prepare_jax()
    subject, root = subjects.sized("linear"), jax.random.key(rows.ROOT)
    data = subjects.training_set(subject, subject.models)
    device = str(jax.devices()[0].device_kind)
    print(json.dumps({"device": device, **store.versions()}), flush=True)
    for name in ("dpsgd", "sgd"):
        learner = subjects.make(name, subject)
        run = partial(rows.swept, learner, root, data, Engine(Lanes(subject.tile)))
        rate = subject.models / clock.fastest(run, 3)
        gflops = rate * subjects.operations_of(learner) / 1e9
        line = {"linear": name, "models": rate, "GFLOP/s": gflops}
        print(json.dumps(line), flush=True)
    square = clock.matmul_rate(8_192, 8_192, 8_192, times=5)
    print(json.dumps({"square product of 8192, GFLOP/s": square}), flush=True)


if __name__ == "__main__":
    main()
