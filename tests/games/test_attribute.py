"""Attribute games: the referee's candidates and refits, the attacks, their order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.fredrikson import fredrikson
from attacks.ideal_imputation import ideal_imputation
from attacks.prior_mode import prior_mode
from attacks.whitebox_inverter import whitebox_inverter
from audit.config import registry
from audit.config.schema import Features
from audit.data import DataError, Dataset
from audit.engine import shadow
from audit.games import attribute, base
from audit.games.base import Problem, Table
from audit.games.guarantees import Guarantees
from audit.mechanisms.glm import information_loss, losses
from audit.models import networks
from audit.types import Attack, Examples, Lanes, Splits, ThreatModel
from tests.conftest import public

N, D, RUNS = 60, 4, 5
KEY = jax.random.key(0)
COLUMNS = ("a", "b", "sex", "c")


def made(n, seed, classes):
    """Column 2 is binary and matters to the label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D))
    x[:, 2] = rng.uniform(size=n) < 0.6
    y = x[:, 0] + 2 * x[:, 2] - 1 + 0.3 * rng.normal(size=n)
    y = (y > 0).astype(np.int32) if classes else y.astype(np.float32)
    return Examples(x.astype(np.float32), y)


def problem(classes=0):
    fixed, test = made(N, 1, classes), made(40, 2, classes)
    nobody = jax.tree.map(lambda a: a[:0], fixed)
    splits = Splits(nobody, fixed, nobody, test, test, np.arange(40))
    dataset = Dataset("made", *fixed, None, None, "embedded", "", COLUMNS)
    asked = attribute.find(dataset, splits, "sex", Features())
    model = networks.binary_linear if classes else networks.regression
    return Problem(model((D,), classes), splits, dataset, fixed.x, asked)


def play(attack, name="output_perturbed_glm", classes=0, account=False, **given):
    at = problem(classes)
    settings = registry.check("defense", name, given, name)
    factory = registry.find("defense", name)
    start = public(at.task)
    of = shadow.learner(factory, at.task, settings, key=KEY, public=start)
    table = Table(at, shadow.Engine(Lanes(8)), RUNS, "none")
    runs = attribute.GAME.release(KEY, of, table)
    held = Guarantees(None, None, (), None)
    if account:
        held = attribute.GAME.account(KEY, of, table, 1, 1e-9)
    one = attack if isinstance(attack, Attack) else attack(at.task)
    return (*attribute.play(KEY, one, of, runs.releases, held, table), at, of, held)


def test_columns_and_values_are_found():
    at = problem()
    np.testing.assert_array_equal(at.attribute.columns, [2])
    np.testing.assert_array_equal(at.attribute.values, [[0], [1]])
    one_hot = at.dataset._replace(columns=("r=x", "r=y", "sex", "rest"))
    splits = at.splits._replace(fixed=at.splits.fixed._replace(x=np.eye(4)))
    asked = attribute.find(one_hot, splits, "r", Features())
    np.testing.assert_array_equal(asked.columns, [0, 1])
    assert len(asked.values) == 3  # x, y, and neither


@pytest.mark.parametrize(
    ("name", "features", "said"),
    [
        ("sexx", Features(), "did you mean 'sex'"),
        ("sex", Features(pca=2), "mixes the columns"),
        ("a", Features(), "takes 60 values here"),
    ],
)
def test_bad_attributes_are_refused(name, features, said):
    at = problem()
    with pytest.raises(DataError, match=said):
        attribute.find(at.dataset, at.splits, name, features)


def test_candidates_differ_in_the_attribute_alone():
    at = problem()
    many = np.asarray(attribute.candidates(at.attribute, at.splits.fixed.x[3]))
    np.testing.assert_array_equal(many[:, 2], [0, 1])
    np.testing.assert_array_equal(np.delete(many, 2, 1).std(0), 0)


def test_refits_are_exact_fits_with_the_candidate_in_place():
    _, _, at, of, _ = play(prior_mode, loss="linear", noise_stddev=0.1)
    x, y = np.asarray(at.splits.fixed.x, float), np.asarray(at.splits.fixed.y, float)
    with jax.enable_x64(True):
        refits = attribute._refits(of, Examples(x, y), at.attribute)
    for i in (0, 17, N - 1):
        for v in (0, 1):
            other = x.copy()
            other[i, 2] = v
            exact = np.linalg.solve(other.T @ other + N * 1e-2 * np.eye(D), other.T @ y)
            np.testing.assert_allclose(refits[i, v], exact, rtol=1e-9)


def test_an_attack_is_shown_what_it_declares_and_nothing_else():
    shown = []

    def guess(state, key, seen):
        shown.append({f for f, v in seen._asdict().items() if v is not None})
        return jnp.zeros(2)

    for knows, fields in (
        ({"record"}, {"candidates"}),
        ({"label", "refits"}, {"label", "refits"}),
    ):
        model = ThreatModel("attribute", knows=frozenset(knows))
        play(Attack(model, lambda key, k: (jnp.zeros(()), {}), guess), loss="linear")
        assert shown[-1] == fields


@pytest.mark.parametrize(("loss", "classes"), [("linear", 0), ("logistic", 2)])
def test_without_noise_the_inverter_is_always_right(loss, classes):
    result, arrays, *_ = play(whitebox_inverter, "glm", classes, loss=loss)
    assert result["success"] == 1
    assert arrays["wrong"].max() == 0


def test_reweighted_releases_are_inverted_with_their_weights():
    given = {"loss": "linear", "noise_stddev": 1e-9, "iterations": 3}
    assert play(whitebox_inverter, "reweighted_glm", **given)[0]["success"] == 1


def test_noise_takes_the_inverter_to_chance():
    success = [
        play(whitebox_inverter, loss="linear", noise_stddev=s)[0]["success"]
        for s in (3e-2, 1e3)
    ]
    assert 0.99 > success[0] > success[1] + 0.1
    # 60 records x 5 runs of a fair coin: sd .029
    assert abs(success[1] - 0.5) < 0.1


def test_a_prior_decides_where_the_release_says_nothing():
    attack = lambda task: whitebox_inverter(task, prior_weight=1e12)  # noqa: E731
    result, arrays, at, *_ = play(attack, loss="linear", noise_stddev=1.0)
    floor = play(prior_mode, loss="linear")
    np.testing.assert_array_equal(arrays["wrong"], floor[1]["wrong"])
    x = at.splits
    commonest = x.pool.x[:, 2].mean() > 0.5
    assert result["success"] == (x.fixed.x[:, 2] == commonest).mean()


def test_fredrikson_uses_the_label_and_the_model():
    floor = play(prior_mode, loss="linear")[0]["success"]
    for loss, classes in (("linear", 0), ("logistic", 2)):
        result, *_ = play(fredrikson, "glm", classes, loss=loss, intercept=True)
        assert result["success"] > floor + 0.1


def test_fredriksons_scores_by_hand():
    at = problem()
    x, y = np.asarray(at.splits.pool.x, float), np.asarray(at.splits.pool.y, float)
    result, arrays, _, of, _ = play(fredrikson, "glm", loss="linear")
    with jax.enable_x64(True):
        w = np.asarray(of.defense.objective.solve(None, _all(at)))
    variance = ((x @ w - y) ** 2).mean()
    prior = np.log([(x[:, 2] == v).sum() for v in (0, 1)])
    fixed = at.splits.fixed
    for i in range(N):
        score = []
        for v in (0, 1):
            own = np.array(fixed.x[i], float)
            own[2] = v
            score.append(prior[v] - (own @ w - fixed.y[i]) ** 2 / (2 * variance))
        assert arrays["wrong"][i] == (np.argmax(score) != fixed.x[i, 2])
    del result


def _all(at):
    from audit.types import TrainingSet

    return TrainingSet(at.splits.fixed, None)


def test_the_ideal_is_an_oracle_and_no_other_attack_may_see_the_answers():
    result, *_ = play(ideal_imputation, loss="linear")
    assert result["success"] > play(prior_mode, loss="linear")[0]["success"]
    model = ideal_imputation(problem().task).threat_model
    assert base.is_oracle(model)
    cheat = ThreatModel("attribute", knows=frozenset({"fixed"}))
    attack = Attack(cheat, lambda key, k: (jnp.zeros(()), {}), lambda s, k, o: s)
    with pytest.raises(ValueError, match="only an oracle"):
        play(attack, loss="linear")


def test_eta_is_about_the_attribute_alone():
    result, _, at, of, held = play(
        whitebox_inverter, account=True, loss="linear", noise_stddev=0.5
    )
    assert held.bounds == ()
    with jax.enable_x64(True):
        x, y = losses.design(at.splits.fixed.x.astype(float), False), at.splits.fixed.y
        loss, ones = losses.LOSSES["linear"], np.ones(N)
        w = losses.minimise(loss, x, y.astype(float), ones, N * 1e-2)
        inverse = jnp.linalg.inv(losses.hessian(loss, x, y, ones, N * 1e-2, w))
        at_all = information_loss.fitted(loss, w, inverse, x, y.astype(float), ones, D)
        wanted = np.sqrt(np.asarray(information_loss.attribute(at_all, [2]))) / 0.5
    np.testing.assert_allclose(held.eta, wanted, rtol=1e-9)
    order = np.argsort(held.eta)
    assert result["success_high_eta"] is not None
    assert len(order) == N
    del of
