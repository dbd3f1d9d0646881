"""What goes step by step, so that a long computation can be saved in between.

It is the same whether it is computed in one piece or part by part: between two parts
its whole state is the carry of its loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import jax


class Loop(NamedTuple):
    """What a method computes for one key, side and training set."""

    first: Any  # the carry before the first step
    body: Callable  # (carry, what is planned for the step) -> carry
    last: Callable  # the carry after the last step -> what the method returns
    planned: Any = None  # leading axis steps; None = nothing is

    def part(self, carry: Any, begin: Any, end: Any) -> Any:
        """Return the carry after the steps `begin` to `end`; both may be traced."""

        def step(t: Any, carry: Any) -> Any:
            return self.body(carry, jax.tree.map(lambda a: a[t], self.planned))

        return jax.lax.fori_loop(begin, end, step, carry)

    def whole(self, steps: int, apart: int = 0) -> Any:
        """Return what the method returns after so many steps, in one piece.

        The first `apart` steps are written out before the loop.
        """

        def step(carry: Any, planned: Any) -> tuple:
            return self.body(carry, planned), None

        carry = self.first
        for t in range(apart):
            carry = self.body(carry, jax.tree.map(itemgetter(t), self.planned))
        rest = jax.tree.map(itemgetter(slice(apart, None)), self.planned)
        return self.last(jax.lax.scan(step, carry, rest, length=steps - apart)[0])


class PublicFit(NamedTuple):
    """What a `prepare` fits to public data, for one key."""

    first: Any  # the state before the first step, a pytree of arrays
    part: Callable  # (state, begin, end) -> the state after those steps; compiled
    last: Callable  # the state after the last step -> the side


@dataclass(frozen=True)
class Preparation:
    """A `prepare` that takes `steps` steps; called, it takes all of them."""

    fit: Callable[..., PublicFit]  # of the arguments of `prepare`
    steps: int

    def __call__(self, *arguments: Any) -> Any:
        """Return the side, computed in one piece."""
        fit = self.fit(*arguments)
        return fit.last(fit.part(fit.first, 0, self.steps))


@dataclass(frozen=True, eq=False)  # JAX refers to functions weakly: no tuple
class Stepwise:
    """A method that takes `steps` steps; called, it takes all of them."""

    loop: Callable[..., Loop]  # of the method's own arguments
    steps: int
    apart: int = 0  # first steps that are written out before the loop, at most `steps`

    def __call__(self, *arguments: Any) -> Any:
        """Return what the method returns, computed in one piece."""
        return self.loop(*arguments).whole(self.steps, self.apart)
