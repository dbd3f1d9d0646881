"""What all figures share."""

from itertools import pairwise

import pytest

from audit.report.figures import common

SPANS = [(0.035, 0.1), (0.15, 0.33), (0.4, 1.6), (5, 28), (0.01, 0.5), (1e-6, 1e3)]


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_labels_of_a_logarithmic_axis_keep_apart(low, high):
    """Measured as drawn, in the narrowest panels there are."""
    figure, [axis] = common.panels(1, (3.2, 2.9), "up")
    axis.set(xscale="log", xlim=(low, high))
    common.few_labels(axis)
    figure.canvas.draw()
    shown = [label for label in axis.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in shown]
    inside = [b for b in boxes if axis.bbox.x0 - 1 <= (b.x0 + b.x1) / 2]
    edges = sorted((b.x0, b.x1) for b in inside)
    common.pyplot().close(figure)
    assert len(edges) >= 2
    assert all(left[1] < right[0] for left, right in pairwise(edges))


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 1), (5, 2), (11, 3)])
def test_rows_of_panels_are_labelled_once(count, rows):
    figure, axes = common.panels(count, (1, 1), "up")
    labels = [axis.get_ylabel() for axis in axes]
    common.pyplot().close(figure)
    assert len(axes) == count
    assert labels == ["" if i % 4 else "up" for i in range(count)]
    assert len({round(axis.get_position().y0, 3) for axis in axes}) == rows
