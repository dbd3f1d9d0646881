"""Words, files and folders that would cost, read or run what nobody meant."""

import os
import subprocess
import sys
import time

import pytest

from audit import pipeline
from audit.config import budget, hydra_app, scenario_file, workspace
from audit.engine import shadow
from audit.errors import UserError
from tests import ROOT
from tests.commands import call, composed, printed, refused

SMALL = (
    "scenario=calibration", "data=digits", "defenses=[noisy_sum]", "runs=1",
    "accounting_runs=1", "sets.digits.splits.targets=4", "lanes.tile=4",
)  # fmt: skip
TEXT = (hydra_app.BUILT_IN / "calibration.yaml").read_text()


def powers(line, first):
    """Return nine lines, each of which names the one before nine times."""
    lines = [f"a0: &a0 {first}"]
    for i in range(1, 10):
        lines.append(line.format(i=i, before=",".join([f"*a{i - 1}"] * 9)))
    return "\n".join(lines)


FILES = {
    "laughs": (powers("a{i}: &a{i} [{before}]", "[x]"), "more than 5,000 values"),
    "merges": (powers("a{i}: &a{i} {{<<: [{before}]}}", "{x: 1}"), "more than 5,000"),
    "itself": ("x: &x [*x]", "*x stands inside of itself"),
    "nobody": ("x: *nobody", "line 32: found undefined alias"),
    "deep": (f"x: {'[' * 30}", "nested more than 20 levels deep"),
    # libyaml may come first, with a limit of its own
    "abyss": (f"x: {'[' * 3_000}", "nest"),
    "large": ("#" * 50_000_000, "larger than 32,768 bytes"),
    "tag": ("x: !!python/object/apply:os.system [ls]", "line 32: could not determine"),
    "tab": ("x:\n\t- 1", "line 33: found character"),
    "twice": ("seed: 1\nseed: 2", "line 32: found duplicate key seed"),
    "digits": (f"x: {'9' * 5_000}", "cannot read "),
    "code": ("hydra: {callbacks: {x: {_target_: os.system}}}", "unknown key hydra"),
    "others": ("defaults: [other]", "unknown key defaults; a scenario is one file"),
    "machine": ("store: ${oc.env:HOME}", "'oc.env' is refused"),
    "within": ("store: '${oc.decode:${oc.env:HOME}}'", "'oc.decode' is refused"),
    "section": ("store: ${attack}", "attack is no valid number or word"),
    "circle": ("store: ${out}\nout: ${store}", "is no valid number or word"),
    "zero": ('out: "a\\0b"', "out='a\\x00b'"),
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_one_line_within_a_second(name, tmp_path, capsys):
    line, says = FILES[name]
    (tmp_path / f"{name}.yaml").write_text(f"{TEXT}{line}\n")
    began = time.process_time()
    words = f"scenario={name}", "data=digits", "--config-dir", str(tmp_path)
    assert says in refused(capsys, "run", *words)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("text", ["", "3", "- 1", "# nothing"])
def test_a_file_without_settings(text, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=r"x\.yaml: no settings"):
        scenario_file.load(tmp_path / "x.yaml")


def test_plain_references_stay(capsys):
    where = "attack.sum_inversion.clip_norm", "${defense.noisy_sum.clip_norm}"
    words = "scenario=calibration", "data=digits", "defense.noisy_sum.clip_norm=7.0"
    out = printed(capsys, "show", *words, "=".join(where), "title=${game} again")
    assert out.count("clip_norm: 7.0") == 2
    assert "title: reconstruction again" in out


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "{", "3", "\0" * 2**26 + " "])
def test_a_folder_whose_card_is_none_is_left_alone(text, tmp_path):
    scenario, _ = composed(*SMALL, f"out={tmp_path}")
    card = tmp_path / "scorecard.json"
    card.write_text(text)
    with pytest.raises(UserError, match="holds the scorecard of another run"):
        workspace.open_folder(scenario, tmp_path)
    assert card.stat().st_size == len(text)


# Before training ----------------------------------------------------------------------


@pytest.fixture
def nothing_trains(monkeypatch, tmp_path):
    def fail(*given, **settings):
        raise AssertionError("something was trained")

    monkeypatch.setattr(shadow._Sweep, "run", fail)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("nothing_trains")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["attacks=[lira]"], "'lira' can play against no defense of the line-up: its"),
        (["attacks=[lira]"], "those that can are class_mean, "),
        (["scenario=binary_mnist", "defenses=[sgd]", "attacks=[transcript_bayes]"],
         "against no defense of the line-up: the defense is not gaussian; those"),
        (["scenario=binary_mnist", "defenses=[sgd]", "attacks=[class_mean,lira]"],
         "'lira' can play against no defense of the line-up: its"),
        (["lanes.tile=9000000"], "defense.noisy_sum: needs at least"),
        (["runs=1000000"], "estimate=ignored runs it"),
        (["defenses=[sgd]", "attacks=[class_mean]", "training.steps=9000000",
          "runs=100000"], "defense.sgd: takes at least"),
        # 50 target runs are nothing; those of the accounting and of attackers are
        (["scenario=binary_mnist", "attacks=[class_mean]", "defenses=[dpsgd]", "runs=1",
          "training.steps=100000", "accounting_runs=1000000"],
         "50 target, 50,000,000 accounting runs"),
        (["scenario=binary_mnist", "attacks=[reconstructor]", "defenses=[dpsgd]",
          "attack.reconstructor.repeats=100000", "training.steps=1000000"],
         "200 target, 200,000,000 shadow, 200 accounting runs"),
        (["scenario=epsilon_audit", "runs=1000000", "training.steps=9000000",
          "canaries.audits=1000"], "16 target, 2,000,000,000 transcript runs"),
        (["scenario=epsilon_audit", "accounting_runs=2"],
         "accounting_runs=2: the game canary reads no dFIL along runs; leave it at 1"),
        (["scenario=mia_mnist5k", "membership.shadows=100000", "runs=2",
          "training.steps=9000000"], "2 target, 100,016 shadow runs"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_training(words, line, capsys, monkeypatch):
    monkeypatch.setattr(budget, "memory", lambda: 2.0**29)
    first = [] if words[0].startswith("scenario=") else SMALL
    assert line in refused(capsys, "run", *first, *words, "data=digits", "out=here")


def test_an_estimate_may_be_ignored(monkeypatch):
    monkeypatch.setattr(budget, "memory", lambda: 1.0)
    scenario, _ = composed(*SMALL, "attacks=[class_mean]", "estimate=ignored")
    card = pipeline.audit(scenario, shadow.Engine(scenario.lanes))
    assert [t.status for t in card.trials] == ["ok"]


# Where somebody stands ----------------------------------------------------------------


def test_folders_named_like_ours_are_not_taken_for_ours(tmp_path):
    """A process that starts there imports from there first."""
    for folder in ("attacks", "defenses", "scenarios"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise SystemExit('theirs')")
    code = (
        "from audit.config import registry\n"
        "for kind in ('attack', 'defense'):\n"
        "    for name in registry.names(kind):\n"
        "        assert registry.find(kind, name).__name__ == name\n"
        "from audit.__main__ import main\n"
        "assert main(['show', 'scenario=calibration', 'data=digits']) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_audit_that_is_not_ours_is_named_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    printed(capsys, "show", "scenario=calibration", "data=digits")
    (tmp_path / "audit.py").write_text("")
    assert call("show", "scenario=calibration", "data=digits") == 0
    note = "note: `python -m audit` runs audit.py of this folder; say breachmark here\n"
    assert capsys.readouterr().err == note
