"""Exact Bayes risk of a finite prior: an estimated bound for any attacker.

The attacker is told that the record is the target or one of M candidates and sees every
noised sum. No attacker beats its posterior mean on average, biased or not, as long as
targets and candidates are drawn from one population. Extra information cannot hurt, so
the risk of this *genie* also bounds attackers who are told less.

Everything here is a Monte Carlo estimate from one run per target. docs/bounds/ derives
the formulas and shows by simulation how often the test errs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from audit.accounting import gaps
from audit.types import Bound

BLOCKS = 10  # of candidates, deleted in turn for the error that the pool brings
FEWEST = 2 * BLOCKS  # candidates of a class: of fewer the variance is too uncertain


class Posterior(NamedTuple):
    """What the genie knows of each target after its run; errors are per coordinate."""

    risk: np.ndarray  # [T] posterior variance: its expected squared error
    error: np.ndarray  # [T] squared error of the posterior mean at the target
    floor: np.ndarray  # [T] squared error of the candidates' class mean at the target
    prior: np.ndarray  # [T] what the floor's error is expected to be, from candidates
    expected_floor: np.ndarray  # [T] the floor's error, posterior mean
    variances: np.ndarray  # [3, T] under the posterior: of error, of floor; covariance


def posterior(
    log_likelihood: Any,
    target_likelihood: Any,
    candidates: Any,
    targets: Any,
    same_label: Any,
) -> Posterior:
    """Weigh the candidates of every target by the likelihood of its run.

    Args:
      log_likelihood: [T, M] of target t's run under candidate k, up to a constant per
        target.
      target_likelihood: [T] the same under the target itself, which belongs to the
        candidate set.
      candidates: [M, d] pool images.
      targets: [T, d].
      same_label: [T, M] whether a candidate has the target's class, which is genie.
    """
    z, x, last = (
        np.asarray(a, float) for a in (candidates, targets, target_likelihood)
    )
    same_label = np.asarray(same_label, bool)
    centre, d = z.mean(0), z.shape[1]  # the squares below cancel less around the mean
    z, x = z - centre, x - centre
    scores = np.where(same_label, np.asarray(log_likelihood, float), -np.inf)
    weight = special.softmax(np.concatenate([scores, last[:, None]], 1), 1)
    count = same_label.sum(1)
    mean = same_label @ z / np.maximum(count, 1)[:, None]
    error = _squared(weight[:, :-1] @ z + weight[:, -1:] * x, z, x) / d
    ground = _squared(mean, z, x) / d
    within = (same_label * ground[:, :-1]).sum(1) / np.maximum(count, 1)
    risk, expected = (weight * error).sum(1), (weight * ground).sum(1)
    return Posterior(
        risk,
        error[:, -1],
        ground[:, -1],
        # a fresh image is further from the mean than those the mean was taken of
        within * (count + 1) / np.maximum(count - 1, 1),
        expected,
        np.stack(
            [
                (weight * error**2).sum(1) - risk**2,
                (weight * ground**2).sum(1) - expected**2,
                (weight * error * ground).sum(1) - risk * expected,
            ]
        ),
    )


def _squared(guess: np.ndarray, z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return ||z_k - guess_t||^2, and in the last column ||x_t - guess_t||^2."""
    across = (guess**2).sum(1)[:, None] - 2 * guess @ z.T + (z**2).sum(1)
    last = ((x - guess) ** 2).sum(1)[:, None]
    return np.maximum(np.concatenate([across, last], 1), 0)


def finite_prior(
    log_likelihood: Any,
    target_likelihood: Any,
    candidates: Any,
    targets: Any,
    same_label: Any,
) -> Bound | None:
    """Estimate the Bayes risk, restated for the scored targets.

    None where no class has `FEWEST` candidates. Targets of a class with fewer count as
    known, with risk 0.

    Scored targets may be easier or harder than the pool. The mean posterior variance is
    therefore multiplied by the floor's error on them over the floor's expected error,
    so that the bound meets the floor where nothing leaks. `genie` is the squared error
    of the posterior mean on the same targets: the same expectation, with more noise.

    The test of a row, `excess`, has the same correction: the mean over targets of
    (error - risk) - b (floor's error - floor's expected error), b = risk over expected
    error, in standard errors. They are those of the genie under its posterior, which
    count the rare large errors that few targets do not show, or those of the gaps at
    hand where these are larger.

    Args:
      log_likelihood: as for `posterior`, and so are all others.
      target_likelihood: [T].
      candidates: [M, d].
      targets: [T, d].
      same_label: [T, M].
    """
    scores, images = np.asarray(log_likelihood), np.asarray(candidates)
    same_label = np.asarray(same_label, bool)
    count = same_label.sum(1)
    weighed = count >= FEWEST
    if not weighed.any():
        return None

    def known_or_weighed(kept: Any) -> Posterior:
        """Return the posterior of some candidates; 0 at targets that are not weighed.

        The genie is told those targets, which cannot hurt it: their risk beside an
        expected floor of 0 would count as a share of the other classes' variance.
        """
        among = images[kept], targets, same_label[:, kept]
        genie = posterior(scores[:, kept], target_likelihood, *among)
        return Posterior(*(np.where(weighed, a, 0.0) for a in genie))

    genie = known_or_weighed(slice(None))
    scale, share = _scale_and_share(genie)
    genie = genie._replace(risk=scale * genie.risk)
    blocks = np.arange(len(images)) % BLOCKS
    parts = [known_or_weighed(blocks != block) for block in range(BLOCKS)]
    pool_error = _jackknife(
        [scale * part.risk.mean() - share * part.prior.mean() for part in parts]
    )
    surprise = genie.floor - genie.prior
    spread = _spread(genie, share)
    n = len(surprise)
    value = genie.risk.mean() + share * surprise.mean()
    fewest = count[weighed].min() + 1
    lone_targets = int((~weighed).sum())
    caveat = ""
    if lone_targets:
        caveat = f"; {lone_targets} targets without as many count as known"

    def excess(errors: np.ndarray) -> float:
        """Return by how many s.e. the errors [T] of a row exceed the bound."""
        gap = np.asarray(errors, float) - genie.risk - share * surprise
        return gaps.excess(gap, spread, pool_error)

    return Bound(
        "finite_prior",
        np.asarray(value),
        "any attacker, targets drawn from the same population as the pool, prior = "
        f"{fewest}+ pool records of the target's class; estimated" + caveat,
        "exact Bayes risk, derived in docs/",
        standard_error=float(np.hypot(np.sqrt(spread / n), pool_error)),
        genie=genie.error,
        excess=excess,
        needed=gaps.needed(value, spread),
    )


def _scale_and_share(genie: Posterior) -> tuple[float, float]:
    """Return what the risk is multiplied by, and the share of the variance left.

    The share is 1 where nothing leaks. Of few candidates that happen to be alike the
    risk can be above the prior, for the target itself is in it; it is scaled down to
    the prior then, or the bound, share x floor, would exceed the floor.
    """
    risk, prior = genie.risk.mean(), genie.prior.mean()
    if prior <= np.finfo(float).eps * risk:  # they are all alike, up to rounding
        return 0.0, 0.0
    return (1.0, float(risk / prior)) if risk <= prior else (float(prior / risk), 1.0)


def _spread(genie: Posterior, share: float) -> float:
    """Return the variance, per target, of the genie's corrected error less its risk.

    Given a run it is that of the posterior; the run of the accounting is another one
    than the run that is attacked, so that the risk's own variance comes twice.
    """
    error, floor, both = genie.variances.mean(1)
    given = error - 2 * share * both + share**2 * floor
    if len(genie.risk) < 2:
        return max(given, 0.0)
    corrected = genie.risk - share * genie.expected_floor
    return max(given, 0.0) + corrected.var(ddof=1) + genie.risk.var(ddof=1)


def _jackknife(values: list[float]) -> float:
    """Return the s.e. that all targets share by sharing one pool.

    Each value is without one block of the candidates.
    """
    many = len(values)
    return float(np.sqrt((many - 1) * np.var(values)))
