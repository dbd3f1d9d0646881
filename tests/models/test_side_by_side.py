"""Parts in threads: as `map`, at the same time."""

import threading

import pytest

from audit.models.side_by_side import side_by_side


def test_results_are_in_order_and_parts_run_at_once():
    meet = threading.Barrier(2, timeout=10)  # each waits for the other

    def both(part, other):
        meet.wait()
        return part, other

    assert side_by_side(both, "ab", [1, 2]) == [("a", 1), ("b", 2)]


def test_the_error_of_a_part_is_raised():
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda part: 1 / part, [1, 0])
