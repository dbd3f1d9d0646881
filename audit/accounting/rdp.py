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
from collections.abc import Callable, Sequence
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
_FAR = 12.0  # standard deviations, beyond which nothing is drawn
_NEGLIGIBLE = 60.0  # nats below the peak: e^-60 = 9e-27
_DIFFERENCES = 256  # their highest order; each costs a quadrature
_LOUD = 2500.0  # shift; dp-accounting overflows where a step of `_grid` is above 709


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

    def logs(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log M(down) and log r."""
        above, below = _log_mixture_ratio(x, q, up), _log_mixture_ratio(x, q, down)
        return below + _log_normal(x), above - below

    def height(x: np.ndarray) -> np.ndarray:  # bounds that of h
        base, ratio = logs(x)
        return base + np.maximum(order * ratio, 0)

    x = _nodes(height, low, high)
    base, ratio = logs(x)
    return float(
        np.logaddexp(0.0, _log_sum(base + _log_h(order, ratio), x)) / (order - 1)
    )


def _nodes(
    height: Callable[[np.ndarray], np.ndarray], low: float, high: float
) -> np.ndarray:
    """Return equidistant points [_NODES] of [low, high] from where it counts.

    `height` is the logarithm of an integrand. Where it is far below its peak is left
    out.
    """
    for _ in range(3):
        x = np.linspace(low, high, _NODES)
        values = height(x)
        # half a step from a peak of curvature 1 the height is step^2 / 8 less
        least = values.max() - _NEGLIGIBLE - (x[1] - x[0]) ** 2
        near = np.flatnonzero(values >= least)  # of loud records all less is rounded
        low, high = x[max(near[0] - 1, 0)], x[min(near[-1] + 1, _NODES - 1)]
    return np.linspace(low, high, _NODES)


def _log_sum(height: np.ndarray, x: np.ndarray) -> float:
    """Return the logarithm of an integral by the trapezoidal rule, without its ends."""
    return float(special.logsumexp(height) + np.log(x[1] - x[0]))


def _log_normal(x: np.ndarray) -> np.ndarray:
    return -(x**2) / 2 - np.log(2 * np.pi) / 2


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
    Kasiviswanathan (2019). Between whole orders (alpha - 1) D_alpha
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
    """Return Theorem 27's bound at whole orders >= 2, its differences by quadrature.

    With B(j) = E (r - 1)^j, r the density ratio of N(shift, 1) and N(0, 1), it is

      log(1 + sum_{j=2}^alpha C(alpha, j) q^j
              min(2 E r^j, 4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))))) / (alpha - 1).

    dp-accounting takes B from alternating sums. At small shifts nothing is left of them
    but rounding errors, which make its curve as much as 80 times larger (order 256, q =
    .2, shift .01).
    """
    powers = np.arange(2, int(orders.max(initial=1)) + 1)
    terms = np.log(2) + powers * (powers - 1) * shift**2 / 2
    few = powers[powers <= _DIFFERENCES]  # beyond them the first of the two is taken
    even = np.array([_log_difference(j, shift) for j in range(2, few.size + 3, 2)])
    both = (even[few // 2 - 1] + even[(few + 1) // 2 - 1]) / 2
    terms[: few.size] = np.minimum(terms[: few.size], np.log(4) + both)

    def scaled(order: int) -> float:
        j = powers[: order - 1]
        log_choices = special.gammaln(order + 1) - special.gammaln(j + 1)
        log_choices -= special.gammaln(order - j + 1)
        summed = special.logsumexp(log_choices + j * math.log(q) + terms[: order - 1])
        return float(np.logaddexp(0.0, summed))

    return np.array([scaled(int(a)) / (a - 1) for a in orders])


def _log_difference(power: int, shift: float) -> float:
    """Return log E (e^(shift x - shift^2/2) - 1)^power, x ~ N(0, 1), power even."""

    def height(x: np.ndarray) -> np.ndarray:
        log_ratio = shift * x - shift**2 / 2
        with np.errstate(divide="ignore"):  # the densities are equal at shift/2
            less_one = np.log(-np.expm1(-np.abs(log_ratio)))
        return power * (np.maximum(log_ratio, 0) + less_one) + _log_normal(x)

    # the height's derivative is below power (shift + 1/|x - shift/2|) - |x| in size
    reach = math.sqrt(power) + 12.0
    x = _nodes(height, -reach, (power + 1) * shift + reach)
    return _log_sum(height(x), x)


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
        gap = lambda e: self.get_delta_for_epsilon(e) - delta
        if gap(high) >= 0:  # rounding hides the root, from mu of about 1e8 on
            return float(high)
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
    q = 1, q = 0 or a shift of 0. From a shift of `_LOUD` on it is the loss of releases
    to everybody, which is never less. Arguments: `poisson_gaussian`; dp-accounting
    doubles the shift itself under replace-one.
    """
    norms = {"add_remove": 1, "replace_one": 2}[_checked(adjacency)]
    if q >= 1 or not 0 < shift < _LOUD:
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
        value_discretization_interval=_grid(q, shift, norms * shift),
    )
    return one.self_compose(steps)


def _grid(q: float, shift: float, moved: float) -> float:
    """Return the step of the grid on which privacy losses are rounded.

    Losses grow with shift^2, and so do memory and time at a fixed step. Small losses
    are about q x shift, and disappear in the rounding where the step is longer: it is a
    tenth of that, but no shorter than the largest loss, of `moved`, over 100,000.
    """
    if shift >= 1:
        return 1e-4 * shift**2
    largest = math.log1p(q * math.expm1(_FAR * moved))
    return min(1e-4, max(q * shift / 10, largest / 1e5))
