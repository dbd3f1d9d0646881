"""Membership games: who knows what, how rates are counted, and a small audit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit import data
from audit.__main__ import main
from audit.accounting import rdp
from audit.config.schema import Membership
from audit.engine import shadow, signals
from audit.engine.signals import Shadows, Signals
from audit.errors import UserError
from audit.games import membership, membership_designs, membership_rates
from audit.games.base import Problem, Table, mismatch
from audit.games.guarantees import Guarantees
from audit.models import networks
from audit.scorecard import card as scorecard
from audit.statistics import roc
from audit.types import (
    Attack,
    Lanes,
    Release,
    Splits,
    ThreatModel,
)
from defenses.noisy_sum import noisy_sum
from defenses.output_perturbed_glm import output_perturbed_glm
from defenses.sgd import sgd
from tests.conftest import public, records

SHAPE, N = (3, 2, 1), 20
TASK = networks.mlp(SHAPE, 3, hidden=4)
SETTINGS = {
    "learning_rate": 0.5, "optimizer": "sgd", "steps": 3, "sampling": "full",
    "batch_size": None, "weight_decay": 0.0,
}  # fmt: skip
NOTHING = Guarantees(None, None, (), None)
ENGINE = shadow.Engine(Lanes(8))


def learner(factory=sgd, task=TASK, **settings):
    given = SETTINGS if factory is sgd and not settings else settings
    key = jax.random.key(0)
    return shadow.learner(
        factory, task, given, key=key, public=public(task), label="it"
    )


def table(runs=4, task=TASK, n=N, **asked):
    none = records(0, SHAPE, 3)
    pool = records(9, SHAPE, 3, seed=1)
    splits = Splits(none, records(n, SHAPE, 3), none, pool, pool, np.arange(9))
    dataset = data.Dataset("test", splits.fixed.x, splits.fixed.y, None, None, "", "")
    asked = Membership(**{"shadows": 6, "calibration": 4, **asked})
    return Table(Problem(task, splits, dataset), ENGINE, runs, "none", asked)


@pytest.fixture(scope="module")
def played():
    of, at = learner(), table()
    runs = membership.IN_OUT.release(jax.random.key(3), of, at)
    return of, at._replace(made=runs), runs


def spy(sees=(), knows=()):
    shown = {}

    def fit(key, knowledge):
        shown["knowledge"] = knowledge
        return jnp.zeros(()), {}

    def guess(state, key, seen):
        shown["seen"] = seen
        return jnp.zeros(N)

    model = ThreatModel("membership", frozenset(sees), frozenset(knows))
    return Attack(model, fit, guess), shown


def play(attack, of, at, runs):
    game = membership.IN_OUT
    return game.play(jax.random.key(7), attack, of, runs.releases, NOTHING, at)


def test_an_attack_that_declares_nothing_is_shown_nothing(played):
    of, at, runs = played
    attack, shown = spy()
    play(attack, of, at, runs)
    assert {f for f, v in shown["seen"]._asdict().items() if v is not None} == set()
    assert shown["knowledge"].shadows is None


def test_each_word_is_granted_and_memberships_of_targets_never_are(played):
    of, at, runs = played
    attack, shown = spy(["signals"], ["label", "shadows"])
    play(attack, of, at, runs)
    seen, held = shown["seen"], shown["knowledge"].shadows
    assert {f for f, v in seen._asdict().items() if v is not None} == {
        "label", "signals",
    }  # fmt: skip
    assert seen.signals.candidates.shape == (N, 1)
    assert seen.signals.population.shape == (9, 1)
    np.testing.assert_array_equal(held.member, runs.looked.references.member)
    assert held.member.shape == (6, N)
    assert (held.member.sum(0) == 3).all()
    secret = runs.looked.targets.member
    assert secret.shape == (4, N)
    assert not np.array_equal(secret, held.member[:4])


def test_signals_are_float16_rows_of_the_releases_log_odds(played):
    of, at, runs = played
    seen = runs.looked.targets.signals.candidates
    assert seen.dtype == np.float16
    assert seen.shape == (4, N, 1)
    z = at.problem.splits.fixed
    for i in range(4):
        one = Release(jax.tree.map(lambda a, i=i: a[i], runs.releases.params))
        logits = of.defense.predict(of.side, one, z.x)
        want = signals.log_odds(logits, z.y)
        np.testing.assert_allclose(seen[i, :, 0], want, rtol=2e-3, atol=1e-3)


def test_chunks_of_records_do_not_change_signals(monkeypatch):
    of, z = learner(), records(11, SHAPE, 3)
    release = Release(of.side.params)

    def ask():
        return signals.of_release(of.defense, of.side, release, z, z, np.zeros(3))

    whole = ask()
    monkeypatch.setattr(signals, "CHUNK", 4)
    for a, b in zip(ask(), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-3)


def test_images_move_by_whole_pixels():
    x = np.arange(1, 13, dtype=np.float32).reshape(1, 3, 4, 1)
    for down, right in signals.SHIFTS:
        want = np.zeros_like(x)
        for i in range(3):
            for j in range(4):
                if 0 <= i - down < 3 and 0 <= j - right < 4:
                    want[0, i, j] = x[0, i - down, j - right]
        np.testing.assert_array_equal(signals.moved(x, (down, right)), want)
    assert signals.SHIFTS[0] == (0, 0)
    assert len(set(signals.SHIFTS)) == 9


def test_a_records_models_are_split_by_membership():
    rng = np.random.default_rng(0)
    member = membership_designs.in_out.member(jax.random.key(0), 6, 5)
    signal = rng.normal(size=(6, 5, 2)).astype(np.float16)
    inside, outside = signals.by_group(member, signal)
    for i in range(5):
        for q in range(2):
            np.testing.assert_array_equal(inside[i, q], signal[member[:, i], i, q])
            np.testing.assert_array_equal(outside[i, q], signal[~member[:, i], i, q])


def test_separation_is_every_records_own_auc():
    rng = np.random.default_rng(1)
    member = membership_designs.in_out.member(jax.random.key(1), 8, 6)
    odds = rng.integers(0, 4, (8, 6, 1)).astype(np.float16)  # with ties
    held = Shadows(member, np.zeros(6), Signals(odds, None))
    for i, found in enumerate(membership.separation(held)):
        inside, outside = odds[member[:, i], i, 0], odds[~member[:, i], i, 0]
        want = roc.auc(inside, outside).value
        assert found == pytest.approx(want, abs=1e-12)


def test_rates_use_thresholds_of_the_shadows_and_of_the_targets():
    rng = np.random.default_rng(2)
    sets = []
    for key in (0, 1):
        member = membership_designs.in_out.member(jax.random.key(key), 4, 900)
        scores = rng.normal(size=member.shape) + member
        sets.append((scores, Shadows(member, None, None)))
    (scores, of), (others, shadows) = sets
    result, arrays = membership_rates.rates(scores, of, others, shadows)
    point = result["operating"]["shadows"][0]
    cut = roc.threshold_at(others[~shadows.member], 0.01)
    assert point["threshold"] == cut
    inside = scores[of.member] > cut
    assert (point["tpr"]["k"], point["tpr"]["n"]) == (inside.sum(), 1800)
    assert point["fpr"]["value"] == (scores[~of.member] > cut).mean()
    assert result["operating"]["targets"][0]["threshold"] != cut
    assert result["operating"]["targets"][0]["fpr"]["value"] <= 0.01
    assert result["operating"]["shadows"][2] == "unavailable (1800)"
    told = scores > result["accuracy"][0]["threshold"]
    np.testing.assert_allclose(arrays["wrong"], (told != of.member).mean(0))
    np.testing.assert_allclose(result["success"], result["accuracy"][0]["value"])
    tpr = np.interp(0.5, arrays["fpr"], arrays["tpr"])
    assert tpr == pytest.approx(0.8413, abs=0.05)  # Phi(0 + 1)


def test_more_than_the_accounting_allows_is_flagged():
    """Scores of no, a 0.9-GDP and a 3-GDP mechanism against a bound of 1-GDP."""
    member = membership_designs.in_out.member(jax.random.key(0), 2, 4000)
    of = Shadows(member, None, None)
    fpr = membership_rates.CURVE
    most = np.stack([fpr, rdp.GaussianPrivacy(1.0).tpr(fpr)])
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, *member.shape))
    for gain, names in ((0.0, []), (0.9, []), (3.0, ["tpr-above-bound"])):
        scores = noise + gain * member
        result, _ = membership_rates.rates(scores[0], of, scores[1], of)
        found = membership_rates.above_bound(result, most)
        assert [f["name"] for f in found] == names


@pytest.mark.parametrize(
    ("of", "asked", "said"),
    [
        ({}, {"runs": 3}, "runs=3"),
        ({}, {"shadows": 5}, "membership.shadows=5"),
        ({}, {"calibration": 1}, "membership.calibration=1"),
        ({"factory": noisy_sum, "clip_norm": 1.0, "noise_stddev": 1.0}, {},
         "releases no model"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_before_training(of, asked, said):
    with pytest.raises(UserError, match=said):
        membership.IN_OUT.fits(learner(**of), table(**asked))


def test_a_defense_that_cannot_leave_slots_empty_plays_replace_one_only():
    task = networks.linear(SHAPE, 2)
    settings = {
        "noise_stddev": 0.1, "loss": "logistic", "regularization": 0.1,
        "intercept": False, "task": networks.binary_linear(SHAPE, 2),
    }  # fmt: skip
    task = settings.pop("task")
    of, at = learner(output_perturbed_glm, task, **settings), table(task=task)
    with pytest.raises(UserError, match="membership_replace_one"):
        membership.IN_OUT.fits(of, at)
    membership.REPLACE_ONE.fits(of, at)
    with pytest.raises(UserError, match="even number of candidates"):
        membership.REPLACE_ONE.fits(of, table(task=task, n=19))


def test_attacks_of_other_games_are_skipped_with_a_reason():
    lira = ThreatModel("membership", frozenset({"signals"}), frozenset({"shadows"}))
    of = learner().defense
    assert mismatch(lira, of, membership.IN_OUT) is None
    from audit.games.canary import CANARY

    assert mismatch(lira, of, CANARY) == "this game cannot grant shadows, signals"


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
    card = scorecard.load(folder)
    assert {t["status"] for t in card.trials} == {"ok"}
    assert len(card.trials) == 8
    names = {f.name for f in folder.iterdir()}
    assert {"roc.png", "separation_vs_dfil.png", "scorecard.md"} <= names
    assert card.scenario["membership"] == {
        "shadows": 4, "calibration": 4, "queries": 2,
    }  # fmt: skip
    assert card.floor["mse"] == 0.5
    own = card.defenses["dpsgd"]
    assert own["membership"]["adjacency"] == "add_remove"
    assert own["membership"]["against_dfil"]["low"] < 1
    assert (card.arrays["dpsgd/dfil"] > 0).all()
    assert own["bounds"] == []
    fpr, most = card.arrays["dpsgd/anatomy/tpr_bound"]
    assert (most >= fpr).all()
    for t in card.trials:
        key = f"{t['defense']}/{t['attack']}"
        assert f"{key}/scores" not in card.arrays
        wrong = card.arrays[f"{key}/wrong"]
        np.testing.assert_allclose(t["result"]["success"], 1 - wrong.mean())
        assert ("over_loss_threshold" in t["result"]) == (t["use"] != "loss_threshold")
        if t["use"] == "coin":
            assert t["result"]["auc"]["value"] == 0.5
    text = (folder / "scorecard.md").read_text()
    assert "AUC ± 95%" in text
    assert "Membership, record by record" in text


@pytest.mark.slow
def test_shadow_models_come_from_the_store(folder):
    """The same command again: nothing is trained, the numbers are the same."""

    def state():
        card = json.loads((folder / "scorecard.json").read_text())
        shards = sorted((folder / "store").rglob("*.npz"))
        return [t["result"]["auc"] for t in card["trials"]], [
            (p.name, p.stat().st_mtime_ns) for p in shards
        ]

    before = state()
    assert len(before[1]) == 2 * 2 + 2  # targets and shadows; two accounted runs
    assert main(["run", *SMALL, f"out={folder}"]) == 0
    assert state() == before


@pytest.mark.slow
def test_the_replace_one_game(tmp_path):
    words = ["game=membership_replace_one", "defenses=[dpsgd]", "attacks=[lira]"]
    words += ["sets.digits.training.steps=4"]
    assert main(["run", *SMALL, *words, f"out={tmp_path / 'out'}"]) == 0
    card = scorecard.load(tmp_path / "out")
    own = card.defenses["dpsgd"]
    assert own["membership"]["adjacency"] == "replace_one"
    assert (
        own["epsilon"]["replace_one"]["tight"] > own["epsilon"]["add_remove"]["tight"]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs=3"], "runs=3"),
        (["membership.shadows=7"], "membership.shadows=7"),
        (["membership.queries=10"], "membership.queries=10"),
        (["membership.shadow=8"], "membership.shadow"),
    ],
)
def test_what_is_typed_wrong_is_named(words, said, capsys, tmp_path):
    assert main(["run", *SMALL, *words, f"out={tmp_path / 'out'}"]) == 2
    assert said in capsys.readouterr().err


def test_settings_of_another_game_are_refused(capsys, tmp_path):
    words = ["scenario=binary_mnist", "data=digits", "++membership.shadows=8"]
    assert main(["run", *words, f"out={tmp_path / 'out'}"]) == 2
    assert "membership" in capsys.readouterr().err


@pytest.mark.slow
def test_lira_beats_the_loss_on_an_overfitted_network(tmp_path):
    """The lower 95% limit of the paired AUC difference is above zero."""
    words = ["scenario=mia_mnist5k", "data=digits", "runs=8", "membership.shadows=64"]
    words += ["membership.calibration=4", "defenses=[sgd]", "attack={}"]
    words += ["attacks=[loss_threshold,lira,rmia]", f"out={tmp_path / 'out'}"]
    assert main(["run", *words]) == 0
    for t in scorecard.load(tmp_path / "out").trials:
        if t["use"] != "loss_threshold":
            assert t["result"]["over_loss_threshold"]["low"] > 0, t["use"]
