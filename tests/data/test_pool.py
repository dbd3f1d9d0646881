"""Which pool rows an attacker learns each class from."""

import numpy as np
import pytest

from audit.data.pool import class_rows


def test_a_class_has_its_own_rows_or_all_where_they_show_fewer_than_two_originals():
    """Rows 4 to 7 are copies: two of row 0, one each of rows 2 and 3."""
    labels, source = np.array([0, 0, 1, 2, 0, 0, 1, 2]), [0, 1, 2, 3, 0, 0, 2, 3]
    own, everything = labels == 0, np.ones(8, bool)
    rows = class_rows(labels, 4, source)
    np.testing.assert_array_equal(rows, [own, *[everything] * 3])
    kept = np.arange(8) != 1
    np.testing.assert_array_equal(class_rows(labels, 4, source, kept), [kept] * 4)


def test_somebody_has_to_be_left():
    with pytest.raises(ValueError, match="all are held out"):
        class_rows(np.zeros(2, int), 1, [0, 0], [False, True])
