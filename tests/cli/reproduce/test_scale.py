"""Noises of different laws on one scale: `python -m audit scale`."""

import json
from pathlib import Path

import numpy as np
import pytest

import audit.__main__ as cli
from audit.cli.reproduce import figures
from audit.errors import UserError


def defense(use, rdp2, accuracy=0.5, **noise):
    settings = {"learning_rate": 0.1, "batch_size": 10, **noise}
    own = {"use": use, "settings": settings, "rdp2": rdp2}
    return own | {"utility": {"accuracy": accuracy}}


def card(game, defenses, trials, seed=0):
    where = {"command": f"run seed={seed}", "git": {"commit": "a" * 40}}
    scenario = {"game": game, "seed": seed}
    return {
        "scenario": scenario,
        "provenance": where,
        "defenses": defenses,
        "trials": trials,
        "floor": {"mse": 0.04},
    }


def trial(label, use, **result):
    held = {"defense": label, "attack": use, "use": use, "status": "ok"}
    return held | {"result": result}


def exposed(seed, mse, accuracy=0.9):
    noise = {"noise_multiplier": 1.0}
    return card(
        "exposed",
        {
            "sgd": defense("sgd", None),
            "gauss": defense("dpsgd", 4.0, accuracy, **noise),
            "vmf": defense("dirdp_sgd", 4.0, 0.5, concentration=9.0),
        },
        [trial("gauss", "gradient_inversion", mse=mse)],
        seed,
    )


def membership(seed, auc, multiplier=1.0):
    held = {"gauss": defense("dpsgd", None, noise_multiplier=multiplier, steps=9)}
    found = [
        trial("gauss", "coin", auc={"value": 0.5}),
        trial("gauss", "attack_r", auc={"value": auc}),
    ]
    return card("membership", held, found, seed)


def test_games_meet_at_one_divergence():
    cards = [exposed(0, 0.01, 0.9), exposed(1, 0.03, 0.7), membership(0, 0.6)]
    vmf, gauss = figures.points(cards)
    assert (gauss.label, gauss.use, gauss.divergence) == ("gauss", "dpsgd", 4.0)
    assert gauss.values == {
        "accuracy": [0.9, 0.7],
        "MSE of gradient_inversion": [0.01, 0.03],
        "AUC of attack_r": [0.6],
    }
    assert vmf.values == {"accuracy": [0.5, 0.5]}  # and no place for sgd


def test_intervals_are_over_seeds():
    rng = np.random.default_rng(0)
    draws = rng.normal(0.3, 0.1, (4000, 5))
    mean, half = np.array([figures.interval(list(d)) for d in draws]).T
    covered = np.abs(mean - 0.3) <= half
    se = np.sqrt(0.95 * 0.05 / len(draws))
    assert abs(covered.mean() - 0.95) < 4 * se
    assert np.isnan(figures.interval([0.5])[1])


def test_one_name_is_one_noise():
    with pytest.raises(UserError, match=r"gauss is .*1\.0.* in one card, .*2\.0"):
        figures.points([exposed(0, 0.01), membership(0, 0.6, multiplier=2.0)])


def test_without_a_divergence_there_is_no_scale():
    with pytest.raises(UserError, match="no card of the game exposed"):
        figures.points([membership(0, 0.6)])


def test_committed_cards_make_a_figure_and_a_table(tmp_path, capsys):
    folder = "results/dirdp_scale-digits"
    assert cli.main(["scale", folder, f"out={tmp_path}"]) == 0
    page = (tmp_path / "scale.md").read_text()
    held = json.loads(Path(folder, "scorecard.json").read_text())["defenses"]
    for label, own in held.items():
        assert (f"| {label} |" in page) == (own["rdp2"] is not None)
    assert (tmp_path / "scale.png").stat().st_size > 10_000
    assert "scale.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give folders of runs"),
        (["outt=x"], "not 'outt=x'"),
        (["nowhere"], "nowhere/scorecard.json: no such file"),
    ],
)
def test_bad_words(words, said, capsys):
    assert cli.main(["scale", *words]) == 2
    assert said in capsys.readouterr().err
