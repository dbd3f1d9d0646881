"""Search for the image behind one visible gradient (Zhu 2019, Geiping 2020)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanisms import UserError, masked
from audit.mechanisms import gradient_search as inv
from audit.types import (
    Attack,
    Count,
    Examples,
    Knowledge,
    NonNegative,
    Observation,
    Positive,
    Task,
    ThreatModel,
)


class Fitted(NamedTuple):
    """What the attacker learns before the release."""

    prior: inv.Prior
    likelihood: Any  # (params, example, update) -> log density; None = not granted
    variance: Any  # of an entry of the update; None = not granted
    mask: Any  # like the parameters, 0/1: those that updates are of; None = all


def gradient_inversion(
    task: Task,
    *,
    preset: Literal["dlg", "idlg", "iga", "analytic", "map"] = "iga",
    steps: Count = 4800,
    restarts: Count = 1,
    learning_rate: Positive = 0.1,
    smoothness: NonNegative = 1e-4,
) -> Attack:
    """Find the image whose gradient is most like the released update.

    Args:
      task: whose loss is differentiated.
      preset: `dlg` matches squares by L-BFGS, image and label together (Zhu et al.
        2019); `idlg` reads the label off the last layer first (Zhao et al. 2020).
        `iga` maximises the cosine plus smoothness by signed Adam in the box of images,
        the label known (Geiping et al. 2020); for a visible von Mises-Fisher draw the
        cosine is the likelihood. `analytic` reads the image off a dense first layer,
        and knows the noise's variance where that has a single unit. `map` maximises the
        posterior: the mechanism's own density, and a Gaussian prior within the class
        from the pool.
      steps: iterations of a search.
      restarts: random starts, the best by its objective is kept.
      learning_rate: of Adam, in normalised units.
      smoothness: weight of the total variation in `iga`.

    Raises:
      UserError: where `analytic` has no dense first layer to read.
    """
    knows = {"iga": {"label"}, "map": {"label", "mechanism"}}
    if preset == "analytic":
        # one unit leaves nothing unexplained that would tell the noise
        single = _units(task) == 1
        knows["analytic"] = {"label", "mechanism"} if single else {"label"}
    threat_model = ThreatModel(
        "inversion",
        sees=frozenset({"params", "update"}),
        knows=frozenset(knows.get(preset, set())),
        assumes=frozenset({"noisy"} if preset == "map" else set()),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        del key
        settings = {"preset": preset, "steps": steps, "restarts": restarts}
        prior = inv.learn(knowledge, task)
        granted = knowledge.likelihood, knowledge.variance, knowledge.mask
        return Fitted(prior, *granted), settings

    def dlg(fitted: Fitted, key: Array, observation: Observation) -> Array:
        prior = fitted.prior
        read_off = None
        if preset == "idlg":
            read_off = jax.nn.one_hot(inv.label_of(observation.update), task.classes)

        def objective(at: tuple[Array, Array]) -> Array:
            label = jax.nn.softmax(at[1]) if read_off is None else read_off
            x = inv.pixels(prior, at[0])
            slope = inv.soft_gradient(task, observation.params, x, label)
            return inv.square_distance(masked(fitted.mask, slope), observation.update)

        def search(key: Array) -> Any:
            image, label = jax.random.split(key)
            start = (
                jax.random.normal(image, task.features),
                jax.random.normal(label, (task.classes,)),
            )
            return inv.lbfgs(objective, start, steps)

        return inv.pixels(prior, inv.best_of(search, key, restarts)[0])

    def iga(fitted: Fitted, key: Array, observation: Observation) -> Array:
        prior, box = fitted.prior, inv.box(fitted.prior, task.domain)
        params, direction = observation.params, inv.direction_of(observation.update)
        cosine = inv.cosine(task, fitted.mask)

        def objective(z: Array) -> Array:
            example = Examples(inv.pixels(prior, z), observation.label)
            rough = smoothness * inv.total_variation(z)
            return 1 - cosine(params, example, direction) + rough

        def search(key: Array) -> Any:
            start = jnp.clip(jax.random.normal(key, task.features), *box)
            return inv.signed_adam(objective, start, steps, learning_rate, box)

        return inv.pixels(prior, inv.best_of(search, key, restarts))

    def analytic(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        prior = fitted.prior
        spread = jnp.sqrt((prior.deviations**2).sum() / prior.centres[0].size)
        mean = prior.centres[observation.label]
        return inv.from_first_layer(
            observation.update, mean, spread, fitted.mask, fitted.variance
        )

    def posterior(fitted: Fitted, key: Array, observation: Observation) -> Array:
        """Search along the prior's principal directions, in its standard deviations."""
        prior = fitted.prior

        def image(c: Array) -> Array:
            move = jnp.tensordot(c * prior.deviations, prior.components, 1)
            return prior.centres[observation.label] + move

        def objective(c: Array) -> Array:
            z = Examples(image(c), observation.label)
            density = fitted.likelihood(observation.params, z, observation.update)
            return -density + (c**2).sum() / 2

        def search(key: Array) -> Any:
            start = 0.1 * jax.random.normal(key, prior.deviations.shape)
            return inv.plain_adam(objective, start, steps, learning_rate)

        return image(inv.best_of(search, key, restarts))

    named = {"dlg": dlg, "idlg": dlg, "iga": iga, "analytic": analytic}
    search = named.get(preset, posterior)

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        image = search(fitted, key, observation)
        return jnp.clip(jnp.nan_to_num(image, nan=0.5), *task.domain)

    return Attack(threat_model, fit, guess)


def _units(task: Task) -> int:
    """Return how many units the first layer has; UserError if it is not dense."""
    shapes: Any = jax.eval_shape(task.init, jax.random.key(0))
    try:
        return len(inv.first_layer(shapes)[1])
    except ValueError as error:
        raise UserError(f"preset=analytic: {error} in {task.name}") from None
