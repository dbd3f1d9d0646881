"""`reproduce`: verdicts, exit codes, resumption, and one tiny source end to end."""

import json
import math
import re
import types

import numpy as np
import pytest

import audit.__main__ as cli
from audit import data
from audit.cli.reproduce import allowance, execute, figures, published, verdicts
from audit.cli.reproduce.plan import Job, Plan
from audit.cli.reproduce.published import Tolerance
from audit.cli.reproduce.verdicts import judge
from audit.config import workspace
from audit.engine import trials
from audit.engine.progress import OutOfTime
from audit.errors import UserError
from audit.scorecard import card as cards
from tests import ROOT, commands, pages
from tests.cli.reproduce.test_published import BUILT_IN, DRAWN, FILE, written

PAGES = ROOT / "results/reproduction"
COMMITTED = sorted(file.stem for file in PAGES.glob("*.json"))


@pytest.fixture
def listed(tmp_path):
    return published.load(written(tmp_path, FILE))[1][0]


def trial(defense, attack, mse, status="ok"):
    result = {"mse": mse, "oracle": attack == "oracle"}
    labels = {"defense": defense, "attack": attack, "status": status}
    return labels | {"result": result, "flags": []}


# Verdicts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("band", "value", "ours", "near"),
    [
        ({"relative": 0.1}, 0.5, 0.45, True),  # the edges are in
        ({"relative": 0.1}, 0.5, 0.55, True),
        ({"relative": 0.1}, 0.5, 0.4499, False),
        ({"relative": 0.1}, 0.5, 0.5501, False),
        ({"relative": 0.1}, -0.5, -0.52, True),
        ({"relative": 0.1}, -0.5, 0.5, False),
        ({"absolute": 0.003}, 0.5, 0.503, True),
        ({"absolute": 0.003}, 0.5, 0.497, True),
        ({"absolute": 0.003}, 0.5, 0.50301, False),
        ({"absolute": 0.003}, 0.5, float("nan"), False),
    ],
)
def test_band_edges(band, value, ours, near):
    assert verdicts.within(Tolerance(**band, why="a test"), value, ours) is near


NEAR, FAR, NONE = ((0.4, 0.6),), ((0.5, 0.9),), ((), "no GPU")
BROKEN = ((), "nothing there", True)  # and there should be


@pytest.mark.parametrize(
    ("claim", "reading", "verdict", "broken", "stale"),
    [
        ("reproduced", NEAR, "reproduced", False, False),
        ("reproduced", FAR, "differs", True, False),
        ("reproduced", NONE, "not run", False, False),
        ("reproduced", BROKEN, "not run", True, False),
        ("differs", FAR, "differs", False, False),
        ("differs", NEAR, "differs", False, True),
        ("differs", NONE, "not run", False, False),
        ("differs", BROKEN, "not run", True, False),
        ("not run", NEAR, "reproduced", False, True),
        ("not run", FAR, "differs", False, True),
        ("not run", NONE, "not run", False, False),
        ("not run", BROKEN, "not run", True, False),
    ],
)
def test_verdicts(listed, claim, reading, verdict, broken, stale):
    """The mean over seeds is compared; what is said to differ is never counted."""
    reason = None if claim == "reproduced" else "explained"
    number = listed.model_copy(update={"claim": claim, "reason": reason})
    got = judge(number, "full", *reading)
    assert (got.verdict, got.broken, got.stale) == (verdict, broken, stale)
    assert got.verdict == "reproduced" or got.verdict_reason
    smoke = judge(number, "smoke", *reading)  # is never compared, and fails if broken
    assert smoke.verdict == ("smoke" if reading[0] else "not run")
    assert (smoke.broken, smoke.stale) == (reading is BROKEN, False)


def test_what_a_reproduced_number_does_not_tell(listed):
    """Of three rows ours are .46, .5 and .8: two of them agree with both bands."""
    band = Tolerance(absolute=0.05, why="a test")
    rows = [
        judge(
            listed.model_copy(
                update={"row": row, "band": band, "published": published, "blind": 0.5}
            ),
            "full",
            [ours],
        )
        for row, published, ours in (
            ("a", 0.48, 0.46),
            ("b", 0.47, 0.5),
            ("c", 0.8, 0.8),
        )
    ]
    assert [v.verdict for v in rows] == ["reproduced"] * 3
    assert [v.verdict_reason[-16:] for v in rows] == ["in this band too"] * 2 + [""]
    text = verdicts.cautions(rows)
    assert "of the 3 reproduced, 2 would also be by ours of another row" in text
    assert "and 2 by an attack that learns nothing." in text


def test_numbers_in_words():
    for numbers, text in (
        ((0.5, 0.1), ".5000 ± .1000"),
        ((0.5, 10.05), ".5000 ± 10.0500"),
        ((0.5, 0.0), ".5000 ± .0000"),
        ((2.49, None), "2.4900"),
        ((1.0, None), "1.0000"),  # a share
        ((24.0, None), "24"),  # a count
    ):
        assert verdicts.printed(*numbers) == text
    for values, text in (([], "-"), ([0.25], ".2500"), ([0.4, 0.6], ".5000 ± .1414")):
        assert verdicts.mean_and_sd(values) == text


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_pages_follow_from_the_values_they_hold(name):
    page = verdicts.read_pages(PAGES)[name]
    page.numbers = [
        judge(n, "full", n.values, n.verdict_reason, seeds=n.seeds)
        for n in page.numbers
    ]
    assert verdicts.to_json(page) == (PAGES / f"{name}.json").read_text()
    drawn = published.load(BUILT_IN[name])[0].figures
    drawn = {f"{name}_figure_{figure.figure}.png": figure for figure in drawn}
    assert verdicts.markdown(page, drawn) == (PAGES / f"{name}.md").read_text()


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_pages_list_what_the_files_say(name):
    numbers = verdicts.read_pages(PAGES)[name].numbers
    for listed, kept in zip(published.load(BUILT_IN[name])[1], numbers, strict=True):
        facts = listed.model_dump()
        assert kept.model_dump(include=set(facts)) == facts


def test_the_mean_image_would_reproduce_an_error_on_faces():
    """Its error on LFW, .7207, lies nearer to the published than ours."""
    numbers = verdicts.read_pages(PAGES)["dirdp"].numbers
    [number] = [
        n for n in numbers if (n.table, n.row) == ("4 LeNet LFW", "VMF, eps 300k")
    ]
    assert verdicts.by_a_blind_attack(number)
    assert "an attack that learns nothing gets .7200" in number.verdict_reason


def test_the_committed_overview_follows_from_the_pages():
    text = verdicts.overview(verdicts.read_pages(PAGES))
    assert text == (PAGES.parent / "REPRODUCTION.md").read_text()


def test_where_a_number_is_read(listed):
    """In the part of a defense, in the result of a trial, or as a difference of two."""
    errors = [("x", "a", 3), ("x", "b", 2), ("x", "oracle", 1), ("y", "a", 7)]
    trials = [trial(*each) for each in errors]
    defenses = {k: {"eta": {"mean": 1}, "steps": [{"accuracy": 0.5}]} for k in "xy"}
    arrays = {"x/eta": np.arange(200.0), "y/eta": np.roll(np.arange(200.0), 10)}
    card = {"floor": {"mse": 9}, "defenses": defenses, "trials": trials}
    card = pages.typed(**card, arrays=arrays)

    def read(key, attack=None, minus=None):
        place = {"key": key, "attack": attack, "minus": minus, "defense": "x"}
        return execute.read(card, listed.model_copy(update=place))

    assert [read(k) for k in ("steps.0.accuracy", "floor.mse", "shared.y")] == [
        0.5, 9, 90,
    ]  # fmt: skip
    assert [read("mse", attack) for attack in ("a", "strongest")] == [3, 2]
    assert read("mse", "a", minus="y") == -4
    with pytest.raises(LookupError, match="no trial of b on y"):
        read("mse", "b", minus="y")


# Runs ---------------------------------------------------------------------------------


class Bench:
    """A place to run in, whose runs leave a card with the error they are told."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.done, self.mse, self.fails = folder, [], 0.5, False
        self.most = 99  # runs until the time that is given is spent
        monkeypatch.chdir(folder)
        monkeypatch.setattr(cli, "_audit", self.run)

    def run(self, scenario, command, until=None):
        if until is not None and len(self.done) >= self.most:
            raise OutOfTime  # as the next report would
        self.done.append((scenario.spec.seed, scenario.spec.runs))
        folder, digest = workspace.open_folder(scenario, cli.RUNS)
        code = workspace.code_version(scenario)
        trials = [trial("noisy_sum", "a", self.mse, "failed" if self.fails else "ok")]
        facts = {"scenario": scenario.resolved(), "defenses": {"noisy_sum": {}}}
        card = pages.typed(**facts, trials=trials)
        made = {"scenario_digest": digest, "code": code}
        card = card._replace(provenance=card.provenance.model_copy(update=made))
        cards.save(card, folder)
        return int(self.fails)

    def reproduce(self, *words, source="mine"):
        self.done.clear()
        where = "--config-dir", str(self.folder)
        return commands.call("reproduce", source, *where, *words)

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
    assert "seed=1" in (bench.folder / "results/reproduction/mine.md").read_text()
    every = (bench.folder / "results/REPRODUCTION.md").read_text()
    assert "Of 1 published numbers, 1 are reproduced (100%), 0 differ" in every
    assert "| [mine](reproduction/mine.md) | a source | 1 | 1 | 0 | 0 | 100% |" in every
    assert "| 1 | Sum | MSE | .5000 ± .1000 | .5000 ± .0000 | ± 10% | repro" in every


def test_a_claimed_number_that_leaves_its_band_or_is_not_there_fails(bench, capsys):
    bench.mse = 0.56
    assert bench.reproduce() == 1
    assert "failed: table 1, Sum, MSE: published .5000" in capsys.readouterr().err
    assert bench.page()["numbers"][0]["verdict"] == "differs"
    written(bench.folder, FILE.replace("key: mse", "key: msee"))
    for budget in ("full", "smoke"):
        assert bench.reproduce(f"budget={budget}") == 1
        assert "did you mean 'mse'?" in capsys.readouterr().err


def test_finished_runs_are_not_run_again_by_the_same_code(bench, monkeypatch):
    assert bench.reproduce() == 0
    page = bench.page()
    assert bench.reproduce() == 0
    assert bench.done == []
    assert bench.page() == page
    one = next(iter((bench.folder / "results/runs").glob("*/scorecard.json")))
    one.unlink()  # as if killed between two seeds
    assert bench.reproduce() == 0
    assert len(bench.done) == 1
    monkeypatch.setattr(workspace, "code_version", lambda scenario: "1" * 64)
    assert bench.reproduce() == 0
    assert len(bench.done) == 2


def test_a_run_that_fails_is_tried_again(bench, monkeypatch, capsys):
    bench.fails = True
    assert bench.reproduce() == 1
    assert bench.page()["numbers"][0]["verdict"] == "not run"
    assert "its run failed: 1 of its trials" in capsys.readouterr().err
    bench.fails = False
    assert bench.reproduce() == 0
    assert bench.done == [(0, 10), (1, 10)]
    monkeypatch.setattr(workspace, "code_version", lambda scenario: "1" * 64)
    monkeypatch.setattr(cli, "_audit", lambda scenario, command, until: 1 / 0)
    assert bench.reproduce() == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err
    # nothing is lost: the numbers of both seeds are those of the code before
    for _ in range(2):
        [number] = bench.page()["numbers"]
        assert (number["values"], number["seeds"]) == ([0.5, 0.5], [0, 1])
        statuses = {run["status"] for run in bench.page()["runs"]}
        assert statuses == {"finished by earlier code"}
        assert bench.reproduce() == 1


def test_numbers_of_other_settings_are_not_kept(bench, monkeypatch):
    """The same command, of a scenario whose file says something else now."""
    assert bench.reproduce() == 0
    monkeypatch.setattr(workspace, "code_version", lambda scenario: "1" * 64)
    place = workspace.place
    monkeypatch.setattr(workspace, "place", lambda *a: (place(*a)[0], "2" * 64))
    bench.most = 0
    assert bench.reproduce("hours=1") == 0
    [number] = bench.page()["numbers"]
    assert (number["values"], number["verdict"]) == ([], "not run")


def test_a_record_that_is_kept_says_which_settings_it_is_of(bench, monkeypatch):
    assert bench.reproduce() == 0
    page = bench.folder / "results/reproduction/mine.json"
    text, digests = (
        page.read_text(),
        [r["scenario_digest"] for r in bench.page()["runs"]],
    )
    for digest in digests:
        text = text.replace(digest, "")
    page.write_text(text)
    monkeypatch.setattr(workspace, "code_version", lambda scenario: "1" * 64)
    bench.most = 0
    assert bench.reproduce("hours=1") == 0
    assert [run["scenario_digest"] for run in bench.page()["runs"]] == digests
    assert len(set(digests)) == 2


def test_smoke_compares_nothing_and_writes_no_page(bench, capsys):
    bench.mse = 99.0
    assert bench.reproduce("budget=smoke") == 0
    assert bench.done == [(0, 1)]
    output = capsys.readouterr().out
    assert verdicts.SMOKE in output
    assert "reproduced (" not in output
    assert not (bench.folder / "results/reproduction").exists()


def test_without_a_gpu_a_smoke_run_stands_in_and_is_compared_with_nothing(
    bench, monkeypatch
):
    written(bench.folder, FILE.replace("seeds: [0, 1]", "seeds: [0, 1], device: gpu"))
    monkeypatch.setattr(execute, "_gpu", lambda: False)
    bench.mse = 99.0
    assert bench.reproduce() == 0
    assert bench.done == [(0, 1)]
    [number] = bench.page()["numbers"]
    assert (number["verdict"], number["values"]) == ("not run", [])
    assert re.fullmatch(
        r"[\d.]+ h on \d+ cores; a smoke run stood in", number["verdict_reason"]
    )
    # with one it is run, and then needs none
    bench.mse = 0.5
    monkeypatch.setattr(execute, "_gpu", lambda: True)
    assert bench.reproduce() == 0
    monkeypatch.setattr(execute, "_gpu", lambda: False)
    assert bench.reproduce() == 0
    assert bench.done == []
    assert bench.page()["share_reproduced"] == 1


def test_a_run_stops_when_its_hours_are_spent_and_goes_on(bench, capsys):
    """A run that asks for a GPU is made on what there is."""
    written(bench.folder, FILE.replace("seeds: [0, 1]", "seeds: [0, 1], device: gpu"))
    bench.most = 1
    assert bench.reproduce("hours=1") == 0
    assert bench.done == [(0, 10)]
    page = bench.page()
    assert (page["numbers"][0]["seeds"], page["numbers"][0]["values"]) == ([0], [0.5])
    assert page["runs"][0]["status"] == "finished"
    assert re.fullmatch(r"[\d.]+ h on (1 core|\d+ cores)", page["runs"][1]["status"])
    assert "| 1 of 2 |" in (bench.folder / "results/reproduction/mine.md").read_text()
    output = capsys.readouterr().out
    assert "numbers per hour" in output
    assert "the same command goes on" in output
    assert bench.reproduce("hours=1") == 0
    assert bench.done == [(1, 10)]
    assert bench.page()["share_reproduced"] == 1


def test_runs_are_made_side_by_side_on_a_cluster(bench, monkeypatch, capsys):
    """Each once; what the cluster did not finish is made here."""
    asked = []

    def compute(work, until):
        asked.extend(trial.command for trial in work)
        codes = iter([None, 1])
        yield from (trials.Ended(t.command, next(codes), "why") for t in work)

    monkeypatch.setattr(trials, "compute", compute)
    assert bench.reproduce("engine=ray") == 0
    assert [f" seed={i} " in command for i, command in enumerate(asked)] == [True] * 2
    output = capsys.readouterr().out
    assert "2 runs on the cluster" in output
    assert "1 of 2: no time left: python -m audit run" in output
    assert "2 of 2: exit code 1: why: python -m audit run" in output
    assert len(bench.done) == 2
    assert bench.page()["share_reproduced"] == 1
    assert bench.reproduce("engine=ray") == 0
    assert len(asked) == 2


def test_numbers_of_earlier_code_are_kept_where_a_run_cannot_be_made(
    bench, monkeypatch, capsys
):
    """Until it can be; a number that is read elsewhere now is not kept."""
    assert bench.reproduce() == 0
    monkeypatch.setattr(workspace, "code_version", lambda scenario: "1" * 64)
    bench.most, bench.mse = 0, 0.52
    assert bench.reproduce("hours=1") == 0
    assert "by earlier code" in capsys.readouterr().out
    page = bench.page()
    assert page["numbers"][0]["values"] == [0.5, 0.5]
    assert page["numbers"][0]["verdict"] == "reproduced"
    earlier = [(run["status"], run["code"] == "1" * 64) for run in page["runs"]]
    assert earlier == [("finished by earlier code", False)] * 2
    # the command counts, whatever the file calls the run
    written(bench.folder, FILE.replace("  a:\n", "  b:\n").replace("run: a", "run: b"))
    assert bench.reproduce("hours=1") == 0
    assert bench.page()["numbers"][0]["values"] == [0.5, 0.5]
    assert [run["run"] for run in bench.page()["runs"]] == ["b", "b"]
    # with little time, a seed that nobody has made comes before those of earlier code
    written(bench.folder, FILE.replace("seeds: [0, 1]", "seeds: [0, 7, 1]"))
    bench.most = 1
    assert bench.reproduce("hours=1") == 0
    assert bench.done == [(7, 10)]
    [number] = bench.page()["numbers"]
    assert dict(zip(number["seeds"], number["values"], strict=True)) == {
        0: 0.5, 1: 0.5, 7: 0.52,
    }  # fmt: skip
    assert [run["status"] == "finished" for run in bench.page()["runs"]] == [
        False, True, False,
    ]  # fmt: skip
    written(bench.folder, FILE)
    bench.most = 99
    assert bench.reproduce("hours=1") == 0
    page = bench.page()
    assert page["numbers"][0]["values"] == [0.52, 0.52]
    assert [run["status"] for run in page["runs"]] == ["finished"] * 2
    written(bench.folder, FILE.replace("key: mse", "key: oracle"))
    monkeypatch.setattr(workspace, "code_version", lambda scenario: "2" * 64)
    bench.most = 0
    assert bench.reproduce("hours=1") == 0
    assert bench.page()["numbers"][0]["verdict"] == "not run"


def test_what_buys_most_numbers_comes_first(monkeypatch, tmp_path):

    def job(name, seed=0):
        spec = types.SimpleNamespace(seed=seed)
        return Job(types.SimpleNamespace(name=name, spec=spec), "")

    jobs = {name: {"full": [job(name)]} for name in ("slow", "many", "none")}
    of = lambda run: types.SimpleNamespace(run=run)
    numbers = [of("slow"), *[of("many")] * 4, of("none")]
    plan = Plan("mine", None, numbers, "full", jobs)
    hours = {"slow": 1.0, "many": 2.0, "none": math.inf}
    monkeypatch.setattr(allowance, "planned", lambda scenario: hours[scenario.name])
    monkeypatch.setattr(allowance, "finished", lambda scenario, runs: None)
    costs = allowance.costs([plan], tmp_path)
    assert [(c.run, c.hours, c.numbers) for c in costs] == [
        ("many", 2.0, 4), ("slow", 1.0, 1), ("none", math.inf, 1),
    ]  # fmt: skip
    rows = [line.split()[1:] for line in allowance.table(costs).split("\n")[2:]]
    assert rows == [
        ["many", "4", "2", "2"], ["slow", "1", "1", "1"], ["none", "1", "no", "data"],
    ]  # fmt: skip
    monkeypatch.setattr(allowance, "finished", lambda scenario, runs: "a card")
    assert {c.hours for c in allowance.costs([plan], tmp_path)} == {0}
    monkeypatch.setattr(allowance, "finished", lambda scenario, runs: None)
    costs = allowance.costs([plan], tmp_path, {("mine", "many"): {0}})
    assert [(c.run, c.hours) for c in costs][1:] == [("none", math.inf), ("many", 0)]
    jobs["many"]["full"].append(job("many", 1))  # a further seed
    costs = allowance.costs([plan], tmp_path, {("mine", "many"): {0}})
    assert [(c.run, c.hours) for c in costs] == [
        ("slow", 1), ("none", math.inf), ("many", 2),
    ]  # fmt: skip


def test_a_figure_is_drawn_from_published_and_ours(bench):
    file = written(bench.folder, FILE + DRAWN)
    assert bench.reproduce() == 1  # .5 is far from the second table's .7
    folder = bench.folder / "results/reproduction"
    assert (folder / "mine_figure_3.1.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "mine.md").read_text()
    assert "## Figure 3.1: one against the other" in page
    assert "![published and ours](mine_figure_3.1.png)\n\nleft is better" in page

    source, numbers = published.load(file)
    panel = source.figures[0].panels[0]
    across, up = (judge(n, "full", (0.4, 0.6)) for n in numbers)
    [line] = figures.points(panel, [up, across])["Sum"]
    np.testing.assert_allclose(line, [0.5, 0.7, 0.5, 0.5])
    unrun = judge(numbers[1], "full")
    [line] = figures.points(panel, [across, unrun])["Sum"]
    np.testing.assert_allclose(line, [0.5, 0.7, 0.5, np.nan])


def test_the_table_names_a_page_that_is_none(tmp_path):
    (tmp_path / "mine.json").write_text('{"numbers": [{}]}')
    with pytest.raises(UserError, match=r"mine\.json: not a page of `reproduce`"):
        verdicts.read_pages(tmp_path)


def test_a_page_whose_values_have_lost_their_seeds_is_none(tmp_path):
    page = json.loads((PAGES / "hannun.json").read_text())
    page["numbers"][0]["seeds"] = [0, 1]
    (tmp_path / "mine.json").write_text(json.dumps(page))
    with pytest.raises(UserError, match=r"table 1, Linear, .*1 values of 2 seeds"):
        verdicts.read_pages(tmp_path)


def test_without_the_data_nothing_is_run(bench, monkeypatch, capsys):
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
    files = published.files([bench.folder])
    monkeypatch.setattr(published, "files", lambda folders: files)
    assert bench.reproduce(source="all") == 0
    assert bench.done == [(0, 10), (1, 10)]  # the second source finds them finished
    pages = (bench.folder / "results/reproduction").glob("*.md")
    assert {p.stem for p in pages} == {"mine", "yours"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "reproduce which? one of"),
        ("thesis guo", "reproduce which? one of"),
        ("mien", "unknown source 'mien'; did you mean 'mine'?"),
        ("mine budget=smok", "unknown budget 'smok'; did you mean 'smoke'?"),
        ("mine seed=1", "SOURCE, budget=, hours= and engine=, not 'seed=1'"),
        ("mine -m", "SOURCE, budget=, hours= and engine=, not '-m'"),
        ("mine --config-dir /no/such", "no such folder"),
        ("mine hours=0", "hours=0: a number above 0, at most 10,000"),
        ("mine hours=soon", "hours=soon: a number above 0"),
    ],
)
def test_words_typed_wrong(bench, words, message, capsys):
    place = [] if "--config-dir" in words else ["--config-dir", str(bench.folder)]
    assert message in commands.refused(capsys, "reproduce", *words.split(), *place)
    assert bench.done == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("calibration", "calibratoin", "did you mean 'calibration'?"),
        ("[runs=1]", "[run=1]", "unknown key run; did you mean 'runs'?"),
        ("noisy_sum", "noisy_sun", "has no defense 'noisy_sun'; did you mean"),
        ("row: Sum", "row: Sum, minus: sum", "has no defense 'sum'; did you mean"),
        ("strongest", "sum", "scenario calibration has no attack 'sum'; there is"),
        ("data: digits, seeds: [0, 1]", "data: digit, seeds: [0]", "unknown data set"),
    ],
)
def test_a_file_that_cannot_work_is_refused(bench, old, new, message, capsys):
    file = written(bench.folder, FILE.replace(old, new))
    assert bench.reproduce() == 2
    line = capsys.readouterr().err
    assert message in line
    assert str(file) in line
    assert line.count("\n") == 1
    assert bench.done == []


def test_a_tiny_source_end_to_end(tmp_path, monkeypatch, capsys):
    """A real run: the calibration attack's error is known."""
    monkeypatch.chdir(tmp_path)
    text = FILE.replace("seeds: [0, 1]", "seeds: [0], words: [runs=4]")
    written(tmp_path, text.replace("published: 0.5", "published: 6.9e-5"))
    words = ["reproduce", "mine", "--config-dir", str(tmp_path)]
    assert commands.call(*words) == 0
    output = capsys.readouterr().out
    assert "1 published number listed: 1 reproduced (100%)" in output
    kept = json.loads((tmp_path / "results/reproduction/mine.json").read_text())
    [card] = (tmp_path / "results/runs").glob("*/scorecard.json")
    card = json.loads(card.read_text())
    best = min(t["result"]["mse"] for t in card["trials"] if not t["result"]["oracle"])
    np.testing.assert_allclose(kept["numbers"][0]["ours"], best)
    assert kept["runs"][0]["code"] == card["provenance"]["code"]

    monkeypatch.setattr(cli, "_audit", lambda *a: pytest.fail("ran again"))
    assert commands.call(*words) == 0
