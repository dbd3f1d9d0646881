"""Pre-training on public data: the initial parameters of all runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from audit.models import optimizers
from audit.rng import stream
from audit.types import Examples, Public, Task


def start(
    task: Task,
    key: jax.Array,
    records: Examples,
    *,
    epochs: int = 0,
    batch_size: int = 512,
    learning_rate: float = 0.01,
    weight_decay: float = 1e-4,
) -> Public:
    """Return the one starting point of all runs: initialised, then pre-trained.

    Args:
      task: what the model learns.
      key: for the initialisation and the batches.
      records: public; may be empty without pre-training.
      epochs: passes over the records; 0 leaves the initialisation.
      batch_size: see `pretrain`.
      learning_rate: see `pretrain`.
      weight_decay: see `pretrain`.

    Raises:
      ValueError: if there are epochs but no records.
    """
    params = pretrain(
        task,
        task.init(stream(key, "init")),
        records,
        stream(key, "pretrain"),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
    )
    return Public(records, params)


def pretrain(
    task: Task,
    params: Any,
    public: Examples,
    key: jax.Array,
    *,
    epochs: int,
    batch_size: int = 512,
    learning_rate: float = 0.01,
    weight_decay: float = 1e-4,
) -> Any:
    """Train `params` on public data with Adam; defaults of Edmunds (2024), Table B.1.

    Weight decay is added to the gradient before Adam, as in the thesis. A data set
    smaller than a batch is one batch.

    Args:
      task: whose loss is minimised.
      params: initial parameters.
      public: records anyone may use, x [n, *features], y [n].
      key: for the order of the batches.
      epochs: passes over the data; 0 returns `params`.
      batch_size: at most this many records per step.
      learning_rate: of Adam.
      weight_decay: of half the squared norm of all parameters.

    Raises:
      ValueError: if there are epochs but no public record.
    """
    if epochs == 0:
        return params
    n = len(public.y)
    if n == 0:
        raise ValueError("pre-training needs public records and the split has none")
    adam = optimizers.named("adam", learning_rate, weight_decay)
    public = jax.tree.map(jnp.asarray, public)
    rows = epochs_of_batches(key, n, min(batch_size, n), epochs)

    def step(carry: tuple, rows: jax.Array) -> tuple:
        params, opt = carry
        batch = Examples(public.x[rows], public.y[rows])

        def mean_loss(params: Any) -> jax.Array:
            return jax.vmap(task.loss, (None, 0))(params, batch).mean()

        updates, opt = adam.update(jax.grad(mean_loss)(params), opt, params)
        return (optax.apply_updates(params, updates), opt), None

    run = jax.jit(lambda params: jax.lax.scan(step, (params, adam.init(params)), rows))
    return run(params)[0][0]


def epochs_of_batches(key: jax.Array, n: int, size: int, epochs: int) -> jax.Array:
    """Return rows [batches, size] that visit n records in a new order every epoch."""
    keys = [stream(jax.random.fold_in(key, e), "pretrain") for e in range(epochs)]
    return jnp.concatenate([permuted(k, n, size) for k in keys])


def permuted(key: jax.Array, n: int, size: int) -> jax.Array:
    """Return rows [n // size, size] that visit records at most once, shuffled."""
    return jax.random.permutation(key, n)[: n // size * size].reshape(-1, size)
