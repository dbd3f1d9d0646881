"""The scenarios that audit a claimed epsilon, run by the command line, small."""

import pytest

from audit.__main__ import main
from audit.report import terminal
from audit.scorecard import card as cards

FILES = {
    "scorecard.md", "scorecard.json", "scorecard.npz", "store", "audit_roc.png",
    "both_sides.png",
}  # fmt: skip
SMALL = {
    "epsilon_audit": ["runs=400", "lanes.tile=400", "defenses=[epsilon_8,sgd]"],
    "epsilon_one_run": [
        "canaries.audits=2", "canaries.count=200",
        "defenses=[epsilon_8,poisson]",
        "defense.poisson={use: dpsgd, sampling: poisson, batch_size: 25}",
    ],
}  # fmt: skip


# Poisson batches are accounted for by a privacy-loss distribution: half a minute
SLOW = pytest.param("epsilon_one_run", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["epsilon_audit", SLOW])
def run(request, tmp_path_factory):
    name, out = request.param, tmp_path_factory.mktemp("run") / "out"
    words = [f"scenario={name}", "training.steps=3", *SMALL[name], f"out={out}"]
    words.append("defense.epsilon_8.noise_multiplier=1.0396272")
    assert main(["run", *words]) == 0
    return name, out, cards.load(out)


def test_every_file_of_its_game_is_there(run):
    _, out, _ = run
    assert {f.name for f in out.iterdir()} == FILES


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
    assert max(map(len, text.split("\n"))) <= 120
    page = (out / "scorecard.md").read_text()
    assert "### Lower ends of epsilon" in page
    shown = "GDP" if name == "epsilon_audit" else "one run, f-DP"
    assert f"| epsilon_8 | {trial.attack} | {shown} |" in page


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
