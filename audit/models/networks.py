"""Networks, and the tasks that fit them.

Every model is a factory `(features, classes, *, settings) -> Task`. A scenario selects
it by its name under `task.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from audit.models.affine import Head, cross_entropy
from audit.models.dense import Stack
from audit.models.layers import Tap, stack_of, tapping, windows
from audit.types import Count, Task

ACTIVATIONS = {
    "relu": nn.relu,
    "elu": nn.elu,
    "tanh": nn.tanh,
    "sigmoid": nn.sigmoid,
    "softplus": nn.softplus,
}
KINKED = {"relu"}  # discontinuous gradients in the record: no Fisher information
# Glorot-normal weights and N(0, .01^2) biases: the initialisation of Guo et al. (2022)
# and Edmunds (2024), whose code builds on stax.
WEIGHTS = nn.initializers.glorot_normal()
BIASES = nn.initializers.normal(0.01)


class _Linear(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return _dense(self.outputs, "head")(x.reshape(-1))


class _Mlp(nn.Module):
    hidden: tuple[int, ...]
    outputs: int
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for i, width in enumerate(self.hidden):
            x = ACTIVATIONS[self.activation](_dense(width, f"hidden_{i}")(x))
        return _dense(self.outputs, "head")(x)


class _CnnTanh(nn.Module):
    outputs: int
    filters: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        first, second = self.filters, 2 * self.filters
        x = mean_of_four(nn.tanh(_dense(first, "conv_0")(patches(same(x, 8), 8, 2))))
        x = mean_of_four(nn.tanh(_dense(second, "conv_1")(patches(x, 4, 2))))
        x = nn.tanh(_dense(self.hidden, "hidden")(x.reshape(-1)))
        return _dense(self.outputs, "head")(x)


class _CnnTanhDeep(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i, width in enumerate((32, 32, 64, 64, 128, 128)):
            around = patches(jnp.pad(x, [(1, 1), (1, 1), (0, 0)]), 3, 1)
            x = nn.tanh(_dense(width, f"conv_{i}")(around))
            if i % 2:
                x = mean_of_squares(x)
        x = nn.tanh(_dense(128, "hidden")(x.reshape(-1)))
        return _dense(self.outputs, "head")(x)


class _CnnMaxPool(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i, (width, size) in enumerate(((16, 5), (32, 4))):
            x = nn.tanh(_dense(width, f"conv_{i}")(patches(x, size, 1)))
            x = squares(x).max((1, 3))
        x = nn.tanh(_dense(32, "hidden")(x.reshape(-1)))
        return _dense(self.outputs, "head")(x)


class _Lenet(nn.Module):
    outputs: int
    kind: str
    activation: str
    start: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return {"zhu": self._zhu, "lenet5": self._lenet5}[self.kind](x)

    def _zhu(self, x: jax.Array) -> jax.Array:
        for i, stride in enumerate((2, 2, 1)):
            x = jnp.pad(x, [(2, 2), (2, 2), (0, 0)])
            x = self._act(self._dense(12, f"conv_{i}")(patches(x, 5, stride)))
        return self._dense(self.outputs, "head")(x.reshape(-1))

    def _lenet5(self, x: jax.Array) -> jax.Array:
        short = [max(32 - n, 0) for n in x.shape[:2]]
        x = jnp.pad(x, [(s // 2, s - s // 2) for s in short] + [(0, 0)])
        for i, width in enumerate((6, 16)):
            x = self._act(self._dense(width, f"conv_{i}")(patches(x, 5, 1)))
            x = mean_of_squares(x)
        x = x.reshape(-1)
        for i, width in enumerate((120, 84)):
            x = self._act(self._dense(width, f"hidden_{i}")(x))
        return self._dense(self.outputs, "head")(x)

    def _act(self, x: jax.Array) -> jax.Array:
        return ACTIVATIONS[self.activation](x)

    def _dense(self, width: int, name: str) -> nn.Dense:
        if self.start == "glorot":
            return _dense(width, name)
        return nn.Dense(width, kernel_init=_half, bias_init=_half, name=name)


def _check_image(name: str, features: tuple[int, ...]) -> None:
    if len(features) != 3 or min(features[:2]) < 16:
        shape = "x".join(map(str, features))
        raise ValueError(f"{name} needs images of 16 or more pixels a side: {shape}")


def _half(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, -0.5, 0.5)


def patches(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Return what each filter of size x size sees of [h, w, c]: [h', w', size^2 c]."""
    return windows(x, (size, size), (stride, stride))


def same(x: jax.Array, size: int) -> jax.Array:
    """Pad [h, w, c] with zeros as a stride-2 `SAME` convolution does."""
    total = [max((-(-n // 2) - 1) * 2 + size - n, 0) for n in x.shape[:2]]
    return jnp.pad(x, [(t // 2, t - t // 2) for t in total] + [(0, 0)])


def mean_of_four(x: jax.Array) -> jax.Array:
    """Average 2x2 neighbours, stride 1."""
    x = x[1:] + x[:-1]
    return (x[:, 1:] + x[:, :-1]) / 4


def mean_of_squares(x: jax.Array) -> jax.Array:
    """Average 2x2 neighbours, stride 2; an odd end is cut."""
    return squares(x).mean((1, 3))


def squares(x: jax.Array) -> jax.Array:
    """Return 2x2 neighbours, stride 2: [h // 2, 2, w // 2, 2, c]; an odd end is cut."""
    h, w = (n // 2 for n in x.shape[:2])
    return x[: 2 * h, : 2 * w].reshape(h, 2, w, 2, -1)


def _dense(width: int, name: str) -> nn.Dense:
    return nn.Dense(width, kernel_init=WEIGHTS, bias_init=BIASES, name=name)


def _task(
    name: str,
    module: nn.Module,
    features: tuple[int, ...],
    classes: int,
    *,
    loss: Callable = cross_entropy,
    padded: bool = False,
    linear: Any = None,
    layered: bool = False,
) -> Task:
    """Return the task of fitting `module` to labels by `loss`, (logits, label) -> [].

    The module maps one example [*features] to its logits, all but the last, a constant
    0, where `padded`; `linear` is (params -> Head, Head -> params) where they are
    affine in x. `layered` says that every parameter is that of a dense layer, which may
    be passed at many positions.
    """
    shape = "x".join(map(str, features))
    if classes < 2 and loss is cross_entropy:
        raise ValueError(
            f"{name} needs classes, and the labels are numbers: save labels as "
            f"integers, or take task.model=regression"
        )

    def logits(params: Any, x: jax.Array) -> jax.Array:
        out: Any = module.apply({"params": params}, x)
        return jnp.append(out, jnp.zeros(1, out.dtype)) if padded else out

    def init(key: jax.Array) -> Any:
        return module.init(key, jnp.zeros(features))["params"]

    def tapped(params: Any, x: jax.Array, tap: Tap | None) -> jax.Array:
        with tapping(tap):
            return logits(params, x)

    stack = None
    if layered:
        shapes = jax.eval_shape(init, jax.random.key(0))
        stack, why = stack_of(name, tapped, shapes, jnp.zeros(features), loss)
        assert stack is not None, why

    return Task(
        name=f"{name} {shape} -> {classes}",
        loss=lambda params, z: loss(logits(params, z.x), z.y),
        logits=logits,
        init=init,
        features=features,
        classes=classes,
        linear=linear,
        dense=stack,
    )


VIEWS = (  # params -> Head, Head -> params
    lambda params: Head(params["head"]["kernel"], params["head"]["bias"]),
    lambda head: {"head": head._asdict()},
)


def linear(features: tuple[int, ...], classes: int) -> Task:
    """Softmax regression with a bias: `classes` logits W^T x + b."""
    return _task("linear", _Linear(classes), features, classes, linear=VIEWS)


def binary_linear(features: tuple[int, ...], classes: int) -> Task:
    """One logit z for class 0, 0 for class 1, no others (Edmunds 2024, section 3.2)."""
    if classes != 2:
        raise ValueError(f"binary_linear has two classes, not {classes}: use linear")
    name, logit = "binary_linear", _Linear(1)
    return _task(name, logit, features, classes, padded=True, linear=VIEWS)


def regression(features: tuple[int, ...], classes: int) -> Task:
    """One linear output, a number as label and no classes, half the squared error."""
    if classes:
        raise ValueError(f"regression has numbers for labels, not {classes} classes")
    loss = lambda outputs, label: (outputs[0] - label) ** 2 / 2
    return _task("regression", _Linear(1), features, classes, loss=loss)


def mlp(
    features: tuple[int, ...],
    classes: int,
    *,
    hidden: Count = 10,
    layers: Count = 1,
    activation: Literal["relu", "elu", "tanh", "sigmoid", "softplus"] = "elu",
) -> Task:
    """Fully connected network; the default is Balle et al.'s 784-10-10 ELU network.

    `hidden: 1024, layers: 2, activation: relu` is the network of PRECODE (Scheliga et
    al. 2022); with `softplus` or `tanh` it is smooth.
    """
    module = _Mlp((hidden,) * layers, classes, activation)
    name = f"mlp({hidden}x{layers} {activation})"
    names = (*(f"hidden_{i}" for i in range(layers)), "head")
    stack = Stack(names, ACTIVATIONS[activation], hidden)
    task = _task(name, module, features, classes)
    return task._replace(dense=stack, smooth=activation not in KINKED)


def lenet(
    features: tuple[int, ...],
    classes: int,
    *,
    kind: Literal["zhu", "lenet5"] = "zhu",
    activation: Literal["relu", "elu", "tanh", "sigmoid", "softplus"] = "tanh",
    start: Literal["glorot", "uniform"] = "glorot",
) -> Task:
    """The LeNet of inversion attacks (Zhu et al. 2019), or LeNet-5 (LeCun et al. 1998).

    `zhu`: three convolutions of 12 5x5 filters, strides 2, 2, 1, and one dense layer;
    sigmoid with weights uniform in (-1/2, 1/2) in the original. `lenet5`: 6 and 16 5x5
    filters, each averaged 2x2, and layers of 120 and 84; images are padded to 32x32.
    Images of fewer than 16 pixels per side are a ValueError.
    """
    _check_image("lenet", features)
    module = _Lenet(classes, kind, activation, start)
    name = f"lenet({kind} {activation} {start})"
    task = _task(name, module, features, classes, layered=True)
    return task._replace(smooth=activation not in KINKED)


def cnn_tanh(
    features: tuple[int, ...], classes: int, *, filters: Count = 16, hidden: Count = 32
) -> Task:
    """Guo et al.'s (2022, section 7.3) smooth network for MNIST, 26,010 parameters.

    Convolutions of 16 8x8 and 32 4x4 filters, stride 2, tanh, 2x2 averages of stride 1,
    32 hidden units. The papers say "padding 2"; their code pads as `SAME`, as here.
    Images of fewer than 16 pixels per side are a ValueError. With fewer `filters`, of
    which the second convolution has twice as many, and fewer `hidden` units it is
    small enough for attackers that train hundreds of shadow models.
    """
    _check_image("cnn_tanh", features)
    name, module = "cnn_tanh", _CnnTanh(classes, filters, hidden)
    if (filters, hidden) != (16, 32):
        name = f"cnn_tanh({filters} filters, {hidden} hidden)"
    return _task(name, module, features, classes, layered=True)


def cnn_tanh_deep(features: tuple[int, ...], classes: int) -> Task:
    """Guo et al.'s (2022, section 7.3) smooth network for CIFAR-10, 550,570 parameters.

    Three pairs of 3x3 convolutions with 32, 64 and 128 filters, each pair followed by
    2x2 averages of stride 2, then 128 hidden units; tanh everywhere. Images of fewer
    than 16 pixels per side are a ValueError.
    """
    _check_image("cnn_tanh_deep", features)
    module = _CnnTanhDeep(classes)
    return _task("cnn_tanh_deep", module, features, classes, layered=True)


def cnn_max_pool(features: tuple[int, ...], classes: int) -> Task:
    """The MNIST network of audits of final models (Annamalai and De Cristofaro 2024).

    Convolutions of 16 5x5 and 32 4x4 filters, tanh, each with 2x2 maxima, then 32
    hidden units: 25,386 parameters. Maxima jump, so that there is no Fisher
    information. Images of fewer than 16 pixels per side are a ValueError.
    """
    _check_image("cnn_max_pool", features)
    module = _CnnMaxPool(classes)
    task = _task("cnn_max_pool", module, features, classes, layered=True)
    return task._replace(smooth=False)
