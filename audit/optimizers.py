"""Optimizers by name; all of them only post-process the noised mean."""

import optax

OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam}
