"""Pre-training on public data: the initial parameters of all runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from audit.models import optimizers
from audit.rng import stream
from audit.types import Examples, Optimizer, Public, Task


def start(
    task: Task,
    key: jax.Array,
    records: Examples,
    *,
    epochs: int = 0,
    batch_size: int = 512,
    learning_rate: float = 0.01,
    weight_decay: float = 1e-4,
    optimizer: Optimizer = "adam",
) -> Public:
    """Return the one starting point of all runs: initialised, then trained.

    The defaults are those of Edmunds (2024), Table B.1.

    Args:
      task: what the model learns.
      key: for the initialisation and the order of the batches.
      records: public, x [n, *features], y [n]; may be empty without epochs.
      epochs: passes over the records; 0 leaves the initialisation.
      batch_size: records per step, or all of them if there are fewer.
      learning_rate: of the optimizer.
      weight_decay: of half the squared norm of all parameters; added to the gradient
        before the optimizer, as in the thesis.
      optimizer: by name.

    Raises:
      ValueError: if there are epochs but no records.
    """
    start, n = task.init(stream(key, "init")), len(records.y)
    if epochs == 0:
        return Public(records, start)
    if n == 0:
        raise ValueError("pre-training needs public records and the split has none")
    rule = optimizers.named(optimizer, learning_rate, weight_decay)
    public, size = jax.tree.map(jnp.asarray, records), min(batch_size, n)
    fold = partial(jax.random.fold_in, stream(key, "pretrain"))
    keys = [stream(fold(epoch), "pretrain") for epoch in range(epochs)]
    rows = jnp.concatenate([permuted(k, n, size) for k in keys])

    def step(carry: tuple, rows: jax.Array) -> tuple:
        params, opt = carry
        batch = Examples(public.x[rows], public.y[rows])

        def mean_loss(params: Any) -> jax.Array:
            return jax.vmap(task.loss, (None, 0))(params, batch).mean()

        updates, opt = rule.update(jax.grad(mean_loss)(params), opt, params)
        return (optax.apply_updates(params, updates), opt), None

    run = jax.jit(lambda params: jax.lax.scan(step, (params, rule.init(params)), rows))
    return Public(records, run(start)[0][0])


def permuted(key: jax.Array, n: int, size: int) -> jax.Array:
    """Return rows [n // size, size] that visit records at most once, shuffled."""
    return jax.random.permutation(key, n)[: n // size * size].reshape(-1, size)
