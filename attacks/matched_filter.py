"""Matched filter: the image whose mean effect on the release fits it best."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import hold_out, regressor, stream
from audit.types import (
    Attack,
    Count,
    Knowledge,
    NonNegative,
    Observation,
    Share,
    Task,
    ThreatModel,
    TrainingSet,
)

WIDTHS = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.003)  # of a kernel, tried in turn


class Filter(NamedTuple):
    """What the attacker learns of one class: arrays with a leading class axis."""

    mean: Any  # [C, d] the guess without a release
    basis: Any  # [C, K, d] principal directions of the pool's images
    centre: Any  # [C, p] the mean release
    project: Any  # [C, K, p] B' N^-1
    posterior: Any  # [C, K, K] A^-1
    information: Any  # [C, K, K] F = B' N^-1 B
    whiten: Any  # [C, K, K] L^-1 A^-1 / c
    kernels: Any  # [C, M, K] centres of the prior's kernels
    penalty: Any  # [C, M] mu_k' Q mu_k / 2; infinite where there is none
    shrink: Any  # [C]


def matched_filter(
    task: Task,
    *,
    components: Count = 160,
    repeats: Count = 6,
    held_out: Share = 0.1,
    ridge: NonNegative = 1e-3,
) -> Attack:
    """Regress releases on images, then weigh every image by how well it explains one.

    For each class of the pool: images are m + V s, with variances L of s. Releases of
    shadow models, `repeats` of them per image with fresh noise, are a + B s + e with
    the residuals' covariance N. Then F = B' N^-1 B and u = B' N^-1 (release - a) are
    all that a release says of s, up to a Gaussian law of e. The prior is a mixture of
    kernels N(sqrt(1 - c) s_k, c L) around the pool's images, which has the pool's
    covariance for every width c: c = 1 is one Gaussian, c -> 0 the images themselves.
    The guess is m + a V E[s | release]. Width c and factor a are those with the least
    error on images that are held out; no scored target is among them.

    Args:
      task: what was learnt; gives the image shape and the classes.
      components: principal directions per class, at most.
      repeats: shadow models per pool image.
      held_out: share of the pool's source images that choose c and a.
      ridge: share of its residual variance that is added to each weight's.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Filter, dict]:
        assert knowledge.train is not None, "granted: declared above"
        assert knowledge.fixed is not None, "granted: declared above"
        pool = knowledge.pool
        rows = np.repeat(np.arange(len(pool.y)), repeats)
        repeated = jax.tree.map(lambda a: np.asarray(a)[rows], pool)
        shadows = knowledge.train(
            stream(key, "shadow"), TrainingSet(knowledge.fixed, repeated)
        )
        releases = regressor.matrix(shadows.params)
        left_out = hold_out(stream(key, "held"), knowledge.pool_source, held_out)
        original = knowledge.pool_source == np.arange(len(left_out))
        x = np.asarray(pool.x, np.float32).reshape(len(pool.y), -1)
        classes: list[Filter] = []
        info: dict[str, Any] = {"shadows": len(rows)}
        for label in range(task.classes):
            mine = np.asarray(pool.y) == label
            fitted, numbers = _fit_class(
                x[mine],
                releases[mine[rows]].reshape(-1, repeats, releases.shape[1]),
                left_out[mine],
                original[mine],
                components,
                ridge,
            )
            classes.append(fitted)
            info |= {f"{name}_{label}": value for name, value in numbers.items()}
        most = [
            max(len(a) for a in each)
            for each in zip(*[(c.penalty, c.basis) for c in classes], strict=True)
        ]
        return jax.tree.map(
            lambda *a: jnp.asarray(np.stack(a), jnp.float32),
            *[_padded(c, *most) for c in classes],
        ), info

    def guess(fitted: Filter, key: Array, observation: Observation) -> Array:
        del key
        release = ravel_pytree(observation.params)[0]
        # of all classes: to gather one class's arrays would copy them for each release
        each = jax.vmap(_guess, (0, None))(fitted, release)
        image = jax.nn.one_hot(observation.label, task.classes) @ each
        return jnp.clip(image, *task.domain).reshape(task.features)

    return Attack(threat_model, fit, guess)


def _guess(fitted: Filter, release: Array) -> Array:
    """Return the guess of one class [d] at one release [p]."""
    score = fitted.project @ (release - fitted.centre)
    weight = jax.nn.softmax(fitted.kernels @ (fitted.whiten @ score) - fitted.penalty)
    kernel = weight @ fitted.kernels
    s = kernel + fitted.posterior @ (score - fitted.information @ kernel)
    return fitted.mean + fitted.shrink * (s @ fitted.basis)


_guesses = jax.jit(jax.vmap(_guess, (None, 0)))  # compiled once for all widths


def _fit_class(
    x: np.ndarray,
    releases: np.ndarray,
    left_out: np.ndarray,
    original: np.ndarray,
    components: int,
    ridge: float,
) -> tuple[Filter, dict]:
    """Fit one class: images [m, d], releases [m, R, p], who is held out [m]."""
    fitted = ~left_out
    mean = x[original & fitted].mean(0)
    basis, variances = _principal(x[fitted] - mean, components)
    s = (x - mean) @ basis.T
    flat = releases[fitted].reshape(-1, releases.shape[2]).astype(np.float64)
    inputs = np.repeat(s[fitted].astype(np.float64), releases.shape[1], 0)
    centre, offset = flat.mean(0), inputs.mean(0)
    slope = np.linalg.lstsq(inputs - offset, flat - centre, rcond=None)[0]
    residual = flat - centre - (inputs - offset) @ slope
    noise = residual.T @ residual / max(1, len(flat) - len(slope) - 1)
    # added to each weight's own variance: an optimizer scales noise weight by weight
    noise += np.diag(np.maximum(ridge * np.diag(noise), 1e-30))
    project = np.linalg.solve(noise, slope.T).T  # B' N^-1
    information = project @ slope.T
    centre -= offset @ slope
    best: tuple[float, Filter, dict] | None = None
    others = releases[left_out].reshape(-1, releases.shape[2])
    truth = np.repeat(x[left_out], releases.shape[1], 0)
    for width in WIDTHS:
        precision = np.diag(1 / (variances * width))
        posterior = np.linalg.inv(information + precision)
        kernels = np.sqrt(1 - width) * s[fitted] if width < 1 else np.zeros_like(s[:1])
        spread = information @ posterior @ precision
        candidate = Filter(
            mean,
            basis,
            centre,
            project,
            posterior,
            information,
            precision @ posterior,
            kernels,
            np.einsum("mk,kl,ml->m", kernels, spread, kernels) / 2,
            np.ones(()),
        )
        single = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), candidate)
        moved = np.asarray(_guesses(single, others)) - mean
        target = truth - mean
        shrink = float(np.clip((moved * target).sum() / (moved**2).sum(), 0, 1))
        error = float(((shrink * moved - target) ** 2).mean())
        if best is None or error < best[0]:
            chosen = candidate._replace(shrink=np.asarray(shrink))
            best = error, chosen, {"held_mse": error, "width": width, "shrink": shrink}
    assert best is not None, "there are widths to try"
    return best[1], best[2]


def _principal(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return directions [K, d] and variances [K] of centred images, largest first."""
    values, vectors = np.linalg.eigh(x.T.astype(np.float64) @ x / len(x))
    values, vectors = values[::-1], vectors[:, ::-1]
    count = min(most, int((values > 1e-6 * values[0]).sum()), len(x) - 1)
    return vectors[:, :count].T.astype(np.float32), values[:count]


def _padded(fitted: Filter, kernels: int, components: int) -> Filter:
    """Return a class's filter with more kernels and components, all without weight."""
    m = kernels - len(fitted.penalty)
    k = components - len(fitted.basis)
    square = {
        name: np.pad(getattr(fitted, name), (0, k))
        for name in ("posterior", "information", "whiten")
    }
    return fitted._replace(
        basis=np.pad(fitted.basis, ((0, k), (0, 0))),
        project=np.pad(fitted.project, ((0, k), (0, 0))),
        kernels=np.pad(fitted.kernels, ((0, m), (0, k))),
        penalty=np.pad(fitted.penalty, (0, m), constant_values=np.inf),
        **square,
    )
