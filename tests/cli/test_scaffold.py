"""`python -m audit new`: what it writes is clean, lawful, and runs at once."""

import subprocess
import sys
import tomllib

import pytest

from audit.cli import scaffold
from audit.config import plugins, registry
from audit.testing import check_scenario
from tests import ROOT
from tests.commands import call, printed, refused

FILES = {
    "defense": ("defenses/mine.py", "tests/test_mine.py", "docs/defenses/mine.md"),
    "attack": ("attacks/mine.py", "tests/test_mine.py", "docs/attacks/mine.md"),
    "scenario": ("scenarios/mine.yaml", "tests/test_mine.py", "docs/scenarios/mine.md"),
}


@pytest.mark.parametrize("kind", FILES)
def test_it_writes_a_plug_in_its_test_and_its_page(kind, tmp_path, capsys):
    folder = tmp_path / "plug ins"
    out = printed(capsys, "new", kind, "mine", "--plugins", str(folder))
    for file in FILES[kind]:
        text = (folder / file).read_text()
        assert str(folder / file) in out
        assert scaffold.EXAMPLES[kind] not in text
    assert f"--plugins '{folder}'" in out
    assert f"pytest '{folder}/tests/test_mine.py'" in out
    assert text.startswith("# `mine`")  # its page


@pytest.mark.parametrize("kind", FILES)
def test_a_flat_folder_stays_flat(kind, tmp_path):
    (tmp_path / "_helper.py").write_text("")
    assert call("new", kind, "mine", "--plugins", str(tmp_path)) == 0
    suffix = "yaml" if kind == "scenario" else "py"
    names = {f"mine.{suffix}", "mine.md", "test_mine.py", "_helper.py"}
    assert {f.name for f in tmp_path.iterdir()} == names
    with plugins.using([str(tmp_path)]):
        if kind != "scenario":
            assert registry.find(kind, "mine").__name__ == "mine"
        assert call("list") == 0


def test_a_checkout_gets_it_beside_its_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(scaffold, "CHECKOUT", tmp_path)
    out = printed(capsys, "new", "defense", "mine")
    files = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*.*")}
    assert files == {"pyproject.toml", *FILES["defense"]}
    assert "add a row for `mine` to docs/catalogue.md" in out


def test_an_installed_suite_wants_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaffold, "CHECKOUT", tmp_path)
    assert "say --plugins DIR" in refused(capsys, "new", "defense", "mine")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "new what?"),
        (["defense"], "new what?"),
        (["defence", "mine"], "did you mean 'defense'?"),
        (["defense", "Mine"], "defense name 'Mine'"),
        (["defense", "my-own"], "defense name 'my-own'"),
        (["defense", "class"], "defense name 'class'"),
        (["defense", "../mine"], "defense name '../mine'"),
        (["attack", "test_mine"], "attack name 'test_mine'"),
        (["defense", "dpsgd"], "defense 'dpsgd' is there already"),
        (["scenario", "calibration"], "scenario 'calibration' is there already"),
    ],
)
def test_bad_names_are_refused(words, message, tmp_path, capsys):
    where = ["--plugins", str(tmp_path / "there")]
    assert message in refused(capsys, "new", *words, *where)
    assert not (tmp_path / "there").exists()


def test_nothing_is_overwritten(tmp_path, capsys):
    where = ["--plugins", str(tmp_path)]
    printed(capsys, "new", "attack", "mine", *where)
    line = refused(capsys, "new", "attack", "mine", *where)
    assert "attack 'mine' is there already" in line
    (tmp_path / "tests" / "test_other.py").write_text("# mine\n")
    line = refused(capsys, "new", "attack", "other", *where)
    assert "test_other.py is there already; nothing was written" in line
    assert not (tmp_path / "attacks" / "other.py").exists()
    assert (tmp_path / "tests" / "test_other.py").read_text() == "# mine\n"


def test_an_installed_suite_has_the_example(tmp_path, monkeypatch):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    included = build["build"]["targets"]["wheel"]["force-include"]
    paths = {ROOT / source: ROOT / place for source, place in included.items()}
    assert paths == {scaffold.EXAMPLE: scaffold.INSTALLED}
    monkeypatch.setattr(scaffold, "INSTALLED", scaffold.EXAMPLE)
    monkeypatch.setattr(scaffold, "EXAMPLE", tmp_path / "no checkout")
    assert call("new", "attack", "mine", "--plugins", str(tmp_path)) == 0
    assert (tmp_path / "attacks" / "mine.py").is_file()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One of each kind, in one folder."""
    folder = tmp_path_factory.mktemp("made")
    for kind in FILES:
        assert call("new", kind, f"my_{kind}", "--plugins", str(folder)) == 0
    return folder


def run(*words, **how):
    words = [sys.executable, "-m", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **how)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_what_is_written_is_clean(made):
    root = str(ROOT / "pyproject.toml")
    for words in (["check"], ["format", "--check"]):
        run("ruff", *words, "--config", root, str(made))


def test_a_scenario_is_checked_with_the_plug_ins_beside_it(made):
    """And its command, which names their folder, replays it."""
    file = made / "scenarios" / "neighbours.yaml"
    text = (file.parent / "my_scenario.yaml").read_text()
    file.write_text(text.replace("[sgd, dpsgd]", "[sgd, dpsgd, my_defense]"))
    outcomes = check_scenario(file, "data=digits", run=False)
    assert outcomes["every_name_exists"] == "holds"
    assert outcomes["its_command_replays_it"] == "holds"


def test_what_is_written_runs_at_once(made, tmp_path):
    words = ["scenario=my_scenario", "data=digits", "runs=1", "accounting_runs=1"]
    words += ["defenses=[sgd,my_defense]", "attacks=[class_mean,my_attack]"]
    words += ["sets.digits.splits.targets=4", "sets.digits.splits.pool=40"]
    words += ["lanes.tile=8", f"out={tmp_path}/out", "--plugins", str(made)]
    assert call("run", *words) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_the_test_that_is_written_passes(kind, made):
    file = str(made / "tests" / f"test_my_{kind}.py")
    run("pytest", "-q", "-p", "no:cacheprovider", file, cwd=made)
