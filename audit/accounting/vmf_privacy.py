"""Privacy of one visible von Mises-Fisher draw: Renyi, (eps, delta), Fisher.

Replace-one throughout: neighbours move the mean direction, at worst to its antipode,
which is the worst move for every hockey stick, hence for every f-divergence
(derived in docs/vmf.md). Adding or removing a record is not covered: how many draws
are released is public. Host float64.

=============  =====================================================================
pure eps       2 kappa: log ratio kappa <mu - mu', y> (Weggenmann and Kerschbaum 2021)
D_alpha        [L(kappa |alpha mu + (1 - alpha) mu'|) - L(kappa)] / (alpha - 1)
delta(eps)     E (1 - e^(eps - 2 kappa t))_+ over the cosine t
Fisher         kappa A_K(kappa) per unit squared motion of mu, the same all around
=============  =====================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from audit.accounting import vmf

_REACH = 20.0  # standard deviations of the angle; e^-200 of the mass is beyond
_PANELS = 96  # of Gauss-Legendre quadrature over both sides of the mode
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_BINS = 4000  # of a discretised privacy loss, over its whole range
_FAR = 100_000  # bins from a loss of 0 up to which a record's absence is counted


def precision(dimension: int, concentration: Any) -> Any:
    """Return kappa A_K(kappa), the Fisher information about the mean direction.

    It is kappa^2 E <v, y>^2 for a unit v orthogonal to mu. kappa is NumPy, JAX or a
    number.
    """
    return concentration * vmf.mean_cosine(dimension, concentration)


def renyi(
    orders: Any, dimension: int, concentration: float, move: float = 2.0
) -> np.ndarray:
    """Return D_alpha [orders] of two draws with mean directions `move` apart.

    |alpha mu + (1 - alpha) mu'|^2 = 1 + alpha (alpha - 1) |mu - mu'|^2, alpha > 1; the
    largest move is 2, to the antipode.
    """
    alpha = np.asarray(orders, float)
    length = np.sqrt(1 + alpha * (alpha - 1) * move**2)
    at_one = vmf.log_mean_exp(dimension, concentration)
    both = vmf.log_mean_exp(dimension, concentration * length)
    return (both - at_one) / (alpha - 1)


class VmfPrivacy(NamedTuple):
    """The exact privacy loss of one draw, with the methods of dp-accounting's."""

    dimension: int
    concentration: float

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Return delta(eps) = E (1 - e^(eps - 2 kappa t))_+, any shape.

        Quadrature over the angle ends at the kink, beyond which the integrand is 0.
        """
        each = [self._delta(float(e)) for e in np.asarray(epsilon, float).reshape(-1)]
        return np.reshape(each, np.shape(epsilon))[()]

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the smallest epsilon in [0, 2 kappa] with delta(epsilon) <= delta."""
        if self.get_delta_for_epsilon(0.0) <= delta:
            return 0.0
        gap = lambda e: self._delta(e) - delta
        return float(optimize.brentq(gap, 0.0, 2 * self.concentration, xtol=1e-12))

    def _delta(self, epsilon: float) -> float:
        k, kappa = self.dimension, self.concentration
        if epsilon >= 2 * kappa:
            return 0.0
        if k == 1:
            up = 1 / (1 + np.exp(-2 * kappa))
            down = (1 - up) * max(-np.expm1(epsilon + 2 * kappa), 0.0)
            return float(up * -np.expm1(epsilon - 2 * kappa) + down)
        angle = _Angle.law(k, kappa)
        last = np.arccos(max(epsilon / (2 * kappa), -1.0))
        low = max(0.0, min(angle.mode, last) - _REACH * angle.sd)
        theta, weight = _nodes(low, min(last, angle.mode + _REACH * angle.sd))
        lost = -np.expm1(np.minimum(epsilon - 2 * kappa * np.cos(theta), 0.0))
        return float(weight @ (lost * np.exp(angle.log_height(theta))) / angle.mass)


class _Angle(NamedTuple):
    """The law of theta = arccos t: density ~ e^(kappa cos theta) sin(theta)^(K - 2)."""

    dimension: int
    concentration: float
    mode: float
    sd: float  # of the Gaussian with the same curvature at the mode
    mass: float  # integral of the density over its height at the mode

    @staticmethod
    def law(dimension: int, concentration: float) -> _Angle:
        m, kappa = dimension - 2, concentration
        cosine = 2 * kappa / (m + np.hypot(m, 2 * kappa)) if m else 1.0
        sine = np.sqrt(m * cosine / kappa) if kappa > 0 else 1.0
        mode = float(np.arctan2(sine, cosine)) if m else 0.0
        bend = kappa * cosine + (m / sine**2 if m else 0.0)
        sd = float(1 / np.sqrt(bend)) if bend > 0 else np.pi
        one = _Angle(dimension, kappa, mode, sd, 1.0)
        theta, weight = _nodes(*one.ends())
        return one._replace(mass=float(weight @ np.exp(one.log_height(theta))))

    def ends(self) -> tuple[float, float]:
        """Return the least and the largest angle with any mass."""
        reach = _REACH * self.sd
        return max(0.0, self.mode - reach), min(np.pi, self.mode + reach)

    def log_height(self, theta: np.ndarray) -> np.ndarray:
        """Return the log-density minus that at the mode, without cancellation."""
        u, m = theta - self.mode, self.dimension - 2
        height = -2 * self.concentration * np.sin(self.mode + u / 2) * np.sin(u / 2)
        if not m:
            return height
        ratio = np.sin(u) / np.tan(self.mode) - 2 * np.sin(u / 2) ** 2
        with np.errstate(divide="ignore"):  # at 0 and pi
            return height + m * np.log1p(np.maximum(ratio, -1.0))


def _nodes(low: float, high: float, panels: int = _PANELS) -> tuple:
    """Return nodes and weights of a composite Gauss-Legendre rule."""
    edges = np.linspace(low, high, panels + 1)
    return tuple(a.reshape(-1) for a in _between(edges[:-1], edges[1:]))


def _between(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights [intervals, 16] of many intervals."""
    half, middle = (high - low) / 2, (high + low) / 2
    return middle[:, None] + half[:, None] * _NODES, half[:, None] * _WEIGHTS


def composed(draws: Sequence[tuple[int, float]], times: int, share: float = 1.0) -> Any:
    """Return the privacy loss of independent draws, each repeated `times` times.

    Each loss is put on a grid. The mass of a cell is split between its ends such that
    the masses under both neighbours are kept: the hockey stick is exact on the grid and
    a chord in between, an upper bound (Doroshenko et al. 2022). A single draw has its
    exact loss.

    Args:
      draws: (K, kappa) of each draw that a record is part of at one step.
      times: steps.
      share: probability that the record takes part in a step, independent of others;
        the attacker may see whether it did. Where concentrations are so large that
        losses are far above 0, the loss is that of a record in every step, an upper
        bound.
    """
    if len(draws) == 1 and times == 1 and share == 1:
        return VmfPrivacy(*draws[0])
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    counts = Counter(draws)
    squares = [count * _width(*draw) ** 2 for draw, count in counts.items()]
    step = float(np.sqrt(np.sum(squares)) / _BINS)
    if step == 0:
        return VmfPrivacy(2, 0.0)
    if sum(2 * concentration for _, concentration in draws) > _FAR * step:
        share = 1.0
    whole = None
    for draw, count in counts.items():
        lowest, mass = _on_grid(*draw, step)
        mine = pld_pmf.DensePLDPmf(step, lowest, mass, 0.0, True)
        mine = mine if count == 1 else mine.self_compose(count, 1e-15)
        whole = mine if whole is None else whole.compose(mine, 1e-15)
    assert whole is not None
    if share < 1:  # a record outside the batch has no loss
        lowest = min(whole._lower_loss, 0)
        mass = np.zeros(max(whole._lower_loss + whole.size, 1) - lowest)
        at = whole._lower_loss - lowest
        mass[at : at + whole.size] = share * np.asarray(whole._probs)
        mass[-lowest] += 1 - share
        beyond = share * whole._infinity_mass
        whole = pld_pmf.DensePLDPmf(step, lowest, mass, beyond, True)
    return PrivacyLossDistribution(whole).self_compose(times)


def _width(dimension: int, concentration: float) -> float:
    """Return the length of the interval of losses of one draw."""
    if dimension == 1:
        return 4 * concentration
    low, high = _Angle.law(dimension, concentration).ends()
    return float(2 * concentration * (np.cos(low) - np.cos(high)))


def _on_grid(
    dimension: int, concentration: float, step: float
) -> tuple[int, np.ndarray]:
    """Return the lowest grid point of one draw's loss, in steps, and the masses."""
    if dimension == 1:  # the loss is 2 kappa or -2 kappa, rounded up
        top = int(np.ceil(2 * concentration / step))
        lowest = int(np.ceil(-2 * concentration / step))
        masses = np.zeros(top - lowest + 1)
        masses[-1] = 1 / (1 + np.exp(-2 * concentration))
        masses[0] += 1 - masses[-1]
        return lowest, masses
    angle = _Angle.law(dimension, concentration)
    near, far = angle.ends()
    scale = 2 * concentration / step
    lowest = int(np.floor(scale * np.cos(far)))
    count = max(int(np.ceil(scale * np.cos(near))) - lowest, 1)
    edges = np.arccos(np.clip((lowest + np.arange(count + 1)) / scale, -1, 1))
    theta, weight = _between(
        np.clip(edges[1:], near, far), np.clip(edges[:-1], near, far)
    )
    mass = weight * np.exp(angle.log_height(theta)) / angle.mass
    # cos theta - cos of the lower end, as a product
    lower = edges[:-1, None]
    above = -2 * np.sin((theta + lower) / 2) * np.sin((theta - lower) / 2)
    up = (mass * np.expm1(-2 * concentration * above)).sum(1) / np.expm1(-step)
    up = np.clip(up, 0, mass.sum(1))
    masses = np.zeros(count + 1)
    masses[:-1] += mass.sum(1) - up
    masses[1:] += up
    return lowest, masses
