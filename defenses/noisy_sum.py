"""Release a noised sum of clipped records: the mechanism with a known best attack."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from audit.mechanisms import clip_tree, gaussian, output_perturbation, soft_clip
from audit.mechanisms.batch import records
from audit.types import Defense, Positive, Task, TrainingSet


def noisy_sum(
    task: Task, *, clip_norm: Positive = 20.0, noise_stddev: Positive = 0.01
) -> Defense:
    """Release sum_i clip(x_i) + N(0, noise_stddev^2 I).

    A calibration target rather than a defense: the Fisher information and the best
    unbiased attack (`sum_inversion`) are both closed-form, so a scorecard of it that
    does not read 1.00 between them is wrong.

    Args:
      task: unused, there is nothing to learn.
      clip_norm: C of the soft clip, in units of the record's L2 norm.
      noise_stddev: in pixel units.
    """
    del task
    clip = soft_clip(clip_norm)

    def solve(side: Any, data: TrainingSet) -> jax.Array:
        del side
        fixed = jax.vmap(lambda x: clip_tree(clip, x))(data.fixed.x).sum(0)
        return fixed if data.target is None else fixed + clip_tree(clip, data.target.x)

    def trace(side: Any, data: TrainingSet, rows: Any) -> jax.Array:
        """Return ||J||_F^2 [m], J = phi Id + (phi'/s) x x^T of phi(s) x, s = ||x||."""
        del side
        x = jnp.asarray(records(data, rows).x)
        x = x.reshape(len(x), -1)
        s = jnp.sqrt((x**2).sum(1))
        phi, slope = clip.scale(s), clip.slope(s)
        return x.shape[1] * phi**2 + 2 * phi * slope * s + (slope * s) ** 2

    return output_perturbation(
        solve,
        gaussian(noise_stddev),
        norm_bound=lambda n: clip.norm_bound,
        sensitivity=lambda n: 2 * clip.norm_bound,
        trace=trace,
        traits=frozenset({"sum"}),
    )
