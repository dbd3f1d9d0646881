"""What a private step of the network of Guo et al. costs, and accounting for it.

    python -m tests.benchmarks.private_cnn results/benchmarks/private_cnn.md

Processor time, as multiples of the plain gradient of the same batch, within one
process: the machine's speed and what else runs on it cancel; seconds are of this one.
The gradient is JAX's own, of the mean loss over the batch. Random images stand for
digits; time does not depend on them.

A second table sets the clipped sum beside the naive one, of the gradients of all
records at once: how far apart they are, processor time, and memory by the compiler's
count.
"""

import platform
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from audit.accounting.traces import Probing
from audit.clipping import soft_clip
from audit.config import registry
from audit.engine import shadow
from audit.engine.program import threads
from audit.mechanisms import batch as batches
from audit.mechanisms.noisy_sgd import step_traces
from audit.mechanisms.query import Side, gradient
from audit.models import networks, pretrain
from audit.report.markdown import grid
from audit.types import Examples, TrainingSet

N, TIMES = 4000, 5
SHAPES = {"cnn_tanh": (28, 28, 1), "cnn_tanh_deep": (32, 32, 3), "lenet": (28, 28, 1)}
NAIVE = {"lenet": 600, "cnn_tanh": 600, "cnn_tanh_deep": 200}  # the batch that is timed
OF_MEMORY = 600  # the batch whose memory is counted
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


def processor():
    """Return the name of the processor, where the system tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


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
        loss = lambda p: jax.vmap(task.loss, (None, 0))(p, z).mean()
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


def against_naive(model, n):
    """Return the relative distance, ratio of times, and both memories in MiB."""
    rng, shape = np.random.default_rng(0), SHAPES[model]
    task = getattr(networks, model)(shape, 10)
    query, params = gradient(task, soft_clip(1.0)), task.init(jax.random.key(0))

    def drawn(n):
        x = rng.uniform(size=(n, *shape)).astype(np.float32)
        return Examples(x, rng.integers(0, 10, n).astype(np.int32))

    def naive(params, z):
        each = jax.vmap(query.fn, (None, None, 0))(params, Side(params), z)
        return jax.tree.map(lambda g: g.sum(0), each)

    def ours(params, z):
        return batches.sum_fixed(query, params, Side(params), z, None)

    def memory(function):
        compiled = jax.jit(function).lower(params, drawn(OF_MEMORY)).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 2**20

    z = drawn(n)
    a, b = (ravel_pytree(jax.jit(f)(params, z))[0] for f in (ours, naive))
    apart = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    times = [seconds(f, params, z) for f in (ours, naive)]
    return apart, times[0] / times[1], memory(ours), memory(naive)


def main(path=None):
    """Print the tables, or write them."""
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
    first = grid(heads, [[str(cell) for cell in row] for row in rows])
    rows = []
    for model, n in NAIVE.items():
        apart, ratio, ours, naive = against_naive(model, n)
        sizes = f"{ours:.0f}", f"{naive:.0f}", f"{ours / naive:.3f}"
        rows.append([model, str(n), f"{apart:.0e}", f"{ratio:.2f}", *sizes])
    heads = (
        "model", "batch", "clipped sum: relative distance from the naive one",
        "time / naive", f"MiB at a batch of {OF_MEMORY}", "naive MiB",
        "memory / naive",
    )  # fmt: skip
    device = f"{jax.devices()[0].device_kind}, {threads()} threads, {processor()}"
    text = "\n\n".join([first, grid(heads, rows), f"Measured on: {device}"])
    print(text)
    if path is not None:
        Path(path).write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
