"""How guesses at records become numbers."""

import numpy as np
import pytest

from audit.accounting.bounds import cramer_rao
from audit.data import pixel_domain
from audit.games import rows, scoring
from audit.games.base import Result, Table, Trial
from audit.games.guarantees import Guarantees
from audit.models import networks
from audit.types import Examples, ThreatModel
from tests import pages
from tests.conftest import records
from tests.games import worlds

SHAPE = (8, 8, 1)


def test_errors_are_means_over_runs_and_targets():
    """The absolute error, and the loss of Balle et al., against loops."""
    task, targets = networks.binary_linear(SHAPE, 2), records(5, SHAPE, 2)
    pool = records(9, SHAPE, 2, seed=1)
    problem = worlds.problem(task, pool, pool, targets=targets)
    table = Table(problem, worlds.ENGINE, 3, lpips="not here")
    guesses = np.random.default_rng(2).uniform(size=(5, 3, *SHAPE))
    numbers = scoring.result(guesses, targets, Guarantees(), table, {}).numbers
    gaps = [guesses[i, j] - targets.x[i] for i in range(5) for j in range(3)]
    absolute = np.mean([np.abs(gap).mean() for gap in gaps])
    square = np.mean([(gap**2).mean() for gap in gaps])
    assert numbers["mae"] == pytest.approx(absolute)
    assert numbers["mse"] == pytest.approx(square)
    assert numbers["mae_plus_mse"] == pytest.approx(absolute + square)


@pytest.mark.parametrize("channels", ["centred", True])
def test_standardised_images_are_judged_as_pixels(channels):
    """Similarities are those of the images before their channels were standardised."""
    images, guesses = records(5, SHAPE, 2).x, records(5, SHAPE, 2, seed=1).x
    cut = worlds.problem(
        None,
        *[Examples(images, np.zeros(5))] * 2,
        public_records=Examples(images, np.zeros(5)),
    )
    low, high = pixel_domain(cut.splits, channels)
    scale = lambda x: (low + x.reshape(5, -1) * (high - low)).reshape(x.shape)
    plain, standardised = (
        Table(cut._replace(ends=ends), worlds.ENGINE, 1, lpips="not here")
        for ends in (None, (low, high))
    )
    want = scoring.images(guesses, images, plain)
    ours = scoring.images(scale(guesses), scale(images), standardised)
    for name in ("ssim", "psnr_median"):
        assert ours[name] == pytest.approx(want[name], rel=1e-4)


def test_errors_are_ranked_against_the_bounds_of_their_records():
    """Spearman by hand: ranks 0 1 2 3 4 against 0 1 2 4 3, 1 - 6 (1 + 1) / (5 24)."""
    bound, error = np.arange(1.0, 6.0), np.array([0.1, 0.2, 0.3, 0.5, 0.4])
    (row,) = scoring.against([cramer_rao(1 / bound)], error, error[:, None]).values()
    assert row["rank_correlation"]["value"] == pytest.approx(0.9)
    assert row["rank_correlation"]["low"] < 0.9 < row["rank_correlation"]["high"]
    (row,) = scoring.against(
        [cramer_rao(1 / bound)], error, error[:, None], error / bound[::-1]
    ).values()
    assert row["rank_correlation_of_share"]["value"] == pytest.approx(-1)
    even = scoring.against([cramer_rao(np.ones(5))], error, error[:, None])
    assert "rank_correlation" not in even["cramer_rao"]


def test_a_target_is_below_its_bound_by_more_than_two_standard_errors():
    """Four runs of a spread of .01, bounds 1.5, 2.5 and -1 standard errors away."""
    mse = np.array([0.1, 0.3, 0.8])
    errors = mse[:, None] + 0.01 * np.array([-1, 1, -1, 1])
    bound = mse + np.array([1.5, 2.5, -1]) * errors[0].std(ddof=1) / 2
    (row,) = scoring.against([cramer_rao(1 / bound)], mse, errors).values()
    assert row["share_below"] == pytest.approx(1 / 3)
    assert row["tightness"] == pytest.approx(mse.sum() / bound.sum())
    (row,) = scoring.against([cramer_rao(1 / bound)], mse, errors[:, :1]).values()
    assert row["share_below"] is None


def test_shares_of_targets_beside_the_floor_and_the_oracle():
    """The typical run counts beside the floor, the mean of runs beside the oracle."""
    floor, mean = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.05, 0.25, 0.35, 0.5])
    typical, best = np.array([0.05, 0.15, 0.25, 0.5]), np.array([0.06, 0.1, 0.3, 0.6])

    def trial(label, sees, error, arrays):
        model = ThreatModel("reconstruction", sees=frozenset(sees))
        result = Result(None, {"mse": 0.1}, arrays, error)
        return Trial("dpsgd", label, model, "", "ok", result=result)

    attack = trial("ridge", {"params"}, mean, {"mse_median": typical})
    oracle = trial("nearest_neighbour", {"target"}, best, {})
    rows_of = rows.with_shares([attack, oracle], floor)
    numbers, of_oracle = (row.result.numbers for row in rows_of)
    assert numbers == {"mse": 0.1, "beats_floor": 3 / 4, "win_rate": 2 / 4}
    assert of_oracle == {"mse": 0.1, "beats_floor": 2 / 4}
    (alone,) = rows.with_shares([attack], floor)
    assert alone.result.numbers["win_rate"] is None


def test_the_card_says_whether_dfil_says_whose_records_are_rebuilt():
    ranks = {"rank_correlation": {"value": 0.5, "low": 0.1, "high": 0.8}}
    result = {"mse": 0.1, "mse_se": 0.01, "against": {"cramer_rao": ranks}}
    labels = {"defense": "dpsgd", "attack": "ridge", "use": "ridge", "status": "ok"}
    trial = labels | {"result": result}
    shown = pages.typed(defenses={"dpsgd": {}}, trials=[trial])
    assert "| dpsgd | ridge | .500 [.100, .800] | - |" in scoring.by_record(shown)[0]
    assert scoring.by_record(pages.typed(defenses={"dpsgd": {}})) == []
