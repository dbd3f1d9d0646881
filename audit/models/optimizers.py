"""Optimizers by name; they post-process the noised mean, which costs no privacy."""

from __future__ import annotations

from functools import partial
from typing import Any

import optax

from audit.types import Optimizer

OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "half_momentum": partial(optax.sgd, momentum=0.5),  # Guo et al. (2022)
    "adam": optax.adam,
}


def named(
    name: Optimizer, learning_rate: Any, weight_decay: Any = 0.0
) -> optax.GradientTransformation:
    """Return an optimizer; rates may be traced.

    The decay, of half the squared norm of the parameters, is added to the gradient.
    """
    decay = optax.add_decayed_weights(weight_decay)
    return optax.chain(decay, OPTIMIZERS[name](learning_rate))
