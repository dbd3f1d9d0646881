"""How good a guess is: error with its parts, image similarity, accuracy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Decomposition(NamedTuple):
    """Mean squared error of every target, split into squared bias and variance."""

    mse: np.ndarray  # [targets] mean over runs and coordinates
    bias2: np.ndarray | None  # [targets] unbiased, so it may be slightly negative
    variance: np.ndarray | None  # [targets] unbiased; mse = bias2 + variance


def decompose(guesses: Any, targets: Any) -> Decomposition:
    """Split each target's error into squared bias and variance over its runs.

    Guesses are [T, R, *features]. With one run, bias2 and variance are None.

    Raises:
      ValueError: if the targets are not [T, *features].
    """
    guesses, targets = np.asarray(guesses, float), np.asarray(targets, float)
    if guesses.shape[:1] + guesses.shape[2:] != targets.shape:
        raise ValueError(
            f"guesses {guesses.shape} are not [targets, runs, *features] of targets "
            f"{targets.shape}"
        )
    guesses = guesses.reshape(*guesses.shape[:2], -1)
    error = guesses - targets.reshape(len(guesses), 1, -1)
    total = (error**2).mean((1, 2))
    runs = guesses.shape[1]
    if runs < 2:
        return Decomposition(total, None, None)
    within = guesses.var(1, ddof=1).mean(1)
    # E mse = bias^2 + variance, and `within` is unbiased for the variance
    return Decomposition(total, total - within, within)


def standard_error(values: Any) -> float:
    """Return the standard error of a mean over independent values [n]; nan for one."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def crossed_standard_error(values: Any) -> float:
    """Return the standard error of a mean over crossed values [n, r].

    Rows and columns are both draws: records, and releases at which each record is
    attacked. The variances of both kinds of means add up, less that of single values,
    which is in both (Cameron, Gelbach and Miller 2011). Where there is one column, or
    one row, nothing tells how others would differ: it is that of the rows alone.
    """
    values = np.asarray(values, float)
    rows, columns = (standard_error(values.mean(axis)) for axis in (1, 0))
    if min(values.shape) < 2:
        return rows
    residuals = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    freedom = (len(values) - 1) * (values.shape[1] - 1)
    variance = (residuals**2).sum() / freedom / values.size
    return float(np.sqrt(max(rows**2 + columns**2 - variance, rows**2, columns**2)))


def ssim(a: Any, b: Any) -> tuple[np.ndarray, int]:
    """Return the structural similarity [n] (Wang et al. 2004) and the window it used.

    `a` and `b` are [n, H, W, C] in [0, 1]. The window is 11 pixels, or the largest odd
    number that fits a smaller image.
    """
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    side = min(a.shape[1:3])
    window = min(11, side if side % 2 else side - 1)
    return np.asarray(_ssim(window)(a, b)), window


@functools.lru_cache(maxsize=8)
def _ssim(window: int) -> Callable:
    """Return the similarity as one program, not as one for each of its operations."""
    import dm_pix
    import jax

    return jax.jit(functools.partial(dm_pix.ssim, filter_size=window))


def psnr(a: Any, b: Any) -> np.ndarray:
    """Return the peak signal-to-noise ratio in dB [n]; identical images are infinite.

    `a` and `b` are [n, H, W, C] in [0, 1].
    """
    error = ((np.asarray(a, float) - np.asarray(b, float)) ** 2).mean((1, 2, 3))
    with np.errstate(divide="ignore"):
        return -10 * np.log10(error)


def matching(guesses: Any, targets: Any) -> float:
    """Return the share of guesses more correlated with their own target than any other.

    Both are [n, *features]. Unlike an error it ignores the contrast of a guess; chance
    level is 1 / n.
    """
    a, b = (np.asarray(v, float).reshape(len(v), -1) for v in (guesses, targets))
    a, b = (v - v.mean(1, keepdims=True) for v in (a, b))
    norms = np.linalg.norm(b, axis=1)
    scores = a @ (b / np.where(norms > 0, norms, 1)[:, None]).T
    return float((scores.argmax(1) == np.arange(len(a))).mean())


def win_rate(mse: Any, oracle: Any) -> float:
    """Return the share of targets with a smaller error than the oracle's; both [n]."""
    return float((np.asarray(mse) < np.asarray(oracle)).mean())
