"""Lower bounds on the mean squared error of attackers, and for which attackers.

MSE is the mean of the squared error over coordinates, with data in the task's domain. A
bound for unbiased attackers does not bind biased ones, and may lie above the floor. A
bound for any attacker assumes a prior, which it names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from audit.types import Bound

_NODES = 4001  # of the quadratures
_SINGULAR = 1e-13  # of the largest eigenvalue: smaller ones are rounding


def cramer_rao(dfil: Any) -> Bound:
    """1 / dFIL, the trace form of the Cramer-Rao bound (Guo et al. 2022, Theorem 2).

    Args:
      dfil: [targets] Tr I / d, already averaged over trajectories: the bound is the
        inverse of the mean; the mean of inverses is larger and no bound. 0 gives inf.
    """
    with np.errstate(divide="ignore"):
        value = 1 / np.asarray(dfil, float)
    return Bound("cramer_rao", value, "unbiased attackers", "Guo et al. 2022, Thm 2")


def cramer_rao_matrix(diagonal: Any, factor: Any, core: Any) -> Bound:
    """Tr I^-1 / d, the Cramer-Rao bound of the whole matrix, at least 1 / dFIL.

    I = diag(diagonal) + factor core factor^T, already averaged over trajectories. It is
    infinite where I is singular: then no attacker is unbiased, as where part of the
    weights is frozen. Hence it is never ranked.

    With D the diagonal, V = D^-1/2 factor, G = V^T V and H = V^T D^-1 V, Woodbury's
    identity gives Tr I^-1 = Tr D^-1 - Tr core (1 + G core)^-1 H: no d x d matrix.

    Args:
      diagonal: [targets, d], at least 0.
      factor: [targets, d, r].
      core: [targets, r, r], symmetric.
    """
    diagonal, factor, core = (np.asarray(a, float) for a in (diagonal, factor, core))
    d, r = factor.shape[1:]
    value = np.full(len(diagonal), np.inf)
    for t, frozen in enumerate((diagonal == 0).sum(1)):
        if r < d and not frozen:
            value[t] = _inverse_trace_of_sum(diagonal[t], factor[t], core[t])
        elif frozen <= r:
            matrix = np.diag(diagonal[t]) + factor[t] @ core[t] @ factor[t].T
            eigenvalues = np.linalg.eigvalsh(matrix)
            if eigenvalues[0] > _SINGULAR * eigenvalues[-1]:
                value[t] = (1 / eigenvalues).sum()
    who, source = "unbiased attackers", "Guo et al. 2022, Thm 2, matrix form"
    return Bound("cramer_rao_matrix", value / d, who, source, ranked=False)


def _inverse_trace_of_sum(
    diagonal: np.ndarray, factor: np.ndarray, core: np.ndarray
) -> float:
    scaled = factor / diagonal[:, None]
    gram, weighted = factor.T @ scaled, scaled.T @ scaled
    inner = np.linalg.solve(np.eye(len(core)) + gram @ core, weighted)
    return float((1 / diagonal).sum() - (core * inner.T).sum())


def hammersley_chapman_robbins(
    rdp2: float, domain: tuple[Any, Any] = (0.0, 1.0)
) -> Bound:
    """(width / 2)^2 / (e^eps - 1) from Renyi order 2 (Guo et al. 2022, Theorem 1).

    One value for all targets: each record can move by half the width of the domain
    along each coordinate. The log10 is finite where the value underflows.

    Args:
      rdp2: eps(2) under replace-one; that of add-or-remove does not give this bound.
      domain: of every coordinate; or arrays [d], one end per coordinate, of which the
        mean squared width counts: the bound is a mean over coordinates.
    """
    width = np.asarray(domain[1]) - np.asarray(domain[0])
    step = float(np.sqrt((width**2).mean())) / 2
    return _hammersley("hammersley_chapman_robbins", rdp2, step, "Thm 1")


def room_in_ball(
    domain: tuple[Any, Any], dimension: int, max_norm: float
) -> tuple[Any, Any] | None:
    """Shrink a domain to what the bound above may take it for among shorter records.

    A long record may be stuck along some coordinates. On average over coordinates every
    record can still move by half the width of the domain times
    min(1, R / sqrt(W^2 + d s^2)), with W the farthest end from 0 and s^2 the mean
    square of half a width (docs/bounds/hammersley_chapman_robbins.md).

    Args:
      domain: as above.
      dimension: d.
      max_norm: R, of the longest record that is accepted; inf = the domain's.

    Returns:
      Ends as those of `domain`; None where 0 is outside, so that nothing is known.
    """
    if math.isinf(max_norm):
        return domain
    low, high = (np.broadcast_to(end, dimension) for end in domain)
    if low.max() > 0 or high.min() < 0:
        return None
    square = max(high.max(), -low.min()) ** 2 + (((high - low) / 2) ** 2).sum()
    factor = min(1.0, max_norm / math.sqrt(square))
    return factor * domain[0], factor * domain[1]


def hammersley_chapman_robbins_at(
    rdp2: float,
    targets: Any,
    domain: tuple[Any, Any] = (0.0, 1.0),
    max_norm: float = math.inf,
) -> Bound:
    """The same bound [...] for given records, which move by max(x - low, high - x).

    The targets are [..., d]. It is up to four times larger, and nearly so for images of
    zeros and ones: the step in the proof of Theorem 1 may be any within the domain. No
    record moves where its norm would exceed `max_norm`.
    """
    x = np.asarray(targets, float)
    squares_of_others = (x**2).sum(-1, keepdims=True) - x**2
    reach = np.sqrt(np.maximum(max_norm**2 - squares_of_others, 0))
    low, high = np.maximum(domain[0], -reach), np.minimum(domain[1], reach)
    room = np.maximum(x - low, high - x)
    step = np.sqrt((room**2).mean(-1))
    return _hammersley("hammersley_chapman_robbins_at", rdp2, step, "proof of Thm 1")


def _hammersley(name: str, rdp2: float, step: Any, theorem: str) -> Bound:
    """Return step^2 / (e^eps - 1); the value underflows from eps = 745 on."""
    if not rdp2 >= 0:
        raise ValueError(f"rdp2={rdp2}: a Renyi divergence is at least 0")
    with np.errstate(divide="ignore"):
        # log(e^eps - 1) without its overflow
        log_expm1 = rdp2 + np.log(-np.expm1(-rdp2))
    log10 = (2 * np.log(step) - log_expm1) / math.log(10)
    value, source = _power_of_ten(log10), f"Guo et al. 2022, {theorem}"
    return Bound(name, value, "unbiased attackers", source, log10=log10)


def _power_of_ten(log10: Any) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.power(10.0, log10))


def van_trees(mean_fisher_trace: float, prior_variances: Any) -> Bound:
    """Bayesian Cramer-Rao for a stated Gaussian prior N(m, Sigma), only Tr I known.

    With J_i the inverse eigenvalues of Sigma, Tr (I + Sigma^-1)^-1 / d is least, over
    all I of one trace, where I raises the smallest J_i to one level c (water filling):

        (1/d) sum_i 1 / max(J_i, c),     sum_i max(c - J_i, 0) = Tr I.

    It holds for any attacker *if the prior is as stated*, which images never fulfil, so
    it is printed as an assumption and never ranked (docs/bounds/van_trees.md).

    Args:
      mean_fisher_trace: E Tr I over targets.
      prior_variances: [d] eigenvalues of Sigma, at least 0; a zero contributes 0.
    """
    variances = np.asarray(prior_variances, float)
    precision = np.sort(1 / variances[variances > np.finfo(float).tiny])
    count = np.arange(1, len(precision) + 1)
    # water level if exactly the k smallest precisions are raised
    levels = (mean_fisher_trace + np.cumsum(precision)) / count
    raised = np.flatnonzero(levels >= precision)
    level = levels[raised[-1]] if len(raised) else 0.0
    value = (1 / np.maximum(precision, level)).sum() / variances.size
    return Bound(
        "van_trees",
        np.asarray(value),
        "any attacker, if the prior is Gaussian as stated",
        "van Trees 1968; Maeng et al. 2023",
        ranked=False,
    )


def two_point(mu: float, domain: tuple[float, float] = (0.0, 1.0)) -> tuple[Bound, ...]:
    """Minimax bounds over the cube from a mu-GDP guarantee.

    For neighbours p = N(0, 1), q = N(mu, 1) let B = (1/2) int pq / (p + q), which is
    e^(-mu^2 / 8) E sech(mu xi / 2) / 4 with xi ~ N(0, 1). On average over the corners
    of the unit cube MSE >= B for any attacker (Assouad: one coordinate at a time, the
    risk of telling its two values apart), and MSE >= B / (1 - 4B) for unbiased ones
    (Vincze-Le Cam; tends to the exact 1 / mu^2 for small mu).

    mu is the finite replace-one shift of all releases together. Both bounds average
    over corners of the cube, not over images: without leakage the first is 1/4, above
    the floor. Hence they are never ranked.
    """
    if not 0 <= mu < math.inf:
        raise ValueError(f"mu={mu}: a shift is finite and at least 0")
    sech = _normal_mean(lambda x: 1 / np.cosh(mu * x / 2), min(12.0, 80 / max(mu, 1)))
    # 1 - 4B, without cancellation where nearly nothing leaks
    apart = _normal_mean(
        lambda x: -np.expm1(-(mu**2) / 8 - _log_cosh(mu * x / 2)), reach=12.0
    )
    log10 = math.log10(sech / 4) - mu**2 / 8 / math.log(10)
    return _two_point(log10, apart, domain)


def two_point_of(
    loss: Any, domain: tuple[float, float] = (0.0, 1.0)
) -> tuple[Bound, ...]:
    """The bounds of `two_point` from any replace-one loss, by its curve delta(eps).

    An f-divergence is an integral of hockey sticks (Sason and Verdu 2016); for this one
    4B >= 8 int_0^(1/2) u (1 - delta(log(1/u - 1))) du. Pessimistic deltas are safe; B
    is 0 where it would be below 1e-9, since delta rounds to 1.
    """
    eps = np.concatenate([[0.0], np.geomspace(1e-7, 45, _NODES)])
    u = special.expit(-eps)
    weight = _trapezoid(eps) * u**2 * (1 - u)  # u du
    weight /= weight.sum()
    delta = np.asarray(loss.get_delta_for_epsilon(eps), float)
    corner = weight @ (1 - delta) / 4
    log10 = math.log10(corner) if corner > 1e-9 else -math.inf
    return _two_point(log10, weight @ delta, domain)


def _two_point(
    log10: float, apart: float, domain: tuple[float, float]
) -> tuple[Bound, ...]:
    log10 += 2 * math.log10(domain[1] - domain[0])
    unbiased = log10 - (math.log10(apart) if apart > 0 else -math.inf)
    source = "two-point bound, derived in docs/"
    named = {
        "two_point": ("any attacker, minimax over the cube", log10),
        "two_point_unbiased": ("unbiased attackers, minimax over the cube", unbiased),
    }
    return tuple(
        Bound(name, _power_of_ten(log), who, source, False, log)
        for name, (who, log) in named.items()
    )


def _normal_mean(fn: Callable, reach: float) -> float:
    """Return E fn(xi), xi ~ N(0, 1), from the nodes within reach of 0."""
    x = np.linspace(-reach, reach, _NODES)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return float(_trapezoid(x) @ (density * fn(x)))


def _log_cosh(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + np.log1p(np.expm1(-2 * np.abs(x)) / 2)


def _trapezoid(x: np.ndarray) -> np.ndarray:
    """Return the weights of the trapezoid rule on sorted nodes."""
    step = np.diff(x)
    return (np.append(step, 0) + np.insert(step, 0, 0)) / 2


def format_bound(value: float | None, log10: float | None = None) -> str:
    """Return a bound for a table: .0421, 3.2e-05, 10^-4322, 10^-1.9e+11, inf, none.

    Args:
      value: mean squared error; 0 if it underflowed, None if there is no bound.
      log10: of the value, used if the value is 0.
    """
    if value is None:
        return "none"
    if not math.isfinite(value):
        return str(value)
    if value > 0:
        log10 = math.log10(value)
    if log10 is None or log10 == -math.inf:
        return "0"
    if log10 < -99_999:
        return f"10^{log10:.1e}"
    if log10 < -9:
        return f"10^{math.floor(log10 + 0.5)}"
    if log10 < -3:
        return f"{value:.1e}"
    text = f"{value:.3g}" if value >= 1 else f"{value:.4f}"
    return text.removeprefix("0") if value < 1 else text
