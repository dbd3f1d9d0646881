"""What two errors of the release of Guo et al. (2022), 7.3, do to its numbers.

    python -m tests.benchmarks.guo_errors results/benchmarks/guo_errors.md

Renyi divergence of order 2 of the released MNIST configuration, 60,000 records, batches
of 600, 5,000 steps: as the release counts it, and valid. Traces of one step about 100
embedded digits: the release averages 50 coordinates per record that its key makes one.
"""

import math
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np

from audit import pipeline
from audit.accounting import rdp
from audit.accounting.traces import Probing, estimate
from audit.cli.reproduce.conventions import guo_rdp2
from audit.clipping import GELU_OVERSHOOT, soft_clip
from audit.config import compose, hydra_app
from audit.mechanisms import batch
from audit.mechanisms.query import Side, gradient
from audit.report.markdown import grid
from audit.scorecard.view import number

RECORDS, BATCH, STEPS = 60_000, 600, 5_000
NOISES = 0.5, 1.0, 2.0, 5.0, 10.0
SAMPLE, DRAWS, CLIP = 100, 20, 8.0
LAWS = {
    "as released: one coordinate, 50 times": Probing("coordinate_replaced", 1),
    "as described: 50 coordinates": Probing("coordinate_replaced", 50),
    "2 Rademacher probes": Probing("rademacher", 2),
}


def mse_bound(divergence):
    """Return 1 / (4 (e^D - 1)) as a table prints it, however small."""
    if divergence < 100:
        return number(0.25 / math.expm1(divergence))
    return f"10^{(math.log(0.25) - divergence) / math.log(10):.0f}"


def divergences():
    """Return the table of Renyi divergences, one row per noise multiplier."""
    rows, order = [], np.array([2.0])
    for sigma in NOISES:
        nominal = guo_rdp2(
            records=RECORDS, batch_size=BATCH, steps=STEPS, noise_multiplier=sigma
        )
        shift = GELU_OVERSHOOT / sigma
        poisson = rdp.poisson_gaussian(order, BATCH / RECORDS, shift, "replace_one")
        visits = STEPS * BATCH // RECORDS
        shuffled = visits * rdp.gaussian(order, 2 * shift)[0]
        values = nominal, STEPS * poisson[0], shuffled
        bounds = map(mse_bound, values)
        rows.append([f"{sigma:g}", *map(number, values), *bounds])
    heads = "σ", "as released", "Poisson, replace-one", "shuffled, replace-one"
    return grid([*heads, *(f"MSE bound, {head}" for head in heads[1:])], rows)


def traces():
    """Return the table of estimates of ||J||_F^2, one row per law of the probes."""
    scenario, _ = hydra_app.composed(["scenario=private_cnn_mnist5k"])
    problem = pipeline.load(scenario, compose.play(scenario))
    z = batch.take(problem.splits.fixed, np.arange(SAMPLE))
    side = Side(problem.task.init(jax.random.key(0)))
    motion = gradient(problem.task, soft_clip(CLIP)).closed_forms.motion
    form = partial(motion, side.params, side, z)
    shape = SAMPLE, z.x[0].size

    def read(how, key):
        return estimate(how, key, form, shape, np.float32).trace

    exact = np.asarray(jax.jit(partial(read, Probing("exact")))(jax.random.key(0)))
    rows = []
    for name, how in LAWS.items():
        run = jax.jit(partial(read, how))
        each = np.array([run(k) for k in jax.random.split(jax.random.key(1), DRAWS)])
        off = np.median(np.sqrt((((each / exact) - 1) ** 2).mean(0)))
        mean, largest = (each / exact).mean(), (each.max(1) / exact.max()).mean()
        rows.append([name, number(off, 3), number(mean, 3), number(largest, 3)])
    heads = (
        "probes of one step", "relative error of a record's trace, median",
        "mean estimate / exact", "largest of 100 records / exact largest",
    )  # fmt: skip
    return grid(heads, rows)


def main(path=None):
    """Print both tables, or write them."""
    text = f"{divergences()}\n\n{traces()}\n"
    print(text)
    if path is not None:
        Path(path).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
