"""The laws every attack obeys: what it declares is all it needs and all it uses."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit.config import registry
from audit.games import base
from audit.testing import fixtures
from audit.testing.laws import broken, close, does_not_apply, same_bits, settings_of
from audit.types import Attack, Knowledge, Observation, Task

# what games that need settings are made with
GAME_SETTINGS: dict[str, dict[str, Any]] = {
    "attribute": {"attribute": "any"},
    "canary": {"canaries": {"count": 1}},
    "one_run": {"canaries": {"count": 4}},
    "identification": {"candidates": {"priors": [3]}},
}


# goals whose guesses are scores, not records
SCORES = ("membership", "attribute", "identification")


class AttackCase:
    """One attack with its settings, and what games would show it; made once."""

    def __init__(
        self,
        factory: Callable,
        task: Task | None,
        given: dict[str, Any],
        oracle: bool,
        leaves_domain: bool,
    ):
        self.factory, self.oracle, self.leaves_domain = factory, oracle, leaves_domain
        self.settings = registry.validate(settings_of(factory), given, factory.__name__)
        self.task, self.key = task, jax.random.key(11)

    @functools.cached_property
    def attack(self) -> Attack:
        """The attack; its task is the one of what it is shown."""
        return self.factory(self.shown.task, **self.settings)

    @functools.cached_property
    def shown(self) -> fixtures.Shown:
        """Everything the games could show, declared or not."""
        model = lambda task: self.factory(task, **self.settings).threat_model
        return fixtures.shown(model, self.task)

    @property
    def declared(self) -> tuple[Knowledge, Observation]:
        """What it declared; all else is None."""
        return fixtures.granted(self.attack.threat_model, self.shown)

    def play(
        self, knowledge: Knowledge, observation: Observation
    ) -> tuple[Any, Any, Any]:
        """Return state, diagnostics and the guesses at all observations."""
        fit_key, guess_key = jax.random.split(self.key)
        state, info = self.attack.fit(fit_key, knowledge)
        keys = jax.random.split(guess_key, self.shown.many)
        with jax.enable_x64(self.shown.exact):
            guess = jax.jit(jax.vmap(self.attack.guess, (None, 0, 0)))
            return state, info, np.asarray(guess(state, keys, observation))

    def reasons(self) -> dict[str, str | None]:
        """Return game -> why the attack cannot play it; None = it can."""
        model, defense = self.attack.threat_model, self.shown.defense
        return {n: base.mismatch(model, defense, g) for n, g in _games().items()}

    @functools.cached_property
    def played(self) -> tuple[Any, Any, Any]:
        """State, diagnostics and guesses from what it declared."""
        return self.play(*self.declared)


def threat_model_words_are_known(case: AttackCase) -> None:
    """Goal, `sees`, `knows` are words a game can grant, `assumes` a defense has."""
    missing = sorted(case.attack.threat_model.assumes - case.shown.defense.traits)
    if missing:
        broken(f"the defense is not {', not '.join(missing)}")
    case.reasons()  # refuses words nobody grants


@functools.cache
def _games() -> dict[str, base.Game]:
    """Return every game of the suite; settings do not change what a game grants."""
    games = {}
    for name in registry.built_in("game"):
        settings = registry.check("game", name, GAME_SETTINGS.get(name, {}), "")
        games[name] = registry.find("game", name)(**settings)
    return games


def some_game_can_be_played(case: AttackCase) -> None:
    """At least one game grants everything it declares."""
    reasons = case.reasons()
    if all(reasons.values()):
        broken("; ".join(f"{n}: {why}" for n, why in reasons.items()))


def what_it_declares_is_enough(case: AttackCase) -> None:
    """It fits and guesses where every field it did not declare is None."""
    _ = case.played


def what_it_did_not_declare_is_not_read(case: AttackCase) -> None:
    """With every field there is, its guesses are the same to the bit."""
    _, _, guesses = case.play(case.shown.knowledge, case.shown.observations)
    same_bits(guesses, case.played[2], "shown everything, and what it declared")


def the_target_stays_hidden(case: AttackCase) -> None:
    """Only an oracle, which says so, is shown the answer; nobody gets a noise key."""
    if base.is_oracle(case.attack.threat_model) and not case.oracle:
        broken("it declares that it sees the target: say oracle=True")


def same_key_same_bits(case: AttackCase) -> None:
    """Fit and guess again with the same keys: the bits are the same."""
    same_bits(case.play(*case.declared)[2], case.played[2], "played twice")


def fitting_changes_nothing_it_was_given(case: AttackCase) -> None:
    """The pool and the known records are as they were."""
    knowledge, _ = case.declared
    data = {f: getattr(knowledge, f) for f in ("pool", "pool_source", "fixed")}
    before = jax.tree.map(np.array, data)
    case.attack.fit(case.key, knowledge)
    same_bits(data, before, "what it was given, after fitting")


def the_state_is_a_tree_of_arrays(case: AttackCase) -> None:
    """What `fit` returns can go through jit."""
    for leaf in jax.tree.leaves(case.played[0]):
        if not isinstance(leaf, (np.ndarray, np.generic, jax.Array, int, float)):
            broken(f"it holds a {type(leaf).__name__}")


def the_diagnostics_are_plain(case: AttackCase) -> None:
    """What `fit` says of itself is a dict that JSON can hold."""
    info = case.played[1]
    if not isinstance(info, dict):
        broken(f"a {type(info).__name__}, no dict")
    json.dumps(info, default=lambda a: np.asarray(a).tolist())


def guesses_have_their_shape(case: AttackCase) -> None:
    """A record's shape; or one score per value, record or run, as the game asks."""
    wanted = (case.shown.many, *case.shown.shape)
    if case.played[2].shape != wanted:
        broken(f"{case.played[2].shape}, not {wanted}")


def guesses_are_finite(case: AttackCase) -> None:
    """No guess is nan or infinite."""
    if not np.isfinite(case.played[2]).all():
        broken("some are not")


def guesses_stay_in_the_domain(case: AttackCase) -> None:
    """A guessed record lies where records lie, unless it says that it need not."""
    low, high = case.shown.task.domain
    if case.attack.threat_model.goal in SCORES:
        does_not_apply("it guesses scores")
    if case.leaves_domain:
        does_not_apply("said not to (leaves_domain=True)")
    guesses = case.played[2]
    if guesses.min() < low - 1e-6 or guesses.max() > high + 1e-6:
        broken(f"from {guesses.min():.4g} to {guesses.max():.4g}, not [{low}, {high}]")


def guesses_are_made_one_by_one(case: AttackCase) -> None:
    """Under vmap each guess is what it would be alone."""
    state, _, guesses = case.played
    observation, key = case.declared[1], jax.random.split(case.key)[1]
    first = jax.tree.map(lambda a: jnp.asarray(a)[0], observation)
    with jax.enable_x64(case.shown.exact):
        keys = jax.random.split(key, case.shown.many)
        alone = jax.jit(case.attack.guess)(state, keys[0], first)
    close(alone, guesses[0], "alone and among others", 1e-3)
