"""Plain gradient descent: no clipping, no noise, no bound. The undefended control."""

from __future__ import annotations

from audit.mechanisms import SAMPLERS, gradient, no_clip, noisy_sgd, none, optimizers
from audit.types import Count, Defense, NonNegative, Optimizer, Positive, Sampling, Task


def sgd(
    task: Task,
    *,
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
    weight_decay: NonNegative = 0.0,
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
    """
    return noisy_sgd(
        task,
        gradient(task, no_clip()),
        SAMPLERS[sampling](batch_size),
        none(),
        optimizer=optimizers.named(optimizer, learning_rate, weight_decay),
        steps=steps,
    )
