"""A defense's noise, solved for the epsilon it is to have."""

import math

import pytest

from audit import pipeline
from audit.config import hydra_app
from audit.config.compose import NOISE, Entry
from audit.engine import shadow
from audit.errors import UserError
from audit.games import guarantees
from audit.games.guarantees import calibrated
from audit.models.networks import binary_linear
from audit.types import Lanes
from defenses.dpsgd import dpsgd

N, DELTA, TASK = 50, 1e-5, binary_linear((4,), 2)


def entry(target, **settings):
    given = {"clip_norm": 2.0, "steps": 3, "learning_rate": 0.1, **settings}
    return Entry("mine", "dpsgd", {}, {**given, NOISE: 1.0}, target)


def epsilon(solved):
    return guarantees.epsilon(dpsgd(TASK, **solved.settings), N, DELTA)


@pytest.mark.parametrize("target", [0.1, 1.0, 8.0, 1000.0])
@pytest.mark.parametrize("sampling", [{}, {"sampling": "uniform", "batch_size": 10}])
def test_the_noise_gives_the_epsilon_and_not_more(target, sampling):
    values = epsilon(calibrated(entry(target, **sampling), TASK, N, DELTA))
    reached = min(v for v in values["replace_one"].values() if v is not None)
    assert target * (1 - 1e-4) < reached <= target


def test_full_batches_agree_with_the_gaussian_trade_off():
    """mu = sqrt(steps) 2 x 1.1153 / noise; delta(eps) is Balle and Wang's formula."""
    noise = calibrated(entry(2.0), TASK, N, DELTA).settings[NOISE]
    mu = math.sqrt(3) * 2 * 1.1153 / noise

    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    delta = phi(mu / 2 - 2 / mu) - math.exp(2) * phi(-mu / 2 - 2 / mu)
    assert delta == pytest.approx(DELTA, rel=2e-3)


def test_without_a_target_nothing_changes():
    plain = entry(None)
    assert calibrated(plain, TASK, N, DELTA) is plain


def test_a_target_out_of_reach_is_named():
    with pytest.raises(UserError, match=r"defense\.mine\.target_epsilon=.*noise_multi"):
        calibrated(entry(1e17), TASK, N, DELTA)


HALF_IN = [  # nine steps: two visits of each record in half of 200, one of all 200
    "scenario=mia_mnist5k", "data=digits", "runs=2", "membership.shadows=2",
    "membership.calibration=0", "task.settings.hidden=4", "attacks=[coin]",
    "defenses=[dpsgd]", "defense.dpsgd.target_epsilon=3.0",
    "sets.digits.splits.fixed=200", "sets.digits.splits.test=100",
    "defense.dpsgd.batch_size=20", "defense.dpsgd.steps=9",
]  # fmt: skip
EXPOSED = [  # eleven steps: two visits of each of 200 records, one of each of 201
    "scenario=dirdp_mnist5k", "data=digits", "runs=2", "task.settings.hidden=4",
    "attacks=[]", "defenses=[dpsgd]", "defense.dpsgd.target_epsilon=3.0",
    "sets.digits.splits.targets=10", "sets.digits.splits.fixed=200",
    "training.batch_size=20", "training.steps=11",
]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        HALF_IN,
        [*HALF_IN, "game=membership_replace_one", "training.sampling=uniform"],
        EXPOSED,
    ],
    ids=["in-out", "replace-one", "exposed"],
)
def test_the_card_prints_the_epsilon_that_was_asked_for(words):
    """A game solves the noise for as many records as it accounts for."""
    scenario = hydra_app.composed([*words, "seed=0"])[0]
    card = pipeline.audit(scenario, shadow.Engine(Lanes(tile=2)))
    (defense,) = card.defenses.values()
    assert 3 * (1 - 1e-4) < float(defense.epsilon.replace_one.least) <= 3


def test_only_defenses_with_a_noise_multiplier_take_a_target():
    words = ["scenario=binary_mnist", "data=mnist5k", "defenses=[sgd,dpsgd]"]
    scenario, *_ = hydra_app.composed([*words, "defense.dpsgd.target_epsilon=3.0"])
    assert [e.target_epsilon for e in scenario.defenses] == [None, 3.0]
    stated = scenario.resolved()["defense"]["dpsgd"]
    assert stated["target_epsilon"] == 3.0
    assert NOISE not in stated
    with pytest.raises(UserError, match=r"unknown setting defense\.sgd\.target_eps"):
        hydra_app.composed([*words, "defense.sgd.target_epsilon=3.0"])
