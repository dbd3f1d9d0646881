"""Convolutions without per-example gradients: sums, scores, motions, their memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from audit.accounting.traces import Probing, estimate
from audit.clipping import hard_clip, soft_clip
from audit.mechanisms import batch
from audit.mechanisms.query import Side, gradient
from audit.models import networks
from audit.models.dense import at_a_time, is_ghost, norms
from audit.types import Examples
from tests.conftest import double, flat, records, wide
from tests.mechanisms import closed_forms_are_of, per_record, side_of

SMALL = (16, 16, 1)
NETWORKS = {
    "cnn_tanh": networks.cnn_tanh,
    "lenet": networks.lenet,
    "lenet5": lambda features, classes: networks.lenet(
        features, classes, kind="lenet5"
    ),
    "cnn_tanh_deep": networks.cnn_tanh_deep,
    "cnn_max_pool": networks.cnn_max_pool,
}
EACH = [
    n if n == "cnn_tanh" else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS
]


def setting(name, extra=""):
    task = NETWORKS[name](SMALL, 3)
    return task, double(side_of(task, extra)), wide(3, SMALL, 3)


def moves(query, side, z, directions):
    """Return ||J u||^2 of every record by one Jacobian-vector product [m]."""

    def one(x, y, u):
        contribution = lambda x: query.fn(side.params, side, Examples(x, y))
        return (ravel_pytree(jax.jvp(contribution, (x,), (u,))[1])[0] ** 2).sum()

    return jax.jit(jax.vmap(one))(z.x, z.y, directions.reshape(z.x.shape))


@pytest.mark.parametrize(
    "extra", ["", pytest.param("mask offset", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", EACH)
def test_sums_scores_and_motions_are_those_of_per_example_gradients(x64, name, extra):
    task, side, z = setting(name, extra)
    query = gradient(task, soft_clip(0.3))
    closed_forms_are_of(query, side, z, per_record(query, side, z), traced=False)
    directions = jax.random.normal(jax.random.key(5), (len(z.y), z.x[0].size))
    got = jax.jit(query.closed_forms.motion)(side.params, side, z, directions)
    np.testing.assert_allclose(got, moves(query, side, z, directions), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "shape", "count", "positions"),
    [
        ("cnn_tanh", (28, 28, 1), 26_010, (196, 25, 1, 1)),
        ("cnn_tanh_deep", (32, 32, 3), 550_570, (1024, 1024, 256, 256, 64, 64, 1, 1)),
        ("cnn_max_pool", (28, 28, 1), 25_386, (576, 81, 1, 1)),
    ],
)
def test_the_networks_of_the_sources_have_the_parameters_they_print(
    name, shape, count, positions
):
    task = NETWORKS[name](shape, 10)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count
    assert task.dense.positions == positions
    assert task.smooth == (name != "cnn_max_pool")


def test_norms_are_made_in_the_way_that_takes_less_memory():
    """MNIST: 76,832 numbers against 1,024, then 1,250 against 8,192."""
    assert not is_ghost(196, 64, 16)
    assert is_ghost(25, 256, 32)
    task = networks.cnn_tanh((28, 28, 1), 10)
    text = norms(task.dense, jax.eval_shape(task.init, jax.random.key(0)))
    assert text.endswith("norms by the gradients of conv_0 (196 positions)")


@pytest.mark.parametrize("part", [1, 4])
def test_a_sum_in_parts_is_the_sum(part):
    """The last part is filled with records of weight 0."""
    task = networks.cnn_tanh(SMALL, 3)
    params, many = jax.jit(task.init)(jax.random.key(0)), 13
    query, z = gradient(task, hard_clip(0.1)), records(many, SMALL)
    weight = jnp.linspace(0.1, 2, many)
    whole = jax.jit(query.closed_forms.total)(params, Side(params), z, weight)
    forms = query.closed_forms._replace(part=part)
    parts = jax.jit(partial(batch.sum_fixed, query._replace(closed_forms=forms)))(
        params, Side(params), z, weight
    )
    np.testing.assert_allclose(flat(parts), flat(whole), rtol=1e-4, atol=1e-6)


def test_how_many_records_a_sum_takes_at_a_time(monkeypatch):
    """With 1,000 classes most parameters are the last layer's, used once per record."""
    few, many = networks.lenet(SMALL, 3), networks.lenet(SMALL, 1000)
    for task, part in ((few, 1), (many, 32)):
        params = jax.eval_shape(task.init, jax.random.key(0))
        assert at_a_time(task.dense, params) == (part, 32)
        forms = gradient(task, hard_clip(0.1)).closed_forms
        assert (forms.part, forms.span_part) == (part, 32)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert at_a_time(few.dense, jax.eval_shape(few.init, jax.random.key(0))) == (32, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn_tanh", "lenet", "cnn_tanh_deep"])
def test_600_records_take_a_tenth_of_the_memory_of_per_example_gradients(name):
    """By the compiler's count."""
    shape, n = (32, 32, 3) if "deep" in name else (28, 28, 1), 600
    task = NETWORKS[name](shape, 10)
    params = jax.eval_shape(task.init, jax.random.key(0))
    query = gradient(task, soft_clip(1.0))
    z = Examples(
        jax.ShapeDtypeStruct((n, *shape), float), jax.ShapeDtypeStruct((n,), int)
    )

    def naive(params, z):
        each = jax.vmap(query.fn, (None, None, 0))(params, Side(params), z)
        return jax.tree.map(lambda g: g.sum(0), each)

    def ours(params, z):
        return batch.sum_fixed(query, params, Side(params), z, None)

    need = [
        jax.jit(f).lower(params, z).compile().memory_analysis().temp_size_in_bytes
        for f in (ours, naive)
    ]
    assert need[0] <= need[1] / 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_probes_of_a_convolutional_network_agree_with_the_exact_sweep(x64, seed):
    """One record of each of five models, 2,000 probes, within 3 standard errors."""
    task, _, z = setting("cnn_tanh")
    side = double(Side(task.init(jax.random.key(seed))))
    motion = gradient(task, soft_clip(0.3)).closed_forms.motion
    one = batch.take(z, jnp.array([seed % 3]))
    form = partial(motion, side.params, side, one)
    shape, key = (1, one.x[0].size), jax.random.key(seed)
    laws = {"exact": 1, "gaussian": 2000, "rademacher": 2000}
    got = {}
    for law, n in laws.items():
        read = partial(estimate, Probing(law, n), form=form, shape=shape, dtype=float)
        got[law] = jax.jit(read)(key)
    for law in ("gaussian", "rademacher"):
        off = got[law].trace - got["exact"].trace
        assert jnp.abs(off) < 3 * jnp.sqrt(got[law].variance)
