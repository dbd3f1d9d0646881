"""Output perturbation: fit a linear model exactly, add Gaussian noise to it."""

from __future__ import annotations

import math
from typing import Literal

from audit.mechanisms import gaussian
from audit.mechanisms.glm.fitted import fitted_glm
from audit.mechanisms.glm.solvability import longest
from audit.types import Defense, Nominal, NonNegative, Positive, Task


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
    built = fitted_glm(
        task,
        gaussian(noise_stddev),
        loss=loss,
        regularization=regularization,
        intercept=intercept,
        max_norm=max_norm,
    )

    def nominal(n: int) -> tuple[Nominal, ...]:
        """Return Guo et al.'s figures, which take records for no longer than one."""
        divergence = 4 / (n * regularization * noise_stddev) ** 2
        reach = longest(task, max_norm, intercept)
        taken = "it takes the norm of every record for at most 1"
        void = f"{taken}; here it is up to {reach:.4g}" if reach > 1 else None
        source = "Guo et al. 2022, section 7.1"
        bound = 0.25 / math.expm1(divergence) if divergence < 700 else 0.0
        return (
            Nominal("Renyi divergence of order 2", divergence, source, void),
            Nominal("MSE bound", bound, source, void),
        )

    claimed = loss == "logistic" and math.isfinite(task.domain[1])
    return built._replace(nominal=nominal) if claimed else built
