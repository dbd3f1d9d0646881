"""How controls and what a run measured of itself print; cards from before have none."""

from __future__ import annotations

from typing import Any

from audit.report.columns import number, with_error
from audit.report.membership_cells import estimate
from audit.scorecard.card import Scorecard

CONTROLS = ["defense", "attack", "null control", "positive control", "beats the floor"]
CONTROLS_SAID = (
    "Null control: the error of the same guesses against another target of the class, "
    "or the AUC with the memberships of other records; it must not beat the floor, or "
    "differ from .5. Positive control: the attack's error on the undefended learner; "
    "it must beat the floor."
)
MEASURED = [
    "defense",
    "noise drawn / accounted",
    "correlation of draws, in s.e.",
    "longest contribution / bound",
    "batches seen",
    "divergence accounted / seen",
]
MEASURED_SAID = (
    "Measured on a few steps, and on releases that differ in their noise alone; the "
    "divergence is of order 2, accounted over that of the noise and the batches seen. "
    "none: nothing to see, or another law than a Gaussian."
)


def controls(card: Scorecard) -> list[list[str]]:
    """Return a row a trial with controls; oracles have none to pass."""
    rows = []
    for t in card.trials:
        held = (t["result"] or {}).get("controls")
        if t["status"] != "ok" or not held or t["result"]["oracle"]:
            continue
        positive = held.get("positive")
        said = ["none", "-"]
        if positive is not None:
            beats = "yes" if positive["beats_floor"] else "no"
            said = [number(positive["error"]), beats]
        rows.append([t["defense"], t["attack"], _null(held.get("null")), *said])
    return rows


def _null(held: dict[str, Any] | None) -> str:
    if held is None:
        return "-"
    if "value" in held:
        return estimate(held)
    return with_error(held["error"], held["error_se"])


def measured(card: Scorecard) -> list[list[str]]:
    """Return a row a defense that was measured."""
    rows = []
    for label, own in card.defenses.items():
        seen = own.get("measured") or {}
        if any(v is not None for v in seen.values()):
            keys = ("noise", "shared", "contribution", "sampling", "divergence")
            cells = [seen[k] if k == "sampling" else number(seen[k], 3) for k in keys]
            rows.append([label, *(c or "none" for c in cells)])
    return rows
