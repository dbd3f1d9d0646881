"""What FIM learns: the parametrisations of the gradient perturbation g_phi.

Edmunds (2024) draws g_phi as a network of image, label, weights and gradient. In its
code the network's batch normalisation averages over batches of one, which wipes out
all that enters it: what is left is a function of learnt numbers only, a constant. Here
both exist, under names that say which is which.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from audit.models.networks import BIASES, WEIGHTS

# the widths around the last hidden layer
LAST = {"cnn": (256, 256), "mlp": (512, 256)}


class Inputs(NamedTuple):
    """What g_phi may look at, of one example or of a batch."""

    x: Any  # [*features]
    label: Any  # [classes] one-hot
    weights: Any  # [K] trained parameters; empty = not shown
    gradient: Any  # [K] of the trained parameters; empty = not shown


class ConstantHead(nn.Module):
    """The constant of the published network, as its code makes it: () -> [K].

    It is what follows the last normalisation: GELU(b W1 + b1) W2 + b2.
    """

    architecture: str
    outputs: int

    @nn.compact
    def __call__(self) -> jax.Array:  # noqa: D102
        first, last = LAST[self.architecture]
        shift = self.param("shift", nn.initializers.zeros, (first,))
        hidden = nn.gelu(_dense(last)(shift))  # made first: names follow the order
        return _dense(self.outputs)(hidden)


class Direct(nn.Module):
    """A constant that is nothing but itself: () -> [K]."""

    outputs: int

    @nn.compact
    def __call__(self) -> jax.Array:  # noqa: D102
        return self.param("constant", nn.initializers.zeros, (self.outputs,))


def _groups(groups: list[jax.Array]) -> list[jax.Array]:
    """Normalise each group by its own mean and variance, and scale each feature."""
    return [nn.LayerNorm()(g) if g.shape[-1] else g for g in groups]


def _batch(groups: list[jax.Array]) -> list[jax.Array]:
    """Normalise by the batch, all groups alike; of one example, its bias is left."""
    sizes = np.cumsum([g.shape[-1] for g in groups])[:-1]
    v = nn.BatchNorm(use_running_average=False)(jnp.concatenate(groups, -1))
    return jnp.split(v, sizes, -1)


NORMS = {"group": _groups, "batch": _batch, "none": lambda groups: groups}


class Network(nn.Module):
    """A network that sees the example, Inputs -> [K]: Edmunds' Tables B.5 and B.6.

    `group` takes mean and variance over the features of one example, each of the four
    inputs a group: a feature that never varies in public records cannot blow up on
    others. `none` leaves normalisation out (appendix A.4). `batch` is the published
    one, which over batches of one leaves a constant.
    """

    architecture: str  # `cnn` (images of at least 16 pixels per side) or `mlp`
    outputs: int
    norm: str

    @nn.compact
    def __call__(self, inputs: Inputs) -> jax.Array:  # noqa: D102
        norm, image = NORMS[self.norm], inputs.x
        if self.architecture == "cnn":
            image = nn.avg_pool(nn.gelu(_conv(16, 8, "SAME")(image)), (2, 2))
            image = nn.avg_pool(nn.gelu(_conv(32, 4, "VALID")(image)), (2, 2))
        image = image.reshape(*inputs.label.shape[:-1], -1)
        groups = norm([image, inputs.label, inputs.weights, inputs.gradient])
        first = LAST[self.architecture][0]
        v = nn.gelu(_dense(first)(jnp.concatenate(groups, -1)))
        v = nn.gelu(_dense(256)(norm([v])[0]))
        return _dense(self.outputs)(v)


def _dense(width: int) -> nn.Dense:
    return nn.Dense(width, kernel_init=WEIGHTS, bias_init=BIASES)


def _conv(channels: int, size: int, padding: str) -> nn.Conv:
    return nn.Conv(
        channels, (size, size), (2, 2), padding, kernel_init=WEIGHTS, bias_init=BIASES
    )


def places(mask: Any, params: Any) -> Any:
    """Return which entries [K] of the flat parameters are trained; host values."""
    flat = ravel_pytree(params)[0]
    if mask is None:
        return np.arange(flat.size)
    return np.flatnonzero(np.asarray(ravel_pytree(mask)[0]))


def scatter(places: Any, vector: jax.Array, like: Any) -> Any:
    """Return a pytree like `like` with `vector` [K] at its places, zero elsewhere."""
    flat, unravel = ravel_pytree(like)
    return unravel(jnp.zeros(flat.shape, vector.dtype).at[places].set(vector))


def gather(places: Any, tree: Any) -> jax.Array:
    """Return the entries [K] of a pytree at `places`."""
    return ravel_pytree(tree)[0][places]
