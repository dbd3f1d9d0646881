"""Where a network has no continuous gradient in its input: there is no Fisher reading.

The Fisher information of a noised gradient differentiates that gradient in the record.
An operation whose own slope jumps (ReLU, max pooling, a rounding) makes it jump, and so
may a root: its slope at 0 is infinite, and the root of x^2 is |x|. Cramer-Rao's theorem
does not hold then. A network is read as the operations it is traced to. Operations that
jump inside of a function known to be smooth (softplus takes a maximum, and is smooth)
do not count; any other doubt counts against the network, which then has no bound rather
than a wrong one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

SUITE = Path(__file__).resolve().parent.parent
JAX = Path(jax.__file__).parent  # as the frames of what it traces name it
WHY, COMPARES = "its slope jumps", "it compares the record"
STEEP = "its slope may be infinite"
# operation -> why it is not smooth
JUMPS = {
    "max": WHY, "min": WHY, "abs": WHY, "clamp": WHY, "reduce_max": WHY,
    "reduce_min": WHY, "cummax": WHY, "cummin": WHY, "reduce_window_max": WHY,
    "reduce_window_min": WHY, "sort": WHY, "top_k": WHY,
    "approx_top_k": WHY,
    "sign": "it jumps", "floor": "it jumps", "ceil": "it jumps", "round": "it jumps",
    "argmax": "it jumps", "argmin": "it jumps", "rem": "it jumps",
    "atan2": "it jumps", "nextafter": "it jumps", "bitcast_convert_type": "it jumps",
    "reduce_precision": "it rounds", "convert_element_type": "it rounds",
    "sqrt": STEEP, "rsqrt": STEEP, "cbrt": STEEP, "pow": STEEP, "asin": STEEP,
    "acos": STEEP, "acosh": STEEP, "cholesky": STEEP,
    "svd": WHY, "eigh": WHY, "eig": WHY, "qr": WHY,
    "gt": COMPARES, "ge": COMPARES, "lt": COMPARES, "le": COMPARES, "eq": COMPARES,
    "ne": COMPARES, "is_finite": COMPARES,
    "stop_gradient": "it hides a part of the derivative",
    "select_n": "it chooses by the record", "cond": "it branches on the record",
    "while": "it stops by the record",
}  # fmt: skip
# functions of JAX with a continuous slope, whatever they are made of
SMOOTH = {
    "elu", "celu", "gelu", "silu", "swish", "mish", "softplus", "sigmoid",
    "log_sigmoid", "softmax", "log_softmax", "_softmax",
    "logsumexp", "logaddexp", "_logaddexp", "tanh", "erf", "squareplus",
}  # fmt: skip
# of these, the ones with a parameter -> whether the slope is continuous at its value
SMOOTH_AT = {"elu": lambda alpha: alpha == 1.0, "squareplus": lambda b: b > 0}
LINEAR = {"dot_general", "conv_general_dilated"}  # what layers are made of
NORMALISERS = "normalization.py"  # of flax: the maximum there is of a variance and 0
NAMED = {
    "reduce_window_max": "max_pool", "max": "maximum", "min": "minimum",
    "convert_element_type": "cast",
}  # fmt: skip


class Jump(NamedTuple):
    """One operation without a continuous slope."""

    name: str  # relu, max_pool
    why: str
    where: str  # "line 12 of net.py"; "" = not known
    after: str = ""  # the layer before it; "" = none

    def __str__(self) -> str:
        """Return it in words."""
        place = f" ({self.where})" if self.where else ""
        return f"{self.name}{place}: {self.why}"


def jumps(fn: Callable, x: Any) -> list[Jump]:
    """Return the operations of `fn` at `x` that depend on x and have no smooth slope.

    Args:
      fn: (x) -> arrays, traced and not run.
      x: [*features] an example, for its shape and type.
    """
    traced = jax.make_jaxpr(fn)(x)
    every = _inside(traced.jaxpr, set(map(id, traced.jaxpr.invars)), "", "")
    first: dict[tuple, Jump] = {}
    for jump in every:
        first.setdefault(jump[:3], jump)
    return list(first.values())


def _inside(jaxpr: Any, moving: set[int], name: str, place: str) -> Iterator[Jump]:
    """Yield the jumps of a program; `moving` are its variables that depend on x.

    Its name and its line are those of the call, as it may have been traced elsewhere.
    """
    layer = ""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in LINEAR:
            layer = str(eqn.source_info.name_stack).rsplit("/", 1)[-1]
        depends = [id(v) in moving for v in eqn.invars]
        if not any(depends):
            continue
        moving.update(map(id, eqn.outvars))
        kind = eqn.primitive.name
        function = str(eqn.params.get("name", ""))
        smooth = function in SMOOTH and not _bent(eqn, function)
        if smooth and _is_jaxs(eqn, function):
            continue
        called = function or name
        where = place or _line(eqn)
        if where == NORMALISERS:
            continue
        if kind in JUMPS and not _harmless(eqn, depends):
            if _inside_of(eqn, SMOOTH - SMOOTH_AT.keys()):  # SELU's ELU is bent
                continue
            operation = name.strip("_") or NAMED.get(kind, kind)
            yield Jump(operation, JUMPS[kind], where, layer)
            continue
        for inner in _programs(eqn):
            # of a loop or a branch: take every argument to depend on x, in doubt
            same = len(inner.invars) == len(depends)
            some = depends if same else [True] * len(inner.invars)
            pairs = zip(inner.invars, some, strict=True)
            moves = {id(v) for v, moves in pairs if moves}
            for jump in _inside(inner, moves, called, where):
                yield jump if jump.after else jump._replace(after=layer)


def _is_jaxs(eqn: Any, function: str) -> bool:
    """Return whether a call is of JAX's function of that name, not of one's own.

    A function under `jit` is called by its name, whoever wrote it; what it does was
    traced in its source.
    """
    inner = [each for program in _programs(eqn) for each in program.eqns]
    return all(_inside_of(each, {function}) for each in inner)


def _inside_of(eqn: Any, functions: Set[str]) -> bool:
    """Return whether an operation was traced in one of these functions of JAX."""
    frames = getattr(eqn.source_info.traceback, "frames", ())
    return any(
        frame.function_name in functions and JAX in Path(frame.file_name).parents
        for frame in frames
    )


def _bent(eqn: Any, function: str) -> bool:
    """Return whether a smooth function has a kink with its arguments, as SELU's ELU."""
    smooth = SMOOTH_AT.get(function, lambda argument: True)
    return not all(smooth(_value(argument)) for argument in eqn.invars[1:])


def _harmless(eqn: Any, depends: list[bool]) -> bool:
    """Return whether one of `JUMPS` has a continuous slope here all the same.

    `depends` says which arguments depend on x.
    """
    kind, first = eqn.primitive.name, eqn.invars[0].aval
    if kind == "select_n":
        return not depends[0]
    if kind == "pow":  # x^3 has no root in it, nor has 2^x, whose base is fixed
        return not depends[0] or float(_value(eqn.invars[1])).is_integer()
    if kind == "convert_element_type":
        return not _continuous(first.dtype) or _continuous(eqn.params["new_dtype"])
    return False


def _continuous(dtype: Any) -> bool:
    """Return whether numbers of a type are fine enough to be taken for real ones.

    Training in half precision is; what is cast to a byte or less is quantised.
    """
    return bool(jnp.issubdtype(dtype, jnp.inexact)) and jnp.dtype(dtype).itemsize > 1


def _value(variable: Any) -> Any:
    """Return the value of an argument; NaN = it is no constant."""
    return getattr(variable, "val", math.nan)


def _programs(eqn: Any) -> Iterator[Any]:
    """Yield the programs an operation calls."""
    for value in eqn.params.values():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, core.Jaxpr):
                yield one


def _line(eqn: Any) -> str:
    """Return the line of the user's that an operation is from, as far as JAX knows."""
    frames = getattr(eqn.source_info.traceback, "frames", ())
    for frame in frames:
        path = Path(frame.file_name)
        if path.name == NORMALISERS and "flax" in path.parts:
            return NORMALISERS
        if re.search(r"[/\\](site-packages|dist-packages)[/\\]", frame.file_name):
            continue
        if SUITE in path.parents:
            return ""
        # a cell of a notebook is a file in a temporary folder
        name = "a cell" if "ipykernel" in frame.file_name else path.name
        return f"line {frame.line_num} of {name}"
    return ""
