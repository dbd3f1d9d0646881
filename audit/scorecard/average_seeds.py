"""The mean of scorecards that differ in their seed alone.

A standard error over targets says nothing about seeds, and one over seeds nothing about
targets, which all seeds share; so the two are added in quadrature. Intervals widen
alike.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from audit.engine import store
from audit.errors import UserError
from audit.scorecard.card import of_parts, plain
from audit.scorecard.schema import Scorecard

LEVELS = {"note": 0, "warning": 1, "error": 2}


def but_seed(card: Scorecard) -> str:
    """Return the digest of what makes a card's numbers, but its seed.

    That is its settings, its data and the code of plug-ins. The suite's own code is no
    part of it: a change elsewhere in it alters `provenance.code` too.
    """
    settings = plain(card.scenario)
    kept = {k: v for k, v in settings.items() if k not in ("seed", "lanes")}
    used = sorted([p.kind, p.name, p.code] for p in card.provenance.plugins)
    return store.digest(kept, card.data.digest, used)


def check(cards: list[Scorecard], which: str) -> None:
    """Raise UserError unless cards differ in their seed, and in nothing else.

    Args:
      cards: to be averaged.
      which: they are, for the message.
    """
    kinds = {but_seed(card) for card in cards}
    seeds = {card.scenario.seed for card in cards}
    if len(kinds) != 1 or len(seeds) < len(cards):
        differ = "their settings, data or a plug-in's code differ"
        why = differ if len(kinds) > 1 else "two have the same seed"
        raise UserError(
            f"{len(cards)} cards {which}: {why}; they must differ in the seed, and in "
            f"nothing else"
        )


@np.errstate(invalid="ignore")  # the spread of infinite numbers is no number
def merged(cards: list[Scorecard]) -> Scorecard:
    """Return the mean card of several seeds; one card as it is.

    A trial that is not ok under every seed is the first one that is not. Flags are
    those of any seed.
    """
    if len(cards) == 1:
        return cards[0]
    each = [plain(card._replace(arrays={})._asdict()) for card in cards]
    by_labels = [{(t["defense"], t["attack"]): t for t in c["trials"]} for c in each]
    trials = []
    for labels, first in by_labels[0].items():
        same = [card[labels] for card in by_labels if labels in card]
        bad = [t for t in same if t["status"] != "ok"]
        if bad or len(same) < len(cards):
            trials.append(next(iter(bad), first))
            continue
        every = sorted(
            (f for t in same for f in t["flags"]), key=lambda f: LEVELS[f["level"]]
        )
        flags = {f["name"]: f for f in every}  # of two levels the graver one
        order = sorted(flags.values(), key=lambda f: -LEVELS[f["level"]])
        trials.append({**_mean(same), "flags": order})
    floor, defenses = (_mean([card[k] for card in each]) for k in ("floor", "defenses"))
    changed = {"floor": floor, "defenses": defenses, "trials": trials, "arrays": {}}
    return of_parts(**each[0] | changed)


def _mean(parts: list[Any]) -> Any:
    """Return plain data, every number the mean of its counterparts and counts whole.

    What one seed has no number for has no mean.
    """
    first = parts[0]
    if any(p is None for p in parts):
        return None
    if isinstance(first, dict):
        return _mean_of_fields(parts)
    if isinstance(first, list):
        if any(not isinstance(p, list) or len(p) != len(first) for p in parts):
            return first
        return [_mean(list(each)) for each in zip(*parts, strict=True)]
    if any(p != first for p in parts) and all(map(is_number, parts)):
        mean = float(np.mean([float(p) for p in parts]))
        return int(np.ceil(mean)) if all(type(p) is int for p in parts) else mean
    return first


def _mean_of_fields(parts: list[dict[str, Any]]) -> dict[str, Any]:
    shared = [k for k in parts[0] if all(isinstance(p, dict) and k in p for p in parts)]
    out = {k: _mean([p[k] for p in parts]) for k in shared}
    # the number that a `standard_error` beside it is of
    main = next((k for k in ("value", "mean") if k in shared), "")
    for key in shared:
        base = main if key == "standard_error" else key.removesuffix("_se")
        numbers = [p.get(k) for p in parts for k in (key, base)]
        if key != base and all(map(is_number, numbers)):
            each = [float(p[key]) for p in parts]
            seeds = np.var([float(p[base]) for p in parts], ddof=1) / len(parts)
            out[key] = float(np.sqrt(np.mean(np.square(each)) + seeds))
    middle = "success" if "success" in shared else "value"
    numbers = [p.get(k) for p in parts for k in (middle, "low", "high")]
    if all(map(is_number, numbers)):
        ends = np.reshape(np.asarray(numbers, float), (-1, 3))
        out |= _interval(ends, float(parts[0].get("confidence", 0.95)))
    return out


def _interval(each: np.ndarray, confidence: float) -> dict[str, float]:
    """Return the interval of the mean of seeds' (value, low, high) [seeds, 3].

    It does not leave the range [0, 1] of rates where no seed's does.
    """
    values, ends = each[:, :1], each[:, 1:]
    sides = NormalDist().inv_cdf((1 + confidence) / 2)
    seeds = sides**2 * values.var(ddof=1) / len(values)
    reach = np.sqrt(np.square(ends - values).mean(0) + seeds)
    low, high = values.mean() - reach[0], values.mean() + reach[1]
    return {
        "low": float(low if ends.min() < 0 else max(low, 0.0)),
        "high": float(high if ends.max() > 1 else min(high, 1.0)),
    }


def is_number(value: Any) -> bool:
    """Return whether plain data is a number, or text for one JSON lacks."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number or value in ("inf", "-inf", "nan")
