"""Figures of cards on which every record is the target in turn."""

import numpy as np
import pytest

from audit import attribute_figures, figures, record_figures, report
from audit.scorecard import Scorecard

N, S = 400, 20


def card(game="leave_one_out", **without):
    """A card with everything on it, made of random numbers."""
    rng = np.random.default_rng(0)
    dfil = rng.lognormal(0, 3, N)
    shown = np.argsort(dfil)[[*range(8), *range(-8, 0)]]
    arrays = {
        "label": rng.integers(0, 2, N),
        "floor": np.full(N, 0.05),
        "shown": np.sort(shown),
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
    arrays = {k: v for k, v in arrays.items() if k not in without.get("arrays", ())}
    bound = {
        "name": "hammersley_chapman_robbins",
        "mean": 0.0,
        "median": 0.0,
        "min": 0.0,
        "max": 0.0,
        "log10": -320.2,
        "holds_for": "unbiased attackers",
        "theorem": "",
        "ranked": True,
    }
    claim = {"quantity": "MSE bound", "value": 0.02, "source": "x", "void": "why"}
    result = {"mse": 1.0, "oracle": False, "success": 0.5}
    trial = {
        "defense": "noisy",
        "attack": "attack",
        "use": "glm_attack",
        "status": "ok",
        "result": result if game != "attribute" else {"oracle": False, "success": 0.5},
        "flags": [],
    }
    return Scorecard(
        scenario={"game": game, "features": {"pca": 0}},
        provenance={},
        data={},
        floor={"mse": 0.05, "mse_se": 0.0},
        defenses={
            "even": {"bounds": [], "nominal": []},
            "noisy": {"bounds": [bound], "nominal": [claim]},
        },
        trials=[trial],
        arrays=arrays,
    )


@pytest.mark.parametrize("name", record_figures.FIGURES)
def test_every_figure_is_drawn_and_drawn_the_same(name, tmp_path):
    applies, draw = record_figures.FIGURES[name]
    assert applies(card())
    for place in ("a.png", "b.png"):
        draw(card(), tmp_path / place)
    drawn = (tmp_path / "a.png").read_bytes()
    assert drawn[:4] == b"\x89PNG"
    assert 5_000 < len(drawn) < 300_000
    assert drawn == (tmp_path / "b.png").read_bytes()


def test_the_attribute_figure_is_drawn(tmp_path):
    ((applies, draw),) = attribute_figures.FIGURES.values()
    assert applies(card("attribute"))
    assert not applies(card())
    draw(card("attribute"), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_figures_say_where_they_do_not_apply():
    other = card("reconstruction")
    for applies, _ in record_figures.FIGURES.values():
        assert not applies(other)
    for name, lost in {
        "eta_by_class.png": ["even/eta", "noisy/eta"],
        "eta_extremes.png": ["noisy/eta"],  # the even one has no extremes
        "reweighting.png": ["even/anatomy/eta_sd"],
        "dfil_histogram.png": ["noisy/cramer_rao"],
        "mse_vs_bound_records.png": ["noisy/cramer_rao"],
        "rebuilt.png": ["noisy/attack/mean_guess"],
    }.items():
        assert not record_figures.FIGURES[name][0](card(arrays=lost)), name
    for applies, _ in figures.FIGURES.values():
        assert not applies(card())


def test_extremes_are_the_ends_that_have_a_picture():
    values = np.arange(100.0)
    low, high = record_figures.extremes(values, np.array([0, 1, 2, 50, 93, 98, 99]))
    np.testing.assert_array_equal(low, [0, 1, 2])
    np.testing.assert_array_equal(high, [99, 98, 93])


def test_tenths_are_ordered_by_eta():
    eta = np.random.default_rng(0).permutation(200)
    means = attribute_figures.by_decile(eta / 1.0, eta)
    np.testing.assert_allclose(means, np.arange(10) * 20 + 9.5)


def test_points_below_their_bound_are_counted(tmp_path, monkeypatch):
    """Through the legend: every record is somewhere, none is dropped silently."""
    seen = []
    monkeypatch.setattr(
        record_figures,
        "save",
        lambda figure, path: seen.extend(
            t.get_text() for t in figure.axes[0].get_legend().get_texts()
        ),
    )
    held = card()
    record_figures.mse_vs_bound(held, tmp_path / "a.png")
    mse = held.arrays["noisy/attack/mse"]
    below = int((mse[3:] < held.arrays["noisy/cramer_rao"][3:]).sum())
    assert f"below its bound: {below}" in seen
    assert f"at or above its bound: {N - 3 - below}" in seen
    assert "zero or not finite: 3" in seen


def test_which_records_are_pictured():
    labels = np.array([0, 0, 1, 1, 0])
    shown = report.targets_to_draw(card()._replace(arrays={"label": labels}), 4)
    np.testing.assert_array_equal(shown, [0, 2, 1, 3])
