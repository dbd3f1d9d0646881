"""Reconstructor network: shadow releases in, target image out (Balle et al., 2022)."""

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
    Positive,
    Share,
    Task,
    ThreatModel,
    TrainingSet,
)


class Fitted(NamedTuple):
    """What the attacker learns before the release."""

    means: Array  # [classes, pixels] the guess without a release
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
) -> Attack:
    """Train shadow models on the pool, learn to invert them, invert the release.

    Features are the released parameters, standardised over the shadows, and the label
    one-hot. The guess is the class mean plus the network's output, shrunk where
    releases are noisy, so that it starts at the floor. The network is a ReLU perceptron
    (Edmunds 2024, Tables B.3, B.4 and B.8), its loss the squared error summed over
    pixels. The fit keeps the best epoch on a held-out split of the shadows. All copies
    of one pool image are on one side of that split; no scored target is in it.

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
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train"}),
    )

    def features(scaler: regressor.Scaler, params: Any, label: Any) -> Array:
        scaled = regressor.scale(scaler, params)
        return jnp.concatenate([scaled, jax.nn.one_hot(label, task.classes)], -1)

    def fit(key: Array, knowledge: Knowledge) -> tuple[Fitted, dict]:
        assert knowledge.train is not None, "granted: declared above"
        assert knowledge.fixed is not None, "granted: declared above"
        pool = knowledge.pool
        shadows = knowledge.train(
            stream(key, "shadow"), TrainingSet(knowledge.fixed, pool)
        )
        params = regressor.matrix(shadows.params)
        left_out = hold_out(stream(key, "held"), knowledge.pool_source, held_out)
        scaler = regressor.fit_scaler(
            params[~left_out], limit=clip_features, least=least_scale
        )
        x = np.asarray(features(scaler, params, pool.y))
        y = np.asarray(pool.x).reshape(len(pool.x), -1)
        # the mean of augmented copies is a blurred, worse guess
        original = knowledge.pool_source == np.arange(len(left_out))
        by_class = [original & ~left_out & (pool.y == c) for c in range(task.classes)]
        means = np.stack([y[rows].mean(0) for rows in by_class])
        y = y - means[pool.y]
        network, info = regressor.fit(
            stream(key, "network"),
            x[~left_out],
            y[~left_out],
            x[left_out],
            y[left_out],
            hidden=(width, width_last),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            batch_size=batch_size,
            epochs=epochs,
            patience=patience,
        )
        return Fitted(jnp.asarray(means), scaler, network), info | {"shadows": len(x)}

    def guess(fitted: Fitted, key: Array, observation: Observation) -> Array:
        del key
        params = ravel_pytree(observation.params)[0]
        row = features(fitted.scaler, params, observation.label)
        image = fitted.means[observation.label] + regressor.predict(fitted.network, row)
        return jnp.clip(image, *task.domain).reshape(task.features)

    return Attack(threat_model, fit, guess)
