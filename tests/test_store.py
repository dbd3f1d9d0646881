"""The store: whole shards or none, and keys that miss exactly when they should."""

import json
import multiprocessing

import jax
import numpy as np
import pytest

from audit import store as stores

ARRAYS = {
    "a": np.arange(6.0).reshape(2, 3).astype(np.float16),
    "b": np.array([True, False]),
    "c": np.zeros((0, 4), np.float32),
}
KEY = "ab" + "0" * 62


@pytest.fixture
def store(tmp_path):
    return stores.open_store(tmp_path / "store")


def same(found):
    assert found is not None
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def files(store):
    folder = store.folder / "ab" / KEY
    return folder / "tile.npz", folder / "tile.json"


def test_round_trip(store):
    assert stores.get(store, KEY, "tile") is None
    stores.put(store, KEY, "tile", ARRAYS)
    same(stores.get(store, KEY, "tile"))
    assert not list(store.folder.rglob(".*"))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize("damage", [truncate, flip])
@pytest.mark.parametrize("which", [0, 1])
def test_damage_is_missing_and_can_be_written_again(store, which, damage):
    stores.put(store, KEY, "tile", ARRAYS)
    damage(files(store)[which])
    found = stores.get(store, KEY, "tile")
    if found is not None:  # a flipped bit in the manifest's shapes is harmless
        same(found)
        return
    stores.put(store, KEY, "tile", ARRAYS)
    same(stores.get(store, KEY, "tile"))


def test_killed_between_shard_and_manifest(store):
    stores.put(store, KEY, "tile", ARRAYS)
    files(store)[1].unlink()
    assert stores.get(store, KEY, "tile") is None


def test_a_manifest_of_something_else(store):
    stores.put(store, KEY, "tile", ARRAYS)
    files(store)[1].write_text(json.dumps(["not", "a", "manifest"]))
    assert stores.get(store, KEY, "tile") is None


def _write(folder):
    stores.put(stores.Store(folder), KEY, "tile", ARRAYS)


def test_writers_at_the_same_time(store):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(store.folder,)) for _ in range(3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
        assert w.exitcode == 0
    same(stores.get(store, KEY, "tile"))


def test_unwritable_folder_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(stores.StoreError, match=str(blocked)):
        stores.open_store(blocked / "below")


def test_digests_tell_apart_what_differs():
    seen = [
        1, 1.0, True, "1", None, [1], {"1": 1}, np.ones(1), np.ones(1, int),
        np.ones((1, 1)),
        [1, [2]], [[1], 2], {"a": 1, "b": 2}, {"a": 2, "b": 1},
    ]  # fmt: skip
    assert len({stores.digest(v) for v in seen}) == len(seen)


def test_digests_ignore_order_of_words_and_container():
    assert stores.digest({"a": 1, "b": 2}) == stores.digest({"b": 2, "a": 1})
    assert stores.digest((1, 2)) == stores.digest([1, 2])
    assert stores.digest(np.ones(3, np.float32)) == stores.digest(jax.numpy.ones(3))


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()])])
def test_undigestible_is_named(value):
    with pytest.raises(TypeError, match="cannot digest"):
        stores.digest(value)


CODE = '"""Doc."""\nX = 1\n\ndef f(x):\n    """Say."""\n    return x + 1  # why\n'


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# why", "# because", True),
        ("Say.", "Tell.", True),
        ('"""Doc."""', "", True),
        ("x + 1", "x + 2", False),
        ("X = 1", "X = 1.0", False),
    ],
)
def test_code_versions_see_code_and_not_prose(tmp_path, old, new, same):
    before, after = tmp_path / "a" / "m.py", tmp_path / "b" / "m.py"
    for path, text in ((before, CODE), (after, CODE.replace(old, new))):
        path.parent.mkdir()
        path.write_text(text)
    equal = stores.code_version([before]) == stores.code_version([after])
    assert equal == same
