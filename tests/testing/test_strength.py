"""Golden bands of attack strength, and the fixtures third parties get."""

import json
import os
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from audit.errors import UserError
from audit.scorecard.flags import REFUTING
from audit.scorecard.schema import RaisedFlag
from audit.testing import strength
from audit.testing.strength import Band, Cell, Golden
from tests import ROOT, pages
from tests.commands import composed
from tests.config.test_plugins import DEFENSE, SMALL, put
from tests.strength.suite import PLAYS, words

pytest_plugins = ["pytester"]
MSE, AUC = Cell("net", "sgd", "mse"), Cell("lira", "sgd", "gini")


def card(**metrics):
    """A scorecard with one attack, one oracle and one that was skipped."""
    result = {"mse": 0.02, "auc": {"value": 0.7}, "oracle": False, **metrics}
    one = {"defense": "sgd", "status": "ok", "reason": None, "flags": []}
    trials = [
        {**one, "attack": "net", "result": result},
        {**one, "attack": "lira", "result": result},
        {**one, "attack": "oracle", "result": {**result, "oracle": True}},
        {**one, "attack": "glm", "status": "skipped", "reason": "no", "result": None},
    ]
    defenses = {"sgd": {"bounds": [{"name": "cramer_rao"}]}}
    return pages.typed(defenses=defenses, trials=trials)


# Cells and bands ----------------------------------------------------------------------


def test_values_are_read_where_the_card_has_them():
    assert strength.value(card(), MSE) == 0.02
    assert strength.value(card(), MSE._replace(metric="auc")) == 0.7
    np.testing.assert_allclose(strength.value(card(), AUC), 0.4)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (MSE._replace(metric="mze"), "unknown metric 'mze'; did you mean 'mse'"),
        (MSE._replace(attack="nett"), "there is net on sgd"),
        (MSE._replace(attack="glm"), "was skipped: no"),
        (MSE._replace(metric="ssim"), "no 'ssim'"),
    ],
)
def test_what_is_not_there_is_named(cell, message):
    with pytest.raises(UserError, match=re.escape(message)):
        strength.value(card(), cell)


def test_a_value_that_is_no_number_is_no_strength():
    with pytest.raises(UserError, match="is nan"):
        strength.value(card(mse="nan"), MSE)
    assert strength.judge(MSE, Band(1.0, 0.1), float("nan")) == "weaker"


def test_an_error_and_a_rate_point_opposite_ways():
    judge = lambda cell, mean: strength.judge(cell, Band(1.0, 0.1), mean)
    assert judge(MSE, 1.05) == judge(MSE, 0.95) == "holds"
    assert judge(MSE, 1.2) == judge(AUC, 0.8) == "weaker"
    assert judge(MSE, 0.8) == judge(AUC, 1.2) == "stronger"


def test_a_band_covers_fresh_seeds_as_often_as_three_standard_errors_should():
    """Golden seeds and the played ones drawn anew: a t law with n - 1 degrees."""
    from scipy import stats

    rng, n, k, repeats = np.random.default_rng(0), 12, 5, 4000
    inside = 0
    for _ in range(repeats):
        band = strength.band(rng.normal(10, 1, n), k)
        inside += abs(rng.normal(10, 1, k).mean() - band.value) <= band.width
    want = 1 - 2 * stats.t.sf(strength.STANDARD_ERRORS, n - 1)
    assert abs(inside / repeats - want) < 4 * np.sqrt(want * (1 - want) / repeats)


def test_a_band_by_hand():
    """Three of sd sqrt(1 / played + 1 / golden), the sd by n - 1."""
    golden = [1.0, 2.0, 4.0, 5.0, 8.0]
    sd = (30 / 4) ** 0.5  # squares about the mean of 4 add up to 30
    got = strength.band(golden, 3)
    np.testing.assert_allclose(got, (4.0, 3 * sd * (1 / 3 + 1 / 5) ** 0.5))


def test_a_cell_that_no_seed_moves_allows_for_rounding():
    assert strength.band([2.0] * 12) == Band(2.0, 2e-3)
    assert strength.band([0.0] * 12).share == np.inf


def test_golden_files_come_back(tmp_path):
    cells = {MSE.name: [0.125, 1 / 3]}
    golden = Golden(["scenario=x"], [0, 1], cells, ["first", '"q"'])
    path = tmp_path / "new" / "x.json"
    assert strength.load(path) is None
    strength.save(path, golden)
    assert strength.load(path) == golden._replace(cells={MSE.name: [0.125, 0.333333]})
    assert json.loads(path.read_text())["reasons"] == ["first", '"q"']


# Playing ------------------------------------------------------------------------------


@pytest.mark.slow
def test_seeds_differ_and_the_store_changes_nothing(tmp_path):
    small = ["scenario=calibration", "data=digits", "runs=4"]
    fresh = strength.play(small, [0, 1])
    stored = [strength.play(small, [s], tmp_path)[0] for s in (0, 1, 0)]
    mse = [c.trials[1]["result"]["mse"] for c in fresh + stored]
    assert mse[0] != mse[1]
    assert mse == [mse[0], mse[1], mse[0], mse[1], mse[0]]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("scenario=calibratio", "did you mean 'calibration'"),
        ("scenario=calibration runs=0", "runs=0"),
        ("scenario=calibration -m runs=1,2", "2 scenarios, not one"),
        ("scenario=calibration --plugins /no/such", "/no/such: no such folder"),
    ],
)
def test_bad_words_are_refused_without_an_exit(typed, message):
    with pytest.raises(UserError, match=re.escape(message)):
        strength.play([*typed.split(), "data=digits"])


@pytest.mark.parametrize("name", PLAYS)
def test_every_play_can_be_composed(name):
    scenario, _ = composed(*words(PLAYS[name]))
    labels = {e.label for e in scenario.attacks}
    assert {c.attack for c in PLAYS[name].cells} == labels


# Theorems -----------------------------------------------------------------------------


def flagged(name):
    flagged = card()
    flagged.trials[0].flags = [RaisedFlag(name=name, level="error", text="too good")]
    return flagged


def blind():
    """A trial of an attack that ignores the release."""
    floor = card().trials[0]
    floor.attack, floor.threat_model = "class_mean", "sees nothing; knows the label"
    return floor


def test_what_contradicts_a_theorem_is_told():
    page = (ROOT / "docs" / "flags.md").read_text()
    assert all(f"### `{name}`" in page for name in REFUTING)
    assert strength.broken(card(), "sgd") == []
    assert strength.broken(flagged("few-runs"), "sgd") == []
    for name in REFUTING:
        assert strength.broken(flagged(name), "sgd") == ["net on sgd: too good"]
    more_noise = RaisedFlag(name="wrong-noise", level="warning", text="it holds")
    both = flagged("unclipped")
    both.defenses["sgd"].flags = [*both.trials[0].flags, more_noise]
    assert strength.broken(both, "sgd") == ["sgd: too good"]  # once, of the runs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"defenses": {}}, "unknown defense 'sgd'"),
        (
            {"defenses": {"sgd": {"bounds": [], "epsilon": None}}},
            "no theorem bounds it",
        ),
        ({"trials": card().trials[2:]}, "no valid attack saw"),
        ({"trials": flagged("non-finite").trials[:1]}, "no valid attack saw"),
        ({"trials": [*flagged("non-finite").trials[:1], blind()]}, "no valid attack"),
    ],
)
def test_no_theorem_is_tested_by_nobody(change, message):
    with pytest.raises(UserError, match=message):
        strength.broken(card()._replace(**change), "sgd")


# The plug-in --------------------------------------------------------------------------


@pytest.fixture
def outside(pytester):
    """Run a test file as somebody else would, with the plug-in alone."""

    def run(text):
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "audit.testing.pytest_plugin", "-q")

    return run


def test_the_example_of_the_docs_passes(outside):
    page = (ROOT / "docs" / "strength.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(example.splitlines()) <= 10
    outside(example).assert_outcomes(passed=1)


def test_a_void_row_is_no_strength(assert_attack_at_least):
    assert_attack_at_least(flagged("few-runs"), "net", "sgd", mse=0.05)
    with pytest.raises(AssertionError, match="net on sgd is void: non-finite"):
        assert_attack_at_least(flagged("non-finite"), "net", "sgd", mse=0.05)


def test_a_weak_attack_and_a_broken_bound_fail_with_the_numbers(outside):
    result = outside(
        """
        import pytest

        from tests.testing.test_strength import card, flagged

        def test_mse(assert_attack_at_least):
            assert_attack_at_least(card(), "net", "sgd", mse=0.01)

        def test_auc(assert_attack_at_least):
            assert_attack_at_least(card(), "net", "sgd", auc=0.9)

        def test_both_hold(assert_attack_at_least, assert_bound_holds):
            assert_attack_at_least(card(), "net", "sgd", mse=0.02, auc=0.7)
            assert_bound_holds(card(), "sgd")
            with pytest.raises(TypeError, match="how strong"):
                assert_attack_at_least(card(), "net", "sgd")

        def test_bound(assert_bound_holds):
            assert_bound_holds(flagged("tpr-above-bound"), "sgd")
        """
    )
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["*net on sgd: mse = 0.02, wanted <= 0.01*"])
    result.stdout.fnmatch_lines(["*net on sgd: auc = 0.7, wanted >= 0.9*"])
    result.stdout.fnmatch_lines(["*net on sgd: too good*"])


def test_a_folder_of_results_is_read(outside):
    folder = ROOT / "results" / "calibration-mnist5k"
    result = outside(
        f"""
        def test_read(scorecard, tmp_path):
            import json, numpy as np, shutil
            shutil.copy("{folder}/scorecard.json", tmp_path)
            np.savez(tmp_path / "scorecard.npz", floor=np.zeros(1))
            card = scorecard(tmp_path)
            assert card.data["name"] == "mnist5k"
            assert scorecard(str(tmp_path)) is card
        """
    )
    result.assert_outcomes(passed=1)


def test_a_folder_without_a_card_is_named(scorecard, tmp_path):
    with pytest.raises(UserError, match=f"cannot read {tmp_path}/gone/scorecard.json"):
        scorecard(tmp_path / "gone")


def test_a_defense_of_ones_own_is_held_to_its_theorem(outside, tmp_path):
    put(tmp_path / "mine" / "quiet.py", DEFENSE)
    words = ["binary_mnist", *SMALL, "defenses=[quiet]", "attacks=[ridge]"]
    words += ["--plugins", str(tmp_path / "mine")]
    result = outside(
        f"""
        def test_quiet(scorecard, assert_bound_holds):
            from audit.config import plugins

            card = scorecard(*{words})
            assert card.defenses["quiet"].use == "quiet"
            assert_bound_holds(card, "quiet")
            assert plugins.named_folders() == []
        """
    )
    result.assert_outcomes(passed=1)


def test_the_plug_in_is_declared_under_its_own_name():
    """pytest refuses to load one module twice under two names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["pytest11"]
    assert declared == {"audit.testing.pytest_plugin": "audit.testing.pytest_plugin"}


NO_COST = """
import sys
import pytest
pytest.main(["-p", "audit.testing.pytest_plugin", "-p", "no:cacheprovider"])
assert "audit.testing.pytest_plugin" in sys.modules
assert not {"jax", "numpy", "audit.config", "audit.testing.laws"} & set(sys.modules)
"""


def test_a_run_of_tests_that_does_not_use_it_pays_nothing(tmp_path):
    """pytest loads the plug-in wherever the suite is installed."""
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass\n")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", NO_COST]
    subprocess.run(words, check=True, cwd=tmp_path, env=os.environ | alone)
