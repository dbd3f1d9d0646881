"""Data of one's own: what is taken, and one line for everything that is not."""

import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from audit import data, pipeline
from audit.api import words
from audit.cli import doctor
from audit.config import compose, hydra_app, plugins, workspace
from audit.data import local
from audit.data.dataset import DataError, Dataset
from audit.engine.progress import Progress
from tests.commands import composed, printed, refused
from tests.conftest import records

X, Y = records(60, (6, 6), 3)


def saved(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


def test_bytes_and_floats_are_the_same_data(tmp_path):
    bytes_ = (X * 255).astype(np.uint8)
    first = local.dataset(bytes_, Y)
    second = local.dataset(bytes_ / np.float32(255), Y.astype(np.int64))
    np.testing.assert_allclose(first.x_train, second.x_train, atol=1e-7)
    assert first.x_train.shape == (60, 6, 6, 1)
    assert first.y_train.dtype == np.int32
    assert first.private
    read = local.read(saved(tmp_path, x=bytes_, y=Y))
    np.testing.assert_array_equal(read.x_train, first.x_train)
    assert read.name.startswith("mine-")
    assert read.name.partition("-")[2] == first.name.partition("-")[2]  # by content


def test_a_table_has_columns_and_a_split(tmp_path):
    split = np.where(np.arange(60) < 45, "train", "test")
    table = X.reshape(60, -1)[:, :4] * 100 - 50
    read = local.read(saved(tmp_path, x=table, y=Y, split=split, names=list("abcd")))
    assert read.columns == ("a", "b", "c", "d")
    assert (len(read.y_train), len(read.y_test)) == (45, 15)
    np.testing.assert_array_equal(read.x_test, table[45:])
    assert local.check(read, read.name).name == read.name  # named by content already
    numbers = local.dataset(table, Y + 0.5)
    assert numbers.y_train.dtype == np.float32
    assert "numbers from" in numbers.note


def test_other_content_is_other_data():
    changed = X.copy()
    changed[0, 0, 0] = 1 - changed[0, 0, 0]
    assert local.dataset(changed, Y).name != local.dataset(X, Y).name


def test_columns_are_standardised_before_they_are_rounded(tmp_path):
    """Float32 has steps of 128 at 1.6e9, and seconds would become copies."""
    seconds = np.arange(60.0)
    path = saved(tmp_path, x=np.stack([1.6e9 + seconds, seconds % 7], 1), y=Y)
    words = "scenario=own", f"data=file:{path}", "splits.order=file"
    scenario, _ = composed(*words)
    problem = pipeline.load(scenario, compose.play(scenario))
    fixed = seconds[: len(problem.splits.fixed.y)]
    expected = (fixed - fixed.mean()) / fixed.std()
    x = problem.splits.fixed.x
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, 0], expected, atol=1e-6)
    assert problem.known_targets == 0
    scenario, _ = composed(*words, "features.standardise=false")
    problem = pipeline.load(scenario, compose.play(scenario))
    assert problem.splits.fixed.x.dtype == np.float32
    assert problem.known_targets > 0  # what is learnt from are copies


def test_images_say_their_range_and_may_be_rounded():
    just_above = X * np.float32(1 / X.max())
    just_above[0, 0, 0] = np.nextafter(np.float32(1), np.float32(2))
    rounded = local.dataset(just_above, Y)
    assert rounded.x_train.max() == 1
    assert "6x6x1, pixels from " in rounded.note
    assert " to 1, 3 classes" in rounded.note
    assert " to 1, 1 class" in local.dataset(just_above, 0 * Y).note
    with pytest.raises(DataError, match=r"to 1\.000002, outside \[0, 1\]"):
        local.dataset(X / X.max() * 1.000002, Y)


def test_masked_entries_are_no_data():
    table = X.reshape(60, -1)[:, :4]
    with pytest.raises(DataError, match="x holds 1 masked entries, which are not fin"):
        local.dataset(np.ma.masked_equal(table, table[3, 2]), Y)
    with pytest.raises(DataError, match=r"y holds .* masked entries"):
        local.dataset(table, np.ma.masked_equal(Y, 2))
    whole = np.ma.masked_array(table, mask=False)
    assert local.dataset(whole, Y).name == local.dataset(table, Y).name


def test_text_in_arrays_of_objects_is_text():
    """As pandas has it."""
    table, words = X.reshape(60, -1)[:, :4], np.array(["cat", "dog", "eel"], object)
    with pytest.raises(DataError, match=r"such as 'cat': .* np\.unique\(y, return_inv"):
        local.dataset(table, np.sort(words[Y]))
    mixed = table.astype(object)
    mixed[:, 1] = words[Y]
    with pytest.raises(DataError, match="encode text as columns"):
        local.dataset(mixed, Y)
    halves = np.repeat(np.array(["train", "test"], object), 30)
    names = np.array(list("abcd"), object)
    assert len(local.dataset(table, Y, split=halves, names=names).y_test) == 30


OBJECTS = np.empty(60, object)
OBJECTS[:] = [np.zeros(i % 3) for i in range(60)]
WRONG = {
    "60 records and y 59 labels": (X, Y[:59]),
    "outside [0, 1]: save bytes": (X * 16, Y),
    "(x / 1).astype(np.float32)": ((X > 0.5).astype(np.uint8), Y),
    "from 0 to 16, of which 255 is 1": ((X * 17).astype(np.uint8), Y),
    "labels from -1 to": (X, Y - 1),
    "holds Python objects or ragged lists": (OBJECTS, Y),
    "take y.argmax(1)": (X, np.eye(3)[Y]),
    "y has shape (60, 1); one label per record, [N], is wanted: take y.ravel()": (
        X,
        Y[:, None],
    ),
    "x has shape (0, 6, 6): it holds nothing": (X[:0], Y[:0]),
    "np.unique(y, return_inverse=True)": (X, Y.astype(str)),
    "not finite numbers of float32: drop": (np.where(X > 0.9, np.nan, X), Y),
    "x holds 120 values that are not finite": (np.full((60, 2), 1e300), Y),
    "labels that are not finite": (X, np.where(Y == 0, np.nan, Y)),
    "y holds 60 labels that are not finite": (X, Y + 1e300),
    "reshape it": (X[0, 0], Y),
    "with 6 channels": (np.stack([X] * 6, -1), Y),
    "encode text": (X.astype(str), Y),
}


@pytest.mark.parametrize("says", WRONG)
def test_wrong_arrays_are_refused_with_the_remedy(says, tmp_path):
    x, y = WRONG[says]
    with pytest.raises(DataError) as caught:
        local.dataset(x, y)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    path = saved(tmp_path, x=x, y=y)
    with pytest.raises(DataError, match=r"mine\.npz") as caught:
        data.load(f"file:{path}")
    (finding,) = doctor.examine(f"file:{path}")
    assert (finding.status, finding.text) == ("problem", str(caught.value))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X}, "lacks y; x and y are wanted, names and split may be left out"),
        ({"x": X, "y": Y, "z": Y}, "has z"),
        ({"x": X, "y": Y, "names": ["a"]}, "names are of a table's columns"),
        ({"x": X, "y": Y, "split": np.array(["train"] * 60)}, "of every record"),
        ({"x": X, "y": Y, "split": np.array(["tain"] * 60)}, "'tain'"),
        ({"x": X[:, 0], "y": Y, "names": ["a"] * 6}, "name each column once"),
    ],
)
def test_files_that_lack_or_hold_too_much(arrays, says, tmp_path):
    with pytest.raises(DataError, match=says):
        local.read(saved(tmp_path, **arrays))


def test_every_word_of_a_split_is_read():
    """A hold-out that is named at the end of a long file must not become training."""
    many = 12_000
    words = np.array(["test", *["train"] * (many - 2), "private"])
    x, y = np.random.default_rng(0).random((many, 2)), np.arange(many) % 2
    with pytest.raises(DataError, match="'private'"):
        local.dataset(x, y, split=words)


def test_the_doctor_counts_what_stands_there_twice(tmp_path):
    path = saved(tmp_path, x=np.concatenate([X, X[:5]]), y=np.concatenate([Y, Y[:5]]))
    findings = {f.name: f for f in doctor.examine(f"file:{path}")}
    assert findings["data"].status == "ok"
    text = findings["duplicates"].text
    assert text.startswith("5 training records")
    here = {"np": np, **np.load(path)}  # the remedy is code, and keeps x with y
    exec(text.partition("drop them by ")[2], here)
    assert len(here["x"]) == len(here["y"]) == 60
    labels = {x.tobytes(): y for x, y in zip(X, Y, strict=True)}
    assert all(
        labels[x.tobytes()] == y for x, y in zip(here["x"], here["y"], strict=True)
    )


def test_a_file_that_is_not_there_was_typed_wrong(tmp_path, capsys):
    for path in (tmp_path / "none.npz", "~nobody/none.npz"):
        assert "no such file" in refused(capsys, "doctor", f"data=file:{path}")
    for word in ("file:", f"file:{tmp_path}"):
        assert f"data={word}: a folder" in refused(capsys, "doctor", f"data={word}")
    (tmp_path / "mine.npz").write_text("no arrays")
    printed(capsys, "doctor", f"data=file:{tmp_path / 'mine.npz'}", code=1)


NAMES = (
    "ü (1)",
    "a=b",
    "c,d",
    "it's",
    "do$lar",
    "br{a}ce",
    "tab[1]",
    "back\\",
    "~e",
    "#",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_path_may_hold_any_letter(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    word = f"data=file:{saved(tmp_path, x=X, y=Y).rename(f'{name}.npz').name}"
    scenario, replay = composed("scenario=own", word)
    assert shlex.split(replay) == ["scenario=own", word]
    assert scenario.data.endswith(local.dataset(X, Y).name.removeprefix("arrays"))
    given = words.typed({"data": Path(f"{name}.npz")}).words
    assert composed("scenario=own", *given)[1] == replay


@pytest.mark.parametrize("word", ["out", "store"])
@pytest.mark.parametrize("name", [*NAMES, "jörg", "/tmp/a(b)", "3", "true", "'x", "["])
def test_a_folder_may_have_any_letter(name, word):
    scenario, replay = composed("scenario=own", f"{word}={name}")
    assert getattr(scenario.spec, word) == name
    assert shlex.split(replay) == ["scenario=own", f"{word}={name}"]
    given = words.typed({word: Path(name)}).words
    assert composed("scenario=own", *given)[1] == replay


@pytest.mark.parametrize(
    ("typed", "means", "again"),
    [
        ("null", None, "null"),
        ("NULL", None, "NULL"),
        ("", "", ""),
        ("'ü (1)'", "ü (1)", "ü (1)"),
        ('"it\'s"', "it's", "it's"),
        # these would mean something else without their quotes
        ("'null'", "null", "'null'"),
        (r"'\'x\''", "'x'", r"'\'x\''"),
        ("runs/${seed}", "runs/3", "runs/3"),
        ("'ü ${seed}'", "ü 3", "ü 3"),
    ],
)
def test_a_folder_in_hydras_words_is_what_it_was(typed, means, again):
    scenario, replay = composed("scenario=own", "seed=3", f"out={typed}")
    assert scenario.spec.out == means
    assert shlex.split(replay) == ["scenario=own", "seed=3", f"out={again}"]
    same, its = composed(*shlex.split(replay))
    assert (same.spec.out, its) == (means, replay)


def test_folders_are_swept_by_commas():
    points = []
    job = lambda scenario, replay: points.append((scenario.spec.out, replay))
    hydra_app.launch(["scenario=own", "-m", "out=a,'ü (1)'"], job)
    assert points == [
        ("a", "scenario=own out=a"),
        ("ü (1)", "scenario=own 'out=ü (1)'"),
    ]


def test_a_folder_at_home_is_there_as_in_a_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    scenario, replay = composed("scenario=own", "out=~/ü", "store=~/kept")
    folder, _ = workspace.open_folder(scenario, Path("runs"))
    assert folder == tmp_path / "ü"
    engine = workspace.engine(scenario, folder, Path("runs"), Progress(io.StringIO()))
    assert engine.store.folder == tmp_path / "kept"
    assert shlex.split(replay) == ["scenario=own", "out=~/ü", "store=~/kept"]


def test_files_are_swept_by_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, x=X, y=Y).rename("a.npz")
    saved(tmp_path, x=1 - X, y=Y).rename("ü.npz")
    points = []
    job = lambda scenario, replay: points.append(replay)
    hydra_app.launch(["scenario=own", "-m", "data=file:a.npz,'file:ü.npz'"], job)
    assert points == ["scenario=own data=file:a.npz", "scenario=own data=file:ü.npz"]
    hydra_app.launch(["scenario=own", "-m", "data=file:ü.npz", "seed=0,1"], job)
    assert points[2:] == [
        f"scenario=own data=file:ü.npz seed={seed}" for seed in (0, 1)
    ]


def test_words_of_the_command_line_reach_it(tmp_path, capsys):
    path = saved(tmp_path, x=X, y=Y)
    scenario, replay = composed("scenario=own", f"data=file:{path}", "splits.targets=5")
    assert scenario.data == local.read(path).name
    assert scenario.classes == [0, 1, 2]
    assert scenario.splits.targets == 5
    assert scenario.stands_in_for is None
    again, _ = composed(*replay.split())
    assert again.resolved() == scenario.resolved()
    line = refused(capsys, "show", "scenario=own", f"data=file:{tmp_path}/none.npz")
    assert "no such file" in line
    one = local.PREFIX + str(saved(tmp_path, x=X, y=Y * 0))
    line = refused(capsys, "show", "scenario=own", f"data={one}")
    assert f"task.classes=[0]: one class of data={one}; at least two are" in line
    line = refused(capsys, "show", "scenario=own", "splits.targetz=5")
    assert "did you mean 'targets'" in line


def test_splits_win_over_those_of_the_set():
    words = ("scenario=binary_mnist", "data=digits")
    before, after = composed(*words)[0], composed(*words, "splits.targets=5")[0]
    assert after.splits == before.splits.model_copy(update={"targets": 5})
    typed = composed(*words, "sets.digits.splits.targets=5")[0]
    assert typed.resolved() == after.resolved()


@pytest.mark.parametrize(
    ("name", "cut", "table"),
    [
        ("mnist5k", (50, 400, 200, 1000), False),  # 5,000 digits: the most of each
        ("breast_cancer", (50, 227, 179, 113), True),  # 569 tumours
        ("diabetes", (44, 176, 134, 88), True),  # 442 patients, labels are numbers
    ],
)
def test_data_of_the_suite_are_cut_as_ones_own(name, cut, table):
    scenario, replay = composed("scenario=own", f"data={name}")
    splits = scenario.splits
    assert (splits.targets, splits.pool, splits.fixed, splits.test) == cut
    assert scenario.spec.features.standardise == table
    assert scenario.stands_in_for is None
    again, _ = composed(*replay.split())
    assert again.resolved() == scenario.resolved()


def test_a_class_of_the_test_part_alone_is_not_left_out_silently(tmp_path, capsys):
    split = np.where(np.arange(60) < 50, "train", "test")
    path = saved(tmp_path, x=X, y=np.r_[Y[:50] % 2, Y[50:]], split=split)
    words = ("show", "scenario=own", f"data=file:{path}")
    line = refused(capsys, *words)
    assert "class 2 is in the test part alone" in line
    printed(capsys, *words, re.search(r"task.classes=\S+", line)[0])


def test_games_without_targets_get_candidates(tmp_path):
    path = saved(tmp_path, x=X, y=Y)
    words = ("game=membership", "attacks=[coin]", "membership.shadows=4")
    scenario, _ = composed("scenario=own", f"data=file:{path}", *words)
    assert (scenario.splits.targets, scenario.splits.fixed) == (0, 48)


NOISES = '''"""Two kinds of noise."""
import numpy as np
from audit import dataset
from audit.data import Dataset
def noises() -> Dataset:
    """Noise."""
    rng = np.random.default_rng(0)
    return dataset(rng.uniform(size=(60, 5)), np.arange(60) % 2)
'''


@pytest.fixture
def noises(tmp_path):
    """The file of a plug-in, in a folder that is looked into."""
    path = tmp_path / "datasets" / "noises.py"
    path.parent.mkdir()
    path.write_text(NOISES)
    with plugins.using([str(tmp_path)]):
        yield path


def test_a_function_is_a_plug_in_of_the_kind_data(noises):
    scenario, replay = composed("scenario=own", "data=noises")
    assert scenario.spec.features.standardise
    assert scenario.local.columns == ("x0", "x1", "x2", "x3", "x4")
    (used,) = workspace.from_elsewhere(scenario)
    assert (used["kind"], used["name"]) == ("data", "noises")
    assert replay.startswith("scenario=own data=noises --plugins ")


def test_two_versions_of_a_plug_ins_data_have_two_names(noises, tmp_path):
    names, folders = set(), set()
    for seed in (0, 1):
        noises.write_text(NOISES.replace("rng(0)", f"rng({seed})"))
        scenario, _ = composed("scenario=own", "data=noises")
        folder = workspace.place(scenario, tmp_path)[0].name
        assert re.fullmatch(r"noises-[0-9a-f]{8}", scenario.data)
        assert folder.startswith(f"own-{scenario.data}-")
        names.add(scenario.data)
        folders.add(folder)
    assert len(names) == len(folders) == 2


def test_a_scenario_cuts_a_plug_ins_data_by_its_word(noises, tmp_path):
    text = (hydra_app.BUILT_IN / "own.yaml").read_text()
    text = text.replace("  digits:", "  noises:").replace(
        "data: digits", "data: noises"
    )
    text = re.sub(
        r"splits: .*", "splits: {fixed: 9, pool: 8, targets: 3, test: 7}", text
    )
    (tmp_path / "mine.yaml").write_text(text)
    scenario, _ = composed("scenario=mine", "--config-dir", str(tmp_path))
    assert scenario.splits.fixed == 9
    assert scenario.data.startswith("noises-")


def test_what_a_function_returns_is_checked():
    with pytest.raises(DataError, match="returns int"):
        local.check(3, "mine")
    part = Dataset("a", X[..., None] * 9, Y, None, None, "x", "x")
    with pytest.raises(DataError, match="data mine: x has images from"):
        local.check(part, "mine")
