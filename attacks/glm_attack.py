"""Closed-form attack on a fitted linear model: its gradients must sum to zero.

Balle et al. (2022); Guo et al. (2022, section 7.2).
"""

from __future__ import annotations

from functools import partial

from jax import Array
from jax.tree_util import Partial

from audit.mechanisms import class_norms, of_class
from audit.mechanisms.glm.stationarity import from_intercept, from_label
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def glm_attack(task: Task) -> Attack:
    """Guess x = -B / a: a the slope of the target's loss, B the gradient of the rest.

    B sums the gradients of the known records and of the regulariser. With an intercept,
    the intercept's coordinate gives a, whether or not the label is known. Without one,
    a solves an equation in the label with up to two roots; the attack takes the root
    whose image has about the norm of pool images of that class.

    On a noisy release the intercept's coordinate is a Gaussian that may come near 0, so
    the error has no finite mean: read the median, or use `glm_attack_clamped`.

    Args:
      task: gives the image shape; two classes.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"objective", "label"}),
        assumes=frozenset({"glm"}),
    )

    def with_intercept(norms: Array, observation: Observation) -> Array:
        del norms
        return from_intercept(observation.rest)[1]

    def without(loss: str, norms: Array, observation: Observation) -> Array:
        norm = of_class(norms, observation.label)
        return from_label(
            loss, observation.params, observation.rest, observation.label, norm
        )[1]

    def fit(key: Array, knowledge: Knowledge) -> tuple[Partial, dict]:
        del key
        objective = knowledge.objective
        assert objective is not None, "granted: declared above"
        alone = partial(without, objective.loss)
        form = with_intercept if objective.intercept else alone
        return Partial(form, class_norms(knowledge, task.classes)), {}

    def guess(form: Partial, key: Array, observation: Observation) -> Array:
        del key
        return form(observation).reshape(task.features)

    return Attack(threat_model, fit, guess)
