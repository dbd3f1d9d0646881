"""Le Cam's two points: the error at the worse of two opposite corners (Le Cam 1973)."""

from __future__ import annotations

import math

import numpy as np

from audit.types import Bound, Readings


def le_cam(readings: Readings) -> Bound | None:
    """Return width^2 / 16 exp(-KL), KL the divergence of replacing one record.

    For records x0, x1 no attacker has a smaller error than ||x0 - x1||^2 / 8 (1 - TV)
    at both (Tsybakov 2009, Theorem 2.2), and 1 - TV >= exp(-KL) / 2 (Bretagnolle and
    Huber 1979). Opposite corners are d width^2 apart; the Renyi divergence of an order
    above 1 is at least KL. Minimax over the whole cube: it says nothing about images,
    hence it is never ranked.

    Args:
      readings: of the defense; None without a Renyi curve or a bounded domain.
    """
    low, high = readings.domain
    curve = readings.rdp and readings.rdp(np.array([1.01]))
    if curve is None or not math.isfinite(high - low):
        return None
    log = 2 * math.log(high - low) - math.log(16) - float(curve[0])
    return Bound(
        "le_cam",
        np.asarray(math.exp(max(log, -745.0))),
        "any attacker, at the worse of two opposite corners",
        "Le Cam 1973; Bretagnolle and Huber 1979",
        ranked=False,
        log10=log / math.log(10),
    )
