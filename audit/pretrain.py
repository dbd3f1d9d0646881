"""Pre-training on public data: where every run of every lane starts from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from audit.rng import stream
from audit.types import Examples, Task


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
      params: where to start.
      public: records anyone may use, x [n, *features], y [n].
      key: order of the batches.
      epochs: passes over the data; 0 returns `params`.
      batch_size: at most this many records a step.
      learning_rate: of Adam.
      weight_decay: of the squared norm of all parameters.

    Raises:
      ValueError: if there is something to train on but no public record.
    """
    if epochs == 0:
        return params
    n = len(public.y)
    if n == 0:
        raise ValueError("pre-training needs public records and the split has none")
    size = min(batch_size, n)
    optimizer = optax.chain(
        optax.add_decayed_weights(weight_decay), optax.adam(learning_rate)
    )

    def step(carry: tuple, rows: jax.Array) -> tuple:
        params, opt = carry
        batch = Examples(public.x[rows], public.y[rows])

        def mean_loss(params: Any) -> jax.Array:
            return jax.vmap(task.loss, (None, 0))(params, batch).mean()

        updates, opt = optimizer.update(jax.grad(mean_loss)(params), opt, params)
        return (optax.apply_updates(params, updates), opt), None

    public = jax.tree.map(jnp.asarray, public)
    orders = jnp.concatenate(
        [
            jax.random.permutation(stream(jax.random.fold_in(key, e), "pretrain"), n)
            for e in range(epochs)
        ]
    )
    batches = orders[: len(orders) // size * size].reshape(-1, size)
    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), batches)
    return params
