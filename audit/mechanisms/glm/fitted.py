"""Builder of releases that are minimisers: a fitted linear model plus noise.

One solve, three readings. Training adds noise to it; the Fisher reading is its Jacobian
by the implicit function theorem (`information_loss`); the Renyi reading is how far it
can move when one record is replaced, 2 L / (n lambda), with L the largest gradient of
a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit.mechanisms.glm import information_loss, losses, solvability
from audit.mechanisms.glm.information_loss import Fitted
from audit.mechanisms.output_perturbation import output_perturbation
from audit.types import (
    Accepted,
    Defense,
    Examples,
    Minimiser,
    Noise,
    Objective,
    Release,
    Task,
    TrainingSet,
    Trait,
)


def fitted_glm(
    task: Task,
    noise: Noise,
    *,
    loss: Literal["linear", "logistic"],
    regularization: Any,
    intercept: bool,
    max_norm: float | None = None,
    reweigh: Callable | None = None,
) -> Defense:
    """Release argmin_w sum_i omega_i l(<w, x_i>, y_i) + (n lambda / 2) ||w||^2 + noise.

    The Defense has the traits `stationary`, `glm` and `exact` (it runs in float64). It
    has no Renyi reading for `linear`, whose slope is unbounded; with `reweigh`, whose
    weights depend on every record; and where records may have any length. With
    `reweigh` it has the trait `reweighted`: the Fisher reading, the published one,
    takes the weights for constants, and no bound is made of it.

    Args:
      task: shape of x, number of classes (0: y is a number), whether y is private.
      noise: what is added to w.
      loss: `linear` (squared error, classes coded -1 and 1) or `logistic`.
      regularization: lambda; the objective is a sum over records, hence n lambda.
      intercept: a constant feature, last, regularised like the others.
      max_norm: no record is longer, public; None = what the task's domain allows.
      reweigh: (weight -> eta, labels) -> Reweighted; None = all weights are one.

    Raises:
      ValueError: a task the loss cannot fit.
    """
    solvability.check_task(task, loss)
    fits = _Fits(task, losses.LOSSES[loss], regularization, intercept, reweigh)
    slope = fits.loss.steepest

    def moves(n: int) -> Any:
        longest, ridge = solvability.longest(task, max_norm, intercept), fits.ridge(n)
        return slope * longest / ridge if ridge else math.inf

    known_length = max_norm is not None or np.isfinite(task.domain).all()
    bounded = reweigh is None and np.isfinite(slope) and known_length
    noisy = noise.precision is not None
    traits: dict[Trait, bool] = {
        "stationary": True,
        "glm": True,
        "exact": True,
        "noiseless": not noisy,
        "reweighted": reweigh is not None,
    }
    built = output_perturbation(
        fits.solve,
        noise,
        norm_bound=moves if bounded else None,
        sensitivity=(lambda n: 2 * moves(n)) if bounded else None,
        predict=fits.predict,
        trace=lambda side, data, rows: information_loss.trace(fits.about(data, rows)),
        likelihood=reweigh is None,
        traits=frozenset(trait for trait, holds in traits.items() if holds),
    )
    limits = (task, fits.loss, regularization, intercept, max_norm)
    assert isinstance(built.mechanism, Minimiser)
    mechanism = built.mechanism._replace(
        objective=Objective(
            *(fits.gradient, fits.total, fits.ridge, lambda side, z: fits.weights(z)),
            *(fits.known, fits.refit, loss, intercept),
        ),
        fil=_information(fits, noise) if noisy else None,
        accepts=Accepted(
            lambda z, targets: solvability.check(z, targets, *limits), max_norm
        ),
        anatomy=_anatomy(fits, noise) if noisy else None,
    )
    return built._replace(mechanism=mechanism)


def _information(fits: _Fits, noise: Noise) -> Callable:
    """Return `Minimiser.fil`."""

    def fil(
        key: jax.Array, side: Any, data: TrainingSet, rows: Any, columns: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        del key, side
        at = fits.about(data, rows)
        if columns is None:
            norm = information_loss.example(at, label=fits.task.label_private)
        else:
            norm = information_loss.attribute(at, columns)
        return noise.precision * information_loss.trace(at), noise.precision * norm

    return fil


def _anatomy(fits: _Fits, noise: Noise) -> Callable:
    """Return `Minimiser.anatomy`: eta of the whole set, of each class, over time."""

    def anatomy(side: Any, data: TrainingSet) -> dict[str, jax.Array]:
        del side
        z, scale = _joined(data), jnp.sqrt(noise.precision)
        weight = jnp.ones(len(z.y), jnp.result_type(float))
        arrays = {}
        if fits.reweigh is not None:
            reweighted = fits.reweighted(z)
            weight = reweighted.weight
            arrays = {"eta_mean": reweighted.eta_mean, "eta_sd": reweighted.eta_sd}
        at = fits.fit(z, weight)
        members = [jnp.ones_like(weight), *(z.y == c for c in range(fits.task.classes))]
        groups = [at._replace(weight=at.weight * member) for member in members]
        label = fits.task.label_private
        squares = [information_loss.group(group, label=label) for group in groups]
        arrays["eta_of_groups"] = jnp.sqrt(jnp.stack(squares))
        return {name: scale * value for name, value in arrays.items()}

    return anatomy


class _Fits(NamedTuple):
    """Every way the suite fits one objective; the records come with the calls."""

    task: Task
    loss: losses.Loss
    regularization: Any
    intercept: bool
    reweigh: Callable | None

    def ridge(self, n: int) -> Any:
        """Return n lambda."""
        return n * self.regularization

    def predict(self, side: Any, release: Release, x: jax.Array) -> jax.Array:
        """Return logits [n, 2] of two classes, or [n, 1] numbers."""
        del side
        u = losses.design(x, self.intercept) @ release.params
        logits = [jnp.zeros_like(u), u]
        return jnp.stack(logits, -1) if self.task.classes else u[:, None]

    def records(self, z: Examples) -> tuple[jax.Array, jax.Array]:
        """Return the design [n, D] and the encoded labels [n]."""
        x, y = (jnp.asarray(a, jnp.result_type(float)) for a in z)
        labels = self.loss.encode(y) if self.task.classes else y
        return losses.design(x, self.intercept), labels

    def record(self, z: Examples) -> tuple[jax.Array, jax.Array]:
        """Return the same for one record: [D] and []."""
        x, y = self.records(jax.tree.map(lambda a: jnp.asarray(a)[None], z))
        return x[0], y[0]

    def fit(self, z: Examples, weight: jax.Array) -> Fitted:
        """Return the minimiser over z with the derivatives at its records."""
        x, y = self.records(z)
        ridge = self.ridge(len(y))
        w = losses.minimise(self.loss, x, y, weight, ridge)
        curved = losses.hessian(self.loss, x, y, weight, ridge, w)
        features = x.shape[1] - self.intercept
        return information_loss.fitted(self.loss, w, curved, x, y, weight, features)

    def reweighted(self, z: Examples) -> Any:
        """Return the weights of every iteration's end, and what eta was."""
        assert self.reweigh is not None

        def eta(weight: jax.Array) -> jax.Array:
            at = self.fit(z, weight)
            return jnp.sqrt(information_loss.example(at, label=self.task.label_private))

        return self.reweigh(eta, z.y)

    def weights(self, z: Examples) -> jax.Array:
        """Return the weight of every record [n]."""
        if self.reweigh is None:
            return jnp.ones(len(z.y), jnp.result_type(float))
        return self.reweighted(z).weight

    def solve(self, side: Any, data: TrainingSet) -> jax.Array:
        """Return w* [D] of one training set."""
        if data.target is None or self.reweigh is not None:
            z = _joined(data)
            x, y = self.records(z)
            weight = self.weights(z)
            return losses.minimise(self.loss, x, y, weight, self.ridge(len(y)))
        known = self.known(side, data.fixed, len(data.fixed.y) + 1)
        return losses.refit(self.loss, known, *self.record(data.target), 1.0, None)

    def known(self, side: Any, fixed: Examples, n: int | None = None) -> losses.Known:
        """Return what `refit` starts from: all records fitted, with ridge n lambda."""
        del side
        ridge = self.ridge(len(fixed.y) if n is None else n)
        return losses.known(self.loss, *self.records(fixed), self.weights(fixed), ridge)

    def refit(self, known: losses.Known, row: Any, z: Examples) -> jax.Array:
        """Return w* [D] with the record in `row` replaced by z, weights unchanged."""
        return losses.refit(self.loss, known, *self.record(z), known.weight[row], row)

    def total(self, w: jax.Array, z: Examples, weight: jax.Array) -> jax.Array:
        """Return the weighted sum of loss gradients at w [D]."""
        x, y = self.records(z)
        return x.T @ (weight * self.loss.slope(x @ w, y))

    def gradient(self, w: jax.Array, z: Examples) -> jax.Array:
        """Return one record's loss gradient at w [D]."""
        x, y = self.record(z)
        return self.loss.slope(x @ w, y) * x

    def about(self, data: TrainingSet, rows: Any) -> Fitted:
        """Return the fit with the derivatives of the records at `rows` [m]."""
        if data.target is None or self.reweigh is not None:
            z = _joined(data)
            return information_loss.chosen(self.fit(z, self.weights(z)), rows)
        # about the target, and the shared records are never copied
        w, n = self.solve(None, data), len(data.fixed.y)
        x, y = self.records(jax.tree.map(lambda a: jnp.asarray(a)[None], data.target))
        one, ones = jnp.ones(1, w.dtype), jnp.ones(n, w.dtype)
        shared = self.records(data.fixed)
        curved = losses.hessian(self.loss, *shared, ones, self.ridge(n + 1), w)
        curved += losses.hessian(self.loss, x, y, one, 0.0, w)
        features = x.shape[1] - self.intercept
        return information_loss.fitted(self.loss, w, curved, x, y, one, features)


def _joined(data: TrainingSet) -> Examples:
    if data.target is None:
        return data.fixed
    return jax.tree.map(
        lambda a, b: jnp.concatenate([a, jnp.asarray(b)[None]]), data.fixed, data.target
    )
