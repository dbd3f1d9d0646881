"""Trust flags: what a reader must know before believing a row.

There are three levels: a *note* belongs to the scenario, a *warning* weakens the row,
an *error* voids it. Each flag is one small function of a row; `docs/flags.md` has one
paragraph per flag. The thresholds were fixed after the faults of
`tests/scorecard/test_faults.py` were written.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

from audit.accounting.gaps import LEVEL, POWER

# The share of a squared Gaussian error's draws that lie below its own mean is largest,
# .683, with one degree of freedom; an attacker that attains a bound shows no more.
BELOW_MEAN = float(special.chdtr(1, 1.0))
BELOW_TWICE = float(special.chdtr(1, 2.0))  # the same of an attacker at half of it
SURE = 5.0  # standard errors, of a check that every run makes many times
SLACK = 0.02  # relative, of measured noise: rounding and nothing else
LONGEST = 1.001  # contribution over its bound, float32 rounding allowed
LEAST_DIVERGENCE = 0.9  # accounted over measured, which has an error of a few percent
SHARED = 6.0  # standard errors, of the largest of thousands of correlations
MATERIAL = 0.95  # of the floor, for both controls
MATCH = 0.5  # of the error in the given order, and of pool images that are matched
LATE = 0.1  # share of the held-out error by which the last quarter of epochs lowers it
FEW_IN_POOL = 0.01  # of the targets; real data contain identical records
# Flags under which the number of the attack says nothing about this defense.
VOID = frozenset(
    {
        "non-finite", "attack-dead", "label-leaked", "shuffled-targets", "stale-cache",
        "null-beats-floor", "null-leak", "not-attacked", "diverged",
    }
)  # fmt: skip
# Errors under which what is accounted for does not hold: the runs are of another
# mechanism, or an attack gets more than any attacker can
REFUTING = frozenset(
    {
        "wrong-noise", "unclipped", "accountant-disagrees", "shared-noise",
        "optimum-off", "below-bound-unexplained", "tpr-above-bound",
        "success-above-bound", "lower-above-upper",
    }
)  # fmt: skip


def is_void(flags: Iterable[Any]) -> bool:
    """Return whether the number of a row with these flags says nothing."""
    return any(flag.name in VOID for flag in flags)


def refuting(flags: Iterable[Any]) -> list[Any]:
    """Return the flags under which no bound and no epsilon of a defense holds."""
    return [f for f in flags if f.name in REFUTING and f.level == "error"]


class Flag(NamedTuple):
    """One finding about one row."""

    name: str
    level: Literal["note", "warning", "error"]
    text: str


NOT_ATTACKED = Flag(
    "not-attacked",
    "error",
    "nobody attacked: no attack here but floors and oracles, or none that applies",
)


class Measured(NamedTuple):
    """Measurements of a defense's runs; None where there is nothing to measure."""

    noise: float | None = None  # standard deviation drawn, over the accounted one
    noise_se: float | None = None  # of that ratio
    shared: float | None = None  # largest correlation between draws or runs, in s.e.
    contribution: float | None = None  # norm of the longest, over the accounted bound
    sampling: str | None = None  # the law that the drawn batches follow
    divergence: float | None = None  # Renyi, order 2, accounted over measured
    unmeasured: str = ""  # why the noise that is accounted for is not measured, or ""
    lost: str = ""  # how many releases are no numbers, or ""


class Ran(NamedTuple):
    """What the flags about a defense's runs are functions of, whatever attacks it."""

    measured: Measured
    stale: str = ""  # the stored runs that this code does not reproduce, or ""
    same_noise: float | None = None  # s.e. by which the attacker's runs share noise


class FlagInputs(NamedTuple):
    """What the flags of one row are functions of."""

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
    small_pool: str = ""  # which bound it is too small for, or ""
    measured: Measured = Measured()  # of the defense's runs
    same_noise: float | None = None  # s.e. by which the attacker's runs share noise
    null: np.ndarray | None = None  # [targets] mse of guesses at other targets
    matched: tuple[float, ...] | None = None  # mse: matched anew, in order; of the pool
    label_leaked: bool = False  # the attack is shown a label that is private
    in_pool: tuple[int, int] = (0, 0)  # targets in the attacker's records; all targets
    stale: str = ""  # the stored runs that this code does not reproduce, or ""
    late_gain: float | None = None  # share of held-out error, by the last epochs
    picked: str = ""  # how settings were picked on these targets, or ""


def mostly_below(values: np.ndarray, limit: Any, share: float = 0.5) -> bool:
    """Return whether more than a share of the targets lie below a limit: a sign test.

    One target counts as much as another, so that a heavy tail of errors or of bounds
    does not hide the others, as it does in a test of means.

    Args:
      values: [targets]; one that is not a number counts as not below.
      limit: [targets] or one for all; a target that equals it exactly is left out.
      share: expected of a sound row at most.
    """
    limit = np.broadcast_to(limit, values.shape)
    differs = int((values != limit).sum())
    count = int((values < limit).sum())
    return bool(special.bdtrc(count - 1, differs, share) <= LEVEL)


def below(values: np.ndarray, limit: Any) -> bool:
    """Return whether values lie below a limit, on average or at most targets.

    A mean that a heavy tail moves the other way, beyond its error, has the last word.
    """
    gap = np.broadcast_to(limit, values.shape) - values
    if len(gap) < 2 or not np.isfinite(gap).all():
        return mostly_below(values, limit)
    z = gap.mean() / max(gap.std(ddof=1) / np.sqrt(len(gap)), np.finfo(float).tiny)
    quantile = -special.stdtrit(len(gap) - 1, LEVEL)
    return bool(z > quantile or (mostly_below(values, limit) and z > -quantile))


def _biased(row: FlagInputs) -> bool | None:
    if row.bias2 is None or len(row.bias2) < 2:
        return None
    return below(-row.bias2, 0.0)


def exceeds(bound: Any, errors: np.ndarray) -> bool:
    """Return whether errors [targets] are too small for a bound, at `LEVEL`.

    A bound on the average brings its own test; one on each target gets a sign test.
    """
    if bound.excess is not None:
        return bool(bound.excess(errors) < special.ndtri(LEVEL))
    return mostly_below(errors, np.asarray(bound.value), BELOW_MEAN)


def needed(bound: Any) -> int | None:
    """Return how many targets show an attacker at half of a bound; None = no number."""
    return bound.needed if bound.excess is not None else _needed_by_signs()


@functools.cache
def _needed_by_signs() -> int:
    for n in range(1, 1000):
        # the least number of targets below their bounds that raises a flag
        critical = int((special.bdtrc(np.arange(-1, n), n, BELOW_MEAN) > LEVEL).sum())
        if special.bdtrc(critical - 1, n, BELOW_TWICE) >= POWER:
            return n
    raise AssertionError("the two shares differ, so that some number suffices")


def non_finite(row: FlagInputs) -> Flag | None:
    """Some guess is not a number."""
    if row.finite:
        return None
    return Flag("non-finite", "error", "some guesses are not finite; the row is void")


def attack_dead(row: FlagInputs) -> Flag | None:
    """The attack does not beat the floor even where nothing defends."""
    if row.oracle or row.is_floor or row.control is None:
        return None
    if below(row.control, row.floor):
        return None
    text = "the attack fails on the undefended learner: its other rows mean nothing"
    return Flag("attack-dead", "error", text)


def attack_feeble(row: FlagInputs) -> Flag | None:
    """The attack hardly beats the floor even where nothing defends."""
    if row.oracle or row.is_floor or row.control is None or attack_dead(row):
        return None
    share = row.control.mean() / row.floor.mean()
    if share <= MATERIAL:
        return None
    text = f"on the undefended learner the attack's error is {share:.1%} of the floor"
    return Flag("attack-feeble", "note", text)


def no_control(row: FlagInputs) -> Flag | None:
    """No undefended learner in the line-up shows that the attack works."""
    if row.oracle or row.is_floor or row.control is not None:
        return None
    text = "no undefended learner this attack applies to: not shown to work here"
    return Flag("no-control", "note", text)


def attack_below_floor(row: FlagInputs) -> Flag | None:
    """The attack is worse than ignoring the release."""
    if row.oracle or row.is_floor or not below(row.floor, row.mse):
        return None
    text = "worse than ignoring the release; the floor is what the attacker gets"
    return Flag("attack-below-floor", "note", text)


def below_bound(row: FlagInputs) -> Flag | None:
    """The error lies below a bound: explained by bias, or not at all."""
    if row.oracle:
        return None
    explained = None
    for bound in row.bounds or ():
        if not bound.ranked or not exceeds(bound, row.mse):
            continue
        if "unbiased" not in bound.holds_for or _biased(row) is False:
            text = f"below {bound.name}, which holds for {bound.holds_for}"
            return Flag("below-bound-unexplained", "error", text)
        measured = "" if row.bias2 is not None else " (bias not measured)"
        text = f"below {bound.name}, which binds unbiased attackers only{measured}"
        explained = explained or Flag("below-bound-biased", "note", text)
    return explained


def few_targets(row: FlagInputs) -> Flag | None:
    """So few targets that an attack below a bound would not be noticed."""
    if row.oracle or row.is_floor:
        return None
    counts = {b.name: needed(b) for b in row.bounds or () if b.ranked}
    short = [
        f"{name} {count or 'more than any number'}"
        for name, count in counts.items()
        if count is None or count > len(row.mse)
    ]
    if not short:
        return None
    text = f"{len(row.mse)} targets; to show an attack at half of a bound takes "
    return Flag("few-targets", "note", text + ", ".join(short))


def no_bound(row: FlagInputs) -> Flag | None:
    """No theorem limits the error of an attack on this defense."""
    if row.bounds is None or any(bound.ranked for bound in row.bounds):
        return None
    return Flag("no-bound", "note", "no theorem limits what an attacker can rebuild")


def few_runs(row: FlagInputs) -> Flag | None:
    """One run per target: bias and variance cannot be measured."""
    if row.runs > 1:
        return None
    text = "one run per target: bias and variance not measured"
    return Flag("few-runs", "note", text)


def data_stand_in(row: FlagInputs) -> Flag | None:
    """The data are not the ones the scenario was published on."""
    return Flag("data-stand-in", "note", row.stand_in) if row.stand_in else None


def augmented_pool(row: FlagInputs) -> Flag | None:
    """The attacker's pool was enlarged by augmentation."""
    return Flag("augmented-pool", "note", row.augmented) if row.augmented else None


def small_pool(row: FlagInputs) -> Flag | None:
    """The attacker's pool has too few images of each class for a bound."""
    return Flag("small-pool", "note", row.small_pool) if row.small_pool else None


# The run differs from its description ------------------------------------------------


def diverged(row: FlagInputs | Ran) -> Flag | None:
    """A run released weights that are infinite or no number."""
    return Flag("diverged", "error", row.measured.lost) if row.measured.lost else None


def wrong_noise(row: FlagInputs | Ran) -> Flag | None:
    """The noise drawn is not the noise accounted for."""
    ratio, se = row.measured.noise, row.measured.noise_se
    if ratio is None or se is None:
        return None
    tolerance = max(SLACK, SURE * se)
    if abs(ratio - 1) <= tolerance:
        return None
    text = (
        f"noise of {ratio:.3g} times the standard deviation accounted for, "
        f"tolerance {tolerance:.1%}"
    )
    return Flag("wrong-noise", "error" if ratio < 1 else "warning", text)


def noise_not_measured(row: FlagInputs | Ran) -> Flag | None:
    """The accounting takes noise on trust that a run cannot measure."""
    why = row.measured.unmeasured
    text = f"the noise is taken on trust: {why}"
    return Flag("noise-not-measured", "note", text) if why else None


def unclipped(row: FlagInputs | Ran) -> Flag | None:
    """A record contributes more than the accounted sensitivity allows."""
    longest = row.measured.contribution
    if longest is None or longest <= LONGEST:
        return None
    text = f"a record adds {longest:.3g} times the norm accounted for"
    return Flag("unclipped", "error", text)


def accountant_disagrees(row: FlagInputs | Ran) -> Flag | None:
    """The accountant's divergence is below that of the steps that are trained."""
    ratio = row.measured.divergence
    if ratio is None or ratio >= LEAST_DIVERGENCE:
        return None
    text = (
        f"accounted for {ratio:.2g} of the divergence of what is trained: "
        f"{row.measured.sampling} batches, the noise as drawn"
    )
    return Flag("accountant-disagrees", "error", text)


def shared_noise(row: FlagInputs | Ran) -> Flag | None:
    """Runs or steps share noise, or the attacker's models share the release's."""
    correlation = row.measured.shared
    if correlation is not None and correlation > SHARED:
        text = "noise is shared between runs or steps: nothing accounted for holds"
        return Flag("shared-noise", "error", text)
    if row.same_noise is not None and row.same_noise > SHARED:
        text = "the attacker's models share the release's noise: its seed is known"
        return Flag("shared-noise", "error", text)
    return None


def stale_cache(row: FlagInputs | Ran) -> Flag | None:
    """The stored runs are not what this code and these settings compute."""
    return Flag("stale-cache", "error", row.stale) if row.stale else None


# The attack sees what it must not see, or is scored wrongly ---------------------------


def label_leaked(row: FlagInputs) -> Flag | None:
    """The attack is shown the label, which the task counts as private."""
    if not row.label_leaked:
        return None
    text = "the attack is shown the label, which this task counts as private"
    return Flag("label-leaked", "error", text)


def target_in_pool(row: FlagInputs) -> Flag | None:
    """Targets are among the records the attacker holds."""
    count, targets = row.in_pool
    if not count:
        return None
    text = f"{count} of {targets} targets are among the records the attacker holds"
    level: Any = "error" if count > FEW_IN_POOL * targets else "warning"
    return Flag("target-in-pool", level, text)


def shuffled_targets(row: FlagInputs) -> Flag | None:
    """Guesses show targets, but others than those they are scored against."""
    if row.oracle or row.is_floor or row.null is None or row.matched is None:
        return None
    paired = np.isfinite(row.null)
    if not paired.any() or below(row.mse[paired], row.null[paired]):
        return None
    error, in_order, chance = row.matched
    if error >= MATCH * min(in_order, chance):
        return None
    text = "guesses show targets, but other ones than they are scored against"
    return Flag("shuffled-targets", "error", text)


def null_beats_floor(row: FlagInputs) -> Flag | None:
    """Guesses at other targets beat the floor: the attack needs no release."""
    if row.oracle or row.null is None:
        return None
    scored = np.isfinite(row.null)
    gap = np.broadcast_to(row.floor, row.null.shape)[scored] - row.null[scored]
    if len(gap) < 2 or row.null[scored].mean() > MATERIAL * row.floor.mean():
        return None
    if gap.mean() <= SURE * gap.std(ddof=1) / np.sqrt(len(gap)):
        return None
    text = "guesses at other targets beat the floor: targets or floor are not sound"
    return Flag("null-beats-floor", "error", text)


# The attack could have been stronger, or looks stronger than it is --------------------


def attack_undertrained(row: FlagInputs) -> Flag | None:
    """The attack's held-out error was still falling when it had to stop."""
    if row.late_gain is None or row.late_gain <= LATE:
        return None
    text = f"held-out error fell {row.late_gain:.0%} in the last quarter of its epochs"
    return Flag("attack-undertrained", "warning", text)


def picked_on_targets(row: FlagInputs) -> Flag | None:
    """Settings were picked by their results on the scored targets."""
    return Flag("picked-on-targets", "warning", row.picked) if row.picked else None


OF_RUNS = (
    diverged,
    wrong_noise,
    noise_not_measured,
    unclipped,
    accountant_disagrees,
    shared_noise,
    stale_cache,
)
FLAGS = (
    non_finite,
    attack_dead,
    attack_feeble,
    no_control,
    attack_below_floor,
    below_bound,
    few_targets,
    no_bound,
    few_runs,
    data_stand_in,
    augmented_pool,
    small_pool,
    *OF_RUNS,
    label_leaked,
    target_in_pool,
    shuffled_targets,
    null_beats_floor,
    attack_undertrained,
    picked_on_targets,
)


def raised(row: FlagInputs) -> list[Flag]:
    """Return the flags of a row, errors first."""
    return _in_order([check(row) for check in FLAGS])


def of_runs(ran: Ran) -> list[Flag]:
    """Return the flags of a defense's runs, errors first."""
    return _in_order([check(ran) for check in OF_RUNS])


def _in_order(flags: list[Flag | None]) -> list[Flag]:
    order = {"error": 0, "warning": 1, "note": 2}
    raised = [flag for flag in flags if flag is not None]
    return sorted(raised, key=lambda flag: order[flag.level])
