"""Rebuild a record from one visible gradient: search, closed forms, and their prior.

An update is a pytree like the parameters. Images are searched in *normalised units*,
z = (x - mean) / sd per channel of the attacker's pool, in which published step lengths
and smoothness weights are given; restarts run side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.clipping import clip_tree, normalise
from audit.data.pool import originals
from audit.mechanisms.query import Side, gradient, masked
from audit.types import Examples, Knowledge, Task

_COMPONENTS = 256  # of a Gaussian prior, at most


class Prior(NamedTuple):
    """What the pool says of images, and whose law the update follows."""

    mean: Any  # [channels] of pixels
    sd: Any  # [channels]
    centres: Any  # [classes, *features] class means
    components: Any  # [c, *features] principal directions within classes
    deviations: Any  # [c] standard deviations along them


def learn(knowledge: Knowledge, task: Task) -> Prior:
    """Return moments of the pool: of pixels, and of images within their class."""
    x, y = originals(knowledge)
    x = jnp.asarray(x, jnp.float32)
    axes = tuple(range(x.ndim - 1))
    sums = jnp.zeros((task.classes, *x.shape[1:])).at[y].add(x)
    many = jnp.zeros(task.classes).at[y].add(1.0)
    shape = (-1,) + (1,) * (x.ndim - 1)
    means = sums / jnp.maximum(many, 1).reshape(shape)
    # a class the pool lacks has the mean of all
    centres = jnp.where(many.reshape(shape) > 0, means, x.mean(0))
    inside = (x - centres[y]).reshape(len(x), -1)
    _, sizes, turns = jnp.linalg.svd(inside[:2000], full_matrices=False)
    kept = min(_COMPONENTS, len(sizes))
    return Prior(
        x.mean(axes),
        jnp.maximum(x.std(axes), 1e-3),
        centres,
        turns[:kept].reshape(kept, *x.shape[1:]),
        sizes[:kept] / jnp.sqrt(max(len(inside[:2000]) - 1, 1)),
    )


# How far two gradients are apart ------------------------------------------------------


def soft_gradient(task: Task, params: Any, x: Array, label: Array) -> Any:
    """Return the loss gradient of one image whose label is a distribution [classes]."""

    def loss(params: Any) -> Array:
        return optax.softmax_cross_entropy(task.logits(params, x), label)

    return jax.grad(loss)(params)


def cosine(task: Task, mask: Any = None) -> Callable[[Any, Examples, Any], Array]:
    """Return (params, example, direction) -> cosine of the example's gradient with it.

    The gradient is that of the parameters inside the mask. However short it is, as
    those of records fitted well are; that of a zero gradient is 0. Where a model's
    layers are known, no gradient a e^T of a dense layer is formed, nor its derivative:
    of wide layers these would be nearly all the time of a search.
    """
    score = gradient(task, normalise()).closed_forms.score

    def of_gradient(params: Any, example: Examples, direction: Any) -> Array:
        slope = masked(mask, jax.grad(task.loss)(params, example))
        return optax.tree.vdot(direction_of(slope), direction)

    def of_layers(params: Any, example: Examples, direction: Any) -> Array:
        one = jax.tree.map(lambda a: jnp.asarray(a)[None], example)
        assert score is not None
        return score(params, Side(params, mask), one, direction)[0][0]

    return of_gradient if score is None else of_layers


def direction_of(update: Any) -> Any:
    """Return an update scaled to norm 1; zero stays zero."""
    return clip_tree(normalise(), update)


def square_distance(a: Any, b: Any) -> Array:
    """Return sum (a - b)^2 over all layers."""
    gap = jax.tree.map(jnp.subtract, a, b)
    return optax.tree.vdot(gap, gap)


def total_variation(z: Array) -> Array:
    """Return the mean absolute step down plus across, any number of channels."""
    if z.ndim < 3:
        return jnp.zeros(())
    return jnp.abs(z[1:] - z[:-1]).mean() + jnp.abs(z[:, 1:] - z[:, :-1]).mean()


def label_of(update: Any) -> Array:
    """Return the label of one record from the last layer (Zhao et al. 2020).

    With softmax cross-entropy the gradient of the last bias is p - y: only the label's
    entry is negative. A single logit is that of class 0; the entries of both classes
    sum to 0. Noise may hide the label.
    """
    bias = update["head"]["bias"]
    return jnp.argmin(jnp.append(bias, -bias) if len(bias) == 1 else bias)


# Searches -----------------------------------------------------------------------------


def box(prior: Prior, domain: tuple[float, float]) -> tuple[Array, Array]:
    """Return the ends of the domain in normalised units, each [channels]."""
    low, high = ((end - prior.mean) / prior.sd for end in domain)
    return low, high


def signed_adam(
    objective: Callable, start: Array, steps: int, learning_rate: Any, limits: tuple
) -> tuple[Array, Array]:
    """Minimise by Adam on signs, projected into a box (Geiping et al. 2020).

    The step length falls tenfold at 3/8, 5/8 and 7/8 of the way. Return the best z on
    the way, and its objective.
    """
    drops = {int(steps * part): 0.1 for part in (3 / 8, 5 / 8, 7 / 8)}
    rate = optax.piecewise_constant_schedule(learning_rate, drops)
    rule = optax.adam(rate)
    at = jax.value_and_grad(objective)

    def body(carry: tuple, _: None) -> tuple:
        z, state, best, least = carry
        value, slope = at(z)
        better = value < least
        best, least = jnp.where(better, z, best), jnp.where(better, value, least)
        move, state = rule.update(jnp.sign(slope), state)
        z = jnp.clip(optax.apply_updates(z, move), *limits)
        return (z, state, best, least), None

    first = (start, rule.init(start), start, jnp.array(jnp.inf))
    (z, _, best, least), _ = jax.lax.scan(body, first, length=steps)
    last = objective(z)
    return jnp.where(last < least, z, best), jnp.minimum(last, least)


def lbfgs(objective: Callable, start: Any, steps: int) -> tuple[Any, Array]:
    """Minimise by L-BFGS with a zoom line search; return the best point on the way.

    Zhu et al. (2019) use fixed steps of length 1, which fail on other images.
    """
    rule = optax.lbfgs()
    at = optax.value_and_grad_from_state(objective)

    def body(carry: tuple, _: None) -> tuple:
        z, state, best, least = carry
        value, slope = at(z, state=state)
        better = value < least
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), z, best)
        move, state = rule.update(
            slope, state, z, value=value, grad=slope, value_fn=objective
        )
        z = optax.apply_updates(z, move)
        return (z, state, best, jnp.minimum(value, least)), None

    first = (start, rule.init(start), start, jnp.array(jnp.inf))
    return jax.lax.scan(body, first, length=steps)[0][2:]


def plain_adam(
    objective: Callable, start: Any, steps: int, learning_rate: Any
) -> tuple[Any, Array]:
    """Minimise by Adam with a cosine decay; return the last point."""
    rule = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def body(carry: tuple, _: None) -> tuple:
        z, state = carry
        move, state = rule.update(jax.grad(objective)(z), state)
        return (optax.apply_updates(z, move), state), None

    (z, _), _ = jax.lax.scan(body, (start, rule.init(start)), length=steps)
    return z, objective(z)


def best_of(search: Callable, key: Array, restarts: int) -> Any:
    """Return the result of the restart with the least objective.

    `search` is key -> (result, objective []); `key` is split among the restarts.
    """
    ends, value = jax.vmap(search)(jax.random.split(key, restarts))
    # a restart that ended in no number loses
    least = jnp.argmin(jnp.where(jnp.isfinite(value), value, jnp.inf))
    return jax.tree.map(lambda a: a[least], ends)


# The closed form ----------------------------------------------------------------------


def first_layer(update: Any) -> tuple[Array, Array]:
    """Return the gradients of the first layer's kernel [d, h] and bias [h].

    ValueError if the image meets a layer first that is not dense.
    """
    names = [name for name in ("hidden_0", "head") if name in update]
    if not names or any(name.startswith("conv") for name in update):
        raise ValueError("the first layer is not dense")
    return update[names[0]]["kernel"], update[names[0]]["bias"]


def from_first_layer(
    update: Any, label_mean: Array, spread: Any, mask: Any = None, variance: Any = None
) -> Array:
    """Return the image behind a dense first layer: W_r = b_r x for every unit r.

    Exact without noise, for an update scaled by anything. With isotropic noise of
    variance s^2 it is the posterior mean under N(label_mean, spread^2) of every pixel:
    units weigh b_r^2, and s^2 is what a matrix of rank one does not explain. A single
    unit explains everything, so that s^2 must be given there.

    Args:
      update: like the parameters.
      label_mean: [*features] class mean.
      spread: [] standard deviation of a pixel within its class.
      mask: like the parameters, 0/1: a pixel is read off the units of which it has the
        weight and the bias, and is the mean's where there is none; None = all.
      variance: [] s^2; None = estimated.
    """
    kernel, bias = first_layer(update)
    mean = label_mean.reshape(-1)
    both: Any = None  # the entries of the weights that are used; None = all
    units: Any = len(bias)  # per pixel
    square, left_over = (bias**2).sum(), max(units - 1, 1) * len(mean)
    if mask is not None:
        weights, biases = first_layer(mask)
        both = weights * biases
        units, square = both.sum(1), both @ bias**2
        left_over = jnp.maximum(jnp.maximum(units - 1, 0).sum(), 1)
    safe = jnp.where(square > 0, square, 1)
    plain = kernel @ bias / safe
    left = masked(both, kernel - plain[:, None] * bias)
    noise = (left**2).sum() / left_over
    # rounding leaves a little in a matrix of rank one; it is no noise
    rounding = 1e-10 * (kernel**2).sum() / kernel.shape[0]
    noise = jnp.where(noise > rounding, noise, 0)
    noise = noise if variance is None else variance
    # E b_r^2 = b_r^2 + s^2: what noise adds to the weights is taken out again
    signal = jnp.maximum(square - units * noise, 0)
    ahead = kernel @ bias - signal * mean  # signal (x - mean) + noise
    # whose variance is square x s^2 a pixel
    weight = signal**2 + square * noise / spread**2
    move = ahead * signal / jnp.where(weight > 0, weight, 1)
    return (mean + move).reshape(label_mean.shape)


def pixels(prior: Prior, z: Array) -> Array:
    """Return an image in [0, 1] from its normalised form."""
    return prior.mean + prior.sd * z
