"""Inline plots of single targets: error against bound, budget by step, an atlas."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.report import svg
from audit.report.columns import bound_names, bound_text, number, strongest
from audit.report.html_template import Album
from audit.scorecard.card import Scorecard

MOST_POINTS = 2_000  # of a series; more are thinned evenly
MOST_TARGETS = 40  # of an atlas
LEAST = 1e-12  # the smallest bound with a place on an axis


def _array(card: Scorecard, name: str) -> np.ndarray | None:
    held = card.arrays.get(name)
    return None if held is None or held.dtype.kind not in "fiu" else held


def scatters(card: Scorecard) -> list[dict[str, Any]]:
    """Return one plot a bound: every target's error against it, a look a defense."""
    drawn = []
    for name, short in bound_names(card).items():
        series, seen, errors = [], [], []
        for look, label in enumerate(card.defenses):
            points = _points(card, label, name)
            if points is None:
                continue
            bound, mse = points
            said = f"{label}, {_attack(card, label)}"
            series.append(svg.Series(said, bound.tolist(), mse.tolist(), look))
            seen += bound.tolist()
            errors += mse.tolist()
        if not series:
            continue
        floor = card.floor["mse"]
        rules = [svg.Rule("error = bound", diagonal=True)]
        if floor is not None:
            rules.append(svg.Rule("floor: ignores the release", y=float(floor)))
            errors.append(float(floor))
        x = svg.axis(f"{short} (bound on MSE)", seen, log=True)
        y = svg.axis("MSE of the strongest attack", errors, log=True)
        title = f"error of every target against {short}"
        plot = svg.plot(x, y, series, rules, title)
        drawn.append({"svg": plot, "said": f"{short}: {_holds_for(card, name)}"})
    return drawn


def _attack(card: Scorecard, label: str) -> str:
    best = strongest(card, label)
    return best["attack"] if best else ""


def _holds_for(card: Scorecard, name: str) -> str:
    each = (b for own in card.defenses.values() for b in own["bounds"])
    return next((b["holds_for"] for b in each if b["name"] == name), "not said")


def _points(
    card: Scorecard, label: str, name: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return bound and error of the targets that have both, thinned."""
    best = strongest(card, label)
    bound = _array(card, f"{label}/{name}")
    mse = None if best is None else _array(card, f"{label}/{best['attack']}/mse")
    if bound is None or mse is None or bound.ndim != 1 or bound.shape != mse.shape:
        return None
    told = np.isfinite(bound) & np.isfinite(mse) & (bound > LEAST) & (mse > LEAST)
    if not told.any():
        return None
    bound, mse = bound[told], mse[told]
    step = -(-len(bound) // MOST_POINTS)
    return bound[::step], mse[::step]


def thinned(card: Scorecard) -> str:
    """Return what the plots leave out, in words."""
    sizes = [len(v) for k, v in card.arrays.items() if k.endswith("/mse") and v.ndim]
    if not sizes or max(sizes) <= MOST_POINTS:
        return ""
    step = -(-max(sizes) // MOST_POINTS)
    return f"Of {max(sizes):,} targets, one in {step} is drawn."


def budgets(card: Scorecard) -> list[dict[str, Any]]:
    """Return what every step spent: root dFIL so far, and accuracy."""
    drawn = []
    for key, words in (
        ("sqrt_mean", "√dFIL so far, mean over records"),
        ("accuracy", "accuracy on the test part"),
    ):
        series, values, longest = [], [], 1
        for look, (label, own) in enumerate(card.defenses.items()):
            each = [s.get(key) for s in own.get("steps") or []]
            if not each or None in each:
                continue
            told = [float(v) for v in each if v is not None]
            at = list(range(1, len(told) + 1))
            series.append(svg.Series(label, at, told, look, line=True))
            values += told
            longest = max(longest, len(told))
        if series:
            x = svg.Axis("step", 0.8, longest + 0.2)
            plot = svg.plot(x, svg.axis(words, values), series, title=words)
            drawn.append({"svg": plot, "said": words})
    return drawn


def atlas(card: Scorecard, album: Album) -> dict[str, Any] | None:
    """Return targets with what each defense let out: from worst hit to best kept.

    None where the card has no pictures of every target; see `why_no_atlas`.
    """
    found = _pictures(card)
    if found is None:
        return None
    targets, guesses = found
    errors = {
        label: _array(card, f"{label}/{_attack(card, label)}/mse") for label in guesses
    }
    held = [e for e in errors.values() if e is not None]
    order = np.argsort(np.mean(held, 0), kind="stable") if held else range(len(targets))
    count = min(MOST_TARGETS, len(targets))
    places = np.unique(np.linspace(0, len(targets) - 1, count).round().astype(int))
    rows = [
        _atlas_row(card, album, int(np.asarray(order)[p]), targets, guesses)
        for p in places
    ]
    return {
        "said": f"{len(rows)} of {len(targets):,} targets, evenly from those rebuilt "
        f"most closely on average to the least; guesses are the first release's.",
        "heads": [f"{label}, {_attack(card, label)}" for label in guesses],
        "rows": rows,
    }


def _pictures(card: Scorecard) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """Return targets [n, H, W, C] and every defense's first guesses of them."""
    targets = _array(card, "target")
    if targets is None or targets.ndim != 4 or targets.shape[-1] not in (1, 3):
        return None
    guesses = {}
    for label in card.defenses:
        held = _array(card, f"{label}/{_attack(card, label)}/guess")
        if held is not None and held.shape == targets.shape:
            guesses[label] = held
    return (targets, guesses) if guesses else None


def _atlas_row(
    card: Scorecard,
    album: Album,
    i: int,
    targets: np.ndarray,
    guesses: dict[str, np.ndarray],
) -> dict[str, Any]:
    label_of = _array(card, "label")
    name = f"{i}" if label_of is None else f"{i}: class {label_of[i]:g}"
    out = []
    for label, guess in guesses.items():
        mse = _array(card, f"{label}/{_attack(card, label)}/mse")
        bound = _array(card, f"{label}/cramer_rao")
        text = "" if mse is None else f"MSE {number(float(mse[i]))}"
        if bound is not None and bound.ndim:
            one = {"mean": float(bound[i]), "log10": None}
            text += f" 1/dFIL {bound_text(one)}"
        alt = f"guess of target {i} under {label}"
        out.append({"uri": album.pixels(guess[i]), "alt": alt, "text": text})
    alt = f"target {i}"
    return {"name": name, "uri": album.pixels(targets[i]), "alt": alt, "cells": out}


def why_no_atlas(card: Scorecard) -> str:
    """Return, in words, why there are no pictures of single targets."""
    if not card.arrays:
        return (
            "Per-target values are not in this folder (scorecard.npz stays out of "
            "git). The command below makes them again."
        )
    if not card.trials:
        return "Nobody attacks here, so there is nothing to show."
    return "This card keeps no pictures of every target; see the figures above."
