"""The scenarios of linear models, run by the command line on small data."""

import numpy as np
import pytest

from audit.__main__ import main
from audit.report import terminal
from audit.scorecard import card as cards

CARD = {"scorecard.md", "scorecard.json", "scorecard.npz", "store"}
RECORDS = {"eta_by_class.png", "dfil_histogram.png", "eta_extremes.png"}
DRAWN = {
    "glm_fil_mnist": {*RECORDS, "reweighting.png"},
    "glm_reconstruction": {*RECORDS, "mse_vs_bound_records.png", "rebuilt.png"},
    "glm_attributes": {"success_by_eta.png"},
}
SMALL = {
    "glm_fil_mnist": [
        "data=digits", "sets.digits.splits.fixed=120",
        "defense.linear_irfil.iterations=3", "defense.logistic_irfil.iterations=3",
    ],
    "glm_reconstruction": ["data=digits", "sets.digits.splits.fixed=120"],
    "glm_attributes": ["defenses=[exact,high_noise]"],
}  # fmt: skip


def of_name(name):
    slow = name == "glm_fil_mnist"  # four exact fits in float64: a minute of compiling
    return pytest.param(name, marks=pytest.mark.slow) if slow else name


@pytest.fixture(scope="module", params=map(of_name, DRAWN))
def run(request, tmp_path_factory):
    name, out = request.param, tmp_path_factory.mktemp("run") / "out"
    words = [f"scenario={name}", "runs=5", *SMALL[name], f"out={out}"]
    assert main(["run", *words]) == 0
    return name, out, cards.load(out)


def test_every_file_of_its_game_is_there(run):
    name, out, _ = run
    assert {f.name for f in out.iterdir()} | {"store"} == CARD | DRAWN[name]


def test_every_trial_is_ok_and_beats_the_floor_without_noise(run):
    name, _, card = run
    assert {t.status for t in card.trials} <= {"ok"}
    for t in card.trials:
        if t.defense == "exact" and t.use in ("glm_attack", "whitebox_inverter"):
            assert t.result["beats_floor"] > 0.4
    assert bool(card.trials) == (name != "glm_fil_mnist")


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


def test_tables_fit_and_say_what_is_void(run):
    name, out, card = run
    lines = terminal.table(card).split("\n")
    assert max(map(len, lines)) <= 120
    assert ("void here" in terminal.notes(card)) == (name == "glm_reconstruction")
    text = (out / "scorecard.md").read_text()
    for label in card.defenses:
        assert f"| {label} |" in text
    assert "nan" not in text
