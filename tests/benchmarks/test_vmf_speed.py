"""Draws of von Mises-Fisher vectors beside plain Gaussian ones, alone and in a step."""

import jax
import jax.numpy as jnp
import pytest

from audit import rng
from audit.accounting import vmf
from audit.models import networks
from audit.types import Examples, TrainingSet
from tests.conftest import public
from tests.games import worlds

DRAWS, DIMENSION = 100, 61_706  # of LeNet-5
BATCH = 256


def gaussian(key, means):
    return rng.normal(key, means.shape)


def directional(key, means):
    keys = jax.random.split(key, len(means))
    return jax.vmap(vmf.sample, (0, 0, None))(keys, means, 5.0)


def at_once(key, means):
    """Return one row, the sum of all draws, from what is known of their means."""
    span = means @ means.T, lambda u: means @ u, lambda c: c @ means
    return vmf.sample_sum(key, 5.0, jnp.ones(len(means)), *span, means[0])[None]


@pytest.mark.parametrize("draw", [gaussian, directional, at_once])
def test_draws(benchmark, draw):
    """The second line at no more than 1 / .6 of the first, the third far below both."""
    means = jnp.full((DRAWS, DIMENSION), DIMENSION**-0.5)
    run = jax.jit(draw)
    made = lambda: run(jax.random.key(0), means).block_until_ready()
    out = benchmark.pedantic(made, rounds=20, warmup_rounds=2)
    benchmark.extra_info["mean square"] = float((out**2).mean())
    assert bool(jnp.isfinite(out).all())


@pytest.mark.parametrize("noise", ["leaf by leaf", "one vector"])
@pytest.mark.parametrize("defense", ["dpsgd", "dirdp_sgd"])
def test_steps_of_a_large_network(benchmark, monkeypatch, defense, noise):
    """Two steps of 1.9 million weights, Gaussian and directional.

    Their normals are drawn leaf by leaf, as the suite does, or cut out of one vector.
    """
    if noise == "one vector":
        monkeypatch.setattr(rng, "LARGE", 2**32)
    task = networks.mlp((28, 28, 1), 10, hidden=1024, layers=2, activation="relu")
    x = jax.random.uniform(jax.random.key(1), (BATCH, *task.features))
    data = TrainingSet(Examples(x, jnp.arange(BATCH) % task.classes), None)
    learner = worlds.learner(task, defense, start=public(task), steps=2)
    run = jax.jit(lambda key: learner.build().train(key, learner.side, data))
    made = lambda: jax.block_until_ready(run(jax.random.key(0)))
    release = benchmark.pedantic(made, rounds=5, warmup_rounds=1)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(release))
