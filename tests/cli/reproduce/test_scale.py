"""Noises of different laws on one scale: `python -m audit scale`."""

import json
from pathlib import Path

import numpy as np
import pytest

from audit.cli.reproduce import figures
from audit.errors import UserError
from tests import pages
from tests.commands import printed, refused


def defense(use, rdp2, accuracy=0.5, **noise):
    settings = {"learning_rate": 0.1, "batch_size": 10, **noise}
    utility = {"accuracy": accuracy, "accuracy_sd": 0.1, "models": 5, "test": 9}
    return {"use": use, "settings": settings, "rdp2": rdp2, "utility": utility}


def card(game, defenses, *trials, **scenario):
    return pages.typed(
        scenario={"game": game, **scenario},
        floor={"mse": 0.04},
        defenses=defenses,
        trials=trials,
    )


def trial(use, **result):
    labels = {"defense": "gauss", "attack": use, "use": use, "status": "ok"}
    return labels | {"result": result}


def exposed(mse, accuracy=0.9, **scenario):
    defenses = {
        "sgd": defense("sgd", None),
        "gauss": defense("dpsgd", 4.0, accuracy, noise_multiplier=1.0),
        "vmf": defense("dirdp_sgd", 4.0, 0.5, concentration=9.0),
    }
    attack = trial("gradient_inversion", mse=mse, mse_se=0.1)
    return card("exposed", defenses, attack, **scenario)


def membership(auc, multiplier=1.0):
    defenses = {"gauss": defense("dpsgd", 5.0, noise_multiplier=multiplier, steps=9)}
    attacks = {"coin": 0.5, "attack_r": auc}
    trials = [trial(use, auc={"value": value}) for use, value in attacks.items()]
    return card("membership", defenses, *trials)


def test_games_meet_at_one_divergence():
    vmf, gauss = figures.over_seeds(
        [exposed(0.01, 0.9), exposed(0.03, 0.7, seed=1), membership(0.6)]
    )
    assert (gauss.label, gauss.use, gauss.divergence) == ("gauss", "dpsgd", 4.0)
    means = {quantity: mean for quantity, (mean, _) in gauss.readings.items()}
    want = {"accuracy": 0.8, "MSE of gradient_inversion": 0.02, "AUC of attack_r": 0.6}
    assert means == pytest.approx(want)
    assert gauss.readings["accuracy"] == figures.interval([0.9, 0.7])
    assert vmf.readings == {"accuracy": (0.5, 0.0)}  # and no place for sgd


@pytest.mark.parametrize("other", [{}, {"seed": 1, "runs": 9}])
def test_no_card_counts_twice_nor_one_of_other_settings(other):
    """One card given twice would halve an interval that another seed never saw."""
    with pytest.raises(UserError, match=r"of exposed: .* must differ in the seed"):
        figures.over_seeds([exposed(0.01), exposed(0.01, **other)])


def test_intervals_are_over_seeds():
    rng = np.random.default_rng(0)
    draws = rng.normal(0.3, 0.1, (4000, 5))
    mean, half = np.array([figures.interval(list(d)) for d in draws]).T
    covered = np.abs(mean - 0.3) <= half
    se = np.sqrt(0.95 * 0.05 / len(draws))
    assert abs(covered.mean() - 0.95) < 4 * se
    assert np.isnan(figures.interval([0.5])[1])


def test_one_name_is_one_noise_and_has_a_divergence():
    with pytest.raises(UserError, match=r"gauss is .*1\.0.* in one card, .*2\.0"):
        figures.over_seeds([exposed(0.01), membership(0.6, multiplier=2.0)])
    with pytest.raises(UserError, match="no card of exposed updates"):
        figures.over_seeds([membership(0.6)])


def test_committed_cards_make_a_figure_and_a_table(tmp_path, capsys):
    folder = "results/dirdp_scale-digits"
    assert "scale.png" in printed(capsys, "scale", folder, f"out={tmp_path}")
    page = (tmp_path / "scale.md").read_text()
    defenses = json.loads(Path(folder, "scorecard.json").read_text())["defenses"]
    for label, guarantees in defenses.items():
        assert (f"| {label} |" in page) == (guarantees["rdp2"] is not None)
    assert (tmp_path / "scale.png").stat().st_size > 10_000


def test_bad_words(capsys):
    assert "give folders of runs" in refused(capsys, "scale")
    assert "not 'outt=x'" in refused(capsys, "scale", "outt=x")
    assert "nowhere/scorecard.json: no such" in refused(capsys, "scale", "nowhere")
