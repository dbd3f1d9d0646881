"""Ways to weaken an attack on purpose, as a slip in its code would.

Either a change of the attack (Attack -> Attack), or a patch of what attacks share
(MonkeyPatch -> None).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit.config import registry
from audit.mechanisms import gradient_search
from audit.mechanisms.glm import stationarity
from audit.types import Attack, Examples


def module_of(attack):
    """Return the module of an attack as it is played: by its file, not by name."""
    return sys.modules[registry.find("attack", attack).__module__]


def weakened(knows=None, state=None, sees=None, guess=None) -> Callable:
    """Change the attacker's knowledge, its fitted state, its observation or its guess.

    Args:
      knows: Knowledge -> Knowledge, before the release.
      state: changes what `fit` returns.
      sees: Observation -> Observation.
      guess: changes the guess.
    """
    knows, state, sees, guess = (
        f or (lambda unchanged: unchanged) for f in (knows, state, sees, guess)
    )

    def change(attack: Attack) -> Attack:
        def fit(key: Any, knowledge: Any) -> tuple:
            fitted, info = attack.fit(key, knows(knowledge))
            return state(fitted), info

        def guesses(fitted: Any, key: Any, observation: Any) -> Any:
            return guess(attack.guess(fitted, key, sees(observation)))

        return attack._replace(fit=fit, guess=guesses)

    return change


def knowing(alter: Callable) -> Callable:
    return weakened(knows=alter)


def fitted(alter: Callable) -> Callable:
    return weakened(state=alter)


def seeing(alter: Callable) -> Callable:
    return weakened(sees=alter)


def saying(alter: Callable) -> Callable:
    return weakened(guess=alter)


def some_pool(share: float) -> Callable:
    def alter(knowledge: Any) -> Any:
        rows = np.arange(int(len(knowledge.pool.y) * share))
        pool = Examples(knowledge.pool.x[rows], knowledge.pool.y[rows])
        source = np.asarray(knowledge.pool_source)[rows]
        return knowledge._replace(pool=pool, pool_source=source)

    return knowing(alter)


LABEL_DROPPED = seeing(lambda o: o._replace(label=jnp.zeros_like(o.label)))
LABEL_FLIPPED = seeing(lambda o: o._replace(label=1 - o.label))
ONE_BIT = saying(jnp.sign)  # right or wrong, and no more


def stale(state: Any) -> Any:
    """Standardise as some other releases would have it: a deviation off."""
    off = jnp.where(state.scaler.inverse > 0, 1 / state.scaler.inverse, 0)
    scaler = state.scaler._replace(mean=state.scaler.mean + off)
    return state._replace(scaler=scaler)


def one_forgotten(knowledge: Any) -> Any:
    return knowledge._replace(fixed=jax.tree.map(lambda a: a[1:], knowledge.fixed))


def no_ridge(observation: Any) -> Any:
    """Leave the regulariser's part, n lambda w, out of the sum that must cancel."""
    return observation._replace(rest=observation.rest - 300 * 1e-2 * observation.params)


def quarter_of_weights(observation: Any) -> Any:
    kept = len(observation.params) // 4
    return observation._replace(
        refits=observation.refits[:, :kept], params=observation.params[:kept]
    )


def uniform_prior(state: Any) -> Any:
    *rest, counts = state.args
    return type(state)(state.func, *rest, jnp.zeros_like(counts))


def some_population(kept: int) -> Callable:
    """Leave so many records in the population; the others have a loss of 0."""

    def alter(observation: Any) -> Any:
        population = observation.signals.population.at[kept:].set(jnp.inf)
        return observation._replace(
            signals=observation.signals._replace(population=population)
        )

    return seeing(alter)


def right_or_wrong(observation: Any) -> Any:
    """Keep of every candidate's log-odds whether the model is right."""
    candidates = jnp.sign(observation.signals.candidates)
    return observation._replace(
        signals=observation.signals._replace(candidates=candidates)
    )


def other_attack(factory: Callable, name: str) -> Callable:
    """Put another attack's method behind the name."""
    plain = lambda task, **settings: factory(task)
    return lambda monkeypatch: monkeypatch.setattr(module_of(name), name, plain)


def longer_root(monkeypatch: Any) -> None:
    """Always take the root of the record that is fitted better."""
    both = stationarity.slope_roots
    one = lambda *given: (both(*given)[0],) * 2
    monkeypatch.setattr(stationarity, "slope_roots", one)


def few_halvings(number: int) -> Callable:
    return lambda m: m.setattr(module_of("sum_inversion"), "HALVINGS", number)


def wrong_smoothness(sign: float) -> Callable:
    def patch(monkeypatch: Any) -> None:
        real = gradient_search.total_variation
        monkeypatch.setattr(
            gradient_search, "total_variation", lambda z: sign * real(z)
        )

    return patch


def wrong_label(monkeypatch: Any) -> None:
    """Read the label off the largest entry of the last bias, not the smallest."""
    largest = lambda update: jnp.argmax(update["head"]["bias"])
    monkeypatch.setattr(gradient_search, "label_of", largest)


def one_unit(monkeypatch: Any) -> None:
    """Read the image off the first hidden unit alone."""
    real = gradient_search.first_layer

    def alone(update: Any) -> tuple:
        kernel, bias = real(update)
        if isinstance(bias, jax.ShapeDtypeStruct):  # asked whether there is one
            return kernel, bias
        return kernel[:, :1], bias[:1]

    monkeypatch.setattr(gradient_search, "first_layer", alone)


def flat_prior(state: Any) -> Any:
    wide = state.prior._replace(deviations=100 * state.prior.deviations)
    return state._replace(prior=wide)
