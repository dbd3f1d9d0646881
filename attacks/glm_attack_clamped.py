"""The closed-form attack with what its attacker knows put to use: label and range.

Derived from Balle et al. (2022); the clamps are ours.
"""

from __future__ import annotations

import math
from functools import partial

import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from audit.mechanisms import class_norms
from audit.mechanisms.glm.losses import LOSSES
from audit.mechanisms.glm.stationarity import from_intercept, from_label
from audit.types import Attack, Knowledge, Observation, Share, Task, ThreatModel


def glm_attack_clamped(task: Task, *, least_slope: Share = 1e-4) -> Attack:
    """Guess x = -B / a, a clamped to the side its label allows, x to the domain.

    A record of class 1 pulls the weights up, one of class 0 down: a logistic slope lies
    in (-1, 0) or (0, 1). Where noise says otherwise, `glm_attack` divides by a number
    of the wrong sign or near 0. Clamped, the error is bounded, and biased.

    Args:
      task: gives image shape and domain; two classes.
      least_slope: smallest |a| of a logistic record; estimates below are raised to it.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"objective", "label"}),
        assumes=frozenset({"glm"}),
    )

    def clamped(loss: str, intercept: bool, norms: Array, seen: Observation) -> Array:
        if intercept:
            slope, rest = from_intercept(seen.rest)[0], seen.rest[:-1]
        else:
            norm, rest = norms[seen.label], seen.rest
            slope = from_label(loss, seen.params, rest, seen.label, norm)[0]
        if math.isfinite(LOSSES[loss].steepest):
            side = 1 - 2 * seen.label
            slope = side * jnp.clip(side * slope, least_slope, 1)
        return jnp.clip(-rest / slope, *task.domain)

    def fit(key: Array, knowledge: Knowledge) -> tuple[Partial, dict]:
        del key
        objective = knowledge.objective
        assert objective is not None, "granted: declared above"
        form = partial(clamped, objective.loss, objective.intercept)
        return Partial(form, class_norms(knowledge, task.classes)), {}

    def guess(form: Partial, key: Array, seen: Observation) -> Array:
        del key
        return form(seen).reshape(task.features)

    return Attack(threat_model, fit, guess)
