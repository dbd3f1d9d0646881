"""Optimizers by name; they post-process the noised mean, which costs no privacy."""

from __future__ import annotations

from functools import partial
from typing import Any

import optax

from audit.types import Optimizer

OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "adam": optax.adam,
}


def named(
    name: Optimizer, learning_rate: Any, weight_decay: Any = 0.0
) -> optax.GradientTransformation:
    """Return an optimizer; the decay is added to the gradient before it.

    Args:
      name: a key of OPTIMIZERS.
      learning_rate: may be traced.
      weight_decay: of half the squared norm of the parameters; may be traced.
    """
    decay = optax.add_decayed_weights(weight_decay)
    return optax.chain(decay, OPTIMIZERS[name](learning_rate))
