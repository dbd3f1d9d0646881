"""A linear model's exact minimiser, released as it is: the undefended control."""

from __future__ import annotations

from typing import Literal

from audit.mechanisms import noise
from audit.mechanisms.glm.fitted import fitted_glm
from audit.types import Defense, NonNegative, Task


def glm(
    task: Task,
    *,
    loss: Literal["linear", "logistic"] = "logistic",
    regularization: NonNegative = 1e-2,
    intercept: bool = False,
) -> Defense:
    """Release argmin_w sum_i l(<w, x_i>, y_i) + (n lambda / 2) ||w||^2.

    An attacker who knows all other records solves the stationarity condition for the
    last one, to the last digit (Balle et al. 2022). No bound: there is no noise.

    Args:
      task: two classes, or numbers for `linear`.
      loss: `linear` is the squared error, with classes coded -1 and 1.
      regularization: lambda.
      intercept: a constant feature, regularised like the others.
    """
    return fitted_glm(
        task,
        noise.none(),
        loss=loss,
        regularization=regularization,
        intercept=intercept,
    )
