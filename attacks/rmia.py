"""RMIA: how often a record's likelihood ratio beats a population record's.

Zarifzadeh, Liu and Shokri (2024).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.engine import signals
from audit.types import (
    Attack,
    Fraction,
    Knowledge,
    Observation,
    Positive,
    Task,
    ThreatModel,
)


class Fitted(NamedTuple):
    """log p(x) and log p(z): of mean probabilities of the label over references."""

    candidates: Any  # [records, queries]
    population: Any  # [pool, queries]


def rmia(
    task: Task,
    *,
    mode: Literal["online", "offline"] = "online",
    gamma: Positive = 1.0,
    offline_a: Fraction = 0.3,
) -> Attack:
    """Score a record x by the share of population records z with LR(x, z) >= gamma.

    LR(x, z) = [p(x | model) / p(x)] / [p(z | model) / p(z)], p(. | model) the softmax
    probability of the label. Online, p(x) is the mean over as many reference models
    with x as without. Offline it is ((1 + a) p_out(x) + 1 - a) / 2, which makes up for
    the models with x. p(z) has the offline form in both modes, for no model was trained
    on z. With several queries the score is the mean share.

    Args:
      task: unused.
      mode: `offline` uses only models trained without the record.
      gamma: threshold of a pair; 1 goes with the plain softmax used here (Privacy
        Meter), 2 with the paper's tempered Taylor softmax.
      offline_a: a; .3 is the paper's for CIFAR-10, .6 for CIFAR-100.
    """
    del task
    threat_model = ThreatModel(
        "membership", sees=frozenset({"signals"}), knows=frozenset({"shadows"})
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        del key
        shadows = knowledge.shadows
        assert shadows is not None, "granted: declared above"
        both = signals.by_group(shadows.member, shadows.signals.candidates)
        p_in, p_out = (_log_mean_probability(odds, -1) for odds in both)
        online = np.logaddexp(p_in, p_out) - np.log(2)
        candidates = online if mode == "online" else corrected(p_out)
        others = _log_mean_probability(shadows.signals.population, 0)
        return Fitted(candidates, corrected(others)), {
            "shadows": len(shadows.member),
            "population": len(others),
        }

    def corrected(out: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):  # a = 1 adds nothing, the log of 0
            constant = np.log1p(-np.float64(offline_a))
        return np.logaddexp(np.log1p(offline_a) + out, constant) - np.log(2)

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key

        def share(x: Array, z: Array) -> Array:
            limit = x - np.log(gamma)
            return jnp.searchsorted(jnp.sort(z), limit, side="right") / len(z)

        records, others = (
            jax.nn.log_sigmoid(jnp.asarray(s, float)) for s in observation.signals
        )
        ratios = records - fitted.candidates, others - fitted.population
        return jax.vmap(share, (1, 1), 1)(*ratios).mean(-1)

    return Attack(threat_model, fit, guess)


def _log_mean_probability(odds: np.ndarray, axis: int) -> np.ndarray:
    """Return the log of the mean of 1 / (1 + e^-odds) over models.

    In logs, for the probability of a label that all models are sure is wrong is 0 in
    float32, and its likelihood ratio has no value.
    """
    logs = -np.logaddexp(0, -np.asarray(odds, np.float64))
    return np.logaddexp.reduce(logs, axis) - np.log(logs.shape[axis])
