"""Reconstructor network: shadow releases in, target image out (Balle et al., 2022)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanisms import class_rows, hold_out, regressor, shadow_models, stream
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


class Fitted(NamedTuple):
    """What the attacker learns before the release."""

    means: Array  # [classes, pixels] the guess without a release; of all, [1, pixels]
    scaler: regressor.Scaler
    network: regressor.Regressor


def reconstructor(
    task: Task,
    *,
    width: Count = 512,
    width_last: Count = 256,
    learning_rate: Positive = 1e-3,
    weight_decay: NonNegative = 1e-2,
    batch_size: Count = 64,
    epochs: Count = 100,
    patience: Count = 25,
    held_out: Share = 0.1,
    clip_features: Positive = 5.0,
    least_scale: Positive = 0.1,
    repeats: Count = 1,
    shadows: Count | None = None,
    label: bool = True,
    output: Literal["linear", "sigmoid"] = "linear",
    absolute_loss: NonNegative = 0.0,
    schedule: Literal["constant", "cosine"] = "constant",
) -> Attack:
    """Train shadow models on the pool, learn to invert them, invert the release.

    Features are the released parameters, standardised over the shadows, and the label
    one-hot. The guess is the class mean plus the network's output, shrunk where
    releases are noisy, so that it starts at the floor. The network is a ReLU perceptron
    (Edmunds 2024, Tables B.3, B.4 and B.8), its loss the squared error summed over
    pixels. The fit keeps the best epoch on a held-out split of the shadows. All copies
    of one pool image are on one side of that split; no scored target is in it.

    Balle et al. (2022) have a sigmoid output, add absolute errors to the loss and do
    not use the label: `width: 1000, width_last: 1000, output: sigmoid,
    absolute_loss: 1.0, label: false`.

    Args:
      task: what was learnt; gives the image shape and the classes.
      width: of the first hidden layer.
      width_last: of the last hidden layer.
      learning_rate: of Adam.
      weight_decay: L2, added to the gradient.
      batch_size: shadows per step.
      epochs: at most.
      patience: epochs without a better held-out error before it stops.
      held_out: share of the pool's source images in the early-stopping split.
      clip_features: standardised features are clipped to plus or minus this.
      least_scale: floor of a feature's scale, as a share of the median scale.
      repeats: shadow models per pool image, each with fresh noise.
      shadows: pool images that shadow models are trained on, the first so many; None =
        all of them.
      label: whether the attacker knows the target's label.
      output: what the last layer's sums become: `linear`, what is added to the class
        mean; `sigmoid`, the image.
      absolute_loss: weight of the absolute errors in the loss.
      schedule: of the learning rate; `cosine` falls to 0 in the last epoch.
    """
    knows = {"fixed", "train"} | ({"label"} if label else set())
    threat_model = ThreatModel(
        "reconstruction", sees=frozenset({"params"}), knows=frozenset(knows)
    )
    groups = task.classes if label else 1  # those without a label have one mean

    def features(scaler: regressor.Scaler, params: Any, group: Any) -> Array:
        scaled = regressor.scale(scaler, params)
        if not label:
            return scaled
        return jnp.concatenate([scaled, jax.nn.one_hot(group, groups)], -1)

    def image(fitted: Fitted, row: Array, group: Any) -> Array:
        sums = regressor.predict(fitted.network, row)
        if output == "sigmoid":
            return regressor.OUTPUTS[output](sums)
        return fitted.means[group] + sums

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        pool = jax.tree.map(lambda a: a[:shadows], knowledge.pool)
        source = np.asarray(knowledge.pool_source)[:shadows]
        first, *further = shadow_models.shards(knowledge, pool, repeats)
        left_out = hold_out(source, held_out)
        group = np.asarray(pool.y) if label else np.zeros(len(source), int)
        y = np.asarray(pool.x).reshape(len(source), -1)
        # the mean of augmented copies is a blurred, worse guess
        original = source == np.arange(len(source))
        each = class_rows(group, groups, source, ~left_out)
        means = np.stack([y[learnt & original].mean(0) for learnt in each])
        y = y - means[group] if output == "linear" else y
        start = params, rows = first()
        scaler = regressor.fit_scaler(
            params[~left_out[rows]], limit=clip_features, least=least_scale
        )

        def examples(shard: tuple[np.ndarray, np.ndarray], some: np.ndarray) -> tuple:
            params, rows = shard
            x = np.asarray(features(scaler, params, group[rows]))
            return x[some[rows]], y[rows[some[rows]]]

        def training(shard: Callable) -> tuple:
            return examples(shard(), ~left_out)

        network, info = regressor.fit(
            stream(key, "network"),
            *examples(start, ~left_out),
            *examples(start, left_out),
            further=[partial(training, shard) for shard in further],
            hidden=(width, width_last),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            batch_size=batch_size,
            epochs=epochs,
            patience=patience,
            output=output,
            absolute=absolute_loss,
            schedule=schedule,
        )
        info["shadows"] = len(source) * repeats
        return Fitted(jnp.asarray(means), scaler, network), info

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        params = ravel_pytree(observation.params)[0]
        group = observation.label if label else 0
        row = features(fitted.scaler, params, group)
        return jnp.clip(image(fitted, row, group), *task.domain).reshape(task.features)

    return Attack(threat_model, fit, guess)
