"""Attribute games: the referee's candidates and refits, the attacks, their order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.config import registry
from audit.config.schema import Features
from audit.data import DataError
from audit.games import attribute, base, controls, guarantees
from audit.mechanisms.glm import information_loss, losses
from audit.models import networks
from audit.types import Bound, Examples, ThreatModel, TrainingSet
from tests.games import worlds

N, D, RUNS = 60, 4, 5
COLUMNS = ("a", "b", "sex", "c")
GAME = attribute.attribute(attribute="sex")


def made(n, seed, classes):
    """Return records whose column 2 is binary and matters to the label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D))
    x[:, 2] = rng.uniform(size=n) < 0.6
    y = x[:, 0] + 2 * x[:, 2] - 1 + 0.3 * rng.normal(size=n)
    y = (y > 0).astype(np.int32) if classes else y.astype(np.float32)
    return Examples(x.astype(np.float32), y)


@functools.cache
def problem(classes=0):
    task = (networks.binary_linear if classes else networks.regression)((D,), classes)
    fixed, pool = made(N, 1, classes), made(40, 2, classes)
    return worlds.problem(task, fixed, pool, columns=COLUMNS)


PROBLEM = problem()
FIXED, POOL = PROBLEM.splits.fixed, PROBLEM.splits.pool
COLUMN = attribute.find(PROBLEM, "sex")


def defense(name="output_perturbed_glm", classes=0, **given):
    return worlds.learner(problem(classes).task, name, **{"loss": "linear", **given})


def play(attack, learner=None, classes=0, delta=None, **given):
    """Let an attack play, by name or as it is."""
    learner = defense(classes=classes) if learner is None else learner
    if isinstance(attack, str):
        attack = registry.find("attack", attack)(problem(classes).task, **given)
    table = worlds.table(problem(classes), RUNS)
    return worlds.play(GAME, attack, learner, table, delta)


@pytest.fixture(scope="module")
def floor():
    return play("prior_mode")


def test_columns_and_values_are_found():
    np.testing.assert_array_equal(COLUMN.columns, [2])
    np.testing.assert_array_equal(COLUMN.values, [[0], [1]])
    many = np.asarray(attribute.candidates(COLUMN, FIXED.x[3]))
    np.testing.assert_array_equal(many[:, 2], [0, 1])
    np.testing.assert_array_equal(np.delete(many, 2, 1).std(0), 0)
    one_hot = PROBLEM._replace(
        dataset=PROBLEM.dataset._replace(columns=("r=x", "r=y", "sex", "rest")),
        splits=PROBLEM.splits._replace(fixed=FIXED._replace(x=np.eye(4))),
    )
    category = attribute.find(one_hot, "r")
    np.testing.assert_array_equal(category.columns, [0, 1])
    assert len(category.values) == 3  # x, y, and neither


@pytest.mark.parametrize(
    ("name", "features", "message"),
    [
        ("sexx", Features(), "did you mean 'sex'"),
        ("sex", Features(pca=2), "mixes the columns"),
        ("a", Features(), "takes 60 values here"),
    ],
)
def test_bad_attributes_are_refused(name, features, message):
    with pytest.raises(DataError, match=message):
        attribute.find(PROBLEM._replace(features=features), name)


def test_refits_are_exact_fits_with_the_candidate_in_place():
    x, y = np.asarray(FIXED.x, float), np.asarray(FIXED.y, float)
    with jax.enable_x64(True):
        refits = attribute._refits(defense(), Examples(x, y), COLUMN)
    for i in (0, 17, N - 1):
        for v in (0, 1):
            other = x.copy()
            other[i, 2] = v
            exact = np.linalg.solve(other.T @ other + N * 1e-2 * np.eye(D), other.T @ y)
            np.testing.assert_allclose(refits[i, v], exact, rtol=1e-9)


@pytest.mark.parametrize(
    ("knows", "fields"),
    [({"record"}, {"candidates"}), ({"label", "refits"}, {"label", "refits"})],
)
def test_an_attack_is_shown_what_it_declares_and_nothing_else(knows, fields):
    spy = worlds.spy("attribute", jnp.zeros(2), knows=knows)
    play(spy.attack)
    assert spy.shown() == fields


@pytest.mark.parametrize(
    ("name", "classes", "settings"),
    [
        ("glm", 0, {}),
        pytest.param("glm", 2, {"loss": "logistic"}, marks=pytest.mark.slow),
        ("reweighted_glm", 0, {"noise_stddev": 1e-9, "iterations": 3}),
    ],
)
def test_without_noise_the_inverter_is_always_right(name, classes, settings):
    """A reweighted release is inverted with its weights."""
    noiseless = defense(name, classes, **settings)
    played = play("whitebox_inverter", noiseless, classes)
    assert played.numbers["success"] == 1
    assert played.arrays["wrong"].max() == 0


def test_there_is_no_bound_on_squared_errors():
    """Neither of the suite nor of a plug-in; in a game about the record there are."""
    one = Bound("plugged", np.array(1.0), "any attacker", "none")
    world = problem(2)._replace(bounds=(lambda readings: one,))
    learner, table = defense(classes=2, loss="logistic"), worlds.table(world)
    about = functools.partial(guarantees.in_turn, worlds.KEY, learner, table)
    whole, limits = about(), about(COLUMN.columns)
    names = {"cramer_rao", "hammersley_chapman_robbins", "plugged"}
    assert names < {b.name for b in whole.bounds}
    assert limits.bounds == ()
    assert limits.rdp2 == whole.rdp2 > 0
    assert (limits.eta < whole.eta).all()


def test_noise_takes_the_inverter_to_chance():
    both = (play("whitebox_inverter", defense(noise_stddev=s)) for s in (3e-2, 1e3))
    little, much = (played.numbers for played in both)
    assert 0.99 > little["success"] > much["success"] + 0.1
    # 60 records x 5 runs of a fair coin: sd .029; that one noise is all records' makes
    # it .06, of which differences between records show .035
    assert abs(much["success"] - 0.5) < 0.1
    assert 0.05 < much["success_se"] < 0.1


def test_a_prior_decides_where_the_release_says_nothing(floor):
    played = play("whitebox_inverter", defense(noise_stddev=1.0), prior_weight=1e12)
    np.testing.assert_array_equal(played.arrays["wrong"], floor.arrays["wrong"])
    commonest = POOL.x[:, 2].mean() > 0.5
    assert played.numbers["success"] == (FIXED.x[:, 2] == commonest).mean()


@pytest.mark.parametrize(("loss", "classes"), [("linear", 0), ("logistic", 2)])
def test_fredrikson_uses_the_label_and_the_model(loss, classes, floor):
    learner = defense("glm", classes, loss=loss, intercept=True)
    success = play("fredrikson", learner, classes).numbers["success"]
    assert success > floor.numbers["success"] + 0.1


def test_fredriksons_scores_by_hand():
    x, y = np.asarray(POOL.x, float), np.asarray(POOL.y, float)
    learner = defense("glm")
    wrong = play("fredrikson", learner).arrays["wrong"]
    with jax.enable_x64(True):
        records = TrainingSet(FIXED, None)
        w = np.asarray(learner.defense.mechanism.solve(None, records))
    variance = ((x @ w - y) ** 2).mean()
    prior = np.log([(x[:, 2] == v).sum() for v in (0, 1)])
    candidates = np.stack([np.float64(FIXED.x)] * 2)
    candidates[:, :, 2] = [[0], [1]]
    gaps = candidates @ w - FIXED.y
    guesses = (prior[:, None] - gaps**2 / (2 * variance)).argmax(0)
    np.testing.assert_array_equal(wrong, guesses != FIXED.x[:, 2])


def test_fredriksons_scores_of_classes_by_hand():
    """Of the labels that a prediction stands for, which of them it goes with."""
    pool, fixed = problem(2).splits.pool, problem(2).splits.fixed
    learner = defense("glm", 2, loss="logistic")
    wrong = play("fredrikson", learner, 2).arrays["wrong"]
    with jax.enable_x64(True):
        w = np.asarray(learner.defense.mechanism.solve(None, TrainingSet(fixed, None)))
    counts = np.full((2, 2), 0.5)  # [predicted, label]
    np.add.at(counts, ((pool.x @ w > 0).astype(int), pool.y), 1)
    prior = np.log([(pool.x[:, 2] == v).sum() for v in (0, 1)])
    candidates = np.stack([np.float64(fixed.x)] * 2)
    candidates[:, :, 2] = [[0], [1]]
    predicted = (candidates @ w > 0).astype(int)
    shares = counts / counts.sum(1, keepdims=True)
    scores = prior[:, None] + np.log(shares[predicted, fixed.y])
    np.testing.assert_array_equal(wrong, scores.argmax(0) != fixed.x[:, 2])


def test_the_ideal_is_an_oracle_and_no_other_attack_may_see_the_answers(floor):
    ideal = registry.find("attack", "ideal_imputation")(PROBLEM.task)
    assert play(ideal).numbers["success"] > floor.numbers["success"]
    assert base.is_oracle(ideal.threat_model)
    cheat = ThreatModel("attribute", knows=frozenset({"fixed"}))
    with pytest.raises(ValueError, match="only an oracle"):
        play(ideal._replace(threat_model=cheat))


def test_eta_is_about_the_attribute_alone():
    played = play("whitebox_inverter", defense(noise_stddev=0.5), delta=1e-9)
    assert played.limits.bounds == ()
    with jax.enable_x64(True):
        x, y = losses.design(FIXED.x.astype(float), False), FIXED.y.astype(float)
        loss, ones = losses.LOSSES["linear"], np.ones(N)
        w = losses.minimise(loss, x, y, ones, N * 1e-2)
        curved = losses.hessian(loss, x, y, ones, N * 1e-2, w)
        fit = information_loss.fitted(loss, w, curved, x, y, ones, D)
        exact = np.sqrt(np.asarray(information_loss.attribute(fit, [2]))) / 0.5
    np.testing.assert_allclose(played.limits.eta, exact, rtol=1e-9)
    numbers, right = played.numbers, 1 - played.arrays["wrong"]
    most, least = (right[np.argsort(sign * exact)[:6]].mean() for sign in (-1, 1))
    assert numbers["success_high_eta"] == pytest.approx(most) != least
    assert numbers["success_low_eta"] == pytest.approx(least)


def test_success_stands_beside_the_floor_and_the_null_control(floor):
    """The floor's errors are shares of wrong guesses; the control has another's."""
    table = worlds.table(PROBLEM, RUNS)._replace(floor=floor.result.error)
    attack = registry.find("attack", "whitebox_inverter")(PROBLEM.task)
    played = worlds.play(GAME, attack, defense(noise_stddev=1e-9), table)
    success = floor.numbers["success"]
    assert played.result.headline.floor == pytest.approx(success) != 0.5
    sex, other = FIXED.x[:, 2], FIXED.x[controls.partner(np.zeros(N, int)), 2]
    null = played.numbers["controls"]["null"]["error"]
    assert null == pytest.approx((other != sex).mean()) != 0
