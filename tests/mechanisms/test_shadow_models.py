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


def played(repeats, **more):
    """Return the parts, and the keys and numbers of models of what was trained."""
    calls = []

    def train(key, data):
        calls.append((jax.random.key_data(key).tolist(), len(data.target.y)))
        return Release({"w": np.reshape(data.target.x, (-1, 4))})

    task = networks.binary_linear(SHAPE, 2)
    more |= {"fixed": POOL, "train": train, "shadow_key": KEY}
    knowledge = Knowledge(task, POOL, np.arange(10), **more)
    parts = shadow_models.shards(knowledge, POOL, repeats)
    return parts, calls


@pytest.mark.parametrize(
    ("repeats", "sizes", "sweeps"),
    [(1, [10], [10]), (5, [20, 20, 10], [10, 10, 20, 10])],
)
def test_each_part_has_every_image_and_keys_of_its_own(
    repeats, sizes, sweeps, monkeypatch
):
    monkeypatch.setattr(shadow_models, "TOGETHER", 19)
    monkeypatch.setattr(shadow_models, "SHARD", 25)
    parts, calls = played(repeats)
    assert calls == []  # trained when it is asked for
    for part, size in zip(parts, sizes, strict=True):
        releases, rows = part()
        np.testing.assert_array_equal(np.bincount(rows), size // 10)
        np.testing.assert_array_equal(releases, np.reshape(POOL.x, (10, 4))[rows])
    assert [count for _, count in calls] == sweeps
    assert len({tuple(key) for key, _ in calls}) == len(sweeps)
    again = list(calls)
    for part in parts:  # the same models, as the engine would find them stored
        part()
    assert calls == again * 2


def test_what_is_more_than_fits_is_held_in_smaller_parts():
    most, part = shadow_models.TOGETHER, shadow_models.SHARD
    assert shadow_models.held(most, 10) == most
    assert shadow_models.held(most + 1, 10) == part
    assert shadow_models.held(10 * most, 2 * part) == 2 * part


def test_attackers_share_the_first_model_of_every_image():
    """Under the same key, so that the engine finds it stored."""
    few, many, other = (played(repeats) for repeats in (1, 3, 4))
    for parts, calls in (few, many, other):
        ((releases, rows),) = [part() for part in parts]
        np.testing.assert_array_equal(releases, np.reshape(POOL.x, (10, 4))[rows])
        np.testing.assert_array_equal(rows, np.tile(np.arange(10), len(rows) // 10))
        assert calls[0] == few[1][0]
    assert [count for _, count in many[1]] == [10, 20]
    assert many[1][1] != few[1][0]
    assert other[1][1] == (many[1][1][0], 30)  # not the same runs: more under one key


def test_without_noise_one_model_of_every_image_stands_for_all():
    parts, calls = played(4, noiseless=True)
    releases, rows = parts[0]()
    assert [count for _, count in calls] == [10]
    np.testing.assert_array_equal(np.bincount(rows), 4)
    np.testing.assert_array_equal(releases, np.reshape(POOL.x, (10, 4))[rows])
