"""Files of published numbers: what is read from them, and what is refused."""

import json
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest

from audit.accounting import rdp
from audit.cli.reproduce import conventions, execute, plan, published
from audit.cli.reproduce.verdicts import Page, RunRecord
from audit.clipping import GELU_OVERSHOOT
from audit.config import hydra_app, workspace
from audit.config.compose import scenario_names
from audit.data import half_in
from audit.errors import UserError
from audit.scorecard.portable import portable
from tests import ROOT
from tests.commands import composed

BUILT_IN = published.files([hydra_app.BUILT_IN])

FILE = """
title: a source
source: somewhere
runs:
  a:
    scenario: calibration
    full: {data: digits, seeds: [0, 1]}
    smoke: {data: digits, seeds: [0], words: [runs=1]}
bands:
  near: {relative: 0.1, why: a test}
tables:
  - table: "1"
    title: sums
    run: a
    columns:
      mse: {quantity: MSE, band: near, attack: strongest, key: mse}
    rows:
      - {row: Sum, defense: noisy_sum, numbers: {mse: {published: 0.5, sd: 0.1}}}
"""
# a second table beside FILE's, and both drawn against each other
DRAWN = """
  - table: "2"
    title: the same sums
    run: a
    columns:
      mse: {quantity: again, band: near, attack: strongest, key: mse}
      other: {quantity: nothing, band: near, key: floor.mse}
    rows:
      - {row: Sum, defense: noisy_sum, numbers: {mse: {published: 0.7}}}

figures:
  - figure: "3.1"
    title: one against the other
    note: left is better
    panels:
      - {title: sums, across: "1", up: "2"}
"""


# two defenses of one run
BOTH = (
    FILE.replace("calibration", "rero_mnist")
    .replace("seeds: [0, 1]", 'seeds: [0, 1], words: ["defenses=[sigma_75,sigma_5]"]')
    .replace("noisy_sum", "sigma_75")
    + "      - {row: Less, defense: sigma_5, numbers: {mse: {published: 0.7}}}\n"
)


def written(tmp_path, text, name="mine"):
    (tmp_path / "expected").mkdir(exist_ok=True)
    file = tmp_path / "expected" / f"{name}.yaml"
    file.write_text(text)
    return file


def load(tmp_path, text):
    return published.load(written(tmp_path, text))


def test_one_number(tmp_path):
    source, [number] = load(tmp_path, FILE)
    assert source.runs["a"].full.seeds == [0, 1]
    place = (number.run, number.defense, number.attack, number.key)
    assert place == ("a", "noisy_sum", "strongest", "mse")
    assert (number.published, number.sd, number.claim) == (0.5, 0.1, "reproduced")
    assert number.name == "table 1, Sum, MSE"
    text = FILE.replace("    run: a\n", "    run: a\n    sd: 1.0\n    claim: differs\n")
    text = text.replace("{row: Sum,", "{row: Sum, reason: the row's,")
    text = text.replace("{quantity: MSE,", "{quantity: MSE, reason: the column's,")
    _, [number] = load(tmp_path, text)  # the nearest field counts
    assert (number.sd, number.claim, number.reason) == (0.1, "differs", "the row's")


def test_words_within_words(tmp_path):
    full = "seeds: [0, 1], words: &few [runs=2, tile=8]"
    text = FILE.replace("[runs=1]", "[*few, runs=1]").replace("seeds: [0, 1]", full)
    source, _ = load(tmp_path, text)
    assert source.runs["a"].smoke.words == ["runs=2", "tile=8", "runs=1"]


ROW = FILE[FILE.index("      - {row") :]
RUN = FILE[FILE.index("  a:") : FILE.index("bands:")]
WRONG = [
    ("full: {data: digits,", "full: {data: auto, ", "runs.a.full.data=auto"),
    ("seeds: [0, 1]", "seeds: [0, 0]", "a seed counts once"),
    ("data: digits, seeds: [0, 1]", "data: digits, seeds: []", "runs.a.full.seeds"),
    ("seeds: [0, 1]}", "seeds: [0], device: tpu}", "'any' or 'gpu'"),
    ("runs=1", "seed=1", "'seed=1' does not belong in words"),
    ("[runs=1]", "[[seed=1]]", "'seed=1' does not belong in words"),
    ("[runs=1]", "[[[runs=1]]]", "runs.a.smoke.words.0"),
    ("relative: 0.1, why", "relative: 0.1, absolute: 0.1, why", "one of absolute"),
    ("relative: 0.1, why: a test", "relative: 0.1", "bands.near.why: field required"),
    ("relative: 0.1", "relative: -0.1", "bands.near.relative=-0.1"),
    ("run: a\n", "run: b\n", "run 'b' is unknown; there is a"),
    ("    run: a\n", "", "give one of run, formula and absent"),
    ("run: a", "run: a\n    formula: edmunds_epsilon", "one of run, formula and"),
    ("    run: a", "    formula: edmunds_epsilom", "did you mean 'edmunds_epsilon'?"),
    ("    run: a\n", "    absent: not built\n", "key, attack and minus are where"),
    ("band: near", "band: nea", "band 'nea' is unknown; did you mean 'near'?"),
    ("numbers: {mse:", "numbers: {msee:", "did you mean 'mse'?"),
    ("quantity: MSE", "quantiti: MSE", "did you mean 'quantity'?"),
    ("key: mse", "key: mse..x", "key='mse..x'"),
    (", defense: noisy_sum", "", "a run is read at the key of a defense: give both"),
    (", key: mse", "", "a run is read at the key of a defense: give both"),
    ("published: 0.5", "published: 0", "nothing is near 0 by a relative band"),
    ("published: 0.5,", "published: .nan,", "finite"),
    ("sd: 0.1", "sd: -0.1", "sd=-0.1"),
    ("sd: 0.1}", "claim: differs}", "the claim 'differs' needs a reason"),
    ("sd: 0.1", "claim: not run, reason: ''", "reason=''"),
    ("sd: 0.1", "claim: perhaps", "claim='perhaps'"),
    ("title: a source", "titel: a source", "titel='a source'"),
    ("title: a source\n", "title: a source\ntitle: b\n", "duplicate key"),
    ("tables:", "tables: [", "while parsing"),
    (ROW, ROW + ROW, "table 1, Sum, MSE: listed twice"),
    ("bands:", RUN.replace("a:", "b:", 1) + "bands:", "runs.b: no table is read from"),
]  # fmt: skip
WRONG_FIGURES = [
    ('across: "1"', 'across: "7"', "figure 3.1: table '7' is unknown"),
    ("0.7}", "0.7}, other: {published: 1.0}", "table '2' has several columns"),
    ("row: Sum, defense: noisy_sum, numbers: {mse: {published: 0.7", "row: Summe, "
     "defense: noisy_sum, numbers: {mse: {published: 0.7", "its tables' rows differ"),
    ('figure: "3.1"', 'figure: "../3"', "figures.0.figure='../3'"),
    ('up: "2"}', 'up: "2"}\n      - {title: b, across: "2", up: "1"}',
     "figure 3.1: its panels have one quantity up, not 2"),
    ("figures:\n", "figures:\n  - {figure: '3.1', title: b, panels: [{title: b, "
     "across: '2', up: '2'}]}\n", "figure 3.1: listed twice"),
    ("- {title: sums,", "- {", "figures.0.panels.0.title: field required"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [(FILE, *case) for case in WRONG]
    + [(FILE + DRAWN, *case) for case in WRONG_FIGURES],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(tmp_path, text, old, new, message):
    assert text.count(old) >= 1
    with pytest.raises(UserError) as error:
        load(tmp_path, text.replace(old, new))
    assert message in str(error.value)
    assert "mine.yaml" in str(error.value)
    assert "\n" not in str(error.value)


UNREAD = FILE.replace(RUN, "  {}\n").replace(", attack: strongest, key: mse", "")


def test_settings_of_a_formula_are_its_arguments(tmp_path):
    text = UNREAD.replace("run: a", "formula: edmunds_epsilon")
    full = "records: 9, batch_size: 3, epochs: 1, noise_multiplier: 1.0"
    settings = "row: Sum, settings: {%s}"
    _, [number] = load(tmp_path, text.replace("row: Sum", settings % full))
    assert number.settings["records"] == 9
    with pytest.raises(UserError, match="missing a required argument: 'batch_size'"):
        load(tmp_path, text.replace("row: Sum", settings % "records: 9"))


def test_what_nothing_computes_is_listed_as_not_run(tmp_path):
    _, [number] = load(tmp_path, UNREAD.replace("run: a", "absent: not built"))
    assert (number.claim, number.reason, number.key) == ("not run", "not built", None)


# The committed files ------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_committed_files_are_read_and_their_runs_compose(name, monkeypatch):
    monkeypatch.delenv("AUDIT_DATA", raising=False)
    source, _ = published.load(BUILT_IN[name])
    scenarios = scenario_names([hydra_app.BUILT_IN])
    assert {run.scenario for run in source.runs.values()} <= set(scenarios)
    planned = plan.plan(name, BUILT_IN[name], "smoke", None)
    digests = {
        portable(job.command): workspace.place(job.scenario, Path())[1]
        for budgets in planned.jobs.values()
        for job in budgets["full"]
    }
    page = json.loads((ROOT / f"results/reproduction/{name}.json").read_text())
    of_pages = {
        run["command"]: run["scenario_digest"]
        for run in page["runs"]
        if run["status"].startswith("finished")
    }
    assert of_pages
    assert of_pages == {command: digests[command] for command in of_pages}


def test_the_thesis_lists_every_cell():
    _, numbers = published.load(BUILT_IN["thesis"])
    cells = [n for n in numbers if n.formula is None]
    count = {t: sum(n.table == t for n in cells) for t in {n.table for n in cells}}
    # accuracies of five (four) rows, and three statistics of three
    want = {"3.1": 14, "3.2": 14, "3.3": 14, "3.4": 13, "3.5": 10, "A.1": 8}
    assert count == want
    assert len(numbers) - len(cells) == 12
    assert all("sqrt" in n.quantity for n in cells if "dFIL" in n.quantity)


def test_directional_noise_lists_every_cell():
    source, numbers = published.load(BUILT_IN["dirdp"])
    count = {t: sum(n.table[0] == t for n in numbers) for t in "2345"}
    # thirteen rows per network and data set, and two differences of each attack
    assert count == {"2": 8 * 13, "3": 4 * 13, "4": 6 * 13, "5": 12 + 8}
    assert all(n.run for n in numbers)
    audits = {n.run for n in numbers if n.attack == "attack_r"}
    assert audits == {n.run for n in numbers if n.table[0] == "3"}
    assert {source.runs[run].scenario for run in audits} == {"dirdp_mia"}
    [figure] = source.figures  # accuracy up, an attack's score across
    assert [p.up[0] for p in figure.panels] == ["2"] * 8
    assert [p.across[0] for p in figure.panels] == ["3"] * 4 + ["4"] * 4
    assert all(p.across[1:] == p.up[1:] for p in figure.panels)


def test_a_difference_of_a_number_that_differs_is_not_reproduced():
    """Table 5 subtracts rows of Tables 3 and 4: what is wrong there is wrong here."""
    _, numbers = published.load(BUILT_IN["dirdp"])
    differs = {
        (n.table[2:], n.attack, n.defense) for n in numbers if n.claim == "differs"
    }
    claimed = [n for n in numbers if n.minus and n.claim == "reproduced"]
    assert claimed
    for n in claimed:
        where = n.table.split(" ", 2)[2], n.attack
        assert not {(*where, label) for label in (n.defense, n.minus)} & differs


TRAIN = {"fashion_mnist": 60_000, "cifar10": 50_000, "cifar100": 20_000, "lfw": 1_113}
DIRDP = published.load(BUILT_IN["dirdp"])[0].runs
EPSILON = {"gauss_08": 0.8, "gauss_1": 1, "gauss_3": 3, "gauss_50": 50}  # of six rows


@pytest.mark.parametrize(
    "name", sorted({n.removesuffix(": gauss_1") for n in DIRDP if "gauss_1" in n})
)
def test_gaussian_multipliers_are_those_of_the_rows_epsilon(name):
    """By the records, batches and steps of the run itself, within a tenth.

    Poisson batches, adding or removing a record, by the moments accountant. The tenth
    is for the records that attackers hold, whom some of the multipliers count in.
    """
    run = DIRDP[f"{name}: gauss_1"]
    words = (f"scenario={run.scenario}", f"data={run.full.data}", *run.full.words)
    scenario, _ = composed(*words)
    spec, splits = scenario.spec, scenario.splits
    n = TRAIN[run.full.data] - (splits.pool or 0) * (splits.pool_from == "train")
    n = half_in.in_out.slots(n) if spec.game == "membership" else n - splits.targets
    settings = {entry.label: entry.settings for entry in scenario.defenses}
    for label, epsilon in EPSILON.items():
        given = settings[label]
        noise = dp.GaussianDpEvent(given["noise_multiplier"])
        step = dp.PoissonSampledDpEvent(given["batch_size"] / n, noise)
        accountant = dp.rdp.RdpAccountant(rdp.EDMUNDS_ORDERS)
        accountant.compose(step, given["steps"])
        assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=0.1)


def test_epsilons_of_the_thesis_in_its_convention():
    _, numbers = published.load(BUILT_IN["thesis"])
    for n in numbers:
        if n.formula is not None:
            got = conventions.edmunds_epsilon(**n.settings)
            np.testing.assert_allclose(got, n.published, atol=1e-4)


def test_the_nominal_epsilon_claims_less_than_what_is_valid():
    """Replacing one record, with the clip's true overshoot, costs over twice that."""
    run = {"records": 1001, "batch_size": 1024, "epochs": 5, "noise_multiplier": 0.05}
    shift = 2 * GELU_OVERSHOOT / 0.05
    valid = rdp.GaussianPrivacy(np.sqrt(5) * shift).get_epsilon_for_delta(1e-9)
    assert 2 * conventions.edmunds_epsilon(**run) < valid


# Code ---------------------------------------------------------------------------------


def test_results_know_the_code_of_their_line_up():
    versions = []
    for words in ("[noisy_sum]", "[noisy_sum,sgd]", "[noisy_sum]"):
        line_up = f"defenses={words}"
        scenario, _ = composed("scenario=calibration", "data=digits", line_up)
        versions.append(workspace.code_version(scenario))
    assert versions[0] == versions[2] != versions[1]


def test_a_run_made_apart_is_one_run_per_defense(tmp_path):
    """Each is the run that its command makes, and the numbers are read from it."""
    file = written(
        tmp_path, BOTH.replace("    scenario", "    apart: true\n    scenario")
    )
    made = plan.plan("mine", file, "full", None)
    assert [n.run for n in made.numbers] == ["a: sigma_75", "a: sigma_5"]
    assert list(made.jobs) == ["a: sigma_75", "a: sigma_5"]
    job = made.jobs["a: sigma_5"]["full"][1]
    words = job.command.removeprefix("python -m audit run ").split()
    assert words[-2:] == ["defenses=[sigma_5]", "seed=1"]
    assert sum("defenses" in word for word in words) == 1
    assert job.scenario.resolved() == composed(*words)[0].resolved()


def test_a_difference_of_runs_made_apart_is_read_from_both(tmp_path):
    apart = BOTH.replace("    scenario", "    apart: true\n    scenario")
    file = written(tmp_path, apart.replace("sigma_5,", "sigma_5, minus: sigma_75,"))
    made = plan.plan("mine", file, "full", None)
    number = made.numbers[1]
    assert (number.run, number.minus_run) == ("a: sigma_5", "a: sigma_75")
    place = (number.attack, number.key)

    def outcome(defense, values):
        record = RunRecord(run="", command="", status="")
        by_seed = {
            seed: execute.EarlierRun(record, {(defense, None, *place): value})
            for seed, value in values.items()
        }
        return execute.Outcome({}, [], by_seed)

    outcomes = {
        number.run: outcome("sigma_5", {0: 5.0, 1: 6.0, 2: 7.0}),
        number.minus_run: outcome("sigma_75", {1: 1.5, 0: 1.0}),
    }
    judged = execute.verdict(number, "full", outcomes)
    assert (judged.seeds, judged.values) == ([0, 1], [4.0, 4.5])
    # nothing else is read of the other run: a page holds their difference alone
    place = ("sigma_5", "sigma_75", *place)
    runs = [
        RunRecord(run=run, command=portable(job.command), status="finished")
        for run in outcomes
        for job in made.jobs[run]["full"]
    ]
    held = execute.verdict(number, "full", outcomes)
    held = held.model_copy(update={"values": [3.0, 3.5]})
    earlier = Page.model_construct(runs=runs, numbers=[held])
    kept = {
        run: execute.Outcome({}, [], execute.kept(made, run, earlier))
        for run in outcomes
    }
    assert [
        [seed.values for seed in outcome.kept.values()] for outcome in kept.values()
    ] == [[{place: 3.0}, {place: 3.5}]] * 2
    assert execute.verdict(number, "full", kept).values == [3.0, 3.5]
    outcomes[number.minus_run] = execute.Outcome({}, [], {}, missing="no time")
    judged = execute.verdict(number, "full", outcomes)
    assert (judged.verdict, judged.verdict_reason) == ("not run", "no time")
