"""Plug-ins from elsewhere: folders, packages, clashes, broken files, identity."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from audit import pipeline
from audit.config import compose, hydra_app, plugins, registry, workspace
from audit.errors import UserError
from tests import ROOT
from tests.commands import call, composed, printed, refused

EXAMPLE = ROOT / "examples" / "breachmark_example" / "breachmark_example"
DEFENSE = (EXAMPLE / "defenses" / "dpsgd_cosine.py").read_text()
DEFENSE = DEFENSE.replace("dpsgd_cosine", "NAME")
ATTACK = '''
"""Grey: guess the middle of the domain."""

import jax.numpy as jnp

from audit.types import Attack, Task, ThreatModel


def NAME(task: Task) -> Attack:
    """Guess the same for all."""

    def fit(key, knowledge):
        return jnp.full(task.features, 0.5), {}

    def guess(state, key, seen):
        return state

    return Attack(ThreatModel("reconstruction"), fit, guess)
'''
BOUND = '''
"""Thousandth: never a smaller error than a thousandth, wrong but easy to find."""

import numpy as np

from audit.types import Bound, NonNegative, Readings


def NAME(readings: Readings, *, value: NonNegative = 0.001) -> Bound | None:
    """Say a thousandth.

    Args:
      readings: of the defense.
      value: what is said.
    """
    if readings.rdp is None:
        return None
    return Bound("any", np.asarray(value), "nobody", "this test", ranked=False)
'''
SMALL = [
    "data=digits", "runs=1", "accounting_runs=1", "sets.digits.splits.targets=4",
    "sets.digits.splits.augment=0", "sets.digits.splits.pool=20", "lanes.tile=4",
]  # fmt: skip


def put(path, text, name=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("NAME", name or path.stem).lstrip("\n"))
    return path


def scenario(path):
    text = (hydra_app.BUILT_IN / "calibration.yaml").read_text()
    return put(path, text.replace("runs: 10", "runs: 3"))


PLUGINS = (
    ("defenses", "quiet.py", DEFENSE),
    ("attacks", "grey.py", ATTACK),
    ("bounds", "thousandth.py", BOUND),
)


@pytest.fixture
def flat(tmp_path):
    """A folder with a plug-in of every kind, side by side."""
    for _, name, text in PLUGINS:
        put(tmp_path / name, text)
    scenario(tmp_path / "mine.yaml")
    for ignored in ("_helper.py", "test_quiet.py"):
        put(tmp_path / ignored, "1 / 0")
    return tmp_path


@pytest.fixture(params=["flat", "laid_out"])
def folder(request, tmp_path):
    """The same, and in folders by kind."""
    if request.param == "flat":
        return request.getfixturevalue("flat")
    for kind, name, text in PLUGINS:
        put(tmp_path / kind / name, text)
    scenario(tmp_path / "scenarios" / "mine.yaml")
    put(tmp_path / "setup.py", "1 / 0")
    return tmp_path


# Finding ------------------------------------------------------------------------------


def test_a_folders_plug_ins_are_found_by_every_command(folder, capsys):
    where = ["--plugins", str(folder)]
    # a row goes on in indented lines, and a long path from one to the next
    rows = re.split(r"\n  (?=\S)", printed(capsys, "list", *where).strip("\n"))
    ours = [r.split()[0] for r in rows if f"[folder{folder}]" in "".join(r.split())]
    assert sorted(ours) == ["grey", "mine", "quiet", "thousandth"]
    words = ["scenario=binary_mnist", "data=digits", "defenses=[sgd,quiet]"]
    words += ["attacks=[grey]", "bounds=[thousandth]"]
    out = printed(capsys, "show", *words, *where)
    typed = " ".join([*words, *where])
    assert out.startswith(f"# python -m audit run {typed}")
    assert "noise_multiplier: 1.0" in out
    assert "value: 0.001" in out
    mine = ["scenario=mine", "data=digits"]
    assert "runs: 3" in printed(capsys, "show", *mine, *where)


def test_the_variable_names_folders_too_and_no_command_leaves_any(
    folder, monkeypatch, capsys
):
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    show, typed = ["show", "scenario=mine", "data=digits"], f"--plugins {folder}"
    assert typed in printed(capsys, *show, "--plugins", str(folder))
    assert plugins.named_folders() == []
    assert "quiet" not in registry.names("defense")
    monkeypatch.setenv(plugins.VARIABLE, str(folder))
    assert typed in printed(capsys, *show)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--plugins", "/no/such"], "--plugins /no/such: no such folder"),
        (["list", "--plugins"], "say --plugins DIR"),
        (["list", "--plugin", "x"], "list takes no words, got '--plugin'"),
        (["bench", "--plugins", "/"], "bench takes no --plugins"),
    ],
)
def test_words_that_name_no_folder_of_plug_ins(words, message, capsys):
    assert message in refused(capsys, *words)


def test_a_plug_in_is_what_its_file_holds_now(tmp_path):
    path = put(tmp_path / "grey.py", ATTACK)
    with plugins.using([str(tmp_path)]):
        first = registry.find("attack", "grey")
        assert registry.find("attack", "grey") is first
        put(path, ATTACK.replace("0.5", "0.25"))
        assert registry.find("attack", "grey") is not first


# Refusing -----------------------------------------------------------------------------


def test_a_name_that_is_taken_names_both_places(tmp_path, capsys):
    file, folder = put(tmp_path / "defenses" / "dpsgd.py", DEFENSE), str(tmp_path)
    scenario(tmp_path / "scenarios" / "calibration.yaml")
    for name, kind, places in (
        ("binary_mnist", "defense 'dpsgd'", (ROOT / "defenses" / "dpsgd.py", file)),
        ("calibration", "scenario 'calibration'", (hydra_app.BUILT_IN, folder)),
    ):
        words = [f"scenario={name}", "data=digits", "--plugins", folder]
        line = refused(capsys, "show", *words)
        assert f"there are two of {kind}" in line
        assert all(str(place) in line for place in places)


def test_two_folders_with_one_name(tmp_path, capsys):
    places = [str(tmp_path / name) for name in ("one", "two")]
    for place in places:
        put(Path(place) / "grey.py", ATTACK)
    words = ["scenario=calibration", "data=digits", "attacks=[grey]"]
    words += [w for place in places for w in ("--plugins", place)]
    line = refused(capsys, "show", *words)
    assert all(place in line for place in places)


def test_one_folder_named_twice_is_one(folder):
    with plugins.using([str(folder), f"{folder}/."]):
        assert registry.source("attack", "grey").name == "grey.py"


def test_the_suites_own_folder_clashes_with_nothing():
    with plugins.using([str(ROOT)]):
        assert registry.place("defense", "dpsgd").origin == registry.SUITE
        assert hydra_app.locate("calibration")[1] == registry.SUITE


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        ("run", '"""X."""\n1 / 0\n' + ATTACK,
         "cannot import 'grey' from PATH: ZeroDivisionError: division by zero"),
        ("run", "import no_such_module\n" + ATTACK,
         "cannot import 'grey' from PATH: ModuleNotFoundError"),
        ("show", "def grey(task:\n", "PATH, line 1: "),
        ("show", "def gray(task):\n    return 1\n", "PATH holds no function 'grey'"),
        ("show", ATTACK.replace("task: Task)", "task: Task, *, level: float = MIDDLE)"),
         "cannot read the setting 'level': name 'MIDDLE' is not defined"),
    ],
    ids=["raises", "imports", "syntax", "no function", "default"],
)  # fmt: skip
def test_a_broken_plug_in_is_one_line(
    command, text, message, tmp_path, capsys, monkeypatch
):
    path = put(tmp_path / "attacks" / "grey.py", text)
    monkeypatch.chdir(tmp_path)
    words = ["scenario=calibration", "data=digits", "attacks=[grey]", "out=here"]
    line = refused(capsys, command, *words, "--plugins", str(tmp_path))
    assert str(path) in line
    assert message.replace("PATH", str(path)) in line


def test_a_plug_in_that_raises_is_named_with_its_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failing = ATTACK.replace("    return Attack(", '    {}["wid"]\n    return Attack(')
    path = put(tmp_path / "attacks" / "grey.py", failing)
    line = failing.strip().split("\n").index('    {}["wid"]') + 1
    words = ["scenario=calibration", "data=digits", "attacks=[grey]", "out=here"]
    said = refused(capsys, "run", *words, "--plugins", str(tmp_path))
    assert said == f"error: attack 'grey': {path}, line {line}: KeyError: 'wid'\n"


def test_no_plug_in_is_blamed_for_what_others_raise(tmp_path):
    text = "def odd(*, n: int):\n    n.no_such\n"
    path = put(tmp_path / "games" / "odd.py", text)
    wrong = rf"^game 'odd': {path}, line 2: AttributeError: "

    class Printing:
        @property
        def no_such(self):
            raise BrokenPipeError

    with plugins.using([str(tmp_path)]):
        game = registry.find("game", "odd")
        with pytest.raises(UserError, match=wrong), plugins.blamed():
            game(n=1)
        with pytest.raises(BrokenPipeError), plugins.blamed():
            game(n=Printing())
        with pytest.raises(ZeroDivisionError), plugins.blamed():
            1 / 0  # noqa: B018
        with pytest.raises(UserError, match="as it was"), plugins.blamed():
            raise UserError("as it was")


def test_a_flat_folder_holds_nothing_but_plug_ins(tmp_path, capsys):
    path = put(tmp_path / "notes.py", "def other():\n    return 1\n")
    line = refused(capsys, "list", "--plugins", str(tmp_path))
    assert f"{path} holds no function 'notes'" in line


@pytest.mark.parametrize("word", ["'Defense'", "types.Defense", "'types.Defense'"])
def test_a_kind_is_read_however_it_is_written(word, tmp_path):
    put(tmp_path / "quiet.py", DEFENSE.replace("-> Defense", f"-> {word}"))
    with plugins.using([str(tmp_path)]):
        assert "quiet" in registry.names("defense")


MISTAKES = {
    "task: Task, clip_norm: Positive = 1.0": "quiet takes 'clip_norm' by its place",
    "task: Task, *, clip_norm=1.0": "the setting 'clip_norm' of quiet has no annotati",
    "task: Task, *, clip_norm: Positive = -1.0": (
        "by default quiet.clip_norm=-1.0: input should be greater than 0"
    ),
    "task: Task, *, widths: list[int] | None = None": (
        "the setting 'widths' of quiet holds several values; a setting is one"
    ),
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_setting_that_cannot_be_one_is_named(arguments, tmp_path, capsys):
    """In a file when it is read, and in a function that is handed over."""
    text = ATTACK.replace("NAME(task: Task) -> Attack", f"quiet({arguments}) -> Attack")
    text = text.replace("import Attack", "import Positive, Attack")
    file = put(tmp_path / "quiet.py", text)
    words = ["scenario=calibration", "data=digits", "attacks=[quiet]"]
    line = refused(capsys, "show", *words, "--plugins", str(tmp_path))
    assert f"{file} (folder {tmp_path}): {MISTAKES[arguments]}" in line
    space = {"__name__": "notebook"}
    exec(text, space)
    with (
        plugins.given([("attack", "quiet", space["quiet"])]),
        pytest.raises(UserError, match=re.escape(MISTAKES[arguments])),
    ):
        registry.settings("attack", "quiet")


@pytest.mark.parametrize(
    ("command", "scenario", "bound", "message"),
    [
        ("show", "binary_mnist", "cramer_rao", "cramer_rao is always computed"),
        ("run", "epsilon_audit", "thousandth", "no squared errors"),
        ("show", "binary_mnist", "thousandt", "unknown bound 'thousandt'"),
    ],
)
def test_bounds_that_no_scenario_may_name(
    command, scenario, bound, message, flat, capsys
):
    words = [f"scenario={scenario}", "data=digits", f"bounds=[{bound}]"]
    words += [f"out={flat / 'out'}", "--plugins", str(flat)]
    assert message in refused(capsys, command, *words)


# Packages -----------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with entry points, as an installer would leave it."""

    def install(points, files, name="elsewhere"):
        for path, text in files.items():
            put(tmp_path / path, text, name=Path(path).stem)
        info = tmp_path / f"{name}-1.2.dist-info"
        put(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"[{group}]\n{point}" for group, point in points.items()]
        put(info / "entry_points.txt", "\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_a_packages_plug_ins_are_found(package, capsys):
    points = {"audit.defenses": "calm = elsewhere.calm:calm"}
    points |= {"audit.scenarios": "any = elsewhere.scenarios"}
    files = {"__init__.py": "", "calm.py": DEFENSE, "scenarios/__init__.py": ""}
    package(points, {f"elsewhere/{name}": text for name, text in files.items()})
    source = Path(registry.source("defense", "calm"))
    scenario(source.parent / "scenarios" / "theirs.yaml")
    assert registry.find("defense", "calm").__name__ == "calm"
    assert "[package elsewhere 1.2]" in printed(capsys, "list")
    theirs, replay = composed("scenario=theirs", "data=digits", "defenses=[calm]")
    assert "--plugins" not in replay
    origins = [p["origin"] for p in workspace.from_elsewhere(theirs)]
    assert origins == ["package elsewhere 1.2"] * 2


def test_reading_a_packages_settings_imports_nothing(package):
    package(
        {"audit.attacks": "heavy = heavy_package.heavy:heavy"},
        {"heavy_package/__init__.py": "1 / 0", "heavy_package/heavy.py": ATTACK},
    )
    assert registry.settings("attack", "heavy") == {}
    with pytest.raises(UserError, match=r"cannot import 'heavy' from .*heavy.py: Zero"):
        registry.find("attack", "heavy")


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("gone = nowhere_at_all.gone:gone", r"'gone' of .* names"),
        ("two = other_package.one:one", "the function must be called 'two'"),
    ],
)
def test_an_entry_point_without_its_function(point, message, package):
    files = {"other_package/__init__.py": "", "other_package/one.py": ATTACK}
    package({"audit.attacks": point}, files)
    with pytest.raises(UserError, match=message):
        registry.names("attack")


# Identity -----------------------------------------------------------------------------


def test_a_plug_ins_code_is_part_of_the_result(flat):
    words = ["scenario=binary_mnist", "data=digits", "defenses=[sgd,quiet]"]
    path = flat / "quiet.py"
    text = path.read_text()
    with plugins.using([str(flat)]):
        scenario, _ = composed(*words)

        def versions():
            plug_in = registry.version("defense", "quiet")
            return {workspace.code_version(scenario), plug_in}

        before = versions()
        path.write_text(text.replace("soft_clip(clip_norm)", "soft_clip(2.0)"))
        assert not before & versions()
        path.write_text(text + "\n# a comment\n")
        assert versions() == before


def test_all_of_a_package_is_its_code(package):
    files = {"__init__.py": "", "calmer.py": DEFENSE, "deep/helper.py": "A = 1\n"}
    files = {f"calm_package/{name}": text for name, text in files.items()}
    package({"audit.defenses": "calmer = calm_package.calmer:calmer"}, files)
    before = registry.version("defense", "calmer")
    helper = registry.source("defense", "calmer").parent / "deep" / "helper.py"
    helper.write_text("A = 2\n")
    assert registry.version("defense", "calmer") != before


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One small run with a plug-in of every kind."""
    place = tmp_path_factory.mktemp("run")
    for kind, name, text in PLUGINS:
        put(place / kind / name, text)
    words = ["scenario=binary_mnist", *SMALL, "defenses=[sgd,quiet]"]
    words += ["attacks=[class_mean,grey]", "bounds=[{low: {use: thousandth}}]"]
    words += [f"out={place}/out", "--plugins", str(place)]
    assert call("run", *words) == 0
    return place


def test_a_card_says_where_its_plug_ins_are_from_and_holds_their_bound(run):
    card = json.loads((run / "out" / "scorecard.json").read_text())
    plug_ins = card["provenance"]["plugins"]
    kinds = {"quiet": "defense", "grey": "attack", "thousandth": "bound"}
    assert {p["name"]: p["kind"] for p in plug_ins} == kinds
    assert {p["origin"] for p in plug_ins} == {f"folder {run.name}"}
    assert f"--plugins {run.name}" in card["provenance"]["command"]
    text = (run / "out" / "scorecard.md").read_text()
    assert f"defense quiet from folder {run.name}" in text
    assert "low: nobody (this test)" in text
    bounds = {b["name"]: b for b in card["defenses"]["quiet"]["bounds"]}
    assert bounds["low"]["mean"] == 0.001
    assert "cramer_rao" in bounds
    assert card["defenses"]["sgd"]["bounds"] == []
    trials = {(t["defense"], t["attack"]): t["result"] for t in card["trials"]}
    assert trials["quiet", "class_mean"]["against"]["low"]["tightness"] > 1


def test_a_rows_own_folder_of_plug_ins_is_never_opened(run, tmp_path, capsys):
    row = str(run / "out" / "scorecard.json")
    line = refused(capsys, "verify", row)
    assert f"made with plug-ins in '{run.name}'" in line
    assert "--plugins DIR" in line
    # the one that is typed is opened, and its row is replayed
    words = ["verify", str(run / "out"), f"out={tmp_path}/again"]
    assert "equal: " in printed(capsys, *words, "--plugins", str(run))


MODEL = '''
"""Mine: one logit."""

from audit.models import networks
from audit.types import Positive, Task


def mine(features: tuple, classes: int, *, scale: Positive = 1.0) -> Task:
    """Return a task whose name and parameters do not tell its settings.

    Args:
      features: shape of a record.
      classes: how many.
      scale: anything.
    """
    return networks.binary_linear(features, classes)
'''


def test_a_models_settings_are_part_of_what_it_is(tmp_path):
    """Else the store would hand one model's runs to another of the same shapes."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text(MODEL)
    names = []
    with plugins.using([str(tmp_path)]):
        for scale in (1.0, 2.0, 2.0):
            words = ["task.model=mine", f"task.settings.scale={scale}", *SMALL]
            scenario, _ = composed("scenario=binary_mnist", *words)
            names.append(pipeline.load(scenario, compose.play(scenario)).task.name)
    assert names[0] != names[1] == names[2]


def test_a_name_alone_is_enough_for_a_new_process(flat):
    """Sweeps may compose in other processes: the folder goes along."""
    code = "from audit.config import registry; print(registry.source('attack', 'grey'))"
    with plugins.using([str(flat)]):
        done = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert done.strip().endswith("grey.py")


def test_titles_are_read_from_the_file(tmp_path):
    put(tmp_path / "one.yaml", "# title: no\ntitle: A: colon\n")
    put(tmp_path / "none.yaml", "game: x\n")
    assert compose.title(tmp_path / "one") == "A: colon"
    assert compose.title(tmp_path / "none") == ""
