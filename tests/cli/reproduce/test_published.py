"""Files of published numbers, and the places their numbers are read at."""

import re

import numpy as np
import pytest

from audit.cli.reproduce import conventions, plan, published
from audit.config import hydra_app, workspace
from audit.config.compose import scenario_names
from audit.errors import UserError
from audit.scorecard import path

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
      mse: {quantity: MSE, band: near, at: "strongest[defense={label}].result.mse"}
    rows:
      - {row: Sum, label: noisy_sum, numbers: {mse: {published: 0.5, sd: 0.1}}}
"""


def written(tmp_path, text, name="mine"):
    (tmp_path / "expected").mkdir(exist_ok=True)
    file = tmp_path / "expected" / f"{name}.yaml"
    file.write_text(text)
    return file


def test_one_number(tmp_path):
    held, [number] = published.load(written(tmp_path, FILE))
    assert held.runs["a"].full.seeds == [0, 1]
    assert number.at == "strongest[defense=noisy_sum].result.mse"
    assert (number.published, number.sd, number.claim) == (0.5, 0.1, "reproduced")
    assert number.name == "table 1, Sum, MSE"


WRONG = [
    ("full: {data: digits,", "full: {data: auto, ", "runs.a.full.data=auto"),
    ("seeds: [0, 1]", "seeds: [0, 0]", "a seed counts once"),
    ("data: digits, seeds: [0, 1]", "data: digits, seeds: []", "runs.a.full.seeds"),
    ("seeds: [0, 1]}", "seeds: [0], device: tpu}", "'any' or 'gpu'"),
    ("runs=1", "seed=1", "'seed=1' is not for words to say"),
    ("relative: 0.1, why", "relative: 0.1, absolute: 0.1, why", "one of absolute"),
    ("relative: 0.1, why: a test", "relative: 0.1", "bands.near.why: field required"),
    ("relative: 0.1", "relative: -0.1", "bands.near.relative=-0.1"),
    ("run: a\n", "run: b\n", "run 'b' is unknown; there is a"),
    ("    run: a\n", "", "give one of run, formula and absent"),
    ("run: a", "formula: edmunds_epsilom", "did you mean 'edmunds_epsilon'?"),
    ("run: a", "run: a\n    formula: edmunds_epsilon", "one of run, formula and"),
    ("band: near", "band: nea", "band 'nea' is unknown; did you mean 'near'?"),
    ("numbers: {mse:", "numbers: {msee:", "did you mean 'mse'?"),
    ("{label}].", "{label}.", "cannot be read from"),
    (", label: noisy_sum", "", "needs the row's label"),
    (', at: "strongest[defense={label}].result.mse"', "", "`at` where there is a run"),
    ("published: 0.5", "published: 0", "nothing is near 0 by a relative band"),
    ("published: 0.5,", "published: .nan,", "finite"),
    ("sd: 0.1", "sd: -0.1", "sd=-0.1"),
    ("sd: 0.1}", "claim: differs}", "the claim 'differs' needs a reason"),
    ("sd: 0.1", "claim: not run, reason: ''", "reason=''"),
    ("sd: 0.1", "claim: perhaps", "claim='perhaps'"),
    ("title: a source", "titel: a source", "titel='a source'"),
    ("title: a source\n", "title: a source\ntitle: b\n", "duplicate key"),
    ("tables:", "tables: [", "while parsing"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), WRONG)
def test_what_is_wrong_in_a_file_is_said_in_one_line(tmp_path, old, new, said):
    assert FILE.count(old) >= 1
    with pytest.raises(UserError) as error:
        published.load(written(tmp_path, FILE.replace(old, new)))
    assert said in str(error.value)
    assert "mine.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_number_is_listed_once_and_a_run_is_read(tmp_path):
    line = FILE[FILE.index("      - {row") :]
    with pytest.raises(UserError, match="table 1, Sum, MSE: listed twice"):
        published.load(written(tmp_path, FILE + line))
    other = "  b:" + FILE[FILE.index("  a:") + 4 : FILE.index("bands:")]
    with pytest.raises(UserError, match=re.escape("runs.b: no table is read from it")):
        published.load(written(tmp_path, FILE.replace("bands:", f"{other}bands:")))


# a second table beside FILE's, and both drawn against each other
DRAWN = """
  - table: "2"
    title: the same sums
    run: a
    columns:
      mse: {quantity: again, band: near, at: "strongest[defense={label}].result.mse"}
    rows:
      - {row: Sum, label: noisy_sum, numbers: {mse: {published: 0.7}}}

figures:
  - figure: "3.1"
    title: one against the other
    note: left is better
    panels:
      - {title: sums, across: "1", up: "2"}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('across: "1"', 'across: "7"', "figure 3.1: table '7' is unknown"),
        ("mse: {quantity: again,", "b: {quantity: b, band: near, at: seed}\n      "
         "mse: {quantity: again,", "figure 3.1: table '2' has several columns"),
        ("row: Sum, label: noisy_sum, numbers: {mse: {published: 0.7",
         "row: Summe, label: noisy_sum, numbers: {mse: {published: 0.7",
         "figure 3.1, sums: its tables' rows differ"),
        ('figure: "3.1"', 'figure: "../3"', "figures.0.figure='../3'"),
        ('up: "2"}', 'up: "2"}\n      - {title: b, across: "2", up: "1"}',
         "figure 3.1: its panels have one quantity up, not 2"),
        ("figures:\n", "figures:\n  - {figure: '3.1', title: b, panels: [{title: b, "
         "across: '2', up: '2'}]}\n", "figure 3.1: listed twice"),
        ("- {title: sums,", "- {", "figures.0.panels.0.title: field required"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_figure_is_said(tmp_path, old, new, said):
    assert (FILE + DRAWN).count(old) == 1
    with pytest.raises(UserError) as error:
        published.load(written(tmp_path, (FILE + DRAWN).replace(old, new)))
    assert said in str(error.value)


FORMULA = """
    formula: edmunds_epsilon
    columns: {e: {quantity: epsilon, band: near}}
    rows: [{row: r, settings: {SETTINGS}, numbers: {e: {published: 1.0}}}]
"""


def test_settings_of_a_formula_are_its_arguments(tmp_path):
    head = FILE[: FILE.index("runs:")] + FILE[FILE.index("bands:") :]
    text = head[: head.index("    run: a")] + FORMULA.strip("\n")
    full = "records: 9, batch_size: 3, epochs: 1, noise_multiplier: 1.0"
    _, [number] = published.load(written(tmp_path, text.replace("SETTINGS", full)))
    assert number.settings["records"] == 9
    with pytest.raises(UserError, match="missing a required argument: 'batch_size'"):
        published.load(written(tmp_path, text.replace("SETTINGS", "records: 9")))


# Places -------------------------------------------------------------------------------

CARD = {
    "floor": {"mse": 0.25, "lpips": None, "far": "inf", "name": "x"},
    "steps": [{"a": 1}, {"a": 2}],
    "trials": [
        {"defense": "a", "attack": "p", "result": {"mse": 1}},
        {"defense": "a", "attack": "q", "result": {"mse": 2}},
        {"defense": "b", "attack": "q q.", "result": {"mse": 3}},
    ],
}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("floor.mse", 0.25),
        ("steps[1].a", 2),
        ("trials[defense=a,attack=q].result.mse", 2),
        ("trials[attack=q q.].result.mse", 3),
        ("steps[1].a - floor.mse", 1.75),
    ],
)
def test_places_are_read(place, value):
    assert path.read(CARD, place) == value


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("flor.mse", "no 'flor' in the scorecard; did you mean 'floor'?"),
        ("floor.mean", "no 'mean' in floor"),
        ("floor.mse.x", "no 'x' in floor.mse"),
        ("floor.lpips", "floor.lpips is not computed"),
        ("floor.far", "floor.far is inf"),
        ("floor.name", "floor.name is not a number"),
        ("floor", "floor is not a number"),
        ("floor[0].mse", "floor is not a list"),
        ("steps[2].a", "steps has 2 entries, none is 2"),
        ("trials[defense=a].result.mse", "trials: 2 entries have defense=a, not one"),
        ("trials[defense=c].result.mse", "trials: 0 entries have defense=c, not one"),
    ],
)
def test_nothing_at_a_place_says_from_where_on(place, said):
    with pytest.raises(LookupError) as error:
        path.read(CARD, place)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "place",
    [
        "",
        ".",
        "a - ",
        "a - b..c",
        "a.",
        ".a",
        "a..b",
        "a[",
        "a[]",
        "a[b]",
        "a[-1]",
        "a[b=]",
        "a b",
    ],
)
def test_what_is_no_place(place):
    with pytest.raises(ValueError, match="place"):
        path.parse(place)


def test_labels_of_a_place():
    assert path.labels("defenses.fim.steps[0].accuracy") == ("fim", None)
    assert path.labels("trials[defense=a,attack=b].result.mse") == ("a", "b")
    assert path.labels("floor.mse") == (None, None)


# The committed files ------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_committed_files_are_read_and_their_runs_compose(name, monkeypatch):
    monkeypatch.delenv("AUDIT_DATA", raising=False)
    held, numbers = published.load(BUILT_IN[name])
    known = scenario_names([hydra_app.BUILT_IN])
    assert {run.scenario for run in held.runs.values()} <= set(known)
    plan.plan(name, BUILT_IN[name], "smoke", None)
    assert all(n.at is None or path.parse(n.at) for n in numbers)


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
    held, numbers = published.load(BUILT_IN["dirdp"])
    count = {t: sum(n.table[0] == t for n in numbers) for t in "2345"}
    # thirteen rows a network and data set, and two differences of each attack
    assert count == {"2": 8 * 13, "3": 4 * 13, "4": 6 * 13, "5": 12 + 8}
    assert all(n.run for n in numbers)
    audits = {n.run for n in numbers if "attack_r" in n.at}
    assert audits == {n.run for n in numbers if n.table[0] == "3"}
    assert {held.runs[run].scenario for run in audits} == {"dirdp_mia"}
    [figure] = held.figures  # accuracy up, an attack's score across
    assert [p.up[0] for p in figure.panels] == ["2"] * 8
    assert [p.across[0] for p in figure.panels] == ["3"] * 4 + ["4"] * 4
    assert all(p.across[1:] == p.up[1:] for p in figure.panels)


def test_what_nothing_computes_is_listed_as_not_run(tmp_path):
    text = FILE[: FILE.index("runs:")] + FILE[FILE.index("bands:") :]
    text = text.replace("    run: a\n", "    absent: not built\n")
    text = text.replace(', at: "strongest[defense={label}].result.mse"', "")
    _, [number] = published.load(written(tmp_path, text))
    assert (number.claim, number.reason, number.at) == ("not run", "not built", None)
    with pytest.raises(UserError, match="`at` where there is a run"):
        published.load(written(tmp_path, text.replace("near}", "near, at: floor.mse}")))


def test_epsilons_of_the_thesis_in_its_convention():
    _, numbers = published.load(BUILT_IN["thesis"])
    for n in numbers:
        if n.formula is not None:
            got = conventions.edmunds_epsilon(**n.settings)
            np.testing.assert_allclose(got, n.published, atol=1e-4)


def test_the_nominal_epsilon_claims_less_than_what_is_valid():
    """Replacing one record, with the clip's true overshoot, costs over twice that."""
    from audit.accounting import rdp
    from audit.clipping import GELU_OVERSHOOT

    own = {"records": 1001, "batch_size": 1024, "epochs": 5, "noise_multiplier": 0.05}
    shift = 2 * GELU_OVERSHOOT / 0.05
    valid = rdp.GaussianPrivacy(np.sqrt(5) * shift).get_epsilon_for_delta(1e-9)
    assert 2 * conventions.edmunds_epsilon(**own) < valid


# Code ---------------------------------------------------------------------------------


def test_results_know_the_code_of_their_line_up(tmp_path, monkeypatch):
    found = {}
    for words in ("[noisy_sum]", "[noisy_sum,sgd]"):
        hydra_app.launch(
            ["scenario=calibration", "data=digits", f"defenses={words}"],
            lambda scenario, _, words=words: found.setdefault(words, scenario),
        )
    one, two = (workspace.code_version(scenario) for scenario in found.values())
    assert one != two
    assert workspace.code_version(found["[noisy_sum]"]) == one
