"""The same errors under three ways of matching: `python -m audit scale`."""

import numpy as np
import pytest

from audit.accounting import vmf
from audit.cli.reproduce import figures, matching
from audit.cli.reproduce.matching import Matched
from tests import ROOT

DIGITS = figures.read_cards([ROOT / "results/dirdp_scale-digits"])


@pytest.mark.parametrize(("size", "kappa"), [(2410, 24.5), (25_450, 640.0), (9, 3.0)])
def test_an_update_has_as_many_numbers_as_its_divergence_says(size, kappa):
    three, one = vmf.log_mean_exp(size, 3 * kappa), vmf.log_mean_exp(size, kappa)
    assert matching.dimension(kappa, float(three - one)) == size


def test_capacities_of_a_committed_run_grow_with_the_divergence():
    every = matching.places(figures.over_seeds(DIGITS), DIGITS)
    assert len(every) == 10
    for use in (matching.GAUSS, matching.VMF):
        shown = sorted(tuple(p.x.values())[:2] for p in every if p.use == use)
        assert np.all(np.diff(shown, axis=0) > 0)


def place(use, x, mse):
    return Matched(f"{use} {x}", use, {"test accuracy": x}, mse, np.nan)


def test_the_gap_is_over_what_both_curves_cover():
    gauss = [place(matching.GAUSS, x, x) for x in (0.0, 0.4, 1.0)]
    vmf = [place(matching.VMF, x, y) for x, y in ((0.5, 0.6), (0.9, 0.8), (2, 9))]
    mean, low, high = matching.gap(gauss + vmf, "test accuracy")
    # .1 at .5, -.1 at .9, and .145 at 1
    assert high == pytest.approx(0.8 + 0.1 / 1.1 * 8.2 - 1.0)
    assert low == pytest.approx(-0.1, abs=0.01)
    assert low < mean < high


def test_curves_that_do_not_overlap_have_no_gap():
    gauss = [place(matching.GAUSS, x, x) for x in (0.0, 0.4)]
    vmf = [place(matching.VMF, x, x) for x in (0.5, 0.6)]
    assert np.isnan(matching.gap(gauss + vmf, "test accuracy")).all()


@pytest.mark.parametrize(("floor", "word"), [(0.05, "nothing learnt"), (5.0, "Gaus")])
def test_no_noise_is_better_where_no_search_beats_the_floor(floor, word):
    gauss = [place(matching.GAUSS, x, 0.3) for x in (0.0, 1.0)]
    vmf = [place(matching.VMF, x, 0.2) for x in (0.0, 1.0)]
    page = matching.table({"digits": gauss + vmf}, {"digits": floor})
    assert word in page.split("test accuracy |")[1].split("\n")[0]


def test_several_data_sets_are_rows_of_one_figure(tmp_path):
    renamed = {"data": "again"}
    other = [
        card._replace(scenario=card.scenario.model_copy(update=renamed))
        for card in DIGITS
    ]
    paths = figures.write([*DIGITS, *other], tmp_path)
    assert [p.name for p in paths] == ["matching.md", "matching.png"]
    text = paths[0].read_text()
    assert text.count("| again | gauss_") == text.count("| digits | gauss_") == 5
    assert len(figures.write(DIGITS, tmp_path)) == 4
