"""How often flags err: on sound rows, and on an attacker who beats a valid bound.

Records of `D` coordinates are released with Gaussian noise whose level differs by
orders of magnitude from one record to the next, so that errors and bounds have heavy
tails. Every row is drawn anew, with its own pool and its own runs.
"""

import numpy as np
import pytest
from scipy import stats

from audit.accounting import bounds
from audit.accounting.finite_prior import finite_prior, posterior
from audit.scorecard import flags

D, POOL, ROWS = 6, 40, 500
LEVELS = (0.1, 0.7, 5.0)  # from nearly nothing hidden to nearly everything


def likelihoods(rng, x, pool, noise):
    """Return a release of every x and its log-likelihood under pool and truth."""
    release = x + noise[:, None] * rng.normal(size=x.shape)
    scale = 2 * noise[:, None] ** 2
    under_pool = -((release[:, None] - pool) ** 2).sum(2) / scale
    return release, under_pool, -((release - x) ** 2).sum(1) / scale[:, 0]


def world(seed, level, targets=100, runs=2):
    """Return what the flags of three attackers on one defense look at."""
    rng = np.random.default_rng(seed)
    x, pool = (rng.gamma(2, 0.2, size=(n, D)) for n in (targets, POOL))
    noise = level * np.exp(rng.normal(size=targets))
    everyone = np.ones((targets, POOL), bool)
    _, *weights = likelihoods(rng, x, pool, noise)
    bayes = finite_prior(*weights, pool, x, everyone)
    _, *weights = likelihoods(rng, x, pool, noise)
    genie = posterior(*weights, pool, x, everyone).error
    guesses = np.stack([likelihoods(rng, x, pool, noise)[0] for _ in range(runs)], 1)
    error = ((guesses - x[:, None]) ** 2).mean(2)
    variance = guesses.var(1, ddof=1).mean(1)
    bias2 = ((guesses.mean(1) - x) ** 2).mean(1) - variance / runs
    floor = ((x - pool.mean(0)) ** 2).mean(1)
    other = np.roll(np.arange(targets), 1)
    row = flags.FlagInputs(
        attack="attack",
        oracle=False,
        is_floor=False,
        mse=error.mean(1),
        bias2=bias2,
        finite=True,
        floor=floor,
        bounds=(bounds.cramer_rao(1 / noise**2),),
        runs=runs,
        control=floor * rng.uniform(0, 1, size=targets),
        is_control=False,
        stand_in="",
        augmented="",
        null=((guesses[other, 0] - x) ** 2).mean(1),
        matched=(float(floor.mean()),) * 3,
    )
    return {
        "unbiased": row,
        "genie": row._replace(mse=genie, bias2=None, bounds=(bayes,)),
        "floor": row._replace(mse=floor, null=floor, bias2=None, bounds=(bayes,)),
    }


def rate(rows, name):
    return np.mean([name in {f.name for f in flags.raised(row)} for row in rows])


def test_sound_rows_carry_an_error_flag_at_most_at_the_stated_level():
    worlds = [world(seed, LEVELS[seed % len(LEVELS)]) for seed in range(ROWS)]
    allowed = stats.binom.isf(0.001, ROWS, flags.LEVEL) / ROWS
    assert allowed <= 0.05
    for attacker in worlds[0]:
        rows = [w[attacker] for w in worlds]
        raised = [f.name for r in rows for f in flags.raised(r) if f.level == "error"]
        counts = {name: raised.count(name) / ROWS for name in set(raised)}
        assert all(share <= allowed for share in counts.values()), (attacker, counts)


def test_an_attacker_at_half_of_the_cramer_rao_bound_is_flagged():
    rows = [world(seed, 0.5)["unbiased"] for seed in range(100)]
    halved = [r._replace(mse=r.mse / 2, bias2=r.bias2 / 2) for r in rows]
    assert rate(halved, "below-bound-unexplained") >= flags.POWER


@pytest.mark.parametrize("level", [2.0, 5.0])
def test_an_attacker_at_half_of_the_finite_prior_is_flagged(level):
    rows = [world(seed, level)["genie"] for seed in range(100)]
    assert np.median([flags.needed(r.bounds[0]) for r in rows]) <= 100
    halved = [r._replace(mse=r.mse / 2) for r in rows]
    assert rate(halved, "below-bound-unexplained") >= flags.POWER


def test_few_targets_say_how_many_it_takes():
    row = world(0, 0.5, targets=16)["unbiased"]
    raised = {f.name: f.text for f in flags.raised(row)}
    assert raised["few-targets"] == (
        "16 targets; to show an attack at half of a bound takes cramer_rao 94"
    )
    assert rate([world(0, 0.5)["unbiased"]], "few-targets") == 0


def test_a_perfect_attacker_is_flagged_on_sixteen_targets_of_a_useful_bound():
    rows = [world(seed, 5.0, targets=16)["genie"] for seed in range(100)]
    impossible = [r._replace(mse=0 * r.mse) for r in rows]
    assert rate(impossible, "below-bound-unexplained") >= flags.POWER


def test_heavy_tails_hide_no_violation():
    """A test of means sees nothing: one bound outweighs the others."""
    row = world(0, 0.5)["unbiased"]
    values = np.append(np.full(99, 1.0), 1e6)
    row = row._replace(
        mse=np.full(100, 0.1), bias2=None, bounds=(bounds.cramer_rao(1 / values),)
    )
    assert rate([row], "below-bound-biased") == 1


def test_heavy_tails_hide_no_attack_that_is_worse_than_ignoring_the_release():
    row = world(0, 0.5)["unbiased"]
    mse = row.floor * np.where(np.arange(100) < 28, 0.5, 3.0)
    mse[-1] = 1e9
    assert rate([row._replace(mse=mse)], "attack-below-floor") == 1
