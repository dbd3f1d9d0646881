"""An oracle, not an attack: the pool image nearest the target (Balle et al. 2022)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.types import Attack, Examples, Knowledge, Observation, Task, ThreatModel


def nearest_neighbour(task: Task) -> Attack:
    """Return the pool image closest to the target, which the oracle is shown.

    The yardstick of Balle et al.: an attack with a smaller error knows the target
    better than any image of the pool does. Augmented copies of pool images belong to
    the pool; the diagnostics of the fit count them.
    """
    del task
    threat_model = ThreatModel("reconstruction", sees=frozenset({"target"}))

    def fit(key: Array, knowledge: Knowledge) -> tuple[Examples, dict]:
        del key
        originals = len(np.unique(knowledge.pool_source))
        size = len(knowledge.pool_source)
        info = {"images": size, "originals": originals, "augmented": size > originals}
        return Examples(jnp.asarray(knowledge.pool.x), knowledge.pool.y), info

    def guess(pool: Examples, key: Array, observation: Observation) -> Array:
        del key
        x = pool.x.reshape(len(pool.x), -1)
        target = observation.target.reshape(-1)
        # ||a - t||^2 up to ||t||^2: one matrix product for all targets under vmap
        distance = (x**2).sum(1) - 2 * x @ target
        return pool.x[jnp.argmin(distance)]

    return Attack(threat_model, fit, guess)
