"""A defense from a training function alone: `from_train`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from audit.errors import UserError, brief, in_words
from audit.mechanisms import batch as batches
from audit.mechanisms.noisy_sgd import predictor
from audit.mechanisms.query import Side, start
from audit.types import Defense, Examples, Release, Task, TrainingSet, Trait

REMEDY = "return the parameters, a tree like the one it was given"


def from_train(task: Task, train: Callable) -> Defense:
    """Return a defense of which nothing is known but how it trains.

    Every game that needs only releases can be played. There is no accounting, hence no
    bound: what protects the records, if anything does, is the attacks' to find out.

    Args:
      task: what is learnt; its `loss` and `logits` are there for `train` to use.
      train: (key, params, records) -> params, in JAX. It begins at `params`, draws all
        randomness from `key`, and is a pure function: the same key and records give the
        same result. `records` are x [n, *features] and y [n]. With a fourth argument,
        which has no default, it is given weights [n] too, 0 for a record that is not
        there, and games can be played in which the number of records differs.

    Raises:
      UserError: if `task` is no task, or `train` no function.
      ValueError: where it is traced, if `train` cannot be, or returns something else.
    """
    if not isinstance(task, Task) or not callable(train):
        given = f"from_train({brief(task)}, {brief(train)})"
        raise UserError(f"{given}: a task and a function to train it are wanted")
    arguments = inspect.signature(train).parameters.values()
    # one that has a default is a setting of the function's own, not the weights
    weighted = sum(each.default is each.empty for each in arguments) > 3
    name = getattr(train, "__name__", "train")

    def run(key: jax.Array, side: Side, data: TrainingSet) -> Release:
        fixed, rows = data.fixed, data.rows
        present = jnp.ones(batches.count(data))
        if rows is not None:
            fixed = batches.take(fixed, jnp.maximum(rows, 0))
            present = present.at[: len(rows)].set(rows >= 0)
        records = fixed
        if data.target is not None:
            x, y = (
                jnp.concatenate([jnp.asarray(many), jnp.asarray(one)[None]])
                for many, one in zip(fixed, data.target, strict=True)
            )
            records = Examples(x, y)
        more = (present,) if weighted else ()
        try:
            params = train(key, side.params, records, *more)
        except Exception as error:  # whatever a training loop may raise
            raise ValueError(
                f"{name} cannot be traced by JAX: {in_words(error)}"
            ) from error
        _check(name, side.params, params)
        return Release(params)

    traits: set[Trait] = {"unaccounted"}
    return Defense(
        prepare=start,
        train=run,
        predict=predictor(task),
        fisher=None,
        log_likelihood=None,
        rdp=None,
        pld=None,
        traits=frozenset(traits | ({"rows"} if weighted else set())),
    )


def _check(name: str, before: Any, after: Any) -> None:
    """Refuse what does not look like the parameters."""
    shapes: list[Any] = [jax.tree.structure(tree) for tree in (before, after)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name} returns {type(after).__name__} of another structure: {REMEDY}"
        )
    leaves = zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True)
    for (path, old), new in leaves:
        if jnp.shape(old) != jnp.shape(new):
            raise ValueError(
                f"{name} returns {jax.tree_util.keystr(path)} of shape "
                f"{jnp.shape(new)}, not {jnp.shape(old)}: {REMEDY}"
            )
