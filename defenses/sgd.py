"""Plain gradient descent: no clipping, no noise, no bound. The undefended control."""

from __future__ import annotations

from audit.clip import no_clip
from audit.mechanisms import noisy_sgd
from audit.noise import none
from audit.optimizers import OPTIMIZERS
from audit.queries import gradient, start
from audit.samplers import SAMPLERS
from audit.types import (
    Count,
    Defense,
    NonNegativeInt,
    Optimizer,
    Positive,
    Sampling,
    Task,
)


def sgd(
    task: Task,
    *,
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
    pretrain_epochs: NonNegativeInt = 0,
) -> Defense:
    """Train on the mean gradient of each batch.

    Args:
      task: what is learnt.
      learning_rate: of the optimizer.
      optimizer: turns the mean gradient into an update.
      steps: how many.
      sampling: who takes part in a step.
      batch_size: records a step; None with full batches.
      pretrain_epochs: passes over the public data before the private ones.
    """
    return noisy_sgd(
        task,
        gradient(task, no_clip()),
        SAMPLERS[sampling](batch_size),
        none(),
        optimizer=OPTIMIZERS[optimizer](learning_rate),
        steps=steps,
        prepare=start(task, pretrain_epochs),
    )
