"""Shadow models: an attacker's own runs of the defense, on images of its pool."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax import Array

from audit.models import regressor
from audit.rng import stream
from audit.types import Examples, Knowledge, TrainingSet

TOGETHER = 2**17  # shadow models that are in memory together; more pass in parts
SHARD = 2**15  # models of one part, but for one per image


def releases(
    key: Array, knowledge: Knowledge, pool: Examples, repeats: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Train on the fixed records and one image of a pool, `repeats` times per image.

    Every run has fresh noise. Runs of one key, pool and `repeats` are trained once, as
    the engine stores them: two labels of one attack share them, two attacks have keys
    of their own.

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


def held(models: int, images: int) -> int:
    """Return how many of the shadow models of a pool are in memory together."""
    return models if models <= TOGETHER else max(SHARD, images)


def shards(
    key: Array, knowledge: Knowledge, pool: Examples, repeats: int = 1
) -> list[Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """Return what trains the shadow models in parts, each of which has every image.

    Each part is `releases` of some of the repeats: at most `SHARD` models, or one per
    image of the pool. It is trained when it is called, and again in the next call
    unless the engine stores its runs. Up to `TOGETHER` models are one part, `releases`.
    """
    images = len(pool.y)
    if repeats == 1 or held(images * repeats, images) == images * repeats:
        return [partial(releases, key, knowledge, pool, repeats)]
    count = -(-repeats // max(1, SHARD // images))
    return [
        partial(releases, stream(key, f"shard {i}"), knowledge, pool, len(part))
        for i, part in enumerate(np.array_split(np.arange(repeats), count))
    ]
