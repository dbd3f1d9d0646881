"""The closed-form attack, clamped to what the label and the domain allow.

Derived from Balle et al. (2022); the clamps are ours.
"""

from __future__ import annotations

import math
from functools import partial

import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from audit.mechanisms import class_norms, of_class
from audit.mechanisms.glm.losses import LOSSES
from audit.mechanisms.glm.stationarity import from_intercept, from_label
from audit.types import Attack, Knowledge, Observation, Share, Task, ThreatModel


def glm_attack_clamped(task: Task, *, least_slope: Share = 1e-4) -> Attack:
    """Guess x = -B / a, a clamped to the sign of its label, x to the domain.

    The logistic slope of a record lies in (-1, 0) for class 1 and in (0, 1) for class
    0. Where noise moves the estimate out of that interval, `glm_attack` divides by a
    number of the wrong sign or near 0. The clamped guess is biased, but its error is
    bounded.

    Args:
      task: gives image shape and domain; two classes.
      least_slope: smallest |a| of a logistic record; smaller estimates are raised to
        it.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"objective", "label"}),
        assumes=frozenset({"glm"}),
    )

    def clamped(
        loss: str, intercept: bool, norms: Array, observation: Observation
    ) -> Array:
        if intercept:
            slope, rest = from_intercept(observation.rest)[0], observation.rest[:-1]
        else:
            norm, rest = of_class(norms, observation.label), observation.rest
            slope = from_label(loss, observation.params, rest, observation.label, norm)[
                0
            ]
        if math.isfinite(LOSSES[loss].steepest):
            side = 1 - 2 * observation.label
            slope = side * jnp.clip(side * slope, least_slope, 1)
        return jnp.clip(-rest / slope, *task.domain)

    def fit(key: Array, knowledge: Knowledge) -> tuple[Partial, dict]:
        del key
        objective = knowledge.objective
        assert objective is not None, "granted: declared above"
        form = partial(clamped, objective.loss, objective.intercept)
        return Partial(form, class_norms(knowledge, task.classes)), {}

    def guess(form: Partial, key: Array, observation: Observation) -> Array:
        del key
        return form(observation).reshape(task.features)

    return Attack(threat_model, fit, guess)
