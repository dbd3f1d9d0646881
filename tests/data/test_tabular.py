"""Tables, and what is done to features before anything is learnt."""

import numpy as np
import pytest

from audit import data
from audit.data import DataError
from audit.data.dataset import Dataset
from audit.types import Examples, Splits

SIZES = {"public": 10, "fixed": 200, "pool": 100, "targets": 20, "test": 50}


pytestmark = pytest.mark.usefixtures("nowhere")


def column(dataset, name):
    return dataset.x_train[:, dataset.columns.index(name)]


def test_diabetes():
    table = data.load("diabetes")
    assert table.x_train.shape == (442, 10)
    assert table.x_train.dtype == table.y_train.dtype == np.float32
    assert (table.y_train.min(), table.y_train.max()) == (25, 346)
    assert table.x_test is None
    assert set(column(table, "sex")) == {0, 1}
    assert (column(table, "age").min(), column(table, "age").max()) == (19, 79)
    assert data.where("diabetes") == "embedded"


def test_breast_cancer_tells_the_size_by_one_column_only():
    table = data.load("breast_cancer")
    assert table.x_train.shape == (569, len(table.columns)) == (569, 22)
    assert table.y_train.dtype == np.int32
    assert np.bincount(table.y_train).tolist() == [212, 357]
    words = {word for name in table.columns for word in name.split()}
    assert not words & {"radius", "perimeter", "area"}
    assert {"mean texture", "worst symmetry"} <= set(table.columns)
    large = column(table, "large")
    assert set(large) == {0, 1}
    assert large.sum() == 284  # of 569: the median itself is not above the median
    assert all(word in table.note for word in ("large", "radius", "perimeter", "area"))
    others = np.corrcoef(table.x_train.T)[table.columns.index("large")]
    assert np.sort(np.abs(others))[-2] < 0.8  # genuinely missing


TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
50, Private, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 13, United-States, >50K
38, ?, 215646, HS-grad, 9, Divorced, ?, Not-in-family, White, Male, 0, 0, 40, Peru, <=50K
28, Private, 338409, Masters, 14, Married-spouse-absent, Sales, Wife, Black, Female, 0, 1902, 40, Cuba, <=50K

"""  # noqa: E501
TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Married-AF-spouse, Sales, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
44, Private, 160323, Masters, 10, Separated, Sales, Husband, Black, Male, 7688, 0, 40, Cuba, >50K.
"""  # noqa: E501


@pytest.fixture
def adult(tmp_path, monkeypatch):
    folder = tmp_path / "ours/adult"
    folder.mkdir(parents=True)
    (folder / "adult.data").write_text(TRAIN)
    (folder / "adult.test").write_text(TEST)
    monkeypatch.setenv("AUDIT_DATA", str(folder.parent))
    return folder


def test_adult(adult):
    table = data.load("adult")
    assert table.columns == (
        "age", "fnlwgt", "education-num", "capital-gain", "capital-loss",
        "hours-per-week", "workclass=Private", "education=11th", "education=Bachelors",
        "occupation=Adm-clerical", "occupation=Exec-managerial", "race=Black",
        "sex=Female", "native-country=Cuba", "married",
    )  # fmt: skip
    assert table.x_train.tolist() == [
        [39, 77516, 13, 2174, 0, 40, 0, 0, 1, 1, 0, 0, 0, 0, 0],
        [50, 83311, 13, 0, 0, 13, 1, 0, 1, 0, 1, 0, 0, 0, 1],
        [28, 338409, 14, 0, 1902, 40, 1, 0, 0, 0, 0, 1, 1, 1, 1],
    ]
    assert table.x_test.tolist() == [
        [25, 226802, 7, 0, 0, 40, 1, 1, 0, 0, 0, 1, 0, 0, 1],
        [44, 160323, 10, 7688, 0, 40, 1, 0, 0, 0, 0, 1, 0, 1, 0],
    ]
    assert table.y_train.tolist() == [0, 1, 0]
    assert table.y_test.tolist() == [0, 1]
    assert table.x_train.dtype == table.x_test.dtype == np.float32
    assert table.origin == data.where("adult") == "AUDIT_DATA"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("25, Private", "2 fields, 15 expected"),
        (TEST.splitlines()[1].replace("25", "young", 1), "age 'young'"),
        (TEST.splitlines()[1].replace("226802", "nan"), "fnlwgt 'nan'"),
        (TEST.splitlines()[1].replace("<=50K.", "50K."), "income '50K'"),
    ],
)
def test_a_malformed_line_of_adult_is_named(adult, damage, message):
    (adult / "adult.test").write_text(TEST + "\n" + damage)
    with pytest.raises(DataError, match=f"adult.test, line 5: {message}"):
        data.load("adult")


def test_files_of_adult_that_hold_nothing(adult):
    for raw, message in ((b"", "no complete record"), (b"\xff", "cannot be read")):
        (adult / "adult.data").write_bytes(raw)
        with pytest.raises(DataError, match=rf"adult\.data.*{message}"):
            data.load("adult")


def test_adult_says_where_to_put_its_files(monkeypatch, tmp_path):
    assert data.where("adult") is None
    message = r"put adult/adult\.data, adult/adult\.test into the folder AUDIT_DATA"
    with pytest.raises(DataError, match=message):
        data.load("adult")
    monkeypatch.setenv("AUDIT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=message):
        data.load("adult")


def test_a_class_of_the_test_part_alone_is_left_out():
    digits = data.load("digits")
    y_test = digits.y_train[:50].copy()
    y_test[:5] = 12  # above all classes of the training part
    both = digits._replace(x_test=digits.x_train[:50], y_test=y_test)
    chosen = data.choose_classes(both, [0, 1])
    assert set(chosen.y_test) == {0, 1}
    assert len(chosen.y_test) == np.isin(y_test, [0, 1]).sum()


def test_numbers_have_no_classes():
    table = data.load("diabetes")
    assert data.choose_classes(table, []) is table
    for wrong in ([25], [0, 1]):
        with pytest.raises(DataError, match="labels of diabetes are numbers"):
            data.choose_classes(table, wrong)


def test_tables_are_split_and_not_augmented():
    table = data.load("diabetes")
    splits = data.split(table, **SIZES, order="shuffled")
    assert splits.fixed.x.shape == (200, 10)
    assert splits.fixed.y.dtype == np.float32
    every = [x.tobytes() for s in splits[:-1] for x in s.x]
    assert len(set(every)) == sum(SIZES.values())
    data.check(splits, (-np.inf, np.inf))  # whatever numbers targets and pool hold
    with pytest.raises(DataError, match="outside"):
        data.check(splits)
    with pytest.raises(DataError, match="augment=200: diabetes holds no images"):
        data.split(table, **SIZES, augment=200)


def cut(d=6, seed=0, labels=float, **sizes):
    """Splits of correlated records."""
    rng = np.random.default_rng(seed)
    sizes = SIZES | sizes
    n = sum(sizes.values())
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3
    y = rng.normal(5, 2, n) if labels is float else rng.integers(0, 2, n)
    x = x.astype(np.float32)
    made = Dataset("made", x, y.astype(labels), None, None, "embedded", "")
    return data.split(made, **sizes)


TRAINING = ("public", "fixed", "targets", "pool")


def longest_of(*parts):
    return max(np.linalg.norm(np.float64(z.x), axis=1).max() for z in parts)


def test_each_part_has_its_own_ball():
    splits = cut()
    far = splits.targets.x.copy()
    far[0] *= 100  # the longest record of the training side
    splits = splits._replace(targets=Examples(far, splits.targets.y))
    done = data.prepare_features(splits, unit_ball=True)
    longest = longest_of(*(getattr(splits, name) for name in TRAINING))
    for name in TRAINING:
        expected = getattr(splits, name).x / longest
        np.testing.assert_allclose(getattr(done, name).x, expected, rtol=1e-6)
    expected = splits.test.x / longest_of(splits.test)
    np.testing.assert_allclose(done.test.x, expected, rtol=1e-6)
    assert done.test.x.dtype == np.float32
    np.testing.assert_array_equal(done.fixed.y, splits.fixed.y.astype(np.float32))


def test_a_pool_that_is_the_test_part_is_scaled_like_it():
    dataset = data.choose_classes(data.load("digits"), [0, 1])
    sizes = {"public": 0, "fixed": 200, "pool": 0, "targets": 0, "test": 90}
    splits = data.split(dataset, **sizes, pool_from="test")
    done = data.prepare_features(splits, unit_ball=True)
    assert done.fixed.x.shape == (200, 64)
    assert done.public.x.shape == done.targets.x.shape == (0, 64)
    np.testing.assert_array_equal(done.pool.x, done.test.x)
    for z in (done.fixed, done.pool):
        assert longest_of(z) == pytest.approx(1, abs=1e-6)
    assert done.fixed.y is splits.fixed.y
    data.check(done, in_turn=True)


def test_a_projection_keeps_the_directions_of_most_variance():
    splits = cut()
    done = data.prepare_features(splits, pca=6)
    fixed = np.float64(splits.fixed.x)
    centred = fixed - fixed.mean(0)
    sizes = np.linalg.svd(centred, compute_uv=False)
    scores = np.float64(done.fixed.x)
    np.testing.assert_allclose(scores.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scores.T @ scores, np.diag(sizes**2), atol=5e-3)
    # not whitened: all directions together are a rotation, of every part
    for name in ("public", "targets", "pool", "test"):
        moved = np.float64(getattr(splits, name).x) - fixed.mean(0)
        pair = (np.linalg.norm(x, axis=1) for x in (getattr(done, name).x, moved))
        np.testing.assert_allclose(*pair, rtol=1e-5)
    # an eigenvector or its opposite: the larger entries are the positive ones
    basis = np.linalg.lstsq(centred, scores, rcond=None)[0]
    assert (basis.max(0) > -basis.min(0)).all()
    some = data.prepare_features(splits, pca=2)
    np.testing.assert_array_equal(some.test.x, done.test.x[:, :2])


def test_targets_have_no_say_in_the_statistics():
    splits = cut()
    other = splits._replace(targets=Examples(splits.targets.x * 50, splits.targets.y))
    for settings in ({"pca": 3}, {"standardise": True}):
        one, two = (data.prepare_features(s, **settings) for s in (splits, other))
        np.testing.assert_array_equal(one.fixed.x, two.fixed.x)


@pytest.mark.parametrize(("k", "rank"), [(7, 6), (4, 3)])
def test_more_directions_than_there_are(k, rank):
    splits = cut()
    if rank == 3:
        flat = splits.fixed.x.copy()
        flat[:, 3:] = flat[:, :3] * 2
        splits = splits._replace(fixed=Examples(flat, splits.fixed.y))
    with pytest.raises(DataError, match=f"pca={k}: .*span {rank} directions"):
        data.prepare_features(splits, pca=k)
    assert data.prepare_features(splits, pca=rank).fixed.x.shape == (200, rank)


def with_column(splits, i, change):
    """Put something else into one column of every part."""
    parts = {}
    for name in Splits._fields[:-1]:
        x = getattr(splits, name).x.copy()
        x[:, i] = change(name, x[:, i])
        parts[name] = Examples(x, getattr(splits, name).y)
    return splits._replace(**parts)


def test_standardised_by_the_fixed_records():
    splits = with_column(cut(), 2, lambda _, x: x > 3)
    done = data.prepare_features(splits, standardise=True)
    fixed = np.float64(splits.fixed.x)
    free = [0, 1, 3, 4, 5]
    mean, sd = fixed[:, free].mean(0), fixed[:, free].std(0)
    for name in (*TRAINING, "test"):
        before, after = getattr(splits, name), getattr(done, name)
        expected = (before.x[:, free] - mean) / sd
        np.testing.assert_allclose(after.x[:, free], expected, atol=1e-5)
        np.testing.assert_array_equal(after.x[:, 2], before.x[:, 2])
        labels = (before.y - splits.fixed.y.mean()) / splits.fixed.y.std()
        np.testing.assert_allclose(after.y, labels, atol=1e-5)
        assert after.y.dtype == np.float32


def test_what_is_not_asked_for_or_not_a_number_stays_as_it_is():
    """A rare value stays an indicator."""
    splits = with_column(cut(labels=np.int32), 3, lambda name, x: float(name == "pool"))
    assert data.prepare_features(splits) is splits
    done = data.prepare_features(splits, standardise=True)
    assert done.test.y is splits.test.y
    assert (set(done.pool.x[:, 3]), set(done.fixed.x[:, 3])) == ({1}, {0})


def test_constant_columns_are_named():
    splits = with_column(cut(), 3, lambda name, x: 0.1)
    # zeros in `fixed` alone are no indicator
    splits = with_column(splits, 5, lambda name, x: x * (name == "test"))
    with pytest.raises(DataError, match=r"2 features are constant.*first: 3, 5"):
        data.prepare_features(splits, standardise=True)
    labels = splits.fixed.y * 0 + 7
    splits = cut()
    splits = splits._replace(fixed=Examples(splits.fixed.x, labels))
    with pytest.raises(DataError, match="labels of the fixed are constant"):
        data.prepare_features(splits, standardise=True)


def test_what_nothing_can_be_learnt_from():
    for settings in ({"pca": 2}, {"standardise": True}, {"unit_ball": True}):
        with pytest.raises(DataError, match="fixed is empty"):
            data.prepare_features(cut(fixed=0), **settings)
        hole = with_column(cut(), 0, lambda name, x: np.nan if name == "pool" else x)
        with pytest.raises(DataError, match="pool holds values that are not finite"):
            data.prepare_features(hole, **settings)
    nothing = with_column(cut(d=1), 0, lambda name, x: x * (name != "test"))
    with pytest.raises(DataError, match="all records of one part are zero"):
        data.prepare_features(nothing, unit_ball=True)


@pytest.mark.full
def test_the_longest_digits(monkeypatch, full_data):
    """Zeros and ones of MNIST, divided by what the longest of them measures."""
    monkeypatch.setenv("AUDIT_DATA", full_data)
    dataset = data.choose_classes(data.load("mnist"), [0, 1])
    splits = data.split(
        dataset, public=0, fixed=12665, pool=0, targets=0, pool_from="test"
    )
    done = data.prepare_features(splits, unit_ball=True)
    for name, length in (("fixed", 17.179), ("test", 15.391), ("pool", 15.391)):
        before, after = getattr(splits, name).x, getattr(done, name).x
        flat = before.reshape(len(before), -1)
        assert longest_of(Examples(flat, None)) == pytest.approx(length, abs=1e-3)
        np.testing.assert_allclose(after * length, flat, atol=1e-4)
