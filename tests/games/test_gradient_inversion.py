"""The whole game of gradient inversion, small, through the command's own path."""

import numpy as np
import pytest

from attacks.class_mean import class_mean
from attacks.gradient_inversion import gradient_inversion as inversion
from audit import pipeline
from audit.__main__ import main
from audit.accounting import vmf_privacy
from audit.config import compose, hydra_app
from audit.engine import shadow
from audit.errors import UserError
from audit.games import base, rows
from audit.games.base import Result, Trial
from audit.games.gradient_inversion import Exposure, account, exposed
from audit.mechanisms.noisy_sgd import information
from audit.models import networks
from audit.report.figures import common, gradient_inversion
from audit.scorecard import card as scorecard
from audit.types import Examples, Lanes, ThreatModel
from tests import pages
from tests.conftest import records
from tests.games import worlds

WORDS = [
    "scenario=dirdp_mnist5k", "data=digits", "defenses=[sgd,vmf_500]",
    "attacks=[mean_image,class_mean,analytic,map]", "sets.digits.splits.targets=5",
    "training.steps=9", "task.settings.hidden=8", "attack.map.steps=5", "runs=2",
]  # fmt: skip


def composed(*words):
    return hydra_app.composed([*WORDS, *words, "seed=0"])[0]


@pytest.fixture(scope="module")
def card():
    return pipeline.audit(composed(), shadow.Engine(Lanes(tile=2)))


def trial(card, defense, attack):
    return next(t for t in card.trials if (t.defense, t.attack) == (defense, attack))


def test_an_undefended_gradient_gives_the_image_away_and_a_noised_one_does_not(card):
    result = trial(card, "sgd", "analytic")["result"]
    assert result["mse"] < 1e-9
    assert [result[k] for k in ("matching", "targets", "runs")] == [1, 5, 2]
    noised = trial(card, "vmf_500", "analytic")["result"]["mse"]
    assert noised > 1e3 * result["mse"]
    assert noised < 3 * card.floor["mse"]


def test_an_update_is_accounted_for_at_the_end_of_every_run():
    """dFIL is the mean of what the updates at both ends say, which differ."""
    fixed, pool, targets = (around_means(n, 2, i) for i, n in enumerate((6, 20, 5)))
    loud = {"steps": 3, "learning_rate": 5.0, "noise_multiplier": 2.0}
    learner = worlds.learner(LOGIT, "dpsgd", **loud)
    table = worlds.table(worlds.problem(LOGIT, fixed, pool, targets=targets), runs=2)
    runs = exposed().release(worlds.KEY, learner, table)
    limits = account(worlds.KEY, runs, table._replace(trajectories=2))
    query, _, noise, *_ = learner.defense.mechanism
    each = [
        np.asarray(information(query, noise, None, learner.side, end, targets)) / 16
        for end in runs.evidence.params
    ]
    np.testing.assert_allclose(limits.dfil, np.mean(each, 0), rtol=1e-4)
    assert (abs(each[0] / each[1] - 1) > 1e-2).any()


def test_accounting_alone_needs_no_attack(tmp_path):
    words = ["attacks=[]", "defenses=[vmf_500]", "training.steps=2"]
    assert main(["run", *WORDS, *words, f"out={tmp_path}/out"]) == 0
    assert main(["report", f"{tmp_path}/out"]) == 0
    card = scorecard.load(tmp_path / "out")
    assert card.trials == []
    assert card.floor["mse"] is None
    assert card.defenses["vmf_500"]["dfil"]["mean"] > 0
    names = {f.name for f in (tmp_path / "out").iterdir()}
    assert {"scorecard.md", "report.html"} <= names
    assert not {"reconstructions.png", "mse_vs_bound.png"} & names


def test_baselines_play_and_the_map_is_skipped_without_noise(card):
    for name in ("mean_image", "class_mean", "map"):
        assert trial(card, "vmf_500", name)["status"] == "ok"
    assert trial(card, "sgd", "map")["reason"] == "the defense is not noisy"
    assert "attack-dead" not in {f["name"] for t in card.trials for f in t["flags"]}


def test_bounds_are_of_one_update_and_epsilon_of_the_run(card):
    noised, k = card.defenses["vmf_500"], 64 * 8 + 8 + 8 * 10 + 10
    assert noised["rdp2"] == pytest.approx(float(vmf_privacy.renyi(2.0, k, 250.0)))
    bounds = {b["name"] for b in noised["bounds"]}
    assert bounds == {"cramer_rao", "hammersley_chapman_robbins"}
    one = vmf_privacy.VmfPrivacy(k, 250.0).get_epsilon_for_delta(1e-5)
    run_of_9 = noised["epsilon"]["replace_one"]["tight"]  # one epoch: a single visit
    assert run_of_9 == pytest.approx(one)
    assert noised["epsilon"]["add_remove"]["tight"] is None
    assert card.defenses["sgd"]["bounds"] == []


def test_features_without_ends_have_no_bound_by_them():
    names = {}
    for domain in ((0.0, 1.0), (-np.inf, np.inf)):
        task = networks.binary_linear((3,), 2)._replace(domain=domain)
        z = records(6, (3,), 2)
        table = worlds.table(worlds.problem(task, z, z, targets=z))
        learner = worlds.learner(task, "dpsgd", steps=1)
        exposure = Exposure((task.init(worlds.KEY),), worlds.KEY)
        runs = base.Runs(learner, None, exposure)
        limits = account(worlds.KEY, runs, table)
        names[domain[1]] = [bound.name for bound in limits.bounds]
        assert limits.rdp2 > 0
    assert names == {
        1: ["cramer_rao", "hammersley_chapman_robbins"],
        np.inf: ["cramer_rao"],
    }


def test_of_nobody_no_information_is_read():
    words = ["attacks=[]", "defenses=[vmf_500]", "training.steps=2", "fisher.records=0"]
    noised = pipeline.audit(composed(*words), shadow.Engine(Lanes(tile=2))).defenses
    assert noised["vmf_500"]["dfil"] is None
    bounds = {b["name"] for b in noised["vmf_500"]["bounds"]}
    assert bounds == {"hammersley_chapman_robbins"}


def test_pictures_of_people_leave_no_array():
    scenario = composed()
    problem = pipeline.load(scenario, compose.play(scenario))
    faces = problem._replace(dataset=problem.dataset._replace(name="lfw"))
    images, floor = np.zeros((5, 8, 8, 1)), np.zeros(5)
    headline = base.headline("mse", 0.0, None, better="lower", floor=None)
    result = Result(headline, {}, {"guess": images, "mse": floor}, floor)
    entry, model = compose.Entry("a", "a", {}, {}), ThreatModel("inversion")
    trial = Trial("d", entry, model, "", "ok", result=result)
    checks = rows.SelfChecks({}, [])
    audited = rows.Audited(scenario, faces, [], {}, [trial], floor, checks)
    assert set(rows.arrays(audited, images)) == {"floor", "d/a/mse"}
    assert "target" in rows.arrays(audited._replace(problem=problem), images)


def test_the_game_needs_targets():
    with pytest.raises((UserError, hydra_app.Refused), match="exposed needs targets"):
        compose.play(composed("sets.digits.splits.targets=0"))


# What is known of an update -----------------------------------------------------------

PICTURE = (4, 4, 1)
TANH = networks.mlp(PICTURE, 3, hidden=20, activation="tanh")
LOGIT = networks.binary_linear(PICTURE, 2)


def around_means(n, classes, seed):
    """Make n records around the means of their classes."""
    centres = np.random.default_rng(99).uniform(0.2, 0.8, (classes, *PICTURE))
    y = np.arange(n, dtype=np.int32) % classes
    noise = 0.15 * np.random.default_rng(seed).normal(size=(n, *PICTURE))
    return Examples(np.clip(centres[y] + noise, 0, 1).astype(np.float32), y)


def played(task, attack, defense, **given):
    """Let an attack play at the start of all runs."""
    sizes = enumerate((6, 200, 16))
    fixed, pool, targets = (around_means(n, task.classes, i) for i, n in sizes)
    learner = worlds.learner(task, defense, steps=1, **given)
    problem = worlds.problem(task, fixed, pool, targets=targets)
    table = worlds.table(problem)
    return worlds.play(exposed(exposed="start"), attack, learner, table), targets


TINY = {"noise_multiplier": 1e-6, "density": 0.3, "keep": "random"}


def test_a_search_knows_which_parameters_are_trained():
    attack = inversion(TANH, steps=200, smoothness=0.0)
    assert played(TANH, attack, "prune", **TINY)[0].numbers["mse"] < 1e-3


def test_the_closed_form_reads_each_pixel_off_the_weights_that_are_trained():
    game, targets = played(TANH, inversion(TANH, preset="analytic"), "prune", **TINY)
    first = game.runs.learner.side.mask["hidden_0"]
    readable = (np.asarray(first["kernel"] * first["bias"]).max(1) > 0).reshape(PICTURE)
    assert 0 < readable.mean() < 1
    # guesses are kept in half precision
    gap = game.arrays["guess"].astype(float) - targets.x
    assert abs(gap[:, readable]).max() < 1e-3
    assert abs(gap[:, ~readable]).max() > 0.1


@pytest.mark.parametrize(
    ("defense", "setting", "limits"),
    [
        ("dpsgd", "noise_multiplier", {0.01: 0.1, 0.3: 1.1, 3.0: 1.1}),
        ("dirdp_sgd", "concentration", {1e5: 0.1, 1.0: 1.1}),
        ("sgd", "learning_rate", {0.1: 1e-9}),
    ],
)
def test_the_closed_form_of_a_single_logit_tends_to_the_floor(defense, setting, limits):
    """One unit leaves no residual: the noise is known from the mechanism."""
    attack, floor = inversion(LOGIT, preset="analytic"), class_mean(LOGIT)
    floor = played(LOGIT, floor, "sgd")[0].numbers["mse"]
    for value, limit in limits.items():
        game, _ = played(LOGIT, attack, defense, **{setting: value})
        assert game.numbers["mse"] < limit * floor, value


@pytest.mark.parametrize(
    ("knows", "granted"),
    [((), {"mask"}), (("mechanism",), {"mask", "likelihood", "variance"})],
)
def test_an_update_says_what_it_is_of_and_the_mechanism_how_large_its_noise_is(
    knows, granted
):
    sees = ("params", "update")
    spy = worlds.spy("inversion", np.zeros(PICTURE, np.float32), sees, knows)
    played(LOGIT, spy.attack, "prune", noise_multiplier=0.5, clip_norm=3.0)
    assert spy.granted() == granted
    if knows:
        assert spy.knowledge[0].variance == pytest.approx(1.5**2)
    blind = worlds.spy("inversion", np.zeros(PICTURE, np.float32))
    played(LOGIT, blind.attack, "prune")
    assert blind.granted() == set()


# What is shown of it ------------------------------------------------------------------


def fake_card():
    """Make a card with two mechanisms at two divergences each."""
    defenses, trials = {"sgd": {"use": "sgd", "rdp2": None}}, []
    for use in ("dpsgd", "dirdp_sgd"):
        for order2 in (1.0, 4.0):
            label = f"{use}_{order2:.0f}"
            utility = {"accuracy": 0.8, "accuracy_sd": 0.01, "models": 5, "test": 9}
            defenses[label] = {"use": use, "rdp2": order2, "utility": utility}
            result = {"mse": 0.1 / order2, "mse_se": 0.01}
            names = {"defense": label, "attack": "iga", "use": "gradient_inversion"}
            trials.append(names | {"status": "ok", "result": result})
    rows = {"defenses": defenses, "trials": trials}
    return pages.typed(scenario={"game": "exposed"}, floor={"mse": 0.05}, **rows)


def test_common_scale_is_drawn_where_two_mechanisms_share_one(tmp_path):
    applies, draw = gradient_inversion.FIGURES["common_scale.png"]
    card = fake_card()
    assert applies(card)
    common.save(draw(card), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert not applies(card._replace(trials=[]))
    one = {k: v for k, v in card.defenses.items() if v["use"] != "dirdp_sgd"}
    assert not applies(card._replace(defenses=one))


def test_ten_likeliest_classes_are_looked_at_where_there_are_many():
    """Scores of class k are x_k: ranks are known."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 106)), rng.integers(0, 106, 200)
    identity = lambda side, release, x: x
    want = ((x > x[np.arange(200), y][:, None]).sum(1) < 10).mean()
    assert float(rows.top10(identity, None, None, x, y)) == pytest.approx(want)
