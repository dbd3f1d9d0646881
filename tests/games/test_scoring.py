"""How guesses at records become numbers."""

import numpy as np
import pytest

from audit.games import scoring
from audit.games.base import Table
from audit.games.guarantees import Guarantees
from audit.models import networks
from tests.conftest import records
from tests.games import worlds

SHAPE = (8, 8, 1)


def test_errors_are_means_over_runs_and_targets():
    """The absolute error, and the loss of Balle et al., against loops."""
    task, targets = networks.binary_linear(SHAPE, 2), records(5, SHAPE, 2)
    pool = records(9, SHAPE, 2, seed=1)
    problem = worlds.problem(task, pool, pool, targets=targets)
    table = Table(problem, worlds.ENGINE, 3, lpips="not here")
    guesses = np.random.default_rng(2).uniform(size=(5, 3, *SHAPE))
    numbers = scoring.result(guesses, targets, Guarantees(), table, {}).numbers
    gaps = [guesses[i, j] - targets.x[i] for i in range(5) for j in range(3)]
    absolute = np.mean([np.abs(gap).mean() for gap in gaps])
    square = np.mean([(gap**2).mean() for gap in gaps])
    assert numbers["mae"] == pytest.approx(absolute)
    assert numbers["mse"] == pytest.approx(square)
    assert numbers["mae_plus_mse"] == pytest.approx(absolute + square)
