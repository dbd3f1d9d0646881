"""A flax module of one's own as a task: `from_flax`.

Where every parameter belongs to a dense or convolutional layer that each example passes
once, clipped sums are made without per-example gradients ("ghost clipping",
`models.dense`): the layers' inputs and errors are read off one forward and one backward
pass. Every other module has per-example gradients. `Task.notes` say which, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from audit.errors import UserError, brief, in_words
from audit.models import smoothness
from audit.models.affine import cross_entropy
from audit.models.dense import norms
from audit.models.layers import (
    Tap,
    convolving,
    is_the_gradient,
    stack_of,
    tapped,
    tapping,
)
from audit.types import Task

REMEDY = {
    "BatchNorm": "batch statistics mix records; use LayerNorm or GroupNorm",
    "Dropout": "it is random; leave it out, or set its rate to 0",
}
MOST_NOTES = 6
SPREAD = 0.3  # of random parameters times sqrt(inputs): activations stay of order 1
ROUNDING = 0.02  # of outputs, relative to the largest: bfloat16 rounds to 1/256


class _Network(NamedTuple):
    """A module as functions of one example."""

    name: str
    init: Callable  # (key) -> params
    run: Callable  # (params, x, tap or None) -> outputs, of a batch or of one example
    batched: bool  # whether `run` takes x [m, *features] to outputs [m, outputs]

    def apply(self, params: Any, x: Any, tap: Tap | None) -> Any:
        """Return the outputs [outputs] of one example x [*features]."""
        if self.batched:
            return self.run(params, x[None], tap)[0]
        return self.run(params, x, tap)


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
      UserError: for an example that is no array, or a loss that is no function; for
        batch statistics, dropout and other state or randomness, naming the layer; for
        parameters that are not of float32; for outputs of another shape, or that depend
        on a batch's other records.
    """
    try:
        x = jnp.asarray(example_x, jnp.float32)
    except (TypeError, ValueError):
        what = "one record [*features] is wanted, for its shape"
        raise UserError(f"example_x={brief(example_x)}: {what}") from None
    if not (loss is None or callable(loss)):
        raise UserError(f"loss={brief(loss)}: a function (outputs, label) is wanted")
    network = _linen(module, x) if isinstance(module, nn.Module) else _nnx(module, x)
    params = jax.eval_shape(network.init, jax.random.key(0))
    for path, leaf in jax.tree.leaves_with_path(params):
        if leaf.dtype not in (jnp.float32, jnp.float64):
            owner = "/".join(str(step.key) for step in path)
            raise UserError(
                f"{network.name}: {owner} is of {leaf.dtype}: parameters are of "
                f"float32 (param_dtype), whatever layers compute in (dtype)"
            )
    try:
        shape = jax.eval_shape(lambda p: network.apply(p, x, None), params).shape
    except Exception as error:  # whatever a module may raise
        raise UserError(_cannot(network.name, x, error)) from None
    if len(shape) != 1:
        raise UserError(
            f"{network.name} returns shape {shape} for one record; [outputs], one per "
            f"class, are wanted"
        )
    if network.batched and _mixes_records(network, params, x):
        raise UserError(
            f"{network.name}: its outputs mix the records of a batch, or are random: "
            f"those of a record must be the same in every batch; take statistics over "
            f"a record's own axes, as LayerNorm and GroupNorm do"
        )
    own_loss = loss
    if loss is None:
        loss = cross_entropy
        if shape[0] == 1:
            loss = _half_squared
    fit = lambda params, x, y: loss(network.apply(params, x, None), y)
    stack, why = stack_of(network.name, network.apply, params, x, loss)
    label = jnp.zeros((), int if shape[0] > 1 else float)
    noise = _random_parameters(params)
    noised = lambda key: jax.tree.map(jnp.add, network.init(key), noise)
    if stack and not is_the_gradient(stack, noised, fit, x, label):
        stack, why = None, "its layers are transformed"
    start = jax.tree.map(_zeros, params)
    jumps = smoothness.jumps(lambda x: network.apply(start, x, None), x)
    if own_loss is not None:
        jumps += smoothness.jumps(lambda o: own_loss(o, label), jnp.zeros(shape))
    features = tuple(x.shape)
    classes = shape[0] if shape[0] > 1 else 0
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    notes = [
        f"{network.name}: {count:,} parameters",
        norms(stack, params) if stack else f"per-example gradients: {why}",
        *(f"no Fisher reading, hence no dFIL: {jump}" for jump in jumps[:MOST_NOTES]),
    ]
    return Task(
        name=f"{network.name} {'x'.join(map(str, features))} -> {classes}",
        loss=lambda params, z: fit(params, z.x, z.y),
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
    return (
        f"{name} cannot be applied to records of shape {tuple(x.shape)}: "
        f"{in_words(error)}"
    )


def _refused(name: str, layer: str, kind: str) -> UserError:
    return UserError(f"{name}: {layer} is {kind}: {REMEDY[kind]}")


def _batched(name: str, apply: Callable, x: Any) -> bool:
    """Return whether a module takes a batch [m, *features] to [m, outputs].

    Raises:
      UserError: if it takes one to [m].
    """

    def shape(records: int) -> tuple | None:
        try:
            batch = jnp.broadcast_to(x, (records, *x.shape))
            return jax.eval_shape(apply, batch).shape
        except Exception:  # whatever a module may raise
            return None

    of_one = shape(1)
    if shape(2) == (2,) != of_one:
        raise UserError(
            f"{name} returns one number per record, as an array [m] for a batch of m: "
            f"keep the last axis, [m, 1]"
        )
    return of_one is not None and len(of_one) == 2 and of_one[0] == 1


def _mixes_records(network: _Network, shapes: Any, x: Any) -> bool:
    """Return whether two random records have other outputs together than apart."""
    rng = np.random.default_rng(0)

    @jax.jit
    def outputs(params: Any, pair: Any) -> tuple[Any, Any]:
        apart = [network.run(params, pair[i : i + 1], None) for i in (0, 1)]
        return network.run(params, pair, None), jnp.concatenate(apart)

    # 0 and 1 are in the domain of images, and are two tokens
    bits = rng.integers(0, 2, x.shape).astype(x.dtype)
    try:
        both = outputs(_random_parameters(shapes), np.stack([bits, 1 - bits]))
    except Exception:  # it takes batches of one record alone
        return False
    together, apart = (np.asarray(a, float) for a in both)
    if together.shape != apart.shape:
        return True
    size = np.abs(np.nan_to_num(apart)).max()
    return not np.allclose(together, apart, 0, ROUNDING * size, equal_nan=True)


def _random_parameters(shapes: Any) -> Any:
    """Return what hides nothing: a layer that starts at 0 hides those before it."""
    rng = np.random.default_rng(0)

    def one(leaf: Any) -> np.ndarray:
        scale = SPREAD / np.sqrt(np.prod(leaf.shape[:-1]))
        return (scale * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(one, shapes)


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
        name, lambda x: module.apply({"params": jax.tree.map(_zeros, shapes)}, x), x
    )

    def init(key: jax.Array) -> Any:
        return module.init(key, x[None] if batched else x)["params"]

    def run(params: Any, x: Any, tap: Tap | None) -> Any:
        with tapping(tap):
            return module.apply({"params": params}, x)

    return _Network(name, init, run, batched)


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
                layer.conv_general_dilated = convolving(tap, path)
            if tap and type(layer) is nnx.Linear:
                layer.dot_general = tapped(tap, path, layer.dot_general)
        return network(x)

    batched = _batched(name, lambda x: run(start, x, None), x)
    return _Network(name, init, run, batched)


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
