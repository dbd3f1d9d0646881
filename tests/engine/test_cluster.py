"""Ray as the engine: the bits of this machine, whatever happens to workers."""

import json
import os
import signal
import sys
import time

import jax
import numpy as np
import pytest

from audit.engine import cluster, program, shadow
from audit.engine import store as stores
from audit.errors import UserError
from audit.types import Lanes
from tests.commands import printed, refused
from tests.engine.test_shadow import DATA, KEY, learner, run
from tests.interruptions.kills import workers

SMALL = (
    "run", "scenario=calibration", "data=digits", "runs=2", "lanes.tile=16",
    "attacks=[sum_inversion]",
)  # fmt: skip


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray")
    os.environ["RAY_ADDRESS"] = ""
    yield cluster.connect()
    cluster.connect().shutdown()


def test_without_ray_one_line_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, *SMALL, "engine=ray")
    assert "engine=ray needs the extra `ray`" in line
    assert "engine='spark'" in refused(capsys, *SMALL, "engine=spark")


def elsewhere(done):
    """Return what computes tiles as a cluster may: last ones first, one at a time."""

    def compute(work, tiles):
        given = work.method, work.recipe
        code = program.program(*given, 1, work.then, False)
        if work.steps is not None:
            code = program.program_in_parts(*given, work.then, work.steps)
        for tile in reversed(tiles):
            done.append(tile)
            lanes, rows = program.lanes_of([tile], work.size, work.m, work.per_lane)
            outputs = code(work.shared, work.key, lanes, rows)
            yield {tile: jax.device_get(jax.tree.leaves(outputs))}

    return compute


def test_tiles_may_be_computed_elsewhere_in_any_order(tmp_path):
    done, store = [], stores.open_store(tmp_path)
    np.testing.assert_array_equal(run(elsewhere=elsewhere(done), store=store), run())
    assert done == [5, 4, 3, 2, 1, 0]
    run(elsewhere=elsewhere(done), store=store)
    assert len(done) == 6  # all of it was kept


def test_runs_in_parts_have_the_same_bits_elsewhere():
    lanes = Lanes(4, checkpoint=2)
    here, there = (
        shadow.sweep(
            "train", learner(), KEY, DATA, engine=shadow.Engine(lanes, **where)
        )
        for where in ({}, {"elsewhere": elsewhere([])})
    )
    for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_workers_are_given_does_not_start_jax():
    """A worker that reads an array of JAX's computes before it has a core."""
    given = []

    def compute(work, tiles):
        given.extend(jax.tree.leaves(cluster._arrays(work)))
        yield from elsewhere([])(work, tiles)

    np.testing.assert_array_equal(run(elsewhere=compute), run())
    assert given
    assert not any(isinstance(leaf, jax.Array) for leaf in given)


def test_how_many_threads_compute_is_part_of_the_key(tmp_path, monkeypatch):
    """A product rounds otherwise when it is cut into other blocks."""
    store = stores.open_store(tmp_path)
    run(store=store)
    monkeypatch.setenv("NPROC", str(program.threads() + 1))
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    run(store=store)
    assert len(stores.keys(tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("precise", [False, True])
def test_ray_gives_the_same_bits(ray, precise):
    def released(**how):
        engine = shadow.Engine(Lanes(4), **how)
        given = ("train", learner(), KEY, DATA)
        return jax.tree.leaves(shadow.sweep(*given, engine=engine, precise=precise))

    there, here = released(elsewhere=cluster.compute), released()
    for a, b in zip(there, here, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_time_alone(ray):
    killed = []

    def report(what, done, total):
        deadline = time.monotonic() + 30
        while done and not killed and time.monotonic() < deadline:
            for pid in workers(os.getpid())[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    long = learner(steps=20_000)
    got = run(1, long, elsewhere=cluster.compute, report=report)
    assert killed
    np.testing.assert_array_equal(got, run(1, long))


@pytest.mark.slow
def test_a_tile_that_fits_no_node_is_refused_with_the_remedy(ray, monkeypatch):
    monkeypatch.setattr(shadow, "_bytes", lambda compiled: 2**50)
    with pytest.raises(MemoryError, match=r"set lanes\.tile to 2"):
        run(elsewhere=cluster.compute)


@pytest.mark.slow
def test_other_devices_are_refused(ray, monkeypatch):
    settings = cluster.settings()._replace(backend="tpu")
    monkeypatch.setattr(cluster, "settings", lambda: settings)
    with pytest.raises(UserError, match="runs on tpu, a worker on cpu"):
        run(elsewhere=cluster.compute)


def same_but_for_time(first, second):
    """Return whether two folders hold the same card: numbers, rows and arrays."""

    def plain(folder):
        card = json.loads((folder / "scorecard.json").read_text())
        del card["provenance"]
        for trial in card["trials"]:
            (trial["result"] or {}).pop("seconds", None)
        return card

    assert plain(first) == plain(second)
    with np.load(first / "scorecard.npz") as a, np.load(second / "scorecard.npz") as b:
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.slow
def test_a_sweep_of_the_command_line_on_ray(ray, capsys, monkeypatch, tmp_path):
    """Its points are whole runs, side by side; one that fails costs no other."""
    monkeypatch.chdir(tmp_path)
    text = printed(capsys, *SMALL, "engine=ray", "-m", "seed=0,1")
    assert "2 of 2: finished: python -m audit run scenario=calibration" in text
    assert text.count("sum_inversion") >= 2  # of each point, its page
    there = sorted(path for path in tmp_path.glob("results/runs/*-digits-*"))
    (tmp_path / "results").rename(tmp_path / "ray")
    printed(capsys, *SMALL, "-m", "seed=0,1")
    assert len(there) == 2
    for folder in there:
        same_but_for_time(tmp_path / "ray" / "runs" / folder.name, folder)
    words = *SMALL, "engine=ray", "out=one", "-m", "seed=0,1"
    assert "two points of the sweep" in refused(capsys, *words)
