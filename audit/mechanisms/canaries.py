"""Canaries: records planted so that an auditor can tell whether they were trained on.

A *gradient canary* is the worst case: a record whose gradient is long and moves one
parameter that nothing else moves (the Dirac canary of Nasr et al. 2023). An *input
canary* is an ordinary record with a wrong label, a *blank* one has zeros for features
and the last label (Annamalai and De Cristofaro 2024). A record whose slot is empty has
no gradient: in or out then differ by exactly one contribution, and n is public.

The label of a record says what it is: below 0 an empty slot, from `classes` on the
gradient canary of that number, else an ordinary record. Training, clipping and noise
are those of the defense.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from audit.models import dense
from audit.models.dense import Stack
from audit.types import Examples, Task

Kind = Literal["gradient", "input", "blank"]
EMPTY = -1  # label of a slot with nobody in it
CANARIES = "canaries"  # the parameters that gradient canaries move


def plant(task: Task, count: int, norm: float) -> Task:
    """Return the task with `count` more parameters, one per gradient canary.

    Layered networks keep their closed forms; those of affine logits do not cover
    canaries and are dropped. `norm` is that of a canary's gradient before it is
    clipped.

    Raises:
      ValueError: if labels are numbers.
    """
    k = task.classes
    if not k:
        raise ValueError("canaries need labels that are classes")

    def loss(params: Any, z: Examples) -> jax.Array:
        canary = norm * params[CANARIES]["kernel"][jnp.clip(z.y - k, 0, count - 1), 0]
        plain = task.loss(params["model"], z._replace(y=jnp.clip(z.y, 0, k - 1)))
        return jnp.where(z.y < 0, 0.0, jnp.where(z.y >= k, canary, plain))

    def init(key: jax.Array) -> Any:
        kernel = jnp.zeros((count, 1))
        return {"model": task.init(key), CANARIES: {"kernel": kernel}}

    return task._replace(
        name=f"{task.name}, {count} canaries of norm {norm!r}",
        loss=loss,
        logits=lambda params, x: task.logits(params["model"], x),
        init=init,
        linear=None,
        smooth=True,
        dense=task.dense and _layers(task, count, norm),
    )


def _layers(task: Task, count: int, norm: float) -> Stack:
    """Return the layers of a network, and one that gradient canaries alone pass.

    Such a canary enters that layer, which has no bias, as a unit vector, and its error
    there is `norm`.
    """
    k, stack = task.classes, task.dense

    def passes(params: Any, x: Any, y: Any) -> tuple[list, list]:
        inputs, errors = dense.factors(stack, params["model"], x, y.clip(0, k - 1), k)
        is_record = (y >= 0) & (y < k)
        errors = [jnp.einsum("i,i...->i...", is_record, e) for e in errors]
        canary = jax.nn.one_hot(y - k, count, dtype=x.dtype)
        return [*inputs, canary], [*errors, norm * canary.sum(-1, keepdims=True)]

    def planted(names: Iterable[Any]) -> list[Any]:
        return [*(("model", *dense.path(name)) for name in names), CANARIES]

    return Stack(
        tuple(planted(stack.layers)),
        passes=passes,
        unbiased=frozenset(planted(stack.unbiased)),
        positions=(*stack.every_position, 1),
    )


def records(kind: Kind, count: int, task: Task, pool: Examples) -> Examples:
    """Return the canaries [count, ...] of a task that `plant` made.

    Input canaries are the pool's first records, each with the next label.

    Raises:
      ValueError: if the pool has fewer.
    """
    if kind != "input":
        x = np.zeros((count, *task.features), np.float32)
        labels = np.arange(count) + task.classes
        labels = labels if kind == "gradient" else np.full(count, task.classes - 1)
        return Examples(x, labels.astype(np.int32))
    if len(pool.y) < count:
        raise ValueError(f"{count} input canaries from a pool of {len(pool.y)} records")
    y = (np.asarray(pool.y[:count]) + 1) % task.classes
    return Examples(np.asarray(pool.x[:count]), y.astype(np.int32))


def present(canaries: Examples, member: Any) -> Examples:
    """Return the canaries [m, ...], the slots of those not in `member` [m] emptied."""
    return canaries._replace(y=np.where(member, canaries.y, EMPTY).astype(np.int32))
