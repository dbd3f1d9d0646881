"""Numbers as a paper computes them, where its convention is not ours.

They are computed to be set beside what the paper prints. None of them is a guarantee:
each function says what its convention leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from audit.accounting import rdp
from audit.types import Count, Positive, Share

# The clip's overshoot as the thesis rounds it: below the true 1.11524, so no bound.
EDMUNDS_OVERSHOOT = 1.115


def edmunds_epsilon(
    *,
    records: Count,
    batch_size: Count,
    epochs: Count,
    noise_multiplier: Positive,
    delta: Share = 1e-9,
) -> float:
    """Return epsilon(delta) in the convention of Edmunds (2024): nominal, not a claim.

    T D_alpha at `rdp.EDMUNDS_ORDERS`, converted to epsilon, where D_alpha is that of a
    Poisson-sampled Gaussian at rate q = min(1, B / n) and shift 1.115 / sigma, and
    T = epochs x ceil(n / B): the last, short batch counts as a whole one.

    It is not what was run: batches are shuffled epochs, not Poisson samples; neighbours
    are add-or-remove, half the shift of replacing one; 1.115 is smaller than the clip's
    true overshoot; and the coarse orders cost up to 2% the other way.

    Args:
      records: n, all that is trained on.
      batch_size: B; above n it is everybody every step.
      epochs: passes over the data.
      noise_multiplier: sigma, standard deviation over clip norm.
      delta: of the conversion.
    """
    q = min(1.0, batch_size / records)
    steps = epochs * math.ceil(records / batch_size)
    shift = EDMUNDS_OVERSHOOT / noise_multiplier
    curve = rdp.poisson_gaussian(rdp.EDMUNDS_ORDERS, q, shift, "add_remove")
    return rdp.epsilon(rdp.EDMUNDS_ORDERS, steps * curve, delta)


def guo_rdp2(
    *, records: Count, batch_size: Count, steps: Count, noise_multiplier: Positive
) -> float:
    """Return D_2 in the convention of Guo et al.'s (2022) release: not a claim.

    That of a Poisson-sampled Gaussian at rate B / n and shift 1.115 / sigma, times the
    steps. Batches are shuffled epochs there, and the bound that is made of it needs
    neighbours in which one record is replaced: twice the shift.

    Args:
      records: n.
      batch_size: B.
      steps: how many.
      noise_multiplier: sigma, standard deviation over clip norm.
    """
    order, q = np.array([2.0]), batch_size / records
    shift = EDMUNDS_OVERSHOOT / noise_multiplier  # the thesis builds on this release
    return steps * float(rdp.poisson_gaussian(order, q, shift, "add_remove")[0])


def parameters(
    *, model: Literal["cnn_tanh", "cnn_tanh_deep"], side: Count, channels: Count
) -> int:
    """Return how many parameters a model has on images of a side, ten classes."""
    import jax  # slow

    from audit.models import networks

    task = getattr(networks, model)((side, side, channels), 10)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


FORMULAS: dict[str, Callable[..., float]] = {  # by the name a source's file uses
    "edmunds_epsilon": edmunds_epsilon,
    "parameters": parameters,
}
