"""Closed-form attack on a fitted linear model: what only the target can have caused.

Balle et al. (2022); Guo et al. (2022, section 7.2).
"""

from __future__ import annotations

from functools import partial

from jax import Array
from jax.tree_util import Partial

from audit.mechanisms import class_norms
from audit.mechanisms.glm.stationarity import from_intercept, from_label
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def glm_attack(task: Task) -> Attack:
    """Guess x = -B / a, with B what the known records leave of the gradient's sum.

    With an intercept a is read off its own coordinate, label or not. Without one it is
    solved for from the label, with up to two roots; the one whose image is about as
    long as the pool's of that class is taken.

    On a noisy release the intercept's coordinate is a Gaussian that may come near 0, so
    the error has no finite mean: read its median, or use `glm_attack_clamped`.

    Args:
      task: gives the image shape; two classes.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"objective", "label"}),
        assumes=frozenset({"glm"}),
    )

    def with_intercept(norms: Array, seen: Observation) -> Array:
        del norms
        return from_intercept(seen.rest)[1]

    def without(loss: str, norms: Array, seen: Observation) -> Array:
        norm = norms[seen.label]
        return from_label(loss, seen.params, seen.rest, seen.label, norm)[1]

    def fit(key: Array, knowledge: Knowledge) -> tuple[Partial, dict]:
        del key
        objective = knowledge.objective
        assert objective is not None, "granted: declared above"
        alone = partial(without, objective.loss)
        form = with_intercept if objective.intercept else alone
        return Partial(form, class_norms(knowledge, task.classes)), {}

    def guess(form: Partial, key: Array, seen: Observation) -> Array:
        del key
        return form(seen).reshape(task.features)

    return Attack(threat_model, fit, guess)
