"""Membership games: who knows what, how rates are counted, and a small audit."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.attack_r import attack_r
from audit.__main__ import main
from audit.accounting import rdp
from audit.config.schema import FisherReading
from audit.data import half_in
from audit.engine import signals
from audit.engine.signals import Shadows, Signals
from audit.errors import UserError
from audit.games import membership, membership_rates
from audit.games.base import mismatch
from audit.games.canary import Canaries, canary
from audit.games.membership import Membership
from audit.models import networks
from audit.scorecard import card as cards
from audit.statistics import intervals, roc
from audit.types import Release, ThreatModel
from tests.commands import refused
from tests.conftest import records
from tests.games import worlds

SHAPE, N = (3, 2, 1), 20
TASK = networks.mlp(SHAPE, 3, hidden=4)
POOL = records(9, SHAPE, 3, seed=1)
SGD = functools.partial(worlds.learner, TASK, "sgd", optimizer="sgd", steps=3)


def made(game=membership.membership, **settings):
    return game(membership=Membership(**{"shadows": 6, "calibration": 4} | settings))


def table(runs=4, task=TASK, n=N):
    return worlds.table(worlds.problem(task, records(n, SHAPE, 3), POOL), runs)


@pytest.fixture(scope="module")
def played():
    """Models of a game, and an attack that says what it needs of them."""
    spy = worlds.spy("membership", jnp.zeros(N), ["signals"], ["label", "shadows"])
    sgd = SGD(learning_rate=0.5)
    return sgd, spy, worlds.play(made(), spy.attack, sgd, table()).runs


def test_each_word_is_granted_and_memberships_of_targets_never_are(played):
    _, spy, runs = played
    assert spy.granted() == {"shadows"}
    assert spy.shown() == {"label", "signals"}
    shown, shadows = spy.observations[0].signals, spy.knowledge[0].shadows
    assert [a.shape for a in shown] == [(N, 1), (9, 1)]
    np.testing.assert_array_equal(shadows.member, runs.evidence.references.member)
    assert shadows.member.shape == (6, N)
    assert (shadows.member.sum(0) == 3).all()
    secret = runs.evidence.targets.member
    assert secret.shape == (4, N)
    assert not np.array_equal(secret, shadows.member[:4])


def test_signals_are_float16_rows_of_the_releases_log_odds(played):
    sgd, _, runs = played
    odds = runs.evidence.targets.signals.candidates
    assert odds.dtype == np.float16
    assert odds.shape == (4, N, 1)
    z = records(N, SHAPE, 3)
    for i in range(4):
        one = Release(jax.tree.map(lambda a, i=i: a[i], runs.releases.params))
        exact = signals.log_odds(sgd.defense.predict(sgd.side, one, z.x), z.y)
        np.testing.assert_allclose(odds[i, :, 0], exact, rtol=2e-3, atol=1e-3)


def test_the_largest_half_stands_for_log_odds_of_diverged_models():
    sgd, z = SGD(), records(11, SHAPE, 3)
    release = Release(jax.tree.map(lambda a: 1e7 * a, sgd.side.params))
    odds = signals.of_release(sgd.defense, sgd.side, release, z, z, np.zeros(1))[0]
    exact = signals.log_odds(sgd.defense.predict(sgd.side, release, z.x), z.y)
    largest = np.finfo(np.float16).max
    assert (abs(exact) > largest).any()
    np.testing.assert_allclose(odds[:, 0], exact.clip(-largest, largest), rtol=1e-3)


def test_chunks_of_records_do_not_change_signals(monkeypatch):
    sgd, z = SGD(), records(11, SHAPE, 3)
    release = Release(sgd.side.params)

    def odds():
        return signals.of_release(sgd.defense, sgd.side, release, z, z, np.zeros(3))

    whole = odds()
    monkeypatch.setattr(signals, "CHUNK", 4)
    for a, b in zip(odds(), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-3)


def test_images_move_by_whole_pixels():
    x = np.arange(1, 13, dtype=np.float32).reshape(1, 3, 4, 1)
    framed = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for shift in signals.SHIFTS:
        want = np.roll(framed, shift, (1, 2))[:, 1:-1, 1:-1]
        np.testing.assert_array_equal(signals.moved(x, shift), want)
    assert signals.SHIFTS[0] == (0, 0)
    assert len(set(signals.SHIFTS)) == 9


def test_a_records_models_are_split_by_membership():
    rng = np.random.default_rng(0)
    member = half_in.in_out.member(jax.random.key(0), 6, 5)
    signal = rng.normal(size=(6, 5, 2)).astype(np.float16)
    inside, outside = signals.by_group(member, signal)
    for i, models in enumerate(member.T):
        np.testing.assert_array_equal(inside[i].T, signal[models, i])
        np.testing.assert_array_equal(outside[i].T, signal[~models, i])


def test_without_records_to_read_there_is_a_separation_and_no_dfil():
    noised = worlds.learner(TASK, "dpsgd", noise_multiplier=1.0, steps=2)
    game, asked = made(), table()
    runs = game.release(worlds.KEY, noised, asked)
    for wanted in (FisherReading(), FisherReading(records=0)):
        limits = game.account(worlds.KEY, runs, asked._replace(fisher=wanted))
        assert (limits.dfil is None) == (wanted.records == 0)
        leakage = limits.fields["membership"]
        assert ("against_dfil" in leakage) == (wanted.records != 0)
        assert 0.5 <= leakage["separation"]["max"] <= 1


def test_separation_is_every_records_own_auc():
    rng = np.random.default_rng(1)
    member = half_in.in_out.member(jax.random.key(1), 8, 6)
    odds = rng.integers(0, 4, (8, 6, 1)).astype(np.float16)  # with ties
    models = Shadows(member, np.zeros(6), Signals(odds, None))
    for i, separation in enumerate(membership.separation(models)):
        auc = roc.auc(odds[member[:, i], i, 0], odds[~member[:, i], i, 0]).value
        assert separation == pytest.approx(auc, abs=1e-12)


def test_rates_use_thresholds_of_the_shadows_and_of_the_targets():
    rng, draw = np.random.default_rng(2), half_in.in_out.member
    models, shadows = (Shadows(draw(jax.random.key(k), 4, 900), 0, 0) for k in (0, 1))
    scores, others = (rng.normal(size=(4, 900)) + m.member for m in (models, shadows))
    result, arrays = membership_rates.rates(scores, models, others, shadows)
    point = result["operating"]["shadows"][0]
    cut = roc.threshold_at(others[~shadows.member], 0.01)
    assert point["threshold"] == cut
    inside = scores[models.member] > cut
    assert (point["tpr"]["k"], point["tpr"]["n"]) == (inside.sum(), 1800)
    assert point["fpr"]["value"] == (scores[~models.member] > cut).mean()
    assert result["operating"]["targets"][0]["threshold"] != cut
    assert result["operating"]["targets"][0]["fpr"]["value"] <= 0.01
    assert result["operating"]["shadows"][2] == "unavailable (1800)"
    guesses = scores > result["accuracy"][0]["threshold"]
    np.testing.assert_allclose(arrays["wrong"], (guesses != models.member).mean(0))
    np.testing.assert_allclose(result["success"], result["accuracy"][0]["value"])
    tpr = np.interp(0.5, arrays["fpr"], arrays["tpr"])
    assert tpr == pytest.approx(0.8413, abs=0.05)  # Phi(0 + 1)


def rated(gain):
    """Rate eight models by each record's ease, and a gain for members."""
    member, rng = half_in.in_out.member(worlds.KEY, 8, 600), np.random.default_rng(3)
    scores = np.tile(rng.normal(size=600), (8, 1)) + gain * member
    models, nobody = (Shadows(m, None, None) for m in (member, member[:0]))
    result, arrays = membership_rates.rates(scores, models, scores[:0], nobody)
    return result, arrays, scores[member], scores[~member]


def test_the_roc_that_is_kept_has_the_best_threshold_at_each_rate():
    """The eight scores of a record tie: a threshold accuses all of them, or none."""
    _, arrays, inside, outside = rated(0)
    curve = roc.roc(inside, outside)
    best = [curve.tpr[curve.fpr <= rate].max() for rate in membership_rates.CURVE]
    np.testing.assert_array_equal(arrays["tpr"], best)


def test_intervals_take_records_to_be_independent_and_not_their_scores():
    """Without a gain every record is among the members as often as not."""
    result = rated(0)[0]
    for auc in (result["auc"], result["controls"]["null"]):
        assert auc["value"] == pytest.approx(0.5)
        assert auc["high"] - auc["low"] < 1e-6


def test_strong_scores_tell_nothing_of_the_next_records():
    """The null control is one half within four standard errors, over eight models."""
    result = rated(3)[0]
    assert result["auc"]["value"] > 0.9
    null = result["controls"]["null"]
    assert abs(null["value"] - 0.5) < 4 * intervals.standard_error(**null)
    assert membership_rates.null_flags(result) == []


def test_without_calibration_models_the_auc_is_the_same_and_no_threshold_theirs():
    attack = attack_r(TASK)
    with_four, with_none = (
        worlds.play(made(calibration=n), attack, SGD(), table(), 1e-5).result.numbers
        for n in (4, 0)
    )
    assert with_none["auc"] == with_four["auc"]
    assert set(with_four["operating"]) == {"shadows", "targets"}
    assert set(with_none["operating"]) == {"targets"}
    assert [a["chosen_on"] for a in with_none["accuracy"]] == ["targets"]


def test_more_than_the_accounting_allows_is_flagged():
    """Scores of no, a 0.9-GDP and a 3-GDP mechanism against a bound of 1-GDP."""
    member = half_in.in_out.member(jax.random.key(0), 2, 4000)
    models = Shadows(member, None, None)
    fpr = membership_rates.CURVE
    most = np.stack([fpr, rdp.GaussianPrivacy(1.0).tpr(fpr)])
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, *member.shape))
    for gain, names in ((0.0, []), (0.9, []), (3.0, ["tpr-above-bound"])):
        scores = noise + gain * member
        result, _ = membership_rates.rates(scores[0], models, scores[1], models)
        flags = membership_rates.above_bound(result, most)
        assert [flag.name for flag in flags] == names


@pytest.mark.parametrize(
    ("hits", "is_above"), [(150, False), (190, False), (260, True)]
)
def test_rates_above_the_bound_by_chance_raise_no_flag(hits, is_above):
    """At 10 of 1,000 the limit is .09, and .17 at the upper end .026 of the FPR.

    The lower ends of the TPR are .12, .15 and .22: the limits of both rates count.
    """
    fpr = membership_rates.CURVE
    most = np.stack([fpr, rdp.GaussianPrivacy(1.0).tpr(fpr)])
    point = {"tpr": {"k": hits, "n": 1000}, "fpr": {"k": 10, "n": 1000}}
    flags = membership_rates.above_bound({"operating": {"shadows": [point]}}, most)
    assert bool(flags) == is_above


def test_losses_in_the_place_of_scores_are_flagged():
    """They are low for members: the attack is a strong one turned round."""
    learner = SGD(learning_rate=1.0, steps=300)
    for sign, names in ((1, []), (-1, ["wrong-sign"])):
        attack = worlds.spy(
            "membership", lambda seen, sign=sign: sign * seen.signals.candidates[:, 0],
            ["signals"],
        ).attack  # fmt: skip
        played = worlds.play(made(), attack, learner, table(n=40))
        assert [flag.name for flag in played.result.flags] == names
        assert sign * (played.numbers["auc"]["value"] - 0.5) > 0.2


def test_a_sign_is_wrong_beyond_chance_alone():
    assert not membership_rates.wrong_sign(0.49, 0.005, 4000)  # 2 standard errors
    assert membership_rates.wrong_sign(0.49, 0.0025, 4000)
    # two-sided: 3.29 standard errors
    assert not membership_rates.wrong_sign(0.49, 0.01 / 3.2, 4000)
    assert membership_rates.wrong_sign(0.49, 0.01 / 3.4, 4000)
    assert not membership_rates.wrong_sign(0.1, 0.0, 4)


@pytest.mark.parametrize(
    ("settings", "runs", "message"),
    [
        ({}, 3, "runs=3"),
        ({"shadows": 5}, 4, "membership.shadows=5"),
        ({"calibration": 1}, 4, "membership.calibration=1"),
    ],
)
def test_odd_numbers_of_models_are_refused_before_training(settings, runs, message):
    game = membership.membership(membership=Membership(**settings))
    with pytest.raises(UserError, match=message):
        game.fits(SGD(), table(runs))


def test_defenses_that_cannot_be_played_are_refused_before_training():
    """One that predicts nothing; one that cannot leave slots empty, but in pairs."""
    with pytest.raises(UserError, match="releases no model"):
        made().fits(worlds.learner(TASK, "noisy_sum"), table())
    task = networks.binary_linear(SHAPE, 2)
    fit = worlds.learner(task, "output_perturbed_glm", noise_stddev=0.1)
    pairs = made(membership.membership_replace_one)
    with pytest.raises(UserError, match="membership_replace_one"):
        made().fits(fit, table(task=task))
    pairs.fits(fit, table(task=task))
    with pytest.raises(UserError, match="even number of candidates"):
        pairs.fits(fit, table(task=task, n=19))


def test_attacks_of_other_games_are_skipped_with_a_reason():
    lira = ThreatModel("membership", frozenset({"signals"}), frozenset({"shadows"}))
    sgd, other = SGD().defense, canary(canaries=Canaries())
    assert mismatch(lira, sgd, made()) is None
    assert mismatch(lira, sgd, other) == "this game cannot grant shadows, signals"


SMALL = [
    "scenario=mia_mnist5k", "data=digits", "runs=4", "membership.shadows=4",
    "membership.calibration=4", "membership.queries=2", "task.settings.hidden=8",
    "sets.digits.splits.fixed=200", "sets.digits.splits.test=100",
    "defenses=[sgd,dpsgd]", "sets.digits.training.steps=12", "defense.dpsgd.steps=6",
    "lanes.tile=8",
    "attacks=[coin,loss_threshold,attack_r,lira]", "attack={}",
    "training.sampling=full", "sets.digits.training.batch_size=null",
    "defense.dpsgd.batch_size=null",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("membership") / "out"
    assert main(["run", *SMALL, f"out={out}"]) == 0
    return out


def test_a_whole_audit(folder):
    card = cards.load(folder)
    assert {t.status for t in card.trials} == {"ok"}
    assert len(card.trials) == 8
    names = {f.name for f in folder.iterdir()}
    assert {"roc.png", "separation_vs_dfil.png", "scorecard.md"} <= names
    assert card.scenario["membership"] == {
        "shadows": 4, "calibration": 4, "queries": 2,
    }  # fmt: skip
    assert card.floor.mse == 0.5
    dpsgd = card.defenses["dpsgd"]
    assert dpsgd["membership"]["adjacency"] == "add_remove"
    assert dpsgd["membership"]["against_dfil"]["low"] < 1
    assert (card.arrays["dpsgd/dfil"] > 0).all()
    assert dpsgd.bounds == []
    fpr, most = card.arrays["dpsgd/anatomy/tpr_bound"]
    assert (most >= fpr).all()
    for t in card.trials:
        key = f"{t.defense}/{t.attack}"
        assert f"{key}/scores" not in card.arrays
        wrong = card.arrays[f"{key}/wrong"]
        np.testing.assert_allclose(t.result.success, 1 - wrong.mean())
        assert ("over_loss_threshold" in t.result) == (t.use != "loss_threshold")
        if t.use == "coin":
            assert t.result["auc"]["value"] == 0.5
    text = (folder / "scorecard.md").read_text()
    assert "AUC ± 95%" in text
    assert "Membership, record by record" in text
    # of two models with a record and two without, all pairs in order: one in six
    assert "| nothing leaks | .500 | .500 | 1.000 | 1.000 | - | - |" in text


@pytest.mark.slow
def test_shadow_models_come_from_the_store(folder):
    """The same command again: nothing is trained, the numbers are the same."""

    def state():
        card = json.loads((folder / "scorecard.json").read_text())
        shards = sorted((folder / "store").rglob("tile-*.npz"))
        return [t["result"]["auc"] for t in card["trials"]], [
            (p.parent.name, p.name, p.stat().st_mtime_ns) for p in shards
        ]

    before = state()
    # of both defenses, targets, shadows, and runs that are accounted for
    assert len({sweep for sweep, *_ in before[1]}) == 2 * 3
    assert main(["run", *SMALL, f"out={folder}"]) == 0
    assert state() == before


@pytest.mark.slow
def test_the_replace_one_game(tmp_path):
    words = ["game=membership_replace_one", "defenses=[dpsgd]", "attacks=[lira]"]
    words += ["sets.digits.training.steps=4"]
    assert main(["run", *SMALL, *words, f"out={tmp_path / 'out'}"]) == 0
    dpsgd = cards.load(tmp_path / "out").defenses["dpsgd"]
    assert dpsgd["membership"]["adjacency"] == "replace_one"
    assert dpsgd.epsilon.replace_one.tight > dpsgd.epsilon.add_remove.tight


@pytest.mark.parametrize(
    "word",
    ["runs=3", "membership.shadows=7", "membership.queries=10", "membership.shadow=8"],
)
def test_what_is_typed_wrong_is_named(word, capsys, tmp_path):
    message = refused(capsys, "run", *SMALL, word, f"out={tmp_path / 'out'}")
    assert word.removesuffix("=8") in message


@pytest.mark.slow
def test_lira_beats_the_loss_on_an_overfitted_network(tmp_path):
    """The lower 95% limit of the paired AUC difference is above zero."""
    words = ["scenario=mia_mnist5k", "data=digits", "runs=8", "membership.shadows=64"]
    words += ["membership.calibration=4", "defenses=[sgd]", "attack={}"]
    words += ["attacks=[loss_threshold,lira,rmia]", f"out={tmp_path / 'out'}"]
    assert main(["run", *words]) == 0
    for t in cards.load(tmp_path / "out").trials:
        if t.use != "loss_threshold":
            assert t.result["over_loss_threshold"]["low"] > 0, t.use
