"""Which pool rows an attacker learns each class from."""

import numpy as np
import pytest

from audit.data.pool import class_norms, class_rows
from audit.types import Examples, Knowledge


def test_a_class_has_its_own_rows_or_all_where_they_show_fewer_than_two_originals():
    """Rows 4 to 7 are copies: two of row 0, one each of rows 2 and 3."""
    labels, source = np.array([0, 0, 1, 2, 0, 0, 1, 2]), [0, 1, 2, 3, 0, 0, 2, 3]
    own, everything = labels == 0, np.ones(8, bool)
    rows = class_rows(labels, 4, source)
    np.testing.assert_array_equal(rows, [own, *[everything] * 3])
    kept = np.arange(8) != 1
    np.testing.assert_array_equal(class_rows(labels, 4, source, kept), [kept] * 4)


def test_the_norm_of_a_class_is_that_of_its_originals():
    """Copies lose some of it as they are moved; the last two rows are copies."""
    x = np.array([[3, 4], [6, 8], [0, 2], [0, 1], [0, 1]], np.float32)
    pool = Examples(x, np.array([0, 0, 1, 0, 1]))
    norms = class_norms(Knowledge(None, pool, np.array([0, 1, 2, 0, 2])), 2)
    np.testing.assert_allclose(norms, [7.5, 2.0])


def test_somebody_has_to_be_left():
    with pytest.raises(ValueError, match="all are held out"):
        class_rows(np.zeros(2, int), 1, [0, 0], [False, True])
