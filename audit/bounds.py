"""Lower bounds on an attacker's mean squared error; each says for whom it holds.

MSE is the mean over coordinates of the squared error, data in the task's domain. A
bound that binds unbiased attackers says nothing about the others, and may well lie
above the floor; one that binds every attacker does so under a prior it names.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from audit.types import Bound


def cramer_rao(dfil: Any) -> Bound:
    """1 / dFIL, the trace form of the Cramer-Rao bound (Guo et al. 2022, Theorem 2).

    Args:
      dfil: [targets] Tr I / d, already averaged over trajectories: the bound is
        one over
        the mean, the mean of one over is larger and not a bound.
    """
    dfil = np.asarray(dfil, float)
    with np.errstate(divide="ignore"):
        value = 1 / dfil
    return Bound("cramer_rao", value, "unbiased attackers", "Guo et al. 2022, Thm 2")


def hammersley_chapman_robbins(
    rdp2: float, domain: tuple[float, float] = (0.0, 1.0)
) -> Bound:
    """(diameter^2 / 4) / (e^eps - 1) from Renyi order 2 (Guo et al. 2022, Theorem 1).

    Args:
      rdp2: eps(2) under replace-one; add-or-remove does not imply this bound.
      domain: of every coordinate.
    """
    width = domain[1] - domain[0]
    log = math.log(width**2 / 4) - _log_expm1(rdp2)
    return Bound(
        "hammersley_chapman_robbins",
        np.asarray(math.exp(log) if log > -745 else 0.0),
        "unbiased attackers",
        "Guo et al. 2022, Thm 1",
        log10=log / math.log(10),
    )


def hammersley_chapman_robbins_at(
    rdp2: float, x: Any, domain: tuple[float, float] = (0.0, 1.0)
) -> float:
    """The same for one record: the way to the far wall replaces half the diameter.

    Up to four times larger; nearly that for images of zeros and ones.

    Args:
      rdp2: eps(2) under replace-one.
      x: the record, any shape.
      domain: of every coordinate.
    """
    x = np.asarray(x, float)
    far = np.maximum(x - domain[0], domain[1] - x)
    return float((far**2).mean() * math.exp(-_log_expm1(rdp2)))


def _log_expm1(x: float) -> float:
    if x <= 0:
        return -math.inf
    return x + math.log(-math.expm1(-x))


def van_trees(mean_fisher_trace: float, prior_variances: Any) -> Bound:
    """Bayesian Cramer-Rao for a stated Gaussian prior N(m, Sigma), only Tr I known.

    Van Trees' inequality gives MSE >= Tr (I + Sigma^-1)^-1 / d with I averaged over the
    prior. Over all I with the given trace the right side is least when I shares the
    eigenvectors of Sigma^-1 (Schur-Horn and the convexity of t -> 1/t) and levels the
    spectrum from below: with precisions J_i = 1 / lambda_i it is

        (1/d) sum_i 1 / max(J_i, c),     sum_i max(c - J_i, 0) = Tr I.

    Holds for any attacker *if the prior is as stated*. Images are not Gaussian, and the
    information of a prior estimated from data is always too small, so on data this is
    an assumption to print, not a bound to rank.

    Args:
      mean_fisher_trace: E Tr I over targets.
      prior_variances: [d] eigenvalues of Sigma, at least 0; a zero contributes 0.
    """
    variances = np.asarray(prior_variances, float)
    precision = np.sort(1 / variances[variances > 0])
    count = np.arange(1, len(precision) + 1)
    # water level if exactly the k smallest precisions are raised
    levels = (mean_fisher_trace + np.cumsum(precision)) / count
    raised = np.flatnonzero(levels >= precision)
    level = levels[raised[-1]] if len(raised) else 0.0
    value = (1 / np.maximum(precision, level)).sum() / variances.size
    return Bound(
        "van_trees",
        np.asarray(value),
        "any attacker, if the prior were Gaussian",
        "van Trees 1968; Maeng et al. 2023",
        ranked=False,
    )


def finite_prior(
    log_ratio: Any, own: Any, candidates: Any, targets: Any, allowed: Any
) -> Bound:
    """Exact Bayes risk when a genie hides the target among the pool.

    The attacker is told the candidate set and sees every noisy sum; its best guess is
    the posterior mean and its risk sum_k w_k ||z_k - zhat||^2 / d. Extra information
    cannot hurt, so for targets and candidates drawn from one prior no attacker, biased
    or not, does better on average. The bound is on the average over targets; one
    target's value is a contribution, not a bound for that target.

    Args:
      log_ratio: [T, M] log-likelihood of target t's run if candidate k had been in it.
      own: [T] the same for the target itself, which completes the candidate set.
      candidates: [M, d].
      targets: [T, d].
      allowed: [T, M] candidates of the target's class (its label is known).
    """
    log_ratio, own = np.asarray(log_ratio, float), np.asarray(own, float)
    candidates = np.asarray(candidates, float)
    targets = np.asarray(targets, float)
    centre = candidates.mean(0)
    z, x = candidates - centre, targets - centre
    scores = np.where(allowed, log_ratio, -np.inf)
    weight = special.softmax(np.concatenate([scores, own[:, None]], 1), 1)
    shared, alone = weight[:, :-1], weight[:, -1:]
    guess = shared @ z + alone * x
    second = shared @ (z**2).sum(1) + alone[:, 0] * (x**2).sum(1)
    risk = np.maximum(second - (guess**2).sum(1), 0) / targets.shape[1]
    sizes = np.asarray(allowed).sum(1) + 1
    who = f"any attacker, prior = {sizes.min()}+ pool images of the class"
    return Bound("finite_prior", risk, who, "exact Bayes risk, docs/bounds")


def format_bound(value: float, log10: float | None = None) -> str:
    """Return a bound for a table; what underflows is a power of ten.

    Args:
      value: mean squared error, or 0 where it underflowed.
      log10: of the value, where known.
    """
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf"
    log10 = math.log10(value) if log10 is None and value > 0 else log10
    if log10 is None:
        return "0"
    if log10 < -9:
        return f"10^{math.floor(log10 + 0.5)}"
    if log10 < -3:
        return f"{value:.1e}"
    text = f"{value:.3g}" if value >= 1 else f"{value:.4f}"
    return text.removeprefix("0") if value < 1 else text
