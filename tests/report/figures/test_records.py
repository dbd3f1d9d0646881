"""Figures of cards on which every record is the target in turn."""

import numpy as np
import pytest

from audit.report.figures import attribute, bounds, common, records
from tests import pages

N, S = 400, 20
# what has pictures of its own, beside which there are none of dFIL alone
UNGUESSED = "even__eta", "noisy__eta", "noisy__attack__mean_guess"


def card(game="leave_one_out", **changed):
    """A card with everything on it, made of random numbers; arrays changed or left out.

    A name of an array has two underscores for its slash; None leaves the array out.
    """
    rng = np.random.default_rng(0)
    dfil = rng.lognormal(0, 3, N)
    arrays = {
        "label": rng.integers(0, 2, N),
        "floor": np.full(N, 0.05),
        "shown": np.sort(np.argsort(dfil)[[*range(8), *range(-8, 0)]]),
        "shown_x": rng.uniform(size=(16, 8, 8, 1)),
        "even/eta": np.full(N, 0.5) + 1e-9 * rng.normal(size=N),
        "even/anatomy/eta_sd": np.logspace(-1, -9, 6),
        "noisy/eta": np.sqrt(dfil),
        "noisy/dfil": dfil,
        "noisy/cramer_rao": 1 / dfil,
        "noisy/attack/mse": rng.lognormal(0, 1, N) / dfil,
        "noisy/attack/mean_guess": rng.uniform(-1, 2, (16, 8, 8, 1)),
        "noisy/attack/wrong": rng.uniform(size=N),
    }
    arrays["noisy/attack/mse"][:3] = [np.inf, 0.0, np.nan]
    arrays |= {name.replace("__", "/"): value for name, value in changed.items()}
    bound = {"name": "hammersley_chapman_robbins", "mean": 0.0, "log10": -320.2}
    claim = {"quantity": "MSE bound", "value": 0.02, "source": "x", "void": "why"}
    result = {"success": 0.5} | ({} if game == "attribute" else {"mse": 1.0})
    trial = {"defense": "noisy", "attack": "attack", "use": "glm_attack"}
    return pages.typed(
        scenario={"game": game, "features": {"pca": 0}},
        floor={"mse": 0.05, "mse_se": 0.0},
        defenses={
            "even": {"bounds": [], "nominal": []},
            "noisy": {"bounds": [bound], "nominal": [claim]},
        },
        trials=[trial | {"result": result}],
        arrays={name: value for name, value in arrays.items() if value is not None},
    )


@pytest.mark.parametrize("name", [*records.FIGURES, *attribute.FIGURES])
def test_every_figure_is_drawn_and_drawn_the_same(name, tmp_path):
    applies, draw = (records.FIGURES | attribute.FIGURES)[name]
    gone = UNGUESSED if name == "dfil_extremes.png" else ()
    game = "attribute" if name in attribute.FIGURES else "leave_one_out"
    shown = card(game, **dict.fromkeys(gone))
    assert applies(shown)
    for place in ("a.png", "b.png"):
        common.save(draw(shown), tmp_path / place)
    drawn = (tmp_path / "a.png").read_bytes()
    assert drawn[:4] == b"\x89PNG"
    assert 5_000 < len(drawn) < 300_000
    assert drawn == (tmp_path / "b.png").read_bytes()


def test_figures_say_where_they_do_not_apply():
    other = card("reconstruction")
    for applies, _ in records.FIGURES.values():
        assert not applies(other)
    for name, gone in {
        "eta_by_class.png": ("even__eta", "noisy__eta"),
        "eta_extremes.png": ("noisy__eta",),  # the even one has no extremes
        "reweighting.png": ("even__anatomy__eta_sd",),
        "dfil_histogram.png": ("noisy__cramer_rao",),
        "mse_vs_bound_records.png": ("noisy__cramer_rao",),
        "rebuilt.png": ("noisy__attack__mean_guess",),
    }.items():
        assert not records.FIGURES[name][0](card(**dict.fromkeys(gone))), name
    for applies, _ in (*bounds.FIGURES.values(), *attribute.FIGURES.values()):
        assert not applies(card())


@pytest.mark.parametrize(
    ("values", "shown", "low", "high"),
    [
        (np.arange(100.0), [0, 1, 2, 50, 93, 98, 99], [0, 1, 2], [99, 98, 93]),
        ([np.nan, 2.0, 0.0, np.inf, 1.0], range(5), [2, 4, 1, 3], [3, 1, 4, 2]),
    ],
)
def test_extremes_are_the_ends_that_have_a_picture(values, shown, low, high):
    """And nan is no extreme."""
    ends = records.extremes(np.asarray(values), np.asarray(shown))
    assert [end.tolist() for end in ends] == [low, high]


def test_dfil_extremes_are_of_the_records_accounted_for():
    """Pictures are of the training set's rows, dFIL of some of them."""
    dfil, at = np.arange(1.0, 21.0), np.arange(20) * 3
    shown = np.r_[at[:8], at[-8:]]
    arrays = {
        "dpsgd/dfil": dfil,
        "dpsgd/accounted": at,
        "shown": shown,
        "shown_x": np.ones((16, 4, 4, 1)) * shown[:, None, None, None] / 60,
    }
    scenario = {"game": "leave_one_out"}
    one = pages.typed(scenario=scenario, defenses={"dpsgd": {}}, arrays=arrays)
    applies, draw = records.FIGURES["dfil_extremes.png"]
    assert applies(one)
    each = draw(one).axes  # a row of images
    labels = [t.get_text() for axis in each for t in axis.texts if t.get_va() == "top"]
    labels = [text for text in labels if text]
    assert labels[:8] == [f"{1 / v:.3g}" for v in dfil[::-1][:8]]
    assert labels[8:] == [f"{1 / v:.3g}" for v in dfil[:8]]
    drawn = [picture for axis in each for picture in axis.images]
    brightness = [float(np.max(picture.get_array())) for picture in drawn]
    expected = np.r_[at[::-1][:8], at[:8]] / 60
    np.testing.assert_allclose(brightness, expected, rtol=1e-6)


def test_tenths_are_ordered_by_eta():
    eta = np.random.default_rng(0).permutation(200)
    means, errors = attribute.by_decile(eta / 1.0, eta)
    np.testing.assert_allclose(means, np.arange(10) * 20 + 9.5)
    np.testing.assert_allclose(errors, np.arange(20).std(ddof=1) / np.sqrt(20))


def legends(figure):
    """What the legends of a figure say."""
    boxes = [a.get_legend() for a in figure.axes if a.get_legend()]
    return [t.get_text() for box in boxes for t in box.get_texts()]


def test_every_record_is_counted_on_one_side_of_its_bound():
    """Zero is below a positive bound, infinity above any; nan is named, not drawn."""
    shown = card()
    bound, mse = (
        shown.arrays[f"noisy/{name}"] for name in ("cramer_rao", "attack/mse")
    )
    bound[3:6] = [np.inf, 0.0, np.nan]  # and errors 0 to 2: infinite, zero, nan
    figure = records.mse_vs_bound(shown)
    below = int((mse[6:] < bound[6:]).sum())
    assert {
        f"below its bound: {below + 2}",
        f"at or above its bound: {N - 6 - below + 2}",
        "of these zero or infinite, at an edge: 4",
        "not a number, not drawn: 2",
    } <= set(legends(figure))
    low, high = figure.axes[0].get_ylim()
    drawn = np.concatenate([c.get_offsets() for c in figure.axes[0].collections])
    assert len(drawn) == N - 2
    assert ((low <= drawn[:, 1]) & (drawn[:, 1] <= high)).all()


def test_the_floor_is_on_its_panel():
    figure = records.mse_vs_bound(card(noisy__attack__mse=np.full(N, 50.0)))
    low, high = figure.axes[0].get_ylim()
    assert low < 0.05 < 50 < high


def test_bins_of_eta_hold_every_record():
    wide = np.geomspace(1e-4, 2, 50)
    offset, logarithmic, edges = records.eta_bins(wide)
    assert (offset, logarithmic, len(edges)) == (0, True, 81)
    np.testing.assert_allclose(edges[[0, -1]], [1e-4, 2])
    offset, logarithmic, edges = records.eta_bins(np.array([0.0, 3.0]))
    assert (offset, logarithmic) == (0, False)
    np.testing.assert_allclose(edges, np.linspace(0, 3, 81))
    offset, _, edges = records.eta_bins(0.5 + 1e-7 * np.array([-1.0, 0.0, 1.0]))
    assert offset == pytest.approx(0.5)
    np.testing.assert_allclose(edges[[0, -1]], [-1e-7, 1e-7], rtol=1e-6)
    _, _, edges = records.eta_bins(np.full(4, 0.5))
    assert edges[0] < 0 < edges[-1]


CLASSES = [(np.arange(N) % n, [str(i) for i in range(n)]) for n in (1, 2, 10)]
NONE = [(label, ["all"]) for label in (None, np.linspace(-1, 1, N))]


@pytest.mark.parametrize(("label", "classes"), [*CLASSES, *NONE])
def test_every_class_has_a_colour_and_its_mean(label, classes):
    """Records without classes share one."""
    figure = records.eta_by_class(card(label=label))
    assert legends(figure) == classes * 2  # in either panel
    assert all(len(axis.lines) == len(classes) for axis in figure.axes)  # the means


def test_the_renyi_bounds_are_named():
    """One too small for the axis is text; one in reach is a line."""
    figure = records.dfil_histogram(card())
    words = legends(figure)
    assert "Rényi bound 10^-320 (off the axis)" in words
    assert "Rényi bound as published, void here" in words
    drawn = [line.get_xdata() for line in figure.axes[0].lines]
    assert {0.02, 1.0} == {x[0] for x in drawn if len(x)}


def with_bound(value, **changed):
    """A card of which one bound is odd."""
    bound = card().arrays["noisy/cramer_rao"]
    bound[5] = value
    return card(noisy__cramer_rao=bound, **changed)


@pytest.mark.parametrize(
    "odd",
    [
        with_bound(np.inf)._replace(floor={}),
        pytest.param(with_bound(0.0, shown_x=None), marks=pytest.mark.slow),
        with_bound(np.nan)._replace(scenario={"game": "leave_one_out"}),
        pytest.param(
            card(noisy__cramer_rao=np.full(N, 3.0), noisy__attack__mse=None),
            marks=pytest.mark.slow,
        ),
        card(noisy__attack__mse=np.full(N, np.nan))._replace(floor={"mse": "nan"}),
    ],
)
def test_odd_cards_are_drawn(odd, tmp_path):
    """Warnings are errors here: nothing may warn either."""
    for name, (applies, draw) in records.FIGURES.items():
        if applies(odd):
            common.save(draw(odd), tmp_path / name)
            assert (tmp_path / name).stat().st_size > 5_000


def test_which_records_are_pictured():
    labels = np.array([0, 0, 1, 1, 0])
    shown = bounds.targets_to_draw(card()._replace(arrays={"label": labels}), 4)
    np.testing.assert_array_equal(shown, [0, 2, 1, 3])
