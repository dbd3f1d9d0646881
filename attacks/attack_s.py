"""Attack S: the rank among shadow models' losses on non-members (Ye et al. 2022)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.engine import signals
from audit.types import Attack, Knowledge, Observation, Task, ThreatModel


def attack_s(task: Task) -> Attack:
    """Score a record by minus the rank of its loss among reference losses of its class.

    A reference loss is that of a record on a shadow model trained without it. All of a
    class are pooled: there is one threshold per class.

    Args:
      task: gives the classes.
    """
    threat_model = ThreatModel(
        "membership", sees=frozenset({"signals"}), knows=frozenset({"label", "shadows"})
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[tuple, dict]:
        del key
        shadows = knowledge.shadows
        assert shadows is not None, "granted: declared above"
        out = signals.by_group(shadows.member, shadows.signals.candidates)[1]
        losses = np.asarray(signals.loss(out)).mean(1)  # as of the target below
        each = [
            np.sort(losses[shadows.label == c], axis=None) for c in range(task.classes)
        ]
        most = max(map(len, each))
        padded = [np.pad(e, (0, most - len(e)), constant_values=np.inf) for e in each]
        sizes = np.array([max(len(e), 1) for e in each])
        state = jnp.asarray(np.stack(padded), jnp.float32), jnp.asarray(sizes)
        return state, {"shadows": len(shadows.member)}

    def guess(state: tuple, key: Array, observation: Observation) -> Array:
        del key
        loss = signals.loss(observation.signals.candidates).mean(-1)
        rank = jax.vmap(lambda o: jnp.searchsorted(o, loss, side="right"))(state[0])
        return -jnp.take_along_axis(
            rank / state[1][:, None], observation.label[None], 0
        )[0]

    return Attack(threat_model, fit, guess)
