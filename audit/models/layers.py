"""What each layer of a network gets of a record, forward and backward.

Clipped sums without per-example gradients (`models.dense`) need the inputs of every
dense or convolutional layer and the errors propagated back to its outputs. Both are
read off one forward and one backward pass, by a tap on the layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from audit.clipping import no_clip
from audit.models.affine import Treatment
from audit.models.dense import Stack, clipped_total

# (path, inputs [*positions, width], outputs) of a layer -> what it returns instead
Tap = Callable[[tuple, Any, Any], Any]


def tapping(tap: Tap | None) -> Any:
    """Return a context in which linen's layers show the tap what they get and return.

    Convolutions are products with patches in it, tap or not: see `convolved`.
    """

    def through(next_fun: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        layer, called = context.module, context.method_name == "__call__"
        path = tuple(layer.path)
        if type(layer) is nn.Conv:  # it is made for this call
            object.__setattr__(layer, "conv_general_dilated", convolving(tap, path))
        out = next_fun(*args, **kwargs)
        if tap is not None and type(layer) is nn.Dense and called:
            return tap(path, args[0], out)
        return out

    return nn.intercept_methods(through)


def convolving(tap: Tap | None, path: tuple) -> Callable:
    """Return a convolution that shows the tap its patches and outputs."""
    return convolved if tap is None else partial(convolved, show=partial(tap, path))


def tapped(tap: Tap, path: tuple, product: Callable) -> Callable:
    """Return a dense layer's product that shows the tap its inputs and outputs."""

    def shown(inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        return tap(path, inputs, product(inputs, kernel, *args, **kwargs))

    return shown


def convolved(
    inputs: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Any,
    *,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    show: Callable | None = None,
    **_: Any,
) -> jax.Array:
    """Return what a flax layer's convolution does, as a product with patches.

    Under vmaps over runs and over records the gradient of a convolution is slow on a
    CPU, and that of three nested ones does not exist in JAX.

    Args:
      inputs: [m, *spatial, channels].
      kernel: [*sizes, channels // groups, outputs].
      strides: of each spatial axis.
      padding: "SAME", "VALID", or (before, after) of each spatial axis.
      lhs_dilation: of the inputs; other than 1 is left to JAX.
      rhs_dilation: of the kernel.
      dimension_numbers: as flax gives them, channels last.
      feature_group_count: groups.
      show: (patches [m, *spatial, kernel // outputs], products) -> what is returned
        instead of the products; without groups and dilated inputs alone.
    """
    sizes, groups = kernel.shape[:-2], feature_group_count
    if any(step != 1 for step in lhs_dilation or ()):
        return jax.lax.conv_general_dilated(
            inputs, kernel, strides, padding, lhs_dilation, rhs_dilation,
            dimension_numbers, groups,
        )  # fmt: skip
    steps = tuple(rhs_dilation or (1,) * len(sizes))
    reach = [(size - 1) * step + 1 for size, step in zip(sizes, steps, strict=True)]
    if isinstance(padding, str):
        spatial = inputs.shape[1:-1]
        padding = jax.lax.padtype_to_pads(spatial, reach, strides, padding)
    x = jnp.pad(inputs, [(0, 0), *padding, (0, 0)])
    x = windows(x, sizes, strides, steps)
    if groups == 1:
        products = x @ kernel.reshape(-1, kernel.shape[-1])
        return products if show is None else show(x, products)
    many = math.prod(sizes)
    x = x.reshape(*x.shape[:-1], many, groups, -1)
    weights = kernel.reshape(many, kernel.shape[-2], groups, -1)
    return jnp.einsum("...kgc,kcgo->...go", x, weights).reshape(*x.shape[:-3], -1)


def windows(
    x: jax.Array,
    sizes: Sequence[int],
    strides: Sequence[int],
    steps: Sequence[int] | None = None,
) -> jax.Array:
    """Return what each filter sees: [..., *spatial, numbers of a filter].

    Slices are used since their gradient is padding: with an index, the second
    derivatives of inversion attacks would be scatters. One axis follows the other,
    which needs fewer slices and compiles faster. They are stacked: a processor takes
    up to three times as long to concatenate them along the channels, number by number.

    Args:
      x: [..., *spatial, channels].
      sizes: of a filter along each spatial axis.
      strides: from one filter to the next.
      steps: from one number of a filter to the next; None = 1.
    """
    first, after = x.ndim - 1 - len(sizes), x.ndim - 1
    for i in reversed(range(len(sizes))):
        axis, step = first + i, 1 if steps is None else steps[i]
        many = (x.shape[axis] - (sizes[i] - 1) * step - 1) // strides[i] + 1
        starts = [divmod(k * step, strides[i]) for k in range(sizes[i])]
        # filters share the slices with a stride, whose gradients are slow
        phases = {
            phase: jax.lax.slice_in_dim(x, phase, None, strides[i], axis)
            for _, phase in starts
        }
        cut = [
            jax.lax.slice_in_dim(phases[phase], start, start + many, 1, axis)
            for start, phase in starts
        ]
        x = jnp.stack(cut, after)
        x = x.reshape(*x.shape[:after], -1)
    return x


def stack_of(
    name: str, apply: Callable, params: Any, x: Any, loss: Callable
) -> tuple[Stack | None, str]:
    """Return the layers of a network whose every parameter is a layer's, or None.

    Args:
      name: of the network.
      apply: (params, x [*features], tap or None) -> outputs of one example.
      params: shapes of the parameters, a pytree.
      x: an example, for its shape and type.
      loss: (outputs, label) -> [].

    Returns:
      The layers; and which of them is to blame where there are none.
    """
    layers: list[tuple[tuple, tuple, tuple]] = []  # path, shape of inputs, of outputs

    def look(path: tuple, inputs: Any, out: Any) -> Any:
        layers.append((path, inputs.shape, out.shape))
        return out

    jax.eval_shape(lambda p: apply(p, x, look), params)
    leaves = {
        tuple(k.key for k in path) for path, _ in jax.tree.leaves_with_path(params)
    }
    paths = [path for path, _, _ in layers]
    read = {(*path, part) for path in paths for part in ("kernel", "bias")}
    for path in sorted(leaves - read, key=str):
        owner = "/".join(map(str, path[:-1])) or name
        return None, f"{owner} is no dense or convolutional layer (its {path[-1]})"
    for path in paths:
        if paths.count(path) > 1:
            owner = "/".join(map(str, path)) or name
            return None, f"{owner} is used more than once"
    if not layers:
        return None, "it has no dense or convolutional layer"
    shape = x.shape

    def passes(params: Any, x: Any, y: Any) -> tuple[list, list]:
        return jax.vmap(one, (None, 0, 0))(params, x.reshape(len(y), *shape), y)

    def one(params: Any, x: Any, y: Any) -> tuple[list, list]:
        def value(moved: dict) -> tuple[Any, dict]:
            inputs = {}

            def tap(path: tuple, before: Any, out: Any) -> Any:
                inputs[path] = _rows(before)
                return out + moved[path].astype(out.dtype)

            return loss(apply(params, x, tap), y), inputs

        zeros = {path: jnp.zeros(out, x.dtype) for path, _, out in layers}
        errors, inputs = jax.grad(value, has_aux=True)(zeros)
        return [inputs[p] for p in paths], [_rows(errors[p]) for p in paths]

    unbiased = frozenset(p for p in paths if (*p, "bias") not in leaves)
    positions = tuple(math.prod(inputs[:-1]) for _, inputs, _ in layers)
    parts = {"passes": passes, "unbiased": unbiased, "positions": positions}
    return Stack(tuple(paths), **parts), ""  # type: ignore[arg-type]


def _rows(a: Any) -> Any:
    """Return one vector per position [positions, width]; [width] where there is one."""
    rows = a.reshape(-1, a.shape[-1])
    return rows[0] if len(rows) == 1 else rows


def is_the_gradient(
    stack: Stack, init: Callable, loss: Callable, x: Any, label: Any
) -> bool:
    """Return whether the layers' passes give the gradient of one record, tried once.

    `loss` is (params, x, label) -> [], `init` (key) -> params.
    """
    to = Treatment(no_clip(), 0)

    @jax.jit
    def both(key: jax.Array) -> tuple[Any, Any]:
        params, record = init(key), jax.random.uniform(key, x.shape)
        total = clipped_total(stack, params, record[None], label[None], None, to)
        return total, jax.grad(loss)(params, record, label)

    try:
        total, plain = both(jax.random.key(0))
    except Exception:  # a lifted transformation: its layers cannot be read
        return False
    leaves = [dict(jax.tree.leaves_with_path(tree)) for tree in (total, plain)]
    if leaves[0].keys() != leaves[1].keys():
        return False
    pairs = [(leaf, leaves[1][path]) for path, leaf in leaves[0].items()]
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in pairs
    )
