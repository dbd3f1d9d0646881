"""Settings of what is estimated: probes, records, steps and precision of dFIL."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.accounting.traces import Probing
from audit.config import compose, hydra_app
from audit.config.schema import FisherReading
from audit.engine import shadow
from audit.errors import UserError
from audit.games import guarantees, rows
from audit.games.base import repeated
from audit.games.leave_one_out import leave_one_out
from audit.mechanisms.noisy_sgd import _drawn
from audit.mechanisms.query import Side
from audit.models import networks
from audit.rng import stream
from audit.types import TrainingSet
from tests.conftest import records
from tests.games import worlds

steps_of_runs = sys.modules[_drawn.__module__]  # its name is that of a function, too
SHAPE, KEY, N = (4, 4, 1), worlds.KEY, 40
EXACT = networks.binary_linear(SHAPE, 2)
PROBED = EXACT._replace(linear=None)
SETTINGS = {"clip_norm": 1, "noise_multiplier": 0.1, "learning_rate": 1e-6, "steps": 6}


def accounted(task=PROBED, settings=SETTINGS, trajectories=1, **words):
    """Return what `leave_one_out` says of DP-SGD."""
    defense = worlds.learner(task, "dpsgd", **settings)
    fixed, pool = records(N, SHAPE, 2, seed=1), records(20, SHAPE, 2, seed=2)
    table = worlds.table(worlds.problem(task, fixed, pool))
    table = table._replace(trajectories=trajectories, fisher=FisherReading(**words))
    return guarantees.in_turn(KEY, defense, table)


@pytest.fixture(scope="module")
def closed():
    return accounted(EXACT).dfil


def test_an_exact_sweep_is_the_closed_form_and_some_records_are_some(closed):
    """And one step in three stands for three that are alike."""
    got = accounted(estimator="exact", records=15, every=3, precision="single")
    assert got.rows is not None
    np.testing.assert_allclose(got.dfil, closed[got.rows], rtol=1e-3)
    card = rows._dfil(got)
    assert (card["records"], card["every"], card["probe_se"]) == (15, 3, 0)


@pytest.mark.parametrize(  # by probes, and its whole matrix
    "task", [PROBED, pytest.param(EXACT, marks=pytest.mark.slow)]
)
def test_of_nobody_there_is_no_dfil_and_no_bound_by_it(task):
    got = accounted(task, records=0)
    assert (got.dfil, got.rows) == (None, None)
    assert got.epsilon is not None
    fixed, pool = records(N, SHAPE, 2, seed=1), records(20, SHAPE, 2, seed=2)
    targets = jax.tree.map(lambda a: a[:3], pool)
    table = worlds.table(worlds.problem(task, fixed, pool, targets=targets))
    defense = worlds.learner(task, "dpsgd", **SETTINGS)
    names = []
    for wanted in (FisherReading(), FisherReading(records=0)):
        limits = guarantees.joined(KEY, defense, table._replace(fisher=wanted))
        names.append({bound.name for bound in limits.bounds})
        assert (limits.dfil is None) == (wanted.records == 0)
    matrix = {"cramer_rao_matrix"} if task is EXACT else set()
    assert names[0] - names[1] == {"cramer_rao", "van_trees"} | matrix
    assert names[1]
    assert limits.small_pool.startswith("no finite prior: ")  # 20 images, two classes


def test_only_records_that_are_accounted_for_are_read(monkeypatch):
    """Of batches of 30 some 11 are among the 15; four at a time are read."""
    monkeypatch.setattr(steps_of_runs, "PART", 4)
    monkeypatch.setattr(steps_of_runs, "FEW", 4)
    settings = SETTINGS | {"sampling": "shuffled", "batch_size": 30}
    whole = accounted(settings=settings, estimator="exact").dfil
    got = accounted(settings=settings, estimator="exact", records=15)
    np.testing.assert_allclose(got.dfil, whole[got.rows], rtol=1e-6)
    assert (got.dfil > 0).all()
    mechanism = worlds.learner(PROBED, "dpsgd", **settings).defense.mechanism
    z = jax.tree.map(jnp.asarray, records(30, SHAPE, 2, seed=1))
    params = PROBED.init(KEY)
    read = steps_of_runs.traced(
        *mechanism[:3:2], KEY, Side(params), params, z, Probing("exact"), first=11
    )
    assert (np.asarray(read.trace) > 0).tolist() == [True] * 12 + [False] * 18


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_eta_is_of_the_sum_of_the_largest_eigenvalues_of_the_steps(steps):
    """Those of the closed form's matrix; no less than the largest of their sum."""
    settings = SETTINGS | {"steps": steps, "learning_rate": 1.0}
    defense = worlds.learner(EXACT, "dpsgd", **settings)
    fixed, pool = records(N, SHAPE, 2, seed=1), records(20, SHAPE, 2, seed=2)
    targets = jax.tree.map(lambda a: a[:3], pool)
    problem = worlds.problem(EXACT, fixed, pool, targets=targets)
    table = worlds.table(problem)._replace(trajectories=1)
    data = TrainingSet(fixed, targets)
    plain = guarantees.joined(KEY, defense, table)
    assert plain.eta is None
    asked = table._replace(fisher=FisherReading(lanczos=8))
    got = guarantees.joined(KEY, defense, asked)
    np.testing.assert_allclose(got.dfil, plain.dfil, rtol=1e-9)
    assert rows._dfil(got)["lanczos"] == 8
    matrix = guarantees.fisher(
        "information_matrix", KEY, defense, data, engine=worlds.ENGINE
    )
    factor, core = matrix.factor, matrix.core  # [targets, T, d, r], [targets, T, r, r]
    each = factor @ core @ factor.transpose(0, 1, 3, 2)
    each = each + (matrix.diagonal / steps)[:, None, :, None] * np.eye(factor.shape[2])
    largest = np.linalg.eigvalsh(each)[..., -1].sum(1)
    of_sum = np.linalg.eigvalsh(each.sum(1))[:, -1]
    np.testing.assert_allclose(got.eta**2, largest, rtol=1e-6)
    assert (got.eta**2 >= of_sum * (1 - 1e-9)).all()


@pytest.mark.slow
def test_auto_meets_its_error(closed):
    got = accounted(estimator="gaussian", probes="auto", error=0.05)
    probed = got.probed
    assert probed["probes"] > guarantees.PILOT
    assert 0.025 < probed["probe_se"] < 0.05
    # the median of 40 normal errors has a standard error of a fifth of it
    spread = np.median(np.abs(got.dfil / closed - 1)) / 0.6745
    assert abs(np.log(spread / probed["probe_se"])) < 4 * 0.2
    assert rows._dfil(got)["relative_se"] > 0


@pytest.mark.parametrize("game", ["in_turn", "joined"])
def test_the_error_of_probes_falls_with_trajectories(game, monkeypatch):
    """Four times as many have half of it; medians of 40 records, 4 s.e. of 5%."""
    monkeypatch.setattr(guarantees, "_finite_prior", lambda *_: ([], ""))  # slow
    fixed, pool = records(N, SHAPE, 2, seed=1), records(20, SHAPE, 2, seed=2)
    targets = None if game == "in_turn" else records(N, SHAPE, 2, seed=3)
    problem = worlds.problem(PROBED, fixed, pool, targets=targets)
    table = worlds.table(problem)._replace(fisher=FisherReading(probes=4))
    defense = worlds.learner(PROBED, "dpsgd", **SETTINGS)
    errors = []
    for trajectories in (2, 8):
        asked = table._replace(trajectories=trajectories)
        limits = getattr(guarantees, game)(KEY, defense, asked)
        errors.append(limits.probed["probe_se"])
    assert errors[1] / errors[0] == pytest.approx(1 / 2, rel=4 * 0.05)


def test_the_matrix_is_the_mean_of_those_of_all_trajectories():
    """Tr I^-1 / d of two runs, whose parameters are apart, by matrices written out."""
    settings = SETTINGS | {"steps": 3, "learning_rate": 5.0, "noise_multiplier": 1.0}
    defense = worlds.learner(EXACT, "dpsgd", **settings)
    fixed, pool = records(N, SHAPE, 2, seed=1), records(20, SHAPE, 2, seed=2)
    targets = jax.tree.map(lambda a: a[:3], pool)
    problem = worlds.problem(EXACT, fixed, pool, targets=targets)
    table = worlds.table(problem)._replace(trajectories=2)
    limits = {b.name: b for b in guarantees.joined(KEY, defense, table).bounds}
    data = TrainingSet(fixed, repeated(targets, 2))
    matrix = guarantees.fisher(
        "information_matrix", KEY, defense, data, engine=worlds.ENGINE
    )
    each = matrix.factor @ matrix.core @ matrix.factor.transpose(0, 1, 3, 2)
    each = each.sum(1) + matrix.diagonal[:, :, None] * np.eye(16)
    np.testing.assert_allclose(each.trace(axis1=1, axis2=2), matrix.trace, rtol=1e-6)
    first, second = each[::2], each[1::2]
    assert (abs(first / second - 1).max((1, 2)) > 1e-2).all()
    inverse = np.linalg.inv((first + second) / 2)
    want = inverse.trace(axis1=1, axis2=2) / 16
    np.testing.assert_allclose(limits["cramer_rao_matrix"].value, want, rtol=1e-5)


def play_released(**words):
    """Return the runs of DP-SGD that are accounted for while they are trained."""
    defense = worlds.learner(PROBED, "dpsgd", **SETTINGS | {"learning_rate": 1.0})
    fixed, pool = records(N, SHAPE, 2, seed=1), records(20, SHAPE, 2, seed=2)
    table = worlds.table(worlds.problem(PROBED, fixed, pool))
    words = {"precision": "single"} | words
    runs = words.pop("runs", 1)
    table = table._replace(runs=runs, trajectories=runs, fisher=FisherReading(**words))
    game = leave_one_out(trajectories="released")
    return game, game.release(KEY, defense, table), table


@pytest.mark.parametrize("runs", [1, 3])
def test_releases_are_those_of_the_runs_accounted_for(runs):
    """They are what `train` returns of these keys, and dFIL is that of the runs."""
    game, played, table = play_released(runs=runs, records=15)
    train = shadow.sweep(
        "train", played.learner, stream(KEY, "fisher"),
        TrainingSet(table.problem.splits.fixed, None), engine=worlds.ENGINE, runs=runs,
    )  # fmt: skip
    for ours, theirs in zip(
        *map(jax.tree.leaves, (played.releases, train)), strict=True
    ):
        assert ours.shape[0] == runs
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    limits = game.account(KEY, played, table)
    fresh = guarantees.in_turn(KEY, played.learner, table)
    np.testing.assert_allclose(limits.dfil, fresh.dfil, rtol=1e-6)
    if runs == 1:
        assert limits.dfil_error == limits.probed["probe_se"] > 0
    else:
        assert limits.dfil_error == pytest.approx(fresh.dfil_error, rel=1e-6)


def test_a_defense_without_dfil_is_trained_as_ever():
    game, _, table = play_released()
    sgd = worlds.learner(PROBED, "sgd", learning_rate=1.0, steps=2)
    runs = game.release(KEY, sgd, table)
    assert runs.evidence is None
    assert game.account(KEY, runs, table).dfil is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs=2"], "runs=2 and accounting_runs=1 must be equal"),
        (["fisher.precision=double"], "set fisher.precision=single"),
        (
            ["fisher.every=10"],
            "fisher.every=10 has an error that one run does not tell",
        ),
    ],
)
def test_releases_that_cannot_be_accounted_for_are_refused(words, says):
    scenario = ["scenario=private_cnn_cifar10", "data=mnist5k", *words]
    with pytest.raises(UserError, match=says):
        compose.play(hydra_app.composed(scenario)[0])


def test_each_stretch_of_steps_has_one_that_stands_for_it():
    """Of 400 runs each step of a stretch of m is drawn by 400 / m, within 5 s.e."""
    keys = jax.random.split(KEY, 400)
    drawn, lengths = jax.vmap(lambda key: _drawn(key, 11, 4))(keys)
    for part, m in zip(np.split(np.asarray(drawn), [4, 8], 1), (4, 4, 3), strict=True):
        assert (part.sum(1) == 1).all()
        error = np.sqrt((m - 1) / 400) / m
        np.testing.assert_allclose(part.mean(0), 1 / m, atol=5 * error)
    assert lengths[0].tolist() == [0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 3]


@pytest.fixture(scope="module")
def unlike():
    """Return settings whose steps' information differs, and dFIL of all steps."""
    settings = {"clip_norm": 4, "noise_multiplier": 0.05, "learning_rate": 4.0}
    settings["steps"] = 20
    return settings, accounted(EXACT, settings, 8).dfil


@pytest.mark.parametrize("trajectories", [1, 8])
def test_the_error_has_that_of_the_steps_that_are_drawn(unlike, trajectories):
    """One step of 20 stands for all: within 5 of the stated standard errors."""
    settings, truth = unlike
    got = accounted(EXACT, settings, trajectories, every=20)
    ratio = np.median(got.dfil / truth)
    assert abs(ratio - 1) < 5 * got.dfil_error
    # some draws are near the mean: the stated error has to be a real one, too
    assert 0.2 < got.dfil_error * np.sqrt(trajectories) < 5


def test_a_step_that_stands_for_nothing_is_not_read():
    """Of runs at once, too: what some of them drew is read where all stretches end."""
    defense = worlds.learner(PROBED, "dpsgd", **SETTINGS)
    data = TrainingSet(jax.tree.map(jnp.asarray, records(N, SHAPE, 2, seed=1)), None)

    def read(every):
        """Return the program that reads two runs, in words."""
        given = defense.side, data, np.arange(N), Probing(every=every)
        both = jax.vmap(lambda key: defense.defense.fisher(key, *given))
        return str(jax.make_jaxpr(both)(jax.random.split(KEY, 2)))

    assert "cond[" in read(3)
    assert "cond[" not in read(1)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (networks.lenet, "relu after conv_0: its slope jumps"),
        (networks.mlp, "relu after hidden_0: its slope jumps"),
    ],
)
def test_a_reading_that_does_not_exist_is_refused_by_its_layer(model, words):
    task = model((16, 16, 1), 3, activation="relu")
    for unwanted in (FisherReading(), FisherReading(records=0)):
        guarantees.check_smooth(task, unwanted)
    with pytest.raises(UserError, match=words):
        guarantees.check_smooth(task, FisherReading(probes=4))


@pytest.mark.parametrize("classes", [2, 0])
def test_a_loss_that_has_the_kink_is_refused_as_a_loss(classes):
    task = networks.binary_linear(SHAPE, 2)._replace(classes=classes)
    bent = task._replace(
        smooth=False, loss=lambda params, z: jnp.abs(task.logits(params, z.x) - z.y)[0]
    )
    said = r"abs after head: its slope jumps; take a smooth loss, or leave the settings"
    with pytest.raises(UserError, match=said):
        guarantees.check_smooth(bent, FisherReading(probes=4))


def test_a_task_that_no_operation_shows_to_jump_is_refused_by_its_authors_word():
    own = networks.binary_linear(SHAPE, 2)._replace(smooth=False)
    with pytest.raises(UserError, match="reading: its `smooth` is False; leave"):
        guarantees.check_smooth(own, FisherReading(probes=4))


def test_auto_needs_an_error_that_falls_with_probes():
    with pytest.raises(UserError, match=r"fisher.probes=auto: the error of hutch\+\+"):
        accounted(estimator="hutch++", probes="auto")
