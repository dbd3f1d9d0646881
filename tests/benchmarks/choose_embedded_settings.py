"""Held-out pool error of the reconstructor on embedded data, for a few settings.

    python -m tests.benchmarks.choose_embedded_settings

The table in docs/attacks/reconstructor.md. Each line is the mean over three fits on the
same shadow models; the split that is held out is of the pool, and no target is ever
scored, so the choice cannot favour the targets.
"""

import jax
import numpy as np

from attacks.reconstructor import reconstructor
from audit import pipeline
from audit.config import compose, hydra_app
from audit.engine import shadow
from audit.games import base
from audit.games.base import Table
from audit.types import TrainingSet

CHANGES = (
    {},
    {"weight_decay": 1e-1},
    {"weight_decay": 1e-3},
    {"least_scale": 0.3},
    {"least_scale": 0.03},
    {"width": 1024, "width_last": 512},
    {"batch_size": 32},
)
COLUMNS = ("sgd", "dpsgd", "prune")  # defenses
FITS = 3


def held_out_error(change, learner, problem, shadows):
    """Return the mean held-out error of three fits."""
    errors = []
    for fit in range(FITS):
        attack = reconstructor(problem.task, epochs=40, **change)
        table = Table(problem, shadow.Engine(), 1)
        knowledge = base.grant(attack.threat_model, learner, table)
        knowledge = knowledge._replace(train=lambda key, records: shadows)
        errors.append(attack.fit(jax.random.key(fit), knowledge)[1]["held_mse"])
    return float(np.mean(errors))


def main():
    """Print one line per change, with the errors of `COLUMNS`."""
    scenario, _ = hydra_app.composed(["scenario=binary_mnist", "data=mnist5k"])
    problem = pipeline.load(scenario, compose.play(scenario))
    public = pipeline.begin(jax.random.key(0), scenario, problem)
    lines = {i: [] for i in range(len(CHANGES))}
    for entry in scenario.defenses:
        if entry.label not in COLUMNS:
            continue
        learner = pipeline.build(jax.random.key(0), entry, problem, public)
        data = TrainingSet(problem.splits.fixed, problem.splits.pool)
        engine, key = shadow.Engine(), jax.random.key(100)
        shadows = shadow.sweep("train", learner, key, data, engine=engine)
        for i, change in enumerate(CHANGES):
            lines[i].append(held_out_error(change, learner, problem, shadows))
    for change, errors in zip(CHANGES, lines.values(), strict=True):
        print(change, " ".join(f"{e:.4f}" for e in errors))


if __name__ == "__main__":
    main()
