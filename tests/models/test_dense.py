"""Ghost clipping: closed forms of dense networks against per-example gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.clipping import hard_clip, no_clip, soft_clip
from audit.mechanisms.noise import gaussian
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import NARROW, Side, gradient
from audit.mechanisms.sampler import shuffled_epochs
from audit.models import networks
from audit.models.masks import MASKS
from audit.types import TrainingSet
from tests.conftest import double, flat, records
from tests.mechanisms import closed_forms_are_of, per_record

SHAPE = (3, 2, 1)
CLIPS = {"soft": soft_clip(0.7), "hard": hard_clip(0.7), "none": no_clip()}


def setting(layers, activation, extra):
    task = networks.mlp(SHAPE, 3, hidden=4, layers=layers, activation=activation)
    params = task.init(jax.random.key(0))
    side = Side(params)
    if "mask" in extra:
        side = side._replace(mask=MASKS["random"](jax.random.key(1), params, 0.6))
    if "offset" in extra:
        side = side._replace(offset=jax.tree.map(lambda p: jnp.sin(9 * p), params))
    z = double(records(9, SHAPE, 3))
    return task, double(side), jax.tree.map(jnp.asarray, z)


@pytest.mark.parametrize(
    ("layers", "activation", "clip", "extra"),
    [
        (1, "elu", "soft", ""),
        (1, "tanh", "soft", "mask offset"),
        (3, "tanh", "soft", "offset"),
        (2, "tanh", "none", "mask"),
        (2, "relu", "hard", "mask offset"),
    ],
)
def test_sum_score_and_trace_are_those_of_per_example_gradients(
    x64, layers, activation, clip, extra
):
    task, side, z = setting(layers, activation, extra)
    query = gradient(task, CLIPS[clip])
    rows = per_record(query, side, z)
    closed_forms_are_of(query, side, z, rows, traced=activation != "relu")


def test_who_takes_no_short_cut():
    """A perturbation that sees the example; wide layers leave the trace to probes."""
    task, *_ = setting(1, "elu", "")
    query = gradient(task, soft_clip(1.0), lambda params, side, z, own: own)
    assert set(query.closed_forms) == {None}
    wide = networks.mlp(SHAPE, 3, hidden=NARROW + 1)
    query = gradient(wide, soft_clip(1.0))
    assert query.closed_forms.trace is None
    assert query.closed_forms.total is not None


def test_a_network_trained_with_ghosts_is_the_one_trained_without(x64):
    task, side, z = setting(1, "elu", "")
    ghosts, how = gradient(task, soft_clip(1.0)), {"optimizer": optax.adam(0.05)}

    def trained(query):
        parts = query, shuffled_epochs(4), gaussian(0.1)
        run = jax.jit(noisy_sgd(task, *parts, steps=7, **how).train)
        return flat(run(jax.random.key(5), side, TrainingSet(z, None)).params)

    no_total = ghosts.closed_forms._replace(total=None)
    slow = trained(ghosts._replace(closed_forms=no_total))
    np.testing.assert_allclose(trained(ghosts), slow, rtol=1e-9, atol=1e-11)
