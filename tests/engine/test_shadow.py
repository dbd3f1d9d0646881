"""The engine: same bits whatever the tiles in flight, order or interruption."""

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from audit.cli.bench import rivals, subjects
from audit.engine import shadow
from audit.engine import store as stores
from audit.engine.cores import Cores
from audit.engine.program import options
from audit.errors import UserError
from audit.models import networks
from audit.types import Examples, Lanes, TrainingSet
from defenses.dpsgd import dpsgd
from tests.conftest import double, public, records
from tests.games import worlds

SHAPE = (5, 4, 1)
TASK = networks.binary_linear(SHAPE, 2)
SETTINGS = {"noise_multiplier": 0.3, "optimizer": "adam", "steps": 3}
M = 23
DATA = TrainingSet(records(11, SHAPE, 2), records(M, SHAPE, 2, seed=1))
KEY = jax.random.key(3)


def learner(**changed):
    return worlds.learner(TASK, "dpsgd", **SETTINGS | changed)


def run(tile=4, trained=None, data=DATA, **engine):
    engine = shadow.Engine(Lanes(tile, engine.pop("memory_gib", 2.0)), **engine)
    out = shadow.sweep("train", trained or learner(), KEY, data, engine=engine)
    lanes = len(data.target.y)
    return np.concatenate([a.reshape(lanes, -1) for a in jax.tree.leaves(out)], 1)


def shards(folder):
    return sorted(folder.rglob("*.npz"))


@pytest.mark.parametrize("memory_gib", [1e-9, 10.0])
def test_tiles_in_flight_do_not_change_a_bit(memory_gib):
    np.testing.assert_array_equal(run(), run(memory_gib=memory_gib))


def test_how_many_tiles_are_computed_side_by_side_changes_no_bit(monkeypatch):
    for precise in (False, True):
        alone, together = (
            _side_by_side(monkeypatch, number, precise) for number in (1, 3)
        )
        assert alone.dtype == (np.float64 if precise else np.float32)
        np.testing.assert_array_equal(alone, together)


def _side_by_side(monkeypatch, number, precise):
    asked = []
    monkeypatch.setattr(shadow, "cores_for", lambda _: number)
    monkeypatch.setattr(shadow, "Cores", lambda n: asked.append(n) or Cores(n))
    engine = shadow.Engine(Lanes(4))
    out = shadow.sweep("train", learner(), KEY, DATA, engine=engine, precise=precise)
    assert asked == [number]
    return np.concatenate([a.reshape(len(a), -1) for a in jax.tree.leaves(out)], 1)


@pytest.mark.parametrize("tile", [1, 7, 64])
def test_tile_size_changes_rounding_only(tile):
    np.testing.assert_allclose(run(tile), run(), atol=1e-5)


def test_no_tile_is_larger_than_what_is_read(monkeypatch):
    """Training fills its tiles up: shadow models will run the same program."""
    computed, whole = [], shadow._Sweep.run

    def spied(sweep):
        computed.append(sweep.engine.lanes.tile)
        return whole(sweep)

    monkeypatch.setattr(shadow._Sweep, "run", spied)

    def read(method, tile, *rows):
        given = method, learner(), KEY, DATA, *rows
        return shadow.sweep(*given, engine=shadow.Engine(Lanes(tile)), precise=True)

    target = np.array([len(DATA.fixed.y)])
    small, large = read("fisher", 4, target), read("fisher", 64, target)
    read("train", 64)
    assert computed == [4, M, 64]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), small, large)


def test_more_targets_do_not_change_the_first_ones():
    fewer = DATA._replace(target=jax.tree.map(lambda a: a[:9], DATA.target))
    np.testing.assert_array_equal(run(data=fewer), run()[:9])


def test_three_noise_levels_compile_once():
    shadow._program.cache_clear()
    outs = [run(trained=learner(noise_multiplier=s)) for s in (0.1, 0.2, 0.4)]
    assert len({out.tobytes() for out in outs}) == 3
    program = shadow._program("train", learner().recipe, 1, None, False)
    assert shadow._program.cache_info().misses == 1
    assert program._cache_size() == 1


def test_a_misspelt_trait_is_refused_when_the_defense_is_built():
    def misspelt(task):
        return dpsgd(task)._replace(traits=frozenset({"stationery"}))

    with pytest.raises(UserError, match=r"misspelt.*'stationery'.*mean 'stationary'"):
        shadow.learner(misspelt, TASK, {}, key=KEY, public=public(TASK))


class Killed(Exception):
    pass


def test_a_killed_run_resumes_bit_identical(tmp_path):
    store = stores.open_store(tmp_path)

    def die(what, done, total):
        if done >= 12:
            raise Killed

    with pytest.raises(Killed):
        run(store=store, report=die, memory_gib=1e-9)
    again = []
    report = lambda what, done, total: again.append((done, total))
    np.testing.assert_array_equal(run(store=store, report=report), run())
    assert again[0][0] == 12  # the shards finished before the kill
    assert again[-1] == (M, M)


def test_the_store_is_used_and_damage_is_rebuilt(tmp_path):
    store, want = stores.open_store(tmp_path), run()
    run(store=store)
    run(store=store, trained=learner()._replace(label="other"), memory_gib=1.0)
    assert len(shards(tmp_path)) == -(-M // 4)  # neither word is part of the key
    damaged, done = shards(tmp_path)[2], []
    damaged.write_bytes(damaged.read_bytes()[:-7])
    report = lambda what, count, total: done.append(count)
    np.testing.assert_array_equal(run(store=store, report=report), want)
    assert done[0] == 20  # 5 of 6 tiles, one was made again


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 0.31},
        {"steps": 4},
        {"sampling": "poisson", "batch_size": 5},
    ],
)
def test_what_changes_results_misses_the_store(tmp_path, change):
    store = stores.open_store(tmp_path)
    run(store=store)
    count = len(shards(tmp_path))
    run(store=store, trained=learner(**change))
    assert len(shards(tmp_path)) == 2 * count


class _OutOfMemory:
    """A program whose first calls fail as a full device does."""

    def __init__(self, program, failures):
        self.program, self.failures = program, failures

    def __call__(self, *arguments):
        if self.failures > 0:
            self.failures -= 1
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return self.program(*arguments)

    def __getattr__(self, name):
        return getattr(self.program, name)


@pytest.mark.parametrize(("failures", "fits"), [(1, True), (3, True), (99, False)])
def test_out_of_memory_takes_fewer_tiles(monkeypatch, failures, fits):
    want, real = run(), shadow._program
    broken = functools.cache(lambda *a: _OutOfMemory(real(*a), failures))
    monkeypatch.setattr(shadow, "_program", broken)
    if fits:
        np.testing.assert_array_equal(run(), want)
    else:
        with pytest.raises(MemoryError, match=r"lanes\.tile to 2"):
            run()


def test_other_errors_are_not_swallowed(monkeypatch):
    class Broken(_OutOfMemory):
        def __call__(self, *arguments):
            raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    program = shadow._program
    monkeypatch.setattr(shadow, "_program", lambda *a: Broken(program(*a), 0))
    monkeypatch.setattr(shadow._Sweep, "_in_flight", lambda self, devices: (1, 1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        run()


DEVICES = """
import jax, numpy as np, sys
from pathlib import Path
from audit.engine import shadow
from audit.engine.store import Store
from tests.engine.test_shadow import DATA, run, shards
assert len(jax.devices()) == 8
devices, real = [], shadow._program
shadow._program = lambda *a: devices.append(a[2]) or real(*a)
every = run(2)  # 12 tiles
few = run(2, data=DATA._replace(target=jax.tree.map(lambda a: a[:4], DATA.target)))
assert {8, 2} <= set(devices)
store = Store(Path(sys.argv[1]).parent)
run(2, store=store)
shards(store.folder)[5].unlink()
devices.clear()
np.testing.assert_array_equal(every, run(2, store=store))
assert 8 in devices  # one tile is made again by the program of all of them
np.savez(sys.argv[1], every=every, few=few)
"""


def test_dpsgd_has_the_same_bits_on_two_and_eight_devices_as_on_one(tmp_path):
    ours = os.environ.get("XLA_FLAGS", "")
    flags = f"{ours} --xla_force_host_platform_device_count=8"
    file = tmp_path / "eight.npz"
    subprocess.run(
        [sys.executable, "-c", DEVICES, str(file)],
        check=True,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    with np.load(file) as eight:
        np.testing.assert_array_equal(eight["every"], run(2))
        np.testing.assert_array_equal(eight["few"], run(2)[:4])


def test_runs_of_several_devices_are_kept_apart(tmp_path, monkeypatch):
    """Their program may round differently, as that of `dirdp_sgd` does."""
    store, trained = stores.open_store(tmp_path), learner()
    monkeypatch.setattr(shadow._Sweep, "run", shadow._Sweep._address)

    def address(devices, tile=4, **engine):
        monkeypatch.setattr(jax, "devices", lambda: ["device"] * devices)
        engine = shadow.Engine(Lanes(tile), store, **engine)
        return shadow.sweep("train", trained, KEY, DATA, engine=engine)

    one = address(1)
    (described,) = tmp_path.rglob("key.json")
    assert "devices" not in json.loads(described.read_text())
    assert len({one, address(2), address(3)}) == 3
    assert address(8) == address(9)  # there are six tiles
    assert address(2, elsewhere=print) == one  # a worker has one
    assert address(2, tile=M) == address(1, tile=M)


def test_engine_equals_the_plain_loop_in_float64():
    """The benchmark's rival: per-example autodiff, one model at a time."""
    rng = np.random.default_rng(0)
    small = TrainingSet(subjects.draw(60, rng), few := subjects.draw(3, rng))
    trained = subjects.make("dpsgd", subjects.SUBJECTS["linear"])
    engine = shadow.Engine(Lanes(2))
    got = shadow.sweep("train", trained, KEY, small, engine=engine, precise=True).params
    with jax.enable_x64(True):
        trained = trained._replace(side=double(trained.side))
        loop, data = rivals.plain_loop(trained), double(small)
        for i in range(3):
            z = Examples(data.target.x[i], few.y[i])
            want = loop(jax.random.fold_in(KEY, i), data.fixed, z)
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                np.testing.assert_allclose(a[i], b, atol=1e-9)


@pytest.mark.usefixtures("optimised")
def test_what_one_tile_computes_is_compiled_quickly_and_rounds_differently(monkeypatch):
    asked, program = [], shadow._program

    def counted(method, recipe, devices, then, once):
        asked.append((method, once))
        return program(method, recipe, devices, then, once)

    monkeypatch.setattr(shadow, "_program", counted)
    given, target = (learner(), KEY, DATA), np.array([len(DATA.fixed.y)])
    quick, plain = (
        shadow.sweep("fisher", *given, target, engine=engine, precise=True)
        for engine in (shadow.Engine(Lanes(M)), shadow.Engine(Lanes(M - 1)))
    )
    run(tile=M)  # other sweeps train with this program
    assert set(asked) == {("fisher", True), ("fisher", False), ("train", False)}
    quickly, widely = options(once=True), options(once=False)
    assert quickly is not None
    assert widely is not None
    assert quickly != widely
    np.testing.assert_allclose(quick, plain, rtol=1e-9, atol=1e-12 * abs(plain).max())


def test_what_is_compiled_quickly_is_kept_apart(tmp_path):
    """The first tile of two is the same runs, by a program that rounds differently."""
    engine = shadow.Engine(Lanes(4), store=stores.open_store(tmp_path))
    data = TrainingSet(DATA.fixed, None)
    for runs, kept in ((4, 1), (8, 3)):
        shadow.sweep("transcript", learner(), KEY, data, engine=engine, runs=runs)
        assert len(shards(tmp_path)) == kept


def test_a_stored_lane_is_told_from_another_within_rounding():
    rng = np.random.default_rng(0)
    one = rng.normal(size=(1, 10))
    near = [one * (1 + 1e-6)]  # what one rounding of the inputs does to it
    stored = [np.concatenate([one, rng.normal(size=(3, 10))])]
    for moved, same in ((1e-9, True), (5e-6, True), (1e-4, False), (0.05, False)):
        anew = [one * (1 + moved)]
        assert shadow.same_lane(anew, [near[0] * (1 + moved)], stored) == same
    assert not shadow.same_lane([one[:, :9]], [near[0][:, :9]], stored)


def test_a_lane_of_a_slightly_different_defense_is_noticed(tmp_path):
    """A tenth of the distance between lanes would hide a change of 1%."""
    doubts, store = [], stores.open_store(tmp_path)
    how = {"store": store, "doubt": lambda *doubt: doubts.append(doubt)}
    run(**how)
    run(**how)
    assert not doubts
    shard = next(tmp_path.rglob("tile-00000.npz"))
    with np.load(shard) as arrays:
        changed = {k: arrays[k] * np.float32(1.01) for k in arrays}
    stores.put(store, shard.parent.name, "tile-00000", changed)
    run(**how)
    assert len(doubts) == 1


def test_a_check_that_costs_what_the_store_saves_is_not_made(tmp_path, monkeypatch):
    store, traced = stores.open_store(tmp_path), []
    check = shadow.same_lane
    monkeypatch.setattr(shadow, "same_lane", lambda *a: traced.append(1) or check(*a))
    for runs, checked in ((1, 0), (2, 0), (3, 1)):
        for _ in range(2):
            few = DATA._replace(
                target=jax.tree.map(lambda a, n=runs: a[:n], DATA.target)
            )
            run(data=few, store=store, doubt=lambda *doubt: None)
        assert len(traced) == checked


@pytest.mark.parametrize("what", ["optax", "flax", "numpy", "jaxlib", "threefry"])
def test_what_computes_is_part_of_the_key(tmp_path, monkeypatch, what):
    store = stores.open_store(tmp_path)
    run(store=store)
    assert len(list(tmp_path.glob("*/*"))) == 1
    if what == "threefry":
        with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
            run(store=store)
    else:
        other = stores.versions() | {what: "0.0"}
        monkeypatch.setattr(stores, "versions", lambda: other)
        run(store=store)
    assert len(list(tmp_path.glob("*/*"))) == 2
