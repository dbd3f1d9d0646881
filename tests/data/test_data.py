"""Data: look-up order, damage, disjoint splits, augmentation."""

import gzip
import hashlib
import io
import struct
from pathlib import Path

import numpy as np
import pooch
import pytest

from audit import data
from audit.data import DataError, embedded, files
from audit.data.dataset import digest
from audit.types import Examples

pytestmark = pytest.mark.usefixtures("nowhere")


def idx(path, array):
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def tiny_mnist(folder, n=6):
    for part, count in (("train", n), ("t10k", 4)):
        images = np.arange(count * 9).reshape(count, 3, 3) * 2
        idx(folder / f"mnist/{part}-images-idx3-ubyte.gz", images)
        idx(folder / f"mnist/{part}-labels-idx1-ubyte.gz", np.arange(count) % 3)


def test_user_folder_then_cache(tmp_path, monkeypatch):
    assert data.where("mnist") is None
    tiny_mnist(tmp_path / "cache")
    assert data.where("mnist") == "cache"
    tiny_mnist(tmp_path / "ours", n=8)
    monkeypatch.setenv("AUDIT_DATA", str(tmp_path / "ours"))
    assert data.where("mnist") == "AUDIT_DATA"
    mnist = data.load("mnist")
    assert (mnist.x_train.shape, mnist.x_test.shape) == ((8, 3, 3, 1), (4, 3, 3, 1))
    np.testing.assert_allclose(mnist.x_train[0].ravel(), np.arange(9) * 2 / 255)
    assert mnist.origin == "AUDIT_DATA"


def test_auto_takes_the_first_that_is_here(tmp_path):
    order = ["mnist", "mnist5k"]
    assert data.resolve("auto", order) == "mnist5k"
    tiny_mnist(tmp_path / "cache")
    assert data.resolve("auto", order) == "mnist"
    assert data.resolve("digits", order) == "digits"
    with pytest.raises(DataError, match="none of cifar10"):
        data.resolve("auto", ["cifar10"])


def test_an_unknown_folder_or_name_is_named(monkeypatch):
    with pytest.raises(DataError, match="unknown data set 'mnits'"):
        data.load("mnits")
    monkeypatch.setenv("AUDIT_DATA", "/no/such/folder")
    with pytest.raises(DataError, match="AUDIT_DATA=/no/such/folder is not a folder"):
        data.where("mnist")


def test_missing_without_network_says_where_to_put_it(monkeypatch):
    def refuse(*a, **k):
        raise OSError("no network")

    monkeypatch.setattr(files.socket, "create_connection", refuse)
    with pytest.raises(DataError, match=r"AUDIT_DATA.*train-images"):
        data.load("mnist")
    with pytest.raises(DataError, match=r"AUDIT_DATA.*|train_1\.webp"):
        data.load("cifar10")


@pytest.mark.parametrize("keep", [0, 10, 40, None])
def test_a_damaged_file_is_named(tmp_path, keep):
    """Truncated, or of another kind."""
    tiny_mnist(tmp_path / "cache")
    path = tmp_path / "cache/mnist/train-images-idx3-ubyte.gz"
    another = gzip.compress(b"not idx at all, but long enough to parse")
    path.write_bytes(another if keep is None else path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train-images.*is damaged"):
        data.load("mnist")


def test_images_and_labels_must_agree(tmp_path, monkeypatch):
    tiny_mnist(tmp_path)
    idx(tmp_path / "mnist/train-labels-idx1-ubyte.gz", np.zeros(5))
    monkeypatch.setenv("AUDIT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"images \(6, 3, 3\) and labels \(5,\)"):
        data.load("mnist")


def officially(monkeypatch, folder):
    """Make four files in this folder and declare them the official ones."""
    tiny_mnist(folder)
    for name in files.idx_files("mnist"):
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        monkeypatch.setitem(files.SHA256, name, digest)


@pytest.mark.parametrize("name", files.idx_files("mnist"))
def test_a_cached_file_must_be_the_official_one(name, tmp_path, monkeypatch):
    officially(monkeypatch, tmp_path / "cache")
    assert data.load("mnist").origin == "cache"
    path = tmp_path / "cache" / name
    whole = files.read_idx(path).copy()
    whole.flat[0] += 1  # as readable as before
    idx(path, whole)
    with pytest.raises(DataError, match=f"{path} is not the official.*delete it"):
        data.load("mnist")
    monkeypatch.setenv("AUDIT_DATA", str(tmp_path / "cache"))
    assert data.load("mnist").origin == "AUDIT_DATA"  # one's own may be anything


def downloading(monkeypatch, folder):
    """Let pooch fetch from a local folder."""
    line = lambda *a, **k: io.BytesIO()
    monkeypatch.setattr(files.socket, "create_connection", line)

    def fetch(url, output_file, pooch):
        name = url.rsplit("/", 1)[1]
        Path(output_file).write_bytes((folder / "mnist" / name).read_bytes())

    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *a, **k: fetch)


def test_a_download_is_checked_and_says_nothing(tmp_path, monkeypatch, caplog):
    officially(monkeypatch, tmp_path / "there")
    downloading(monkeypatch, tmp_path / "there")
    logger = pooch.get_logger()  # under no root: its own handler writes to stderr
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    assert data.load("mnist").origin == "download"
    assert data.load("mnist").origin == "cache"
    assert caplog.records == []
    logger.info("as loud as before")
    assert len(caplog.records) == 1


def test_a_download_of_something_else_is_refused(tmp_path, monkeypatch):
    tiny_mnist(tmp_path / "there")
    downloading(monkeypatch, tmp_path / "there")
    with pytest.raises(DataError, match=r"cannot download .*hash"):
        data.load("mnist")
    # were the downloader to let it pass
    tiny_mnist(tmp_path / "cache")
    monkeypatch.setattr(files, "locate", lambda names: None)
    monkeypatch.setattr(pooch, "retrieve", lambda *a, **k: None)
    with pytest.raises(DataError, match="is not the official file"):
        data.load("mnist")


def test_embedded_digits_are_cached_and_a_damaged_cache_is_rebuilt(tmp_path):
    first = data.load("mnist5k")
    assert first.x_train.shape == (5000, 28, 28, 1)
    assert np.bincount(first.y_train).tolist() == [500] * 10
    assert 0 <= first.x_train.min() < first.x_train.max() == 1
    cached, bare = tmp_path / "cache/mnist5k.npz", io.BytesIO()
    np.save(bare, np.zeros(3))  # one array, no zip
    size = cached.stat().st_size
    for damage in (b"", cached.read_bytes()[: size // 2], bare.getvalue()):
        cached.write_bytes(damage)
        np.testing.assert_array_equal(data.load("mnist5k").x_train, first.x_train)
        assert cached.stat().st_size == size


def odd_caches():
    x, y = np.zeros((4, 28, 28), np.uint8), np.zeros(4, np.uint8)
    whole = {"x": x, "y": y, "digest": digest(x, y)}
    for missing in whole:
        yield {k: v for k, v in whole.items() if k != missing}
    for odd in ({"x": x[:, 0]}, {"x": x[:3]}, {"x": x.astype(float)}, {"y": y[0]}):
        other = whole | odd
        yield other | {"digest": digest(other["x"], other["y"])}
    yield whole | {"digest": np.zeros(3)}
    yield whole | {"x": np.array([None])}  # a pickle


@pytest.mark.parametrize("arrays", [*odd_caches()], ids=lambda arrays: "-".join(arrays))
def test_an_odd_cache_is_rebuilt(arrays, tmp_path, monkeypatch):
    again = {"x": np.ones((2, 28, 28), np.uint8), "y": np.ones(2, np.uint8)}
    again["digest"] = np.asarray(digest(again["x"], again["y"]))
    monkeypatch.setattr(embedded, "_parse_mnist5k", lambda: again)
    (tmp_path / "cache").mkdir()
    np.savez(tmp_path / "cache/mnist5k.npz", **arrays)
    assert len(data.load("mnist5k").y_train) == 2
    monkeypatch.setattr(embedded, "_parse_mnist5k", None)  # kept: not made again
    assert len(data.load("mnist5k").y_train) == 2


def test_an_npz_that_lacks_an_array_is_named(tmp_path):
    (tmp_path / "cache/lfw").mkdir(parents=True)
    np.savez(tmp_path / "cache/lfw/lfw106_32x32.npz", x=np.zeros(3))
    with pytest.raises(DataError, match=r"lfw106_32x32.npz is damaged.*y\.npy"):
        data.load("lfw")


def test_embedded_works_without_a_writable_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUDIT_CACHE", str(tmp_path / "file" / "below"))
    assert len(data.load("mnist5k").y_train) == 5000


def binary():
    return data.choose_classes(data.load("digits"), [3, 1])


def test_classes_are_relabelled_in_the_order_given():
    whole, some = data.load("digits"), binary()
    assert set(some.y_train) == {0, 1}
    threes = whole.x_train[whole.y_train == 3]
    np.testing.assert_array_equal(some.x_train[some.y_train == 0], threes)
    for wrong in ([0, 11], [1, 1], []):
        with pytest.raises(DataError, match="digits has"):
            data.choose_classes(whole, wrong)


SIZES = {"public": 5, "fixed": 40, "pool": 60, "targets": 20, "test": 30}


def parts(**given):
    """Split the digits one and three, by these sizes unless others are given."""
    return data.split(binary(), **SIZES | given)


def rows(examples):
    return [x.tobytes() for x in examples.x]


@pytest.mark.parametrize("order", ["file", "shuffled"])
def test_splits_are_disjoint_and_complete(order):
    dataset = binary()
    splits = data.split(dataset, **SIZES, order=order)
    data.check(splits)
    every = [r for s in splits[:-1] for r in rows(s)]
    assert len(every) == len(set(every)) == sum(SIZES.values())
    assert [len(s.y) for s in splits[:-1]] == [5, 40, 20, 60, 30]
    if order == "file":
        np.testing.assert_array_equal(splits.public.x, dataset.x_train[:5])
        np.testing.assert_array_equal(splits.targets.x, dataset.x_train[105:125])
    again, other = (parts(order=order, seed=s) for s in (0, 1))
    assert data.splits_digest(splits) == data.splits_digest(again)
    same = data.splits_digest(splits) == data.splits_digest(other)
    assert same == (order == "file")


def test_a_share_of_the_records_is_rounded():
    """Of 365 records .03 are 10.95."""
    assert len(parts(public=0.03).public.y) == 11


def test_more_than_the_data_hold():
    message = r"targets=2000 .*records asked, digits holds 365"
    with pytest.raises(DataError, match=message):
        parts(targets=2000)
    with pytest.raises(DataError, match="no official test part"):
        parts(test=None)


@pytest.mark.parametrize("name", [*SIZES, "augment"])
def test_a_negative_size_is_named(name):
    with pytest.raises(DataError, match=f"{name}=-1"):
        parts(**{name: -1})


def test_official_test_part(tmp_path, monkeypatch):
    tiny_mnist(tmp_path)
    monkeypatch.setenv("AUDIT_DATA", str(tmp_path))
    sizes = {"public": 0, "fixed": 2, "pool": 2, "targets": 2}
    splits = data.split(data.load("mnist"), **sizes)
    assert len(splits.test.y) == 4
    with pytest.raises(DataError, match="test=9 asked, mnist's test part holds 4"):
        data.split(data.load("mnist"), **sizes, test=9)


def test_the_pool_may_be_the_test_part():
    how = {"pool": 0, "targets": 0, "pool_from": "test"}
    splits = parts(**how)
    assert len(splits.pool.y) == len(splits.test.y) == 30
    np.testing.assert_array_equal(splits.pool.x, splits.test.x)
    np.testing.assert_array_equal(splits.pool_source, np.arange(30))
    assert not {*rows(splits.fixed)} & {*rows(splits.pool)}
    with pytest.raises(DataError, match="targets is empty"):
        data.check(splits)
    data.check(splits, in_turn=True)
    for wrong in ({"pool": 60}, {"augment": 90}):
        with pytest.raises(DataError, match="both must be 0"):
            parts(**how | wrong)


def test_augmentation_moves_pool_images_only():
    plain = parts(order="shuffled")
    more, again = (parts(order="shuffled", augment=200) for _ in range(2))
    for name in ("public", "fixed", "targets", "test"):
        assert rows(getattr(plain, name)) == rows(getattr(more, name))
    np.testing.assert_array_equal(more.pool.x[:60], plain.pool.x)
    assert more.pool.x.shape == (200, 8, 8, 1)
    np.testing.assert_array_equal(more.pool_source[:60], np.arange(60))
    np.testing.assert_array_equal(more.pool.y, plain.pool.y[more.pool_source])
    data.check(more)
    moved = more.pool.x[60:]
    source = plain.pool.x[more.pool_source[60:]]
    gap = ((moved - source) ** 2).mean((1, 2, 3))
    stranger = ((moved - np.roll(source, 1, 0)) ** 2).mean((1, 2, 3))
    assert 0 < gap.mean() < 0.8 * stranger.mean()
    again = data.split(binary(), **SIZES, order="shuffled", augment=200)
    assert data.splits_digest(more) == data.splits_digest(again)
    first, other = (parts(augment=200, seed=seed).pool.x for seed in (0, 1))
    np.testing.assert_array_equal(first[:60], other[:60])
    assert (first[60:] != other[60:]).any((1, 2, 3)).all()
    with pytest.raises(DataError, match="pool is empty"):
        data.check(parts(pool=0, augment=10))


def test_classes_of_targets_must_be_in_the_pool():
    splits = parts()
    pool = splits.pool._replace(y=np.zeros_like(splits.pool.y))
    with pytest.raises(DataError, match="pool holds no record of class 1"):
        data.check(splits._replace(pool=pool))
    with pytest.raises(DataError, match="of class 1, unlike fixed"):
        data.check(splits._replace(pool=pool), in_turn=True)


def test_labels_are_numbers_and_values_lie_in_the_domain():
    splits = parts()
    for value, message in ((np.nan, "that are not finite"), (1.5, "outside")):
        x = splits.targets.x.copy()
        x[3, 2, 2, 0] = value
        with pytest.raises(DataError, match=f"targets holds 1 values {message}"):
            data.check(splits._replace(targets=splits.targets._replace(x=x)))
    y = np.where(np.arange(40) < 2, np.nan, splits.fixed.y).astype(np.float32)
    with pytest.raises(DataError, match="fixed holds 2 labels that are not finite"):
        data.check(splits._replace(fixed=splits.fixed._replace(y=y)))
    far = splits._replace(targets=splits.targets._replace(x=splits.targets.x * 1e6))
    data.check(far, (-np.inf, np.inf))
    with pytest.raises(DataError, match="outside"):
        data.check(far)


def test_duplicates_are_counted():
    splits = parts()
    in_turn = splits._replace(targets=Examples(splits.targets.x[:0], np.zeros(0, int)))
    assert data.duplicates(splits) == data.duplicates(in_turn) == 0
    twin = splits.fixed.x.copy()
    twin[[1, 2]] = twin[0], splits.pool.x[0]
    fixed = splits.fixed._replace(x=twin)
    assert data.duplicates(in_turn._replace(fixed=fixed)) == 3
    x = splits.targets.x.copy()
    x[0] = splits.pool.x[7]
    twins = splits._replace(targets=splits.targets._replace(x=x))
    assert data.duplicates(twins) == 1


@pytest.mark.full
def test_full_sets_are_the_official_ones(monkeypatch, full_data):
    monkeypatch.setenv("AUDIT_DATA", full_data)
    mnist = data.load("mnist")
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.y_train).tolist() == counts
    for name in files.SHA256:
        raw = Path(full_data, name).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == files.SHA256[name]
    assert np.bincount(data.load("cifar10").y_train).tolist() == [5000] * 10
