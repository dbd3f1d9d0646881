"""Shadow models, all at once and in parts."""

import jax
import numpy as np
import pytest

from audit.mechanisms import shadow_models
from audit.models import networks
from audit.types import Knowledge, Release
from tests.conftest import records

SHAPE, KEY = (2, 2, 1), jax.random.key(0)
POOL = records(10, SHAPE, 2)


def played(repeats):
    """Return the parts, and the keys and numbers of models of what was trained."""
    calls = []

    def train(key, data):
        calls.append((jax.random.key_data(key).tolist(), len(data.target.y)))
        return Release({"w": np.reshape(data.target.x, (-1, 4))})

    task = networks.binary_linear(SHAPE, 2)
    knowledge = Knowledge(task, POOL, np.arange(10), fixed=POOL, train=train)
    parts = shadow_models.shards(KEY, knowledge, POOL, repeats)
    return parts, calls


@pytest.mark.parametrize(("repeats", "sizes"), [(1, [10]), (5, [20, 20, 10])])
def test_each_part_has_every_image_and_a_key_of_its_own(repeats, sizes, monkeypatch):
    monkeypatch.setattr(shadow_models, "TOGETHER", 19)
    monkeypatch.setattr(shadow_models, "SHARD", 25)
    parts, calls = played(repeats)
    assert calls == []  # trained when it is asked for
    for part, size in zip(parts, sizes, strict=True):
        releases, rows = part()
        np.testing.assert_array_equal(np.bincount(rows), size // 10)
        np.testing.assert_array_equal(releases, np.reshape(POOL.x, (10, 4))[rows])
    assert [count for _, count in calls] == sizes
    assert len({tuple(key) for key, _ in calls}) == len(sizes)
    again = list(calls)
    for part in parts:  # the same models, as the engine would find them stored
        part()
    assert calls == again * 2


def test_what_is_more_than_fits_is_held_in_smaller_parts():
    most, part = shadow_models.TOGETHER, shadow_models.SHARD
    assert shadow_models.held(most, 10) == most
    assert shadow_models.held(most + 1, 10) == part
    assert shadow_models.held(10 * most, 2 * part) == 2 * part


def test_what_fits_together_is_one_sweep_of_the_given_key():
    parts, calls = played(3)
    assert len(parts) == 1
    releases, rows = parts[0]()
    assert calls == [(jax.random.key_data(KEY).tolist(), 30)]
    assert (len(releases), len(rows)) == (30, 30)
