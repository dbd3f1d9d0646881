"""The card of models trained elsewhere: a row like any other."""

import numpy as np
import pytest

import audit
from audit.report import columns, strips, summary, terminal
from audit.scorecard import view
from audit.statistics import roc
from tests.commands import call, printed, refused

RNG = np.random.default_rng(0)
MEMBERS, OTHERS = RNG.normal(0.5, 1, 2000), RNG.normal(0, 1, 2000)


@pytest.fixture
def folder(tmp_path, capsys):
    np.savez(tmp_path / "scores.npz", members=MEMBERS, nonmembers=OTHERS)
    out = tmp_path / "out"
    printed(capsys, "membership", str(tmp_path / "scores.npz"), f"out={out}")
    return out


def test_files_and_numbers(folder):
    names = {
        "scorecard.json",
        "scorecard.npz",
        "scorecard.md",
        "report.html",
        "roc.png",
    }
    assert {file.name for file in folder.iterdir()} == names
    card = audit.load(folder)
    (trial,) = card.trials
    summary = roc.summarise(MEMBERS, OTHERS)
    assert trial.result.headline.value == summary.auc.value
    assert card.data.name.startswith("scores-")
    fpr, tpr = (card.arrays[f"models/scores/{k}"] for k in ("fpr", "tpr"))
    area = np.trapezoid(np.append(tpr, 1), np.append(fpr, 1))
    assert area == pytest.approx(summary.auc.value, abs=0.01)  # the curve is thinned
    assert card.figures == ["roc"]
    assert "scores" in terminal.table(card)


def test_losses_in_the_place_of_scores_are_told(tmp_path, capsys):
    words = ["membership", str(tmp_path / "a.npz"), f"out={tmp_path / 'out'}"]
    np.savez(tmp_path / "a.npz", members=-MEMBERS, nonmembers=-OTHERS)
    assert "flag wrong-sign: scores: AUC 0.36" in printed(capsys, *words)
    card = audit.load(tmp_path / "out")
    assert [flag.name for flag in card.trials[0].flags] == ["wrong-sign"]
    [strip], [line] = strips.strips(card), columns.lines(card)
    assert (strip.word, strip.level) == (view.WRONG_SIGN, "warning")
    assert "members have the lower scores by scores" in summary.verdict(line).got
    coin = card.trials[0].model_copy(deep=True)  # is the strongest beside it
    coin.attack, coin.result.headline.value = "coin", 0.5
    [line] = columns.lines(card._replace(trials=[*card.trials, coin]))
    assert line.best.attack == "coin"
    assert summary.verdict(line).headline == view.WRONG_SIGN


def test_a_row_on_a_leaderboard(folder, tmp_path, capsys):
    rows = tmp_path / "rows"
    rows.mkdir()
    folder.rename(rows / "mine")
    printed(capsys, "leaderboard", f"results={rows}")
    text = (rows / "LEADERBOARD.md").read_text()
    assert "## elsewhere on scores-" in text
    assert "| models | scores |" in text  # predicts nothing here: no accuracy


def test_it_compares_and_is_not_replayed(folder, capsys):
    assert call("compare", str(folder), str(folder)) == 0
    assert "not weaker" in capsys.readouterr().out
    assert "not one of python -m audit run" in refused(capsys, "verify", str(folder))
