"""DP-SGD: clip each example's gradient, sum, add Gaussian noise (Abadi et al. 2016)."""

from __future__ import annotations

from audit.mechanisms import CLIPS, SAMPLERS, gaussian, gradient, noisy_sgd, optimizers
from audit.types import (
    Clipping,
    Count,
    Defense,
    NonNegative,
    Optimizer,
    Positive,
    Sampling,
    Task,
)


def dpsgd(
    task: Task,
    *,
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
    """Train on noised sums of clipped gradients.

    Args:
      task: what is learnt.
      clip_norm: C, in units of the gradient.
      clip: `soft` is Guo et al.'s GELU clip, differentiable, norm at most 1.1153 C;
        `hard` is min(1, C / norm), which has no Fisher bound (it is not smooth).
      noise_multiplier: standard deviation of the noise over C, dimensionless.
      learning_rate: of the optimizer.
      optimizer: post-processing of the noised mean.
      steps: how many.
      sampling: who takes part in a step; owns the amplification.
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
    )
