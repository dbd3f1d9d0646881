"""Names beside lines and points: apart, inside, and large enough to read."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.text import Text

from audit.report.figures import common, drawings, epsilon, labels, membership
from tests import pages
from tests.report.figures.test_records import card


@pytest.mark.parametrize(
    ("heights", "moved"),
    [
        ([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.2, 0.5, 0.5, 0.52], [0.2, 0.4067, 0.5067, 0.6067]),
        ([0.0, 0.0, 0.12], [-0.06, 0.04, 0.14]),  # pushes one that was apart
    ],
)
def test_heights_are_moved_apart_as_little_as_need_be(heights, moved):
    out = labels.spread(heights, 0.1)
    np.testing.assert_allclose(out, moved, atol=1e-4)
    assert np.mean(out) == pytest.approx(np.mean(heights))


def boxes(figure):
    """Where the names of a figure's first panel are drawn, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = figure.axes[0].texts
    # the leader of an annotation is no part of its name
    return [type(t).__mro__[1].get_window_extent(t, renderer) for t in texts]


def overlapping(figure):
    return [
        pair for pair in combinations(boxes(figure), 2) if pair[0].overlaps(pair[1])
    ]


def test_names_of_lines_that_end_together_are_apart():
    figure, (axis,) = common.panels(1, (6.4, 3.8))
    for i, look in common.looks(range(6)).items():
        axis.errorbar([1, 2], [1, 2 + i / 100], 0.1, label=f"line {i}", **look.line())
    axis.axhline(1.5, label="level", **common.FLOOR)
    labels.label_ends(axis)
    assert {t.get_text() for t in axis.texts} == {
        *(f"line {i}" for i in range(6)),
        "level",
    }
    assert not overlapping(figure)


def test_an_audit_that_proves_nothing_is_drawn_on_the_lower_edge():
    """On a logarithmic axis 0 is far below the panel: a picture of 500 MB."""
    data = pages.plain("epsilon_audit-digits")
    for trial in data["trials"]:
        for estimates in trial["result"]["lower"].values():
            for shown in estimates.values():
                shown["epsilon"] = 0.0
    figure = epsilon.both_sides(pages.card(data))
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert (np.array(box.size) < 1.5 * figure.get_size_inches()).all()
    names = [text.get_text() for text in figure.axes[0].texts]
    assert sum(name.endswith("proves nothing") for name in names) == 3


def test_names_of_points_in_a_heap_are_apart():
    figure, (axis,) = common.panels(1, (5.6, 4.2))
    rng = np.random.default_rng(0)
    points = {f"defense_{i}": (0.99 + x, 0.05 + y) for i, (x, y) in
              enumerate(rng.uniform(0, 0.01, (8, 2)))}  # fmt: skip
    axis.scatter(*zip(*points.values(), strict=True))
    labels.label_points(axis, [(name, *at) for name, at in points.items()])
    assert len(axis.texts) == 8
    assert not overlapping(figure)


def test_names_of_points_keep_clear_of_levels_and_error_bars():
    figure, (axis,) = common.panels(1, (5.6, 4.2))
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.errorbar(0.5, 0.5, 0.2)
    axis.axhline(0.5)
    labels.label_points(axis, [("name of a point", 0.5, 0.5)])
    figure.draw_without_rendering()
    [name] = boxes(figure)
    level, bar = axis.transData.transform([(0.5, 0.5), (0.5, 0.7)])
    assert not name.y0 < level[1] < name.y1
    assert not name.x0 < bar[0] < name.x1


def test_no_text_of_a_figure_is_smaller_than_eight_points_on_a_page():
    """At the width a page shows: 9.2 inches, to which wider figures would be shrunk."""
    steps = [{"accuracy": 0.9, "sqrt_mean": 1, "sqrt_max": 2, "sqrt_median": 1}] * 5
    data = pages.plain()
    for defense in data["defenses"].values():
        defense["steps"] = steps
    arrays = pages.arrays(data)
    arrays["floor_guess"] = arrays["target"]
    few = pages.card(data, arrays)
    few = few._replace(defenses={d: few.defenses[d] for d in ("sgd", "fim")})
    shown = [card(shown_x=None), card("attribute"), few]
    drawn = [draw(c) for c in shown for draw in drawings(c).values()]
    assert len(drawn) >= 7
    for figure in drawn:
        shrunk = min(1, common.WIDEST / figure.get_figwidth())
        figure.draw_without_rendering()
        texts = [t for t in figure.findobj(Text) if t.get_text()]
        sizes = [t.get_fontsize() for t in texts]
        assert min(sizes) * shrunk >= common.SMALL


def test_defenses_of_one_epsilon_share_a_panel():
    data = pages.plain("dirdp_scale_mia-digits")
    names = list(data["defenses"])
    arrays = {f"{d}/attack_r/fpr": np.array([0.0, 1.0]) for d in names}
    arrays |= {f"{d}/attack_r/tpr": np.array([0.0, 1.0]) for d in names}
    groups = membership.by_epsilon(pages.card(data, arrays))
    assert groups["ε 9.2: gauss_025, vmf_025"] == ["gauss_025", "vmf_025"]
    assert sorted(d for group in groups.values() for d in group) == sorted(names)
    assert groups["no ε: sgd"] == ["sgd"]


def test_rows_of_a_table_are_no_pictures():
    data = pages.plain()
    arrays = pages.arrays(data)
    arrays["floor_guess"] = arrays["target"]
    assert "reconstructions.png" in drawings(pages.card(data, arrays))
    for name in ("target", "floor_guess"):
        arrays[name] = arrays[name].reshape(len(arrays[name]), -1)
    shown = drawings(pages.card(data, arrays))
    assert "reconstructions.png" not in shown
    assert "mse_vs_bound.png" in shown


def test_a_bound_is_drawn_of_the_defense_that_has_it():
    """Of two defenses of a panel one has a bound; curves begin above an FPR of 0."""
    data = pages.plain("dirdp_scale_mia-digits")
    fpr = np.array([0.0, 0.0, 0.01, 1.0])
    curves = {"fpr": fpr, "tpr": np.array([0.2, 0.2, 0.3, 1.0])}
    arrays = {
        f"{t['defense']}/{t['attack']}/{k}": v
        for t in data["trials"]
        for k, v in curves.items()
    }
    arrays["gauss_025/anatomy/tpr_bound"] = np.array([[0.0, 1.0], [0.5, 1.0]])
    tied = np.array([0.0, 0.0, 0.0, 1.0])
    arrays |= {"sgd/coin/fpr": tied, "sgd/coin/tpr": tied}
    figure = membership.roc(pages.card(data, arrays))
    texts = [t.get_text().strip() for t in figure.axes[0].texts]
    assert {"attack_r", "loss_threshold"} <= set(texts)
    assert "coin" not in texts
    (axis,) = [a for a in figure.axes if "vmf_025" in a.get_title()]
    texts = [t.get_text().strip() for t in axis.texts]
    assert "no attack on gauss_025 above" in texts
    assert not [t for t in texts if "vmf_025 above" in t]
    drawn = [line for line in axis.lines if len(line.get_xdata()) == 4]
    assert drawn
    assert all(np.isnan(line.get_ydata()[:2]).all() for line in drawn)
