"""Where undefended runs start."""

import jax
import numpy as np
import pytest

from audit.models import networks
from audit.types import TrainingSet
from defenses.sgd import sgd
from tests.conftest import flat, public, records

TASK = networks.linear((4,), 3)
DATA = TrainingSet(records(6, (4,)), jax.tree.map(lambda a: a[0], records(1, (4,))))


def released(start, key, steps=3):
    defense = sgd(TASK, steps=steps, start=start)
    side = defense.prepare(jax.random.key(1), public(TASK))
    return defense, side, jax.jit(defense.train)(jax.random.key(key), side, DATA)


@pytest.mark.parametrize(("start", "differ"), [("shared", False), ("fresh", True)])
def test_runs_differ_by_their_start_alone(start, differ):
    first, second = (flat(released(start, key)[2].params) for key in (0, 1))
    assert np.allclose(first, second, rtol=1e-6) is not differ


def test_training_takes_the_steps_of_the_mechanism_from_the_fresh_start():
    """What is accounted and measured step by step is what is trained."""
    defense, side, release = released("fresh", 0)
    key = jax.random.key(0)
    state, step = defense.mechanism.init(key, side), jax.jit(defense.mechanism.step)
    for _ in range(3):
        state, _ = step(key, state, DATA)
    np.testing.assert_allclose(flat(release.params), flat(state.params), rtol=1e-5)
