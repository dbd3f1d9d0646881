"""DirDP-SGD: what is drawn, what it costs, and what each variant may claim."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from audit.accounting import rdp, vmf, vmf_privacy
from audit.clipping import clip_tree, normalise
from audit.config import registry
from audit.games.base import take
from audit.games.gradient_inversion import exposed_step
from audit.mechanisms.batch import known_and_noised, sum_all
from audit.mechanisms.noise import batch_direction, row_directions, von_mises_fisher
from audit.mechanisms.query import Side, gradient, modules, row_sizes
from audit.mechanisms.sampler import SAMPLERS
from audit.models import affine, networks
from audit.rng import stream
from audit.scorecard.claims import published_claims
from audit.types import Batch, Examples, State, TrainingSet
from tests.conftest import double, flat, public, wide
from tests.models.test_affine import vectors

SHAPE, CLASSES = (6,), 3
LINEAR = networks.linear(SHAPE, CLASSES)
MLP = networks.mlp(SHAPE, CLASSES, hidden=5, activation="tanh")


def build(task=LINEAR, **settings):
    return registry.find("defense", "dirdp_sgd")(task, **settings)


def claims(task, n, **settings):
    settings = registry.check("defense", "dirdp_sgd", settings, "dirdp_sgd")
    return published_claims("dirdp_sgd", settings, task, n)


def start_of(defense, task=LINEAR):
    side = defense.prepare(jax.random.key(0), public(task))
    return jax.tree.map(jnp.asarray, double(side))


def data(n=9):
    return TrainingSet(wide(n, SHAPE, CLASSES), None)


# What is drawn ------------------------------------------------------------------------


def test_contributions_are_unit_and_zero_stays_zero():
    clip = normalise()
    for length in (1e-12, 1e-3, 7.0):
        tree = {"a": jnp.array([3.0, 0.0]) * length, "b": jnp.array([4.0]) * length}
        assert np.linalg.norm(flat(clip_tree(clip, tree))) == pytest.approx(1, abs=1e-6)
    nothing = {"a": jnp.zeros(2)}
    assert not flat(clip_tree(clip, nothing)).any()
    slope = jax.grad(lambda a: clip_tree(clip, {"a": a})["a"].sum())(jnp.zeros(2))
    assert np.isfinite(slope).all()


def test_a_record_without_a_gradient_draws_uniformly():
    noise = von_mises_fisher(50.0, 5)
    keys = jax.random.split(jax.random.key(0), 20_000)
    y = np.asarray(jax.jit(jax.vmap(lambda k: noise.sample(k, jnp.zeros(5))))(keys))
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, atol=1e-5)
    assert (abs(y.mean(0)) < 4 / np.sqrt(5 * len(y))).all()


def test_a_step_is_the_mean_of_draws_written_out(x64):
    """One draw a record, by a key of its own row; then divided and descended."""
    settings = {"concentration": 4.0, "steps": 2, "learning_rate": 0.5}
    defense, train, key = build(**settings), data(), jax.random.key(3)
    side = start_of(defense)
    noise = von_mises_fisher(4.0, sum(modules(LINEAR).values()))
    query, params = gradient(LINEAR, normalise()), side.params

    @jax.jit
    def draw(key, params, z):
        return ravel_pytree(noise.sample(key, query.fn(params, side, z)))[0]

    for t in range(2):
        step_key = stream(jax.random.fold_in(key, t), "noise")
        total = np.zeros_like(flat(params))
        for i in range(9):
            row_key = jax.random.fold_in(step_key, i)
            total += np.asarray(draw(row_key, params, take(train.fixed, i)))
        params = ravel_pytree(params)[1](flat(params) - 0.5 * total / 9)
    got = jax.jit(defense.train)(key, side, train).params
    np.testing.assert_allclose(flat(got), flat(params), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("variant", ["joint", "batch"])
def test_the_target_draws_as_a_record_of_the_same_row(x64, variant):
    """Fixed + target is the same run as all of them fixed."""
    given = {"concentration": 3.0, "steps": 3, "variant": variant}
    defense = build(**given, sampling="shuffled", batch_size=4)
    side, whole, key = start_of(defense), data(10), jax.random.key(1)
    fixed, target = (take(whole.fixed, at) for at in (slice(9), 9))
    train = jax.jit(defense.train)
    apart = train(key, side, TrainingSet(fixed, target)).params
    together = train(key, side, whole).params
    np.testing.assert_allclose(flat(apart), flat(together), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["joint", "regularised"])
def test_draws_of_a_step_are_summed_in_parts(variant):
    """One step of 20 records, 8 at a time, beside draws one by one: the same law."""
    task, draws = networks.linear((6, 5, 1), 3), 4000
    rng = np.random.default_rng(0)
    z = Examples(rng.uniform(size=(20, 6, 5, 1)), rng.integers(3, size=20))
    defense = build(task, concentration=40.0, variant=variant, steps=1)
    mechanism, side = defense.mechanism, Side(task.init(jax.random.key(0)))
    state = State(side.params, None, side, 0)
    batch = Batch(None, jnp.where(jnp.arange(20) == 3, 0.0, 1.0))
    law = mechanism.noise.law
    one_by_one = mechanism.noise._replace(law=law._replace(sample_sum=None))

    def step(noise, key):
        data = TrainingSet(z, None)
        drawn = known_and_noised(mechanism.query, noise, key, state, data, batch)[1]
        return ravel_pytree(drawn)[0]

    at_once, apart = (
        np.asarray(
            jax.jit(jax.vmap(partial(step, noise)))(jax.random.split(key, draws))
        )
        for key, noise in (
            (jax.random.key(1), mechanism.noise),
            (jax.random.key(2), one_by_one),
        )
    )
    assert at_once.shape == (draws, 93)
    mean = flat(sum_all(mechanism.query, state, TrainingSet(z, None), batch))
    for along in (mean, *rng.normal(size=(3, 93))):
        assert stats.ks_2samp(at_once @ along, apart @ along).pvalue > 1e-3
    lengths = [(s**2).sum(1) for s in (at_once, apart)]
    assert stats.ks_2samp(*lengths).pvalue > 1e-3


def test_the_batch_variant_draws_around_the_sum():
    noise = batch_direction(200.0, 4)
    keys = jax.random.split(jax.random.key(0), 2000)
    total = jnp.array([3.0, 0.0, 4.0, 0.0])
    y = np.asarray(jax.jit(jax.vmap(lambda k: noise.sample(k, total, 8.0)))(keys))
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 8, atol=1e-4)
    want = 8 * vmf.mean_cosine(4, 200.0) * np.array([0.6, 0, 0.8, 0])
    assert (abs(y.mean(0) - want) < 4.5 * y.std(0) / np.sqrt(2000)).all()


def test_the_rows_variant_draws_around_each_row_of_the_sum():
    """A zero row's draw is uniform, and each row has its own length of 1."""
    kernel = jnp.array([[3.0, 0.0], [4.0, 0.0], [0.0, 0.0]])  # two outputs, K = 3
    total = {"bias": jnp.array([0.0, -2.0]), "kernel": kernel}
    noise = row_directions(20.0, [2, 3, 3])
    keys = jax.random.split(jax.random.key(0), 4000)
    y = jax.jit(jax.vmap(lambda k: noise.sample(k, total, 8.0)))(keys)
    first, second = np.moveaxis(np.asarray(y["kernel"]), -1, 0)
    for drawn, mean in (
        (np.asarray(y["bias"]), [0, -vmf.mean_cosine(2, 20.0)]),
        (first, vmf.mean_cosine(3, 20.0) * np.array([0.6, 0.8, 0])),
        (second, [0, 0, 0]),
    ):
        np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 8, atol=1e-4)
        error = drawn.std(0) / np.sqrt(len(drawn))
        assert (abs(drawn.mean(0) - 8 * np.array(mean)) < 4.5 * error).all()
    across = first.T @ second / len(first)  # independent of each other
    assert (abs(across) < 4.5 * 64 / np.sqrt(len(first))).all()


def test_rows_are_what_leads_to_one_output():
    """Six inputs, five hidden units, three classes; the biases of a layer are one."""
    assert sorted(row_sizes(MLP)) == sorted([5] + 5 * [6] + [3] + 3 * [5])
    lenet = networks.lenet((28, 28, 1), 10)
    filters = 12 * [25] + 24 * [300] + 10 * [588]
    assert sorted(row_sizes(lenet)) == sorted(filters + 3 * [12] + [10])
    assert sum(row_sizes(lenet)) == sum(modules(lenet).values())


# What it costs ------------------------------------------------------------------------


@pytest.mark.parametrize(("label", "trace"), [(0, 1.9050409337), (1, 1.8732617558)])
def test_jacobian_of_a_direction_against_vectors(x64, label, trace):
    treatment = affine.Treatment(normalise(), classes=3)
    ours = affine.clipped_trace(*vectors(), jnp.array([label]), treatment)
    assert float(ours[0]) == pytest.approx(trace, rel=1e-9)


@pytest.mark.parametrize(
    ("task", "variant"),
    [
        (LINEAR, "joint"),
        pytest.param(LINEAR, "regularised", marks=pytest.mark.slow),
        pytest.param(MLP, "joint", marks=pytest.mark.slow),
        pytest.param(MLP, "layers", marks=pytest.mark.slow),
    ],
)
def test_fisher_of_a_run_is_precision_times_jacobian(x64, task, variant):
    """Dense Jacobians, module by module; probes are unbiased, closed forms exact."""
    kappa, steps = 6.0, 2
    defense = build(task, concentration=kappa, variant=variant, steps=steps)
    side, train, key = start_of(defense, task), data(), jax.random.key(2)
    margin = 0.01 if variant == "regularised" else 0.0
    sizes = modules(task)
    state, want = defense.mechanism.init(key, side), np.zeros(9)
    step = jax.jit(defense.mechanism.step)
    for _ in range(steps):
        params = state.params

        def contribution(x, y, params=params):
            g = jax.grad(task.loss)(params, Examples(x, y))
            if variant != "layers":
                return {"": clip_tree(normalise(margin), g)}
            return {name: clip_tree(normalise(), g[name]) for name in g}

        jacobian = jax.jit(jax.vmap(jax.jacfwd(contribution)))(*train.fixed)
        for name, block in jacobian.items():
            k = sizes.get(name, sum(sizes.values()))
            leaves = [np.reshape(a, (9, -1)) for a in jax.tree.leaves(block)]
            leak = kappa**2 / k if margin else vmf_privacy.precision(k, kappa)
            want += leak * (np.concatenate(leaves, 1) ** 2).sum(1)
        state, _ = step(key, state, train)
    ours = np.asarray(jax.jit(defense.fisher)(key, side, train, jnp.arange(9)))
    if task is LINEAR:
        np.testing.assert_allclose(ours, want, rtol=1e-8)
    # 8 Rademacher probes of 6 coordinates: an s.d. of at most .5 a record and step
    assert abs(ours / want - 1).mean() < 0.5


def test_a_margin_shortens_contributions(x64):
    defense = build(variant="regularised", margin=2.0)
    side, z = start_of(defense), take(data().fixed, 0)
    length = np.linalg.norm(flat(jax.grad(LINEAR.loss)(side.params, z)))
    got = np.linalg.norm(flat(defense.mechanism.query.fn(side.params, side, z)))
    assert got == pytest.approx(length / (length + 2), rel=1e-9)


def test_regularised_information_is_bounded_by_its_value_at_zero():
    """kappa^2 [A' u u^T + A / (kappa r) (I - u u^T)] at radius r: both below 1 / K."""
    for k, kappa in ((3, 2.0), (50, 200.0)):
        for r in (1e-2, 0.3, 1.0):
            x = kappa * r
            mean = vmf.mean_cosine(k, x)
            across = mean / x
            assert 1 - mean**2 - (k - 1) * across <= across * (1 + 1e-6)
            assert across <= (1 + 1e-9) / k


def test_curves_add_over_steps_visits_and_modules():
    n, orders, kappa = 100, np.array([2.0, 8.0]), 5.0
    whole = sum(modules(MLP).values())
    one = vmf_privacy.renyi(orders, whole, kappa)
    for settings, times in (
        ({"steps": 7}, 7),
        ({"steps": 7, "variant": "regularised"}, 7),
        ({"steps": 7, "variant": "batch"}, 7),
        ({"steps": 20, "sampling": "shuffled", "batch_size": 10}, 2),
    ):
        defense = build(MLP, concentration=kappa, **settings)
        curve = defense.rdp(n, orders, "replace_one")
        np.testing.assert_allclose(curve, times * one, rtol=1e-12)
    layers = build(MLP, concentration=kappa, variant="layers", steps=1)
    each = sum(vmf_privacy.renyi(orders, k, kappa) for k in modules(MLP).values())
    np.testing.assert_allclose(layers.rdp(n, orders, "replace_one"), each, rtol=1e-12)
    rows = build(MLP, concentration=kappa, variant="rows", steps=7)
    each = sum(vmf_privacy.renyi(orders, k, kappa) for k in row_sizes(MLP))
    np.testing.assert_allclose(rows.rdp(n, orders, "replace_one"), 7 * each, rtol=1e-12)


@pytest.mark.parametrize("sampling", ["uniform", "poisson"])
def test_a_sampled_record_costs_a_mixture(sampling):
    """Between q^2 and 1 times the whole, and exact for order 2 of a hidden coin."""
    defense = build(concentration=5.0, steps=1, sampling=sampling, batch_size=10)
    whole = vmf_privacy.renyi([2.0], sum(modules(LINEAR).values()), 5.0)
    ours = defense.rdp(100, np.array([2.0]), "replace_one")
    np.testing.assert_allclose(ours, np.log1p(0.1 * np.expm1(whole)), rtol=1e-12)
    loss = defense.pld(100, "replace_one")
    exact = vmf_privacy.VmfPrivacy(sum(modules(LINEAR).values()), 5.0)
    for epsilon in (0.0, 1.0):
        delta = 0.1 * exact.get_delta_for_epsilon(epsilon)
        assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("variant", ["joint", "layers", "batch", "rows"])
def test_adding_a_record_has_no_theorem(variant):
    """The number of draws, or the length of their sum, shows how many take part."""
    for sampling in SAMPLERS:
        size = None if sampling == "full" else 10
        defense = build(steps=2, sampling=sampling, batch_size=size, variant=variant)
        assert defense.rdp(100, np.array([2.0]), "add_remove") is None
        assert defense.pld(100, "add_remove") is None
        assert defense.pld(100, "replace_one") is not None


def test_what_has_no_theorem_claims_nothing():
    assert build(variant="batch").fisher is None
    assert build(variant="rows").fisher is None
    assert build(variant="regularised").pld(9, "replace_one") is None
    assert build().log_likelihood is None


def test_the_card_says_what_the_paper_leaves_out():
    n, kappa = 100, 5.0
    settings = {"concentration": kappa, "sampling": "shuffled", "batch_size": 10}
    joint = {c.quantity: c for c in claims(MLP, n, steps=90, **settings)}
    whole = sum(modules(MLP).values())
    for quantity, value in (
        ("pure epsilon, replace-one, one record and step", 10),
        ("pure epsilon, one epoch", 10),
        ("pure epsilon, whole run, composed", 90),
        ("epsilon as published, 2 kappa", 10),
        (f"mean cosine A_K, K = {whole}", vmf.mean_cosine(whole, kappa)),
    ):
        assert joint[quantity].value == value
    assert "9 steps" in joint["epsilon as published, 2 kappa"].void
    multiplier = joint["equivalent noise multiplier sqrt(L K) / kappa"].value
    assert multiplier == pytest.approx(math.sqrt(10 * whole) / kappa)
    layers = {c.quantity: c for c in claims(MLP, n, variant="layers", **settings)}
    assert layers["pure epsilon, replace-one, one record and step"].value == 20
    assert "not sqrt(2)" in layers["epsilon as published, 2 kappa sqrt(m)"].void
    rows = {c.quantity: c for c in claims(MLP, n, variant="rows", **settings)}
    assert rows["pure epsilon, replace-one, one record and step"].value == 100


def test_pure_limit_bounds_every_order():
    defense = build(concentration=2.0, steps=3)
    curve = defense.rdp(9, rdp.ORDERS, "replace_one")
    assert (np.diff(curve) > 0).all()
    assert curve[-1] < 3 * 4


# What is shown of one step ------------------------------------------------------------


def test_an_exposed_update_is_a_noised_mean(x64):
    defense, z = build(concentration=1e7), data(4).fixed
    side, key = start_of(defense), jax.random.key(0)
    exposed = exposed_step(defense)
    update = flat(jax.jit(exposed.update)(key, side, side.params, z))
    query = gradient(LINEAR, normalise())
    mean = flat(jax.jit(query.closed_forms.total)(side.params, side, z, np.ones(4))) / 4
    np.testing.assert_allclose(update, mean, atol=5e-3)
    curve = exposed.rdp(np.array([2.0]))
    k = sum(modules(LINEAR).values())
    np.testing.assert_allclose(curve, vmf_privacy.renyi([2.0], k, 1e7))
    trace = jax.jit(exposed.trace)(key, side, side.params, z)
    squares = jax.jit(query.closed_forms.trace)(side.params, side, z)
    precision = vmf_privacy.precision(k, 1e7)
    np.testing.assert_allclose(trace, precision * squares, rtol=1e-9)
    bare = exposed_step(registry.find("defense", "sgd")(LINEAR))
    assert bare.trace is None
    assert bare.rdp is None
