"""Bayes capacity of one noised contribution: how much an update can tell of a secret.

The capacity of a channel f(y | x) is the integral over y of sup_x f(y | x) (Alvim et
al., 2012): the largest factor by which seeing y can multiply anyone's chance of
guessing anything about x, whatever the prior. Its logarithm is returned, in nats.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from audit.accounting import vmf

WIDTHS = 40.0  # of the integrand's peak, to either side
NODES = 20_001


def von_mises_fisher(dimension: int, concentration: float) -> float:
    """Return log capacity of a draw around any unit vector [K]: kappa - L(kappa)."""
    return float(concentration - vmf.log_mean_exp(dimension, concentration))


def gaussian(dimension: int, radius: float) -> float:
    """Return log capacity of v + N(0, I) for any v [K] with |v| <= radius.

    Within the ball the density's supremum is its value at 0; at a distance u outside,
    its value at u. So it is (2 pi)^(-K/2) times the ball's volume plus the integral
    over u > 0 of A (radius + u)^(K - 1) exp(-u^2 / 2), A the unit sphere's area.

    Args:
      dimension: K >= 1.
      radius: the longest contribution over the noise's standard deviation, > 0.
    """
    k = dimension
    log_area = math.log(2) + k / 2 * math.log(math.pi) - special.gammaln(k / 2)
    root = math.sqrt(radius * radius + 4 * (k - 1))
    peak = (root - radius) / 2  # where the integrand is largest
    width = 1 / math.sqrt(1 + (k - 1) / (radius + peak) ** 2)
    low = max(0.0, peak - WIDTHS * width)
    u = np.linspace(low, peak + WIDTHS * width, NODES)
    terms = (k - 1) * np.log(radius + u) - u * u / 2
    weights = np.full(NODES, u[1] - u[0])
    weights[[0, -1]] /= 2  # the trapezoid rule
    outside = log_area + special.logsumexp(terms, b=weights)
    inside = log_area - math.log(k) + k * math.log(radius)
    return float(np.logaddexp(inside, outside) - k / 2 * math.log(2 * math.pi))
