"""Fixtures shared by the tests."""

import jax
import numpy as np
import pytest

from audit.types import Examples


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield


def records(n, features=(6,), classes=3, seed=0):
    """Make n random records in [0, 1]."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, *features)).astype(np.float32)
    return Examples(x, rng.integers(0, classes, n).astype(np.int32))
