"""The benchmark measures what it says, at a size a test can afford."""

import json
from contextlib import nullcontext

import jax
import numpy as np
import pytest

from audit.cli.bench import clock, measure, pytorch, rivals, rows, subjects, written
from audit.cli.bench.measure import Benchmark, Machine
from audit.cli.bench.rows import Row
from audit.engine import shadow
from audit.errors import UserError
from audit.models import networks
from audit.types import Lanes

MACHINE = Machine("cpu: test", 2, "highest", {"jax": "1", "torch": None}, 200, 180, 10)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(subjects, "FIXED", 50)
    monkeypatch.setattr(subjects, "PIXELS", (6, 6, 1))
    monkeypatch.setattr(clock, "SQUARES", (64,))
    monkeypatch.setattr(clock, "MOVED", 1_000)
    few = subjects.SUBJECTS["linear"]._replace(tile=8, models=16, looped=3)
    monkeypatch.setitem(subjects.SUBJECTS, "linear", few)
    chosen = {k: v for k, v in subjects.DEFENSES.items() if k in ("sgd", "dpsgd")}
    monkeypatch.setattr(rows, "DEFENSES", chosen)


def test_every_defense_is_measured_and_equals_the_loop(small):
    activities = []
    bench = measure.measure(
        ["linear"], lambda what: activities.append(what) or nullcontext()
    )
    names = [row.name for row in bench.rows]
    assert names == ["dpsgd, plain loop", "sgd", "dpsgd", "glm (exact, float64)"]
    assert "linear: dpsgd" in activities
    loop, sgd, dpsgd, _ = bench.rows
    assert 0 < dpsgd.difference < 1e-4
    assert not bench.unequal
    assert sgd.operations == dpsgd.operations == 4 * 51 * 37 * 5
    assert sgd.intensity > 0.1
    assert loop.of_loop == 1
    assert dpsgd.of_loop == pytest.approx(dpsgd.per_second / loop.per_second)
    assert bench.share(sgd) == pytest.approx(sgd.gflops / bench.machine.square)


@pytest.mark.skipif(not pytorch.installed(), reason="needs PyTorch")
def test_pytorch_gives_the_weights_of_the_engine(small):
    each = list(rows.torch_rivals("pytorch", lambda what: nullcontext()))
    assert len(each) == 3
    assert all(row.difference < 1e-4 for row in each)


def test_without_pytorch_its_rows_are_left_out_and_it_is_said(small, monkeypatch):
    monkeypatch.setattr(pytorch, "installed", lambda: False)
    bench = measure.measure(["pytorch"])
    assert bench.rows == ()
    assert "not installed" in written.text(bench)


@pytest.mark.parametrize("group", ["accounting", "training", "scoring", "draws"])
def test_other_groups_yield_rates(small, monkeypatch, group):
    for name, value in {
        "SHADOWS": 64, "EPOCHS": 1, "MODELS": 8, "CANDIDATES": 40, "DRAWS": 2,
        "DIMENSION": 50, "FIXED": 50, "PIXELS": (6, 6, 1),
    }.items():  # fmt: skip
        monkeypatch.setattr(rows, name, value)
    mlp = subjects.SUBJECTS["mlp"]
    few = mlp._replace(training={**mlp.training, "steps": 2}, models=8)
    monkeypatch.setitem(subjects.SUBJECTS, "mlp", few)
    each = list(rows.GROUPS[group](group, lambda what: nullcontext()))
    assert each
    assert all(row.per_second > 0 for row in each)


@pytest.mark.parametrize(
    ("task", "layers"),
    [
        (networks.binary_linear((4, 4, 1), 2), [(17, 1, 1)]),
        (networks.mlp((4, 4, 1), 3, hidden=5), [(17, 5, 1), (6, 3, 1)]),
        (
            networks.lenet((28, 28, 1), 10),
            [(26, 12, 196), (301, 12, 49), (301, 12, 49), (589, 10, 1)],
        ),
    ],
)
def test_operations_are_those_of_the_products(task, layers):
    first, *later = [a * b * times for a, b, times in layers]
    assert subjects.operations(task) == 4 * first + 6 * sum(later)
    assert subjects.operations(task, 7) == 7 * subjects.operations(task)


def test_the_compiler_counts_about_as_many_operations():
    """It counts additions and activations too."""
    task = networks.mlp((28, 28, 1), 10)
    params = task.init(jax.random.key(0))
    z = subjects.draw(64, np.random.default_rng(0), 10)
    total = lambda p: jax.vmap(task.loss, (None, 0))(p, z).sum()
    counted = jax.jit(jax.grad(total)).lower(params).cost_analysis()["flops"]
    assert subjects.operations(task, 64) == pytest.approx(counted, rel=0.1)


def row(**more):
    given = {"group": "linear", "name": "dpsgd", "unit": "models", "per_second": 1e4}
    return Row(**given | more)


@pytest.mark.parametrize("difference", [2e-3, float("nan")])
def test_other_weights_than_a_rivals_are_noticed(difference):
    apart = row(difference=difference)
    assert Benchmark(MACHINE, (row(difference=1e-5), apart)).unequal == [apart]


def test_the_gap_is_in_units_of_what_training_moved():
    start, ours = np.ones(2), np.array([[1.0, 3.0], [1.0, 2.0]])
    theirs = ours + np.array([[0.0, 0.2], [0.0, 0.0]])
    assert rivals.gap(ours, theirs, start) == pytest.approx(0.1)


def test_it_is_written_as_table_json_and_figure(tmp_path):
    bench = Benchmark(
        MACHINE,
        (
            row(operations=1e7, intensity=30.0, of_loop=321.4, difference=1e-5),
            row(group="draws", name="Gaussian", unit="vectors", per_second=8.25),
        ),
        ("PyTorch is not installed: its rows are left out",),
    )
    paths = written.write(bench, tmp_path)
    text, plain = paths[0].read_text(), json.loads(paths[1].read_text())
    for word in ("200 GFLOP/s", "10,000 models", "100", "50%", "321.4x", "jax 1",
                 "8.2 vectors", "1.0e-05", "not installed"):  # fmt: skip
        assert word in text
    assert "torch" not in text.partition("\n")[2].partition("\n")[0]
    assert plain["rows"][0]["of_product"] == 0.5
    assert plain["rows"][1]["of_product"] is None
    assert plain["machine"]["square"] == 200
    assert paths[2].stat().st_size > 10_000


def test_a_figure_without_models_says_so(tmp_path):
    assert written.write(Benchmark(MACHINE, ()), tmp_path)[2].exists()


def test_groups_are_named_in_their_order():
    assert measure.groups("draws,linear") == ["linear", "draws"]
    with pytest.raises(UserError, match="unknown rows 'lenett'; did you mean 'lenet'"):
        measure.groups("lenett")


def test_the_loop_draws_the_batches_of_the_engine():
    few = subjects.SUBJECTS["mlp"]._replace(
        training={**subjects.BATCHES, "steps": 2, "batch_size": 4}
    )
    learner, data = subjects.make("dpsgd", few), subjects.training_set(few, 2)
    root, engine = jax.random.key(rows.ROOT), shadow.Engine(Lanes(2))
    ours = shadow.sweep("train", learner, root, data, engine=engine).params
    _, theirs = rows._looped(learner, data, 2)
    assert rivals.gap(rivals.weights(ours), theirs, rivals.start(learner)) < 1e-4
