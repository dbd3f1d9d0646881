"""Shadow models: an attacker's own runs of the defense, on images of its pool."""

from __future__ import annotations

import jax
import numpy as np
from jax import Array

from audit.models import regressor
from audit.types import Examples, Knowledge, TrainingSet


def releases(
    key: Array, knowledge: Knowledge, pool: Examples, repeats: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Train on the fixed records and one image of a pool, `repeats` times per image.

    Every run has fresh noise. Runs of one key, pool and `repeats` are trained once,
    however many attacks of an audit ask for them: the engine stores them.

    Args:
      key: of the runs.
      knowledge: grants `train` and `fixed`.
      pool: the images [m, ...]; the pool of `knowledge`, or a part of it.
      repeats: R, shadow models per image.

    Returns:
      What they release [m R, p], and which pool row each was trained on [m R].
    """
    assert knowledge.train is not None, "granted: attacks declare it"
    assert knowledge.fixed is not None, "granted: attacks declare it"
    rows = np.repeat(np.arange(len(pool.y)), repeats)
    repeated = jax.tree.map(lambda a: np.asarray(a)[rows], pool)
    shadows = knowledge.train(key, TrainingSet(knowledge.fixed, repeated))
    return regressor.matrix(shadows.params), rows
