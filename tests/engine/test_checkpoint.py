"""Long runs are computed in parts: stopped anywhere, they end in the same bits."""

import threading
import time
from contextlib import suppress
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.accounting.traces import Probing
from audit.engine import checkpoint, cores, shadow
from audit.engine import store as stores
from audit.engine.progress import OutOfTime
from audit.models import networks
from audit.types import Lanes, TrainingSet
from defenses.fim import fim
from tests.conftest import public, records
from tests.games import worlds

SHAPE, CLASSES, STEPS, LANES = (16, 16, 1), 3, 7, 5
DATA = TrainingSet(records(24, SHAPE, CLASSES), records(LANES, SHAPE, CLASSES, seed=1))
KEY, ROWS = jax.random.key(5), np.array([3, 24])
NETWORK = networks.cnn_tanh(SHAPE, CLASSES, filters=2, hidden=4)
LINEAR = networks.linear(SHAPE, CLASSES)
DEFENSES = {  # every way of drawing a batch, of noise, and of what goes with a step
    "sgd": (NETWORK, {"sampling": "shuffled", "batch_size": 6, "optimizer": "adam"}),
    "dpsgd": (NETWORK, {"sampling": "poisson", "batch_size": 6, "weight_decay": 0.1}),
    "dirdp_sgd": (NETWORK, {"sampling": "shuffled", "batch_size": 6}),
    "prune": (LINEAR, {"optimizer": "adam"}),
    "public_mean": (LINEAR, {}),
    "fim": (LINEAR, {"epochs": 6, "epochs_decay": 2, "least_epochs": 2}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    monkeypatch.setattr(cores, "threads", lambda: 1)


def sweep(
    defense, method="train", *extra, every=2, report=None, tile=2, then=None, **engine
):
    task, settings = DEFENSES[defense]
    start = public(task, records(12, SHAPE, CLASSES, seed=2))
    learner = worlds.learner(task, defense, start=start, steps=STEPS, **settings)
    lanes = Lanes(tile, checkpoint=every)
    engine = shadow.Engine(lanes, report=report or (lambda *_: None), **engine)
    out = shadow.sweep(method, learner, KEY, DATA, *extra, engine=engine, then=then)
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(out)])


@pytest.mark.parametrize(
    "defense",
    [pytest.param(d, marks=[] if d == "dpsgd" else pytest.mark.slow) for d in DEFENSES],
)
def test_the_length_of_a_part_does_not_change_a_bit(defense):
    by_two = sweep(defense)
    np.testing.assert_array_equal(by_two, sweep(defense, every=STEPS - 1))
    np.testing.assert_allclose(by_two, sweep(defense, every=0), rtol=1e-4, atol=1e-5)


def test_accounting_goes_by_parts_like_training():
    by_two = sweep("prune", "fisher", ROWS)
    np.testing.assert_array_equal(by_two, sweep("prune", "fisher", ROWS, every=3))
    whole = sweep("prune", "fisher", ROWS, every=0)
    np.testing.assert_allclose(by_two, whole, rtol=1e-5)


@pytest.mark.slow
def test_accounting_by_probes_goes_on_where_it_was(tmp_path):
    store, how = stores.open_store(tmp_path), Probing(probes=3)
    with pytest.raises(OutOfTime):
        sweep("dpsgd", "fisher", ROWS, how, store=store, report=Stopped(4))
    again = Stopped()
    got = sweep("dpsgd", "fisher", ROWS, how, store=store, report=again)
    assert again.seen[0] == 4
    np.testing.assert_array_equal(got, sweep("dpsgd", "fisher", ROWS, how))
    other = sweep("dpsgd", "fisher", ROWS, Probing(probes=4), store=store)
    assert (got != other).any()


class Stopped:
    """Reports of a sweep, which ends when its runs have taken so many steps."""

    def __init__(self, after=None, error=OutOfTime):
        self.after, self.error = after, error
        self.seen, self.total, self.threads = [], None, set()

    def __call__(self, what, done, total):
        if not what.endswith(": steps"):
            return
        self.seen.append(done)
        self.total = total
        self.threads.add(threading.current_thread())
        if self.after is not None and done >= self.after:
            raise self.error


@pytest.mark.parametrize(
    "perturbation",
    ["constant_direct", pytest.param("network_static", marks=pytest.mark.slow)],
)
def test_a_stopped_fit_goes_on_and_a_finished_one_is_kept(tmp_path, perturbation):
    """Of a phi that starts warm, and of one that is drawn before the first epoch."""
    task, settings = DEFENSES["fim"]
    settings = settings | {"perturbation": perturbation, "architecture": "mlp"}
    start = public(task, records(12, SHAPE, CLASSES, seed=2))

    def prepared(**engine):
        engine = shadow.Engine(**engine)
        given = {"key": KEY, "public": start, "engine": engine}
        return shadow.learner(fim, task, settings, **given).side

    store = stores.open_store(tmp_path)
    with pytest.raises(OutOfTime):
        prepared(store=store, report=Stopped(4))
    assert [p.stem for p in tmp_path.rglob("*.npz")] == ["side-step-4"]
    again, kept = Stopped(), Stopped()
    first = prepared(store=store, report=again)
    assert (again.seen, again.total) == ([4, 5, 6], 6)
    second = prepared(store=store, report=kept)
    assert kept.seen == [6]
    for whole in (prepared(), fim(task, **settings).prepare(KEY, start)):
        for other in (first, second):
            jax.tree.map(np.testing.assert_array_equal, other, whole)


@pytest.mark.parametrize("error", [OutOfTime, KeyboardInterrupt, MemoryError])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, error):
    store = stores.open_store(tmp_path)
    with pytest.raises(error):
        sweep("dpsgd", store=store, report=Stopped(STEPS + 4, error))
    assert [p.stem for p in tmp_path.rglob("*-step-*.npz")] == ["tile-00001-step-4"]
    again = Stopped()
    got = sweep("dpsgd", store=store, report=again)
    assert again.seen == [4, 6, 7, 7, 9, 11, 13, 14]  # the second tile, and the third
    assert again.total == 2 * STEPS
    np.testing.assert_array_equal(got, sweep("dpsgd"))
    assert not list(tmp_path.rglob("*-step-*"))  # what is finished needs no state


@pytest.mark.parametrize("error", [OutOfTime, KeyboardInterrupt, MemoryError])
def test_what_ends_one_of_two_runs_side_by_side_ends_both(tmp_path, monkeypatch, error):
    expected = sweep("dpsgd")
    monkeypatch.setattr(cores, "threads", lambda: 2)
    store, first, again = stores.open_store(tmp_path), Stopped(2, error), Stopped()
    with pytest.raises(error):
        sweep("dpsgd", store=store, report=first)
    assert not [t for t in first.threads if t.is_alive()]
    assert len(first.seen) <= 3  # the one that was not first had begun, at most
    got = sweep("dpsgd", store=store, report=again)
    assert len(again.threads) == 2
    assert again.seen == sorted(again.seen)
    assert again.seen[-1] == again.total == 3 * STEPS
    np.testing.assert_array_equal(got, expected)
    assert not list(tmp_path.rglob("*-step-*"))


def factored(defense, side, release):
    del defense, side
    return jnp.linalg.cholesky(release.params["head"]["kernel"][:3] ** 2 + jnp.eye(3))


def test_runs_that_end_in_a_library_are_computed_alone(monkeypatch):
    monkeypatch.setattr(cores, "threads", lambda: 2)
    for then, threads in ((None, 2), (factored, 1)):
        steps = Stopped()
        sweep("dpsgd", report=steps, then=then)
        assert len(steps.threads) == threads


def test_a_caller_that_is_interrupted_ends_the_runs_of_all_cores(tmp_path):
    store = stores.open_store(tmp_path)

    def part(state, first, last):
        time.sleep(0.01)
        return state + last - first

    def begun(run):
        saved = checkpoint.Checkpoints(store, "0" * 64, (run,))
        count = partial(runs.count, saved.runs)
        given = lambda: np.zeros((1, 1)), part, 500, 1, saved, count
        return pool.submit(checkpoint.run_in_parts, *given)

    with (
        suppress(KeyboardInterrupt),
        cores.Cores(2) as pool,
        checkpoint.SideBySide(lambda *_: None, 1000) as runs,
    ):
        both = [begun("tile-00000"), begun("tile-00001")]
        while len(runs.taken) < 2 or not all(runs.taken.values()):
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert all(isinstance(run.exception(), KeyboardInterrupt) for run in both)
    assert len(list(tmp_path.rglob("*-step-*.npz"))) == 2


def test_a_killed_run_goes_on_from_the_state_of_the_last_minute(tmp_path, monkeypatch):
    store = stores.open_store(tmp_path)
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    with monkeypatch.context() as patched:
        # SIGKILL: nothing is saved on the way out
        patched.setattr(checkpoint.Checkpoints, "save", save_until(4))
        with pytest.raises(OutOfTime):
            sweep("dpsgd", store=store, report=Stopped(6))
    again = Stopped()
    np.testing.assert_array_equal(
        sweep("dpsgd", store=store, report=again), sweep("dpsgd")
    )
    assert again.seen[0] == 4


def save_until(most):
    """Return `Checkpoints.save` of a process that was killed after so many steps."""
    real = checkpoint.Checkpoints.save

    def save(self, step, leaves):
        if step <= most:
            real(self, step, leaves)

    return save


def test_a_damaged_state_is_not_gone_on_from(tmp_path):
    problems = []
    store = stores.open_store(tmp_path)._replace(on_problem=problems.append)
    with pytest.raises(OutOfTime):
        sweep("dpsgd", store=store, report=Stopped(4))
    state = next(tmp_path.rglob("*-step-4.npz"))
    state.write_bytes(state.read_bytes()[:-9])
    again = Stopped()
    got = sweep("dpsgd", store=store, report=again)
    assert again.seen[0] == 0
    assert "tile-00000-step-4.npz is damaged" in problems[0]
    np.testing.assert_array_equal(got, sweep("dpsgd"))


def test_states_of_several_devices_are_kept_by_tile(tmp_path):
    store = stores.open_store(tmp_path)
    both = checkpoint.Checkpoints(store, "0" * 64, ("tile-00002", "tile-00003"))
    leaves = [np.arange(8.0).reshape(4, 2), np.arange(4)]
    both.save(3, leaves)
    step, got = both.load()
    assert step == 3
    for a, b in zip(got, leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    one = both._replace(runs=("tile-00003",))
    np.testing.assert_array_equal(one.load()[1][0], leaves[0][2:])
    one.save(5, [a[2:] for a in leaves])
    assert both.load() is None  # one of them is ahead
    both.clear()
    assert not list(tmp_path.rglob("*-step-*"))
