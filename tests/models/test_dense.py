"""Ghost clipping: closed forms of dense networks against per-example gradients."""

import pytest

from audit.clipping import hard_clip, no_clip, soft_clip
from audit.mechanisms.query import NARROW, gradient
from audit.models import networks
from tests.conftest import double, wide
from tests.mechanisms import closed_forms_are_of, per_record, side_of

SHAPE = (3, 2, 1)
CLIPS = {"soft": soft_clip(0.7), "hard": hard_clip(0.7), "none": no_clip()}


def setting(layers, activation, extra):
    task = networks.mlp(SHAPE, 3, hidden=4, layers=layers, activation=activation)
    return task, double(side_of(task, extra)), wide(9, SHAPE, 3)


@pytest.mark.parametrize(
    ("layers", "activation", "clip", "extra"),
    [
        (1, "tanh", "soft", "mask offset"),
        pytest.param(3, "tanh", "soft", "offset", marks=pytest.mark.slow),
        pytest.param(2, "tanh", "none", "mask", marks=pytest.mark.slow),
        (2, "relu", "hard", "mask offset"),
    ],
)
def test_sum_score_and_trace_are_those_of_per_example_gradients(
    x64, layers, activation, clip, extra
):
    task, side, z = setting(layers, activation, extra)
    query = gradient(task, CLIPS[clip])
    rows = per_record(query, side, z)
    closed_forms_are_of(query, side, z, rows, traced=activation != "relu")


def test_who_takes_no_short_cut():
    """A perturbation that sees the example; wide layers leave the trace to probes."""
    narrow, broad = (networks.mlp(SHAPE, 3, hidden=h) for h in (4, NARROW + 1))
    query = gradient(narrow, soft_clip(1.0), lambda params, side, z, base: base)
    assert set(query.closed_forms) == {None}
    query = gradient(broad, soft_clip(1.0))
    assert query.closed_forms.trace is None
    assert query.closed_forms.total is not None
