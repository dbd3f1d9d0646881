"""The mean of scorecards that differ in their seed alone.

A standard error over targets says nothing about seeds, and one over seeds nothing about
targets, which all seeds share; so the two are added in quadrature.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.scorecard.card import of_parts, plain
from audit.scorecard.schema import Scorecard

LEVELS = {"note": 0, "warning": 1, "error": 2}


def merged(cards: list[Scorecard]) -> Scorecard:
    """Return the mean card of several seeds; one card as it is.

    Trials that are not ok under every seed are what the first seed says that is not;
    flags are those of any seed.
    """
    if len(cards) == 1:
        return cards[0]
    each = [plain(card._replace(arrays={})._asdict()) for card in cards]
    trials = []
    for first in each[0]["trials"]:
        same = [_trial(card, first) for card in each]
        bad = [t for t in same if t is None or t["status"] != "ok"]
        if bad:
            trials.append(next((t for t in bad if t is not None), first))
            continue
        flags = {f["name"]: f for t in same if t for f in t["flags"]}
        order = sorted(flags.values(), key=lambda f: -LEVELS[f["level"]])
        trials.append({**_mean(same), "flags": order})
    floor, defenses = (_mean([card[k] for card in each]) for k in ("floor", "defenses"))
    changed = {"floor": floor, "defenses": defenses, "trials": trials, "arrays": {}}
    return of_parts(**each[0] | changed)


def _trial(card: dict[str, Any], like: dict[str, Any]) -> dict[str, Any] | None:
    key = like["defense"], like["attack"]
    rows = (t for t in card["trials"] if (t["defense"], t["attack"]) == key)
    return next(rows, None)


def _mean(parts: list[Any]) -> Any:
    """Return plain data with every number the mean of its counterparts."""
    first = parts[0]
    if isinstance(first, dict):
        return _mean_of_fields(parts)
    if isinstance(first, list):
        if any(not isinstance(p, list) or len(p) != len(first) for p in parts):
            return first
        return [_mean(list(each)) for each in zip(*parts, strict=True)]
    if all(p == first for p in parts):
        return first
    if all(is_number(p) for p in parts):
        return float(np.mean([float(p) for p in parts]))
    return first


def _mean_of_fields(parts: list[dict[str, Any]]) -> dict[str, Any]:
    shared = [k for k in parts[0] if all(isinstance(p, dict) and k in p for p in parts)]
    out = {k: _mean([p[k] for p in parts]) for k in shared}
    for key in shared:
        base = "value" if key == "standard_error" else key.removesuffix("_se")
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
