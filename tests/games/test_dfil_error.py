"""The error of a dFIL that probes or the run's own randomness make."""

import numpy as np
import pytest

from audit.games import guarantees, membership, rows
from audit.models.networks import binary_linear
from tests.conftest import records
from tests.games import worlds

SHAPE, KEY = (4, 4, 1), worlds.KEY
TASK = binary_linear(SHAPE, 2)._replace(linear=None)  # traces by probes
# so little noise that the probes, of each record their own, make the error
SETTINGS = {"clip_norm": 1, "noise_multiplier": 0.02, "learning_rate": 0.5, "steps": 2}


@pytest.mark.parametrize("trajectories", [2, 4, 16])
@pytest.mark.parametrize("runs", [1, 4])
def test_the_error_is_that_of_normal_readings(trajectories, runs):
    """4,000 records of relative spread 5%: a median's s.e. is below 2% of it at two."""
    rng, size = np.random.default_rng(0), np.geomspace(1e-3, 1e3, 4000)[:, None]
    traces = size * rng.normal(1, 0.05, (4000, trajectories))
    error = guarantees.relative_error(traces, runs)
    assert error == pytest.approx(0.05 / np.sqrt(runs), rel=4 * 0.02)


def test_of_one_trajectory_and_a_spare_it_is_that_of_one(monkeypatch):
    """Of 4,000 records as above; the spare only tells how far readings are apart."""
    monkeypatch.setattr(guarantees, "SAMPLE", 4000)
    learner = worlds.learner(TASK, "dpsgd", **SETTINGS)
    traces, spare = np.random.default_rng(0).normal(1, 0.05, (2, 4000, 1))
    error = guarantees._error(learner, traces, lambda rows: spare[rows])
    assert error == pytest.approx(0.05, rel=4 * 0.02)


def test_readings_that_are_all_equal_have_none():
    assert guarantees.relative_error(np.zeros((3, 2)), 1) == 0
    assert guarantees.relative_error(np.ones((3, 2)), 1) == 0


def accounted(game, trajectories):
    """Return what a game says of the defense's dFIL."""
    defense = worlds.learner(TASK, "dpsgd", **SETTINGS)
    fixed, pool = records(40, SHAPE, 2, seed=1), records(20, SHAPE, 2, seed=2)
    targets = records(30, SHAPE, 2, seed=3) if game == "joined" else None
    problem = worlds.problem(TASK, fixed, pool, targets=targets)
    table = worlds.table(problem)._replace(trajectories=trajectories)
    if game != "membership":
        return getattr(guarantees, game)(KEY, defense, table)
    shape = membership.Membership(shadows=4, calibration=2)
    game = membership.membership(membership=shape)
    runs = game.release(KEY, defense, table._replace(runs=2))
    return game.account(KEY, runs, table)


@pytest.mark.parametrize(
    "game",
    [
        "joined",
        pytest.param("in_turn", marks=pytest.mark.slow),
        pytest.param("membership", marks=pytest.mark.slow),
    ],
)
def test_one_trajectory_tells_the_error_that_many_have(game, monkeypatch):
    """One reading and a spare against the spread of 16; medians of 30 to 40 records.

    A spread of two normal readings, over its median, has a median with an s.e. of
    1.2 / sqrt(30) = 22%; that of 16 of 1.25 / sqrt(2 * 15 * 30) = 4%.
    """
    monkeypatch.setattr(guarantees, "_finite_prior", lambda *_: ([], ""))  # slow
    one, many = (accounted(game, n) for n in (1, 16))
    ratio = one.dfil_error / (many.dfil_error * np.sqrt(16))
    assert abs(np.log(ratio)) < 4 * 0.23
    row = rows._dfil(one)
    assert row["relative_se"] == one.dfil_error > 0
    for word, summed in (("mean", np.mean), ("max", np.max)):
        assert row[word] == pytest.approx(summed(one.dfil))
        assert row[f"sqrt_{word}"] == pytest.approx(summed(np.sqrt(one.dfil)))
