"""Reconstruction robustness: how often an attacker can succeed, from a privacy loss.

An attacker *succeeds* where the guess is as close to the record as one likes to ask, or
names it among candidates. kappa is the success of the best guess that sees nothing; the
bound on who sees the release is the trade-off curve of the mechanism at kappa (Hayes et
al. 2023; Kaissis et al. 2023). It holds for biased attackers and for every prior.

A *loss* reads like dp-accounting's PrivacyLossDistribution: `get_delta_for_epsilon`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import optimize

from audit.accounting import rdp, tradeoff
from audit.types import Bound


def success(kappa: float, loss: Any) -> float:
    """Return the largest success probability of an attacker.

    It is gamma(kappa) = sup {P(E) : Q(E) <= kappa}, P and Q the release with the record
    and without it, which by duality is the least over epsilon >= 0 of

        e^eps kappa + delta(eps)    and    1 - e^-eps (1 - delta(eps) - kappa).

    No Monte Carlo is involved. A loss whose delta is the larger of both directions, as
    that of dp-accounting is, gives a valid bound, which is exact where the directions
    agree. The direction that counts is "remove"; "add" alone gives no bound.

    Args:
      kappa: in [0, 1], success of the best guess that ignores the release.
      loss: under replace-one, if Q is a run with another record in the target's place;
        under add-or-remove, if Q is a run without it.

    Raises:
      ValueError: if kappa is no probability.
    """
    if not 0 <= kappa <= 1:
        raise ValueError(f"kappa={kappa}: a probability is from 0 to 1")
    if isinstance(loss, rdp.GaussianPrivacy):
        return float(loss.tpr(kappa))

    def most(s: float) -> float:
        """Return the bound that epsilon = |s| gives, before it or after 0."""
        delta = float(loss.get_delta_for_epsilon(abs(s)))
        if s < 0:
            return 1 - math.exp(s) * (1 - delta - kappa)
        return math.exp(s) * kappa + delta

    # every epsilon gives a bound, so that a search can only sharpen it; there is one
    # least value, for with delta(-eps) of the reversed pair `most` is convex in e^s
    high = -math.log(kappa) if kappa > 0 else 700.0
    nodes = np.concatenate([-np.geomspace(40, 0.01, 12), [0.0], _up_to(high)])
    each = [most(float(s)) for s in nodes]
    best = int(np.argmin(each))
    near = nodes[max(best - 1, 0)], nodes[min(best + 1, len(nodes) - 1)]
    how = {"method": "bounded", "options": {"xatol": 1e-8}}
    least = optimize.minimize_scalar(most, bounds=near, **how).fun
    return float(np.clip(min(each[best], least), kappa, 1))


def mean_error(radii: Any, kappas: Any, loss: Any) -> float:
    """Return a lower bound on the mean error of any attacker, from the blind success.

    A guess is within eta with probability at most gamma(kappa(eta)), and the mean of an
    error is the integral of its tail:

        E error >= int_0^inf (1 - gamma(kappa(eta))) d eta.

    Args:
      radii: [k + 1] errors from 0 on, ascending; beyond the last nothing is counted.
      kappas: [k] at least the best blind guess's chance of an error below the right end
        of each interval; of a step function, its value on the interval.
      loss: as for `success`.
    """
    if isinstance(loss, rdp.GaussianPrivacy):
        most = loss.tpr(kappas)
    else:
        most = tradeoff.tpr_from_loss(kappas, loss)
    return float(np.diff(np.asarray(radii, float)) @ (1 - most))


def blind_radii(records: Any) -> np.ndarray:
    """Return r [M]: no ball of squared radius below r_k holds k + 1 of M records.

    The squared radius is per coordinate. A ball that holds k records has one of them
    within twice its radius of all others; and, as their mean squared distance from its
    centre is at most rho^2, that between two of them is at most 2 rho^2, so that some
    record's mean over the k (itself with 0) is, too. Both limits are computed from the
    distances between records alone, whatever the centre.

    Args:
      records: [M, ...], all equally likely.
    """
    x = np.asarray(records, float).reshape(len(records), -1)
    x = x - x.mean(0)
    square = (x**2).sum(1)
    apart = np.sort(np.maximum(square[:, None] + square - 2 * x @ x.T, 0), 1)
    apart[:, 0] = 0
    count = np.arange(1, len(x) + 1)
    doubled = apart.min(0) / 4
    spread = (np.cumsum(apart, 1) / count).min(0) / 2
    return np.maximum.accumulate(np.maximum(doubled, spread)) / x.shape[1]


def as_bound(radii: Any, kappas: Any, loss: Any) -> Bound:
    """Return `mean_error` as a bound on the mean squared error, for a finite prior.

    The blind success over a pool is exact for the uniform prior on the pool, and an
    estimate for the population. That is the assumption, and the bound is never ranked.
    """
    who = "any attacker, prior = uniform over pool records of the target's class"
    return Bound(
        "reconstruction_robustness",
        np.asarray(mean_error(radii, kappas, loss)),
        who,
        "Hayes et al. 2023; integral derived in docs/",
        ranked=False,
    )


def _up_to(high: float) -> np.ndarray:
    return np.geomspace(min(0.01, high / 2), high, 12) if high > 0 else np.zeros(0)
