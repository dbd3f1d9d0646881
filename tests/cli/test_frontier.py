"""Accuracy against bounds and attacks over many runs: `python -m audit frontier`."""

import pytest

from audit.cli import frontier
from audit.errors import UserError
from tests import pages
from tests.commands import printed, refused

BOUNDS = (
    {"name": "hammersley_chapman_robbins", "mean": 1e-9},
    {"name": "cramer_rao", "mean": 99.0},
)


def card(accuracy, noise, dfil, *, mse=0.03, name="private", bounds=BOUNDS):
    """Return a card of one attacked defense of a noise, and one without dFIL."""
    utility = {"accuracy": accuracy, "accuracy_sd": 0.0, "models": 1, "test": 9}
    dpsgd = {
        "use": "dpsgd",
        "settings": {"noise_multiplier": noise, "steps": 5},
        "utility": utility,
        "dfil": {"mean": dfil, "median": dfil / 2, "max": 4 * dfil},
        "bounds": list(bounds),
    }
    sgd = {"use": "sgd", "settings": {}, "utility": utility, "dfil": None}
    labels = {"defense": "dpsgd", "attack": "ridge", "use": "ridge", "status": "ok"}
    return pages.typed(
        scenario={"scenario": name, "game": "reconstruction"},
        floor={"mse": 0.05},
        defenses={"sgd": sgd, "dpsgd": dpsgd},
        trials=[labels | {"result": {"mse": mse, "mse_se": 0.1}}],
    )


GRID = [card(0.9, 0.1, 10.0, mse=0.01), card(0.8, 1.0, 0.1), card(0.7, 0.5, 1.0)]


def test_a_point_has_the_inverses_of_dfil_and_the_strongest_attack():
    best, *_ = frontier.configurations(GRID)
    assert best.errors == {
        "Rényi bound": 1e-9, "1/max dFIL": 1 / 40, "1/mean dFIL": 1 / 10,
        "1/median dFIL": 1 / 5, "strongest attack": 0.01,
    }  # fmt: skip
    assert (best.accuracy, best.floor) == (0.9, 0.05)


def test_a_dfil_of_which_no_bound_is_made_is_not_drawn_as_one():
    """That of `reweighted_glm` takes the weights for constants."""
    unbounded = card(0.95, 2.0, 1.0, bounds=BOUNDS[:1])
    assert frontier.configurations([*GRID, unbounded]) == frontier.configurations(GRID)
    with pytest.raises(UserError, match="no defense on these cards"):
        frontier.configurations([unbounded])


def test_less_accurate_and_less_private_is_not_on_the_front():
    """The Renyi bounds and the attacks of the last two are equal."""
    front = frontier.fronts(frontier.configurations(GRID))
    assert front["1/max dFIL"] == front["strongest attack"] == {0, 1}
    assert front["Rényi bound"] == {0}


def test_the_page_shows_what_differs_and_the_figure_what_is_off_it(tmp_path):
    frontier.write(GRID, tmp_path)
    page = (tmp_path / "frontier.md").read_text()
    assert "| defense | noise_multiplier | accuracy |" in page
    assert ".8000 | 1.0e-09 | 2.5000 • |" in page
    figure = frontier.draw(frontier.configurations(GRID))
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "Rényi bound (3 of 3 below the axis)" in words
    assert "floor: ignores the release" in words


def test_a_guess_is_not_off_by_1_at_most_where_pixels_are_standardised():
    first = frontier.configurations(GRID)[0]._replace(floor=None)
    for pixels, others in ((True, 1), (False, 0)):
        figure = frontier.draw([first._replace(pixels=pixels)])
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        assert sum("any guess in [0, 1]" in word for word in words) == others


def test_it_refuses_what_has_no_place_on_one_figure(capsys):
    with pytest.raises(UserError, match="two scenarios: other and private"):
        frontier.configurations([*GRID, card(0.5, 1, 1, name="other")])
    none = pages.typed(scenario={"scenario": "a"}, defenses={}, trials=[])
    with pytest.raises(UserError, match="no defense on these cards has an accuracy"):
        frontier.configurations([none])
    assert "frontier of what" in refused(capsys, "frontier")


def test_the_command_reads_a_committed_card(capsys, tmp_path):
    run = "results/private_cnn_mnist5k-mnist5k"
    out = printed(capsys, "frontier", run, f"out={tmp_path}")
    assert out.split() == [f"{tmp_path}/frontier.md", f"{tmp_path}/frontier.png"]
    assert run in (tmp_path / "frontier.md").read_text()
