"""Fitting g_phi: the objectives of Edmunds (2024, section 2.1) and their schedule.

Each improvement of the section is one objective; with g the gradient, J its Jacobian
in the record and v = CLIP(g + g_phi):

==============  =====  =============================================================
name            eq.    mean over public records of
==============  =====  =============================================================
replacement     2.4    ||g_phi - g||^2 + lambda ||d g_phi / d x||_F^2, g_phi released
perturbation    2.5    ||g_phi||^2 + lambda ||d (g + g_phi) / d x||_F^2
clipped         2.7    ||g_phi||^2 + lambda ||d v / d x||_F^2
snr             2.8    ||g_phi||^2 + lambda ||d v / d x||_F^2 / ||v||^2
snr_gradient    2.9    as snr, g being an input of g_phi too
==============  =====  =============================================================

Equation 2.6 is how the traces are estimated, by Gaussian probes; where the logits are
affine and g_phi is a constant they are exact here. Only public records are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from audit.clipping import Clip
from audit.mechanisms.fim.shifted_gradients import ShiftedNorms, clipped_trace
from audit.models import optimizers
from audit.models.pretrain import permuted

Objective = Literal["replacement", "perturbation", "clipped", "snr", "snr_gradient"]
LEAST = 1e-7  # added to a trace before it is divided, as in the published code


class Schedule(NamedTuple):
    """How long and how hard phi is fitted before step t = 0, 1, ..."""

    epochs: int  # before step 0
    epochs_decay: int  # fewer with every step
    least_epochs: int
    batch_size: int
    learning_rate: Any  # of Adam
    weight_decay: Any
    penalty: Any  # lambda before step 0
    penalty_decay: Any  # less with every step
    least_penalty: Any
    warm: bool = True  # phi starts where the last step left it

    def epochs_before(self, t: Any, larger: Callable = jnp.maximum) -> Any:
        """Return the epochs before step `t`, which may be traced."""
        return larger(self.least_epochs, self.epochs - self.epochs_decay * t)

    def passes(self, steps: int) -> float:
        """Return the epochs due before all steps but the first, of so many."""
        return float(sum(self.epochs_before(t, max) for t in range(1, steps)))


class Learnt(NamedTuple):
    """What FIM carries from step to step; made from public data and parameters only."""

    phi: Any
    optimizer: Any  # Adam's averages
    public: Any  # Examples
    key: Any  # [] key data: order of the public batches, probes
    places: Any  # [K] which entries of the flat parameters are trained
    aside: Any = None  # what g_phi needs besides phi: how its inputs are standardised
    table: Any = None  # (offset, phi, aside) of every step, where they are fixed


def penalty(objective: Objective, clip: Clip, at: ShiftedNorms) -> Any:
    """Return what lambda multiplies, one entry per example [m]."""
    trace, signal = clipped_trace(clip, at)
    plain = {"perturbation": at.raw, "clipped": trace}
    return plain.get(objective, (trace + LEAST) / signal)


def fit(
    loss: Callable,
    phi: Any,
    optimizer: Any,
    schedule: Schedule,
    t: Any,
    n: int,
    key: jax.Array,
    span: tuple[Any, Any],
) -> tuple[Any, Any]:
    """Return phi and Adam's state after some epochs before step t, from given ones.

    `loss` is (phi, rows | None, lambda, key) -> []; t [] may be traced; n is the number
    of public records; the key is for batches and probes; `span` are the first epoch and
    the one after the last, which may be traced.
    """
    adam = adam_of(schedule)
    size = min(schedule.batch_size, n)
    weight = schedule.penalty - schedule.penalty_decay * t
    weight = jnp.maximum(schedule.least_penalty, weight).astype(jnp.float32)

    def update(carry: tuple, rows: Any, key: jax.Array) -> tuple:
        phi, opt = carry
        slope = jax.grad(loss)(phi, rows, weight, key)
        updates, opt = adam.update(slope, opt, phi)
        return optax.apply_updates(phi, updates), opt

    def epoch(e: Any, carry: tuple) -> tuple:
        key_e = jax.random.fold_in(key, e)
        if size == n:
            return update(carry, None, key_e)
        batches = permuted(key_e, n, size)
        keys = jax.random.split(key_e, len(batches))
        step = lambda c, part: (update(c, *part), None)
        return jax.lax.scan(step, carry, (batches, keys))[0]

    return jax.lax.fori_loop(*span, epoch, (phi, optimizer))


def adam_of(schedule: Schedule) -> optax.GradientTransformation:
    """Return the optimizer of phi; weight decay on all of it, as in the thesis."""
    rate, decay = map(jnp.float32, (schedule.learning_rate, schedule.weight_decay))
    return optimizers.named("adam", rate, decay)
