"""The referee: grants exactly what is declared, never edits, never leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.engine import cores
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


WORDS = dict.fromkeys(("fixed", "init", "public", "train"), ("knows", "granted"))
WORDS |= dict.fromkeys(("params", "target"), ("sees", "shown"))
WORDS["label"] = ("knows", "shown")


@pytest.mark.parametrize("word", WORDS)
def test_each_word_fills_its_field(sgd, word):
    declared, filled = WORDS[word]
    spy, played = play(sgd, **{declared: [word]})
    more = {"shadow_key", "noiseless"} if word == "train" else set()
    assert getattr(spy, filled)() == {word} | more
    assert played.numbers["fit"] == {"fitted": True}


def test_words_no_game_can_grant_are_errors(sgd):
    for model in (
        ThreatModel("reconstruction", frozenset({"noise_key"})),
        ThreatModel("reconstruction", knows=frozenset({"membership"})),
    ):
        with pytest.raises(ValueError, match="threat model says"):
            base.mismatch(model, sgd.defense, GAME)


def test_what_does_not_apply_is_skipped_with_a_reason(sgd):
    sums = ThreatModel("reconstruction", assumes=frozenset({"sum", "linear"}))
    assert base.mismatch(sums, sgd.defense, GAME) == "the defense is not sum"
    goal = "its goal is theft, the game is about reconstruction"
    for words in ((), {"params"}):
        theft = ThreatModel("theft", frozenset(words))
        assert base.mismatch(theft, sgd.defense, GAME) == goal


@pytest.mark.parametrize("few", [15, 4])
def test_guesses_are_scored_as_they_are(monkeypatch, few):
    """Target i, run j gets the guess made from release i * runs + j, `few` a time."""
    monkeypatch.setattr("audit.games.reconstruction.FEW", few)
    guess = lambda shown: jnp.full(SHAPE, 100 * shown.params["head"]["bias"][0])
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


def test_a_threat_model_is_said_in_words():
    blind = ThreatModel("reconstruction")
    says = base.sentence(blind, reconstruction())
    assert says == "sees nothing; has a pool of similar records"
    informed = ThreatModel(
        "reconstruction", frozenset({"params"}), frozenset({"label", "fixed"})
    )
    assert base.sentence(informed, reconstruction()) == (
        "sees the released parameters; has a pool of similar records; knows all other "
        "records, the target's label"
    )


def test_on_how_many_cores_guesses_are_made_changes_no_bit(monkeypatch):
    x = jax.random.normal(jax.random.key(0), (7, 5, 5))
    seen = []

    def on(number, program):
        arguments = lambda rows: (seen.append(len(rows)) or x[rows],)
        monkeypatch.setattr(cores, "threads", lambda: number)
        return base.guesses(jax.jit(jax.vmap(program, (None, 0))), (2.0,), arguments, 7)

    def two_factors(a, m):
        return jnp.linalg.qr(jnp.stack([a * m, m]))[0].sum(0)

    for program in (lambda a, m: jnp.linalg.qr(a * m)[0], two_factors):
        one = on(1, program)
        np.testing.assert_array_equal(on(3, program), one)
        np.testing.assert_allclose(one, jax.vmap(program, (None, 0))(2.0, x), atol=1e-6)
    # the first rows are those that the program is looked at with; two programs that
    # factor several matrices must not run at once
    assert seen == 8 * [1] + [1, 3, 3, 3] + 16 * [1]


def test_guesses_at_a_large_model_are_made_two_at_a_time():
    model = jax.random.normal(jax.random.key(1), (base.LARGE // 64, 64))
    x = np.asarray(jax.random.normal(jax.random.key(0), (5, 64)))  # as records are
    seen = []

    def arguments(rows):
        seen.append(len(rows))
        return (x[rows],)

    program = jax.jit(jax.vmap(lambda m, z: jnp.tanh(m @ z), (None, 0)))
    for shared, n, many in ((model, 5, 2), (model[:-1], 5, 1), (model, 1, 1)):
        seen.clear()
        guesses = base.guesses(program, (shared,), arguments, n)
        np.testing.assert_allclose(guesses, jnp.tanh(x[:n] @ shared.T), atol=1e-5)
        assert seen[0] == many
