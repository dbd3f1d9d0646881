"""Two cards side by side: which differences are noise."""

import numpy as np
import pytest

import audit
from audit.api.comparison import compare
from audit.errors import UserError
from audit.scorecard import card as cards
from audit.scorecard.schema import RaisedFlag
from tests import pages
from tests.commands import call

RNG = np.random.default_rng(0)
ERRORS = RNG.uniform(0.01, 0.05, 200)


def card(errors, *, seed=0, epsilon=None, attack="a", name="digits"):
    """A card of one defense with one attack's errors per target."""
    se = float(errors.std(ddof=1) / np.sqrt(len(errors)))
    headline = {
        "metric": "mse", "value": float(errors.mean()), "standard_error": se,
        "better": "lower", "floor": 0.05,
    }  # fmt: skip
    pair = {"rdp": epsilon, "tight": None}
    guarantee = {"delta": 1e-5, "replace_one": pair, "add_remove": pair}
    return pages.typed(
        scenario={"seed": seed, "scenario": name},
        defenses={"d": {"epsilon": guarantee if epsilon else None}},
        trials=[{"defense": "d", "attack": attack, "result": {"headline": headline}}],
        arrays={f"d/{attack}/mse": errors},
    )


def test_the_same_card_twice():
    one = card(ERRORS, epsilon=3.0)
    compared = compare(one, one)
    assert not compared.weaker
    (row,) = compared.attacked
    assert (row.difference, row.low, row.high, row.paired) == (0, 0, 0, 200)
    assert [e.values for e in compared.accounted] == [(3.0, 3.0)] * 2


def test_a_weaker_defense_is_found_target_by_target():
    """A shift far below the spread over targets shows in pairs, and only there."""
    shift = 0.02 * ERRORS.std()
    noise = RNG.normal(0, 0.02 * ERRORS.std(), 200)
    weaker = card(ERRORS - shift + noise)
    assert compare(card(ERRORS), weaker).weaker
    assert not compare(weaker, card(ERRORS)).weaker
    alone = weaker._replace(arrays={})
    (row,) = compare(card(ERRORS), alone).attacked
    assert (row.paired, row.weaker) == (0, False)
    # the unpaired interval is that of two independent means
    se = np.hypot(*[ERRORS.std(ddof=1) / np.sqrt(200)] * 2)
    assert row.high - row.low == pytest.approx(2 * 1.959964 * se, rel=1e-2)


def test_false_alarms_are_as_rare_as_the_interval_says():
    """2.5% of pairs of equal cards: 150 of them, within 4 standard errors."""
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(150):
        noisy = (card(ERRORS + rng.normal(0, 0.01, 200)) for _ in range(2))
        alarms += compare(*noisy).weaker
    expected = 150 * 0.025
    assert abs(alarms - expected) <= 4 * np.sqrt(expected * 0.975)


def test_what_a_seed_changes_counts():
    """A shift that all targets of a seed share is no difference of defenses."""
    rng = np.random.default_rng(2)
    seeds = [card(ERRORS + rng.normal(0, 0.004), seed=s, epsilon=2.0) for s in range(8)]
    best, worst = (f(seeds, key=lambda c: c.floor and _value(c)) for f in (min, max))
    alone = compare(worst, best)
    assert not alone.weaker
    assert np.isinf(alone.attacked[0].high)
    assert "two seeds, one card each" in alone.left_out[-1]
    assert not compare(seeds[:4], seeds[4:]).weaker
    shifted = [card(_errors(c) - 0.015, seed=c.scenario.seed) for c in seeds]
    assert compare(seeds, shifted).weaker  # paired by seed
    assert compare(seeds[:4], shifted[4:]).weaker  # and not


def _errors(card):
    return card.arrays["d/a/mse"]


def _value(card):
    return card.trials[0].result.headline.value


def test_a_larger_epsilon_is_weaker_whatever_attacks_find():
    assert compare(card(ERRORS, epsilon=2.0), card(ERRORS, epsilon=2.1)).weaker
    assert not compare(card(ERRORS, epsilon=2.1), card(ERRORS, epsilon=2.0)).weaker
    assert compare(card(ERRORS, epsilon=2.0), card(ERRORS)).weaker  # gone


def test_cards_that_cannot_be_compared():
    with pytest.raises(UserError, match="two scenarios: digits and other"):
        compare(card(ERRORS), card(ERRORS, name="other"))
    with pytest.raises(UserError, match="2 cards on one side: two have the same seed"):
        compare([card(ERRORS), card(ERRORS)], card(ERRORS))
    codes = [
        pages.made_with(pages.seeded(pages.plain(), i), f"{i}" * 64) for i in (0, 1)
    ]
    with pytest.raises(UserError, match="or a plug-in's code differ"):
        compare([pages.card(c) for c in codes], pages.card(codes[0]))
    lost = compare(card(ERRORS), card(ERRORS, attack="b"))
    assert lost.left_out == (
        "a on d: valid on the first card only",
        "b on d: valid on the second card only",
        "d: no valid attack is on both cards",
    )
    assert lost.untried == ("d",)


@pytest.mark.parametrize("place", ["defense", "trial"])
def test_what_is_accounted_for_must_hold(place):
    """Noise that is missing voids an epsilon of 2, whatever attacks find."""
    before, after = (card(ERRORS, epsilon=2.0) for _ in range(2))
    row = after.defenses["d"] if place == "defense" else after.trials[0]
    row.flags = [RaisedFlag(name="unclipped", level="error", text="twice the norm")]
    compared = compare(before, after)
    assert compared.weaker
    assert "does not hold: d (unclipped)" in str(compared)
    assert "not weaker" not in str(compared)
    same = compare(after, after)
    assert not same.weaker
    assert "ε of d: it holds on neither card (unclipped)" in same.left_out
    assert not same.accounted
    row.flags = [RaisedFlag(name="wrong-noise", level="warning", text="more of it")]
    assert not compare(before, after).weaker


def both(strong, weak):
    """A card of one defense with two attacks."""
    first, second = card(strong, attack="a"), card(weak, attack="b")
    return first._replace(
        trials=[*first.trials, *second.trials], arrays=first.arrays | second.arrays
    )


@pytest.mark.parametrize("how", ["void", "failed", "gone"])
def test_a_strongest_attack_that_is_lost_is_no_better_protection(how):
    before, after = (both(ERRORS, ERRORS + 0.01) for _ in range(2))
    lost = after.trials[0]
    if how == "void":
        lost.flags = [RaisedFlag(name="non-finite", level="error", text="nan")]
    elif how == "failed":
        lost.status, lost.result = "failed", None
    else:
        after = after._replace(trials=after.trials[1:])
    compared = compare(before, after)
    assert compared.weaker
    assert compared.untried == ("d",)
    assert [row.attacks for row in compared.attacked] == [("b", "b")]
    assert "a on d: valid on the first card only" in str(compared)
    assert "not weaker" not in str(compared)
    assert not compare(after, before).untried  # a further attack is no loss


def test_a_defense_that_is_lost_is_no_better_protection():
    before = pages.card(pages.plain())
    fewer = {k: v for k, v in before.defenses.items() if k != "dpsgd_eps1"}
    trials = [t for t in before.trials if t.defense in fewer]
    after = before._replace(defenses=fewer, trials=trials)
    compared = compare(before, after)
    assert (compared.weaker, compared.untried) == (True, ("dpsgd_eps1",))
    assert "may be weaker: " in str(compared)
    assert not compare(after, before).weaker  # a further defense is no loss


def test_settings_that_differ_are_named():
    """A second card with a weaker attacker shows less: whoever reads it must know."""
    strong, weak = pages.plain(), pages.plain()
    weak["scenario"]["attack"]["ridge"]["repeats"] = 9
    weak["scenario"]["splits"]["pool"] = 7
    weak["scenario"]["defense"]["dpsgd"]["noise_multiplier"] = 0.2
    del weak["scenario"]["attack"]["reconstructor"]  # a line-up is no setting
    compared = compare(pages.card(strong), pages.card(weak))
    assert compared.unequal == (
        "attack.ridge.repeats 1 and 9",
        "defense.dpsgd.noise_multiplier 0.05 and 0.2",
        "splits.pool 450 and 7",
    )
    assert "not equal on both cards: attack.ridge.repeats 1 and 9; " in str(compared)
    assert not compared.weaker
    seeds = (pages.card(pages.seeded(strong, seed)) for seed in range(2))
    assert compare(*seeds).unequal == ()


def test_where_nobody_attacks_no_attack_is_lost():
    quiet = card(ERRORS, epsilon=2.0)._replace(trials=[])
    compared = compare(quiet, quiet)
    assert not compared.weaker
    assert compared.left_out == ("d: no valid attack is on both cards",)


def test_epsilons_at_two_deltas_are_said_to_be_left_out():
    other = card(ERRORS, epsilon=2.0)
    other.defenses["d"].epsilon.delta = 1e-3
    compared = compare(card(ERRORS, epsilon=1.0), other)
    assert compared.left_out == ("ε of d: at δ 1e-05 and 0.001",)


def test_a_number_without_a_standard_error_shows_no_difference():
    def audited(epsilon):
        one = card(ERRORS)._replace(arrays={})
        headline = one.trials[0].result.headline
        headline.metric, headline.better = "epsilon_lower", "higher"
        headline.value, headline.standard_error = epsilon, None
        return one

    compared = compare(audited(1.0), audited(1.5))
    assert not compared.weaker
    assert "without a standard error" in compared.left_out[-1]


def test_exit_codes_and_intervals(tmp_path, capsys):
    runs = {"one": card(ERRORS), "weak": card(ERRORS - 0.005), "other": None}
    runs["other"] = card(ERRORS[::-1], seed=1)
    for name, each in runs.items():
        (tmp_path / name).mkdir()
        cards.save(each, tmp_path / name)
    one, weak, other = (str(tmp_path / name) for name in runs)
    for words, code, says in (
        ((one, one), 0, "+0 [+0, +0]"),
        ((one, weak), 1, "weaker: the second card protects less: d"),
        ((one, other), 0, "[-inf, +inf]"),
    ):
        assert call("compare", *words) == code
        assert says in capsys.readouterr().out
        assert audit.compare(*words).weaker == bool(code)
    assert call("compare", one) == 2
    assert "compare which two?" in capsys.readouterr().err
