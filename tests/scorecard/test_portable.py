"""Cards hold no absolute path, user or host."""

import json
import shutil

import pytest

import audit.__main__ as cli
from audit import pipeline
from audit.config import hydra_app
from audit.scorecard import portable
from tests.pages import RESULTS

ODD = "zoltán of host-17"
ATTACK = '''"""Fails with the name of a file."""
from pathlib import Path
from audit.types import Attack, ThreatModel


def snoop(task, *, file: str = "x") -> Attack:
    """Read a file."""
    model = ThreatModel("reconstruction", frozenset({"params"}), frozenset())
    def fit(key, knowledge):
        (Path.home() / "secret notes" / file).read_text()
    return Attack(model, fit, lambda state, key, seen: None)
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with an odd name; the suite is called from a folder in it."""
    place = tmp_path / ODD
    for name in ("here", "own plug-ins", "configs"):
        (place / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("PWD", str(place / "here"))
    monkeypatch.chdir(place / "here")
    return place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No such file: '{}/here/x y/z.npz'", "No such file: 'x y/z.npz'"),
        ('File "/usr/lib/odd place/q.py", line 3', 'File "q.py", line 3'),
        ("none at {}/.cache/l.npz, /opt/w.npz; x", "none at .cache/l.npz, w.npz; x"),
        ("folder {}/own plug-ins", "folder own plug-ins"),
        ("folder {}", "folder ."),
        ("1/dFIL, and/or https://arxiv.org/abs/1 m / n a//b", None),
    ],
)  # fmt: skip
def test_paths_in_texts(text, expected, home):
    text = text.format(home)
    assert portable.portable(text) == (text if expected is None else expected)


def test_committed_cards_keep_every_word():
    for path in RESULTS.glob("*/scorecard.json"):
        fields = json.loads(path.read_text())
        command = fields["provenance"]["command"]
        assert portable.command(command) == command
        assert portable.portable(path.read_text()) == path.read_text()


def test_a_run_from_odd_places_leaves_none_of_them_behind(home, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "_lpips_weights", lambda: f"none at {home}/x.npz")
    plug_ins, scenarios = home / "own plug-ins", home / "configs"
    (plug_ins / "snoop.py").write_text(ATTACK)
    shutil.copy(hydra_app.BUILT_IN / "calibration.yaml", scenarios / "mine.yaml")
    out = home / "out of it"
    words = [
        "run", "scenario=mine", "data=digits", "runs=2", "lanes.tile=64",
        "attacks=[class_mean,snoop]", "sets.digits.splits.targets=4",
        f"attack.snoop.file='{home}/absolute'", f"out='{out}'", f"store='{home}/kept'",
        "--plugins", str(plug_ins), "--config-dir", str(scenarios),
    ]  # fmt: skip
    assert cli.main(words) == 1  # an attack failed
    assert cli.main(["report", str(out)]) == 0
    capsys.readouterr()
    for name in ("scorecard.json", "scorecard.md", "report.html"):
        text = (out / name).read_text()
        assert "snoop" in text
        assert not name.endswith("json") or portable.portable(text) == text
        for secret in ("zolt", "host-17", str(home.parent), "tmp/"):
            assert secret not in text, (name, secret)
