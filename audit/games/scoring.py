"""How a game's guesses become numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.scorecard.flags import STANDARD_ERRORS
from audit.statistics import lpips as perceptual
from audit.statistics import metrics
from audit.types import Bound, Splits


def errors(guesses: np.ndarray, targets: np.ndarray) -> tuple[dict, dict]:
    """Return the error summary of a game, and its per-target arrays.

    Args:
      guesses: [targets, runs, *features].
      targets: [targets, *features].
    """
    summary, arrays = summarise(metrics.decompose(guesses, targets), guesses.shape[1])
    return summary, {**arrays, "guess": guesses[:, 0].astype(np.float16)}


def summarise(parts: metrics.Decomposition, runs: int) -> tuple[dict, dict]:
    """Return the error summary of a game with so many runs a target, and its arrays."""
    summary = {
        "mse": float(parts.mse.mean()),
        "mse_se": float(metrics.standard_error(parts.mse)),
        "mse_median": float(np.median(parts.mse)),
        "bias2": None if parts.bias2 is None else float(parts.bias2.mean()),
        "variance": None if parts.variance is None else float(parts.variance.mean()),
        "targets": len(parts.mse),
        "runs": runs,
    }
    arrays: dict[str, Any] = {"mse": parts.mse}
    if parts.bias2 is not None:
        arrays |= {"bias2": parts.bias2, "variance": parts.variance}
    return summary, arrays


def images(guesses: np.ndarray, targets: np.ndarray, weights: Any) -> dict[str, Any]:
    """Return SSIM, PSNR and LPIPS of one guess a target, clipped to [0, 1].

    Args:
      guesses: [targets, H, W, C].
      targets: [targets, H, W, C].
      weights: of LPIPS, or the reason why there are none.
    """
    first = np.clip(guesses, 0, 1)
    ssim, window = metrics.ssim(first, targets)
    psnr = np.asarray(metrics.psnr(first, targets))
    out: dict[str, Any] = {
        "ssim": float(np.mean(ssim)),
        "ssim_window": window,
        "psnr_median": float(np.median(psnr)),  # identical images are infinite
    }
    if isinstance(weights, str):
        return out | {"lpips": None, "lpips_unavailable": weights}
    lpips = perceptual.lpips_images(weights, first, targets)
    return out | {"lpips": float(np.mean(lpips))}


def against(bound: Bound, mse: np.ndarray, se: np.ndarray | None) -> dict[str, Any]:
    """Return how an attack stands to a bound.

    `tightness` is mean error over mean bound: at least 1 where the bound applies.
    `share_below` counts targets whose error is below their own bound by more than 2
    s.e.; None where a target has one run, or the bound is on the average.
    """
    value = np.asarray(bound.value, float)
    mean = float(value.mean())
    below = None
    if value.ndim and se is not None and bound.name == "cramer_rao":
        below = float((mse + STANDARD_ERRORS * se < value).mean())
    return {
        "tightness": float(mse.mean()) / mean if mean > 0 else None,
        "share_below": below,
    }


def describe(bound: Bound) -> dict[str, Any]:
    """Return a bound as plain data, per-target values summarised."""
    value = np.asarray(bound.value, float)
    log10 = None if bound.log10 is None else float(np.mean(bound.log10))
    return {
        "name": bound.name,
        "holds_for": bound.holds_for,
        "theorem": bound.theorem,
        "ranked": bound.ranked,
        "mean": float(value.mean()),
        "median": float(np.median(value)),
        "min": float(value.min()),
        "max": float(value.max()),
        "log10": log10,
    }


def run_errors(guesses: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
    """Return the s.e. over runs of every target's error, or None for one run."""
    if guesses.shape[1] < 2:
        return None
    axes = tuple(range(2, guesses.ndim))
    each = ((guesses - targets[:, None]) ** 2).mean(axes)
    return each.std(1, ddof=1) / np.sqrt(each.shape[1])


def sizes(splits: Splits) -> dict[str, int]:
    """Return how many records each split holds, and the pool's distinct images."""
    counts = {k: len(getattr(splits, k).y) for k in splits._fields[:-1]}
    return counts | {"pool_distinct": len(np.unique(splits.pool_source))}
