"""Laws of the parts, and of the defenses made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from audit.accounting import fisher
from audit.clipping import clip_tree, hard_clip, no_clip, soft_clip
from audit.mechanisms.noise import gaussian, none
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import Side, gradient
from audit.mechanisms.sampler import SAMPLERS
from audit.models import networks, pretrain
from audit.models.masks import MASKS
from audit.rng import stream
from audit.types import (
    Defense,
    Examples,
    Iterative,
    Minimiser,
    Noise,
    Query,
    Sampler,
    TrainingSet,
)
from defenses.dpsgd import dpsgd
from defenses.noisy_sum import noisy_sum
from defenses.prune import prune
from tests.conftest import double, public, records

SHAPE = (4, 3, 1)
TASKS = {
    "binary_linear": networks.binary_linear(SHAPE, 2),
    "linear": networks.linear(SHAPE, 3),
    "mlp": networks.mlp(SHAPE, 3, hidden=5),
}
CLIPS = {"soft": soft_clip(1.0), "hard": hard_clip(1.0), "none": no_clip()}


def setting(model, masked=False, n=7):
    task = TASKS[model]
    params = task.init(jax.random.key(0))
    mask = MASKS["random"](jax.random.key(1), params, 0.5) if masked else None
    side = Side(params, mask)
    return task, double(side), double(records(n, SHAPE, task.classes))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def test_the_waist_stays_narrow():
    most = {Defense: 9, Iterative: 7, Minimiser: 7, Query: 6, Sampler: 7, Noise: 6}
    assert all(len(record._fields) <= n for record, n in most.items())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("model", TASKS)
def test_query_laws(x64, model, clip, masked):
    """Closed forms equal fn; norms stay within the bound; masks hold."""
    task, side, z = setting(model, masked)
    z = jax.tree.map(jnp.asarray, z)
    query = gradient(task, CLIPS[clip])
    each = jax.jit(jax.vmap(query.fn, (None, None, 0)))(side.params, side, z)
    rows = np.array([flat(jax.tree.map(lambda a, i=i: a[i], each)) for i in range(7)])
    norms = np.linalg.norm(rows, axis=1)
    assert (norms <= query.norm_bound * (1 + 1e-9)).all()
    assert query.sensitivity == 2 * query.norm_bound
    if masked:
        assert (rows[:, flat(side.mask) == 0] == 0).all()
    total, _, score = query.closed_forms
    if total is None:
        return
    weight = jnp.arange(7.0)
    got = flat(total(side.params, side, z, weight))
    np.testing.assert_allclose(got, np.arange(7.0) @ rows, rtol=1e-10, atol=1e-12)
    update = jax.tree.map(jnp.cos, side.params)
    inner, square = score(side.params, side, z, update)
    np.testing.assert_allclose(inner, rows @ flat(update), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(square, norms**2, rtol=1e-10, atol=1e-14)
    if clip != "hard":

        def vector(x, y):
            return ravel_pytree(query.fn(side.params, side, Examples(x, y)))[0]

        jacobian = jax.jit(jax.vmap(jax.jacfwd(vector)))(z.x, z.y)
        slow = (np.asarray(jacobian).reshape(7, -1) ** 2).sum(1)
        trace = query.closed_forms.trace(side.params, side, z)
        np.testing.assert_allclose(trace, slow, rtol=1e-10)


def test_noise_has_its_precision():
    """20,000 draws of N(0, 3^2): variance within 4 s.e., precision 1/9."""
    noise = gaussian(3.0)
    keys = jax.random.split(jax.random.key(0), 20_000)
    values = np.asarray(jax.vmap(lambda k: noise.sample(k, jnp.zeros(2)))(keys))
    assert abs(values.var() - 9) < 4 * 9 * np.sqrt(2 / values.size)
    np.testing.assert_allclose(noise.precision, 1 / 9)
    assert none().precision is None
    assert (none().sample(keys[0], jnp.ones(3)) == 1).all()


def build(sampler="full", model="linear", clip="soft", noise=None, steps=3):
    task = TASKS[model]
    size = None if sampler == "full" else 4
    return noisy_sgd(
        task,
        gradient(task, CLIPS[clip]),
        SAMPLERS[sampler](size),
        gaussian(0.7) if noise is None else noise,
        optimizer=optax.sgd(0.5),
        steps=steps,
    )


def one_lane(model="linear", n=9):
    task = TASKS[model]
    z = records(n + 1, SHAPE, task.classes)
    z = double(z) if jax.config.jax_enable_x64 else z
    fixed = jax.tree.map(lambda a: jnp.asarray(a[:n]), z)
    return TrainingSet(fixed, jax.tree.map(lambda a: jnp.asarray(a[n]), z))


def start_of(defense, model="linear"):
    side = defense.prepare(jax.random.key(0), public(TASKS[model]))
    return double(side) if jax.config.jax_enable_x64 else side


def together(data):
    return jax.tree.map(
        lambda a, b: jnp.concatenate([a, b[None]]), data.fixed, data.target
    )


@pytest.mark.parametrize("model", TASKS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_training_equals_a_plain_loop(x64, sampler, model):
    """Batches, sums, noise and updates written out one record at a time."""
    data = one_lane(model)
    defense, task = build(sampler, model), TASKS[model]
    key, side = jax.random.key(5), start_of(defense, model)
    part = SAMPLERS[sampler](None if sampler == "full" else 4)
    fn, everybody = jax.jit(gradient(task, soft_clip(1.0)).fn), together(data)
    params = side.params
    for t in range(3):
        batch = part.draw(key, t, 10)
        rows = np.arange(10) if batch.rows is None else np.asarray(batch.rows)
        weight = np.ones(len(rows)) if batch.weight is None else batch.weight
        total = np.zeros(flat(params).shape)
        for row, w in zip(rows, weight, strict=True):
            z = jax.tree.map(lambda a, row=row: a[row], everybody)
            total += w * flat(fn(params, side, z))
        step_key = stream(jax.random.fold_in(key, t), "noise")
        noised = total + 0.7 * np.asarray(jax.random.normal(step_key, total.shape))
        size = 10 if sampler == "full" else 4
        params = ravel_pytree(params)[1](flat(params) - 0.5 * noised / size)
    got = defense.train(key, side, data).params
    np.testing.assert_allclose(flat(got), flat(params), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fisher_is_the_trace_along_the_trained_run(x64, sampler):
    """Step by step from the same keys: precision x factor x ||J||^2 of the target."""
    data = one_lane()
    defense, task = build(sampler), TASKS["linear"]
    key, side = jax.random.key(5), start_of(defense)
    part = SAMPLERS[sampler](None if sampler == "full" else 4)
    query = gradient(task, soft_clip(1.0))
    state, want = defense.mechanism.init(key, side), 0.0
    step = jax.jit(defense.mechanism.step)
    for _ in range(3):
        state, view = step(key, state, data)
        trace = fisher.exact_trace(
            lambda x, p=view.params: query.fn(p, side, Examples(x, data.target.y)),
            data.target.x,
        )
        batch = view.batch
        here = 1.0
        if batch.rows is not None:
            here = float(((batch.rows == 9) * batch.weight).sum())
        elif batch.weight is not None:
            here = float(batch.weight[9])
        factor = here
        if part.fisher_factor is not None:
            factor = part.fisher_factor(gaussian(0.7), query, 10)
        want += float(factor) * float(trace) / 0.7**2
    got = defense.fisher(key, side, data, np.array([9]))
    np.testing.assert_allclose(got, [want], rtol=1e-6)


def test_probes_agree_with_the_closed_form(x64):
    """The mlp path on a linear task: Hutchinson, 400 runs of one step, within 4 s.e."""
    data = one_lane()
    task, sgd = TASKS["linear"]._replace(linear=None), optax.sgd(0.5)
    slow = build(model="linear", steps=1)
    query, full = gradient(task, soft_clip(1.0)), SAMPLERS["full"](None)
    blind = noisy_sgd(task, query, full, gaussian(0.7), optimizer=sgd, steps=1)
    side = start_of(slow)
    rows = np.array([9])
    keys = jax.random.split(jax.random.key(1), 400)
    got = np.asarray(jax.vmap(lambda k: blind.fisher(k, side, data, rows)[0])(keys))
    want = slow.fisher(keys[0], side, data, rows)[0]
    assert abs(got.mean() - want) < 4 * got.std() / np.sqrt(400)


def test_accounting_of_fixed_records_too():
    """One run accounts for every record that trained in it."""
    data = one_lane()
    defense = build()
    side = start_of(defense)
    all_rows = defense.fisher(jax.random.key(5), side, data, np.arange(10))
    last = defense.fisher(jax.random.key(5), side, data, np.array([9]))
    np.testing.assert_allclose(all_rows[9], last[0], rtol=1e-5)
    assert (np.asarray(all_rows) > 0).all()


def test_log_likelihood_ratio_is_the_gaussians(x64):
    """Replay the run with a candidate in the slot and compare log densities."""
    data = one_lane()
    defense, task = build(), TASKS["linear"]
    key, side = jax.random.key(5), start_of(defense)
    candidates = jax.tree.map(jnp.asarray, records(4, SHAPE, 3, seed=9))
    got = defense.log_likelihood(key, side, data, candidates)
    query = gradient(task, soft_clip(1.0))
    both = together(TrainingSet(candidates, data.target))
    state, want = defense.mechanism.init(key, side), np.zeros(5)
    step, fn = jax.jit(defense.mechanism.step), jax.jit(query.fn)
    for _ in range(3):
        state, view = step(key, state, data)
        known = sum(
            flat(fn(view.params, side, jax.tree.map(lambda a, i=i: a[i], data.fixed)))
            for i in range(9)
        )
        for k in range(5):
            z = jax.tree.map(lambda a, k=k: a[k], both)
            mean = known + flat(fn(view.params, side, z))
            want[k] += -((flat(view.update) - mean) ** 2).sum() / 2 / 0.7**2
    got = np.asarray(got)
    np.testing.assert_allclose(got - got[4], want - want[4], rtol=1e-6)


def test_unknown_is_none_never_zero():
    undefended = build(clip="none", noise=none())
    assert undefended.fisher is None
    assert undefended.rdp is None
    assert undefended.log_likelihood is None
    kinked = build(clip="hard")
    assert kinked.fisher is None
    assert kinked.rdp is not None


def test_prune_freezes_what_it_says():
    task = TASKS["binary_linear"]
    defense = prune(task, density=0.5, steps=4, noise_multiplier=0.1)
    data = one_lane("binary_linear")
    side = defense.prepare(jax.random.key(0), public(task))
    mask = flat(side.mask)
    assert mask.sum() == round(0.5 * 13)
    kept = np.abs(flat(side.params))[mask == 1].min()
    assert kept >= np.abs(flat(side.params))[mask == 0].max()
    end = flat(defense.train(jax.random.key(1), side, data).params)
    np.testing.assert_array_equal(end != flat(side.params), mask == 1)


def test_half_of_785_parameters_is_392():
    params = {"w": jnp.arange(785.0)}
    for keep in MASKS.values():
        assert flat(keep(jax.random.key(0), params, 0.5)).sum() == 392


def test_pretraining_learns_and_needs_data():
    z = records(200, SHAPE, 2)
    z = z._replace(y=(z.x.mean((1, 2, 3)) > 0.5).astype(np.int32))
    task = TASKS["binary_linear"]
    key = jax.random.key(0)
    cold, warm = (pretrain.start(task, key, z, epochs=e).params for e in (0, 200))
    loss = lambda p: float(jax.vmap(task.loss, (None, 0))(p, z).mean())  # noqa: E731
    assert loss(warm) < 0.9 * loss(cold)
    nobody = jax.tree.map(lambda a: a[:0], z)
    with pytest.raises(ValueError, match="public"):
        pretrain.start(task, key, nobody, epochs=1)


def test_noisy_sum_trace_equals_the_sweep(x64):
    data, clip = one_lane("binary_linear"), soft_clip(2.0)
    defense = noisy_sum(TASKS["binary_linear"], clip_norm=2.0, noise_stddev=0.1)
    got = defense.fisher(jax.random.key(0), None, data, np.array([9]))
    want = fisher.exact_trace(lambda x: clip_tree(clip, x), data.target.x) / 0.1**2
    np.testing.assert_allclose(got[0], want, rtol=1e-9)


def test_release_is_sum_plus_noise_of_that_size():
    """1,000 releases: variance within 4 s.e."""
    data = one_lane("binary_linear")
    defense = noisy_sum(TASKS["binary_linear"], clip_norm=2.0, noise_stddev=0.1)
    keys = jax.random.split(jax.random.key(0), 1_000)
    train = jax.jit(jax.vmap(lambda k: defense.train(k, None, data).params))
    out = np.asarray(train(keys))
    values = (out - out.mean(0)).ravel()
    assert abs(values.var() - 0.01) < 4 * 0.01 * np.sqrt(2 / values.size)


def test_sensitivity_is_twice_the_rounded_up_overshoot():
    defense = dpsgd(TASKS["linear"], clip_norm=10.0, noise_multiplier=0.05, steps=5)
    got = defense.rdp(1001, np.array([2.0]), "replace_one")
    np.testing.assert_allclose(got, 5 * (2 * 1.1153 / 0.05) ** 2)
    got = defense.rdp(1001, np.array([2.0]), "add_remove")
    np.testing.assert_allclose(got, 5 * (1.1153 / 0.05) ** 2)
