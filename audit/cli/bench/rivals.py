"""The rival: DP-SGD written the plain way, one model at a time.

Per-example gradients by autodiff, clipped one by one and summed; every step is jitted.
It draws the batches and the noise that the engine draws, so that it must give the same
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from audit.clipping import clip_tree, soft_clip
from audit.engine.shadow import Learner
from audit.mechanisms import batch as batches
from audit.models import optimizers
from audit.rng import stream
from audit.types import Examples, Iterative


def plain_loop(learner: Learner) -> Callable:
    """Return (key, fixed, target) -> params, of `dpsgd` on full or uniform batches."""
    settings, mechanism = learner.settings, learner.defense.mechanism
    assert isinstance(mechanism, Iterative), "built of steps"
    clip = soft_clip(settings["clip_norm"])
    stddev = settings["noise_multiplier"] * settings["clip_norm"]
    rule = optimizers.named(settings["optimizer"], settings["learning_rate"])
    sampler, loss = mechanism.sampler, learner.task.loss

    @jax.jit
    def step(key: jax.Array, t: int, params: Any, opt: Any, z: Examples) -> tuple:
        rows = sampler.draw(key, t, len(z.y)).rows
        batch = z if rows is None else batches.take(z, rows)
        grads = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        clipped = jax.vmap(lambda g: clip_tree(clip, g))(grads)
        total, unravel = ravel_pytree(jax.tree.map(lambda g: g.sum(0), clipped))
        key = stream(jax.random.fold_in(key, t), "noise")
        noised = total + stddev * jax.random.normal(key, total.shape)
        updates, opt = rule.update(unravel(noised / len(batch.y)), opt, params)
        return optax.apply_updates(params, updates), opt

    def train(key: jax.Array, fixed: Examples, target: Examples) -> Any:
        z = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), fixed, target)
        params = learner.side.params
        opt = rule.init(params)
        for t in range(settings["steps"]):
            params, opt = step(key, t, params, opt, z)
        return params

    return train


def weights(params: Any) -> np.ndarray:
    """Return one row of weights per model, of parameters with a leading axis."""
    return np.asarray(jax.vmap(lambda p: ravel_pytree(p)[0])(params))


def start(learner: Learner) -> np.ndarray:
    """Return the weights at which every model starts."""
    return np.asarray(ravel_pytree(learner.side.params)[0])


def gap(ours: np.ndarray, theirs: np.ndarray, start: np.ndarray) -> float:
    """Return the largest difference of two models, over how far training moved one.

    All are [models, weights]; every model starts at `start` [weights].
    """
    apart, moved = (np.linalg.norm(ours - a, axis=1) for a in (theirs, start))
    return float((apart / moved).max())
