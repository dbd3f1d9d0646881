"""Shadow models: an attacker's own runs of the defense, on images of its pool."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from audit.models import regressor
from audit.rng import stream
from audit.types import Examples, Knowledge, TrainingSet

TOGETHER = 2**17  # shadow models that are in memory together; more pass in parts
SHARD = 3 * 2**13  # models of one part, but for one per image


def releases(
    knowledge: Knowledge, pool: Examples, repeats: int = 1, begin: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Train on the fixed records and one image of a pool, `repeats` times per image.

    Every run has fresh noise; without noise one run per image tells what all would. All
    attacks train under one key, and the first repeat apart from the others: what two
    attacks ask for is trained once, as the engine stores it.

    Args:
      knowledge: grants `train` and `fixed`.
      pool: the images [m, ...]; the pool of `knowledge`, or a part of it.
      repeats: R, shadow models per pool image.
      begin: number of the first of them among the image's repeats.

    Returns:
      What they release [R m, p], and which pool row each was trained on [R m]: those of
      one repeat after those of another.
    """
    rows, end = np.arange(len(pool.y)), begin + repeats
    if knowledge.noiseless:
        alike = _trained(0, knowledge, pool, rows)
        return np.tile(alike, (repeats, 1)), np.tile(rows, repeats)
    cuts = [begin, 1, end] if begin < 1 < end else [begin, end]
    each = [
        _trained(first, knowledge, pool, np.tile(rows, last - first))
        for first, last in itertools.pairwise(cuts)
    ]
    both = np.concatenate(each) if len(each) > 1 else each[0]  # no copy of one
    return both, np.tile(rows, repeats)


def _trained(
    first: int, knowledge: Knowledge, pool: Examples, rows: np.ndarray
) -> np.ndarray:
    """Return what models of these pool rows release, from the `first` repeat on."""
    assert knowledge.train is not None, "granted: attacks declare it"
    assert knowledge.fixed is not None, "granted: attacks declare it"
    key = stream(knowledge.shadow_key, f"repeat {first}")
    images = jax.tree.map(lambda a: np.asarray(a)[rows], pool)
    shadows = knowledge.train(key, TrainingSet(knowledge.fixed, images))
    return regressor.matrix(shadows.params)


def held(models: int, images: int) -> int:
    """Return how many of the shadow models of a pool are in memory together."""
    return models if models <= TOGETHER else max(SHARD, images)


def shards(
    knowledge: Knowledge, pool: Examples, repeats: int = 1
) -> list[Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """Return what trains the shadow models in parts, each of which has every image.

    Each part is `releases` of some of the repeats: at most `SHARD` models, or one per
    image of the pool. It is trained when it is called, and again in the next call
    unless the engine stores its runs. Up to `TOGETHER` models are one part.
    """
    images = len(pool.y)
    if repeats == 1 or held(images * repeats, images) == images * repeats:
        return [partial(releases, knowledge, pool, repeats)]
    count = -(-repeats // max(1, SHARD // images))
    return [
        partial(releases, knowledge, pool, len(part), int(part[0]))
        for part in np.array_split(np.arange(repeats), count)
    ]
