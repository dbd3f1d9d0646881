"""Lower bounds on epsilon from one run: vectors, validity, and others' defects."""

import numpy as np
import pytest
from scipy import stats

from audit.statistics import epsilon_lower
from audit.statistics import epsilon_lower_one_run as one
from tests.statistics.test_epsilon_lower import DELTA, SIMULATIONS, TRUTH, allowed


def simulate(mu, trials, m, seed=0, **how):
    """Epsilon lower of `trials` runs with m canaries, each told with N(mu, 1) noise."""
    rng = np.random.default_rng(seed)
    member = rng.random((trials, m)) < 0.5
    scores = mu * member + rng.normal(size=(trials, m))
    how |= {"delta": DELTA}
    if how.get("selection") == "fixed":
        how["share"] = 0.3
    audits = enumerate(zip(scores, member, strict=True))
    return np.array([one.lower(*z, seed=i, **how).epsilon for i, z in audits])


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "p", "epsilon"),
    [
        (1000, 1000, 600, 1e-5, 1.0, 0.2972269537),
        (1000, 100, 100, 1e-5, 0.0005633089841, 3.4653763478),
        (1000, 100, 95, 0.0, 1.460470075e-08, 2.1724340432),
    ],
)
def test_vectors(m, r, v, delta, p, epsilon):
    assert one.p_value(1.0, m, r, v, delta) == pytest.approx(p, rel=1e-6)
    assert one.from_one_run(m, r, v, delta) == pytest.approx(epsilon, rel=1e-6)


def test_published_examples():
    assert one.from_one_run(1000, 100, 75, 1e-4) == pytest.approx(0.673, abs=5e-4)
    for r, epsilon in ((20, 1.79), (50, 2.76), (100, 3.47), (500, 5.09), (1000, 5.78)):
        assert one.from_one_run(1000, r, r, DELTA) == pytest.approx(epsilon, abs=6e-3)


def test_the_p_value_is_its_formula():
    """Written out with a loop and scipy's binomial law."""
    m, r, v, delta, epsilon = 300, 40, 31, 1e-4, 0.4
    law = stats.binom(r, 1 / (1 + np.exp(-epsilon)))
    slabs = [sum(law.pmf(k) for k in range(v - i, v)) / i for i in range(1, v + 1)]
    plain = sum(law.pmf(k) for k in range(v, r + 1)) + 2 * m * delta * max(slabs)
    assert one.p_value(epsilon, m, r, v, delta) == pytest.approx(plain, rel=1e-10)


def test_delta_is_not_dropped():
    """Several public copies leave its term out and claim too much."""
    with_it = one.from_one_run(1000, 100, 95, 1e-4)
    assert with_it < one.from_one_run(1000, 100, 95, 0.0) - 0.05


def test_more_right_guesses_never_prove_less():
    for rule in (one.from_one_run, one.from_one_run_fdp):
        lower = [rule(100, 40, v, DELTA) for v in range(41)]
        assert (np.diff(lower) >= -1e-9).all()
        assert lower[0] == 0
        assert lower[20] == 0


def test_rejecting_a_gaussian_claim_is_monotone_in_mu():
    rejected = [one.fdp_rejects(mu, 1000, 100, 80, 0.05) for mu in np.arange(0, 4, 0.1)]
    assert rejected[0]
    assert not rejected[-1]
    assert (np.diff(np.array(rejected, int)) <= 0).all()


@pytest.mark.parametrize(("mu", "rejected"), [(0.0, True), (0.5, False)])
def test_one_guess_of_two_canaries_rejects_by_hand(mu, rejected):
    """It is right: .3 + Phi(Phi^-1(.3) - mu) against one half, .6 and .453."""
    assert one.fdp_rejects(mu, 2, 1, 1, 0.6) == rejected


def test_tied_scores_prove_nothing_in_whatever_order_the_canaries_are():
    member = np.arange(200) >= 100
    assert one.lower(np.zeros(200), member, delta=DELTA).epsilon == 0
    assert one.lower(np.zeros(200), ~member, delta=DELTA).epsilon == 0


def test_the_numbers_of_guesses_share_the_level():
    """The best of five, each with a fifth of it."""
    rng = np.random.default_rng(2)
    member = rng.random(300) < 0.5
    canaries = rng.normal(size=300) + 2 * member, member
    confidence = 1 - 0.05 / len(one.SHARES)
    how = {"delta": DELTA, "selection": "fixed", "confidence": confidence}
    each = [one.lower(*canaries, share=s, **how).epsilon for s in one.SHARES]
    assert one.lower(*canaries, delta=DELTA).epsilon == pytest.approx(max(each))


@pytest.mark.parametrize("rule", [one.lower, epsilon_lower.lower])
def test_each_of_several_splits_has_half_of_the_level(rule, monkeypatch):
    monkeypatch.setattr(epsilon_lower, "SPLITS", 1)
    scores = np.random.default_rng(4).normal(size=400) + np.repeat([3, 0], 200)
    data = (scores, np.arange(400) < 200) if rule is one.lower else np.split(scores, 2)
    got = rule(*data, delta=DELTA, selection="multi_split").epsilon
    half = rule(*data, delta=DELTA, selection="split", confidence=0.975).epsilon
    assert 0 < got == pytest.approx(half)
    assert got < rule(*data, delta=DELTA, selection="split").epsilon


@pytest.mark.parametrize("selection", epsilon_lower.SELECTIONS)
@pytest.mark.parametrize("method", one.METHODS)
def test_null_scores_prove_nothing(method, selection):
    """Privacy Meter's search over the numbers of guesses fails here 39 to 46%."""
    lower = simulate(0.0, 200, 200, method=method, selection=selection)
    assert (lower > 0).sum() <= allowed(200)


def test_choosing_the_number_of_guesses_unpaid_is_caught():
    rng, guesses = np.random.default_rng(1), np.arange(1, 101)
    wrong = 0
    for _ in range(300):
        member, order = rng.random(200) < 0.5, rng.permutation(200)
        ranked = member[order]
        right = np.cumsum(ranked[::-1])[:100] + np.cumsum(~ranked)[:100]
        wrong += any(
            one.p_value(0.0, 200, 2 * k, v, 0.0) < 0.05
            for k, v in zip(guesses, right, strict=True)
        )
    assert wrong > allowed(300)


def test_a_known_leak_is_found():
    lower = simulate(1.0, 20, 1000, method="one_run_fdp")
    assert np.median(lower) > 0.25 * TRUTH
    assert (lower <= TRUTH).all()
    assert np.median(simulate(3.0, 5, 1000, method="one_run")) > 2


@pytest.mark.parametrize("method", one.METHODS)
def test_of_half_of_two_canaries_nobody_is_guessed(method):
    """And nobody right, whoever was in; nothing is proved."""
    for member in ([True, True], [True, False], [False, False]):
        got = one.lower(
            [1.0, 0.0], member, delta=DELTA, method=method, selection="split"
        )
        assert got == one.Guessed(0.0, canaries=1, guesses=0, right=0)


def test_words_are_checked():
    data = np.arange(10.0), np.arange(10) % 2
    for how, text in (
        ({"method": "two_runs"}, "there are one_run, one_run_fdp"),
        ({"selection": "best"}, "there are fixed, split, bonferroni, multi_split"),
        ({"selection": "fixed"}, "needed by `fixed`"),
        ({"share": 0.5}, "only there"),
    ):
        with pytest.raises(ValueError, match=text):
            one.lower(*data, delta=DELTA, **how)
    with pytest.raises(ValueError, match="1 canaries' scores are nan"):
        one.lower([np.nan, 1.0], [0, 1], delta=DELTA)
    with pytest.raises(ValueError, match="3 scores of 2 canaries"):
        one.lower([1.0, 2.0, 3.0], [0, 1], delta=DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 1.0])
@pytest.mark.parametrize("selection", epsilon_lower.SELECTIONS)
@pytest.mark.parametrize("method", one.METHODS)
def test_validity_in_full(method, selection, mu):
    truth = TRUTH if mu else 0.0
    lower = simulate(mu, SIMULATIONS, 200, method=method, selection=selection)
    wrong = int((lower > truth).sum())
    print(f"{method} {selection} mu={mu}: {wrong} of {SIMULATIONS}")
    assert wrong <= allowed(SIMULATIONS)
