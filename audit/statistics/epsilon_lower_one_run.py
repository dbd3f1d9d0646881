"""Lower bounds on epsilon from one run with many canaries, each in with chance 1/2.

The auditor guesses "in" for the canaries with the highest scores and "out" for those
with the lowest, and abstains on the rest. The epsilon is that of add-or-remove
neighbours.

=============  ====================================================================
method         assumption
=============  ====================================================================
`one_run`      none (Steinke, Nasr and Jagielski 2023)
`one_run_fdp`  the claim under test is mu-GDP (Mahloujifar, Melis and Chaudhuri 2024)
=============  ====================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import optimize, special

from audit.accounting import rdp
from audit.statistics import epsilon_lower

Method = Literal["one_run", "one_run_fdp"]
METHODS = get_args(Method)
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the canaries that are guessed


class Guessed(NamedTuple):
    """A lower bound, and the guesses it comes from."""

    epsilon: float
    canaries: int
    guesses: int
    right: int


def p_value(
    epsilon: float, canaries: int, guesses: int, right: int, delta: float
) -> float:
    """Return how likely so many right guesses are under (epsilon, delta)-privacy.

    P[Bin(r, s) >= v] + 2 m delta max_{1 <= i <= v} P[v > Bin(r, s) >= v - i] / i with
    s = 1 / (1 + e^-epsilon), at most 1 (Steinke et al. 2023, Theorem 5.2): v of r
    guesses are right, about m canaries with and without a guess.
    """
    chance = special.expit(epsilon)
    value = special.bdtrc(right - 1, guesses, chance) if right else 1.0
    if delta > 0 and right > 0:
        below = special.bdtr(np.arange(right), guesses, chance)
        below = np.concatenate([[0.0], below])  # P[Bin < k] for k = 0 .. v
        i = np.arange(1, right + 1)
        slab = below[right] - below[right - i]
        value += 2 * canaries * delta * (slab / i).max()
    return float(min(value, 1.0))


def from_one_run(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that so many right guesses reject."""
    alpha = 1 - confidence
    return _largest(
        lambda e: p_value(e, canaries, guesses, right, delta) < alpha, guesses
    )


def fdp_rejects(
    mu: float, canaries: int, guesses: int, right: int, alpha: float
) -> bool:
    """Return whether so many right guesses reject mu-GDP (Mahloujifar et al. 2024).

    Suppose that a count of right guesses this high had probability alpha. The
    recursion, from the observed count down, bounds the mass r of right guesses and h of
    wrong ones; a sum above the share of guessed canaries is a contradiction. It is a
    test at this alpha, not a p-value.
    """
    r = alpha * right / canaries
    h = alpha * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        grown = max(h, float(special.ndtr(special.ndtri(r) - mu)))
        if grown == h:  # a fixed point
            break
        r, h = min(1.0, r + i / (guesses - i) * (grown - h)), grown
    return bool(r + h > guesses / canaries)


def from_one_run_fdp(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the epsilon at delta of the largest mu that so many right guesses reject.

    Valid only for a Gaussian claim; see `epsilon_lower.from_gdp`.
    """
    alpha = 1 - confidence
    mu = _largest(
        lambda m: fdp_rejects(m, canaries, guesses, right, alpha), guesses, 12.0
    )
    return rdp.GaussianPrivacy(mu).get_epsilon_for_delta(delta)


def _largest(
    rejects: Callable[[float], bool], guesses: int, most: float = epsilon_lower.MOST
) -> float:
    """Return where a claim stops being rejected; 0 if it never is."""
    if guesses == 0 or not rejects(0.0):
        return 0.0
    if rejects(most):
        return most
    sign = lambda e: 1.0 if rejects(e) else -1.0
    return float(optimize.bisect(sign, 0, most, xtol=1e-11))


FROM: dict[str, Callable] = {"one_run": from_one_run, "one_run_fdp": from_one_run_fdp}


def lower(
    scores: Any,
    member: Any,
    *,
    delta: float,
    method: Method = "one_run",
    selection: epsilon_lower.Selection = "bonferroni",
    share: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Guessed:
    """Return a lower bound on epsilon from the canaries' scores in one run.

    The numbers of guesses "in" and "out" are equal.

    Args:
      scores: [m], high for canaries that seem to be in.
      member: [m] whether each was in; the bits were drawn with chance 1/2.
      delta: of the (epsilon, delta) guarantee under test.
      method: a word of METHODS.
      selection: how the share of guessed canaries is chosen, as in
        `epsilon_lower.lower`, `bonferroni` among SHARES. `split` is valid since, given
        the bits of one half, the scores are a mechanism of the bits of the other.
      share: of canaries with a guess, in (0, 1]; needed by `fixed`.
      confidence: that the mechanism's epsilon is not below the bound.
      seed: of the splits and of ties.

    Raises:
      ValueError: on an unknown word, a share without `fixed`, or scores that are nan.
    """
    scores, member = np.asarray(scores, float).ravel(), np.asarray(member, bool).ravel()
    epsilon_lower.check_words(method, METHODS, selection, share=share)
    if scores.size != member.size or scores.size < 2:
        raise ValueError(f"{scores.size} scores of {member.size} canaries; at least 2")
    if np.isnan(scores).any():
        raise ValueError(f"{np.isnan(scores).sum()} canaries' scores are nan")
    rng, alpha = np.random.default_rng(seed), 1 - confidence
    order = rng.permutation(scores.size)  # ties are broken by chance
    scores, member = scores[order], member[order]
    run = _Run(scores, member, FROM[method], delta)
    if share is not None:
        return run.at(share, alpha)
    if selection == "bonferroni":
        every = [run.at(s, alpha / len(SHARES)) for s in SHARES]
        return max(every, key=lambda one: one.epsilon)
    if selection == "split":
        return run.on_split(rng, alpha)
    splits = epsilon_lower.SPLITS
    every = [run.on_split(rng, alpha / 2) for _ in range(splits)]
    return sorted(every, key=lambda one: one.epsilon)[splits // 2]


class _Run(NamedTuple):
    """The canaries of one run, and the rule that bounds epsilon from right guesses."""

    scores: np.ndarray
    member: np.ndarray
    rule: Callable
    delta: float

    def at(self, share: float, alpha: float) -> Guessed:
        m = self.scores.size
        side = min(max(1, round(share * m / 2)), m // 2)
        ranked = self.member[np.argsort(self.scores, kind="stable")]
        # of one canary side is 0, and `[-0:]` would be all of them
        right = int(ranked[m - side :].sum() + (~ranked[:side]).sum())
        value = self.rule(m, 2 * side, right, self.delta, 1 - alpha)
        return Guessed(value, m, 2 * side, right)

    def on_split(self, rng: np.random.Generator, alpha: float) -> Guessed:
        rows = np.array_split(rng.permutation(self.scores.size), 2)
        first, second = (
            self._replace(scores=self.scores[r], member=self.member[r]) for r in rows
        )
        return second.at(max(SHARES, key=lambda s: first.at(s, alpha).epsilon), alpha)
