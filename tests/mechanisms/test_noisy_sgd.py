"""Laws of the parts, and of the defenses made of them."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from audit.accounting import fisher
from audit.clipping import clip_tree, hard_clip, no_clip, normalise, soft_clip
from audit.config import registry
from audit.games.base import take
from audit.mechanisms.noise import gaussian, none, von_mises_fisher
from audit.mechanisms.noisy_sgd import information_matrix, noisy_sgd
from audit.mechanisms.output_perturbation import output_perturbation
from audit.mechanisms.query import Side, gradient, modules
from audit.mechanisms.sampler import SAMPLERS
from audit.models import networks, optimizers, pretrain
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
from tests.conftest import double, flat, public, records, wide
from tests.mechanisms import closed_forms_are_of, per_record

SHAPE = (4, 3, 1)
TASKS = {
    "binary_linear": networks.binary_linear(SHAPE, 2),
    "linear": networks.linear(SHAPE, 3),
    "mlp": networks.mlp(SHAPE, 3, hidden=5),
}
CLIPS = {"soft": soft_clip(1.0), "hard": hard_clip(1.0), "none": no_clip()}


def test_the_waist_stays_narrow():
    most = {Defense: 9, Iterative: 7, Minimiser: 7, Query: 6, Sampler: 7, Noise: 6}
    assert all(len(record._fields) <= n for record, n in most.items())


def cells(every, quick):
    """Return cells of a table of cases; those that are not quick are slow."""
    slow = pytest.mark.slow
    return [c if c in quick else pytest.param(*c, marks=slow) for c in every]


@pytest.mark.parametrize(
    ("model", "clip", "masked"),
    # every model, every clip with and without a mask
    cells(
        product(TASKS, CLIPS, (False, True)),
        {
            *product(["linear"], CLIPS, [False, True]),
            ("binary_linear", "soft", True),
            ("mlp", "soft", True),
            ("mlp", "none", False),
        },
    ),
)
def test_query_laws(x64, model, clip, masked):
    """Closed forms equal fn; norms stay within the bound; masks hold."""
    task = TASKS[model]
    params = task.init(jax.random.key(0))
    mask = MASKS["random"](jax.random.key(1), params, 0.5) if masked else None
    side = double(Side(params, mask))
    z = wide(7, SHAPE, task.classes)
    query = gradient(task, CLIPS[clip])
    rows = per_record(query, side, z)
    norms = np.linalg.norm(rows, axis=1)
    assert (norms <= query.norm_bound * (1 + 1e-9)).all()
    assert query.sensitivity == 2 * query.norm_bound
    if masked:
        assert (rows[:, flat(side.mask) == 0] == 0).all()
    closed_forms_are_of(query, side, z, rows, traced=clip != "hard")


def test_noise_has_its_precision():
    """20,000 draws of N(0, 3^2): variance within 4 s.e., precision 1/9."""
    noise = gaussian(3.0)
    keys = jax.random.split(jax.random.key(0), 20_000)
    values = np.asarray(jax.vmap(lambda k: noise.sample(k, jnp.zeros(2)))(keys))
    assert abs(values.var() - 9) < 4 * 9 * np.sqrt(2 / values.size)
    np.testing.assert_allclose(noise.precision, 1 / 9)
    np.testing.assert_allclose(noise.law.variance, 9)
    assert none().precision is None
    assert (none().sample(keys[0], jnp.ones(3)) == 1).all()
    around = von_mises_fisher(3.0, 4)
    draws = np.asarray(
        jax.jit(jax.vmap(lambda k: around.sample(k, jnp.ones(4) / 2)))(keys)
    )
    np.testing.assert_allclose(draws.var(0).mean(), around.law.variance, rtol=0.01)


GAUSSIAN = gaussian(0.7)


def drawing(sampler):
    return SAMPLERS[sampler](None if sampler == "full" else 4)


def build(sampler="full", task=TASKS["linear"], clip="soft", noise=GAUSSIAN, steps=3):
    parts = gradient(task, CLIPS[clip]), drawing(sampler), noise
    return noisy_sgd(task, *parts, optimizer=optax.sgd(0.5), steps=steps)


def one_lane(model="linear", n=9):
    z = wide(n + 1, SHAPE, TASKS[model].classes)
    return TrainingSet(take(z, slice(n)), take(z, n))


def start_of(defense, model="linear"):
    return double(defense.prepare(jax.random.key(0), public(TASKS[model])))


def together(data):
    return jax.tree.map(
        lambda a, b: jnp.concatenate([a, b[None]]), data.fixed, data.target
    )


@pytest.mark.parametrize(
    ("sampler", "model"),
    # every sampler, every model
    cells(
        product(SAMPLERS, TASKS),
        {*product(SAMPLERS, ["linear"]), ("full", "mlp"), ("poisson", "binary_linear")},
    ),
)
def test_training_equals_a_plain_loop(x64, sampler, model):
    """Batches, sums, noise and updates written out one record at a time."""
    data, defense = one_lane(model), build(sampler, TASKS[model])
    key, side = jax.random.key(5), start_of(defense, model)
    part = drawing(sampler)
    query, everybody = gradient(TASKS[model], soft_clip(1.0)), together(data)
    params = side.params
    for t in range(3):
        batch = part.draw(key, t, 10)
        rows = np.arange(10) if batch.rows is None else np.asarray(batch.rows)
        weight = np.ones(len(rows)) if batch.weight is None else batch.weight
        each = per_record(query, side._replace(params=params), everybody)
        total = sum(w * each[row] for row, w in zip(rows, weight, strict=True))
        step_key = stream(jax.random.fold_in(key, t), "noise")
        noised = total + 0.7 * np.asarray(jax.random.normal(step_key, total.shape))
        size = 10 if sampler == "full" else 4
        params = ravel_pytree(params)[1](flat(params) - 0.5 * noised / size)
    got = defense.train(key, side, data).params
    np.testing.assert_allclose(flat(got), flat(params), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fisher_is_the_trace_along_the_trained_run(x64, sampler):
    """Step by step from the same keys: precision x factor x ||J||^2 of the target."""
    data, defense = one_lane(), build(sampler)
    key, side = jax.random.key(5), start_of(defense)
    part, query = drawing(sampler), gradient(TASKS["linear"], soft_clip(1.0))
    state, want = defense.mechanism.init(key, side), 0.0
    step = jax.jit(defense.mechanism.step)

    @jax.jit
    def leak(params):
        fn = lambda x: query.fn(params, side, Examples(x, data.target.y))
        return fisher.exact_trace(fn, data.target.x)

    for _ in range(3):
        state, view = step(key, state, data)
        trace = leak(view.params)
        batch, factor = view.batch, 1.0
        if part.fisher_factor is not None:
            factor = part.fisher_factor(GAUSSIAN, query, 10)
        elif batch.rows is not None:
            factor = ((batch.rows == 9) * batch.weight).sum()
        elif batch.weight is not None:
            factor = batch.weight[9]
        want += float(factor) * float(trace) / 0.7**2
    each = defense.fisher(key, side, data, np.arange(10))
    np.testing.assert_allclose(each[9], want, rtol=1e-6)
    # one run accounts for every record that trained in it, and each as if alone
    alone = defense.fisher(key, side, data, np.array([9]))
    np.testing.assert_allclose(alone, each[9:], rtol=1e-9)
    assert sampler == "shuffled" or (np.asarray(each) > 0).all()
    whole = jax.jit(partial(information_matrix, defense.mechanism))(key, side, data)
    np.testing.assert_allclose(whole.trace, want, rtol=1e-6)
    blocks = np.einsum("tdr,trs,tds->", whole.factor, whole.core, whole.factor)
    np.testing.assert_allclose(whole.diagonal.sum() + blocks, want, rtol=1e-6)


def test_probes_agree_with_the_closed_form(x64):
    """The mlp path on a linear task: Hutchinson, 400 runs of one step, within 4 s.e."""
    data, slow = one_lane(), build(steps=1)
    blind = build(task=TASKS["linear"]._replace(linear=None), steps=1)
    side, rows = start_of(slow), np.array([9])
    keys = jax.random.split(jax.random.key(1), 400)
    got = np.asarray(jax.vmap(lambda k: blind.fisher(k, side, data, rows)[0])(keys))
    want = slow.fisher(keys[0], side, data, rows)[0]
    assert abs(got.mean() - want) < 4 * got.std() / np.sqrt(400)


@pytest.mark.parametrize("sampler", ["full", "uniform"])
def test_log_likelihood_ratio_is_the_gaussians(x64, sampler):
    """Replay the run with a candidate in the slot and compare log densities.

    A step whose batch is without the target tells nothing of it.
    """
    data, defense = one_lane(), build(sampler, steps=6)
    key, side = jax.random.key(5), start_of(defense)
    candidates = jax.tree.map(jnp.asarray, records(4, SHAPE, 3, seed=9))
    got = np.asarray(defense.log_likelihood(key, side, data, candidates))
    query = gradient(TASKS["linear"], soft_clip(1.0))
    both = together(TrainingSet(candidates, data.target))
    state, want, visits = defense.mechanism.init(key, side), np.zeros(5), []
    step = jax.jit(defense.mechanism.step)
    for _ in range(6):
        state, view = step(key, state, data)
        at = side._replace(params=view.params)
        weight = np.ones(10)
        if view.batch.rows is not None:
            weight = np.isin(np.arange(10), view.batch.rows).astype(float)
        visits.append(weight[9])
        means = weight[:9] @ per_record(query, at, data.fixed)
        means = means + weight[9] * per_record(query, at, both)
        want -= ((flat(view.update) - means) ** 2).sum(1) / 2 / 0.7**2
    assert (set(visits) == {0.0, 1.0}) == (sampler == "uniform")
    np.testing.assert_allclose(got - got[4], want - want[4], rtol=1e-6)


def test_unknown_is_none_never_zero():
    undefended = build(clip="none", noise=none())
    assert undefended.fisher is undefended.rdp is undefended.log_likelihood is None
    kinked = build(clip="hard")
    assert kinked.fisher is None
    assert kinked.rdp is not None


def test_prune_freezes_what_it_says():
    params = {"w": jnp.arange(785.0)}
    for keep in MASKS.values():
        assert flat(keep(jax.random.key(0), params, 0.5)).sum() == 392
        with pytest.raises(ValueError, match="trains none of 785 parameters"):
            keep(jax.random.key(0), params, 1e-5)
    task = TASKS["binary_linear"]
    defense = prune(task, density=0.5, steps=4, noise_multiplier=0.1)
    data = one_lane("binary_linear")
    side = defense.prepare(jax.random.key(0), public(task))
    mask = flat(side.mask)
    assert mask.sum() == round(0.5 * 13)
    kept = np.abs(flat(side.params))[mask == 1].min()
    assert kept >= np.abs(flat(side.params))[mask == 0].max()
    end = flat(jax.jit(defense.train)(jax.random.key(1), side, data).params)
    np.testing.assert_array_equal(end != flat(side.params), mask == 1)


COMMON = {
    "learning_rate": 0.05, "optimizer": "adam", "weight_decay": 0.2, "steps": 3,
    "sampling": "poisson", "batch_size": 4,
}  # fmt: skip
LOUD = COMMON | {"clip_norm": 3.0, "noise_multiplier": 0.5}
FROZEN = LOUD | {"density": 0.3, "keep": "random"}


@pytest.mark.parametrize(
    ("name", "settings", "clip", "noise"),
    [
        ("sgd", COMMON, no_clip(), none()),
        ("dpsgd", LOUD | {"clip": "hard"}, hard_clip(3.0), gaussian(1.5)),
        ("prune", FROZEN | {"clip": "hard"}, hard_clip(3.0), gaussian(1.5)),
        ("public_mean", FROZEN, soft_clip(3.0), gaussian(1.5)),
        (
            "fim",
            FROZEN | {"perturbation": "constant_direct", "epochs": 2},
            soft_clip(3.0),
            gaussian(1.5),
        ),
        ("dirdp_sgd", COMMON | {"concentration": 9.0}, normalise(), None),
    ],
)
def test_a_defense_is_made_of_the_parts_that_its_settings_name(
    name, settings, clip, noise
):
    """No setting is at its default, and each has a say in what is released.

    What is frozen stays, though weights decay.
    """
    task = TASKS["linear"]
    defense = registry.find("defense", name)(task, **settings)
    if noise is None:
        noise = von_mises_fisher(9.0, sum(modules(task).values()))
    by_hand = noisy_sgd(
        task,
        gradient(task, clip),
        SAMPLERS["poisson"](4),
        noise,
        optimizer=optimizers.named("adam", 0.05, 0.2),
        steps=3,
        refresh=defense.mechanism.refresh,
    )
    data = TrainingSet(jax.tree.map(jnp.asarray, records(9, SHAPE, 3)), None)
    start = public(task, records(20, SHAPE, 3, seed=3))
    side = jax.tree.map(jnp.asarray, defense.prepare(jax.random.key(0), start))
    key = jax.random.key(7)
    got, want = (
        flat(jax.jit(d.train)(key, side, data).params) for d in (defense, by_hand)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    if "keep" in settings:
        mask = MASKS["random"](stream(jax.random.key(0), "mask"), start.params, 0.3)
        np.testing.assert_array_equal(flat(side.mask), flat(mask))
        np.testing.assert_array_equal(got != flat(start.params), flat(mask) == 1)


def test_pretraining_learns_and_needs_data():
    z, task, key = records(200, SHAPE, 2), TASKS["binary_linear"], jax.random.key(0)
    z = z._replace(y=(z.x.mean((1, 2, 3)) > 0.5).astype(np.int32))
    cold, warm = (pretrain.start(task, key, z, epochs=e).params for e in (0, 200))
    mean = lambda p: jax.vmap(task.loss, (None, 0))(p, z).mean()
    assert mean(warm) < 0.9 * mean(cold)
    plain = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.01}
    step = jax.tree.map(
        lambda p, g: p - 0.1 * (g + 0.01 * p), cold, jax.grad(mean)(cold)
    )
    once = pretrain.start(task, key, z, epochs=1, **plain).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), once, step)
    with pytest.raises(ValueError, match="public"):
        pretrain.start(task, key, take(z, slice(0)), epochs=1)


def test_a_noisy_sums_release_and_trace(x64):
    """1,000 releases: variance within 4 s.e.; the trace is the sweep's."""
    data, clip = one_lane("binary_linear"), soft_clip(2.0)
    defense = noisy_sum(TASKS["binary_linear"], clip_norm=2.0, noise_stddev=0.1)
    keys = jax.random.split(jax.random.key(0), 1_000)
    train = jax.jit(jax.vmap(defense.train, (0, None, None)))
    out = np.asarray(train(keys, None, data).params)
    values = (out - out.mean(0)).ravel()
    assert abs(values.var() - 0.01) < 4 * 0.01 * np.sqrt(2 / values.size)
    got = defense.fisher(jax.random.key(0), None, data, np.array([9]))
    want = fisher.exact_trace(lambda x: clip_tree(clip, x), data.target.x) / 0.1**2
    np.testing.assert_allclose(got[0], want, rtol=1e-9)


def test_a_noisy_sum_moves_by_two_clipped_records_at_most_and_is_told_apart_so(x64):
    """D_2 is the squared shift; the likelihood is the Gaussian's of the release."""
    defense = noisy_sum(TASKS["binary_linear"], clip_norm=2.0, noise_stddev=0.5)
    for adjacency, moved in (("replace_one", 2), ("add_remove", 1)):
        got = defense.rdp(10, np.array([2.0]), adjacency)
        np.testing.assert_allclose(got, (moved * 1.1153 * 2.0 / 0.5) ** 2)
        assert defense.pld(10, adjacency).mu == pytest.approx(moved * 1.1153 * 4)
    data, key = one_lane("binary_linear"), jax.random.key(3)
    candidates = wide(4, SHAPE, 2, seed=9)
    got = np.asarray(defense.log_likelihood(key, None, data, candidates))
    release = np.asarray(defense.train(key, None, data).params)
    solve = defense.mechanism.solve
    at = [data._replace(target=take(candidates, i)) for i in range(4)] + [data]
    gaps = [((release - np.asarray(solve(None, z))) ** 2).sum() for z in at]
    want = -np.array(gaps) / (2 * 0.5**2)
    np.testing.assert_allclose(got - got[4], want - want[4], rtol=1e-9)


def test_a_release_is_read_about_every_record(x64):
    """Without a target about any row, with it about slot N; by sweep as in closed form.

    A game in which every fixed record is the target in turn trains without a target.
    """
    data = one_lane("binary_linear")
    closed = noisy_sum(TASKS["binary_linear"], clip_norm=2.0, noise_stddev=0.1)
    mechanism = closed.mechanism
    assert isinstance(mechanism, Minimiser)
    limits = {"norm_bound": None, "sensitivity": None}
    swept = output_perturbation(mechanism.solve, mechanism.noise, **limits)
    for given, rows in ((data, [9]), (data._replace(target=None), [0, 3])):
        asked = jax.random.key(0), None, given, np.array(rows)
        got, want = (defense.fisher(*asked) for defense in (swept, closed))
        assert len(got) == len(rows)
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_release_without_a_norm_bound_has_no_add_remove_reading():
    bounds = {"norm_bound": None, "sensitivity": lambda n: 2.0 / n}
    defense = output_perturbation(lambda side, data: data, gaussian(0.1), **bounds)
    np.testing.assert_allclose(defense.rdp(4, np.array([2.0]), "replace_one"), 5**2)
    assert defense.rdp(4, np.array([2.0]), "add_remove") is None
    assert defense.pld(4, "add_remove") is None


def test_sensitivity_is_twice_the_rounded_up_overshoot():
    defense = dpsgd(TASKS["linear"], clip_norm=10.0, noise_multiplier=0.05, steps=5)
    for adjacency, shift in (("replace_one", 2 * 1.1153), ("add_remove", 1.1153)):
        got = defense.rdp(1001, np.array([2.0]), adjacency)
        np.testing.assert_allclose(got, 5 * (shift / 0.05) ** 2)
