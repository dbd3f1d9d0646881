"""Whether the errors of a row contradict a Bayes risk, and how many targets that needs.

A Bayes risk bounds a mean over targets. The gap of a target is its error less its risk,
restated for the scored targets as the bound itself is: it has mean 0 or more for every
attacker, and mean 0 for the best one.
"""

from __future__ import annotations

import numpy as np
from scipy import special

LEVEL = 0.01  # of every test of a row: the chance of a flag on a sound one, at most
POWER = 0.9  # with which `needed` targets show an attacker at half of a bound
MOST = 1e9  # targets: no number is given for a test that needs more


def excess(gap: np.ndarray, variance: float, shared_error: float = 0.0) -> float:
    """Return by how many standard errors the mean gap exceeds 0; 0 without any error.

    Args:
      gap: [T] error less risk, per target.
      variance: of one gap, at least: the gaps at hand count where theirs is larger, as
        few targets do not show rare large errors.
      shared_error: standard error that all targets share.
    """
    n = len(gap)
    spread = max(variance, gap.var(ddof=1) if n > 1 else 0.0) / n + shared_error**2
    return float(gap.mean() / np.sqrt(spread)) if spread else 0.0


def needed(risk: float, variance: float) -> int | None:
    """Return how many targets show an attacker at half of the risk; None = above MOST.

    The test has the level `LEVEL` and finds such an attacker with probability `POWER`.

    Args:
      risk: the bound's value.
      variance: of one gap.
    """
    quantiles = special.ndtri(POWER) - special.ndtri(LEVEL)
    with np.errstate(over="ignore"):  # of a risk that is nearly 0: infinitely many
        smallest = (quantiles / (risk / 2)) ** 2 * variance if risk > 0 else np.inf
    return int(np.ceil(smallest)) if smallest < MOST else None
