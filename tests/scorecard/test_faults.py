"""Faults committed on purpose in real runs: each raises its flag.

The faults of this file were written before the thresholds of
`audit/scorecard/flags.py`.
"""

import inspect
from pathlib import Path

import numpy as np
import pytest

from audit import data, pipeline
from audit.config import plugins, registry
from audit.engine import shadow
from audit.engine import store as stores
from audit.engine.signals import Shadows
from audit.games import membership_rates, reconstruction
from audit.statistics import intervals
from audit.types import Examples, Lanes
from tests import faulty
from tests.commands import composed

SPLITS = "{public: 10, fixed: 40, pool: 60, targets: 14, test: 30, order: shuffled}"
SUM = ["scenario=calibration", "data=digits", "runs=2", f"sets.digits.splits={SPLITS}"]
SGD = [
    "scenario=binary_mnist", "data=digits", "runs=2", "accounting_runs=1",
    f"sets.digits.splits={SPLITS}", "training={steps: 12, learning_rate: 0.1}",
]  # fmt: skip
QUICK = {
    "half_noise": "wrong-noise",
    "unclipped": "unclipped",
    "one_key": "shared-noise",
    "shuffled_as_poisson": "accountant-disagrees",
}
OTHERS = {
    "accounted_elsewhere": "accountant-disagrees",
    "unclipped_in_the_sum": "unclipped",
    "same_noise_every_step": "shared-noise",
}


@pytest.fixture(autouse=True, scope="module")
def faulty_plug_ins():
    """Let the line-up name what `tests/faulty.py` holds."""
    here = {n: f for n, f in vars(faulty).items() if inspect.getmodule(f) is faulty}
    names, place = registry.names, registry.place
    file = Path(faulty.__file__)
    there = plugins.Place(file, registry.SUITE, (file,), faulty.__name__)
    patches = {
        "names": lambda kind: [*names(kind), *here],
        "place": lambda kind, name: there if name in here else place(kind, name),
    }
    with pytest.MonkeyPatch.context() as patch:
        for word, function in patches.items():
            patch.setattr(registry, word, function)
        patch.setattr(pipeline, "_lpips_weights", lambda: "no fault shows in LPIPS")
        yield


def audit(*words, store=None):
    scenario, _ = composed(*words)
    return pipeline.audit(scenario, shadow.Engine(Lanes(16), store=store))


def raised(card, defense=None, attack=None):
    """Return {name: level} of the flags of a card's rows."""
    rows = [
        t
        for t in card.trials
        if defense in (None, t.defense) and attack in (None, t.attack)
    ]
    assert rows
    assert all(t.status == "ok" for t in rows), [t.reason for t in rows]
    return {f.name: f.level for t in rows for f in t.flags}


def of_defenses(control, faults):
    """Run defenses with a fault each beside one without."""
    words = [f"defenses=[{control},{','.join(faults)}]", "attacks=[class_mean]"]
    settings = "defense.dpsgd={clip_norm: 1.0, noise_multiplier: 1.0}"
    return audit(*SGD, *words, settings)


@pytest.fixture(scope="module")
def quick():
    return of_defenses("dpsgd", QUICK)


@pytest.mark.parametrize("defense", QUICK)
def test_a_defense_that_does_not_do_what_it_accounts_for(quick, defense):
    assert raised(quick, defense)[QUICK[defense]] == "error"


def test_the_same_run_says_nothing_of_a_defense_without_a_fault(quick):
    flags = raised(quick, "dpsgd")
    assert flags.pop("not-attacked") == "error"  # the floor alone, for speed
    assert set(flags.values()) == {"note"}
    assert "below-bound-biased" in flags  # a biased attacker, an unbiased bound


@pytest.mark.slow
def test_more_defenses_that_do_not_do_what_they_account_for():
    card = of_defenses("sgd", OTHERS)
    for defense, flag in OTHERS.items():
        assert raised(card, defense)[flag] == "error", defense


def test_an_attacker_who_knows_the_seed_shares_the_noise():
    words = ["defenses=[dpsgd]", "attacks=[class_mean,knows_the_seed]"]
    card = audit(*SGD, *words)
    assert raised(card, attack="knows_the_seed")["shared-noise"] == "error"
    assert "shared-noise" not in raised(card, attack="class_mean")


def test_a_training_that_ends_in_no_number_is_said_to():
    words = ["defenses=[sgd,diverges]", "attacks=[class_mean]"]
    card = audit(*SGD, *words)
    assert raised(card, "diverges")["diverged"] == "error"
    assert "diverged" not in raised(card, "sgd")


def some_in_the_pool(cut):
    both = (np.concatenate([a, b[:4]]) for a, b in zip(cut.pool, cut.targets))  # noqa: B905
    source = np.arange(len(cut.pool.y) + 4)
    return cut._replace(pool=Examples(*both), pool_source=source)


def one_of_each_class(cut):
    x, y = cut.targets
    first = [int(np.argmax(y == label)) for label in y]
    return cut._replace(targets=Examples(x[first], y))


@pytest.mark.parametrize(
    ("change", "attack", "flag"),
    [
        (some_in_the_pool, None, "target-in-pool"),
        (one_of_each_class, "sum_inversion", "null-beats-floor"),
    ],
)
def test_targets_that_are_split_wrongly(change, attack, flag, monkeypatch):
    whole = data.split
    monkeypatch.setattr(data, "split", lambda *a, **given: change(whole(*a, **given)))
    assert raised(audit(*SUM), attack=attack)[flag] == "error"


def test_shuffled_targets(monkeypatch):
    whole = reconstruction.release

    def release(key, learner, table):
        runs = whole(key, learner, table)
        shifted = np.roll(runs.releases.params, table.runs, 0)
        return runs._replace(releases=runs.releases._replace(params=shifted))

    monkeypatch.setattr(reconstruction, "release", release)
    flags = raised(audit(*SUM), attack="sum_inversion")
    assert flags["shuffled-targets"] == "error"


def test_a_stale_cache(tmp_path):
    store = stores.open_store(tmp_path)
    words = [*SUM, "attacks=[sum_inversion]"]
    assert "stale-cache" not in raised(audit(*words, store=store))
    mine = next(p.parent for p in tmp_path.rglob("tile-*.npz"))
    audit(*words, "defense.noisy_sum.noise_stddev=2.0", store=store)
    other = next(p for p in tmp_path.rglob("tile-*.npz") if p.parent != mine).parent
    flags = raised(audit(*words, store=store))
    assert "stale-cache" not in flags  # two runs side by side are no fault
    for file in other.glob("tile-*.npz"):  # a key that leaves something out
        stores.put(store, mine.name, file.stem, dict(np.load(file)))
    assert raised(audit(*words, store=store))["stale-cache"] == "error"


def test_an_under_trained_reconstructor_and_a_dead_one():
    """No defense, an attack cut short, and one that learns nothing."""
    words = [
        "defenses=[sgd]",
        "attacks=[{short: {use: reconstructor}}, {dead: {use: reconstructor}}]",
        "attack.short={epochs: 2}",
        "attack.dead={epochs: 2, learning_rate: 1.0e-9}",
    ]
    card = audit(*SGD, *words)
    assert raised(card, attack="short")["attack-undertrained"] == "warning"
    assert raised(card, attack="dead")["attack-dead"] == "error"


def test_settings_picked_on_the_scored_targets():
    twice = "[class_mean, {a: {use: sum_inversion}}, {b: {use: sum_inversion}}]"
    words = [f"attacks={twice}", "attack.a.clip_norm=20.0", "attack.b.clip_norm=19.0"]
    card = audit(*SUM, *words)
    for label in "ab":
        assert raised(card, attack=label)["picked-on-targets"] == "warning"
    assert "picked-on-targets" not in raised(card, attack="class_mean")


@pytest.mark.parametrize(
    ("words", "attack", "levels"),
    [
        (
            ["chosen.noisy_sum={by: us, cost: 3 runs, tuned_on: targets}"],
            None,
            {"picked-on-targets": "warning"},
        ),
        (
            ["runs=1"],
            "sum_inversion",
            dict.fromkeys(("few-runs", "data-stand-in", "no-control"), "note"),
        ),
        (["attacks=[nan_guess]"], None, {"non-finite": "error"}),
        (["task.label_private=true"], "class_mean", {"label-leaked": "error"}),
        (
            ["defenses=[half_sum]", "runs=10"],
            None,
            dict.fromkeys(("wrong-noise", "below-bound-unexplained"), "error"),
        ),
    ],
)
def test_what_the_words_of_a_run_say(words, attack, levels):
    flags = raised(audit(*SUM, *words), attack=attack)
    assert levels.items() <= flags.items()


def test_scores_that_no_model_moves_are_no_leak():
    """Their AUC is .5 but for rounding, and so is its standard error 0."""
    rng = np.random.default_rng(1)
    half = np.arange(4)[:, None] < 2
    for _ in range(50):
        bits = rng.permuted(np.broadcast_to(half, (4, 34)), axis=0)
        models = Shadows(bits, np.zeros(34, int), None)
        scores = np.broadcast_to(rng.normal(size=34), bits.shape)
        result, _ = membership_rates.rates(scores, models, scores, models)
        assert membership_rates.null_flags(result) == []


def test_standard_errors_of_few_records_flag_nothing():
    """Null scores of four records, whose standard error is sometimes 0."""
    rng = np.random.default_rng(0)
    half = np.arange(2)[:, None] < 1
    beyond = 0
    for _ in range(200):
        bits = rng.permuted(np.broadcast_to(half, (2, 4)), axis=0)
        models = Shadows(bits, np.zeros(4, int), None)
        scores = rng.normal(size=bits.shape)
        result, _ = membership_rates.rates(scores, models, scores, models)
        null = result["controls"]["null"]
        gap, error = abs(null["value"] - 0.5), intervals.standard_error(**null)
        beyond += gap > membership_rates.NULL * error
        assert membership_rates.null_flags(result) == []
    assert beyond


def test_memberships_that_depend_on_each_other():
    """All candidates share one coin: one record's bit says another's."""
    rng = np.random.default_rng(0)
    member = np.repeat(rng.permutation(np.arange(40) % 2 == 0)[:, None], 50, 1)
    coins = rng.permuted(np.repeat(np.arange(40) % 2 == 0, 50).reshape(40, 50), axis=0)
    for bits, expected in ((member, True), (coins, False)):
        scores = bits + rng.normal(size=bits.shape)
        models = Shadows(bits, np.zeros(50, int), None)
        result, _ = membership_rates.rates(scores, models, scores, models)
        names = {f.name for f in membership_rates.null_flags(result)}
        assert names == ({"null-leak"} if expected else set())
