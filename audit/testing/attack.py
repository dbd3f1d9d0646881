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
from audit.testing import shown
from audit.testing.laws import OF_FACTORIES, Law, broken, close, same_bits, settings_of
from audit.types import Attack, Knowledge, Observation, Task

# what games that need settings are made with
GAME_SETTINGS: dict[str, dict[str, Any]] = {
    "attribute": {"attribute": "any"},
    "canary": {"canaries": {"count": 1}},
    "one_run": {"canaries": {"count": 4}},
}


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
        self.task = task
        self.key = jax.random.key(11)

    @functools.cached_property
    def attack(self) -> Attack:
        """The attack; its task is the one of what it is shown."""
        return self.factory(self.shown.task, **self.settings)

    @functools.cached_property
    def shown(self) -> shown.Shown:
        """Everything the games could show, declared or not."""
        return shown.make(
            lambda task: self.factory(task, **self.settings).threat_model, self.task
        )

    @property
    def declared(self) -> tuple[Knowledge, Observation]:
        """What it declared; all else is None."""
        return shown.granted(self.attack.threat_model, self.shown)

    def play(
        self, knowledge: Knowledge, observation: Observation
    ) -> tuple[Any, Any, Any]:
        """Return state, diagnostics and the guesses at all observations."""
        fit_key, guess_key = jax.random.split(self.key)
        state, info = self.attack.fit(fit_key, knowledge)
        return state, info, self.guess(state, guess_key, observation)

    def guess(self, state: Any, key: Any, observation: Observation) -> np.ndarray:
        """Guess at all observations at once, as games do."""
        keys = jax.random.split(key, self.shown.many)
        with jax.enable_x64(self.shown.exact):
            guesses = jax.jit(jax.vmap(self.attack.guess, (None, 0, 0)))
            return np.asarray(guesses(state, keys, observation))

    @functools.cached_property
    def played(self) -> tuple[Any, Any, Any]:
        """State, diagnostics and guesses from what it declared."""
        return self.play(*self.declared)


def threat_model_words_are_known(case: AttackCase) -> str | None:
    """Goal, `sees`, `knows` are words a game can grant, `assumes` a defense has."""
    model = case.attack.threat_model
    missing = sorted(model.assumes - case.shown.defense.traits)
    if missing:
        broken(f"the defense is not {', not '.join(missing)}")
    for game in _games().values():
        base.mismatch(model, case.shown.defense, game)  # refuses words nobody grants
    return None


@functools.cache
def _games() -> dict[str, base.Game]:
    """Return every game of the suite; settings do not change what a game grants."""
    games = {}
    for name in registry.own_names("game"):
        settings = registry.check("game", name, GAME_SETTINGS.get(name, {}), "")
        games[name] = registry.find("game", name)(**settings)
    return games


def some_game_can_be_played(case: AttackCase) -> str | None:
    """At least one game grants everything it declares."""
    model, defense = case.attack.threat_model, case.shown.defense
    reasons = {n: base.mismatch(model, defense, g) for n, g in _games().items()}
    if all(reasons.values()):
        broken("; ".join(f"{n}: {why}" for n, why in reasons.items()))
    return None


def what_it_declares_is_enough(case: AttackCase) -> str | None:
    """It fits and guesses where every field it did not declare is None."""
    _ = case.played
    return None


def what_it_did_not_declare_is_not_read(case: AttackCase) -> str | None:
    """With every field there is, its guesses are the same to the bit."""
    everything = case.play(case.shown.knowledge, case.shown.observations)
    what = "shown everything, and what it declared"
    same_bits(everything[2], case.played[2], what)
    return None


def the_target_stays_hidden(case: AttackCase) -> str | None:
    """Only an oracle, which says so, is shown the answer; nobody gets a noise key."""
    if base.is_oracle(case.attack.threat_model) and not case.oracle:
        broken("it declares that it sees the target: say oracle=True")
    return None


def same_key_same_bits(case: AttackCase) -> str | None:
    """Fit and guess again with the same keys: the bits are the same."""
    same_bits(case.play(*case.declared)[2], case.played[2], "played twice")
    return None


def fitting_changes_nothing_it_was_given(case: AttackCase) -> str | None:
    """The pool and the known records are as they were."""
    knowledge, _ = case.declared
    data = {f: getattr(knowledge, f) for f in ("pool", "pool_source", "fixed")}
    before = jax.tree.map(np.array, data)
    case.attack.fit(case.key, knowledge)
    same_bits(data, before, "what it was given, after fitting")
    return None


def the_state_is_a_tree_of_arrays(case: AttackCase) -> str | None:
    """What `fit` returns can go through jit."""
    for leaf in jax.tree.leaves(case.played[0]):
        if not isinstance(leaf, (np.ndarray, np.generic, jax.Array, int, float)):
            broken(f"it holds a {type(leaf).__name__}")
    return None


def the_diagnostics_are_plain(case: AttackCase) -> str | None:
    """What `fit` says of itself is a dict that JSON can hold."""
    info = case.played[1]
    if not isinstance(info, dict):
        broken(f"a {type(info).__name__}, no dict")
    json.dumps(info, default=lambda a: np.asarray(a).tolist())
    return None


def guesses_have_their_shape(case: AttackCase) -> str | None:
    """A record's shape; or one score per value, record or run, as the game asks."""
    wanted = (case.shown.many, *case.shown.shape)
    if case.played[2].shape != wanted:
        broken(f"{case.played[2].shape}, not {wanted}")
    return None


def guesses_are_finite(case: AttackCase) -> str | None:
    """No guess is nan or infinite."""
    if not np.isfinite(case.played[2]).all():
        broken("some are not")
    return None


def guesses_stay_in_the_domain(case: AttackCase) -> str | None:
    """A guessed record lies where records lie, unless it says that it need not."""
    low, high = case.shown.task.domain
    if case.attack.threat_model.goal in ("membership", "attribute"):
        return "it guesses scores"
    if case.leaves_domain:
        return "said not to (leaves_domain=True)"
    guesses = case.played[2]
    if guesses.min() < low - 1e-6 or guesses.max() > high + 1e-6:
        broken(f"from {guesses.min():.4g} to {guesses.max():.4g}, not [{low}, {high}]")
    return None


def guesses_are_made_one_by_one(case: AttackCase) -> str | None:
    """Under vmap each guess is what it would be alone."""
    state, _, guesses = case.played
    observation, key = case.declared[1], jax.random.split(case.key)[1]
    first = jax.tree.map(lambda a: jnp.asarray(a)[0], observation)
    with jax.enable_x64(case.shown.exact):
        keys = jax.random.split(key, case.shown.many)
        alone = jax.jit(case.attack.guess)(state, keys[0], first)
    close(alone, guesses[0], "alone and among others", 1e-3)
    return None


LAWS: tuple[Law, ...] = (
    *OF_FACTORIES,
    threat_model_words_are_known,
    some_game_can_be_played,
    what_it_declares_is_enough,
    what_it_did_not_declare_is_not_read,
    the_target_stays_hidden,
    same_key_same_bits,
    fitting_changes_nothing_it_was_given,
    the_state_is_a_tree_of_arrays,
    the_diagnostics_are_plain,
    guesses_have_their_shape,
    guesses_are_finite,
    guesses_stay_in_the_domain,
    guesses_are_made_one_by_one,
)
