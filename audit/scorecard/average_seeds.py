"""The mean of scorecards that differ in their seed alone.

A standard error over targets says nothing about seeds, and one over seeds nothing about
targets, which all seeds share; so the two are added in quadrature.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.scorecard.card import Scorecard

LEVELS = {"note": 0, "warning": 1, "error": 2}


def merged(cards: list[Scorecard]) -> Scorecard:
    """Return the mean card of several seeds; one card as it is.

    Trials that are not ok under every seed are what the first seed says that is not;
    flags are those of any seed.
    """
    if len(cards) == 1:
        return cards[0]
    trials = []
    for first in cards[0].trials:
        same = [_trial(c, first["defense"], first["attack"]) for c in cards]
        bad = [t for t in same if t is None or t["status"] != "ok"]
        if bad:
            trials.append(next((t for t in bad if t is not None), first))
            continue
        flags = {f["name"]: f for t in same if t for f in t["flags"]}
        order = sorted(flags.values(), key=lambda f: -LEVELS[f["level"]])
        trials.append({**_mean(same), "flags": order})
    return cards[0]._replace(
        floor=_mean([c.floor for c in cards]),
        defenses=_mean([c.defenses for c in cards]),
        trials=trials,
        arrays={},
    )


def _trial(card: Scorecard, defense: str, attack: str) -> dict[str, Any] | None:
    return next(
        (t for t in card.trials if (t["defense"], t["attack"]) == (defense, attack)),
        None,
    )


def _mean(parts: list[Any]) -> Any:
    """Return plain data with every number the mean of its counterparts."""
    first = parts[0]
    if isinstance(first, dict):
        return _mean_of_fields(parts)
    if isinstance(first, list):
        if any(not isinstance(p, list) or len(p) != len(first) for p in parts):
            return first
        return [_mean(list(each)) for each in zip(*parts, strict=True)]
    if all(is_number(p) for p in parts):
        return float(np.mean([float(p) for p in parts]))
    return first


def _mean_of_fields(parts: list[dict[str, Any]]) -> dict[str, Any]:
    shared = [k for k in parts[0] if all(isinstance(p, dict) and k in p for p in parts)]
    out = {k: _mean([p[k] for p in parts]) for k in shared}
    for key in shared:
        base = key.removesuffix("_se")
        if key != base and base in shared and is_number(out[base]):
            each = [float(p[key]) for p in parts]
            seeds = np.var([float(p[base]) for p in parts], ddof=1) / len(parts)
            out[key] = float(np.sqrt(np.mean(np.square(each)) + seeds))
    return out


def is_number(value: Any) -> bool:
    """Return whether plain data is a number, or text for one JSON lacks."""
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float)) or value in ("inf", "-inf", "nan")
