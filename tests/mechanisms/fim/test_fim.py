"""FIM: what is learnt, from what, and what the published network leaves of itself."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from audit.accounting import fisher
from audit.clipping import hard_clip, no_clip, soft_clip
from audit.config import registry
from audit.games.base import take
from audit.mechanisms.fim import networks as phi
from audit.mechanisms.fim import objectives, refit
from audit.mechanisms.fim.fitters import Ground, constant, network
from audit.mechanisms.fim.networks import Inputs
from audit.mechanisms.fim.shifted_gradients import ShiftedNorms
from audit.mechanisms.query import Side, gradient
from audit.models import networks, pretrain
from audit.types import TrainingSet
from defenses.fim import fim
from defenses.pretrained import pretrained
from defenses.prune import prune
from defenses.public_mean import public_mean
from tests.conftest import double, flat, records

SHAPE = (4, 3, 1)
TASK = networks.binary_linear(SHAPE, 2)
KEY = jax.random.key(0)
PUBLIC = records(30, SHAPE, 2, seed=1)
DATA = TrainingSet(records(20, SHAPE, 2, seed=2), None)
START = pretrain.start(TASK, KEY, PUBLIC)
FAST = {
    "architecture": "mlp", "epochs": 4, "epochs_decay": 1, "least_epochs": 1,
    "noise_multiplier": 0.1, "steps": 3,
}  # fmt: skip


@cache
def prepared(shape, **given):
    """Return a defense, its side and its compiled step: made once for all tests."""
    defense = fim(TASK, **FAST | {"perturbation": shape} | given)
    side = jax.tree.map(jnp.asarray, defense.prepare(KEY, START))
    return defense, side, jax.jit(defense.mechanism.step)


def offsets(shape, steps=3, **given):
    """Return what is added to gradients in every step of one run, and the end."""
    defense, side, step = prepared(shape, **given)
    state, out = defense.mechanism.init(KEY, side), []
    for _ in range(steps):
        state, view = step(KEY, state, DATA)
        out.append(flat(view.side.offset))
    return np.array(out), flat(state.params)


# What the published network is --------------------------------------------------------


def example(seed=0):
    rng = np.random.default_rng(seed)
    shapes = (28, 28, 1), 2, 392, 392
    return Inputs(*(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes))


def test_the_network_has_the_published_size():
    """Table B.6 on 28x28 with 392 trained parameters: 511,452 numbers."""
    for norm in ("batch", "group"):
        init = phi.Network("cnn", 392, norm=norm).init
        shapes = jax.eval_shape(init, KEY, example())["params"]
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 511_452


def of_one(module, variables, inputs):
    """Call the network as the published code does: on a batch of one."""
    one = jax.tree.map(lambda a: a[None], inputs)
    return module.apply(variables, one, mutable=["batch_stats"])[0][0]


def test_normalising_batches_of_one_leaves_a_constant():
    """As the published code calls it, nothing that enters reaches the output."""
    module = phi.Network("cnn", 392, norm="batch")
    variables = jax.jit(module.init)(KEY, example())
    published = jax.jit(partial(of_one, module, variables))
    first, other = published(example(seed=0)), published(example(seed=1))
    np.testing.assert_array_equal(first, other)
    slope = jax.jvp(published, (example(),), (example(seed=2),))[1]
    assert np.abs(slope).max() == 0
    working = phi.Network("cnn", 392, norm="group")
    run = jax.jit(partial(working.apply, jax.jit(working.init)(KEY, example())))
    assert np.abs(run(example(seed=0)) - run(example(seed=1))).max() > 1e-3


@pytest.mark.parametrize("architecture", phi.LAST)
def test_the_head_is_what_is_left_of_it(architecture):
    """The head with the network's last layers gives the network's constant."""
    module = phi.Network(architecture, 7, norm="batch")
    variables = jax.jit(module.init)(KEY, example())
    bias = jax.random.normal(KEY, (phi.LAST[architecture][0],))
    params = dict(variables["params"])
    params["BatchNorm_1"] = {**params["BatchNorm_1"], "bias": bias}
    published = jax.jit(partial(of_one, module))
    want = published({**variables, "params": params}, example())
    head = {"shift": bias, "Dense_0": params["Dense_1"], "Dense_1": params["Dense_2"]}
    got = phi.ConstantHead(architecture, 7).apply({"params": head})
    # sums of float32 that nearly cancel keep the error of what they sum
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# Fitting ------------------------------------------------------------------------------


SCHEDULE = {
    "epochs": 20, "epochs_decay": 5, "least_epochs": 2, "batch_size": 100,
    "learning_rate": 0.01, "weight_decay": 0.0, "penalty": 50.0,
    "penalty_decay": 20.0, "least_penalty": 3.0,
}  # fmt: skip


def fitted(loss, start, t=0, n=7, **given):
    """Return what fitting leaves of a start, by the usual schedule but for `given`."""
    schedule, start = objectives.Schedule(**SCHEDULE | given), {"params": start}
    opt = objectives.adam_of(schedule).init(start)
    span = 0, schedule.epochs_before(t)
    return objectives.fit(loss, start, opt, schedule, t, n, KEY, span)[0]["params"]


@pytest.mark.parametrize(("t", "epochs"), [(0, 20), (1, 15), (3, 5), (9, 2)])
def test_epochs_decay(t, epochs):
    """Adam moves by its rate a step where the slope is constant."""
    loss = lambda phi, rows, weight, key: phi["params"].sum()
    got = fitted(loss, jnp.zeros(2), t)
    np.testing.assert_allclose(got, -0.01 * epochs, rtol=1e-4)


@pytest.mark.parametrize(("t", "weight"), [(0, 50), (1, 30), (2, 10), (3, 3)])
def test_the_penalty_decays(t, weight):
    """The optimum of (phi - lambda)^2 is lambda."""
    loss = lambda phi, rows, weight, key: ((phi["params"] - weight) ** 2).sum()
    how = {"epochs": 400, "epochs_decay": 0, "learning_rate": 1.0}
    got = fitted(loss, jnp.full(1, float(weight)), t, **how)
    np.testing.assert_allclose(got, weight, rtol=1e-4)


def test_an_epoch_visits_records_at_most_once():
    visited = []

    def loss(phi, rows, weight, key):
        jax.debug.callback(lambda r: visited.extend(np.asarray(r).tolist()), rows)
        return phi["params"].sum()

    fitted(loss, jnp.zeros(1), n=10, epochs=1, least_epochs=1, batch_size=3)
    jax.effects_barrier()
    assert len(visited) == len(set(visited)) == 9


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        ("perturbation", 3.0),
        ("clipped", 1.6171875),
        ("snr", 1.6171875 / 9),
        ("snr_gradient", 1.6171875 / 9),
    ],
)
def test_what_is_penalised_by_hand(objective, value):
    """At s = 4 under the hard clip at 3: phi = 3/4, phi' = -3/16, ||v|| = 3."""
    norms = ShiftedNorms(*map(jnp.float32, (16.0, 3.0, 2.0)))
    got = objectives.penalty(objective, hard_clip(3.0), norms)
    np.testing.assert_allclose(got, value, rtol=1e-6)


@pytest.mark.slow
def test_a_network_that_adds_nothing_is_penalised_like_the_gradient():
    """Its trace by 10 x 30 x 2 probes per squared signal, within 4 / sqrt(300)."""
    places, public = phi.places(None, START.params), jax.tree.map(jnp.asarray, PUBLIC)
    on, clip = Ground(START.params, None, places, public), soft_clip(0.1)
    make = partial(phi.Network, "mlp", norm="none")
    fitter = network(TASK, clip, "snr_gradient", make, static=True)
    nothing = jax.tree.map(jnp.zeros_like, fitter.init(KEY, on))
    one = lambda key: fitter.loss(on, fitter.look(KEY, on), nothing, None, 1.0, key)
    got = jax.jit(jax.vmap(one))(jax.random.split(KEY, 10)).mean()
    forms, at = gradient(TASK, clip).closed_forms, (START.params, Side(START.params))
    signal = forms.score(*at, public, START.params)[1]
    want = (forms.trace(*at, public) / signal).mean()
    np.testing.assert_allclose(got, want, rtol=4 / np.sqrt(300))


# The defense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", ["constant", pytest.param("constant_direct", marks=pytest.mark.slow)]
)
def test_a_constant_under_the_unclipped_penalty_vanishes(shape):
    """Equation 2.5: nothing to win from a constant, so FIM falls back on Prune."""
    added, end = offsets(
        shape, 1, objective="perturbation", epochs=600, epochs_decay=0,
        fit_weight_decay=0.0, fit_learning_rate=0.01,
    )  # fmt: skip
    assert np.linalg.norm(added) < 1e-3
    usual = prune(TASK, steps=1, noise_multiplier=0.1)
    want = jax.jit(usual.train)(KEY, usual.prepare(KEY, START), DATA).params
    np.testing.assert_allclose(end, flat(want), atol=1e-4)


def test_a_constant_that_replaces_the_gradient_tells_nothing(x64):
    """Equation 2.4: what is released does not depend on the records at all."""
    defense, side, _ = prepared("constant_direct", objective="replacement", steps=2)
    trace = jax.jit(defense.fisher)(KEY, double(side), double(DATA), np.arange(5))
    np.testing.assert_array_equal(trace, 0)


def test_the_fit_lowers_its_objective():
    fitter = constant(TASK, soft_clip(1.0), "snr_gradient", phi.Direct, at_mean=True)
    places = phi.places(None, START.params)
    on = Ground(START.params, None, places, jax.tree.map(jnp.asarray, PUBLIC))
    signal = fitter.look(KEY, on)
    how = {"penalty": 1e3, "learning_rate": 0.1, "epochs": 200}
    schedule = objectives.Schedule(**SCHEDULE | how)
    fit = refit.first_fit(fitter, schedule, Side(START.params), START, KEY)
    side = fit.last(fit.part(fit.first, 0, 200))
    value = lambda phi: float(fitter.loss(on, signal, phi, None, 1e3, KEY))
    nothing = {"params": {"constant": jnp.zeros(places.size)}}
    assert value(side.learnt.phi) < 0.7 * value(nothing)


@pytest.mark.parametrize(
    "shape", ["constant", pytest.param("network", marks=pytest.mark.slow)]
)
def test_private_records_do_not_reach_phi(shape):
    """Other private records, same parameters: the same side before the step."""
    defense, side, step = prepared(shape)
    state = defense.mechanism.init(KEY, side)
    other = TrainingSet(records(20, SHAPE, 2, seed=7), None)
    state = state._replace(t=jnp.ones((), int))  # the side of step 0 is prepared
    first, second = (step(KEY, state, data)[1].side for data in (DATA, other))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("density", [0.5, 1.0])
def test_only_trained_parameters_are_perturbed(density):
    given = {} if density == 0.5 else {"density": density}
    _, side, _ = prepared("constant_direct", **given)
    trained = np.ones(13) if side.mask is None else flat(side.mask)
    assert trained.sum() == round(13 * density)
    added, end = offsets("constant_direct", **given)
    assert (added[:, trained == 0] == 0).all()
    np.testing.assert_array_equal(end != flat(START.params), trained == 1)
    if density == 0.5:  # what is added changes with the parameters
        moved, _ = offsets("constant")
        assert (np.linalg.norm(np.diff(moved, axis=0), axis=1) > 1e-3).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["network", "network_static"])
def test_a_network_perturbs_each_example_its_own_way(shape):
    defense, side, _ = prepared(shape)
    assert side.offset is None
    clip, z = soft_clip(1.0), jax.tree.map(jnp.asarray, DATA.fixed)
    fitter = network(
        TASK, clip, "snr_gradient",
        partial(phi.Network, "mlp", norm="group" if shape == "network" else "none"),
        static=shape == "network_static",
    )  # fmt: skip
    plain = gradient(TASK, no_clip()).fn

    @jax.jit
    @jax.vmap
    def added(z):
        base = plain(side.params, side, z)
        return ravel_pytree(fitter.perturb(side.params, side, z, base))[0]

    extra = np.asarray(added(z))
    assert (extra.std(0)[flat(side.mask) == 1] > 0).all()
    trace = jax.jit(defense.fisher)(KEY, side, DATA, np.arange(20))
    assert np.isfinite(trace).all()
    assert (np.asarray(trace) > 0).all()


@pytest.mark.slow
def test_static_networks_start_anew_every_step():
    """phi before a step depends on its parameters, not on phi before."""
    defense, side, step = prepared("network_static")
    moved = jax.tree.map(lambda a: a + 1, side.learnt.phi)
    ends = []
    for before in (side, side._replace(learnt=side.learnt._replace(phi=moved))):
        state = defense.mechanism.init(KEY, before)._replace(t=jnp.ones((), int))
        ends.append(step(KEY, state, DATA)[1].side.learnt.phi)
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_accounting_is_of_the_side_of_the_step(x64):
    """dFIL of a run equals the sum over steps at the offset each step really used."""
    defense = fim(TASK, **FAST, perturbation="constant_direct")
    side, data = double(defense.prepare(KEY, START)), double(DATA)
    got = jax.jit(defense.fisher)(KEY, side, data, np.array([3]))
    state, want = defense.mechanism.init(KEY, side), 0.0
    query, step = gradient(TASK, soft_clip(1.0)), jax.jit(defense.mechanism.step)
    z = jax.tree.map(lambda a: jnp.asarray(a[3]), data.fixed)

    @jax.jit
    def leak(params, side):
        fn = lambda x: query.fn(params, side, z._replace(x=x))
        return fisher.exact_trace(fn, z.x) / 0.1**2

    for _ in range(3):
        state, view = step(KEY, state, data)
        want += float(leak(view.params, view.side))
    np.testing.assert_allclose(got, [want], rtol=1e-6)


@pytest.mark.slow
def test_one_phi_for_all_runs_is_close_to_its_own():
    """The named approximation: offsets of pilots within 10% of the run's own."""
    exact, _ = offsets("constant_direct", epochs=200)
    shared, _ = offsets("constant_direct", epochs=200, share_steps=4)
    gap = np.linalg.norm(shared - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert gap[0] < 1e-5  # the first step depends on the common start alone
    assert (gap < 0.1).all()
    assert gap[1:].max() > 1e-6  # and it is an approximation


@pytest.mark.slow
def test_a_shared_network_has_one_phi_a_step():
    defense, side, step = prepared("network", share_steps=2)
    state, table = defense.mechanism.init(KEY, side), side.learnt.table[1]["params"]
    for t in range(3):
        state, view = step(KEY, state, DATA)
        want = flat(take(table, t))
        np.testing.assert_array_equal(flat(view.side.learnt.phi["params"]), want)


@pytest.mark.parametrize("name", ["fim", "public_mean"])
def test_no_public_records_is_an_error(name):
    nobody = pretrain.start(TASK, KEY, records(0, SHAPE, 2))
    defense = registry.find("defense", name)(TASK)
    with pytest.raises(ValueError, match="public records"):
        defense.prepare(KEY, nobody)


@pytest.mark.slow
def test_any_model_can_be_perturbed():
    """Without a closed form the gradients are kept and the traces probed."""
    task = networks.mlp(SHAPE, 2, hidden=4, activation="tanh")
    start = pretrain.start(task, KEY, PUBLIC, epochs=2)
    defense = fim(task, **(FAST | {"fit_batch_size": 10}))
    side = defense.prepare(KEY, start)
    released = jax.jit(defense.train)(KEY, jax.tree.map(jnp.asarray, side), DATA)
    assert np.isfinite(flat(released.params)).all()
    assert np.linalg.norm(flat(side.offset)) > 1e-3


# Its neighbours -----------------------------------------------------------------------


def test_public_mean_points_along_the_public_gradient():
    defense = public_mean(TASK, shift=2.0, clip_norm=3.0, density=1.0, steps=2)
    side = jax.tree.map(jnp.asarray, defense.prepare(KEY, START))
    state, step = defense.mechanism.init(KEY, side), jax.jit(defense.mechanism.step)
    loss = lambda p: jax.vmap(TASK.loss, (None, 0))(p, PUBLIC).mean()
    slope = jax.jit(jax.grad(loss))
    for _ in range(2):
        state, view = step(KEY, state, DATA)
        want = flat(slope(view.params))
        got = flat(view.side.offset)
        assert np.linalg.norm(got) == pytest.approx(6.0, rel=1e-5)
        np.testing.assert_allclose(got, 6 * want / np.linalg.norm(want), rtol=1e-4)


def test_pretrained_tells_nothing():
    defense = pretrained(TASK)
    side = defense.prepare(KEY, START)
    end = defense.train(KEY, side, DATA).params
    np.testing.assert_array_equal(flat(end), flat(START.params))
    assert not np.any(defense.fisher(KEY, side, DATA, np.arange(4)))
    assert not np.any(defense.rdp(21, np.array([2.0, 8.0]), "replace_one"))
    assert flat(side.params).any()
