"""A small network from features to images, trained in one compiled scan per epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from audit.compilation import once
from audit.rng import stream

Output = Literal["linear", "sigmoid"]  # what the last layer's sums become
Schedule = Literal["constant", "cosine"]  # of the learning rate; cosine ends at 0
OUTPUTS = {"linear": lambda x: x, "sigmoid": jax.nn.sigmoid}
LEAST_START = 1e-3  # a sigmoid starts no nearer to 0 or 1 than this


class Scaler(NamedTuple):
    """Column-wise standardisation, bounded for nearly constant columns."""

    mean: Any  # [p]
    inverse: Any  # [p] 1 / scale; 0 where the column is constant
    limit: Any  # [p] standardised values are clipped to +- limit


class Regressor(NamedTuple):
    """A fitted network."""

    layers: Any  # list of (weights [i, o], biases [o])
    shrink: Any  # [] in [0, 1], multiplies the output


def matrix(params: Any) -> np.ndarray:
    """Return one row per release [m, p]; `params` is a pytree with a leading axis m."""
    leaves = jax.tree.leaves(params)
    return np.concatenate([np.reshape(a, (len(a), -1)) for a in leaves], 1)


def fit_scaler(features: Any, *, limit: float, least: float) -> Scaler:
    """Standardise columns by their mean and standard deviation over features [m, p].

    A target may be thousands of standard deviations away in a column that hardly varies
    between shadows (a pixel lit once), and so would be the network's guess. The scale
    of a column is therefore at least `least` times the median scale of the columns that
    vary, and values are clipped to `limit` standard deviations of their column.
    """
    features = np.asarray(features, np.float64)
    mean, scale = features.mean(0), features.std(0)
    # below float32 resolution of the values themselves, a spread is rounding
    moves = scale > 1e-6 * np.maximum(1e-3, np.abs(features).max(0))
    floor = least * np.median(scale[moves]) if moves.any() else 1.0
    inverse = np.where(moves, 1 / np.maximum(scale, floor), 0.0)
    limits = limit * scale * inverse
    return Scaler(*(np.asarray(a, np.float32) for a in (mean, inverse, limits)))


def scale(scaler: Scaler, features: jax.Array) -> jax.Array:
    """Standardise features [..., p]."""
    moved = (features - scaler.mean) * scaler.inverse
    return jnp.clip(moved, -scaler.limit, scaler.limit)


def predict(
    regressor: Regressor, features: jax.Array, activation: Callable = jax.nn.relu
) -> jax.Array:
    """Return the last layer's sums [..., o] for features [..., p]."""
    x = features
    for i, (weights, biases) in enumerate(regressor.layers):
        x = activation(x) if i else x
        x = x @ weights + biases
    return regressor.shrink * x


@partial(once, static_argnums=1)
def init(key: jax.Array, sizes: tuple[int, ...], start: jax.Array) -> list:
    """He-normal hidden layers, and a last layer whose sums are `start` [o]."""
    make = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, len(sizes) - 1)
    layers = [
        (make(k, (i, o)), jnp.zeros(o))
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    return [*layers[:-1], (jnp.zeros_like(layers[-1][0]), start)]


def _shrunk(out: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the best factor in [0, 1] for `out`, and the error it leaves."""
    factor = (out * targets).sum() / jnp.maximum((out**2).sum(), 1e-30)
    factor = jnp.clip(factor, 0, 1)
    return factor, ((factor * out - targets) ** 2).mean()


class _Fitter(NamedTuple):
    """What a program is compiled for; one serves every defense of a line-up."""

    batch_size: int
    output: Output
    absolute: float
    learning_rate: float
    steps: int | None  # along which the rate falls to 0 on a cosine; None = constant
    weight_decay: float

    def optimizer(self) -> optax.GradientTransformation:
        rate: Any = self.learning_rate
        if self.steps is not None:
            rate = optax.cosine_decay_schedule(rate, self.steps)
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.adam(rate))


@partial(jax.jit, static_argnums=0)
def _epoch(fitter: _Fitter, carry: tuple, key: jax.Array, data: tuple) -> tuple:
    """Return the carry after an epoch, the loss per output, the factor, its error."""
    features, targets, held_features, held_targets = data
    squash, size, optimizer = (
        OUTPUTS[fitter.output],
        fitter.batch_size,
        fitter.optimizer(),
    )

    def loss(layers: Any, rows: jax.Array) -> jax.Array:
        error = squash(predict(Regressor(layers, 1.0), features[rows])) - targets[rows]
        square = (error**2).sum(-1).mean()
        if not fitter.absolute:
            return square
        return square + fitter.absolute * abs(error).sum(-1).mean()

    def step(carry: tuple, rows: jax.Array) -> tuple:
        layers, opt = carry
        value, grads = jax.value_and_grad(loss)(layers, rows)
        updates, opt = optimizer.update(grads, opt, layers)
        return (optax.apply_updates(layers, updates), opt), value

    m = len(features)
    order = jax.random.permutation(key, m)[: m // size * size]
    each: jax.Array
    carry, each = jax.lax.scan(step, carry, order.reshape(-1, size))
    guess = squash(predict(Regressor(carry[0], 1.0), held_features))
    kept = jnp.ones(()), ((guess - held_targets) ** 2).mean()
    if fitter.output == "linear":
        kept = _shrunk(guess, held_targets)
    return carry, jnp.mean(each) / targets.shape[1], *kept


def fit(
    key: jax.Array,
    features: Any,
    targets: Any,
    held_features: Any,
    held_targets: Any,
    *,
    further: Sequence[Callable[[], tuple[Any, Any]]] = (),
    hidden: tuple[int, ...],
    learning_rate: float,
    weight_decay: float,
    batch_size: int,
    epochs: int,
    patience: int,
    output: Output = "linear",
    absolute: float = 0.0,
    schedule: Schedule = "constant",
) -> tuple[Regressor, dict]:
    """Minimise the summed squared error with Adam; keep the best held-out epoch.

    On noisy releases a network overfits: its guesses vary more than the targets. So a
    linear output is multiplied by the factor in [0, 1] with the least held-out error.

    An epoch passes through features [m, p] and their targets, or through what one of
    `further` returns, in turn: data that would not fit in memory together.

    The features are standardised. The targets [m, o] of a linear output are
    centred: zero is the guess without features. Those of a sigmoid are in [0, 1], and
    that guess is their mean. The sum of absolute errors is part of the loss, times
    `absolute`. The held-out [v, p] and [v, o] are never the scored targets.
    `hidden` are the widths of the ReLU layers. The weight decay is added to the
    gradient before Adam, the last partial batch of an epoch dropped, and the fit ends
    after `patience` epochs without a better held-out error.

    Returns:
      The regressor, and as floats {epoch, epochs, held_mse, train_mse, shrink,
      late_gain}. `train_mse` is the loss per output, absolute errors included;
      `shrink` is 1 for a sigmoid; `late_gain` is the relative fall of the held-out
      error in the last quarter of the epochs, 0 if patience ended the fit.
    """
    features, targets = jnp.asarray(features), jnp.asarray(targets)
    m, size = len(features), min(batch_size, len(features))
    sizes = features.shape[1], *hidden, targets.shape[1]
    steps = epochs * (m // size) if schedule == "cosine" else None
    fitter = _Fitter(size, output, absolute, learning_rate, steps, weight_decay)
    start = jnp.zeros(sizes[-1])
    if output == "sigmoid":
        mean = jnp.clip(targets.mean(0), LEAST_START, 1 - LEAST_START)
        start = jnp.log(mean / (1 - mean))

    held = jnp.asarray(held_features), jnp.asarray(held_targets)
    layers = init(stream(key, "init"), sizes, start)
    carry, best = (layers, fitter.optimizer().init(layers)), layers
    info: dict[str, float] = {}
    least: list[float] = []
    for i in range(epochs):
        turn = i % (1 + len(further))
        rows = map(jnp.asarray, further[turn - 1]() if turn else (features, targets))
        data = *rows, *held
        carry, *measured = _epoch(fitter, carry, jax.random.fold_in(key, i), data)
        train_mse, shrink, held_mse = map(float, measured)
        del rows, data  # before the next part is made
        if not info or held_mse < info["held_mse"]:
            best = carry[0]
            info = {"epoch": i + 1, "held_mse": held_mse, "train_mse": train_mse}
            info["shrink"] = shrink
        least.append(info["held_mse"])
        if i + 1 - info["epoch"] >= patience:
            least = least[-1:]
            break
    gain = 1 - least[-1] / max(least[3 * (len(least) - 1) // 4], 1e-30)
    info |= {"epochs": i + 1, "late_gain": gain}
    return Regressor(best, jnp.float32(info["shrink"])), info
