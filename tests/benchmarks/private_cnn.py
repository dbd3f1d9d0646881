"""What a private step of the network of Guo et al. costs, and accounting for it.

    python -m tests.benchmarks.private_cnn results/benchmarks/private_cnn.md

Processor time, as multiples of the plain gradient of the same batch, within one
process: the machine's speed and what else runs on it cancel; seconds are of this one.
The gradient is JAX's own, of the mean loss over the batch. Random images stand for
digits; time does not depend on them.
"""

import sys
import time
from pathlib import Path

import jax
import numpy as np

from audit.accounting.traces import Probing
from audit.config import registry
from audit.engine import shadow
from audit.mechanisms.noisy_sgd import step_traces
from audit.models import networks, pretrain
from audit.report.markdown import grid
from audit.types import Examples, TrainingSet

N, TIMES = 4000, 3
SHAPES = {"cnn_tanh": (28, 28, 1), "cnn_tanh_deep": (32, 32, 3)}
# (model, batch, records accounted for, probes of each)
SETTINGS = (
    ("cnn_tanh", 600, N, 2),
    ("cnn_tanh", 200, N, 2),
    ("cnn_tanh", 200, N, 8),
    ("cnn_tanh", 200, 1000, 8),
    ("cnn_tanh", 200, 500, 8),
    ("cnn_tanh", 200, 250, 28),
    ("cnn_tanh_deep", 200, N, 2),
)


def seconds(function, *arguments):
    """Return processor seconds of one call, the least of some."""
    run = jax.jit(function)
    jax.block_until_ready(run(*arguments))
    spent = []
    for _ in range(TIMES):
        before = time.process_time()
        jax.block_until_ready(run(*arguments))
        spent.append(time.process_time() - before)
    return min(spent)


def measured(model, batch, records, probes):
    """Return seconds of a plain gradient, a private step, and accounting for it."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    x = rng.uniform(size=(N, *SHAPES[model])).astype(np.float32)
    data = TrainingSet(Examples(x, rng.integers(0, 10, N).astype(np.int32)), None)
    task = getattr(networks, model)(SHAPES[model], 10)
    words = {"clip_norm": 8.0, "noise_multiplier": 0.5, "learning_rate": 0.1}
    words |= {"sampling": "shuffled", "batch_size": batch, "steps": 1}
    learner = shadow.learner(
        registry.find("defense", "dpsgd"),
        task,
        registry.check("defense", "dpsgd", words, "dpsgd"),
        key=key,
        public=pretrain.start(task, key, jax.tree.map(lambda a: a[:0], data.fixed)),
        label="dpsgd",
    )
    mechanism = learner.defense.mechanism
    state = mechanism.init(key, learner.side)
    rows = np.sort(rng.choice(N, records, replace=False))
    how = Probing("rademacher", probes)

    def plain(params, z):
        loss = lambda p: jax.vmap(task.loss, (None, 0))(p, z).mean()  # noqa: E731
        return jax.grad(loss)(params)

    def step(state, data):
        return mechanism.step(key, state, data)

    def account(view, data):
        return step_traces(mechanism, key, data, rows, how)(view)

    view = jax.jit(step)(state, data)[1]
    some = jax.tree.map(lambda a: a[:batch], data.fixed)
    return (
        seconds(plain, state.params, some),
        seconds(step, state, data),
        seconds(account, view, data),
    )


def main(path=None):
    """Print the table, or write it."""
    rows = []
    for setting in SETTINGS:
        plain, step, account = measured(*setting)
        numbers = step / plain, account / step, (step + account) / plain
        times = f"{step:.3f}", f"{account:.3f}"
        rows.append([*setting, *(f"{x:.1f}" for x in numbers), *times])
    heads = (
        "model", "batch", f"records accounted for, of {N}",
        "probes per record and visit",
        "private step / plain", "accounting / private step", "both / plain",
        "seconds of a private step", "seconds of accounting",
    )  # fmt: skip
    text = grid(heads, [[str(cell) for cell in row] for row in rows])
    print(text)
    if path is not None:
        Path(path).write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
