"""Rivals in PyTorch, where it is installed; nothing else of the suite imports it.

Both train the benchmark's linear models by DP-SGD with Adam. They are given the noise
that the engine draws, so that they must give the same weights, and draw their own when
they are timed. Weights are one row per model, the bias first.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from audit.engine.shadow import Learner
from audit.rng import stream

ADAM = 0.9, 0.999, 1e-8  # decay of both moments, and what keeps a step finite

Noise = Callable[[int], Any]  # step -> [models, weights] of variance 1
Rival = Callable[[Any, Any, Any, Noise], Any]  # (x, y, start, noise) -> weights


def installed() -> bool:
    """Return whether there is a PyTorch, without importing it."""
    return importlib.util.find_spec("torch") is not None


def version() -> str:
    """Return the version of PyTorch."""
    return str(_torch().__version__)


def engine_noise(root: jax.Array, models: int, steps: int, weights: int) -> Noise:
    """Return the noise of the engine's lanes, computed at once."""

    def one(lane: Any, t: Any) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(root, lane), t)
        return jax.random.normal(stream(key, "noise"), (weights,))

    over = jax.vmap(jax.vmap(one, (0, None)), (None, 0))
    drawn = _torch().tensor(np.asarray(over(np.arange(models), np.arange(steps))))
    return lambda t: drawn[t]


def own_noise(models: int, weights: int) -> Noise:
    """Return noise that PyTorch draws."""
    torch = _torch()
    return lambda t: torch.randn(models, weights)


def fused(learner: Learner) -> Rival:
    """Return the training of many models at once, by hand: two products a step.

    x is [records, 1 + pixels] of the fixed records, y their labels; the targets are the
    last rows, one per model. As in the engine, no gradient of one record is formed.
    """
    torch, (clip, _, steps, _) = _torch(), _settings(learner)

    def train(x: Any, y: Any, start: Any, noise: Noise) -> Any:
        m = len(start)
        fixed, target, first = x[:-m], x[-m:], (y == 0).float()
        w, adam = start, _Adam(learner)
        norms, target_norms = _norms(fixed), _norms(target)
        records = len(fixed) + 1
        for t in range(steps):
            e = (w @ fixed.T).sigmoid_().sub_(first[:-m])
            e *= _scale(e.abs() * norms, clip)
            last = torch.sigmoid((w * target).sum(1)) - first[-m:]
            last *= _scale(last.abs() * target_norms, clip)
            total = torch.addmm(last[:, None] * target, e, fixed)
            w = adam(w, _noised(learner, total, noise(t)) / records)
        return w

    return train


def vmap_grad(learner: Learner) -> Rival:
    """Return the training of one model after the other, by `torch.func`.

    `vmap(grad)` gives every record's gradient, which is clipped and summed.
    """
    torch, (clip, _, steps, _) = _torch(), _settings(learner)

    def loss(w: Any, x: Any, first: Any) -> Any:
        z = w @ x  # the logit of class 0; the other is 0
        return torch.nn.functional.softplus(z) - first * z

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))

    def train(x: Any, y: Any, start: Any, noise: Noise) -> Any:
        m, out = len(start), []
        drawn = [noise(t) for t in range(steps)]
        for i in range(m):
            place = slice(len(x) - m + i, len(x) - m + i + 1)
            z, label = (torch.cat([a[:-m], a[place]]) for a in (x, (y == 0).float()))
            w, adam = start[i], _Adam(learner)
            for t in range(steps):
                g = each(w, z, label)
                total = _scale(_norms(g), clip) @ g
                w = adam(w, _noised(learner, total, drawn[t][i]) / len(z))
            out.append(w)
        return torch.stack(out)

    return train


def records(fixed: Any, target: Any, models: int) -> tuple[Any, Any]:
    """Return x and y of the rivals: a 1 before the pixels, the targets last."""
    torch = _torch()
    pixels = [np.reshape(z.x[:n], (n, -1)) for z, n in _both(fixed, target, models)]
    x = np.concatenate(pixels)
    y = np.concatenate([z.y[:n] for z, n in _both(fixed, target, models)])
    x = np.concatenate([np.ones((len(x), 1), np.float32), x], 1)
    return torch.tensor(x), torch.tensor(y)


def starting(weights: np.ndarray, models: int) -> Any:
    """Return where every model starts."""
    return _torch().tensor(np.repeat(weights[None], models, 0))


def _both(fixed: Any, target: Any, models: int) -> list[tuple[Any, int]]:
    return [(fixed, len(fixed.y)), (target, models)]


def _torch() -> Any:
    import torch

    return torch


def _settings(learner: Learner) -> tuple[float, float, int, float]:
    """Return the clip, the deviation of the noise, the steps and the rate."""
    given = learner.settings
    stddev = given["noise_multiplier"] * given["clip_norm"]
    return given["clip_norm"], stddev, given["steps"], given["learning_rate"]


def _norms(rows: Any) -> Any:
    return (rows * rows).sum(-1).sqrt()


def _scale(norm: Any, clip: float) -> Any:
    """Return the soft clip's factor, 1 / (GELU(norm / C - 1) + 1)."""
    gelu = _torch().nn.functional.gelu
    return 1 / (gelu(norm / clip - 1, approximate="tanh") + 1)


def _noised(learner: Learner, total: Any, noise: Any) -> Any:
    return total + _settings(learner)[1] * noise


class _Adam:
    """Adam on a tensor."""

    def __init__(self, learner: Learner) -> None:
        self.rate = _settings(learner)[3]
        self.mean: Any = 0.0
        self.square: Any = 0.0
        self.count = 0

    def __call__(self, w: Any, g: Any) -> Any:
        """Return the weights after a step along -g."""
        first, second, least = ADAM
        self.count += 1
        self.mean = first * self.mean + (1 - first) * g
        self.square = second * self.square + (1 - second) * g * g
        mean = self.mean / (1 - first**self.count)
        square = self.square / (1 - second**self.count)
        return w - self.rate * mean / (square.sqrt() + least)
