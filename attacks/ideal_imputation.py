"""Oracle of attribute games: the attribute predicted from all other columns."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.mechanisms import which_values
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def ideal_imputation(task: Task) -> Attack:
    """Score values by logistic regression of the attribute on other columns and label.

    The regression is trained and scored on the same records, those of the game (Hannun
    et al. 2021), hence an oracle. An attack that does better has learnt something from
    the release.

    Args:
      task: unused.
    """
    del task
    threat_model = ThreatModel(
        "attribute",
        sees=frozenset({"target"}),
        knows=frozenset({"fixed", "label", "record"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[tuple, dict]:
        del key
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        assert knowledge.fixed is not None, "granted: declared above"
        assert knowledge.attribute is not None
        columns = knowledge.attribute.columns
        x = np.asarray(knowledge.fixed.x, float)
        others = np.append(
            np.delete(x, columns, 1), np.asarray(knowledge.fixed.y, float)[:, None], 1
        )
        scaler = StandardScaler().fit(others)
        values = which_values(knowledge.attribute, knowledge.fixed.x).argmax(1)
        model = LogisticRegression(max_iter=2000).fit(scaler.transform(others), values)
        weight, bias = model.coef_, model.intercept_
        if len(weight) == 1:  # two values: scikit-learn keeps the second one's alone
            weight = np.concatenate([0 * weight, weight])
            bias = np.append(0.0, bias)
        kept = np.delete(np.arange(x.shape[1]), columns)
        state = (
            kept,
            weight / scaler.scale_,
            bias - (weight / scaler.scale_) @ scaler.mean_,
        )
        return state, {}

    def guess(state: tuple, key: Array, observation: Observation) -> Array:
        del key
        kept, weight, bias = state
        others = jnp.append(observation.candidates[0][kept], observation.label)
        return weight @ others + bias

    return Attack(threat_model, fit, guess)
