"""Output perturbation: fit a linear model exactly, add Gaussian noise to it."""

from __future__ import annotations

from typing import Literal

from audit.mechanisms import gaussian
from audit.mechanisms.glm.fitted import fitted_glm
from audit.types import Defense, NonNegative, Positive, Task


def output_perturbed_glm(
    task: Task,
    *,
    loss: Literal["linear", "logistic"] = "logistic",
    regularization: NonNegative = 1e-2,
    noise_stddev: Positive = 1e-2,
    intercept: bool = False,
    max_norm: Positive | None = None,
) -> Defense:
    """Release argmin_w sum_i l(<w, x_i>, y_i) + (n lambda / 2) ||w||^2 + N(0, s^2 I).

    Chaudhuri et al. (2011); audited as in Hannun et al. (2021) and Guo et al. (2022,
    sections 7.1 and 7.2). Replacing one record moves the logistic minimiser by at most
    2 R / (n lambda), with R the largest norm of a record; the squared error has no such
    bound, hence no Renyi reading.

    Args:
      task: two classes, or numbers for `linear`.
      loss: `linear` is the squared error, with classes coded -1 and 1.
      regularization: lambda.
      noise_stddev: s, in units of the weights.
      intercept: a constant feature, regularised like the others.
      max_norm: R without the constant feature, public; a longer record is refused.
        None = the longest the task's domain allows.
    """
    return fitted_glm(
        task,
        gaussian(noise_stddev),
        loss=loss,
        regularization=regularization,
        intercept=intercept,
        max_norm=max_norm,
    )
