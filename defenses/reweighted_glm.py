"""IRFIL: weigh the records until all leak alike, fit, add Gaussian noise."""

from __future__ import annotations

from functools import partial
from typing import Literal

from audit.mechanisms import gaussian
from audit.mechanisms.glm.fitted import fitted_glm
from audit.mechanisms.glm.reweighting import reweigh
from audit.types import Defense, NonNegative, NonNegativeInt, Positive, Task


def reweighted_glm(
    task: Task,
    *,
    loss: Literal["linear", "logistic"] = "logistic",
    regularization: NonNegative = 1e-2,
    noise_stddev: Positive = 1e-2,
    intercept: bool = False,
    iterations: NonNegativeInt = 15,
    method: Literal["sample", "class", "hybrid"] = "sample",
    min_weight: NonNegative = 0.0,
    max_weight: Positive | None = None,
) -> Defense:
    """Release the weighted minimiser + N(0, s^2 I), weights from Algorithm 1.

    Iteratively reweighted Fisher information loss (Hannun et al. 2021): divide every
    record's weight by its eta, scale to mean one, fit again. The published loss takes
    the weights for constants. They are functions of all records, so it is not the loss
    of the whole procedure, and no Renyi bound is claimed.

    Args:
      task: two classes, or numbers for `linear`.
      loss: `linear` is the squared error, with classes coded -1 and 1.
      regularization: lambda.
      noise_stddev: s, in units of the weights.
      intercept: a constant feature, regularised like the others.
      iterations: how often the weights change; 0 = output_perturbed_glm.
      method: one weight per record (`sample`), per class, or the product (`hybrid`).
      min_weight: clamp after scaling.
      max_weight: clamp after scaling; None = none.
    """
    weigh = partial(
        reweigh,
        classes=task.classes,
        iterations=iterations,
        method=method,
        least=min_weight,
        most=max_weight,
    )
    return fitted_glm(
        task,
        gaussian(noise_stddev),
        loss=loss,
        regularization=regularization,
        intercept=intercept,
        reweigh=weigh,
    )
