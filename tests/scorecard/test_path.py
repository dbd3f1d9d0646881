"""One number of a scorecard, by its key."""

import pytest

from audit.scorecard import path

PART = {
    "auc": {"value": 0.25, "low": None, "far": "inf", "name": "x", "sure": True},
    "steps": [{"a": 1}, {"a": 2}],
}


def test_numbers_are_read_at_their_keys():
    assert path.read(PART, "auc.value") == 0.25
    assert path.read(PART, "steps.1.a") == 2


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("acu.value", "no 'acu' in the result; did you mean 'auc'?"),
        ("auc.mean", "no 'mean' in auc"),
        ("auc.value.x", "no 'x' in auc.value; there is nothing"),
        ("auc.low", "auc.low is not computed"),
        ("auc.far", "auc.far is inf"),
        ("auc.name", "auc.name is not a number"),
        ("auc.sure", "auc.sure is not a number"),
        ("auc", "auc is not a number"),
        ("steps", "steps is not a number"),
        ("steps.2.a", "no '2' in steps; there is 0, 1"),
        ("steps.-1.a", "no '-1' in steps"),
    ],
)
def test_a_key_without_a_number_is_named(key, message):
    with pytest.raises(LookupError) as error:
        path.read(PART, key)
    assert message in str(error.value)
