"""Unrolled inversion: solve a run that nothing random enters for its record."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import class_rows, linear_map, once
from audit.mechanisms.linear_map import LinearMap
from audit.types import (
    Attack,
    Count,
    Examples,
    Knowledge,
    Observation,
    Positive,
    Replay,
    Task,
    ThreatModel,
)

# of a Gauss-Newton step, of which the best is taken: the run is curved
SHARES = np.array([1.0, 0.6, 0.3, 0.1, 0.03, 0.0], np.float32)
WHOLE = 2  # the first so many are steps that fit
TIGHTER, LOOSER = 0.4, 1.5  # what trust is multiplied by
COARSE = 2  # first rounds, which solve for the leading directions alone
SOLVED = 10.0  # (release_j - T_j(x))^2 / sigma_j^2, at most, on the average over j
SWITCH = 1e3  # slope of a switch, over the root mean square of all weights
LEAST = 1e-5  # variance of the prior along any direction: no image is certain


class Pixels(NamedTuple):
    """What the attacker knows of the images of a class; in a `Solver`, of every one."""

    mean: Any  # [d] m, of the pool's images
    axes: Any  # [K, d] V', the largest variance first; K pixels are solved for
    score: Any  # [d, K] what gives s of x - m
    black: Any  # [p] what training on a black image releases
    switches: Any  # [p, d] which pixels a weight is the switch of


class Solver(NamedTuple):
    """What the attacker knows."""

    replay: Replay
    start: LinearMap
    pixels: Pixels  # each array with a leading axis of classes


def unrolled_inversion(
    task: Task,
    *,
    rounds: Count = 6,
    leading: Count = 50,
    near: Positive = 0.03,
    far: Positive = 0.3,
    tight: Positive = 0.003,
) -> Attack:
    """Change the guess until training on it releases what was seen.

    Without randomness a run is a function T of the unknown record x, which the attacker
    can differentiate as well as compute (an *unrolled* run). The guess is the most
    probable record under a Gaussian prior of its class, x = m + V s with s ~ N(0, I),
    by Gauss-Newton rounds from the guess of `ridge`. Each replaces T by its tangent and
    minimises, in two steps,

      sum_j ((release_j - T_j(x)) / sigma_j)^2 + |s|^2.

    sigma_j^2 is the variance of what float32 rounds weight j by, plus the square of
    `trust` times the slope |dT_j / ds|: an optimizer that divides by the size of a
    gradient bends most where it is steepest. A round whose whole step fits tightens the
    trust, another loosens it. The first rounds move s along its `leading` directions
    alone, which costs little and brings the guess near. The attacker stops where the
    guess explains the release, and starts once more, from m, where it does not.

    Where no other record lights a pixel, such an optimizer moves its weight by whole
    steps or not at all: *switches*. The pixel of a switch that did not move is black,
    and all that is known of another is its class. Neither is solved for.

    Args:
      task: what was learnt; gives the image shape and the domain.
      rounds: of Gauss-Newton per start, at most; each costs as many forward
        derivatives of a run as there are pixels to solve for.
      leading: directions of the largest variance that the first rounds solve for.
      near: trust at the guess of `ridge`.
      far: trust at m.
      tight: least trust, by which a guess is judged.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train", "replay"}),
        # a solver that stops by its own test has no derivative of use
        assumes=frozenset({"noiseless", "noisy_sgd"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[Solver, dict]:
        del key
        assert knowledge.replay is not None, "granted: declared above"
        start, info = linear_map.fit(knowledge)
        labels = np.asarray(knowledge.pool.y)
        images = np.asarray(knowledge.pool.x, np.float64).reshape(len(labels), -1)
        black, switches = _at_black(task, knowledge.replay)
        free = (np.ptp(images, axis=0) > 0) & ~np.asarray(switches).any((0, 1))
        rows = class_rows(labels, task.classes, knowledge.pool_source)
        each = [_prior(images[learnt], free) for learnt in rows]
        mean, axes, score = (
            jnp.asarray(np.stack(a), jnp.float32) for a in zip(*each, strict=True)
        )
        info = info | {"pixels": int(free.sum())}
        pixels = Pixels(mean, axes, score, black, switches)
        return Solver(knowledge.replay, start, pixels), info

    def guess(fitted: Solver, key: Array, observation: Observation) -> Array:
        del key
        label, release = observation.label, ravel_pytree(observation.params)[0]
        mean, axes, score, black, switches = (a[label] for a in fitted.pixels)
        rounding = jnp.finfo(release.dtype).eps * jnp.sqrt((release**2).mean())
        dark = (jnp.abs(release - black) <= rounding) @ switches > 0
        mean = jnp.where(dark, _black(task), mean)
        start = linear_map.guess(task, fitted.start, observation).reshape(-1)
        solved_for = (axes != 0).any(0)

        def released(x: Array) -> Array:
            return _released(task, fitted.replay, x, label)

        def moved(x: Array, trust: Array, along: Array) -> tuple[Array, Array, Array]:
            """Move along some axes [k, d]; return x, trust, and how far x misses."""
            here, push = jax.linearize(released, x)
            slopes = jax.vmap(push, 0, 1)(along)  # [p, k]
            steep = jnp.sqrt((slopes**2).sum(1))
            scale = 1 / jnp.sqrt(rounding**2 + (trust * steep) ** 2)
            scaled = slopes * scale[:, None]
            curved = scaled.T @ scaled + jnp.eye(len(along))
            # more than float32 rounds it by, so that it stays positive definite
            curved += 1e-6 * jnp.trace(curved) / len(along) * jnp.eye(len(along))
            factor = jax.scipy.linalg.cho_factor(curved)

            def step(at: tuple[Array, Array], _: None) -> tuple[tuple, Array]:
                x, here = at
                prior = ((x - mean) @ score)[: len(along)]
                pull = scaled.T @ ((release - here) * scale) - prior
                # a factor that fails leaves the guess where it is
                move = jnp.nan_to_num(jax.scipy.linalg.cho_solve(factor, pull))
                tried = jnp.clip(x + SHARES[:, None] * (move @ along), *task.domain)
                there = jax.vmap(released)(tried)  # [shares, p]
                missed = (((release - there) * scale) ** 2).sum(1)
                best = (missed + (((tried - mean) @ score) ** 2).sum(1)).argmin()
                return (tried[best], there[best]), best

            # the tangent is dear, and does for a second step
            (x, here), (best, _) = jax.lax.scan(step, (x, here), length=2)
            judged = (release - here) ** 2 / (rounding**2 + (tight * steep) ** 2)
            change = jnp.where(best < WHOLE, TIGHTER, LOOSER)
            return x, jnp.clip(trust * change, tight, 1.0), judged.mean()

        def better(state: tuple) -> tuple:
            done, x, trust, solution, least = state
            anew = done == rounds
            x, trust = jnp.where(anew, mean, x), jnp.where(anew, far, trust)
            x, trust, judged = moved(x, trust, axes)
            solution = jnp.where(judged < least, x, solution)
            return done + 1, x, trust, solution, jnp.minimum(judged, least)

        def unsolved(state: tuple) -> Array:
            done, _, trust, _, least = state
            return (done < 2 * rounds) & ~((trust <= tight) & (least < SOLVED))

        def roughly_better(_: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            return moved(*at, axes[:leading])[:2]

        x, trust = jnp.where(solved_for, start, mean), jnp.float32(near)
        x, trust = jax.lax.fori_loop(0, COARSE, roughly_better, (x, trust))
        first = 0, x, trust, x, jnp.float32(jnp.inf)
        *_, x, _ = jax.lax.while_loop(unsolved, better, first)
        return x.reshape(task.features)

    return Attack(threat_model, fit, guess)


def _released(task: Task, replay: Replay, x: Array, label: Any) -> Array:
    """Return what training on the image x [d] releases [p]."""
    return ravel_pytree(replay(Examples(x.reshape(task.features), label)))[0]


def _black(task: Task) -> Array:
    """Return the record [d] that lights no pixel."""
    return jnp.full(int(np.prod(task.features)), float(np.clip(0.0, *task.domain)))


@partial(once, static_argnums=0)
def _at_black(task: Task, replay: Replay) -> tuple[Array, Array]:
    """Return what black images release [C, p], and the switches [C, p, d]."""
    black = _black(task)

    def of_class(label: Array) -> tuple[Array, Array]:
        here, push = jax.linearize(lambda x: _released(task, replay, x, label), black)
        slopes = jax.vmap(push, 0, 1)(jnp.eye(black.size))
        return here, jnp.abs(slopes) > SWITCH * jnp.sqrt((here**2).mean())

    return jax.lax.map(of_class, jnp.arange(task.classes))


def _prior(images: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return m, V' and what gives s, of images [m, d]; `free` pixels [d] vary."""
    mean = images.mean(0)
    away = (images - mean)[:, free]
    variances, basis = np.linalg.eigh(away.T @ away / len(images))
    variances, basis = variances[::-1], basis[:, ::-1]
    scales = np.sqrt(np.maximum(variances, LEAST))
    axes, score = np.zeros((2, len(scales), len(mean)))
    axes[:, free], score[:, free] = (basis * scales).T, (basis / scales).T
    return mean, axes, score.T
