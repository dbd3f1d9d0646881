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

LAST = {"cnn": (256, 256), "mlp": (512, 256)}  # the widths around the last hidden layer


class Inputs(NamedTuple):
    """What g_phi may look at, of one example or of a batch."""

    x: Any  # [*features]
    label: Any  # [classes] one-hot
    weights: Any  # [K] trained parameters; empty = not shown
    gradient: Any  # [K] of the trained parameters; empty = not shown


class _Head(nn.Module):
    """The published network behind its last normalisation: GELU(b W1 + b1) W2 + b2."""

    widths: tuple[int, int]
    outputs: int

    @nn.compact
    def __call__(self) -> jax.Array:
        shift = self.param("shift", nn.initializers.zeros, (self.widths[0],))
        hidden = nn.gelu(_dense(self.widths[1])(shift))
        return _dense(self.outputs)(hidden)


class _Direct(nn.Module):
    """The constant itself."""

    outputs: int

    @nn.compact
    def __call__(self) -> jax.Array:
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


class _Network(nn.Module):
    """Tables B.5 (mlp) and B.6 (cnn) of Edmunds (2024)."""

    architecture: str
    outputs: int
    norm: str

    @nn.compact
    def __call__(self, inputs: Inputs) -> jax.Array:
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


def head(architecture: str, outputs: int) -> nn.Module:
    """Return the constant of the published network, as its code makes it: () -> [K]."""
    return _Head(LAST[architecture], outputs)


def direct(outputs: int) -> nn.Module:
    """Return a constant that is nothing but itself: () -> [K]."""
    return _Direct(outputs)


def direct_at(mean: jax.Array) -> dict[str, jax.Array]:
    """Return parameters of `direct` that make the constant `mean`.

    The loss is flat along the sphere: from zero, Adam finds the length long before the
    direction.
    """
    return {"constant": mean}


def network(architecture: str, outputs: int, *, norm: str) -> nn.Module:
    """Return a network that sees the example: Inputs -> [K].

    Args:
      architecture: `cnn` (images of at least 16 pixels a side) or `mlp`.
      outputs: K.
      norm: `group` takes mean and variance over the features of one example, each of
        the four inputs a group: it works on one example as on many, and a feature that
        never varies in public records cannot blow up on others. `none` leaves
        normalisation out (appendix A.4). `batch` is the published one, which over
        batches of one leaves a constant.
    """
    return _Network(architecture, outputs, norm)


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
