"""A network that learns what a score says of an image, from the attacker's own prior.

The score is F s + N(0, F) noise, as in `kernel_prior`; s are an image's coefficients.
Pairs of images and scores cost nothing: images come from the pool, noise is drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from audit.mechanisms import kernel_prior
from audit.mechanisms.kernel_prior import KernelPrior, Reading
from audit.models import regressor
from audit.models.regressor import Regressor
from audit.models.side_by_side import side_by_side

# D of the direction that scores tell most of, under which no network is trained: the
# posterior mean is then all but linear in the score. With 1.4 a network took .2% off
# the error, with .3 and less nothing that could be seen.
TOLD = 1.0


class Denoiser(NamedTuple):
    """What is learnt of one class; a leading axis C where classes are stacked."""

    network: Regressor  # (Gaussian posterior mean, log amount) -> what it lacks
    unit: Any  # [] Tr F L at the amount 1
    amounts: Any  # [2] least and most amount that the network was trained for


def fit(
    key: Array,
    prior: KernelPrior,
    information: Any,
    amounts: tuple[float, float],
    *,
    width: int,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
) -> Denoiser:
    """Train one network per class to add to the Gaussian posterior mean what it lacks.

    One core trains one class, for the products are too small for many. Where scores
    tell next to nothing (`TOLD`), the networks are left as they start and add nothing.

    A step draws images of the class, with replacement, and a score of each at a
    multiple of the information, log-uniform between two `amounts`. Its error counts in
    units of the Gaussian posterior's, which is small where much is told. Adam's
    learning rate falls to 0 along half a cosine.

    Args:
      key: of the initialisation and of all draws.
      prior: of all classes, stacked; the network sees no image but its kernels.
      information: [C, K, K] F of each class at the amount 1.
      amounts: least and most multiple of F; equal = always that.
      width: of the two hidden layers.
      steps: of Adam.
      batch_size: images per class and step.
      learning_rate: of Adam, at the first step.
    """
    classes, count = prior.kernels.shape[0], prior.kernels.shape[2]
    readings = jax.vmap(kernel_prior.reading)(prior, jnp.asarray(information))
    init, later = jax.random.split(key)
    sizes, zeros = (count + 1, width, width, count), jnp.zeros(count)
    each = jax.vmap(lambda k: regressor.init(k, sizes, zeros))
    layers = each(jax.random.split(init, classes))
    keys = jax.random.split(later, (classes, steps))
    within = jnp.broadcast_to(jnp.array(amounts), (classes, 2))
    if float(readings.values.max()) * max(amounts) >= TOLD:
        # in NumPy, where to take one class's part compiles nothing
        draws = jax.random.key_data(keys)
        start = jax.device_get((layers, draws, (prior, readings, within)))

        def of_class(c: int) -> Any:
            layers, draws, data = jax.tree.map(lambda a: a[c], start)
            mine = layers, jax.random.wrap_key_data(draws), data
            return jax.block_until_ready(_trained(batch_size, learning_rate, *mine))

        trained = side_by_side(of_class, range(classes))
        stacked = jax.tree.map(lambda *a: np.stack(a), *jax.device_get(trained))
        layers = jax.tree.map(jnp.asarray, stacked)
    network = Regressor(layers, jnp.ones(classes))
    # amounts are divided by it, and it is 0 where all images of a class are equal
    unit = jnp.maximum(readings.values.sum(1), jnp.finfo(jnp.float32).tiny)
    return Denoiser(network, unit, within)


@partial(jax.jit, static_argnums=(0, 1))
def _trained(
    batch_size: int, learning_rate: float, layers: Any, keys: Array, data: tuple
) -> Any:
    """Return the layers of one class after a step of Adam for each of the keys [S]."""
    prior, read, within = data
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, len(keys)))

    def loss(layers: Any, key: Array) -> Array:
        keys = jax.random.split(key, 3)
        images = jnp.isfinite(prior.log_weight).sum()
        rows = jax.random.randint(keys[0], (batch_size,), 0, images)
        least, most = jnp.log(within)
        shape = (batch_size, 1)
        log_amount = jax.random.uniform(keys[1], shape, minval=least, maxval=most)
        signal = jnp.exp(log_amount) * read.values
        noise = jax.random.normal(keys[2], (batch_size, len(read.values)))
        score = signal * read.kernels[rows] + jnp.sqrt(signal) * noise
        mean = score / (1 + signal) @ read.basis.T
        guess = mean + _lacking(Regressor(layers, 1.0), mean, log_amount)
        error = ((guess - prior.kernels[rows]) ** 2).sum(-1)
        return (error / (1 / (1 + signal) @ (read.basis**2).T).sum(-1)).mean()

    def step(carry: tuple, key: Array) -> tuple:
        layers, state = carry
        updates, state = optimizer.update(jax.grad(loss)(layers, key), state)
        return (optax.apply_updates(layers, updates), state), None

    return jax.lax.scan(step, (layers, optimizer.init(layers)), keys)[0][0]


def posterior_mean(denoiser: Denoiser, read: Reading, score: Any) -> Array:
    """Return the network's E[s | score] [K] of one class and one score [K]."""
    least, most = denoiser.amounts
    amount = jnp.clip(read.values.sum() / denoiser.unit, least, most)
    mean = kernel_prior.gaussian_mean(read, score)
    return mean + _lacking(denoiser.network, mean, jnp.log(amount)[None])


def guesses(denoiser: Denoiser, prior: KernelPrior, read: Reading, score: Any) -> Array:
    """Return E[s | score] [W + 1, K]: by every width of the kernels, and the network's.

    Arguments: `posterior_mean`.
    """
    learnt = posterior_mean(denoiser, read, score)
    return jnp.vstack([kernel_prior.posterior_means(prior, read, score), learnt])


def _lacking(network: Regressor, mean: Array, log_amount: Array) -> Array:
    features = jnp.concatenate([2 * mean, log_amount], -1)
    return regressor.predict(network, features, jax.nn.silu)
