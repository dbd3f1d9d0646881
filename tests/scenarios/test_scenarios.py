"""Scenarios of linear models and of a claimed epsilon, run small."""

import numpy as np
import pytest

from audit.__main__ import main
from audit.report import terminal
from audit.scorecard import card as cards

CARD = {"scorecard.md", "scorecard.json", "scorecard.npz", "store"}
RECORDS = {"eta_by_class.png", "dfil_histogram.png", "eta_extremes.png"}
BOTH_SIDES = {"audit_roc.png", "both_sides.png"}
DRAWN = {
    "glm_fil_mnist": {*RECORDS, "accuracy.png", "reweighting.png"},
    "glm_reconstruction": {*RECORDS, "mse_vs_bound_records.png", "rebuilt.png"},
    "glm_attributes": {"success_by_eta.png"},
    "epsilon_audit": BOTH_SIDES,
    "epsilon_one_run": BOTH_SIDES,
    "rero_priors": {"named_and_allowed.png"},
}
EPSILON_8 = ["training.steps=3", "defense.epsilon_8.noise_multiplier=1.0396272"]
SMALL = {
    "glm_fil_mnist": [
        "data=digits", "sets.digits.splits.fixed=120", "runs=5",
        "defense.linear_irfil.iterations=3", "defense.logistic_irfil.iterations=3",
    ],
    "glm_reconstruction": ["data=digits", "sets.digits.splits.fixed=120", "runs=5"],
    "glm_attributes": ["defenses=[exact,high_noise]", "runs=5"],
    "epsilon_audit": [
        *EPSILON_8, "runs=400", "lanes.tile=400", "defenses=[epsilon_8,sgd]",
    ],
    "epsilon_one_run": [
        *EPSILON_8, "canaries.audits=2", "canaries.count=200",
        "defenses=[epsilon_8,poisson]",
        "defense.poisson={use: dpsgd, sampling: poisson, batch_size: 25}",
    ],
    "rero_priors": [
        "data=digits", "sets.digits.splits.targets=16", "candidates.priors=[4,2,16]",
        "runs=20", "training.steps=4", "defenses=[sigma_5]",
    ],
}  # fmt: skip
# four exact fits in float64 take a minute of compiling; Poisson batches are accounted
# for by a privacy-loss distribution, which takes half a minute
SLOW = {"glm_fil_mnist", "epsilon_one_run", "rero_priors"}


def of_names(*names):
    """Run each scenario once; those that take long with the slow tests."""
    marks = {name: [pytest.mark.slow] if name in SLOW else [] for name in names}
    params = [pytest.param(name, marks=marks[name]) for name in names]
    return pytest.mark.parametrize("run", params, indirect=True, scope="module")


linear = of_names("glm_fil_mnist", "glm_reconstruction", "glm_attributes")
epsilon = of_names("epsilon_audit", "epsilon_one_run")


@pytest.fixture(scope="module")
def run(request, tmp_path_factory):
    name, out = request.param, tmp_path_factory.mktemp("run") / "out"
    assert main(["run", f"scenario={name}", *SMALL[name], f"out={out}"]) == 0
    return name, out, cards.load(out)


@of_names(*DRAWN)
def test_every_file_of_its_game_is_there_and_its_table_fits(run):
    name, out, card = run
    assert {f.name for f in out.iterdir()} | {"store"} == CARD | DRAWN[name]
    assert max(map(len, terminal.table(card).split("\n"))) <= 120


@linear
def test_every_trial_is_ok_and_beats_the_floor_without_noise(run):
    name, _, card = run
    assert {t.status for t in card.trials} <= {"ok"}
    for t in card.trials:
        if t.defense == "exact" and t.use in ("glm_attack", "whitebox_inverter"):
            assert t.result["beats_floor"] > 0.4
    assert bool(card.trials) == (name != "glm_fil_mnist")


@linear
def test_numbers_agree_with_the_arrays(run):
    _, _, card = run
    for label, defense in card.defenses.items():
        if defense.eta:
            eta = card.arrays[f"{label}/eta"]
            np.testing.assert_allclose(defense.eta["mean"], eta.mean())
            np.testing.assert_allclose(defense.eta["sd"], eta.std())
            about_one = card.scenario.get("attribute")
            assert about_one or defense.eta["set"] >= eta.max()
    for t in card.trials:
        where = f"{t.defense}/{t.attack}"
        if f"{where}/mse" in card.arrays:
            mse = card.arrays[f"{where}/mse"].mean()
            np.testing.assert_allclose(t.result.mse, mse)
        else:
            wrong = card.arrays[f"{where}/wrong"].mean()
            np.testing.assert_allclose(t.result.success, 1 - wrong)


@linear
def test_tables_say_what_is_void(run):
    name, out, card = run
    assert ("void here" in terminal.notes(card)) == (name == "glm_reconstruction")
    text = (out / "scorecard.md").read_text()
    for label in card.defenses:
        assert f"| {label} |" in text
    assert "nan" not in text


@epsilon
def test_both_sides_stand_on_the_card_in_order(run):
    name, out, card = run
    trial = card.trials[0]
    assert trial.status == "ok"
    assert trial.flags == []
    result = trial.result
    assert result["upper"] == pytest.approx(8.0, rel=1e-4)
    assert 0.4 < result.epsilon_lower < 8
    text = terminal.table(card)
    assert "epsilon_8" in text
    assert "8.000" in text
    page = (out / "scorecard.md").read_text()
    assert "### Lower ends of epsilon" in page
    shown = "GDP" if name == "epsilon_audit" else "one run, f-DP"
    assert f"| epsilon_8 | {trial.attack} | {shown} |" in page


@epsilon
def test_what_is_not_claimed_is_not_tested(run):
    """No noise has no transcript to score; a sampled batch has no Gaussian claim."""
    name, _, card = run
    other = card.trials[1]
    if name == "epsilon_audit":
        assert other.status == "skipped"
        assert "not gaussian" in other.reason
    else:
        assert set(other.result["lower"]) == {"one_run"}
        assert other.result["upper"] < other.result["upper_rdp"]
        assert other.result.epsilon_lower < other.result["upper"]
