"""One step taken apart: what the query adds to every gradient, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from audit.mechanisms.batch import count, records, weights
from audit.types import Dissection, Examples, Query, State, TrainingSet


def dissector(query: Query, step: Callable, leak: Callable) -> Callable | None:
    """Return `dissect` of a defense that iterates, None where the query has no parts.

    Args:
      query: whose `parts` are looked at; `final` is what its `fn` returns, the very
        function that training sums.
      step: of the defense.
      leak: (key, TrainingSet, rows [m]) -> (StepView -> Fisher information of the step
        about the records at `rows` [m]), or None where there is no reading.
    """
    parts = query.parts
    if parts is None:
        return None

    def dissect(
        key: jax.Array, state: State, data: TrainingSet, public: Examples
    ) -> tuple[State, Dissection]:
        rows = jnp.arange(count(data))
        state, view = step(key, state, data)
        apart = jax.vmap(parts, (None, None, 0))
        z = records(data, rows)
        base, added = apart(view.params, view.side, z)
        final = jax.vmap(query.fn, (None, None, 0))(view.params, view.side, z)
        base, weight = _flat(base), weights(view.batch, rows)
        known = None
        if len(public.y):
            known = _flat(apart(view.params, view.side, public)[0]).mean(0)
        see = leak(key, data, rows)
        return state, Dissection(
            params=state.params,
            base=base,
            added=None if added is None else _flat(added),
            final=_flat(final),
            public=known,
            private=weight @ base / weight.sum(),
            trace=None if see is None else see(view),
        )

    return dissect


def _flat(tree: Any) -> jax.Array:
    """Return a pytree of [m, ...] as one array [m, D]."""
    return jax.vmap(lambda one: ravel_pytree(one)[0])(tree)
