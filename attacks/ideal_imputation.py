"""Reference of attribute games: what other columns say, learnt from the answers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.mechanisms import which_values
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def ideal_imputation(task: Task) -> Attack:
    """Score values by logistic regression of the attribute on all else and the label.

    Trained and judged on the very records of the game (Hannun et al. 2021): an oracle.
    An attack that does better has learnt something from the release.

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
        own = which_values(knowledge.attribute, knowledge.fixed.x).argmax(1)
        model = LogisticRegression(max_iter=2000).fit(scaler.transform(others), own)
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

    def guess(state: tuple, key: Array, seen: Observation) -> Array:
        del key
        kept, weight, bias = state
        others = jnp.append(seen.candidates[0][kept], seen.label)
        return weight @ others + bias

    return Attack(threat_model, fit, guess)
