"""From trials to what the flags look at, and to plain rows with their flags raised."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from audit.config.compose import Entry, Scenario
from audit.engine import shadow
from audit.games import rows
from audit.games.base import Problem, Trial
from audit.games.guarantees import Guarantees
from audit.scorecard import flags
from audit.scorecard.flags import Measured

FLOORS = ("class_mean", "mean_image", "prior_mode", "coin")


class Seen(NamedTuple):
    """What an audit found out about its own runs."""

    measured: dict[str, Measured]  # of each defense
    stale: list[tuple[str, str]]  # defense and which of its stored runs

    def ran(self, defense: str) -> flags.Ran:
        """Return what is known of one defense's runs."""
        stale = [text for label, text in self.stale if label == defense]
        return flags.Ran(self.measured[defense], "; ".join(stale))


def row(
    one: Trial,
    held: dict[str, Guarantees],
    trials: list[Trial],
    learners: list[shadow.Learner],
    floor: dict[str, np.ndarray],
    scenario: Scenario,
    problem: Problem,
    seen: Seen,
) -> flags.Row | None:
    """Return what the flags look at; None for a trial without a result."""
    if one.arrays is None or one.result is None or not floor:
        return None
    undefended = [
        of.label
        for of in learners
        if of.defense.fisher is None
        and of.defense.rdp is None
        and "approximate" not in of.defense.traits
    ]
    controls = [
        rows.error(t.arrays)
        for t in trials
        if t.defense in undefended and t.attack == one.attack and t.arrays is not None
    ]
    wanted = next(iter(scenario.spec.sets))
    spread = problem.splits.pool_source
    distinct, size = len(np.unique(spread)), len(spread)
    null = one.result.get("controls", {})
    matched = null.get("matched"), null.get("matched_pool")
    splits = problem.splits
    ran = seen.ran(one.defense)
    return flags.Row(
        attack=one.attack.name,
        oracle=one.result["oracle"],
        is_floor=one.attack.name in FLOORS,
        mse=rows.error(one.arrays),
        bias2=one.arrays.get("bias2"),
        finite=bool(np.isfinite(rows.error(one.arrays)).all()),
        floor=rows.error(floor),
        bounds=held[one.defense].bounds if "mse" in one.arrays else None,
        runs=one.result["runs"],
        control=controls[0] if controls else None,
        is_control=one.defense in undefended,
        stand_in="" if scenario.data == wanted else f"{scenario.data}, not {wanted}",
        augmented="" if size == distinct else f"{distinct} images made {size}",
        measured=ran.measured,
        same_noise=null.get("same_noise"),
        null=one.arrays.get("null"),
        matched=None if None in matched else matched,
        label_leaked=problem.task.label_private and "label" in one.knows,
        known=(problem.known_targets, len(splits.targets.y) or len(splits.fixed.y)),
        stale=ran.stale,
        late_gain=one.result.get("fit", {}).get("late_gain"),
        picked=_picked(one, scenario),
    )


def _picked(one: Trial, scenario: Scenario) -> str:
    """Return how settings were picked on the scored targets, as far as one can tell.

    Two entries of one attack that differ in numbers alone are a search, and the card
    ranks by its best; words name methods, and numbers tune them.
    """

    def words(entry: Entry) -> dict[str, Any]:
        tuned = (int, float)
        return {
            k: v
            for k, v in entry.settings.items()
            if isinstance(v, bool) or not isinstance(v, tuned)
        }

    mine = one.attack
    same = [
        e.label
        for e in scenario.attacks
        if e.name == mine.name
        and e.settings != mine.settings
        and words(e) == words(mine)
    ]
    if same:
        return f"{mine.name} was scored with other numbers too: {', '.join(same)}"
    chosen = scenario.spec.chosen.get(one.defense)
    if chosen is not None and chosen.tuned_on == "targets":
        return f"settings of {one.defense} were chosen on the scored targets"
    return ""


def plain(one: Trial, row: flags.Row | None, ran: flags.Ran) -> dict[str, Any]:
    """Return a trial as plain data, flags raised: by its errors, or by its game."""
    found = []
    if one.status == "ok":
        raised = flags.of_runs(ran) if row is None else flags.raised(row)
        found = [f._asdict() for f in raised]
    found += (one.result or {}).pop("flags", [])
    attacks = row is not None and not (row.oracle or row.is_floor)
    if row is not None and one.result is not None and attacks:
        one.result.setdefault("controls", {})["positive"] = _positive(row)
    return {
        "defense": one.defense,
        "attack": one.attack.label,
        "use": one.attack.name,
        "passed": one.attack.passed,
        "settings": one.attack.settings,
        "threat_model": one.threat_model,
        "status": one.status,
        "reason": one.reason,
        "result": one.result,
        "flags": found,
    }


def _positive(row: flags.Row) -> dict[str, Any] | None:
    """Return what the attack gets on the undefended learner; None = there is none."""
    if row.control is None:
        return None
    beats = flags.below(row.control, row.floor)
    return {"error": float(row.control.mean()), "beats_floor": beats}
