"""`reproduce`: verdicts, exit codes, resumption, and one tiny source end to end."""

import json

import numpy as np
import pytest

import audit.__main__ as cli
from audit.cli.reproduce import (
    execute,
    overview,
    redrawn,
    verdicts,
)
from audit.cli.reproduce import (
    published as expected,
)
from audit.cli.reproduce.published import Band
from audit.cli.reproduce.verdicts import Reading, judge
from audit.config import workspace
from audit.scorecard import card as cards
from tests.cli.reproduce.test_published import DRAWN, FILE, written


@pytest.fixture
def listed(tmp_path):
    return expected.load(written(tmp_path, FILE))[1][0]


def call(*words):
    return cli.main(["reproduce", *words])


# Verdicts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("band", "ours", "near"),
    [
        ({"relative": 0.1}, 0.45, True),  # the edges are in
        ({"relative": 0.1}, 0.55, True),
        ({"relative": 0.1}, 0.4499, False),
        ({"relative": 0.1}, 0.5501, False),
        ({"absolute": 0.003}, 0.503, True),
        ({"absolute": 0.003}, 0.497, True),
        ({"absolute": 0.003}, 0.50301, False),
        ({"absolute": 0.003}, float("nan"), False),
    ],
)
def test_band_edges(band, ours, near):
    assert verdicts.within(Band(**band, why="a test"), 0.5, ours) is near


def test_a_band_round_a_negative_value():
    band = Band(relative=0.1, why="a test")
    assert verdicts.within(band, -0.5, -0.52)
    assert not verdicts.within(band, -0.5, 0.5)


NEAR, FAR, NONE = Reading((0.4, 0.6)), Reading((0.5, 0.9)), Reading((), "no GPU")
BROKEN = Reading((), "nothing there", broken=True)
CASES = {  # claim, reading -> verdict, broken, stale
    ("reproduced", NEAR): ("reproduced", False, False),
    ("reproduced", FAR): ("differs", True, False),
    ("reproduced", NONE): ("not run", False, False),
    ("reproduced", BROKEN): ("not run", True, False),
    ("differs", FAR): ("differs", False, False),
    ("differs", NEAR): ("differs", False, True),
    ("differs", NONE): ("not run", False, False),
    ("differs", BROKEN): ("not run", True, False),
    ("not run", NEAR): ("reproduced", False, True),
    ("not run", FAR): ("differs", False, True),
    ("not run", NONE): ("not run", False, False),
    ("not run", BROKEN): ("not run", True, False),
}


@pytest.mark.parametrize("claim", ["reproduced", "differs", "not run"])
@pytest.mark.parametrize("reading", [NEAR, FAR, NONE, BROKEN])
def test_verdicts(listed, claim, reading):
    """The mean over seeds is compared; what is said to differ is never counted."""
    reason = None if claim == "reproduced" else "explained"
    got = judge(listed._replace(claim=claim, reason=reason), reading, "full")
    assert (got.verdict, got.broken, got.stale) == CASES[claim, reading]
    if got.verdict != "reproduced":
        assert got.reason


@pytest.mark.parametrize("claim", ["reproduced", "differs", "not run"])
@pytest.mark.parametrize("reading", [NEAR, FAR])
def test_a_smoke_run_is_never_compared(listed, claim, reading):
    got = judge(listed._replace(claim=claim, reason="explained"), reading, "smoke")
    assert (got.verdict, got.broken, got.stale) == ("smoke", False, False)


def test_a_smoke_run_without_its_number_fails(listed):
    assert judge(listed, BROKEN, "smoke").broken


def test_numbers_in_words(listed):
    assert verdicts.printed(0.5, 0.1) == ".5000 ± .1000"
    assert verdicts.printed(0.5, 10.05) == ".5000 ± 10.0500"
    assert verdicts.printed(0.5, 0.0) == ".5000 ± .0000"
    assert verdicts.printed(2.49, None) == "2.4900"
    assert verdicts.printed(1.0, None) == "1.0000"  # a share
    assert verdicts.printed(24.0, None) == "24"  # a count
    assert verdicts.ours(()) == "-"
    assert verdicts.ours((0.25,)) == ".2500"
    assert verdicts.ours((0.4, 0.6)) == ".5000 ± .1414"
    page = verdicts.markdown("t", "s", [judge(listed, FAR, "full")], [])
    assert "1 published numbers listed: 0 reproduced (0%), 1 differ, 0 not run" in page
    assert "| Sum | MSE | .5000 ± .1000 | .7000 ± .2828 | 2 | ± 10% | differs |" in page


# Runs ---------------------------------------------------------------------------------


class Bench:
    """A place to run in, whose runs leave a card with the error they are told."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.done, self.mse, self.fails = folder, [], 0.5, False
        monkeypatch.chdir(folder)
        monkeypatch.setattr(cli, "_audit", self.run)

    def run(self, scenario, command):
        self.done.append((scenario.spec.seed, scenario.spec.runs))
        folder, digest = workspace.open_folder(scenario, cli.RUNS)
        status = "failed" if self.fails else "ok"
        result = {"mse": self.mse, "oracle": False}
        trial = {"defense": "noisy_sum", "attack": "a", "status": status}
        trial |= {"result": result, "flags": []}
        where = {
            "scenario_digest": digest,
            "code": workspace.code_version(scenario),
            "seconds": 1,
        }
        own = {"noisy_sum": {}}
        card = cards.Scorecard(scenario.resolved(), where, {}, {}, own, [trial], {})
        cards.save(card, folder)
        return int(self.fails)

    def reproduce(self, *words):
        self.done.clear()
        return call("mine", "--config-dir", str(self.folder), *words)

    def page(self):
        return json.loads((self.folder / "results/reproduction/mine.json").read_text())


@pytest.fixture
def bench(tmp_path, monkeypatch):
    written(tmp_path, FILE)
    return Bench(tmp_path, monkeypatch)


def test_every_seed_is_run_and_the_share_is_written(bench, capsys):
    assert bench.reproduce() == 0
    assert bench.done == [(0, 10), (1, 10)]
    page = bench.page()
    assert (page["listed"], page["share_reproduced"]) == (1, 1.0)
    assert page["numbers"][0]["values"] == [0.5, 0.5]
    assert [run["status"] for run in page["runs"]] == ["finished"] * 2
    assert "1 reproduced (100%)" in capsys.readouterr().out
    text = (bench.folder / "results/reproduction/mine.md").read_text()
    assert "seed=1" in text


def test_a_claimed_number_that_leaves_its_band_fails(bench, capsys):
    bench.mse = 0.56
    assert bench.reproduce() == 1
    assert "failed: table 1, Sum, MSE: published .5000" in capsys.readouterr().err
    assert bench.page()["numbers"][0]["verdict"] == "differs"


def test_finished_runs_are_not_run_again(bench):
    assert bench.reproduce() == 0
    page = bench.page()
    assert bench.reproduce() == 0
    assert bench.done == []
    assert bench.page() == page
    one = next(iter((bench.folder / "results/runs").glob("*/scorecard.json")))
    one.unlink()  # as if killed between two seeds
    assert bench.reproduce() == 0
    assert len(bench.done) == 1


def test_other_code_runs_again(bench, monkeypatch):
    assert bench.reproduce() == 0
    monkeypatch.setattr(workspace, "code_version", lambda scenario: "other")
    assert bench.reproduce() == 0
    assert len(bench.done) == 2


def test_a_run_with_failed_trials_fails_and_is_tried_again(bench, capsys):
    bench.fails = True
    assert bench.reproduce() == 1
    assert bench.page()["numbers"][0]["verdict"] == "not run"
    assert "its run failed: 1 of its trials" in capsys.readouterr().err
    bench.fails = False
    assert bench.reproduce() == 0
    assert bench.done == [(0, 10), (1, 10)]


def test_a_run_that_raises_fails(bench, monkeypatch, capsys):
    def broken(scenario, command):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(cli, "_audit", broken)
    assert bench.reproduce() == 1
    assert "RuntimeError: out of luck" in capsys.readouterr().err


def test_a_place_that_is_not_in_the_card_fails(bench, capsys):
    written(bench.folder, FILE.replace("result.mse", "result.msee"))
    for budget in ("full", "smoke"):
        assert bench.reproduce(f"budget={budget}") == 1
        assert "did you mean 'mse'?" in capsys.readouterr().err


def test_smoke_compares_nothing_and_writes_no_page(bench, capsys):
    bench.mse = 99.0
    assert bench.reproduce("budget=smoke") == 0
    assert bench.done == [(0, 1)]
    said = capsys.readouterr().out
    assert verdicts.SMOKE in said
    assert "reproduced (" not in said
    assert not (bench.folder / "results/reproduction").exists()


def on_gpu(bench):
    written(bench.folder, FILE.replace("seeds: [0, 1]", "seeds: [0, 1], device: gpu"))


def test_without_a_gpu_a_smoke_run_stands_in_and_is_compared_with_nothing(
    bench, monkeypatch
):
    on_gpu(bench)
    monkeypatch.setattr(execute, "_gpu", lambda: False)
    bench.mse = 99.0
    assert bench.reproduce() == 0
    assert bench.done == [(0, 1)]
    [number] = bench.page()["numbers"]
    assert (number["verdict"], number["values"]) == ("not run", [])
    assert "no GPU" in number["verdict_reason"]


def test_with_a_gpu_it_is_run_and_then_needs_none(bench, monkeypatch):
    on_gpu(bench)
    monkeypatch.setattr(execute, "_gpu", lambda: True)
    assert bench.reproduce() == 0
    monkeypatch.setattr(execute, "_gpu", lambda: False)
    assert bench.reproduce() == 0
    assert bench.done == []
    assert bench.page()["share_reproduced"] == 1


def test_the_table_of_all_sources(bench):
    assert bench.reproduce() == 0
    page = (bench.folder / "results/REPRODUCTION.md").read_text()
    assert "Of 1 published numbers, 1 are reproduced (100%), 0 differ" in page
    assert "| [mine](reproduction/mine.md) | a source | 1 | 1 | 0 | 0 | 100% |" in page
    assert "| 1 | Sum | MSE | .5000 ± .1000 | .5000 ± .0000 | ± 10% | repro" in page


def test_a_figure_is_drawn_from_published_and_ours(bench):
    file = written(bench.folder, FILE + DRAWN)
    assert bench.reproduce() == 1  # .5 is far from the second table's .7
    folder = bench.folder / "results/reproduction"
    assert (folder / "mine_figure_3.1.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "mine.md").read_text()
    assert "## Figure 3.1: one against the other" in page
    assert "![published and ours](mine_figure_3.1.png)\n\nleft is better" in page

    held, numbers = expected.load(file)
    panel = held.figures[0].panels[0]
    across, up = (judge(n, Reading((0.4, 0.6)), "full") for n in numbers)
    [(published, ours)] = redrawn.points(panel, [up, across]).values()
    np.testing.assert_allclose(published, [[0.5, 0.7]])
    np.testing.assert_allclose(ours, [[0.5, 0.5]])
    unrun = judge(numbers[1], Reading((), "no GPU"), "full")
    [(published, ours)] = redrawn.points(panel, [across, unrun]).values()
    assert (published.shape, ours.shape) == ((1, 2), (0, 2))


def test_the_table_names_a_page_that_is_none(tmp_path):
    (tmp_path / "mine.json").write_text('{"numbers": [{}]}')
    with pytest.raises(ValueError, match=r"mine\.json: not a page of `reproduce`"):
        overview.sources(tmp_path)


def test_without_the_data_nothing_is_run(bench, monkeypatch, capsys):
    from audit import data

    def none(name):
        raise data.DataError("cannot download")

    monkeypatch.setattr(data, "where", lambda name: None)
    monkeypatch.setattr(data, "load", none)
    assert bench.reproduce() == 0
    assert bench.done == []
    [number] = bench.page()["numbers"]
    assert number["verdict_reason"] == "no digits: cannot download"
    assert "0 reproduced (0%), 0 differ, 1 not run" in capsys.readouterr().out


def test_all_is_every_source(bench, monkeypatch):
    written(bench.folder, FILE, "yours")
    files = expected.files([bench.folder])
    monkeypatch.setattr(expected, "files", lambda folders: files)
    assert call("all", "--config-dir", str(bench.folder)) == 0
    assert bench.done == [(0, 10), (1, 10)]  # the second source finds them finished
    pages = (bench.folder / "results/reproduction").glob("*.md")
    assert {p.stem for p in pages} == {"mine", "yours"}


WRONG = {
    (): "reproduce which? one of",
    ("thesis", "guo"): "reproduce which? one of",
    ("mien",): "unknown source 'mien'; did you mean 'mine'?",
    ("mine", "budget=smok"): "unknown budget 'smok'; did you mean 'smoke'?",
    ("mine", "seed=1"): "SOURCE and budget=, not 'seed=1'",
    ("mine", "-m"): "SOURCE and budget=, not '-m'",
    ("mine", "--config-dir", "/no/such"): "no such folder",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_words_typed_wrong(bench, words, capsys):
    place = [] if "--config-dir" in words else ["--config-dir", str(bench.folder)]
    assert call(*words, *place) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert WRONG[words] in said
    assert bench.done == []


FILES = {
    "scenario: calibration": ("scenario: calibratoin", "did you mean 'calibration'?"),
    "words: [runs=1]": ("words: [run=1]", "unknown key run; did you mean 'runs'?"),
    "label: noisy_sum": ("label: noisy_sun", "has no defense 'noisy_sun'; did you"),
    "strongest[defense={label}]": (
        "trials[defense={label},attack=sum]",
        "scenario calibration has no attack 'sum'; there is",
    ),
    "data: digits, seeds: [0, 1]": ("data: digit, seeds: [0]", "unknown data set"),
}


@pytest.mark.parametrize("old", FILES)
def test_a_file_that_cannot_work_is_refused_before_anything_runs(bench, old, capsys):
    new, said = FILES[old]
    file = written(bench.folder, FILE.replace(old, new))
    assert bench.reproduce() == 2
    told = capsys.readouterr().err
    assert said in told
    assert str(file) in told
    assert told.count("\n") == 1
    assert bench.done == []


def test_a_tiny_source_end_to_end(tmp_path, monkeypatch, capsys):
    """A real run: the calibration attack's error is known."""
    monkeypatch.chdir(tmp_path)
    text = FILE.replace("seeds: [0, 1]", "seeds: [0], words: [runs=4]")
    written(tmp_path, text.replace("published: 0.5", "published: 6.9e-5"))
    words = ["mine", "--config-dir", str(tmp_path)]
    assert call(*words) == 0
    said = capsys.readouterr().out
    assert "1 published numbers listed: 1 reproduced (100%)" in said
    kept = json.loads((tmp_path / "results/reproduction/mine.json").read_text())
    [card] = (tmp_path / "results/runs").glob("*/scorecard.json")
    held = json.loads(card.read_text())
    best = min(t["result"]["mse"] for t in held["trials"] if not t["result"]["oracle"])
    np.testing.assert_allclose(kept["numbers"][0]["ours"], best)
    assert kept["runs"][0]["code"] == held["provenance"]["code"]

    monkeypatch.setattr(cli, "_audit", lambda *a: pytest.fail("ran again"))
    assert call(*words) == 0
