"""Attack R: the rank among reference models' losses on the record (Ye et al. 2022).

The MIA-R of Faustini et al. (2023), who used Privacy Meter's.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy import stats

from audit.engine import signals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel

LARGEST = 1000.0  # dummy loss above all but diverged models'; the one below is 0


class Fitted(NamedTuple):
    """The losses of every record on the models trained without it."""

    losses: Any  # [records, models / 2], averaged over queries
    mean: Any  # [records]
    sd: Any  # [records]
    odds_mean: Any  # [records] of the log-odds, the logit-rescaled losses
    odds_sd: Any  # [records]


def attack_r(
    task: Task,
    *,
    smoothing: Literal["none", "linear", "logit", "gaussian", "min", "mean"] = "linear",
) -> Attack:
    """Score a record by minus the rank of its loss on models without it.

    The rank is the false-positive rate alpha at which the record would be called a
    member by the alpha-quantile of its losses on models trained without it. Of the two
    normal laws the score is minus its log: the ranks of the surest records are 0 in
    float32.

    Args:
      task: unused.
      smoothing: how few reference losses give a rank. `none`: the share of them that
        is no larger than the record's loss. `linear`: interpolation between them, with
        dummy losses at 0 and 1000.
        `logit`: a normal law of the logit-rescaled losses log(e^-l / (1 - e^-l)).
        `gaussian`: a normal law of the losses. `min`: the smaller threshold of linear
        and logit, so the larger alpha. `mean`: their mean alpha.
    """
    del task
    threat_model = ThreatModel(
        "membership", sees=frozenset({"signals"}), knows=frozenset({"shadows"})
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        del key
        shadows = knowledge.shadows
        assert shadows is not None, "granted: declared above"
        odds = signals.by_group(shadows.member, shadows.signals.candidates)[1]
        # by the function that gives the target's: equal log-odds are equal losses
        losses, odds = np.asarray(signals.loss(odds)).mean(1), odds.mean(1)
        moments = losses.mean(1), losses.std(1), odds.mean(1), odds.std(1)
        return Fitted(losses, *moments), {"shadows": len(shadows.member)}

    def linear(fitted: Fitted, loss: Array) -> Array:
        below = fitted.losses <= loss[:, None]
        count = below.sum(-1)
        low = jnp.where(below, fitted.losses, 0).max(-1)
        high = jnp.where(below, jnp.inf, fitted.losses).min(-1)
        high = jnp.where(jnp.isinf(high), LARGEST, high)  # no loss is above
        part = jnp.clip((loss - low) / jnp.maximum(high - low, 1e-30), 0, 1)
        return (count + part) / (fitted.losses.shape[-1] + 1)

    def logit(fitted: Fitted, odds: Array) -> Array:
        return stats.norm.logsf((odds - fitted.odds_mean) / _positive(fitted.odds_sd))

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        odds = jnp.asarray(observation.signals.candidates, float)
        loss, odds = signals.loss(odds).mean(-1), odds.mean(-1)
        if smoothing == "none":
            return -(fitted.losses <= loss[:, None]).mean(-1)
        if smoothing == "linear":
            return -linear(fitted, loss)
        if smoothing == "logit":
            return -logit(fitted, odds)
        if smoothing == "gaussian":
            return -stats.norm.logcdf((loss - fitted.mean) / _positive(fitted.sd))
        both = jnp.stack([linear(fitted, loss), jnp.exp(logit(fitted, odds))])
        return -both.max(0) if smoothing == "min" else -both.mean(0)

    return Attack(threat_model, fit, guess)


def _positive(sd: Any) -> Any:
    return jnp.maximum(sd, 1e-6)
