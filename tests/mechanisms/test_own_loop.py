"""A defense from a training function alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.config import registry
from audit.engine import shadow
from audit.mechanisms import from_train
from audit.models import networks
from audit.types import TrainingSet
from tests.conftest import flat, public, records

TASK = networks.linear((6,), 3)
STEPS, RATE = 2, 0.3


def descent(key, params, z, weight=None):
    """Plain full-batch gradient descent, which `sgd` does too."""
    weight = jnp.ones(len(z.y)) if weight is None else weight

    def loss(params):
        each = jax.vmap(TASK.loss, (None, 0))(params, z)
        return (weight * each).sum() / weight.sum()

    for _ in range(STEPS):
        params = jax.tree.map(lambda a, g: a - RATE * g, params, jax.grad(loss)(params))
    return params


def three(key, params, z):
    return descent(key, params, z)


def four(key, params, z, weight):
    return descent(key, params, z, weight)


def release(defense, data, key=0):
    side = defense.prepare(jax.random.key(1), public(TASK))
    return flat(jax.jit(defense.train)(jax.random.key(key), side, data).params)


Z = records(9)
ROWS = jnp.array([5, 2, 7, 0])
SETS = {
    "fixed": TrainingSet(Z, None),
    "target": TrainingSet(jax.tree.map(lambda a: a[:8], Z),
                          jax.tree.map(lambda a: a[8], Z)),
    "rows": TrainingSet(Z, None, ROWS),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "train"),
    [
        ("target", three),
        ("rows", four),
        *(
            pytest.param(name, train, marks=pytest.mark.slow)
            for name, train in (
                ("fixed", three),
                ("fixed", four),
                ("target", four),
                ("rows", three),
            )
        ),
    ],
)
def test_it_trains_on_the_records_sgd_trains_on(name, train):
    sgd = registry.find("defense", "sgd")(TASK, learning_rate=RATE, steps=STEPS)
    mine = from_train(TASK, train)
    np.testing.assert_allclose(
        release(mine, SETS[name]), release(sgd, SETS[name]), rtol=1e-5, atol=1e-6
    )
    assert ("rows" in mine.traits) == (train is four)
    assert (mine.fisher, mine.rdp, mine.pld, mine.mechanism) == (None,) * 4


def test_an_empty_slot_takes_no_part():
    mine = from_train(TASK, four)
    gaps = TrainingSet(Z, None, jnp.array([5, -1, 2, 7, -1, 0]))
    np.testing.assert_allclose(
        release(mine, gaps), release(mine, SETS["rows"]), rtol=1e-5, atol=1e-6
    )


def test_an_argument_with_a_default_is_not_given_the_weights():
    def train(key, params, records, rate=0.5):
        return jax.tree.map(lambda a: a + rate, params)

    mine = from_train(TASK, train)
    assert "rows" not in mine.traits
    start = mine.prepare(jax.random.key(1), public(TASK)).params
    np.testing.assert_allclose(release(mine, SETS["fixed"]), flat(start) + 0.5)


def learner(train):
    def mine(task):
        return from_train(task, train)

    key = jax.random.key(0)
    return shadow.learner(mine, TASK, {}, key=key, public=public(TASK))


def noisy(key, params, z):
    return jax.tree.map(lambda a: a + jax.random.normal(key, a.shape), params)


def test_what_is_not_pure_is_refused():
    rng, calls = np.random.default_rng(), []

    def drawn(key, params, z):
        return jax.tree.map(lambda a: a + rng.normal(size=a.shape), params)

    def counted(key, params, z):
        calls.append(1)
        return jax.tree.map(lambda a: a + len(calls), params)

    key = jax.random.key(0)
    for pure in (three, noisy):
        shadow.check_pure(learner(pure), key, SETS["fixed"])
    for impure in (drawn, counted):
        with pytest.raises(ValueError, match="not pure: one key and one training set"):
            shadow.check_pure(learner(impure), key, SETS["fixed"])


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (lambda k, p, z: p if z.x.sum() > 0 else {}, "cannot be traced by JAX: Tracer"),
        (lambda k, p, z: None, "returns NoneType of another structure"),
        (
            lambda k, p, z: jax.tree.map(lambda a: a[:1], p),
            r"\['bias'\] of shape \(1,\)",
        ),
    ],
)
def test_what_it_returns_must_be_parameters(train, says):
    mine = learner(train)
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(mine.defense.train, jax.random.key(0), mine.side, SETS["fixed"])
