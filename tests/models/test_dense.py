"""Ghost clipping: closed forms of dense networks against per-example gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from audit.clipping import hard_clip, no_clip, soft_clip
from audit.mechanisms.noise import gaussian
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import NARROW, Side, gradient
from audit.mechanisms.sampler import shuffled_epochs
from audit.models import networks
from audit.models.masks import MASKS
from audit.types import Examples, TrainingSet
from tests.conftest import double, records

SHAPE = (3, 2, 1)
CLIPS = {"soft": soft_clip(0.7), "hard": hard_clip(0.7), "none": no_clip()}


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def setting(layers, activation, extra):
    task = networks.mlp(SHAPE, 3, hidden=4, layers=layers, activation=activation)
    params = task.init(jax.random.key(0))
    side = Side(params)
    if "mask" in extra:
        side = side._replace(mask=MASKS["random"](jax.random.key(1), params, 0.6))
    if "offset" in extra:
        side = side._replace(offset=jax.tree.map(lambda p: jnp.sin(9 * p), params))
    z = records(9, SHAPE, 3)
    return task, double(side), jax.tree.map(jnp.asarray, double(z))


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
    each = jax.jit(jax.vmap(query.fn, (None, None, 0)))(side.params, side, z)
    rows = np.asarray(jax.vmap(lambda g: ravel_pytree(g)[0])(each))
    weight, update = jnp.linspace(0, 2, 9), jax.tree.map(jnp.cos, side.params)

    @jax.jit
    def ghosts(params):
        return (
            query.closed_forms.total(params, side, z, weight),
            query.closed_forms.total(params, side, z, None),
            query.closed_forms.score(params, side, z, update),
            query.closed_forms.trace(params, side, z),
        )

    total, plain, (inner, square), trace = ghosts(side.params)
    np.testing.assert_allclose(flat(total), weight @ rows, rtol=1e-10, atol=1e-12)
    assert jax.tree.structure(total) == jax.tree.structure(side.params)
    np.testing.assert_allclose(flat(plain), rows.sum(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(inner, rows @ flat(update), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(square, (rows**2).sum(1), rtol=1e-10)
    if activation == "relu":
        return

    def vector(x, y):
        return ravel_pytree(query.fn(side.params, side, Examples(x, y)))[0]

    jacobian = jax.jit(jax.vmap(jax.jacfwd(vector)))(z.x, z.y)
    slow = (np.asarray(jacobian).reshape(9, -1) ** 2).sum(1)
    np.testing.assert_allclose(trace, slow, rtol=1e-10)


def test_a_perturbation_that_sees_the_example_takes_no_short_cut():
    task, *_ = setting(1, "elu", "")
    query = gradient(task, soft_clip(1.0), lambda params, side, z, own: own)
    assert query.closed_forms.total is None
    assert query.closed_forms.score is None
    assert query.closed_forms.trace is None


def test_wide_layers_leave_the_trace_to_probes():
    wide = networks.mlp(SHAPE, 3, hidden=NARROW + 1)
    query = gradient(wide, soft_clip(1.0))
    assert query.closed_forms.trace is None
    assert query.closed_forms.total is not None


def test_a_network_trained_with_ghosts_is_the_one_trained_without(x64):
    task, side, z = setting(1, "elu", "")
    ghosts = gradient(task, soft_clip(1.0))
    noise, adam = gaussian(0.1), optax.adam(0.05)

    def trained(query):
        defense = noisy_sgd(
            task, query, shuffled_epochs(4), noise, optimizer=adam, steps=7
        )
        run = jax.jit(defense.train)
        return flat(run(jax.random.key(5), side, TrainingSet(z, None)).params)

    no_total = ghosts.closed_forms._replace(total=None)
    slow = trained(ghosts._replace(closed_forms=no_total))
    np.testing.assert_allclose(trained(ghosts), slow, rtol=1e-9, atol=1e-11)
