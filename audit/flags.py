"""Trust flags: what a reader must know before believing a row.

Three levels: a *note* belongs to the scenario, a *warning* weakens the row, an *error*
voids it. Each flag is one small function of a row; `docs/flags.md` has a paragraph
each.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

STANDARD_ERRORS = 2.0


class Flag(NamedTuple):
    """One finding about one row."""

    name: str
    level: Literal["note", "warning", "error"]
    text: str


class Row(NamedTuple):
    """What the flags look at."""

    attack: str
    oracle: bool
    is_floor: bool
    mse: np.ndarray  # [targets]
    bias2: np.ndarray | None  # [targets]
    finite: bool
    floor: np.ndarray  # [targets], of the attacker who ignores the release
    bounds: tuple[Any, ...] | None  # on squared errors; None where no error is squared
    runs: int
    control: np.ndarray | None  # [targets] this attack's mse on an undefended learner
    is_control: bool  # this row is the undefended learner
    stand_in: str  # why the data are not the scenario's own, or ""
    augmented: str  # how the pool was enlarged, or ""


def _below(values: np.ndarray, limit: np.ndarray) -> bool:
    """Return whether the mean lies below the limit's by more than 2 s.e., paired."""
    gap = np.broadcast_to(limit, values.shape) - values
    if not np.isfinite(gap).all() or len(gap) < 2:
        return bool(values.mean() < np.mean(limit))
    se = gap.std(ddof=1) / np.sqrt(len(gap))
    return bool(gap.mean() > STANDARD_ERRORS * se)


def _biased(row: Row) -> bool | None:
    if row.bias2 is None or len(row.bias2) < 2:
        return None
    se = row.bias2.std(ddof=1) / np.sqrt(len(row.bias2))
    return bool(row.bias2.mean() > STANDARD_ERRORS * se)


def non_finite(row: Row) -> Flag | None:
    """Some guess is not a number."""
    if row.finite:
        return None
    return Flag("non-finite", "error", "some guesses are not finite; the row is void")


def attack_dead(row: Row) -> Flag | None:
    """The attack does not beat the floor even where nothing defends."""
    if row.oracle or row.is_floor or row.control is None:
        return None
    if _below(row.control, row.floor):
        return None
    text = "the attack fails on the undefended learner: its other rows mean nothing"
    return Flag("attack-dead", "error", text)


def no_control(row: Row) -> Flag | None:
    """Nothing undefended in the line-up, so the attack was not shown to work."""
    if row.oracle or row.is_floor or row.control is not None:
        return None
    text = "no undefended learner this attack applies to: not shown to work here"
    return Flag("no-control", "note", text)


def attack_below_floor(row: Row) -> Flag | None:
    """The attack is worse than ignoring the release."""
    if row.oracle or row.is_floor or not _below(row.floor, row.mse):
        return None
    text = "worse than ignoring the release; the floor is what the attacker gets"
    return Flag("attack-below-floor", "note", text)


def below_bound(row: Row) -> Flag | None:
    """The error lies below a bound: explained by bias, or not at all."""
    if row.oracle:
        return None
    for bound in row.bounds or ():
        if not bound.ranked or not _below(row.mse, np.asarray(bound.value)):
            continue
        if "unbiased" in bound.holds_for and _biased(row) is not False:
            measured = "" if row.bias2 is not None else " (bias not measured)"
            text = f"below {bound.name}, which binds unbiased attackers only{measured}"
            return Flag("below-bound-biased", "note", text)
        text = f"below {bound.name}, which holds for {bound.holds_for}"
        return Flag("below-bound-unexplained", "error", text)
    return None


def no_bound(row: Row) -> Flag | None:
    """Theory guarantees nothing about this defense."""
    if row.bounds is None or any(bound.ranked for bound in row.bounds):
        return None
    return Flag("no-bound", "note", "no theorem limits what an attacker can rebuild")


def few_runs(row: Row) -> Flag | None:
    """One run a target: bias and variance cannot be told apart."""
    if row.runs > 1:
        return None
    return Flag("few-runs", "note", "one run a target: bias and variance not measured")


def data_stand_in(row: Row) -> Flag | None:
    """The data are not the ones the scenario was published on."""
    return Flag("data-stand-in", "note", row.stand_in) if row.stand_in else None


def augmented_pool(row: Row) -> Flag | None:
    """The attacker's pool was enlarged by augmentation."""
    return Flag("augmented-pool", "note", row.augmented) if row.augmented else None


FLAGS = (
    non_finite,
    attack_dead,
    no_control,
    attack_below_floor,
    below_bound,
    no_bound,
    few_runs,
    data_stand_in,
    augmented_pool,
)


def raised(row: Row) -> list[Flag]:
    """Return the flags of a row, errors first."""
    order = {"error": 0, "warning": 1, "note": 2}
    found = [flag for check in FLAGS if (flag := check(row)) is not None]
    return sorted(found, key=lambda flag: order[flag.level])
