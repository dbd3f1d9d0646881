"""Inverting gradients of Zhu's LeNet: one image per core, or all in one program."""

import jax
import numpy as np
import pytest

from audit.config import registry
from audit.games import base
from audit.models import networks
from audit.types import Examples, Knowledge, Observation

IMAGES, RESTARTS, ITERATIONS = 32, 4, 1000


@pytest.mark.parametrize("how", ["one per core", "all in one program"])
def test_cosine_search(benchmark, how):
    """Compilation, which takes long, is in the warm-up; the pictures are noise."""
    rng = np.random.default_rng(0)
    task = networks.lenet((32, 32, 3), 10)
    z = Examples(
        rng.uniform(size=(IMAGES, 32, 32, 3)).astype(np.float32),
        np.arange(IMAGES) % 10,
    )
    attack = registry.find("attack", "gradient_inversion")(
        task, steps=ITERATIONS, restarts=RESTARTS
    )
    state = attack.fit(jax.random.key(0), Knowledge(task, z, np.arange(IMAGES)))[0]
    params = task.init(jax.random.key(1))

    def one(key, z):
        update = jax.grad(task.loss)(params, z)
        observation = Observation(params=params, update=update, label=z.y)
        return attack.guess(state, key, observation)

    run = jax.jit(jax.vmap(one))
    keys = jax.random.split(jax.random.key(2), IMAGES)
    arguments = lambda rows: (keys[rows], base.take(z, rows))  # noqa: E731
    ways = {
        "one per core": lambda: base.guesses(run, (), arguments, IMAGES),
        "all in one program": lambda: np.asarray(run(keys, z)),
    }
    out = benchmark.pedantic(ways[how], rounds=1, warmup_rounds=1)
    benchmark.extra_info["mse"] = float(((out - z.x) ** 2).mean())
    benchmark.extra_info["image iterations"] = IMAGES * RESTARTS * ITERATIONS
