"""Inverting gradients: as the suite does, an image per core, or all in one program."""

import sys

import jax
import numpy as np
import pytest

from audit.config import registry
from audit.games import base
from audit.models import networks
from audit.types import Examples, Knowledge, Observation

RESTARTS = 4
LENET = networks.lenet((32, 32, 3), 10)
WIDE = networks.mlp((28, 28, 1), 10, hidden=1024, layers=2, activation="relu")


@pytest.mark.parametrize("how", ["guesses", "one per core", "all in one program"])
@pytest.mark.parametrize(
    ("task", "images", "steps"),
    [pytest.param(LENET, 32, 1000, id="lenet"), pytest.param(WIDE, 8, 200, id="wide")],
)
def test_cosine_search(benchmark, monkeypatch, task, images, steps, how):
    """Compilation, which takes long, is in the warm-up; the pictures are noise."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(images, *task.features)).astype(np.float32)
    z = Examples(x, np.arange(images) % 10)
    attack = registry.find("attack", "gradient_inversion")(
        task, steps=steps, restarts=RESTARTS
    )
    state = attack.fit(jax.random.key(0), Knowledge(task, z, np.arange(images)))[0]
    params = task.init(jax.random.key(1))
    updates = jax.vmap(jax.grad(task.loss), (None, 0))(params, z)

    def one(state, params, key, z, update):
        observation = Observation(params=params, update=update, label=z.y)
        return attack.guess(state, key, observation)

    run, shared = jax.jit(jax.vmap(one, (None, None, 0, 0, 0))), (state, params)
    every = jax.random.split(jax.random.key(2), images), z, updates
    by_core = lambda: base.guesses(
        run, shared, lambda rows: base.take(every, rows), images
    )
    whole = lambda: np.asarray(run(*shared, *every))
    if how == "one per core":
        monkeypatch.setattr(base, "LARGE", sys.maxsize)
    way = whole if how == "all in one program" else by_core
    out = benchmark.pedantic(way, rounds=1, warmup_rounds=1)
    benchmark.extra_info["mse"] = float(((out - x) ** 2).mean())
    benchmark.extra_info["image iterations"] = images * RESTARTS * steps
