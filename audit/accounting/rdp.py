"""Renyi curves and privacy losses of Gaussian releases; conversions to epsilon.

Accounting is float64 NumPy on the host. A *shift* is an L2 sensitivity over the
noise's standard deviation, without dimension. Functions differ in the sensitivity:

==============================  ===================================================
function                        its shift
==============================  ===================================================
`gaussian`, `GaussianPrivacy`   under the adjacency of the guarantee
`without_replacement_gaussian`  replace-one: the sum moves by <= 2 norm bounds
`poisson_gaussian`, `..._pld`   one record's norm bound, for either adjacency
==============================  ===================================================

Under Poisson sampling the adjacency does not just scale the shift: replacing a record
turns one mixture into another. dp-accounting's own conventions differ (its loss
distributions double a replace-one shift, its Renyi accountant does not).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from scipy import optimize, special

from audit.types import Adjacency

Orders = Sequence[float] | np.ndarray

# The orders of Edmunds (2024) and of Guo et al.'s code.
EDMUNDS_ORDERS = np.array([1 + k / 10 for k in range(1, 100)] + list(range(11, 64)))
# Large noise needs large orders, small noise needs orders just above 1.
_FINE, _COARSE = 1 + np.geomspace(0.01, 60, 300), np.geomspace(64, 4096, 25).round()
ORDERS = np.unique(np.concatenate([_FINE, EDMUNDS_ORDERS, _COARSE]))

_NODES = 4001  # of the quadrature
_NEGLIGIBLE = 60.0  # nats below the peak: e^-60 = 9e-27


def gaussian(orders: Orders, shift: float) -> np.ndarray:
    """Return D_alpha = alpha shift^2 / 2 of one Gaussian release (Mironov 2017).

    Args:
      orders: alpha, above 1.
      shift: under the adjacency of the guarantee; 0 gives zeros, inf gives inf.
    """
    return np.asarray(orders, float) * np.asarray(shift, float) ** 2 / 2


def poisson_gaussian(
    orders: Orders, q: float, shift: float, adjacency: Adjacency
) -> np.ndarray:
    """Return the curve [orders] of one Poisson-sampled Gaussian release, to 1e-9.

    With M(s) = (1-q) N(0, 1) + q N(s, 1) it is, by quadrature, D_alpha of M(shift)
    against

      N(0, 1)    add-or-remove; the exact worst case (Mironov, Talwar and Zhang 2019)
      M(-shift)  replace-one; antipodal contributions are the worst case by numerical
                 verification, without a proof

    where the shift is the norm bound of one record over the noise's stddev under either
    adjacency. dp-accounting agrees at whole orders; at fractional ones its series is an
    upper bound, loose by as much as two thirds, or does not converge.
    """
    orders = _above_one(orders)
    norms = {"add_remove": 1, "replace_one": 2}[_checked(adjacency)]
    plain = gaussian(orders, norms * shift)
    if q >= 1 or not 0 < shift < np.inf:
        return plain
    if q <= 0:
        return np.zeros_like(plain)
    mirror = (1 - norms) * shift
    curve = [_mixture_divergence(a, q, shift, mirror) for a in orders.flat]
    return np.reshape(curve, orders.shape)


def _mixture_divergence(order: float, q: float, up: float, down: float) -> float:
    """Return D_order of M(up) against M(down), see `poisson_gaussian`; down <= 0 < up.

    With r the density ratio it is log(1 + E h(r)) / (order - 1), the expectation under
    M(down), where h(r) = r^order - 1 - order (r - 1) >= 0: nothing cancels, however
    little leaks.
    """
    # M(down) has its mass between down and 0; of r^order M(down) the logarithm's
    # derivative lies between -x and 2 order up - x
    low, high = down - 12.0, 2 * order * up + 12.0
    for _ in range(4):  # zoom in on the part that is not negligible
        x = np.linspace(low, high, _NODES)
        step = x[1] - x[0]
        above, below = _log_mixture_ratio(x, q, up), _log_mixture_ratio(x, q, down)
        log_base = below - x**2 / 2 - np.log(2 * np.pi) / 2
        height = log_base + np.maximum(order * (above - below), 0)  # bounds log h
        # half a step from a peak of curvature 1 the height is step^2 / 8 less
        near = np.flatnonzero(height > height.max() - _NEGLIGIBLE - step**2)
        low, high = x[max(near[0] - 1, 0)], x[min(near[-1] + 1, _NODES - 1)]
    log_excess = special.logsumexp(log_base + _log_h(order, above - below))
    return float(np.logaddexp(0.0, log_excess + np.log(step)) / (order - 1))


def _log_mixture_ratio(x: np.ndarray, q: float, shift: float) -> np.ndarray:
    """Return log M(shift) / N(0, 1) at x."""
    return np.logaddexp(np.log1p(-q), np.log(q) + shift * x - shift**2 / 2)


def _log_h(order: float, u: np.ndarray) -> np.ndarray:
    """Return log(e^(order u) - 1 - order (e^u - 1)) without overflow."""
    safe = np.minimum(u, 600 / order)
    small = np.expm1(order * safe) - order * np.expm1(safe)
    # where e^(order u) is huge the constant term is below rounding
    large = np.maximum(u, 600 / order)
    tail = order * large + np.log1p(-order * np.exp((1 - order) * large))
    return np.where(u < 600 / order, np.log(np.maximum(small, 1e-300)), tail)


def without_replacement_gaussian(orders: Orders, q: float, shift: float) -> np.ndarray:
    """Return the replace-one curve of one release on a uniform subset of fixed size.

    With q the subset's share of n, order 2 is log(1 + q^2 (e^(shift^2) - 1)): a record
    that moves through a ball with all others at its end attains it, and it is an upper
    bound by convexity, given a supremum over the ball that is verified numerically (to
    1e-14), not proved. Whole orders above 2 are the bound of Wang, Balle and
    Kasiviswanathan (2019), from dp-accounting. Between whole orders (alpha - 1) D_alpha
    is convex, hence below its chord; and no order exceeds that of a release to
    everybody.
    """
    orders = _above_one(orders)
    plain = gaussian(orders, shift)
    if q >= 1 or not 0 < shift < np.inf:
        return plain
    if q <= 0:
        return np.zeros_like(plain)
    whole = np.union1d(np.floor(orders), np.ceil(orders))
    whole = whole[whole > 2]
    chord_at = np.concatenate([[1.0, 2.0], whole])
    second = _log_add_expm1(q, shift**2)
    scaled = np.concatenate([[0.0, second], (whole - 1) * _wang(whole, q, shift)])
    return np.minimum(np.interp(orders, chord_at, scaled) / (orders - 1), plain)


def _log_add_expm1(q: float, exponent: float) -> float:
    """Return log(1 + q^2 (e^exponent - 1)) without overflow; q, exponent > 0."""
    grown = exponent + math.log(-math.expm1(-exponent))
    return float(np.logaddexp(0.0, 2 * math.log(q) + grown))


def _wang(orders: np.ndarray, q: float, shift: float) -> np.ndarray:
    if not orders.size:
        return orders
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(list(orders), dp.NeighboringRelation.REPLACE_ONE)
    # only the ratio of sizes matters; it is rounded up, the safe direction
    size = 10**9
    event = dp.SampledWithoutReplacementDpEvent(
        size, min(size, math.ceil(q * size)), dp.GaussianDpEvent(1 / shift)
    )
    with np.errstate(invalid="ignore"):  # differences of infinities, not used
        accountant.compose(event)
    return np.asarray(accountant.rdp)


def _above_one(orders: Orders) -> np.ndarray:
    orders = np.asarray(orders, float)
    if not (orders > 1).all():
        raise ValueError(f"Renyi orders must be above 1, got {orders.min()}")
    return orders


def _checked(adjacency: Adjacency) -> Adjacency:
    if adjacency not in get_args(Adjacency):
        words = ", ".join(get_args(Adjacency))
        raise ValueError(f"adjacency={adjacency!r}: there are {words}")
    return adjacency


def epsilon(orders: Orders, curve: Orders, delta: float) -> float:
    """Convert a curve to the least epsilon it implies at delta, with dp-accounting.

    min over alpha > 1.01 of D_alpha + log(1 - 1/alpha) - log(alpha delta) / (alpha - 1)
    (Canonne, Kamath and Steinke 2020, Proposition 12). The curve is that of all
    releases together, inf where unknown; delta = 0 gives inf.
    """
    import dp_accounting as dp

    return float(dp.rdp.compute_epsilon(list(orders), list(curve), delta)[0])


class GaussianPrivacy(NamedTuple):
    """The privacy loss of a mu-GDP mechanism: N(0, 1) against N(mu, 1), exact.

    Reads like dp-accounting's PrivacyLossDistribution.
    """

    mu: float  # shift of all releases together: sqrt(steps) x the shift of one

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Return delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
        epsilon = np.asarray(epsilon, float)
        if self.mu == 0:
            return np.maximum(0.0, -np.expm1(np.minimum(epsilon, 0)))[()]
        kept = special.log_ndtr(self.mu / 2 - epsilon / self.mu)
        lost = epsilon + special.log_ndtr(-self.mu / 2 - epsilon / self.mu)
        return (np.exp(kept) * -np.expm1(np.minimum(0.0, lost - kept)))[()]

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 with delta(epsilon) <= delta."""
        if self.get_delta_for_epsilon(0.0) <= delta:
            return 0.0
        # the loss is N(mu^2/2, mu^2): its tail alone gives a valid epsilon
        high = self.mu**2 / 2 + self.mu * max(1.0, -special.ndtri(delta))
        if not np.isfinite(high):
            return math.inf
        gap = lambda e: self.get_delta_for_epsilon(e) - delta  # noqa: E731
        return float(optimize.brentq(gap, 0.0, high, xtol=1e-10))

    def tpr(self, fpr: Any) -> Any:
        """Return the largest TPR of any membership test, Phi(Phi^-1(fpr) + mu).

        Source: Dong, Roth and Su (2022). `fpr` has any shape.
        """
        return special.ndtr(special.ndtri(np.asarray(fpr, float)) + self.mu)


def poisson_gaussian_pld(
    q: float, shift: float, steps: int, adjacency: Adjacency
) -> Any:
    """Return the privacy loss of `steps` Poisson releases, pessimistically rounded.

    It is dp-accounting's PrivacyLossDistribution, or the exact `GaussianPrivacy` for
    q = 1, q = 0 or a shift that is 0 or infinite. Arguments: `poisson_gaussian`;
    dp-accounting doubles the shift itself under replace-one.
    """
    norms = {"add_remove": 1, "replace_one": 2}[_checked(adjacency)]
    if q >= 1 or not 0 < shift < np.inf:
        return GaussianPrivacy(math.sqrt(steps) * norms * shift)
    if q <= 0:
        return GaussianPrivacy(0.0)
    import dp_accounting as dp

    relation = {
        "add_remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": dp.NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    one = dp.pld.privacy_loss_distribution.from_gaussian_mechanism(
        1 / shift,
        sampling_prob=q,
        neighboring_relation=relation,
        # losses grow with shift^2, and so do memory and time at a fixed resolution
        value_discretization_interval=1e-4 * max(1.0, shift**2),
    )
    return one.self_compose(steps)
