"""LiRA: the likelihood ratio of a record's log-odds, member or not (Carlini 2022)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy import stats

from audit.engine import signals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel

LEAST = 1e-6  # smallest standard deviation, for signals that are constant


class Fitted(NamedTuple):
    """Normal laws of every record's log-odds, one per query [records, queries]."""

    mean_in: Any
    sd_in: Any
    mean_out: Any
    sd_out: Any


def lira(
    task: Task,
    *,
    mode: Literal["online", "offline"] = "online",
    variance: Literal["record", "fixed"] = "record",
    location: Literal["median", "mean"] = "median",
) -> Attack:
    """Score a record by how much likelier its log-odds are if it was a member.

    online: log N(phi; mu_in, sd_in^2) - log N(phi; mu_out, sd_out^2), summed over
    queries.
    offline: minus the log of P(Z > phi), Z ~ N(mu_out, sd_out^2), summed over queries:
    one-sided as in the paper, for one query ordered as its 1 - P(Z > phi).

    Args:
      task: unused.
      mode: `offline` uses only models trained without the record.
      variance: `record`: one per record. `fixed`: the mean of these, one for members
        and one for non-members; better with few shadows.
      location: `median` as in the authors' script, or `mean`.
    """
    del task
    threat_model = ThreatModel(
        "membership", sees=frozenset({"signals"}), knows=frozenset({"shadows"})
    )
    centre: Any = {"median": np.median, "mean": np.mean}[location]

    def law(odds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        spread = odds.var(-1)
        if variance == "fixed":  # per query; the spread between records is no noise
            spread = np.broadcast_to(spread.mean(0), spread.shape)
        return centre(odds, axis=-1), np.maximum(np.sqrt(spread), LEAST)

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        del key
        shadows = knowledge.shadows
        assert shadows is not None, "granted: declared above"
        both = signals.by_group(shadows.member, shadows.signals.candidates)
        used = both if mode == "online" else (both[1], both[1])
        return Fitted(*law(used[0]), *law(used[1])), {"shadows": len(shadows.member)}

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        phi = jnp.asarray(observation.signals.candidates, float)
        if mode == "offline":
            return -stats.norm.logsf(phi, fitted.mean_out, fitted.sd_out).sum(-1)
        ratio = stats.norm.logpdf(phi, fitted.mean_in, fitted.sd_in)
        return (ratio - stats.norm.logpdf(phi, fitted.mean_out, fitted.sd_out)).sum(-1)

    return Attack(threat_model, fit, guess)
