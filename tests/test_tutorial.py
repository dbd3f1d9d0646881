"""The tutorial's commands are commands: each composes as it stands."""

import json
import re
import shlex

import pytest

from audit.config import plugins, registry
from tests import ROOT
from tests.commands import call, composed, refused

PAGE = ROOT / "docs" / "tutorial.md"


def commands():
    """Return the commands of the page's shell blocks, in order."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").strip().split("\n")
    return [part.strip() for line in lines for part in line.split("&&")]


AUDIT = [c.split(maxsplit=3)[3] for c in commands() if c.startswith("python -m audit ")]


def test_it_walks_the_whole_path():
    verbs = [words.split()[0] for words in AUDIT]
    order = ["doctor", "run", "show", "report", "leaderboard", "new", "run", "report"]
    assert verbs == [*order, "verify", "leaderboard"]


@pytest.mark.parametrize("words", [w for w in AUDIT if w.startswith("run ")])
def test_runs_compose_as_written(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("new", "defense", "quiet", "--plugins", "mine") == 0
    typed, folders = plugins.words(shlex.split(words)[1:])
    with plugins.using(folders):
        scenario, replay = composed(*typed)
    assert shlex.split(replay)[: len(typed)] == typed
    assert scenario.data == "digits"


def test_its_typo_is_answered_as_it_says(capsys):
    (words,) = [w for w in AUDIT if w.startswith("show ")]
    line = refused(capsys, *shlex.split(words))
    quoted = re.search(r"answers `([^`]+)`", PAGE.read_text())
    assert quoted is not None
    assert quoted[1] in line


def test_its_edit_takes_hold(tmp_path, monkeypatch):
    """What `sed` is told to change stands in what `new` writes."""
    monkeypatch.chdir(tmp_path)
    assert call("new", "defense", "quiet", "--plugins", "mine") == 0
    path = tmp_path / "mine" / "defenses" / "quiet.py"
    (sed,) = [c for c in commands() if c.startswith("sed ")]
    text = path.read_text()
    for old, new in re.findall(r"-e 's/(.*?)/(.*?)/'", sed):
        text, count = re.subn(old.replace("(", r"\(").replace(")", r"\)"), new, text,
                              flags=re.MULTILINE)  # fmt: skip
        assert count == 1
    path.write_text(text)
    with plugins.using(["mine"]):
        assert registry.find("defense", "quiet").__name__ == "quiet"


def test_its_counts_of_published_numbers_are_those_of_the_pages():
    pages = (ROOT / "results" / "reproduction").glob("*.json")
    every = {page.stem: json.loads(page.read_text()) for page in pages}
    one = every.pop("dirdp")
    words = "listed", "reproduced", "differs", "not run"
    others = [sum(page[word] for page in every.values()) for word in words]
    text = PAGE.read_text()
    assert f"Of the {one['differs'] + others[2]} that differ, {one['differs']}" in text
    said = "Of the {} numbers of all other papers, {} are reproduced, {} differ, {}"
    assert said.format(*others) in text
