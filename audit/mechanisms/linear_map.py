"""Ridge regression of images on what shadow models release, class by class."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy import linalg

from audit.data.pool import class_rows, hold_out
from audit.mechanisms import shadow_models
from audit.models import regressor
from audit.models.side_by_side import side_by_side
from audit.types import Knowledge, Observation, Task

# penalties that are tried, over the mean square of a standardised weight
PENALTIES = np.logspace(-7, 2, 19)


class LinearMap(NamedTuple):
    """What the attacker learns; a leading axis C for all classes."""

    scaler: regressor.Scaler  # of released weights, for all classes
    centre: Any  # [C, p] mean standardised release
    means: Any  # [C, d] mean image
    slope: Any  # [C, p, d] image per standardised weight


def fit(
    knowledge: Knowledge,
    *,
    held_out: float = 0.1,
    repeats: int = 1,
    clip_features: float = 10.0,
    least_scale: float = 1e-3,
) -> tuple[LinearMap, dict]:
    """Return the map, and diagnostics; settings are those of the attack `ridge`."""
    task, pool = knowledge.task, knowledge.pool
    source = np.asarray(knowledge.pool_source)
    releases, rows = shadow_models.releases(knowledge, pool, repeats)
    left_out = hold_out(source, held_out)[rows]
    original = (source == np.arange(len(source)))[rows]
    labels = np.asarray(pool.y)[rows]
    images = np.asarray(pool.x, np.float64).reshape(len(source), -1)[rows]
    scaler = regressor.fit_scaler(
        releases[~left_out], limit=clip_features, least=least_scale
    )
    scaled = regressor.scale(scaler, jnp.asarray(releases))
    features = np.asarray(scaled, np.float64)

    def errors_of(label: int) -> list[float] | None:
        """Return every penalty's error at held-out images of a class; None = no such.

        Nor is there one where all its images are held out.
        """
        mine = labels == label
        learnt, others = mine & ~left_out, mine & original & left_out
        if not (others.any() and original[learnt].any()):
            return None
        part = _Regression.of(features[learnt], images[learnt], original[learnt])
        line = _Line.through(part)
        return [
            line.error(penalty, features[others], images[others], task.domain)
            for penalty in PENALTIES
        ]

    errors = side_by_side(errors_of, range(task.classes))
    # what is best on average stands in for a class without held-out images
    curves = [e for e in errors if e is not None]
    # and the largest penalty, the mean image, where no class has any
    average = np.mean(curves, 0) if curves else -PENALTIES
    best = [int(np.argmin(average if e is None else e)) for e in errors]

    def map_of(learnt: np.ndarray, penalty: float) -> tuple[Any, ...]:
        whole = _Regression.of(features[learnt], images[learnt], original[learnt])
        return whole.centre, whole.mean, whole.slope(penalty)

    each = class_rows(pool.y, task.classes, source)[:, rows]
    fits = zip(*side_by_side(map_of, each, PENALTIES[best]), strict=True)
    centre, means, slope = (jnp.asarray(np.stack(a), jnp.float32) for a in fits)
    info: dict[str, Any] = {"shadows": len(rows)}
    info |= {f"penalty_{c}": float(PENALTIES[i]) for c, i in enumerate(best)}
    info |= {
        f"held_mse_{c}": e[i]
        for c, (e, i) in enumerate(zip(errors, best, strict=True))
        if e is not None
    }
    return LinearMap(scaler, centre, means, slope), info


def guess(task: Task, fitted: LinearMap, observation: Observation) -> Array:
    """Return the image [*features] of a release."""
    release = ravel_pytree(observation.params)[0]
    away = regressor.scale(fitted.scaler, release) - fitted.centre
    # of all classes: to gather one class's map would copy it for each release
    each = fitted.means + jnp.einsum("cp,cpd->cd", away, fitted.slope)
    image = jax.nn.one_hot(observation.label, task.classes) @ each
    return jnp.clip(image, *task.domain).reshape(task.features)


class _Regression(NamedTuple):
    """The regression of one class: products of its images and features."""

    centre: np.ndarray  # [p] mean standardised release of originals
    mean: np.ndarray  # [d] mean image of originals: that of augmented copies is blurred
    squares: np.ndarray  # [p, p] mean products of the centred features
    products: np.ndarray  # [p, d] mean products of these and images

    @staticmethod
    def of(features: np.ndarray, images: np.ndarray, original: Any) -> _Regression:
        """Return the regression of images [m, d] on features [m, p]."""
        away, m = features - features.mean(0), len(features)
        centre, mean = features[original].mean(0), images[original].mean(0)
        products = away.T @ (images - images.mean(0)) / m
        return _Regression(centre, mean, away.T @ away / m, products)

    def slope(self, penalty: float) -> np.ndarray:
        """Return what a standardised weight adds to the image [p, d]."""
        penalised = self.squares + penalty * np.eye(len(self.squares))
        return linalg.solve(penalised, self.products, assume_a="pos")


class _Line(NamedTuple):
    """The regression of one class at every penalty, by one decomposition."""

    centre: np.ndarray  # [p]
    mean: np.ndarray  # [d]
    axes: np.ndarray  # [k, p] right singular vectors of the centred features
    values: np.ndarray  # [k] their mean squares
    products: np.ndarray  # [k, d] mean products of axes and images

    @staticmethod
    def through(regression: _Regression) -> _Line:
        """Return the same regression, decomposed."""
        values, vectors = np.linalg.eigh(regression.squares)
        products, values = vectors.T @ regression.products, np.maximum(values, 0)
        return _Line(regression.centre, regression.mean, vectors.T, values, products)

    def error(self, penalty: float, features: Any, images: Any, domain: Any) -> float:
        """Return the mean squared error at images [n, d] with features [n, p]."""
        along = (features - self.centre) @ self.axes.T / (self.values + penalty)
        guess = np.clip(self.mean + along @ self.products, *domain)
        return float(((guess - images) ** 2).mean())
