"""The report of one run: plain words that say no more than the numbers, one page."""

import json
import re

import numpy as np
import pytest

from audit.__main__ import main
from audit.report import columns, html, markdown, summary
from audit.report.html import target_plots, template
from audit.scorecard.view import NOT_TOLD_APART
from tests import pages
from tests.pages import RESULTS


@pytest.fixture
def data():
    return pages.plain()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder, its arrays beside it."""
    data = pages.plain()
    place = pages.folder(tmp_path_factory.mktemp("runs"), "mine", data)
    np.savez(place / "scorecard.npz", **pages.arrays(data))
    return place


def verdicts(data, arrays=None):
    return {
        line.label: summary.verdict(line)
        for line in columns.lines(pages.card(data, arrays))
    }


# Words --------------------------------------------------------------------------------


def test_the_words_say_no_more_than_the_numbers(data):
    """A large epsilon and no bound promise nothing; unbiased bounds bind few.

    DP-SGD's means overlap with the floor's, and four of five targets are closer.
    """
    words = verdicts(data)
    assert any("Differential privacy" in t for t in words["dpsgd"].not_guaranteed)
    assert not any("ε" in text for text in words["dpsgd"].guaranteed)
    assert words["dpsgd"].headline == "records are rebuilt in part"
    assert words["sgd"].guaranteed == []
    assert any("no theorem" in text for text in words["sgd"].not_guaranteed)
    assert words["sgd"].headline == "records are rebuilt closely"
    promised = [text for v in words.values() for text in v.guaranteed]
    assert not any("1/dFIL" in text or "HCR" in text for text in promised)


def test_a_small_epsilon_is_a_guarantee(data):
    data["defenses"]["dpsgd"]["epsilon"]["replace_one"]["tight"] = 1.0
    data["defenses"]["dpsgd"]["epsilon"]["add_remove"]["tight"] = 0.5
    words = verdicts(data)["dpsgd"].guaranteed
    assert any("73.1%" in text and "which of two" in text for text in words)
    assert any("62.2%" in text and "whether" in text for text in words)


def test_what_an_epsilon_does_not_promise_is_said_of_the_worse_adjacency():
    """At most (1 + (e^eps - 1) / (e^eps + 1)) / 2 at delta 0: 99.988% and 99.3%."""
    pairs = {"replace_one": 9.0, "add_remove": 5.0}
    epsilon = {"delta": 0.0} | {k: {"rdp": None, "tight": v} for k, v in pairs.items()}
    card = pages.typed(defenses={"dpsgd": {"epsilon": epsilon}})
    (words,) = map(summary.verdict, columns.lines(card))
    assert words.guaranteed == []
    assert "ε = 9.00 (replace-one) and ε = 5.00 (add-remove)" in words.not_guaranteed[0]
    assert "be right 100.0% of the time" in words.not_guaranteed[0]


@pytest.mark.parametrize(
    ("mean", "error", "answer"),
    [
        (0.0004, None, "not_guaranteed"),  # below 1% of the floor's error
        (0.0006, None, "guaranteed"),
        (0.0006, 0.0001, "estimated"),
    ],
)
def test_a_bound_is_promised_estimated_or_next_to_nothing(mean, error, answer):
    bound = {"name": "finite_prior", "mean": mean, "standard_error": error}
    defenses = {"dpsgd": {"bounds": [bound]}}
    card = pages.typed(floor={"mse": 0.05}, defenses=defenses)
    (words,) = map(summary.verdict, columns.lines(card))
    of_bounds = "guaranteed", "estimated", "not_guaranteed"
    said = {k: any("average error" in t for t in getattr(words, k)) for k in of_bounds}
    assert said == {k: k == answer for k in of_bounds}


def got(game, result, settings=None, **parts):
    """Return the verdict of one attack on one defense in a game."""
    labels = {"defense": "dpsgd", "attack": "mine", "use": "mine", "status": "ok"}
    defenses, trials = {"dpsgd": {}}, [labels | {"result": result}]
    scenario = {"game": game} | (settings or {})
    parts |= {"scenario": scenario, "defenses": defenses, "trials": trials}
    (line,) = columns.lines(pages.typed(**parts))
    return summary.verdict(line)


@pytest.mark.parametrize(
    ("beaten", "headline"),
    [(0.59, NOT_TOLD_APART), (0.61, "records are rebuilt in part")],
)
def test_most_targets_are_two_standard_errors_of_a_share_above_half(beaten, headline):
    """Of 100 targets .6; the means alone differ by half a standard error."""
    result = {"mse": 0.04, "mse_se": 0.02, "targets": 100, "beats_floor": beaten}
    assert got("reconstruction", result, floor={"mse": 0.05}).headline == headline


@pytest.mark.parametrize(
    ("spread", "headline"),
    [(0.06, NOT_TOLD_APART), (0.04, "records are rebuilt in part")],
)
def test_paired_errors_are_told_apart_by_the_error_of_their_mean(spread, headline):
    """A mean gap of .01 over 100 targets: two standard errors where they vary by .05.

    Fewer targets than half are rebuilt better, so that their number says nothing.
    """
    gap = spread * np.tile([-1.0, 1.0], 50)
    arrays = {"floor": np.full(100, 0.05), "dpsgd/mine/mse": 0.04 + gap}
    result = {"mse": 0.04, "mse_se": 0.02, "targets": 100, "beats_floor": 0.5}
    words = got("reconstruction", result, floor={"mse": 0.05}, arrays=arrays)
    assert words.headline == headline


@pytest.mark.parametrize(
    ("auc", "error", "headline"),
    [
        (0.55, 0.03, NOT_TOLD_APART),  # within two standard errors
        (0.55, 0.02, "who took part is told, sometimes"),
        (0.9, 0.02, "who took part is told"),
    ],
)
def test_an_auc_is_told_from_a_coins_by_two_standard_errors(auc, error, headline):
    headline_number = {
        "metric": "auc", "value": auc, "standard_error": error, "better": "higher",
        "floor": 0.5,
    }  # fmt: skip
    words = got("membership", {"headline": headline_number})
    assert words.headline == headline
    assert f"{auc:.1%} of the time (AUC, ± {2 * error:.1%})" in words.got


@pytest.mark.parametrize(
    ("low", "headline"), [(0.24, NOT_TOLD_APART), (0.26, "named in 30%")]
)
def test_a_namer_is_told_from_a_blind_one_by_its_interval(low, headline):
    one = {
        "candidates": 4, "success": 0.3, "low": low, "high": 0.36, "blind": 0.25,
        "optimum": {"value": 0.31, "standard_error": 0.01}, "bound": 0.5,
    }  # fmt: skip
    words = got(
        "identification",
        {"success": 0.3, "priors": [one]},
        settings={"candidates": {"priors": [4]}},
    )
    assert words.headline == headline
    assert (
        "is 31.0%, a blind guess is right in 25.0%, and accounting allows 50.0%"
        in words.got
    )


def test_with_arrays_the_comparison_is_paired(data):
    stronger = "matched_filter", "ridge"
    data["trials"] = [t for t in data["trials"] if t["attack"] not in stronger]
    result = next(
        t for t in data["trials"]
        if (t["defense"], t["attack"]) == ("dpsgd", "reconstructor")
    )["result"]  # fmt: skip
    result["beats_floor"] = 0.5  # no help from counting
    ground = data["floor"]["mse"]
    error = result["headline"]["value"] = result["mse"] = 0.88 * ground
    noise = np.random.default_rng(0).uniform(0, 0.1, 50)
    noise -= noise.mean()
    part, key = "records are rebuilt in part", "dpsgd/reconstructor/mse"
    assert verdicts(data)["dpsgd"].headline == NOT_TOLD_APART
    better = {"floor": ground + noise, key: error + noise}
    assert verdicts(data, better)["dpsgd"].headline == part
    alone = {"floor": ground + noise, key: error - noise}
    assert verdicts(data, alone)["dpsgd"].headline == NOT_TOLD_APART
    # arrays that another run left beside the card
    for stale in (better | {key: error + noise - 0.01}, better | {"floor": noise}):
        assert verdicts(data, stale)["dpsgd"].headline == NOT_TOLD_APART
    result["beats_floor"] = 0.9
    for stale in (alone | {key: error - noise + 0.01}, alone | {"floor": -noise}):
        assert verdicts(data, stale)["dpsgd"].headline == part


def test_attributes_and_cards_without_attacks():
    exact = verdicts(pages.plain("glm_attributes-diabetes"))["exact"]
    assert exact.headline == "attributes are told"
    assert "100.0% of the records" in exact.got
    alone = verdicts(pages.plain("glm_fil_mnist-mnist"))
    assert {v.headline for v in alone.values()} == {"not attacked"}
    rare = verdicts(pages.plain("glm_reconstruction-mnist"))["perturbed"]
    assert rare.headline == "nothing on average, and some records are rebuilt"
    assert "37% of the records" in rare.got
    # half of the guesses are closer than the floor, 3% than the nearest neighbour
    step = verdicts(pages.plain("private_cnn_exposed-mnist5k"))["dpsgd"]
    assert "47% of the records" in step.got
    assert step.headline == NOT_TOLD_APART


def test_a_plug_in_that_is_not_here_is_no_error(data):
    data["defenses"]["sgd"]["use"] = "not_here"
    assert "not installed here" in verdicts(data)["sgd"].released


# Page ---------------------------------------------------------------------------------


def test_the_command_writes_the_page_into_the_runs_folder(run, capsys):
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert str(run / "report.html") in capsys.readouterr().out
    assert len(text.encode()) < template.MOST_BYTES
    order = ["strips", "<h2>Scorecard", "<h2>Figures", "<summary>In plain words"]
    places = [text.index(part, text.index("<body>")) for part in order]
    assert places == sorted(places)
    assert "<h2>ROC" not in text  # no section says that there is nothing in it
    # the pictures; twelve targets, each with its picture and one guess per defense
    assert text.count('<img src="data:') == 1 + 12 * (1 + 8)
    assert text.count("Every target against") == 3  # each bound has its plot,
    assert "mse vs bound" not in text  # so the picture of all is not shown
    loaded = re.findall(r'(?:src|srcset|action)="([^"]*)"', text)
    assert all(u.startswith("data:") for u in loaded)


def test_the_first_screen_has_picture_strips_and_both_attacks(run, tmp_path):
    """Measured in a browser of 1280 x 800, nothing scrolled."""
    page = tmp_path / "r.html"
    assert main(["report", str(run), f"out={page}"]) == 0
    measure = """<script>
    const low = (what) => [...document.querySelectorAll(what)]
      .map((e) => Math.round(e.getBoundingClientRect().bottom));
    document.title = JSON.stringify([low(".first .plotted > *"), low(".strip"),
      low(".readings b.final"), low(".readings b.steps"),
      document.documentElement.scrollWidth]);
    </script></body>"""
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    page.write_text(text.replace("</body>", measure))
    shown, _ = pages.opened(page, tmp_path, "--window-size=1280,800")
    picture, strips, final, steps, wide = json.loads(
        re.search("<title>(.*?)</title>", shown)[1]
    )
    assert (len(strips), len(final), len(steps)) == (8, 8, 7)  # sgd has no transcript
    assert max(*picture, *strips, *final, *steps) <= 800
    assert wide <= 1280


def test_a_run_is_found_by_name_file_or_folder(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert html.locate(str(run)) == run
    assert html.locate("mine/scorecard.json").resolve() == run
    monkeypatch.chdir(RESULTS.parent)
    name = "binary_mnist-mnist5k"
    assert html.locate(name).resolve() == RESULTS / name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "report which run?"),
        (["a", "b"], "report which run?"),
        (["binary_mnist-mnist5"], "did you mean 'binary_mnist-mnist"),
        (
            ["binary_mnist-mnist5k", "to=x"],
            "takes RUN, out=FILE and figures=redraw, not 'to=x'",
        ),
        (["binary_mnist-mnist5k", "out=/no/such/x.html"], "no such folder /no/such"),
    ],
)
def test_wrong_words(words, message, capsys, monkeypatch):
    monkeypatch.chdir(RESULTS.parent)
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_page_without_arrays_says_so_and_damaged_ones_are_named(
    data, tmp_path, capsys
):
    place = pages.folder(tmp_path, "x", data)
    assert main(["report", str(place), f"out={tmp_path / 'r.html'}"]) == 0
    assert "stays out of git" in (tmp_path / "r.html").read_text()
    (place / "scorecard.npz").write_bytes(b"no archive")
    assert main(["report", str(place)]) == 2
    assert "scorecard.npz" in capsys.readouterr().err


def test_steps_become_curves_and_many_targets_are_thinned(data):
    steps = [{"sqrt_mean": 0.1 * t, "accuracy": 0.9} for t in range(1, 6)]
    data["defenses"]["dpsgd"]["steps"] = steps
    card = pages.card(data, pages.arrays(data, targets=5000))
    drawn = target_plots.budgets(card)
    assert len(drawn) == 2
    colour = list(data["defenses"]).index("dpsgd")
    assert all(f"stroke: var(--c{colour})" in plot for plot in drawn.values())
    assert "one in 3 is drawn" in target_plots.thinned(card)
    atlas = target_plots.atlas(card, template.Album())
    assert len(atlas["rows"]) == target_plots.MOST_TARGETS


def test_the_atlas_goes_from_the_worst_hit_to_the_best_kept(data):
    arrays = pages.arrays(data)
    for key in arrays:
        if key.endswith("/mse"):
            arrays[key] = np.arange(12)[::-1] / 12
    atlas = target_plots.atlas(pages.card(data, arrays), template.Album())
    names = [row["name"].split(":")[0] for row in atlas["rows"]]
    assert names == [str(i) for i in reversed(range(12))]


def test_a_hostile_run_runs_nothing_in_a_browser(data, tmp_path):
    place = pages.folder(tmp_path, "x", pages.hostile(data))
    np.savez(place / "scorecard.npz", **pages.arrays(data))
    assert main(["report", str(place)]) == 0
    text = (place / "report.html").read_text()
    assert text.count("<script>") == 1
    assert "<img src=x" not in text
    shown, requests = pages.opened(place / "report.html", tmp_path)
    assert "<title>binary_mnist on mnist5k: report</title>" in shown
    assert requests == []


def test_scorecards_escape_what_a_trial_says(data):
    text = markdown.render(pages.card(pages.hostile(data)), [])
    lines = [line for line in text.split("\n") if line.startswith("| ")]
    rows = [line for line in lines if "reconstructor" in line]
    assert rows
    assert not any("<script" in line or "<img" in line for line in rows)
