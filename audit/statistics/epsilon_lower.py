"""Lower bounds on epsilon from attacks on many independent runs.

Half of the runs train on the canary and half do not; a test accuses the runs whose
score is above a threshold. If it accuses `tp` of `p` runs with the canary and `fp` of
`n` runs without it, the mechanism has at least the epsilon of

===================  ============================================================
method               assumption
===================  ============================================================
`clopper_pearson`    none
`gdp`                the claim under test is mu-GDP; void for any other claim
`bayesian`           Jeffreys priors: a credible bound, not a confidence bound
===================  ============================================================

The search for the best threshold costs confidence; `SELECTIONS` lists the ways to pay
for it. Sources: Jagielski et al. (2020), Nasr et al. (2023), Zanella-Beguelin et al.
(2023).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import special

from audit.accounting import rdp
from audit.statistics import roc
from audit.statistics.intervals import clopper_pearson

Method = Literal["clopper_pearson", "gdp", "bayesian"]
Selection = Literal["fixed", "split", "bonferroni", "multi_split"]
SELECTIONS = get_args(Selection)
METHODS = get_args(Method)

SPLITS = 9  # of `multi_split`
NODES = 128  # of the posterior's quadrature: epsilon to 1e-3
MOST = 50.0  # the largest epsilon a search returns


class Lower(NamedTuple):
    """A lower bound, and the counts it comes from."""

    epsilon: float
    tp: int
    p: int
    fp: int
    n: int
    threshold: float
    mu: float | None = None  # only from the method `gdp`


# Counts to epsilon --------------------------------------------------------------------


def _limits(tp: Any, p: Any, fp: Any, n: Any, confidence: float) -> tuple[Any, Any]:
    """Return (TPR at least, FPR at most); both hold together with `confidence`."""
    return clopper_pearson(tp, p, confidence)[0], clopper_pearson(fp, n, confidence)[1]


def from_clopper_pearson(
    tp: Any, p: Any, fp: Any, n: Any, delta: float, confidence: float = 0.95
) -> Any:
    """Return the least epsilon for which (epsilon, delta)-privacy is not refuted.

    max(0, log((TPR_L - delta) / FPR_U), log((1 - FPR_U - delta) / (1 - TPR_L))), where
    TPR_L and FPR_U err with probability (1 - confidence) / 2 each. `tp` of `p` members
    and `fp` of `n` non-members are accused; arrays broadcast.
    """
    tpr, fpr = _limits(tp, p, fp, n, confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        accused = np.log(np.maximum(tpr - delta, 0) / fpr)
        acquitted = np.log(np.maximum(1 - fpr - delta, 0) / (1 - tpr))
    return np.maximum(np.nan_to_num(np.maximum(accused, acquitted), nan=0.0), 0.0)[()]


def gdp_mu(tp: Any, p: Any, fp: Any, n: Any, confidence: float = 0.95) -> Any:
    """Return the least mu for which mu-GDP is not refuted: z(TPR_L) - z(FPR_U)."""
    tpr, fpr = _limits(tp, p, fp, n, confidence)
    # no member accused or every non-member: the difference is -inf, or nan
    mu = special.ndtri(tpr) - special.ndtri(fpr)
    return np.maximum(np.nan_to_num(mu, nan=0.0, neginf=0.0), 0.0)[()]


def from_gdp(
    tp: int, p: int, fp: int, n: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the epsilon at delta of the least mu; valid only for a Gaussian claim.

    Under subsampling or another noise the trade-off curve is not Gaussian, and the
    number is no bound.
    """
    mu = float(gdp_mu(tp, p, fp, n, confidence))
    return rdp.GaussianPrivacy(mu).get_epsilon_for_delta(delta)


@functools.cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of Gauss and Legendre's rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1) / 2, weights / 2


def _mass(
    epsilon: np.ndarray, fpr: np.ndarray, fnr: Any, delta: float, mirrored: bool
) -> np.ndarray:
    """Return the posterior mass of the rates that (epsilon, delta) allows [k].

    `fpr` are quantiles [k, nodes] of a posterior, `fnr` the (a, b) [k, 1] of a Beta; if
    `mirrored` the opposite test must be allowed, too.
    """
    grow = np.exp(epsilon)[:, None]
    least = np.maximum((1 - delta - fpr) / grow, 1 - delta - grow * fpr)
    mass = special.betaincc(*fnr, np.clip(least, 0, 1))
    if mirrored:
        most = np.minimum(1 - (fpr - delta) / grow, delta + grow * (1 - fpr))
        mass = np.maximum(mass - special.betaincc(*fnr, np.clip(most, 0, 1)), 0)
    return mass @ _nodes()[1]


def _quantile(
    tp: Any, p: Any, fp: Any, n: Any, delta: float, mass: float, mirrored: bool
) -> np.ndarray:
    """Return the epsilon below which the posterior has this mass [k]."""
    tp, p, fp, n = (
        v.astype(float).reshape(-1, 1) for v in np.broadcast_arrays(tp, p, fp, n)
    )
    fpr = special.betaincinv(fp + 0.5, n - fp + 0.5, _nodes()[0])
    fnr = p - tp + 0.5, tp + 0.5
    low, high = np.zeros(len(tp)), np.full(len(tp), MOST)
    at = np.flatnonzero(_mass(low, fpr, fnr, delta, mirrored) < mass)
    fpr, fnr = fpr[at], (fnr[0][at], fnr[1][at])
    while at.size and np.max(high[at] - low[at]) > 1e-9:
        middle = (low[at] + high[at]) / 2
        enough = _mass(middle, fpr, fnr, delta, mirrored) >= mass
        high[at] = np.where(enough, middle, high[at])
        low[at] = np.where(enough, low[at], middle)
    return low


def from_bayesian(
    tp: Any, p: Any, fp: Any, n: Any, delta: float, confidence: float = 0.95
) -> Any:
    """Return the epsilon with posterior mass 1 - confidence below it.

    Both error rates have independent Jeffreys priors. The opposite test, which
    `bayesian_interval` includes, is left out: with it no data can give 0, since rates
    that are exactly equal have no mass, and every null would look like a leak.
    """
    epsilon = _quantile(tp, p, fp, n, delta, 1 - confidence, False)
    return epsilon if np.ndim(tp) else float(epsilon[0])


def bayesian_interval(
    tp: int, p: int, fp: int, n: int, delta: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the equal-tailed credible interval as Zanella-Beguelin et al. publish it.

    The lower end is above 0 for all data, so that it proves no leak.
    """
    tail = (1 - confidence) / 2
    low, high = (
        _quantile(tp, p, fp, n, delta, mass, True) for mass in (tail, 1 - tail)
    )
    return float(low[0]), float(high[0])


# Scores to counts ---------------------------------------------------------------------


def lower(
    members: Any,
    nonmembers: Any,
    *,
    delta: float,
    method: Method = "clopper_pearson",
    selection: Selection = "bonferroni",
    threshold: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Lower:
    """Return a lower bound on epsilon from the scores of independent runs.

    Args:
      members: [p] scores of runs with the canary.
      nonmembers: [n] scores of runs without.
      delta: of the (epsilon, delta) guarantee under test.
      method: a word of METHODS.
      selection: how the threshold is chosen: `fixed` in advance; on half of the runs,
        rated on the other half (`split`); at several ranks of the non-members, which
        share the level (`bonferroni`); the median over several splits, each at half the
        level (`multi_split`; Meinshausen et al. 2009).
      threshold: of `fixed`, chosen without looking at these scores.
      confidence: that the mechanism's epsilon is not below the bound.
      seed: of the splits.

    Raises:
      ValueError: on an unknown word, or a threshold without `fixed`.
    """
    check_words(method, METHODS, selection, threshold=threshold)
    data, alpha = roc.scores(members, nonmembers), 1 - confidence
    rng = np.random.default_rng(seed)
    if threshold is not None:
        return _at(data, threshold, method, delta, alpha)
    if selection == "bonferroni":
        ranks = _ranks(data.nonmembers.size)
        share = alpha / len(ranks)
        every = _at_ranks(data, ranks, delta, share, method)
        return max(every, key=lambda one: one.epsilon)
    if selection == "split":
        return _on_split(data, rng, method, delta, alpha)
    every = [_on_split(data, rng, method, delta, alpha / 2) for _ in range(SPLITS)]
    return sorted(every, key=lambda one: one.epsilon)[SPLITS // 2]


def largest(
    members: Any, nonmembers: Any, *, delta: float, alpha: float = 0.05
) -> Lower:
    """Return what audits of final models print, and what is no bound: `gdp`'s largest.

    Every score is a threshold, both rates have a limit that errs with `alpha`, and the
    largest epsilon over all thresholds is taken on the scores that it is rated on
    (Annamalai and De Cristofaro 2024, released code). At epsilon 10 it lies above the
    truth of a Gaussian mechanism in 7% of audits of 100 runs a side, and more often at
    smaller epsilons and with more runs. It is there to be compared with published
    numbers.
    """
    data = roc.scores(members, nonmembers)
    p, n = (a.size for a in data)
    cuts = np.unique(np.concatenate(data))
    tp, fp = (a.size - np.searchsorted(np.sort(a), cuts, side="right") for a in data)
    values, mus = _epsilons("gdp", tp, p, fp, n, delta, 2 * alpha)
    best = int(np.argmax(values))
    counts = int(tp[best]), p, int(fp[best]), n
    return Lower(float(values[best]), *counts, float(cuts[best]), mus[best])


def check_words(
    method: str, methods: tuple, selection: str, **choice: float | None
) -> None:
    """Refuse an unknown method or selection, and a choice without `fixed`.

    `choice` is the one setting that `fixed` needs; None = it was not given.
    """
    if method not in methods:
        raise ValueError(f"method={method!r}: there are {', '.join(methods)}")
    if selection not in SELECTIONS:
        raise ValueError(f"selection={selection!r}: there are {', '.join(SELECTIONS)}")
    for name, value in choice.items():
        if (value is None) == (selection == "fixed"):
            raise ValueError(f"{name}={value}: needed by `fixed`, and only there")


def _ranks(n: int) -> np.ndarray:
    """Return how many non-members stand above each candidate threshold.

    The ranks grow geometrically from both ends and depend on n alone. A threshold at a
    rank given in advance costs no confidence: the false-positive rate there is
    Beta(k + 1, n - k), whose quantile is the Clopper-Pearson limit of k of n.
    """
    tail = np.unique(np.geomspace(1, max(n // 2, 1), 6).round().astype(int)) - 1
    return np.unique(np.concatenate([tail, n - 1 - tail]))


def _at_ranks(
    data: roc.Scores, ranks: np.ndarray, delta: float, alpha: float, method: Method
) -> list[Lower]:
    p, n = data.members.size, data.nonmembers.size
    cuts = np.sort(data.nonmembers)[::-1][ranks]
    tp = p - np.searchsorted(np.sort(data.members), cuts, side="right")
    values, mus = _epsilons(method, tp, p, ranks, n, delta, alpha)
    return [
        Lower(float(e), int(t), p, int(k), n, float(c), mu)
        for e, t, k, c, mu in zip(values, tp, ranks, cuts, mus, strict=True)
    ]


def _at(
    data: roc.Scores, cut: float, method: Method, delta: float, alpha: float
) -> Lower:
    tp, fp = (int((a > cut).sum()) for a in data)
    p, n = (a.size for a in data)
    values, mus = _epsilons(method, np.array([tp]), p, np.array([fp]), n, delta, alpha)
    return Lower(float(values[0]), tp, p, fp, n, float(cut), mus[0])


def _on_split(
    data: roc.Scores, rng: Any, method: Method, delta: float, alpha: float
) -> Lower:
    halves = [np.array_split(rng.permutation(a), 2) for a in data]
    first, second = (roc.Scores(*(h[i] for h in halves)) for i in (0, 1))
    # the search for a threshold: the posterior is too slow for it
    search: Method = "gdp" if method == "gdp" else "clopper_pearson"
    ranks = _ranks(first.nonmembers.size)
    best = max(_at_ranks(first, ranks, delta, alpha, search), key=lambda one: one[0])
    return _at(second, best.threshold, method, delta, alpha)


def _epsilons(
    method: Method, tp: Any, p: int, fp: Any, n: int, delta: float, alpha: float
) -> tuple[np.ndarray, list[float | None]]:
    """Return epsilon at each count [k], and mu where the method has one."""
    if method == "gdp":
        mu = gdp_mu(tp, p, fp, n, 1 - alpha)
        # epsilon grows with mu: only the largest mu needs a conversion
        best = int(np.argmax(mu))
        values = np.zeros(len(mu))
        values[best] = rdp.GaussianPrivacy(float(mu[best])).get_epsilon_for_delta(delta)
        return values, [float(v) for v in mu]
    rule: Callable = {
        "clopper_pearson": from_clopper_pearson,
        "bayesian": from_bayesian,
    }[method]
    return rule(tp, p, fp, n, delta, 1 - alpha), [None] * len(tp)
