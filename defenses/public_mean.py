"""Public mean: shift each gradient along the mean public one before clipping."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from audit.mechanisms import (
    SAMPLERS,
    Side,
    gaussian,
    gradient,
    masked,
    noisy_sgd,
    optimizers,
    soft_clip,
    start_masked,
)
from audit.types import (
    Count,
    Defense,
    Fraction,
    NonNegative,
    Optimizer,
    Positive,
    Public,
    Refresh,
    Sampling,
    Task,
)


def public_mean(
    task: Task,
    *,
    shift: Positive = 1.0,
    density: Fraction = 0.5,
    keep: Literal["magnitude", "random"] = "magnitude",
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    weight_decay: NonNegative = 0.0,
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
) -> Defense:
    """Train on noised sums of CLIP(gradient + shift C u), u the public direction.

    u is the mean gradient of the public records at the current parameters, divided by
    its norm. What `fim` learns comes close to u (Edmunds 2024, section 3.2.1); u itself
    costs one pass over the public records per step. The shift fills up the clip, so
    that the part that depends on the record shrinks by a factor of about 1 + shift.

    Args:
      task: what is learnt.
      shift: length of what is added, over C.
      density: see `prune`.
      keep: see `prune`.
      clip_norm: C of the soft clip.
      noise_multiplier: standard deviation of the noise over C.
      learning_rate: of the optimizer.
      optimizer: post-processing of the noised mean.
      weight_decay: added to the mean gradient, times the trained parameters.
      steps: how many.
      sampling: who takes part in a step.
      batch_size: records per step; None with full batches.
    """

    def offset(params: Any, mask: Any, public: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return jax.vmap(task.loss, (None, 0))(params, public).mean()

        mean = masked(mask, jax.grad(loss)(params))
        length = optax.tree.norm(mean)
        return optax.tree.scale(shift * clip_norm / jnp.maximum(length, 1e-12), mean)

    def prepare(key: jax.Array, public: Public) -> Side:
        if not len(public.records.y):
            raise ValueError("public_mean needs public records and the split has none")
        side = start_masked(keep, density)(key, public)
        # the offset is replaced before the first step
        return side._replace(learnt=public.records, offset=side.params)

    def again(params: Any, side: Side, t: Any) -> Side:
        del t
        return side._replace(offset=offset(params, side.mask, side.learnt))

    return noisy_sgd(
        task,
        gradient(task, soft_clip(clip_norm)),
        SAMPLERS[sampling](batch_size),
        gaussian(noise_multiplier * clip_norm),
        optimizer=optimizers.named(optimizer, learning_rate, weight_decay),
        steps=steps,
        prepare=prepare,
        refresh=Refresh(again),
    )
