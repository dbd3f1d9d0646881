"""Confidence intervals of shares and of rank correlations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

REACH_95 = 1.96  # standard errors from a value to an end of its normal 95% interval


class Estimate(NamedTuple):
    """A number with its two-sided interval."""

    value: float
    low: float
    high: float


class Proportion(NamedTuple):
    """k of n, with the exact (Clopper-Pearson) interval."""

    k: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """Return k / n; nan if n is 0."""
        return self.k / self.n if self.n else float("nan")


def clopper_pearson(k: Any, n: Any, confidence: float = 0.95) -> tuple[Any, Any]:
    """Return the exact (low, high) of a binomial share (Clopper and Pearson 1934).

    Each side errs with probability at most (1 - confidence) / 2. Successes k and trials
    n >= 1 broadcast.
    """
    from scipy import stats

    k, n = np.broadcast_arrays(np.asarray(k, float), np.asarray(n, float))
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, np.maximum(k, 1), n - k + 1)
    high = stats.beta.isf(tail, k + 1, np.maximum(n - k, 1))
    return np.where(k > 0, low, 0.0)[()], np.where(k < n, high, 1.0)[()]


def proportion(k: int, n: int, confidence: float = 0.95) -> Proportion:
    """Return k of n with its Clopper-Pearson interval."""
    low, high = clopper_pearson(k, n, confidence)
    return Proportion(int(k), int(n), float(low), float(high))


def normal(
    value: float, variance: float, confidence: float, limits: tuple[float, float]
) -> Estimate:
    """Return a normal interval, cut at the limits of the quantity."""
    reach = -special.ndtri((1 - confidence) / 2) * math.sqrt(variance)
    low, high = max(value - reach, limits[0]), min(value + reach, limits[1])
    return Estimate(float(value), float(low), float(high))


def logit_normal(value: float, variance: float, confidence: float) -> Estimate:
    """Return an interval of a quantity between 0 and 1, which is normal in its logit.

    Near 0 and 1 a normal interval of the quantity itself errs on one side: the end that
    is nearer to 1/2 passes the truth too often. `value` is neither 0 nor 1.
    """
    logit, slope = special.logit(value), 1 / (value * (1 - value))
    unlimited = -math.inf, math.inf
    _, *ends = normal(logit, slope**2 * variance, confidence, unlimited)
    return Estimate(float(value), *special.expit(ends).tolist())


def difference_of(a: Estimate, b: Estimate, correlation: float) -> Estimate:
    """Return a - b, of two quantities whose intervals have one confidence.

    Each end is as far from a - b as the two ends that it is made of allow (Zou 2007,
    the method of variance estimates recovery). Intervals that know their limits and
    lie on one side thus give a difference that does so too.
    """
    correlation = min(max(correlation, -1.0), 1.0)

    def reach(one: float, other: float) -> float:
        square = one**2 + other**2 - 2 * correlation * one * other
        return math.sqrt(max(square, 0.0))

    value = a.value - b.value
    low = value - reach(a.value - a.low, b.high - b.value)
    high = value + reach(a.high - a.value, b.value - b.low)
    return Estimate(value, low, high)


def standard_error(value: float, low: float, high: float) -> float:
    """Return the one that `logit_normal` made a 95% interval of.

    An interval that ends at 0 or 1 is of something else: its longer side counts.
    """
    if not 0 < low <= high < 1:
        return max(value - low, high - value) / REACH_95
    width = float(special.logit(high) - special.logit(low))
    return width / (2 * REACH_95) * value * (1 - value)


def rank_correlation(a: Any, b: Any, *, confidence: float = 0.95) -> Estimate | None:
    """Return Spearman's correlation of two quantities [n] of the same records.

    The interval is Fisher's, with the variance (1 + r^2 / 2) / (n - 3) of Bonett and
    Wright (2000). It would have no width where the orders agree, which few records
    often do by chance; an r of 1 then counts as halfway to the next one, that of a
    single swap of neighbours, 1 - 12 / (n^3 - n). None for fewer than four records, or
    if one quantity is constant.
    """
    a, b = np.asarray(a, float).ravel(), np.asarray(b, float).ravel()
    if a.size != b.size:
        raise ValueError(f"{a.size} values against {b.size}")
    if a.size < 4 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    from scipy import stats

    r = float(stats.spearmanr(a, b).statistic)
    n = a.size
    limit = 1 - 6 / (n**3 - n)
    centre = np.clip(r, -limit, limit)
    reach = -special.ndtri((1 - confidence) / 2)
    reach *= math.sqrt((1 + centre**2 / 2) / (n - 3))
    low, high = np.tanh(np.arctanh(centre) + np.array([-reach, reach]))
    return Estimate(r, min(float(low), r), max(float(high), r))
