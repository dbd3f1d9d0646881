"""Matched filter: the image whose mean effect on the release fits it best."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import (
    class_rows,
    denoiser,
    kernel_prior,
    shadow_models,
    side_by_side,
    stream,
)
from audit.mechanisms.kernel_prior import KernelPrior, Reading
from audit.types import (
    Attack,
    Count,
    Knowledge,
    NonNegative,
    Observation,
    Positive,
    Share,
    Task,
    ThreatModel,
)

TOGETHER = 64  # images whose shadow models are added up at a time
WEIGHED = 2048  # releases by which the images of a class are weighed at a time
ROUNDED = 1e-12  # of a variance: far more than sums in float64 are rounded by


class Filter(NamedTuple):
    """What the attacker learns of one class; a leading axis C for all of them."""

    prior: KernelPrior
    ends: Any  # ([p], [p]) of what releases are clipped to
    centre: Any  # [p] the mean release of the shadow models
    shift: Any  # [K] added to scores: targets are not blurred as their images are
    project: Any  # [K, p] B' N^-1
    read: Reading  # how scores of information F = B' N^-1 B are read
    denoiser: Any  # Denoiser
    weights: Any  # [W + 1] of the blended guesses


def matched_filter(
    task: Task,
    *,
    components: Count = 160,
    repeats: Count = 6,
    held_out: Share = 0.1,
    limit: Positive = 5.0,
    ridge: NonNegative = 1e-3,
    width: Count = 512,
    denoiser_steps: Count = 3000,
) -> Attack:
    """Regress releases on images, then weigh every image by how well it explains one.

    For each class of the pool: images are m + V s, with variances L of s. Releases of
    shadow models, `repeats` of them per image with fresh noise, are a + B s + e with
    the residuals' covariance N. Then F = B' N^-1 B and u = B' N^-1 (release - a) are
    all that a release says of s, up to a Gaussian law of e. The prior is a mixture of
    kernels around the pool's images (`audit.mechanisms.kernel_prior`). The guess is
    m + V E[s | release], blended over six widths of the kernels and a network that has
    learnt the same mean from drawn scores (`audit.mechanisms.denoiser`), with the
    weights that have the least error on images that are held out; no scored target is
    among them.

    Args:
      task: what was learnt; gives the image shape and the classes.
      components: principal directions per class, at most; a third as many as the class
        has pool images, at most.
      repeats: shadow models per pool image.
      held_out: share of the pool's source images that choose the weights.
      limit: released weights are clipped to so many standard deviations of the shadow
        models' in their class. Without noise a weight that hardly varies between images
        may be thousands away for the next one, and would decide the whole guess.
      ridge: share of its residual variance that is added to each weight's.
      width: of the denoiser's hidden layers.
      denoiser_steps: of Adam, for all classes together.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Filter, dict]:
        pool = knowledge.pool
        shards = shadow_models.shards(knowledge, pool, repeats)
        labels, classes = np.asarray(pool.y), range(task.classes)
        counts = class_rows(labels, task.classes, knowledge.pool_source).sum(1)
        # more would leave no residual, hence no noise, where a class is small
        most = np.clip(counts // 3, 1, components)
        priors, left_out = kernel_prior.of_pool(
            knowledge, held_out, tuple(most.tolist())
        )
        x = np.asarray(pool.x, np.float32).reshape(len(pool.y), -1)
        scores = [
            (x - priors.mean[c] - priors.blur[c]) @ priors.basis[c].T for c in classes
        ]
        rows = class_rows(labels, task.classes, knowledge.pool_source, ~left_out)
        learnt_from = [scores[c][rows[c]] for c in classes]
        moments = [_Moments(limit) for _ in classes]
        parts = list[np.ndarray]()
        for shard in shards:
            releases, _ = shard()
            by_repeat = releases.reshape(-1, len(x), releases.shape[1])
            shaped = by_repeat.transpose(1, 0, 2)
            each = [shaped[mine] for mine in rows]
            moments = side_by_side(_Moments.with_more, moments, learnt_from, each)
            parts = parts or [shaped[left_out]]  # the first: enough for a few weights
        (others,) = parts
        fits = side_by_side(lambda m: m.regression(ridge), moments)
        centre, project, information = (
            jnp.asarray(np.stack(a), jnp.float32) for a in zip(*fits, strict=True)
        )
        ends = tuple(
            jnp.asarray(np.stack(a), jnp.float32)
            for a in zip(*(m.ends for m in moments), strict=True)
        )
        priors = jax.tree.map(jnp.asarray, priors)
        network = denoiser.fit(
            stream(key, "denoiser"),
            priors,
            information,
            (1.0, 1.0),
            width=width,
            steps=denoiser_steps,
        )
        read = jax.vmap(kernel_prior.reading)(priors, information)
        blur = jnp.einsum("cd,ckd->ck", priors.blur, priors.basis)
        shift = jnp.einsum("ckl,cl->ck", information, blur)
        learnt = Filter(priors, ends, centre, 0 * shift, project, read, network, centre)
        weights, info = [], dict[str, Any](shadows=len(x) * repeats)
        # in NumPy, where to take one class's part compiles nothing
        of_classes = jax.tree.map(np.asarray, learnt)
        for label in classes:
            mine = labels[left_out] == label
            flat = jnp.asarray(others[mine].reshape(-1, others.shape[2]))
            one = jax.tree.map(lambda a, i=label: a[i], of_classes)
            means = _means_of_all(one, flat)
            images = np.repeat(x[left_out][mine], others.shape[1], 0)
            best, error = kernel_prior.blend(one.prior, means, images)
            weights.append(best)
            info |= {f"held_mse_{label}": error, f"weights_{label}": best.tolist()}
            info[f"components_{label}"] = int(one.prior.basis.any(1).sum())
        return learnt._replace(shift=shift, weights=jnp.stack(weights)), info

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
    means = _posterior_means(fitted, release)
    return kernel_prior.image(fitted.prior, fitted.weights, means)


def _posterior_means(fitted: Filter, release: Array) -> Array:
    """Return what one release says of s, in every way [W + 1, K]."""
    release = jnp.clip(release, *fitted.ends)
    score = fitted.project @ (release - fitted.centre) + fitted.shift
    return denoiser.guesses(fitted.denoiser, fitted.prior, fitted.read, score)


@jax.jit
def _means_of_all(fitted: Filter, releases: Array) -> Array:
    """Return what each release says of s [m, W + 1, K]."""
    one = partial(_posterior_means, fitted)
    return jax.lax.map(one, releases, batch_size=WEIGHED)


class _Moments(NamedTuple):
    """Sums over shadow models of one class, of their s and releases side by side."""

    limit: float  # releases are clipped to so many standard deviations
    components: int = 0  # K
    models: int = 0
    ends: Any = None  # ([p], [p]) of what releases are clipped to, by the first part
    near: Any = 0.0  # [K + p] a point near the mean: sums of squares cancel less
    total: Any = 0.0  # [K + p] of the differences from `near`
    squares: Any = 0.0  # [K + p, K + p] of their products

    def with_more(self, s: np.ndarray, releases: np.ndarray) -> _Moments:
        """Return the sums with releases [m, R, p] of images of s [m, K].

        Those of `TOGETHER` images are in memory in float64, for some hardly vary.
        """
        few = [slice(i, i + TOGETHER) for i in range(0, len(s), TOGETHER)]
        models, ends, near = releases.shape[0] * releases.shape[1], self.ends, self.near
        if ends is None:
            mean = releases.mean((0, 1), np.float64)
            away = sum(((releases[at] - mean) ** 2).sum((0, 1)) for at in few)
            reach = self.limit * np.sqrt(away / models)
            ends, near = (mean - reach, mean + reach), np.append(s.mean(0), mean)
        k, total, squares = s.shape[1], self.total, self.squares
        for at in few:
            rows = np.empty((*releases[at].shape[:2], len(near)))
            rows[..., :k] = s[at, None]
            np.clip(releases[at], *ends, out=rows[..., k:])
            rows = (rows - near).reshape(-1, len(near))
            total, squares = total + rows.sum(0), squares + rows.T @ rows
        models += self.models
        return _Moments(self.limit, k, models, ends, near, total, squares)

    def regression(self, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what releases are regressed on s: a [p], B' N^-1 [K, p], F [K, K]."""
        k, away = self.components, self.total / self.models
        spread = self.squares - self.models * np.outer(away, away)
        slope, _, rank, _ = np.linalg.lstsq(spread[:k, :k], spread[:k, k:], rcond=None)
        residual = spread[k:, k:] - spread[k:, :k] @ slope
        noise = (residual + residual.T) / 2 / max(1, self.models - rank - 1)
        # added to each weight's own variance, as an optimizer scales noise weight by
        # weight; where no noise is left, more than what the sums are rounded by
        least = np.maximum(ROUNDED * np.diag(spread)[k:] / self.models, 1e-30)
        noise += np.diag(np.maximum(ridge * np.diag(noise), least))
        project = np.linalg.solve(noise, slope.T).T  # B' N^-1
        offset, centre = np.split(self.near + away, [k])
        return centre - offset @ slope, project, project @ slope.T
