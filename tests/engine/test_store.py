"""The store: whole shards or none, and keys that miss exactly when they should."""

import io
import json
import multiprocessing
import os
import shutil

import jax
import numpy as np
import pytest

from audit.engine import store as stores
from audit.errors import UserError

ARRAYS = {
    "a": np.arange(6.0).reshape(2, 3).astype(np.float16),
    "b": np.array([True, False]),
    "c": np.zeros((0, 4), np.float32),
}
KEY = "ab" + "0" * 62


@pytest.fixture
def problems():
    return []


@pytest.fixture
def store(tmp_path, problems):
    return stores.open_store(tmp_path / "store", problems.append)


def put(store):
    stores.put(store, KEY, "tile", ARRAYS)


def get(store):
    return stores.get(store, KEY, "tile")


def whole(store):
    """Check that the arrays come back as they were put, and nothing else is left."""
    shard = get(store)
    assert list(shard) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(shard[name], array)
        assert shard[name].dtype == array.dtype
    assert not list(store.folder.rglob(".*"))


def files(store):
    folder = store.folder / "ab" / KEY
    return folder / "tile.npz", folder / "tile.json"


def test_the_same_arrays_are_the_same_bytes(store):
    assert get(store) is None
    put(store)
    whole(store)
    raw = files(store)[0].read_bytes()
    put(store)
    assert files(store)[0].read_bytes() == raw


DAMAGE = {
    "truncated": lambda raw: raw[:-9],
    # of a manifest: the sha256
    "flipped": lambda raw: raw[:20] + bytes([raw[20] ^ 1]) + raw[21:],
    "empty": lambda raw: b"",
    "replaced": lambda raw: b'["something", "else"]',
    "nested": lambda raw: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", [*DAMAGE, "missing"])
@pytest.mark.parametrize("which", [0, 1])
def test_damage_is_told_and_can_be_written_again(store, problems, which, damage):
    """Half a shard is missing, and no problem."""
    put(store)
    path = files(store)[which]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert get(store) is None
    assert len(problems) == (damage != "missing")
    assert all(f"{files(store)[0]} is damaged" in text for text in problems)
    assert damage == "missing" or not any(path.exists() for path in files(store))
    put(store)
    whole(store)


@pytest.mark.parametrize("other", [(KEY, "other"), ("ab" + "1" * 62, "tile")])
def test_the_shard_of_another_key_or_name_is_made_again(store, problems, other):
    """Somebody copied both of its files."""
    stores.put(store, *other, {"a": np.ones(2)})
    put(store)
    for ours, theirs in zip(files(store), stores._paths(store, *other), strict=True):
        shutil.copy(theirs, ours)
    assert "the manifest is of the" in stores.damage(files(store)[0])
    assert get(store) is None
    assert "the manifest is of the" in problems[0]
    put(store)
    whole(store)


def test_a_manifest_that_does_not_say_whose_it_is_stays_valid(store):
    put(store)
    manifest = files(store)[1]
    manifest.write_text(
        json.dumps({"sha256": json.loads(manifest.read_text())["sha256"]})
    )
    whole(store)


def test_names_are_those_of_finished_shards(store):
    put(store)
    stores.describe(store, KEY, {})
    stores.temporary(files(store)[1]).touch()
    assert stores.names(store, KEY) == ["tile"]


def test_killed_between_shard_and_manifest(store, monkeypatch):
    def killed(source, target, real=os.replace):
        if target.suffix == ".json":
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("audit.engine.store.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            put(store)
    assert [path.exists() for path in files(store)] == [True, False]
    assert get(store) is None
    put(store)
    whole(store)


def test_what_cannot_be_read_is_told_and_not_removed(store, problems):
    files(store)[1].mkdir(parents=True)
    assert get(store) is None
    (problem,) = problems
    assert "cannot read" in problem
    assert files(store)[1].exists()


def test_a_pickle_is_never_read(store, problems):
    put(store)
    raw = io.BytesIO()
    np.savez(raw, a=np.array([{"any": "object"}], dtype=object))
    shard, manifest = files(store)
    shard.write_bytes(raw.getvalue())
    sha = stores.hashlib.sha256(raw.getvalue()).hexdigest()
    manifest.write_text(json.dumps({"sha256": sha}))
    assert get(store) is None
    assert len(problems) == 1


@pytest.mark.parametrize(
    "array", [np.array([{}], dtype=object), np.asarray(jax.numpy.ones(2, "bfloat16"))]
)
def test_what_npz_cannot_hold_is_refused(store, array):
    with pytest.raises(TypeError, match="cannot store 'a'"):
        stores.put(store, KEY, "tile", {"a": array})
    assert get(store) is None


def test_a_manifest_says_what_is_inside_and_who_made_it(store):
    put(store)
    manifest = json.loads(files(store)[1].read_text())
    assert manifest["arrays"]["c"] == ["float32", [0, 4]]
    assert manifest["made_by"]["jax"] == jax.__version__


def test_descriptions_are_for_people_and_written_once(store):
    made_of = {"seed": 1, "targets": np.ones((2, 3), np.float32)}
    stores.describe(store, KEY, made_of)
    stores.describe(store, KEY, {"seed": 2})
    described = json.loads((store.folder / "ab" / KEY / "key.json").read_text())
    assert described["seed"] == 1
    assert described["targets"].startswith("float32[2, 3] ")
    with pytest.raises(ValueError, match="'key'"):
        stores.get(store, KEY, "key")


def test_writers_at_the_same_time(store):
    context = multiprocessing.get_context("spawn")
    alone = stores.Store(store.folder)
    writers = [context.Process(target=put, args=(alone,)) for _ in range(3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
        assert w.exitcode == 0
    whole(store)


def test_unwritable_folder_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match=str(blocked)):
        stores.open_store(blocked / "below")


def test_a_full_disk_is_told_of_and_leaves_nothing(store, problems, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("audit.engine.store.os.fsync", full)
    put(store)
    stores.describe(store, KEY, {})
    (problem,) = set(problems)
    assert f"cannot write store={store.folder}: No space left" in problem
    assert not [path for path in store.folder.rglob("*") if path.is_file()]


def test_digests_tell_apart_what_differs():
    different = [
        1, 1.0, True, "1", None, [1], {"1": 1}, {1: 1}, [1, [2]], [[1], 2], [], {}, "",
        ["a", "b"], ["ab"], ["a;str:'b'"], {"a": 1, "b": 2}, {"a": 2, "b": 1},
        np.ones(1), np.ones(1, int), np.ones((1, 1)), np.array(1.0), np.ones(1, ">f8"),
        np.asarray(jax.numpy.zeros(2, "bfloat16")), np.zeros(2, "f2"),
        np.zeros(2, "V2"), -0.0, 0.0, [[1, 2]],
        jax.random.key(0), jax.random.key(1), jax.random.key(0, impl="rbg"),
        jax.random.key_data(jax.random.key(0)),
    ]  # fmt: skip
    assert len({stores.digest(v) for v in different}) == len(different)


def test_digests_ignore_order_of_words_and_container():
    assert stores.digest({"a": 1, "b": 2}) == stores.digest({"b": 2, "a": 1})
    assert stores.digest((1, 2)) == stores.digest([1, 2])
    assert stores.digest({"a": 1, 2: 3}) == stores.digest({2: 3, "a": 1})
    assert stores.digest(np.ones(3, np.float32)) == stores.digest(jax.numpy.ones(3))
    assert stores.digest(np.float32(1)) == stores.digest(np.ones((), np.float32))
    turned = np.arange(6).reshape(2, 3).T
    assert stores.digest(turned) == stores.digest(turned.copy())
    assert stores.digest(jax.random.key(3)) == stores.digest(jax.random.key(3))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (b"raw", "bytes"),
        (np.array([{}]), "array of object"),
    ],
)
def test_undigestible_is_named(value, named):
    with pytest.raises(TypeError, match=f"cannot digest an? {named}"):
        stores.digest({"deep": [value]})
