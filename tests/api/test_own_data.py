"""Data of one's own: what is taken, and one line for everything that is not."""

import numpy as np
import pytest

from audit import data
from audit.cli import doctor
from audit.config import plugins
from audit.data import local
from audit.data.dataset import DataError, Dataset
from tests.commands import composed, refused
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
    np.testing.assert_array_equal(read.x_test, table[45:].astype(np.float32))
    numbers = local.dataset(table, Y + 0.5)
    assert numbers.y_train.dtype == np.float32
    assert "numbers from" in numbers.note


def test_other_content_is_other_data():
    changed = X.copy()
    changed[0, 0, 0] = 1 - changed[0, 0, 0]
    assert local.dataset(changed, Y).name != local.dataset(X, Y).name


OBJECTS = np.empty(60, object)
OBJECTS[:] = [np.zeros(i % 3) for i in range(60)]
WRONG = {
    "60 records and y 59 labels": (X, Y[:59]),
    "outside [0, 1]: save bytes": (X * 16, Y),
    "labels from -1 to": (X, Y - 1),
    "holds Python objects or ragged lists": (OBJECTS, Y),
    "take y.argmax(1)": (X, np.eye(3)[Y]),
    "np.unique(y, return_inverse=True)": (X, Y.astype(str)),
    "not finite numbers: drop or fill": (np.where(X > 0.9, np.nan, X), Y),
    "labels that are not finite": (X, np.where(Y == 0, np.nan, Y)),
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
        ({"x": X}, "lacks y"),
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
    assert findings["duplicates"].text.startswith("5 training records")


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


def test_games_without_targets_get_candidates(tmp_path):
    path = saved(tmp_path, x=X, y=Y)
    words = ("game=membership", "attacks=[coin]", "membership.shadows=4")
    scenario, _ = composed("scenario=own", f"data=file:{path}", *words)
    assert (scenario.splits.targets, scenario.splits.fixed) == (0, 48)


def test_a_function_is_a_plug_in_of_the_kind_data(tmp_path):
    text = '''"""Two kinds of noise."""
import numpy as np
from audit import dataset
from audit.data import Dataset
def noises() -> Dataset:
    """Noise."""
    rng = np.random.default_rng(0)
    return dataset(rng.uniform(size=(60, 5)), np.arange(60) % 2)
'''
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "noises.py").write_text(text)
    with plugins.using([str(tmp_path)]):
        scenario, _ = composed("scenario=own", "data=noises")
        assert scenario.data == "noises"
        assert scenario.spec.features.standardise
        assert scenario.local.columns == ("x0", "x1", "x2", "x3", "x4")


def test_what_a_function_returns_is_checked():
    with pytest.raises(DataError, match="returns int"):
        local.check(3, "mine")
    part = Dataset("a", X[..., None] * 9, Y, None, None, "x", "x")
    with pytest.raises(DataError, match="data mine: x has images from"):
        local.check(part, "mine")
