"""How short the gradients of unseen images are at the models that a scenario trains.

    AUDIT_DATA=... python -m tests.benchmarks.short_gradients \\
        scenario=dirdp_fashion_mnist data=fashion_mnist "defenses=[vmf_300k]" seed=0

The words are those of `run`, of a scenario whose game is `exposed`; models that such a
run has left in the store are not trained again.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit import pipeline
from audit.config import compose, hydra_app, workspace
from audit.engine.progress import Progress
from audit.games.base import Table
from audit.rng import stream
from audit.types import Examples, Task
from tests import ROOT

RUNS = ROOT / "results" / "runs"
SHORT = 1e-18  # its square is no normal number of float32
SCALED = 2.0**60  # by which gradients are multiplied, so that their squares are


def main(words: list[str]) -> None:
    """Print, per defense, how many gradients are zero and how many are short."""
    workspace.prepare_jax()
    scenario, _ = hydra_app.composed(words)
    game, key = compose.play(scenario), jax.random.key(scenario.spec.seed)
    problem = pipeline.load(scenario, game)
    public = pipeline.begin(key, scenario, problem)
    engine = workspace.engine(scenario, RUNS, RUNS, Progress())
    spec, task, z = scenario.spec, problem.task, problem.splits.targets
    table = Table(problem, engine, spec.runs, None, spec.accounting_runs, spec.delta)
    for entry in scenario.defenses:
        learner = pipeline.build(key, entry, problem, public)
        runs = game.release(stream(key, f"defense {entry.label}"), learner, table)
        norms = np.asarray(_norms(task, runs.evidence.params[0], z))
        zero, short = (norms == 0).sum(), (norms < SHORT).sum()
        print(f"{entry.label}: of {len(norms)}, {zero} are 0, {short} below {SHORT}")


def _norms(task: Task, params: Any, z: Examples) -> jax.Array:
    """Return the norm of each image's gradient [m]."""

    def norm(one: Examples) -> jax.Array:
        slope = jax.tree.leaves(jax.grad(task.loss)(params, one))
        return jnp.sqrt(sum(((SCALED * a) ** 2).sum() for a in slope)) / SCALED

    return jax.vmap(norm)(jax.tree.map(jnp.asarray, z))


if __name__ == "__main__":
    main(sys.argv[1:])
