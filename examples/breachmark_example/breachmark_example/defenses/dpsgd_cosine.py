"""DP-SGD whose steps get shorter along half a cosine: post-processing of its sums."""

from __future__ import annotations

import optax

from audit.mechanisms import SAMPLERS, gaussian, gradient, noisy_sgd, soft_clip
from audit.types import Count, Defense, Positive, Sampling, Task


def dpsgd_cosine(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    learning_rate: Positive = 0.1,
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
) -> Defense:
    """Train on noised sums of clipped gradients with a decaying learning rate.

    How long a step is depends on its number alone, so that all of the accounting is
    DP-SGD's.

    Args:
      task: what is learnt.
      clip_norm: C of the soft clip, in units of the gradient.
      noise_multiplier: standard deviation of the noise over C, dimensionless.
      learning_rate: of the first step; the last would be 0.
      steps: how many.
      sampling: who takes part in a step; owns the amplification.
      batch_size: records a step; None with full batches.
    """
    return noisy_sgd(
        task,
        gradient(task, soft_clip(clip_norm)),
        SAMPLERS[sampling](batch_size),
        gaussian(noise_multiplier * clip_norm),
        optimizer=optax.sgd(optax.cosine_decay_schedule(learning_rate, steps)),
        steps=steps,
    )
