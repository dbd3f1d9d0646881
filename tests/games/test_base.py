"""The referee: grants exactly what is declared, never edits, never leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.engine import shadow
from audit.games import base
from audit.models import networks
from audit.types import Attack, Lanes, Splits, ThreatModel
from defenses.sgd import sgd
from tests.conftest import public, records

SHAPE = (4, 4, 1)
TASK = networks.binary_linear(SHAPE, 2)
SETTINGS = {
    "learning_rate": 0.5, "optimizer": "sgd", "steps": 2, "sampling": "full",
    "batch_size": None, "weight_decay": 0.0,
}  # fmt: skip
ENGINE = shadow.Engine(Lanes(8))


@pytest.fixture(scope="module")
def splits():
    parts = [records(n, SHAPE, 2, seed=i) for i, n in enumerate((3, 12, 5, 20, 6))]
    return Splits(*parts, pool_source=np.arange(20))


@pytest.fixture(scope="module")
def learner(splits):
    key = jax.random.key(0)
    return shadow.learner(sgd, TASK, SETTINGS, key=key, public=public(TASK))


def play(splits, learner, attack, runs=2):
    key = jax.random.key(1)
    releases = base.play_targets(key, learner, splits, runs, ENGINE)
    game = base.reconstruction_game(
        key, attack, learner, releases, splits, runs, ENGINE
    )
    return releases, game


def spy(sees=(), knows=()):
    """An attack that guesses zeros and keeps what it was shown."""
    shown = {}

    def fit(key, knowledge):
        shown["knowledge"] = knowledge
        return jnp.zeros(()), {"fitted": True}

    def guess(state, key, seen):
        shown["seen"] = seen
        return jnp.zeros(SHAPE)

    threat_model = ThreatModel("reconstruction", frozenset(sees), frozenset(knows))
    return Attack(threat_model, fit, guess), shown


def test_an_attack_that_declares_nothing_gets_the_pool_and_nothing_else(
    splits, learner
):
    attack, shown = spy()
    _, game = play(splits, learner, attack)
    knowledge, seen = shown["knowledge"], shown["seen"]
    assert knowledge.pool is splits.pool
    granted = knowledge._replace(task=None, pool=None, pool_source=None)
    assert set(granted) == set(seen) == {None}
    assert game.guesses.shape == (5, 2, *SHAPE)
    assert game.info == {"fitted": True}


@pytest.mark.parametrize("word", ["fixed", "init", "public", "train"])
def test_each_word_grants_its_field(splits, learner, word):
    attack, shown = spy(knows=[word])
    play(splits, learner, attack)
    granted = shown["knowledge"]
    fields = {
        f
        for f in ("fixed", "init", "public", "train", "objective", "attribute")
        if getattr(granted, f) is not None
    }
    assert fields == {word}


@pytest.mark.parametrize(
    ("kind", "word"), [("sees", "params"), ("knows", "label"), ("sees", "target")]
)
def test_each_word_shows_its_field(splits, learner, kind, word):
    attack, shown = spy(**{kind: [word]})
    play(splits, learner, attack)
    fields = {f for f, v in shown["seen"]._asdict().items() if v is not None}
    assert fields == {word}


def test_words_no_game_can_grant_are_errors(learner):
    for model in (
        ThreatModel("reconstruction", frozenset({"noise_key"})),
        ThreatModel("reconstruction", knows=frozenset({"membership"})),
        ThreatModel("theft"),
    ):
        with pytest.raises(ValueError, match="threat model says"):
            base.mismatch(model, learner.defense)


def test_assumptions_skip_with_a_reason(learner):
    model = ThreatModel("reconstruction", assumes=frozenset({"sum", "linear"}))
    assert base.mismatch(model, learner.defense) == "the defense is not sum"


def test_guesses_are_scored_as_they_are(splits, learner):
    """Target i, run j gets the guess made from release i * runs + j."""

    def guess(state, key, seen):
        return jnp.full(SHAPE, 100.0) + seen.params["head"]["bias"][0]

    model = ThreatModel("reconstruction", frozenset({"params"}))
    attack = Attack(model, lambda key, k: (jnp.zeros(()), {}), guess)
    releases, game = play(splits, learner, attack, runs=3)
    bias = releases.params["head"]["bias"][:, 0].reshape(5, 3)
    np.testing.assert_allclose(game.guesses[:, :, 0, 0, 0], 100 + bias, rtol=1e-6)


def test_the_attackers_copy_is_the_defense_with_other_noise(splits, learner):
    """Same records, another key: for sgd, which has no noise, the same models."""
    attack, shown = spy(knows=["train"])
    releases, _ = play(splits, learner, attack, runs=1)
    from audit.types import TrainingSet

    data = TrainingSet(splits.fixed, splits.targets)
    own = shown["knowledge"].train(jax.random.key(77), data)
    for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(releases), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_word_has_a_sentence():
    everything = ThreatModel(
        "reconstruction", frozenset(base.SEES), frozenset(base.KNOWS)
    )
    assert "never its noise" in base.sentence(everything)
    assert base.sentence(ThreatModel("reconstruction")).startswith("sees nothing")
