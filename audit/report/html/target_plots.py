"""Single targets on a run's page: error against bound, budget by step, an atlas."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from audit.accounting.bounds import format_bound
from audit.report import columns
from audit.report.figures import bounds, common, steps
from audit.report.figures.bounds import numbers
from audit.report.html.template import Album
from audit.scorecard.card import Scorecard
from audit.scorecard.view import attack_name, number

MOST_POINTS = 2_000  # of one defense; more are thinned evenly
MOST_TARGETS = 40  # of an atlas
SIZE = (5.6, 3.8)  # of a plot, in inches


def scatters(card: Scorecard) -> dict[str, Markup]:
    """Return caption -> plot, one per bound: every target's error against it."""
    plots = {}
    for name, short in bounds.drawn_bounds(card).items():
        figure, (axis,) = common.panels(1, SIZE)
        bounds.against_bound(axis, card, name, MOST_POINTS)
        common.legend_below(figure, 2, markerscale=2)
        caption = f"{short}: {bounds.holds_for(card, name)}"
        plots[caption] = common.svg(figure, f"error of every target against {short}")
    return plots


def thinned(card: Scorecard) -> str:
    """Return what the plots leave out, in words."""
    sizes = [len(v) for k, v in card.arrays.items() if k.endswith("/mse") and v.ndim]
    if not sizes or max(sizes) <= MOST_POINTS:
        return ""
    step = -(-max(sizes) // MOST_POINTS)
    return f"Of {max(sizes):,} targets, one in {step} is drawn."


def budgets(card: Scorecard) -> dict[str, Markup]:
    """Return caption -> plot by step: mean root dFIL so far, and accuracy."""
    plots = {}
    for name in ("sqrt_mean", "accuracy"):
        figure, (axis,) = common.panels(1, SIZE)
        if steps.curves(axis, card, name):
            common.legend_below(figure)
            plots[steps.CURVES[name]] = common.svg(figure, steps.CURVES[name])
    return plots


def atlas(card: Scorecard, album: Album) -> dict[str, Any] | None:
    """Return targets with what each defense let out: from worst hit to best kept.

    None where the card has no pictures of every target.
    """
    targets, labels = numbers(card, "target"), numbers(card, "label")
    if targets is None or targets.ndim != 4 or targets.shape[-1] not in (1, 3):
        return None
    shown, heads = {}, []
    for line in columns.lines(card):
        attack = attack_name(line)
        guess = numbers(card, f"{line.label}/{attack}/guess")
        if guess is not None and guess.shape == targets.shape:
            heads.append(f"{line.label}, {attack}")
            mse = numbers(card, f"{line.label}/{attack}/mse")
            bound = numbers(card, f"{line.label}/cramer_rao")
            shown[line.label] = guess, mse, bound
    if not shown:
        return None
    errors = [mse for _, mse, _ in shown.values() if mse is not None]
    order = np.argsort(np.mean(errors, 0) if errors else np.zeros(len(targets)))
    count = min(MOST_TARGETS, len(targets))
    places = np.unique(np.linspace(0, len(targets) - 1, count).round().astype(int))
    rows = []
    for i in order[places].tolist():
        name = f"{i}" if labels is None else f"{i}: class {labels[i]:g}"
        uri, alt = album.pixels(targets[i]), f"target {i}"
        cells = [_cell(album, label, i, *values) for label, values in shown.items()]
        rows.append({"name": name, "uri": uri, "alt": alt, "cells": cells})
    return {"targets": len(targets), "heads": heads, "rows": rows}


def _cell(
    album: Album, label: str, i: int, guess: np.ndarray, mse: Any, bound: Any
) -> dict[str, Any]:
    """Return a defense's guess of target i, its error and its bound."""
    text = "" if mse is None else f"MSE {number(float(mse[i]))}"
    if bound is not None and bound.ndim:
        text += f" 1/dFIL {format_bound(float(bound[i]))}"
    alt = f"guess of target {i} under {label}"
    return {"uri": album.pixels(guess[i]), "alt": alt, "text": text}
