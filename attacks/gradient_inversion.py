"""Search for the image behind one visible gradient (Zhu 2019, Geiping 2020)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanisms import UserError
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
    """What the attacker brings to a gradient."""

    prior: inv.Prior
    likelihood: Any  # (params, example, update) -> log density; None = not asked for


def gradient_inversion(
    task: Task,
    *,
    preset: Literal["dlg", "idlg", "iga", "analytic", "map"] = "iga",
    steps: Count = 4800,
    restarts: Count = 1,
    learning_rate: Positive = 0.1,
    smoothness: NonNegative = 1e-4,
) -> Attack:
    """Find the image whose gradient is most like the one that is seen.

    Args:
      task: whose loss is differentiated.
      preset: `dlg` matches squares by L-BFGS, image and label together (Zhu et al.
        2019); `idlg` reads the label off the last layer first (Zhao et al. 2020).
        `iga` maximises the cosine plus smoothness by signed Adam in the box of images,
        the label known (Geiping et al. 2020); for a visible von Mises-Fisher draw the
        cosine is the likelihood. `analytic` reads the image off a dense first layer.
        `map` maximises the posterior: the mechanism's own density, and a Gaussian
        prior within the class from the pool.
      steps: iterations of a search.
      restarts: random starts, the best by its objective is kept.
      learning_rate: of Adam, in normalised units.
      smoothness: weight of the total variation in `iga`.

    Raises:
      UserError: where `analytic` has no dense first layer to read.
    """
    if preset == "analytic":
        _check_first_layer(task)
    knows = {"iga": {"label"}, "analytic": {"label"}, "map": {"label", "mechanism"}}
    threat_model = ThreatModel(
        "inversion",
        sees=frozenset({"params", "update"}),
        knows=frozenset(knows.get(preset, set())),
        assumes=frozenset({"noisy"} if preset == "map" else set()),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        del key
        told = {"preset": preset, "steps": steps, "restarts": restarts}
        return Fitted(inv.learn(knowledge, task), knowledge.likelihood), told

    def dlg(held: Fitted, key: Array, seen: Observation) -> Array:
        prior = held.prior
        known = None
        if preset == "idlg":
            known = jax.nn.one_hot(inv.label_of(seen.update), task.classes)

        def objective(at: tuple[Array, Array]) -> Array:
            label = jax.nn.softmax(at[1]) if known is None else known
            x = inv.pixels(prior, at[0])
            own = inv.soft_gradient(task, seen.params, x, label)
            return inv.square_distance(own, seen.update)

        def search(key: Array) -> Any:
            image, label = jax.random.split(key)
            start = (
                jax.random.normal(image, task.features),
                jax.random.normal(label, (task.classes,)),
            )
            return inv.lbfgs(objective, start, steps)

        return inv.pixels(prior, inv.best_of(search, key, restarts)[0])

    def iga(held: Fitted, key: Array, seen: Observation) -> Array:
        prior, box = held.prior, inv.box(held.prior, task.domain)

        def objective(z: Array) -> Array:
            z_own = Examples(inv.pixels(prior, z), seen.label)
            own = jax.grad(task.loss)(seen.params, z_own)
            rough = smoothness * inv.total_variation(z)
            return inv.cosine_distance(own, seen.update) + rough

        def search(key: Array) -> Any:
            start = jnp.clip(jax.random.normal(key, task.features), *box)
            return inv.signed_adam(objective, start, steps, learning_rate, box)

        return inv.pixels(prior, inv.best_of(search, key, restarts))

    def analytic(held: Fitted, key: Array, seen: Observation) -> Array:
        del key
        prior = held.prior
        spread = jnp.sqrt((prior.deviations**2).sum() / prior.centres[0].size)
        mean = prior.centres[seen.label]
        return inv.from_first_layer(seen.update, mean, spread)

    def posterior(held: Fitted, key: Array, seen: Observation) -> Array:
        """Search along the prior's principal directions, in its standard deviations."""
        prior = held.prior

        def image(c: Array) -> Array:
            move = jnp.tensordot(c * prior.deviations, prior.components, 1)
            return prior.centres[seen.label] + move

        def objective(c: Array) -> Array:
            z = Examples(image(c), seen.label)
            return -held.likelihood(seen.params, z, seen.update) + (c**2).sum() / 2

        def search(key: Array) -> Any:
            start = 0.1 * jax.random.normal(key, prior.deviations.shape)
            return inv.plain_adam(objective, start, steps, learning_rate)

        return image(inv.best_of(search, key, restarts))

    named = {"dlg": dlg, "idlg": dlg, "iga": iga, "analytic": analytic}
    search = named.get(preset, posterior)

    def guess(held: Fitted, key: Array, seen: Observation) -> Array:
        found = search(held, key, seen)
        return jnp.clip(jnp.nan_to_num(found, nan=0.5), *task.domain)

    return Attack(threat_model, fit, guess)


def _check_first_layer(task: Task) -> None:
    shapes: Any = jax.eval_shape(task.init, jax.random.key(0))
    try:
        inv.first_layer(shapes)
    except ValueError as error:
        raise UserError(f"preset=analytic: {error} in {task.name}") from None
