"""`python -m audit cache`: what a store holds, what is damaged, what is removed."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from audit.engine import store as stores
from tests.commands import printed, refused

KEYS = {"dpsgd": "ab" + "1" * 62, "sgd": "ab" + "2" * 62, "": "cd" + "3" * 62}


@pytest.fixture
def folder(tmp_path):
    store = stores.open_store(tmp_path / "store")
    for defense, key in KEYS.items():
        for i in range(2):
            stores.put(store, key, f"tile-{i:05d}", {"a": np.arange(500.0)})
        if defense:
            made_of = {"method": "train", "defense": defense, "task": "linear"}
            stores.describe(store, key, made_of)
    return store.folder


def cache(capsys, folder, *words, code=0):
    return printed(capsys, "cache", *words, f"store={folder}", code=code)


def aged(folder, key, days):
    then = time.time() - days * 24 * 60 * 60
    for path in [*(folder / key[:2] / key).iterdir(), folder / key[:2] / key]:
        os.utime(path, (then, then))


def test_ls_counts_what_is_there(capsys, folder):
    files = [p for p in folder.rglob("*") if p.is_file()]
    text = cache(capsys, folder, "ls")
    assert f"{KEYS['dpsgd'][:12]}" in text
    assert "train of dpsgd on linear" in text
    assert "finished attack" in text
    total = sum(p.stat().st_size for p in files) / 1024
    assert text.endswith(f"3 keys, 6 shards, {total:.1f} KiB\n")
    assert cache(capsys, folder, "ls", "sgd").endswith("1 key, 2 shards, " + (
        f"{sum(p.stat().st_size for p in files if KEYS['sgd'] in str(p)) / 1024:.1f}"
        " KiB\n"
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["dpsgd"], {"sgd", ""}),
        (["ab22"], {"dpsgd", ""}),
        (["older=10"], {"dpsgd", "sgd"}),
        (["dpsgd", "older=10"], set(KEYS)),
        (["older=0"], set()),
    ],
)
def test_rm_removes_by_name_and_age(capsys, folder, words, left):
    aged(folder, KEYS[""], 11)
    cache(capsys, folder, "rm", *words)
    assert {p.name for p in stores.keys(folder)} == {KEYS[name] for name in left}
    assert len(list(folder.iterdir())) == len({KEYS[name][:2] for name in left})


def test_verify_names_the_damaged_shard_and_leaves_it(capsys, folder):
    assert cache(capsys, folder, "verify") == "6 shards of 3 keys read\n"
    shard = folder / "ab" / KEYS["sgd"] / "tile-00001.npz"
    shard.write_bytes(shard.read_bytes()[:-1])
    (folder / "ab" / KEYS["dpsgd"] / "tile-00000.json").unlink()
    text = cache(capsys, folder, "verify", code=1)
    assert text.count("damaged: ") == 2
    assert f"damaged: {shard}: sha256" in text
    assert "never finished" in text
    assert shard.exists()


def test_verify_names_what_a_run_would_make_again_and_nothing_else(capsys, folder):
    """The arrays of one shard are gone; another process is about to finish one."""
    shard = folder / "ab" / KEYS["sgd"] / "tile-00001.npz"
    shard.unlink()
    for kind in ("npz", "json"):
        stores.temporary(shard.with_suffix(f".{kind}")).touch()
    text = cache(capsys, folder, "verify", code=1)
    assert text == f"damaged: {shard}: its arrays are gone\n6 shards of 3 keys read\n"
    assert cache(capsys, folder, "ls").split("keys, ")[1].startswith("6 shards")


def test_a_description_that_is_nested_too_deeply_is_none(capsys, folder):
    (folder / "ab" / KEYS["sgd"] / "key.json").write_text("[" * 100_000)
    assert cache(capsys, folder, "ls").count("finished attack") == 2


@pytest.mark.parametrize("text", ["[" * 100_000, "", "3", "{"])
def test_verify_names_a_damaged_description(capsys, folder, text):
    path = folder / "ab" / KEYS["sgd"] / "key.json"
    path.write_text(text)
    *damaged, counts = cache(capsys, folder, "verify", code=1).splitlines()
    assert [line.startswith(f"damaged: {path}: ") for line in damaged] == [True]
    assert counts == "6 shards of 3 keys read"
    path.unlink()  # as the line says
    stores.describe(stores.Store(folder), KEYS["sgd"], {"defense": "sgd"})
    assert cache(capsys, folder, "verify") == "6 shards of 3 keys read\n"


KILLED = """
import os, signal, sys
from audit.engine import store as stores
stores.os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
stores.describe(stores.open_store(stores.Path(sys.argv[1])), sys.argv[2], {})
"""


def test_what_a_killed_run_left_is_named_and_the_next_run_removes_it(capsys, folder):
    store, key = stores.Store(folder), KEYS[""]
    killed = [sys.executable, "-c", KILLED, str(folder), key]
    assert subprocess.run(killed, check=False).returncode == -9
    (mine,) = (folder / "cd" / key).glob(".*")
    living = mine.with_name(f".key.json.{stores.HOST}.{os.getpid()}.0.tmp.json")
    foreign = mine.with_name(".key.json.elsewhere.1.0.tmp.json")
    living.touch()
    foreign.touch()
    text = cache(capsys, folder, "verify", code=1)
    assert text.count("left over: ") == 1
    assert f"left over: {mine}\n" in text
    stores.describe(store, key, {})
    assert set((folder / "cd" / key).glob(".*")) == {living, foreign}
    aged(folder, key, 2)
    assert stores.left_over(folder / "cd" / key) == [foreign]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "cache does what? one of ls, rm, verify"),
        (["remove"], "unknown action of cache 'remove'"),
        (["rm"], "removes what? a key, a defense, or older=DAYS"),
        (["rm", "dpsdg"], "no key or defense 'dpsdg' in this store"),
        (["rm", "ab"], "no key or defense 'ab'"),
        (["rm", "older=x"], "older='x': a number of days"),
        (["rm", "older=-1"], "older='-1': a number of days"),
        (["ls", "odler=1"], "not 'odler=1'"),
    ],
)
def test_mistakes_are_named(capsys, folder, words, why):
    assert why in refused(capsys, "cache", *words, f"store={folder}")
    assert len(stores.keys(folder)) == 3


def test_a_folder_that_is_no_store_is_not_one_without_damage(
    capsys, folder, monkeypatch
):
    """Neither is one above it, nor the default store before the first run."""
    says = f"no store in {folder.parent}: nothing is kept there"
    assert says in refused(capsys, "cache", "verify", f"store={folder.parent}")
    monkeypatch.chdir(folder.parent)
    assert "no store in results/runs/store" in refused(capsys, "cache", "verify")
    text = printed(capsys, "cache", "ls")
    assert text == "store results/runs/store\n0 keys, 0 shards, 0 B\n"
    monkeypatch.setenv("HOME", str(folder.parent))  # `~` is home, as where it is made
    assert printed(capsys, "cache", "verify", "store=~/store").startswith("6 shards")


def test_a_store_that_is_not_there_is_not_made(capsys, tmp_path):
    assert "no such folder" in refused(capsys, "cache", "ls", f"store={tmp_path}/x")
    assert not (tmp_path / "x").exists()
