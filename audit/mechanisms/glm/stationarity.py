"""What a linear model's minimiser gives away of the one record nobody else knows.

At the minimiser all gradients cancel. With B what the other records and the regulariser
leave of the sum (`Observation.rest`), and a the unknown record's slope,

    a (x, 1) + B = 0    with an intercept: a = -B_0, x = B_F / B_0
    a x + B = 0         without: <w, x> = -<w, B> / a is the model's own prediction,
                        which fixes a up to two roots once the label is known
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanisms.glm.losses import LOSSES

HALVINGS = 60
FAR = 700.0  # sigmoid(-FAR) is the smallest number float64 has
# t sigmoid(t) is smallest at t*, sigmoid(t*) = .21781...: there the two roots meet
TURNING_POINT = -1.2784645427610738


def slope_roots(loss: str, c: Array, y: Array) -> tuple[Array, Array]:
    """Return the two slopes a that a record with label y can have, given <w, B> = c.

    The first belongs to the record that is fitted better. A logistic record that is
    misclassified has one root, a linear one may have none that is real, and noise can
    push c past the point where two roots meet: then both are the same.

    logistic: with a = -(2y - 1) s and s = sigmoid(t), -t sigmoid(t) = c.
    linear: a^2 + y a + c = 0, y encoded as `losses.LOSSES` says.
    """
    if loss == "linear":
        half = jnp.sqrt(jnp.maximum(y**2 - 4 * c, 0)) / 2
        near, far = -y / 2 + half, -y / 2 - half
        swap = jnp.abs(far) < jnp.abs(near)
        return jnp.where(swap, far, near), jnp.where(swap, near, far)

    def root(low: float, high: float, rising: bool) -> Array:
        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            middle = (ends[0] + ends[1]) / 2
            over = (-middle * jax.nn.sigmoid(middle) > c) == rising
            return jnp.where(over, ends[0], middle), jnp.where(over, middle, ends[1])

        start = (jnp.full_like(c, low), jnp.full_like(c, high))
        return jax.nn.sigmoid(sum(jax.lax.fori_loop(0, HALVINGS, halve, start)) / 2)

    far = root(TURNING_POINT, FAR, rising=False)
    near = jnp.where(c > 0, root(-FAR, TURNING_POINT, rising=True), far)
    sign = -(2 * y - 1)
    return sign * near, sign * far


def from_intercept(rest: Array) -> tuple[Array, Array]:
    """Return the slope [] and the record [d] that B [d + 1] implies."""
    return -rest[-1], rest[:-1] / rest[-1]


def from_label(
    loss: str, params: Array, rest: Array, label: Array, norm: Array
) -> tuple[Array, Array]:
    """Return the slope [] and the record [d], choosing between the roots by length.

    Both roots give the same image at different brightness. The one nearer to the mean
    norm of such records is taken: right for 99.9% of digits without noise. `params` [d]
    is the release, `rest` [d] is B, `label` [] a class, or a number as it is fitted.
    """
    numeric = jnp.issubdtype(label.dtype, jnp.floating)
    y = label if numeric else LOSSES[loss].encode(label)
    near, far = slope_roots(loss, params @ rest, y.astype(rest.dtype))
    size = jnp.linalg.norm(rest)
    closer = jnp.abs(size / jnp.abs(near) - norm) <= jnp.abs(size / jnp.abs(far) - norm)
    slope = jnp.where(closer, near, far)
    return slope, -rest / slope
