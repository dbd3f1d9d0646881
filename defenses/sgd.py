"""Plain gradient descent: no clipping, no noise, no bound. The undefended control."""

from __future__ import annotations

from typing import Any, Literal

import jax

from audit.mechanisms import (
    SAMPLERS,
    gradient,
    no_clip,
    noisy_sgd,
    none,
    optimizers,
    stream,
)
from audit.types import (
    Count,
    Defense,
    Iterative,
    NonNegative,
    Optimizer,
    Positive,
    Release,
    Sampling,
    State,
    Task,
    TrainingSet,
)


def sgd(
    task: Task,
    *,
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
    weight_decay: NonNegative = 0.0,
    start: Literal["shared", "fresh"] = "shared",
) -> Defense:
    """Train on the mean gradient of each batch.

    Args:
      task: what is learnt.
      learning_rate: of the optimizer.
      optimizer: turns the mean gradient into an update.
      steps: how many.
      sampling: who takes part in a step.
      batch_size: records per step; None with full batches.
      weight_decay: added to the mean gradient, times the parameters.
      start: `shared`, all runs start where everybody knows; `fresh`, every run from its
        own random parameters, which nobody knows.
    """
    defense = noisy_sgd(
        task,
        gradient(task, no_clip()),
        SAMPLERS[sampling](batch_size),
        none(),
        optimizer=optimizers.named(optimizer, learning_rate, weight_decay),
        steps=steps,
    )
    if start == "fresh":
        return _from_fresh_starts(task, defense)
    if "full_batch" not in defense.traits:
        return defense
    return defense._replace(traits=defense.traits | {"noiseless"})


def _from_fresh_starts(task: Task, defense: Defense) -> Defense:
    """Return the defense with random parameters, by a run's key, where it starts."""
    mechanism = defense.mechanism
    assert isinstance(mechanism, Iterative), "built of steps"

    def fresh(key: jax.Array, side: Any) -> Any:
        return side._replace(params=task.init(stream(key, "start")))

    def init(key: jax.Array, side: Any) -> State:
        return mechanism.init(key, fresh(key, side))

    def train(key: jax.Array, side: Any, data: TrainingSet) -> Release:
        return defense.train(key, fresh(key, side), data)

    return defense._replace(train=train, mechanism=mechanism._replace(init=init))
