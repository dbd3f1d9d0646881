"""What all figures share."""

import re
from itertools import pairwise

import numpy as np
import pytest

from audit.report.figures import bounds, common
from tests import pages
from tests.pages import HOSTILE

SPANS = [(0.035, 0.1), (0.15, 0.33), (0.4, 1.6), (5, 28), (0.01, 0.5), (1e-6, 1e3)]


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_labels_of_a_logarithmic_axis_keep_apart(low, high):
    """Measured as drawn, in the narrowest panels there are."""
    figure, [axis] = common.panels(1, (3.2, 2.9), "up")
    axis.set(xscale="log", xlim=(low, high))
    common.few_labels(axis.xaxis)
    figure.draw_without_rendering()
    shown = [label for label in axis.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in shown]
    inside = [b for b in boxes if axis.bbox.x0 - 1 <= (b.x0 + b.x1) / 2]
    edges = sorted((b.x0, b.x1) for b in inside)
    assert len(edges) >= 2
    assert all(left[1] < right[0] for left, right in pairwise(edges))


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 1), (5, 2), (11, 3)])
def test_rows_of_panels_are_labelled_once(count, rows):
    _, axes = common.panels(count, (1, 1), "up")
    labels = [axis.get_ylabel() for axis in axes]
    assert len(axes) == count
    assert labels == ["" if i % 4 else "up" for i in range(count)]
    assert len({round(axis.get_position().y0, 3) for axis in axes}) == rows


def test_the_first_81_looks_differ_and_a_defense_keeps_its_own():
    looks = common.looks(range(81))
    for shape in ("hatch", "linestyle", "marker"):
        pairs = {(look.color, getattr(look, shape)) for look in looks.values()}
        assert len(pairs) == 81
    # a line of the membership games has nine attacks, told apart by the names' colours
    assert len({looks[attack].color for attack in range(9)}) == 9
    assert common.looks("abc")["b"] == common.looks("ab")["b"]


def test_plots_of_a_page_escape_what_they_are_told_and_ask_for_nothing():
    figure, (axis,) = common.panels(1, (3, 3), HOSTILE, HOSTILE)
    (marker,) = axis.plot([1e-9, 1], [1, 2], color=common.INK, label=f"$x_{HOSTILE}$")
    common.hover(marker, HOSTILE)
    axis.set(title=f"$\\nothing{HOSTILE}", xscale="log")
    common.legend_below(figure)
    drawn = common.svg(figure, HOSTILE)
    assert "<script" not in drawn
    assert "<img" not in drawn
    assert drawn.count("<title>&lt;script") == 2  # of the plot, and of the marker
    assert not re.findall(r"url\(|<style|<!--|https?:", drawn.split("</title>", 1)[1])
    assert not set(re.findall(r"#[0-9a-f]{6}\b", drawn))  # all in the page's colours
    assert "$x_" in drawn  # as text


def test_what_leaves_its_panel_is_cut_off_without_a_name():
    """Lines and bands end at the panel, in an element of its size."""
    figure, (axis,) = common.panels(1, (4, 3))
    axis.plot([0, 1], [-5, 5], color=common.COLOURS[0])
    axis.scatter([0.5], [9.0])
    axis.set(xlim=(0, 1), ylim=(0, 1))
    drawn = common.svg(figure, "steep")
    inner = re.findall(
        r'<svg x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" viewBox', drawn
    )
    assert len(inner) >= 2
    assert len(set(inner)) == 1
    assert drawn.count("<svg") == drawn.count("</svg>")
    assert "clip-path" not in drawn


def test_many_points_of_a_page_take_little_room():
    rng = np.random.default_rng(0)
    figure, (axis,) = common.panels(1, (5, 4))
    axis.scatter(*rng.uniform(size=(2, 2000)), color=common.COLOURS[0])
    drawn = common.svg(figure, "many")
    assert drawn.count("<use") > 2000
    assert len(drawn) < 2000 * 60 + 10_000


def test_errors_and_bounds_that_no_axis_holds():
    data = pages.plain()
    arrays = pages.arrays(data)
    for key in (k for k in arrays if k.startswith("dpsgd/") and k.endswith("/mse")):
        arrays[key][:3] = [np.nan, np.inf, 0]
    arrays["dpsgd/cramer_rao"][3:] = 1e-9
    figure, (axis,) = common.panels(1, (5, 4))
    bounds.against_bound(axis, pages.card(data, arrays), "cramer_rao")
    named = [t.get_text() for t in axis.texts if ":" in t.get_text()]
    assert [text.split(":")[0] for text in named] == ["dpsgd"]
    figure.draw_without_rendering()
