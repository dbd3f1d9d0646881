"""The referee: grants exactly what is declared, never edits, never leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.games import base
from audit.games.reconstruction import reconstruction
from audit.models import networks
from audit.types import ThreatModel, TrainingSet
from tests.conftest import records
from tests.games import worlds

SHAPE, GAME = (4, 4, 1), reconstruction()
TASK = networks.binary_linear(SHAPE, 2)
FIXED, TARGETS, POOL = (records(n, SHAPE, 2, seed=n) for n in (12, 5, 20))
PROBLEM = worlds.problem(TASK, FIXED, POOL, targets=TARGETS)


@pytest.fixture(scope="module")
def sgd():
    return worlds.learner(TASK, "sgd", steps=2, learning_rate=0.5, optimizer="sgd")


def play(learner, guess=jnp.zeros(SHAPE), runs=1, sees=(), knows=()):  # noqa: B008
    spy = worlds.spy("reconstruction", guess, sees, knows)
    return spy, worlds.play(GAME, spy.attack, learner, worlds.table(PROBLEM, runs))


@pytest.mark.parametrize("word", ["fixed", "init", "public", "train"])
def test_each_word_grants_its_field(sgd, word):
    assert play(sgd, knows=[word])[0].granted() == {word}


@pytest.mark.parametrize(
    ("kind", "word"), [("sees", "params"), ("knows", "label"), ("sees", "target")]
)
def test_each_word_shows_its_field(sgd, kind, word):
    spy, played = play(sgd, **{kind: [word]})
    assert spy.shown() == {word}
    assert played.numbers["fit"] == {"fitted": True}


def test_words_no_game_can_grant_are_errors(sgd):
    for model in (
        ThreatModel("reconstruction", frozenset({"noise_key"})),
        ThreatModel("reconstruction", knows=frozenset({"membership"})),
    ):
        with pytest.raises(ValueError, match="threat model says"):
            base.mismatch(model, sgd.defense, GAME)


def test_what_does_not_apply_is_skipped_with_a_reason(sgd):
    goal = "its goal is theft, the game is about reconstruction"
    for model, reason in (
        (
            ThreatModel("reconstruction", assumes=frozenset({"sum", "linear"})),
            "the defense is not sum",
        ),
        (ThreatModel("theft"), goal),
        (ThreatModel("theft", frozenset({"params"})), goal),
    ):
        assert base.mismatch(model, sgd.defense, GAME) == reason


def test_guesses_are_scored_as_they_are():
    """Target i, run j gets the guess made from release i * runs + j."""

    def guess(observation):
        return jnp.full(SHAPE, 100 * observation.params["head"]["bias"][0])

    noised = worlds.learner(TASK, "dpsgd", steps=2)
    _, played = play(noised, guess, runs=3, sees=["params"])
    bias = 100 * played.runs.releases.params["head"]["bias"][:, 0].reshape(5, 3)
    assert np.abs(bias).max() > 1  # outside the domain, and scored all the same
    gaps = bias[:, :, None] - TARGETS.x.reshape(5, 1, -1)
    np.testing.assert_allclose(played.arrays["mse"], (gaps**2).mean((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(
        played.arrays["guess"][:, 0, 0, 0], bias[:, 0], rtol=1e-3
    )


def test_the_attackers_copy_is_the_defense_with_other_noise(sgd):
    """Same records, another key: for sgd, which has no noise, the same models."""
    spy, played = play(sgd, knows=["train"])
    shadows = spy.knowledge[0].train(jax.random.key(77), TrainingSet(FIXED, TARGETS))
    jax.tree.map(np.testing.assert_array_equal, shadows, played.runs.releases)


def test_every_word_has_a_sentence():
    everything = ThreatModel(
        "reconstruction", frozenset({"params"}), frozenset(GAME.grants)
    )
    assert "never its noise" in base.sentence(everything, GAME)
    nothing = base.sentence(ThreatModel("reconstruction"), GAME)
    assert nothing.startswith("sees nothing")
