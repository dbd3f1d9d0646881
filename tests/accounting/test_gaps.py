"""The test against a Bayes risk: how often it errs, and what it needs."""

import numpy as np
import pytest
from scipy import special

from audit.accounting import gaps

RISK, D, ROWS = 0.04, 10, 4000
VARIANCE = 2 * RISK**2 / D  # of a mean of D squared normal errors


def flagged(errors):
    """Return the share of rows [ROWS, targets] that are below the risk at `LEVEL`."""
    low = special.ndtri(gaps.LEVEL)
    return np.mean([gaps.excess(row - RISK, VARIANCE) < low for row in errors])


def drawn(targets, seed):
    rng = np.random.default_rng(seed)
    return RISK * rng.chisquare(D, (ROWS, targets)) / D


@pytest.mark.parametrize("targets", [2, gaps.needed(RISK, VARIANCE), 100])
def test_sound_rows_are_flagged_at_most_at_the_level(targets):
    """At most .01, and 4 s.e. of 4,000 rows."""
    share = flagged(drawn(targets, 0))
    assert share <= gaps.LEVEL + 4 * np.sqrt(gaps.LEVEL / ROWS)


def test_an_attacker_at_half_of_the_risk_is_flagged_on_as_many_targets_as_needed():
    targets = gaps.needed(RISK, VARIANCE)
    assert 2 < targets <= 100
    assert flagged(drawn(targets, 1) / 2) >= gaps.POWER
    assert flagged(drawn(100, 1) / 2) == 1
    assert flagged(drawn(2, 1) / 2) < gaps.POWER


def test_no_fewer_targets_than_needed_have_the_power():
    """By the normal law of the mean gap, half of the risk away."""
    targets = gaps.needed(RISK, VARIANCE)
    away = RISK / 2 / np.sqrt(VARIANCE / np.array([targets - 1, targets]))
    power = special.ndtr(special.ndtri(gaps.LEVEL) + away)
    assert power[0] < gaps.POWER <= power[1]


def test_gaps_that_vary_more_than_they_should_have_their_own_error():
    """Of -1, 1 and 3: a mean of 1, and a standard error of 2 / sqrt(3)."""
    assert gaps.excess(np.array([-1.0, 1, 3]), 0.1) == pytest.approx(np.sqrt(3) / 2)


def test_an_error_that_all_targets_share_does_not_average_out():
    """With a thousand targets the shared error alone is left."""
    far = gaps.excess(np.full(1000, -0.01), 0.0, shared_error=0.005)
    assert far == pytest.approx(-2)
    assert gaps.excess(np.zeros(1), 0.0) == 0  # nothing differs, nothing is known


def test_no_number_of_targets_shows_an_attack_on_a_risk_of_nothing():
    assert gaps.needed(0.0, 1.0) is gaps.needed(1e-200, 1.0) is None
    assert gaps.needed(1.0, 0.0) == 0
