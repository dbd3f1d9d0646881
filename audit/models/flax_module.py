"""A flax module of one's own as a task: `from_flax`.

Where every parameter belongs to a dense layer that each example passes once, as one
vector, clipped sums are made without per-example gradients ("ghost clipping",
`models.dense`): the layers' inputs and errors are read off one forward and one backward
pass. Every other module has per-example gradients. `Task.notes` say which, and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from audit.clipping import no_clip
from audit.errors import UserError
from audit.models import smoothness
from audit.models.affine import Treatment
from audit.models.dense import Stack, clipped_total
from audit.types import Task

Tap = Callable[[tuple, Any, Any], Any]  # (path, inputs, outputs) of a dense layer ->
# what it returns instead of its outputs
REMEDY = {
    "BatchNorm": "batch statistics mix records; use LayerNorm or GroupNorm",
    "Dropout": "it is random; leave it out, or set its rate to 0",
}
MOST_NOTES = 6


class _Network(NamedTuple):
    """A module as functions of one example."""

    name: str
    init: Callable  # (key) -> params
    apply: Callable  # (params, x [*features], tap or None) -> outputs [outputs]


def from_flax(module: Any, example_x: Any, *, loss: Callable | None = None) -> Task:
    """Return the task of fitting a flax module.

    Args:
      module: a linen module; an nnx module, whose parameters all runs start from; or a
        function (rngs) -> nnx module. It takes a batch [m, *features], or one example,
        and has one output per class, or a single one where labels are numbers.
      example_x: [*features] one record, for its shape.
      loss: (outputs [k], label) -> []; default: the cross-entropy of k >= 2 classes,
        half the squared error of a single output.

    Raises:
      UserError: for batch statistics, dropout and other state or randomness, naming the
        layer; for outputs of another shape.
    """
    x = jnp.asarray(example_x, jnp.float32)
    network = _linen(module, x) if isinstance(module, nn.Module) else _nnx(module, x)
    params = jax.eval_shape(network.init, jax.random.key(0))
    try:
        shape = jax.eval_shape(lambda p: network.apply(p, x, None), params).shape
    except Exception as error:  # whatever a module may raise
        raise UserError(_cannot(network.name, x, error)) from None
    if len(shape) != 1:
        raise UserError(
            f"{network.name} returns shape {shape} for one record; [outputs], one per "
            f"class, are wanted"
        )
    if loss is None:
        loss = optax.softmax_cross_entropy_with_integer_labels
        if shape[0] == 1:
            loss = _half_squared
    stack, why = _stack(network, params, x, loss)
    start = jax.tree.map(_zeros, params)
    jumps = smoothness.jumps(lambda x: network.apply(start, x, None), x)
    features = tuple(x.shape)
    classes = shape[0] if shape[0] > 1 else 0
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    ghost = "ghost clipping: every layer is dense"
    notes = [
        f"{network.name}: {count:,} parameters",
        ghost if stack is not None else f"per-example gradients: {why}",
        *(f"no Fisher reading, hence no dFIL: {jump}" for jump in jumps[:MOST_NOTES]),
    ]
    return Task(
        name=f"{network.name} {'x'.join(map(str, features))} -> {classes}",
        loss=lambda params, z: loss(network.apply(params, z.x, None), z.y),
        logits=lambda params, x: network.apply(params, x, None),
        init=network.init,
        features=features,
        classes=classes,
        smooth=not jumps,
        dense=stack,
        notes=tuple(notes),
    )


def _half_squared(outputs: jax.Array, label: Any) -> jax.Array:
    return (outputs[0] - label) ** 2 / 2


def _cannot(name: str, x: Any, error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return (
        f"{name} cannot be applied to records of shape {tuple(x.shape)}: "
        f"{type(error).__name__}: {text}"
    )


def _refused(name: str, layer: str, kind: str) -> UserError:
    return UserError(f"{name}: {layer} is {kind}: {REMEDY[kind]}")


def _batched(apply: Callable, x: Any) -> bool:
    """Return whether a module takes a batch [1, *features] to [1, outputs]."""
    try:
        shape = jax.eval_shape(apply, x[None]).shape
    except Exception:  # whatever a module may raise
        return False
    return len(shape) == 2 and shape[0] == 1


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
    **_: Any,
) -> jax.Array:
    """Return what a flax layer's convolution does, as a product with patches.

    Under vmaps over runs and over records the gradient of a convolution is slow on a
    CPU, and that of three nested ones does not exist in JAX (`networks.windows`).

    Args:
      inputs: [m, *spatial, channels].
      kernel: [*sizes, channels // groups, outputs].
      strides: of each spatial axis.
      padding: "SAME", "VALID", or (before, after) of each spatial axis.
      lhs_dilation: of the inputs; other than 1 is left to JAX.
      rhs_dilation: of the kernel.
      dimension_numbers: as flax gives them, channels last.
      feature_group_count: groups.
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
    for axis in reversed(range(1, len(sizes) + 1)):
        last = x.shape[axis] - reach[axis - 1] + 1
        starts = [i * steps[axis - 1] for i in range(sizes[axis - 1])]
        cut = [
            jax.lax.slice_in_dim(x, i, i + last, strides[axis - 1], axis)
            for i in starts
        ]
        x = jnp.concatenate(cut, -1)
    if groups == 1:
        return x @ kernel.reshape(-1, kernel.shape[-1])
    many = math.prod(sizes)
    x = x.reshape(*x.shape[:-1], many, groups, -1)
    weights = kernel.reshape(many, kernel.shape[-2], groups, -1)
    return jnp.einsum("...kgc,kcgo->...go", x, weights).reshape(*x.shape[:-3], -1)


# linen --------------------------------------------------------------------------------


def _linen(module: nn.Module, x: Any) -> _Network:
    name, key = type(module).__name__, jax.random.key(0)
    kinds: dict[tuple, nn.Module] = {}

    def look(next_fun: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        kinds[tuple(context.module.path)] = context.module
        return next_fun(*args, **kwargs)

    def start(x: Any) -> Any:
        with nn.intercept_methods(look):
            return module.init({"params": key, "dropout": key}, x)

    failures: list[Exception] = []
    variables: Any = None
    for batch in (x[None], x):
        try:
            variables = jax.eval_shape(start, batch)
            break
        except Exception as error:  # whatever a module may raise
            failures.append(error)
    for path, layer in kinds.items():
        kind = type(layer).__name__
        dropout = isinstance(layer, nn.Dropout) and layer.rate > 0
        if dropout or kind == "BatchNorm":
            raise _refused(name, "/".join(path) or kind, kind)
    if variables is None:
        raise UserError(_cannot(name, x, failures[0]))
    for collection in variables.keys() - {"params"}:
        owner = "/".join(map(str, _first_path(variables[collection])))
        raise UserError(
            f"{name}: {owner} keeps {collection} beside its parameters: a layer with "
            f"state is not supported, use one without"
        )
    if "params" not in variables:
        raise UserError(f"{name} has no parameters")
    shapes = variables["params"]
    batched = _batched(
        lambda x: module.apply({"params": jax.tree.map(_zeros, shapes)}, x), x
    )

    def init(key: jax.Array) -> Any:
        return module.init(key, x[None] if batched else x)["params"]

    def apply(params: Any, x: Any, tap: Tap | None) -> Any:
        def through(next_fun: Callable, args: Any, kwargs: Any, context: Any) -> Any:
            layer = context.module  # made for this call
            if type(layer) is nn.Conv:
                object.__setattr__(layer, "conv_general_dilated", convolved)
            out = next_fun(*args, **kwargs)
            if tap and type(layer) is nn.Dense and context.method_name == "__call__":
                return tap(tuple(layer.path), args[0], out)
            return out

        with nn.intercept_methods(through):
            out: Any = module.apply({"params": params}, x[None] if batched else x)
        return out[0] if batched else out

    return _Network(name, init, apply)


def _first_path(tree: Any) -> tuple:
    return next(
        tuple(k.key for k in path[:-1] or path)
        for path, _ in jax.tree.leaves_with_path(tree)
    )


def _zeros(leaf: Any) -> jax.Array:
    return jnp.zeros(leaf.shape, leaf.dtype)


# nnx ----------------------------------------------------------------------------------


def _nnx(module: Any, x: Any) -> _Network:
    if not isinstance(module, nnx.Module) and not callable(module):
        raise UserError(
            f"{type(module).__name__} is no flax module: give a linen module, an nnx "
            f"module, or a function (rngs) -> nnx module"
        )
    fixed = isinstance(module, nnx.Module)
    network = module if fixed else _built(module, jax.random.key(0))
    name = type(network).__name__
    for path, layer in nnx.iter_modules(network):
        kind = type(layer).__name__
        dropout = isinstance(layer, nnx.Dropout) and layer.rate > 0
        if dropout or kind == "BatchNorm":
            raise _refused(name, "/".join(map(str, path)) or kind, kind)
    graph, state, rest = nnx.split(network, nnx.Param, ...)  # type: ignore[misc]
    for path, variable in nnx.to_flat_state(rest):
        place = "/".join(map(str, path))
        raise UserError(
            f"{name}: {place} is a {type(variable).__name__}, no parameter: a layer "
            f"with state or randomness is not supported, use one without"
        )
    start = nnx.to_pure_dict(state)

    def init(key: jax.Array) -> Any:
        if fixed:
            return start
        return nnx.to_pure_dict(nnx.state(_built(module, key), nnx.Param))

    def run(params: Any, x: Any, tap: Tap | None) -> Any:
        filled = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(filled, params)
        network = nnx.merge(graph, filled)
        for path, layer in nnx.iter_modules(network):
            if type(layer) is nnx.Conv:
                layer.conv_general_dilated = convolved
            if tap and type(layer) is nnx.Linear:
                layer.dot_general = _tapped(tap, path, layer.dot_general)
        return network(x)

    batched = _batched(lambda x: run(start, x, None), x)

    def apply(params: Any, x: Any, tap: Tap | None) -> Any:
        out = run(params, x[None] if batched else x, tap)
        return out[0] if batched else out

    return _Network(name, init, apply)


def _built(factory: Callable, key: jax.Array) -> Any:
    """Return what a function of random streams builds."""
    try:
        network = factory(nnx.Rngs(key))
    except TypeError:
        try:
            network = factory(rngs=nnx.Rngs(key))
        except TypeError as error:
            raise UserError(
                f"cannot build the nnx module: {error}; give a function of the random "
                f"streams alone, as lambda rngs: Net(784, 10, rngs=rngs)"
            ) from None
    if not isinstance(network, nnx.Module):
        kind = type(network).__name__
        raise UserError(f"the function returns {kind}, no nnx module")
    return network


def _tapped(tap: Tap | None, path: tuple, product: Callable) -> Callable:
    """Return a dense layer's product that hands its inputs and outputs to the tap."""
    assert tap is not None

    def tapped(inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        return tap(path, inputs, product(inputs, kernel, *args, **kwargs))

    return tapped


# Ghost clipping -----------------------------------------------------------------------


def _stack(
    network: _Network, params: Any, x: Any, loss: Callable
) -> tuple[Stack | None, str]:
    """Return the closed form of a module of dense layers, or None and the reason."""
    layers: list[tuple[tuple, tuple, tuple]] = []  # path, shape of inputs, of outputs

    def look(path: tuple, inputs: Any, out: Any) -> Any:
        layers.append((path, inputs.shape, out.shape))
        return out

    jax.eval_shape(lambda p: network.apply(p, x, look), params)
    leaves = {
        tuple(k.key for k in path) for path, _ in jax.tree.leaves_with_path(params)
    }
    paths = [path for path, _, _ in layers]
    dense = {(*path, part) for path in paths for part in ("kernel", "bias")}
    for path in sorted(leaves - dense, key=str):
        owner = "/".join(map(str, path[:-1])) or network.name
        return None, f"{owner} is no dense layer (its {path[-1]})"
    for path, inputs, _ in layers:
        owner = "/".join(map(str, path)) or network.name
        if paths.count(path) > 1:
            return None, f"{owner} is used more than once"
        if int(np.prod(inputs)) != inputs[-1]:
            return None, f"{owner} is applied to {inputs[:-1]} vectors of one record"
    if not layers:
        return None, "it has no dense layer"
    shape = x.shape

    def passes(params: Any, x: Any, y: Any) -> tuple[list, list]:
        return jax.vmap(one, (None, 0, 0))(params, x.reshape(len(y), *shape), y)

    def one(params: Any, x: Any, y: Any) -> tuple[list, list]:
        def value(moved: dict) -> tuple[Any, dict]:
            inputs = {}

            def tap(path: tuple, before: Any, out: Any) -> Any:
                inputs[path] = before.reshape(-1)
                return out + moved[path].astype(out.dtype)

            return loss(network.apply(params, x, tap), y), inputs

        zeros = {path: jnp.zeros(out, x.dtype) for path, _, out in layers}
        errors, inputs = jax.grad(value, has_aux=True)(zeros)
        return [inputs[p] for p in paths], [errors[p].reshape(-1) for p in paths]

    unbiased = frozenset(p for p in paths if (*p, "bias") not in leaves)
    stack = Stack(tuple(paths), passes=passes, unbiased=unbiased)
    if not _is_the_gradient(stack, network, x, loss):
        return None, "its layers are transformed"
    return stack, ""


def _is_the_gradient(stack: Stack, network: _Network, x: Any, loss: Callable) -> bool:
    """Return whether the passes of one record give its gradient, tried once."""
    to = Treatment(no_clip(), 0)

    @jax.jit
    def both(key: jax.Array) -> tuple[Any, Any]:
        params, record = network.init(key), jax.random.uniform(key, x.shape)
        label = jnp.zeros((), int)
        total = clipped_total(stack, params, record[None], label[None], None, to)
        outputs = lambda p: loss(network.apply(p, record, None), label)  # noqa: E731
        return total, jax.grad(outputs)(params)

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
