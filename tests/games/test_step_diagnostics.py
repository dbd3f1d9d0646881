"""What happens inside every step: parts, leakage so far, numbers and figures."""

import jax
import numpy as np
import pytest

from audit.clipping import clip_tree, soft_clip
from audit.engine import shadow
from audit.errors import UserError
from audit.games import guarantees, step_diagnostics
from audit.mechanisms.noise import gaussian
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import gradient, masked
from audit.mechanisms.sampler import full_batch
from audit.models import networks, optimizers
from audit.report import terminal
from audit.report.figures import common
from audit.report.figures import steps as step_figures
from audit.rng import stream
from audit.types import Examples, Lanes, TrainingSet
from tests import pages
from tests.conftest import double, flat, public, records
from tests.games import worlds

SHAPE, N, STEPS = (4, 4, 1), 12, 2
TASK = networks.binary_linear(SHAPE, 2)
KEY = jax.random.key(0)
COMMON = {
    "steps": STEPS, "optimizer": "adam", "clip_norm": 2.0, "noise_multiplier": 0.3,
}  # fmt: skip
FIT = {**COMMON, "epochs": 5, "epochs_decay": 0, "architecture": "mlp"}


def bent(task):
    """A defense whose perturbation depends on the record."""

    def perturb(params, side, z, base):
        bend = lambda a: 0.5 * a + 0.1 * jax.numpy.cos(7 * z.x.sum())
        return jax.tree.map(bend, base)

    clip, stddev = COMMON["clip_norm"], COMMON["noise_multiplier"]
    return noisy_sgd(
        task,
        gradient(task, soft_clip(clip), perturb),
        full_batch(),
        gaussian(stddev * clip),
        optimizer=optimizers.named("adam", 0.1, 0.0),
        steps=STEPS,
    )


FIXED, TEST, KNOWN = (
    records(n, SHAPE, 2, seed=i) for i, n in ((1, N), (2, 20), (3, 9))
)
PROBLEM = worlds.problem(TASK, FIXED, TEST, public_records=KNOWN)


DEFENSES = {
    "sgd": ("sgd", {"steps": STEPS}),
    "dpsgd": ("dpsgd", COMMON),
    "fim": ("fim", {**FIT, "perturbation": "constant_direct"}),
    "bent": (bent, {}),
}


@pytest.fixture(scope="module")
def dissected():
    """Every defense, its run, and what is guaranteed of it."""
    table, start, each = worlds.table(PROBLEM), public(TASK, KNOWN), {}
    for label, (defense, given) in DEFENSES.items():
        learner = worlds.learner(TASK, defense, start=start, **given)
        runs = step_diagnostics.release(KEY, learner, table)
        each[label] = learner, runs, step_diagnostics.account(KEY, runs, table)
    return each


def plain_loop(learner):
    """Parts of every record at every step, one record at a time."""
    key = jax.random.fold_in(stream(KEY, "target runs"), 0)
    mechanism, side = learner.defense.mechanism, double(learner.side)
    train = TrainingSet(double(FIXED), None)
    state = mechanism.init(key, side)
    clip = soft_clip(COMMON["clip_norm"])
    step, slope = jax.jit(mechanism.step), jax.jit(jax.grad(TASK.loss))
    out = []
    for _ in range(STEPS):
        state, view = step(key, state, train)

        def at(x, y, view=view):
            return masked(view.side.mask, slope(view.params, Examples(x, y)))

        base, added, final = [], [], []
        for x, y in zip(*train.fixed, strict=True):
            g, offset = at(x, y), getattr(view.side, "offset", None)
            plus = jax.tree.map(lambda a: 0 * a, g)
            if offset is not None:
                plus = masked(view.side.mask, offset)
            total = jax.tree.map(lambda a, b: a + b, g, plus)
            noisy = learner.label != "sgd"
            base.append(flat(g))
            added.append(flat(plus))
            final.append(flat(clip_tree(clip, total) if noisy else total))
        towards = [flat(at(x, y)) for x, y in zip(*double(KNOWN), strict=True)]
        parts = (np.array(part) for part in (base, added, final))
        out.append((*parts, np.mean(towards, 0)))
    return state.params, out


@pytest.mark.parametrize("label", ["sgd", "dpsgd", "fim"])
def test_parts_equal_a_plain_loop(x64, dissected, label):
    learner, runs, limits = dissected[label]
    params, steps = plain_loop(learner)
    ends = jax.tree.map(lambda a: a[0], runs.releases.params)
    np.testing.assert_allclose(flat(ends), flat(params), rtol=1e-4)
    for t, (base, added, final, mean) in enumerate(steps):
        arrays = {k: v[t] for k, v in limits.arrays.items()}
        norm = lambda a: np.linalg.norm(a, axis=-1)
        np.testing.assert_allclose(arrays["base_norm"], norm(base), rtol=1e-4)
        np.testing.assert_allclose(arrays["final_norm"], norm(final), rtol=1e-4)
        if label != "fim":
            assert "perturbation_norm" not in arrays
            assert limits.fields["steps"][t]["perturbation_norm"] is None
            assert limits.fields["steps"][t]["cos_public"] is None
            continue
        np.testing.assert_allclose(arrays["perturbation_norm"], norm(added), rtol=1e-4)
        for name, other in (
            ("cos_base", base),
            ("cos_private", base.mean(0)),
            ("cos_public", mean),
        ):
            want = (added * other).sum(1) / norm(added) / norm(other)
            np.testing.assert_allclose(arrays[name], want, atol=1e-4)
            assert limits.fields["steps"][t][name] == pytest.approx(
                want.mean(), abs=1e-4
            )


def test_the_contribution_is_the_query_s(x64, dissected):
    """A perturbation of its own a record: clip(base + added) is what training sums."""
    learner = dissected["bent"][0]
    mechanism = learner.defense.mechanism
    dissect = step_diagnostics.dissector(learner.defense)
    train = TrainingSet(double(FIXED), None)
    first = mechanism.init(KEY, double(learner.side))
    clip = soft_clip(COMMON["clip_norm"])
    state, parts = jax.jit(dissect)(KEY, first, train, double(KNOWN))
    each = jax.vmap(lambda v: clip_tree(clip, v))(parts.base + parts.added)
    np.testing.assert_allclose(parts.final, each, rtol=1e-6, atol=1e-9)
    again, view = jax.jit(mechanism.step)(KEY, first, train)
    np.testing.assert_allclose(flat(again.params), flat(state.params), rtol=1e-6)
    assert np.abs(flat(state.params) - flat(first.params)).max() > 0
    noise = flat(view.update) - parts.final.sum(0)  # what is left is the noise alone
    expected = COMMON["noise_multiplier"] * COMMON["clip_norm"]
    assert noise.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * len(noise)))


def test_the_mean_gradient_of_a_batch_is_of_the_records_in_it(x64):
    given = {**COMMON, "sampling": "uniform", "batch_size": 4}
    learner = worlds.learner(TASK, "public_mean", start=public(TASK, KNOWN), **given)
    mechanism = learner.defense.mechanism
    dissect = step_diagnostics.dissector(learner.defense)
    first = mechanism.init(KEY, double(learner.side))
    train = TrainingSet(double(FIXED), None)
    parts = jax.jit(dissect)(KEY, first, train, double(KNOWN))[1]
    batch = mechanism.sampler.draw(KEY, 0, N).rows
    np.testing.assert_allclose(parts.private, parts.base[batch].mean(0), rtol=1e-9)


@pytest.mark.parametrize("label", ["dpsgd", "fim"])
def test_leakage_so_far_ends_at_the_accounting_s(dissected, label):
    """Steps add up to `Defense.fisher` of the same key, and to the card's dFIL."""
    learner, _, limits = dissected[label]
    key, rows, z = stream(KEY, "target runs"), np.arange(N), TrainingSet(FIXED, None)
    how = {"engine": shadow.Engine(Lanes(1)), "precise": True}
    trace = shadow.sweep("fisher", learner, key, z, rows, **how)[0]
    np.testing.assert_allclose(limits.dfil, trace / 16, rtol=1e-4)
    steps = limits.fields["steps"]
    for name in ("max", "mean", "median"):
        value = getattr(np, name)(np.sqrt(limits.dfil))
        assert steps[-1][f"sqrt_{name}"] == pytest.approx(value, rel=1e-12)
    means = [step["sqrt_mean"] for step in steps]
    assert len(means) == STEPS
    assert means == sorted(means)


def test_only_a_constant_has_no_spread(dissected):
    constant, bent = (dissected[label][2].arrays for label in ("fim", "bent"))
    np.testing.assert_array_equal(np.ptp(constant["perturbation_norm"], axis=1), 0)
    np.testing.assert_array_equal(constant["pca_perturbation"], 0)
    assert np.isnan(constant["pca_perturbation_share"]).all()
    before, base = (np.abs(constant[f"pca_{k}"]) for k in ("before_noise", "base"))
    np.testing.assert_allclose(base, before, atol=1e-4)
    assert (np.ptp(bent["perturbation_norm"], axis=1) > 0).all()
    assert (np.ptp(bent["pca_perturbation"], axis=1) > 0).all()


def test_components_meet_the_perturbation_at_their_angle():
    """A perturbation along the second axis of variance has cosine one with it alone."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(500, 4)) * [9.0, 3.0, 1.0, 0.0]
    parts = step_diagnostics._components(base, np.array([0.0, -2.0, 0.0, 0.0]))
    np.testing.assert_allclose(parts["pc_cosine"], [0, 1, 0], atol=0.05)
    np.testing.assert_allclose(parts["pc_share"], np.array([81, 9, 1]) / 91, atol=0.02)


def test_a_gradient_of_zero_has_no_cosine_and_spoils_no_mean():
    along, zero = np.array([[1.0, 0.0], [2.0, 0.0]]), np.zeros((1, 2))
    base, added = np.concatenate([along, zero]), np.ones((3, 2))
    public, private = np.zeros(2), np.array([0.0, 1.0])
    parts = (base, added, base + added, public, private, None)
    arrays = step_diagnostics.arrays_of(step_diagnostics.Dissection(None, *parts))
    numbers = step_diagnostics._numbers(arrays, None)
    assert numbers["cos_base"] == pytest.approx(np.sqrt(0.5))
    assert numbers["cos_public"] is None  # with a gradient of zero nothing has one
    assert numbers["base_norm"] == pytest.approx(1.0)


def test_no_sgd_bound_is_unknown_not_zero(dissected):
    limits = dissected["sgd"][2]
    assert limits.dfil is None
    assert all(step["sqrt_max"] is None for step in limits.fields["steps"])
    assert all(0 <= step["accuracy"] <= 1 for step in limits.fields["steps"])


def test_more_runs_are_taken_apart_and_fewer_refused(dissected):
    table = worlds.table(PROBLEM, runs=3)
    runs = step_diagnostics.release(KEY, dissected["dpsgd"][0], table)
    limits = step_diagnostics.account(KEY, runs, table._replace(trajectories=2))
    each = np.stack([run.traces for run in runs.evidence], 1)
    error = guarantees.relative_error(each, 2)
    assert limits.dfil_error == error > 0
    traces = runs.evidence[0].traces + runs.evidence[1].traces
    np.testing.assert_allclose(limits.dfil, traces / 32, rtol=1e-9)
    with pytest.raises(UserError, match="accounting_runs=4"):
        step_diagnostics.account(KEY, runs, table._replace(trajectories=4))


def test_too_many_gradients_are_refused(dissected):
    small = worlds.table(PROBLEM)._replace(engine=shadow.Engine(Lanes(8, 1e-6)))
    with pytest.raises(UserError, match=r"lanes\.memory_gib"):
        step_diagnostics.release(KEY, dissected["dpsgd"][0], small)


# Figures ------------------------------------------------------------------------------


def test_figures_of_a_tiny_run(dissected, tmp_path):
    arrays, defenses = {"label": FIXED.y}, {"whole": {}}
    for label, (_, _, limits) in dissected.items():
        arrays |= {f"{label}/anatomy/{k}": v for k, v in limits.arrays.items()}
        defenses[label] = dict(limits.fields)
    scenario = {"game": "anatomy", "features": {}}
    card = pages.typed(scenario=scenario, defenses=defenses, arrays=arrays)
    drawn = {name: draw for name, (_, draw) in step_figures.FIGURES.items()}
    drawn |= step_figures.of_each(card)
    pca = {f"step_pca_{label}.png" for label in dissected}
    both = {
        f"step_{w}_{d}.png"
        for w in ("histogram", "components")
        for d in ("fim", "bent")
    }
    assert set(drawn) == {*step_figures.FIGURES, *pca, *both}
    for name, draw in drawn.items():
        common.save(draw(card), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5_000
    assert all(applies(card) for applies, _ in step_figures.FIGURES.values())
    other = card._replace(scenario=pages.typed().scenario)
    assert not any(applies(other) for applies, _ in step_figures.FIGURES.values())
    assert step_figures.of_each(other) == {}
    assert "whole: no anatomy" in terminal.notes(card)


def test_many_steps_get_some_panels():
    shown = step_figures._shown(100)
    assert len(shown) == step_figures.MOST
    assert (shown[0], shown[-1]) == (0, 99)
    np.testing.assert_array_equal(step_figures._shown(5), range(5))
