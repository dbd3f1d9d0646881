"""Prune: DP-SGD on a fixed part of the parameters, the rest frozen (Edmunds 2024)."""

from __future__ import annotations

from typing import Literal

from audit.mechanisms import (
    CLIPS,
    SAMPLERS,
    gaussian,
    gradient,
    noisy_sgd,
    optimizers,
    start_masked,
)
from audit.types import (
    Clipping,
    Count,
    Defense,
    Fraction,
    NonNegative,
    Optimizer,
    Positive,
    Sampling,
    Task,
)


def prune(
    task: Task,
    *,
    density: Fraction = 0.5,
    keep: Literal["magnitude", "random"] = "magnitude",
    clip_norm: Positive = 1.0,
    clip: Clipping = "soft",
    noise_multiplier: Positive = 1.0,
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
    weight_decay: NonNegative = 0.0,
) -> Defense:
    """Train `density` of the parameters; freeze the others at their first value.

    The mask is public: it is made once from the initialisation, or from weights that
    were pre-trained on public data. Gradients are masked before clipping, the noise
    after it is drawn (Edmunds 2024, section 3.1).

    Args:
      task: what is learnt.
      density: share of the parameters that is trained.
      keep: train the largest (`magnitude`) or any (`random`) parameters.
      clip_norm: C, of the masked gradient.
      clip: see `dpsgd`.
      noise_multiplier: standard deviation of the noise over C.
      learning_rate: of the optimizer.
      optimizer: post-processing of the noised mean.
      steps: how many.
      sampling: who takes part in a step.
      batch_size: records per step; None with full batches.
      weight_decay: added to the mean gradient, times the parameters.
    """
    return noisy_sgd(
        task,
        gradient(task, CLIPS[clip](clip_norm)),
        SAMPLERS[sampling](batch_size),
        gaussian(noise_multiplier * clip_norm),
        optimizer=optimizers.named(optimizer, learning_rate, weight_decay),
        steps=steps,
        prepare=start_masked(keep, density),
    )
