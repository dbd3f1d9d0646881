"""Whether a linear model has one minimiser on some records; if not, what would help.

Host code: it runs once, before anything is trained.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from audit.types import Examples, Task

STEPS = 60  # Newton steps in search of a separating plane
LENGTH_SLACK = 1 + 1e-5  # pixels are float32


def check_task(task: Task, loss: str) -> None:
    """Refuse a task a loss cannot fit; ValueError naming the number of classes."""
    numbers = task.classes == 0 and loss == "linear"
    if task.classes != 2 and not numbers:
        fits = "two classes or numbers" if loss == "linear" else "two classes"
        raise ValueError(f"loss={loss} fits {fits}; the task has {task.classes}")


def longest(task: Task, max_norm: float | None, intercept: bool) -> float:
    """Return the largest norm a record can have, the constant feature included.

    `max_norm` is that of the features, public; None = what the task's domain allows.
    """
    if max_norm is None:
        max_norm = math.sqrt(math.prod(task.features)) * max(map(abs, task.domain))
    return math.sqrt(max_norm**2 + intercept)


def check(
    z: Examples,
    targets: Examples,
    task: Task,
    loss: Any,
    regularization: float,
    intercept: bool,
    max_norm: float | None,
) -> None:
    """Refuse records [n] on which the objective has no minimiser, or not one.

    Above a regularization of 0 there always is exactly one. `max_norm` is what the
    Renyi bound takes for granted, of these and of the targets [m] that join them one at
    a time; None = the domain.

    Raises:
      ValueError: what is wrong and what would help.
    """
    x = np.asarray(z.x, float).reshape(len(z.y), -1)
    y = np.asarray(z.y)
    if task.classes:
        _check_labels(y, task.classes)
    trained_on = np.append(x, np.reshape(targets.x, (-1, x.shape[1])), 0)
    norm = math.sqrt((trained_on**2).sum(1).max())
    if max_norm is not None and norm > max_norm * LENGTH_SLACK:
        raise ValueError(
            f"a record has norm {norm:.6g}, above max_norm={max_norm:g}: the Renyi "
            f"bound would be void; raise max_norm or set features.unit_ball=true"
        )
    if regularization > 0:
        return
    x = np.append(x, np.ones((len(x), 1)), 1) if intercept else x
    _check_rank(x, intercept)
    if loss.steepest < math.inf:
        _check_overlap(x, y)


def _check_labels(y: np.ndarray, classes: int) -> None:
    labels = np.unique(y)
    outside = [v for v in labels.tolist() if v not in range(classes)]
    if outside:
        words = ", ".join(f"{v:g}" for v in outside[:5])
        raise ValueError(f"labels {words} are outside 0 .. {classes - 1}")
    if len(labels) < 2:
        raise ValueError(
            f"all {len(y)} records have label {labels[0]}: a classifier needs both "
            f"classes; take more records or other task.classes"
        )


def _check_rank(x: np.ndarray, intercept: bool) -> None:
    remedy = "set regularization above 0, or fewer features (features.pca)"
    n, d = x.shape
    if n < d:
        raise ValueError(
            f"{n} records do not determine {d} weights at regularization=0: {remedy}"
        )
    plain = x[:, :-1] if intercept else x
    constant = np.flatnonzero(plain.max(0) == plain.min(0))
    square = np.linalg.eigvalsh(x.T @ x)
    if square[0] > square[-1] * d * np.finfo(float).eps:
        return
    problem = "some features are combinations of others"
    if len(constant):
        problem = f"features {', '.join(map(str, constant[:5]))} are constant"
        problem += f" (and {len(constant) - 5} more)" * (len(constant) > 5)
    raise ValueError(f"{problem}: singular at regularization=0; {remedy}")


def _check_overlap(x: np.ndarray, y: np.ndarray) -> None:
    """Refuse classes that a plane separates: the logistic loss has no minimiser.

    Damped Newton steps reach a separating plane where there is one.
    """
    sign, w = 2.0 * y - 1, np.zeros(x.shape[1])
    for _ in range(STEPS):
        margin = sign * (x @ w)
        if np.min(margin) > 0:
            raise ValueError(
                "a plane separates the classes, so at regularization=0 the logistic "
                "loss has no minimiser: set regularization above 0"
            )
        miss = special.expit(-margin)
        gradient = -x.T @ (sign * miss)
        curved = (x * (miss * (1 - miss))[:, None]).T @ x
        step = np.linalg.lstsq(curved, gradient, rcond=None)[0]
        w = w - step * min(1.0, 10 / max(np.abs(x @ step).max(), 1e-300))
        if np.linalg.norm(step) < 1e-6 * np.linalg.norm(w):
            return
    raise ValueError(
        f"no minimiser within {STEPS} Newton steps at regularization=0: a plane nearly "
        f"separates the classes; set regularization above 0"
    )
