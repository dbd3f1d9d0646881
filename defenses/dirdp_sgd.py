"""DirDP-SGD: a random direction around each gradient's (Faustini et al. 2023)."""

from __future__ import annotations

from typing import Literal

from audit.mechanisms import (
    SAMPLERS,
    batch_direction,
    gradient,
    modules,
    no_clip,
    noisy_sgd,
    normalise,
    optimizers,
    row_directions,
    row_sizes,
    von_mises_fisher,
)
from audit.types import (
    Count,
    Defense,
    NonNegative,
    Optimizer,
    Positive,
    Sampling,
    Task,
)


def dirdp_sgd(
    task: Task,
    *,
    concentration: Positive = 5.0,
    variant: Literal["joint", "layers", "regularised", "batch", "rows"] = "joint",
    margin: Positive = 0.01,
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
    weight_decay: NonNegative = 0.0,
) -> Defense:
    """Train on means of von Mises-Fisher draws around unit gradients.

    Args:
      task: what is learnt.
      concentration: kappa; larger is less noise. The paper's epsilon is 2 kappa.
      variant: `joint` is Algorithm 1, one draw per record in the space of all
        parameters. `layers` normalises and draws each top-level module separately.
        `regularised` draws around g / (|g| + margin), the shorter the noisier.
        `batch` makes one draw per step, around the direction of the batch's sum.
        `rows` makes one per step for each row of the sum of unit gradients: the weights
        into one unit or filter, or the biases of a layer.
      margin: of `regularised`, in units of the gradient.
      learning_rate: of the optimizer.
      optimizer: post-processing of the noised mean.
      steps: how many.
      sampling: who takes part in a step; Algorithm 1 says `uniform`.
      batch_size: records per step; None with full batches.
      weight_decay: added to the mean gradient, times the parameters.
    """
    sizes = modules(task)
    whole = sum(sizes.values())
    query = gradient(task, normalise())
    noise = von_mises_fisher(concentration, whole)
    if variant == "layers":
        query = gradient(task, normalise(), apart=True)
        noise = von_mises_fisher(concentration, sizes)
    elif variant == "regularised":
        query = gradient(task, normalise(margin))
        noise = von_mises_fisher(concentration, whole, unit=False)
    elif variant == "batch":
        # no reading of the Fisher information: it depends on all other records
        query = gradient(task, no_clip())._replace(smooth=False)
        noise = batch_direction(concentration, whole)
    elif variant == "rows":
        query = query._replace(smooth=False)  # no reading either, as of `batch`
        noise = row_directions(concentration, row_sizes(task))
    return noisy_sgd(
        task,
        query,
        SAMPLERS[sampling](batch_size),
        noise,
        optimizer=optimizers.named(optimizer, learning_rate, weight_decay),
        steps=steps,
    )
