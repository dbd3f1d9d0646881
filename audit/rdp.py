"""Renyi curves and privacy losses of Gaussian releases; conversions to epsilon(delta).

Accounting is float64 NumPy on the host. A *shift* is an L2 sensitivity over the noise's
standard deviation, dimensionless; each function says under which adjacency it is meant.
Subsampling under add-or-remove and all conversions are dp-accounting's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

from audit.types import Adjacency

# The orders of Edmunds (2024) and of Guo et al.'s code.
EDMUNDS_ORDERS = np.array([1 + k / 10 for k in range(1, 100)] + list(range(11, 64)))
# Large noise wants large orders, next to none wants orders just above 1.
ORDERS = np.unique(
    np.concatenate(
        [1 + np.geomspace(0.01, 60, 300), EDMUNDS_ORDERS, np.geomspace(64, 4096, 25)]
    )
)


def gaussian(orders: Any, shift: Any) -> Any:
    """Return D_alpha = alpha shift^2 / 2 of one Gaussian release (Mironov 2017)."""
    return orders * shift**2 / 2


def poisson_gaussian(
    orders: Sequence[float] | np.ndarray, q: float, shift: float, adjacency: Adjacency
) -> np.ndarray:
    """Return the curve of one Poisson-sampled Gaussian release.

    Args:
      orders: above 1.
      q: sampling probability.
      shift: norm bound of one contribution over the noise's standard deviation; under
        either adjacency (replace-one moves the record from +shift to -shift).
      adjacency: add-or-remove is dp-accounting's exact computation; replace-one is the
        divergence between the two mixtures with antipodal contributions, the worst
        case by numerical verification, integrated to 1e-9 relative.
    """
    if adjacency == "add_remove":
        return _accountant(orders, q, shift, adjacency)
    return np.array([_antipodal(float(a), q, shift) for a in np.asarray(orders)])


def _antipodal(order: float, q: float, shift: float) -> float:
    """Return D_order of (1-q) N(0,1) + q N(shift,1) against its mirror image."""
    if q >= 1:
        return gaussian(order, 2 * shift)
    # the integrand's mass lies between the two modes and order * shift beyond them
    edge = (2 * order + 1) * shift + 12
    x = np.linspace(-edge, edge, 40_001)
    log_p, log_q = (_log_mixture(x, q, s) for s in (shift, -shift))
    inside = order * log_p + (1 - order) * log_q + np.log(x[1] - x[0])
    return max(0.0, float(special.logsumexp(inside)) / (order - 1))


def _log_mixture(x: np.ndarray, q: float, shift: float) -> np.ndarray:
    quiet = np.log1p(-q) - x**2 / 2
    loud = np.log(q) - (x - shift) ** 2 / 2
    return np.logaddexp(quiet, loud) - np.log(2 * np.pi) / 2


def without_replacement_gaussian(
    orders: Sequence[float] | np.ndarray, q: float, shift: float
) -> np.ndarray:
    """Return the replace-one curve of one release on a uniform subset of fixed size.

    Order 2 is log(1 + q^2 (e^(shift^2) - 1)), an upper bound by convexity and attained
    by antipodal contributions (the supremum inside was verified numerically to 1e-14);
    other orders are the bound of Wang, Balle and Kasiviswanathan (2019).

    Args:
      orders: above 1.
      q: subset size over n.
      shift: replace-one sensitivity over the noise's standard deviation.
    """
    orders = np.asarray(orders, float)
    curve = gaussian(orders, shift)
    if q < 1 and (orders != 2).any():
        curve = np.array(_accountant(orders, q, shift, "replace_one"))
    if q < 1:
        curve[orders == 2] = _log_add_expm1(q, shift**2)
    return curve


def _log_add_expm1(q: float, exponent: float) -> float:
    """Return log(1 + q^2 (e^exponent - 1)) without overflow."""
    grown = exponent + np.log(-np.expm1(-exponent)) if exponent > 0 else -np.inf
    return float(np.logaddexp(0.0, 2 * np.log(q) + grown))


def _accountant(
    orders: Any, q: float, shift: float, adjacency: Adjacency
) -> np.ndarray:
    import dp_accounting as dp

    relation, sampled = {
        "add_remove": (
            dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
            lambda event: dp.PoissonSampledDpEvent(min(q, 1.0), event),
        ),
        "replace_one": (
            dp.NeighboringRelation.REPLACE_ONE,
            # dataset size and sample size enter through their ratio alone
            lambda event: dp.SampledWithoutReplacementDpEvent(
                10**9, round(q * 10**9), event
            ),
        ),
    }[adjacency]
    accountant = dp.rdp.RdpAccountant(list(orders), relation)
    accountant.compose(sampled(dp.GaussianDpEvent(1 / shift)))
    return np.array(accountant._rdp)  # it has no public reading of the curve


def epsilon(
    orders: Sequence[float] | np.ndarray,
    curve: Sequence[float] | np.ndarray,
    delta: float,
) -> float:
    """Convert a curve to the smallest epsilon its orders give (dp-accounting's)."""
    import dp_accounting as dp

    return float(dp.rdp.compute_epsilon(list(orders), list(curve), delta)[0])


class GaussianPrivacy(NamedTuple):
    """The privacy loss of a mu-GDP mechanism: N(0, 1) against N(mu, 1), exact.

    Reads like dp-accounting's PrivacyLossDistribution.
    """

    mu: float  # shift of all releases together

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """Return delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
        if self.mu == 0:
            return max(0.0, -np.expm1(epsilon)) if epsilon < 0 else 0.0
        kept = special.log_ndtr(self.mu / 2 - epsilon / self.mu)
        lost = epsilon + special.log_ndtr(-self.mu / 2 - epsilon / self.mu)
        return float(max(0.0, np.exp(kept) * -np.expm1(min(0.0, lost - kept))))

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 with delta(epsilon) <= delta."""
        if self.get_delta_for_epsilon(0.0) <= delta:
            return 0.0
        # the loss is N(mu^2/2, mu^2): its tail alone already gives a valid epsilon
        high = self.mu**2 / 2 + self.mu * max(1.0, -special.ndtri(delta))
        return float(
            optimize.brentq(
                lambda e: self.get_delta_for_epsilon(e) - delta, 0.0, high, xtol=1e-10
            )
        )


def poisson_gaussian_pld(
    q: float, shift: float, steps: int, adjacency: Adjacency
) -> Any:
    """Return dp-accounting's privacy-loss distribution of `steps` Poisson releases.

    Args:
      q: sampling probability.
      shift: norm bound over standard deviation. dp-accounting itself doubles it for
        replace-one here, though not in its RDP accountant.
      steps: releases.
      adjacency: which neighbours.
    """
    import dp_accounting as dp

    relation = {
        "add_remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": dp.NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    accountant = dp.pld.PLDAccountant(relation)
    event = dp.PoissonSampledDpEvent(min(q, 1.0), dp.GaussianDpEvent(1 / shift))
    accountant.compose(event, steps)
    return _Pld(accountant)


class _Pld(NamedTuple):
    accountant: Any

    def get_epsilon_for_delta(self, delta: float) -> float:
        return float(self.accountant.get_epsilon(delta))

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        return float(self.accountant.get_delta(epsilon))
