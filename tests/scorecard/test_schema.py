"""What a card's parts say of themselves."""

import pytest

from audit.scorecard.schema import EpsilonPair


@pytest.mark.parametrize(
    ("curve", "loss", "least"),
    [
        (2.0, 1.0, 1.0),
        (1.0, 2.0, 1.0),  # a loss that is rounded upwards on a coarse grid
        (3.0, "inf", 3.0),
        (3.0, None, 3.0),
        (None, 4.0, 4.0),
        (None, None, None),
    ],
)
def test_the_least_epsilon_is_that_of_either_accountant(curve, loss, least):
    assert EpsilonPair(rdp=curve, tight=loss).least == least
