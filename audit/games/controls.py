"""Controls of a reconstruction: what the same guesses get where they can know nothing.

The *null control* scores each guess against another target of its class. What is left
of the release in it is about somebody else, so it must not beat the floor. The
*positive control* is the undefended learner's row, which must. Both are made of guesses
the audit has anyway.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from audit.statistics import metrics
from audit.types import Examples, Release

MATCHED = 300  # targets that are matched with guesses, at most
TOGETHER = 64  # targets whose noise is compared with an attacker's


def of_guesses(
    guesses: np.ndarray, targets: Examples, pool: Examples
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the null control and the best matching, and per-target arrays.

    Guesses are [targets, runs, *features]; those at targets of one class are exchanged.
    """
    each = null(guesses, targets)
    finite = each[np.isfinite(each)]
    se = metrics.standard_error(finite) if len(finite) else None
    mean = float(finite.mean()) if len(finite) else None
    summary = {"null": {"error": mean, "error_se": se}}
    return summary | matched(guesses[:, 0], targets, pool), {"null": each}


def null(guesses: np.ndarray, targets: Examples) -> np.ndarray:
    """Return the error of every target by the guesses at another of its class.

    Returns:
      [targets] means over runs; nan where a class has one target.
    """
    other, x = partner(np.asarray(targets.y)), np.asarray(targets.x, float)
    error = np.full(len(x), np.nan)
    for i in np.flatnonzero(other != np.arange(len(x))):  # one by one: guesses are many
        gap = np.asarray(guesses[other[i]], float) - x[i]
        error[i] = (gap**2).mean(tuple(range(gap.ndim)))
    return error


def partner(labels: np.ndarray) -> np.ndarray:
    """Return another record of each one's class [n]: a random cycle within it.

    Itself where there is no other. Labels that are numbers are one class.
    """
    rng = np.random.default_rng(0)
    groups = np.zeros(len(labels), int) if labels.dtype.kind == "f" else labels
    other = np.arange(len(labels))
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        other[rows] = np.roll(rows, 1)
    return other


def matched(guess: np.ndarray, targets: Examples, pool: Examples) -> dict[str, Any]:
    """Return the error of the best one-to-one matching of guesses with targets.

    Beside it theirs in the given order, and that of the best matching of as many pool
    records of the same classes, which know nothing. None where a guess is not finite.
    """
    from scipy.optimize import linear_sum_assignment

    rows = np.unique(np.linspace(0, len(guess) - 1, MATCHED).astype(int))
    x = np.asarray(targets.x, float)[rows].reshape(len(rows), -1)
    rng, y, picked = np.random.default_rng(0), np.asarray(pool.y), []
    for label in np.asarray(targets.y)[rows].tolist():
        alike = np.flatnonzero(y == label)
        picked.append(rng.choice(alike if len(alike) else np.arange(len(y)), 1)[0])

    def errors(images: np.ndarray) -> tuple[float | None, float | None]:
        flat = np.asarray(images, float).reshape(len(rows), -1)
        if not np.isfinite(flat).all():
            return None, None
        square = (flat**2).sum(1)[:, None] + (x**2).sum(1) - 2 * flat @ x.T
        pairings = square[linear_sum_assignment(square)], square.diagonal()
        best, in_order = (float(pairs.mean() / x.shape[1]) for pairs in pairings)
        return best, in_order

    best, in_order = errors(guess[rows])
    chance, _ = errors(np.asarray(pool.x)[picked])
    return {"matched": best, "in_order": in_order, "matched_pool": chance}


def same_noise(releases: Release, shadows: Release, runs: int) -> float | None:
    """Return how surely an attacker's own runs have the release's noise, in s.e.

    Two runs of one target differ in noise alone. The correlation of that difference
    with the difference of the attacker's runs in the same lanes is compared with those
    in other lanes, which say how large it is by chance. Releases are [targets * runs].
    None for one run, or for fewer than three targets.
    """
    lanes = min(len(jax.tree.leaves(r)[0]) for r in (releases, shadows))
    targets = min(TOGETHER, lanes // runs)
    if runs < 2 or targets < 3:
        return None
    first = np.arange(targets) * runs

    def directions(made: Release) -> np.ndarray:
        leaves = [np.asarray(a) for a in jax.tree.leaves(made)]
        each = [a[first].astype(float) - a[first + 1] for a in leaves]
        gaps = np.concatenate([a.reshape(targets, -1) for a in each], 1)
        return gaps / np.maximum(np.linalg.norm(gaps, axis=1, keepdims=True), 1e-30)

    cosine = directions(releases) @ directions(shadows).T
    chance = np.sqrt((cosine[~np.eye(targets, dtype=bool)] ** 2).mean())
    if not chance:
        return None  # nothing differs
    return float(np.diag(cosine).mean() / chance * np.sqrt(targets))
