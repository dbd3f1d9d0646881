"""Clipped sums of convolutional networks, by how many records they take at a time."""

from functools import partial

import jax
import numpy as np
import pytest

from audit.clipping import soft_clip
from audit.mechanisms import batch
from audit.mechanisms.query import Side, gradient
from audit.models import networks
from audit.types import Examples

RECORDS = 128
COLOUR, GREY = (32, 32, 3), (28, 28, 1)
TASKS = {
    "lenet": networks.lenet(COLOUR, 10),
    "lenet, 100 classes": networks.lenet(COLOUR, 100),
    "lenet5": networks.lenet(COLOUR, 10, kind="lenet5"),
    "cnn_tanh": networks.cnn_tanh(GREY, 10),
    "cnn_max_pool": networks.cnn_max_pool(GREY, 10),
}


@pytest.mark.parametrize("part", [1, 8, 32])
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", TASKS)
def test_clipped_sum(benchmark, name, lanes, part):
    """What a step of DP-SGD costs, without its noise; compiled in the warm-up."""
    task, rng = TASKS[name], np.random.default_rng(0)
    x = rng.uniform(size=(RECORDS, *task.features)).astype(np.float32)
    z = Examples(x, np.arange(RECORDS) % task.classes)
    query = gradient(task, soft_clip(1.0))
    forms = query.closed_forms._replace(part=part)
    total = partial(batch.sum_fixed, query._replace(closed_forms=forms))
    params = jax.vmap(task.init)(jax.random.split(jax.random.key(0), lanes))
    run = jax.jit(jax.vmap(lambda p: total(p, Side(p), z, np.ones(RECORDS))))
    benchmark(lambda: jax.block_until_ready(run(params)))
