"""Optimizers by name; they post-process the noised mean, which costs no privacy."""

from __future__ import annotations

from functools import partial
from typing import Any

import optax

from audit.types import Optimizer

# Added under Adam's square root, which has no slope at 0: training has a derivative. It
# changes no bit of a step where a gradient is above 1e-11, or 0.
TINY = 1e-30
OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "half_momentum": partial(optax.sgd, momentum=0.5),  # Guo et al. (2022)
    "adam": partial(optax.adam, eps_root=TINY),
}


def named(
    name: Optimizer, learning_rate: Any, weight_decay: Any = 0.0
) -> optax.GradientTransformation:
    """Return an optimizer; rates may be traced.

    The decay, of half the squared norm of the parameters, is added to the gradient.
    """
    decay = optax.add_decayed_weights(weight_decay)
    return optax.chain(decay, OPTIMIZERS[name](learning_rate))
