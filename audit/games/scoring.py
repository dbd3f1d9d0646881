"""How guesses at records become numbers, and how these print, in every such game.

An error is a mean square over the features of one record. Games whose guesses are
records share the functions below and the parts of their `View`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.games import controls
from audit.games.base import Result, Table, headline
from audit.games.guarantees import Guarantees
from audit.scorecard import card as cards
from audit.scorecard import view
from audit.scorecard.flags import is_void
from audit.scorecard.schema import AttackResult
from audit.scorecard.view import Column, number, of_best, rounded_share, with_error
from audit.statistics import intervals, metrics
from audit.statistics import lpips as perceptual
from audit.types import Bound, Examples

# of the floor's error: rebuilt closely; in part; a little
CLOSE, PART, LITTLE = 0.25, 0.9, 0.99
SOME = 0.05  # of the records, rebuilt better than the floor does
NEAR = 0.9  # of the floor's error: a bound that leaves any attacker next to nothing


def result(
    guesses: np.ndarray,
    targets: Examples,
    guarantees: Guarantees,
    table: Table,
    diagnostics: dict[str, Any],
    **checks: Any,
) -> Result:
    """Return what one attack got by its guesses [targets, runs, *features].

    Errors are compared with the bounds in `guarantees`; `diagnostics` are of the
    attack's fit, `checks` further controls by name.
    """
    parts, x = metrics.decompose(guesses, targets.x), targets.x
    errors = ((guesses - x[:, None]) ** 2).mean(tuple(range(2, guesses.ndim)))
    null, null_arrays = controls.of_guesses(guesses, targets, table.problem.splits.pool)
    mae = float(abs(guesses - x[:, None]).mean())
    numbers = {
        "mae": mae,
        "mae_plus_mse": mae + float(parts.mse.mean()),  # the loss of Balle et al.
        **images(guesses[:, 0], x, table),
        "against": against(guarantees.bounds, parts.mse, errors, table.floor),
        "fit": diagnostics,
        "controls": {**null, **checks},
    }
    arrays = {"guess": guesses[:, 0].astype(np.float16), **null_arrays}
    se = metrics.standard_error(parts.mse)
    return squared(parts, se, guesses.shape[1], table, numbers, arrays)


def squared(
    parts: metrics.Decomposition,
    standard_error: float,
    runs: int,
    table: Table,
    numbers: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> Result:
    """Return the result of a game with so many runs per target, of its errors.

    `parts` are those of every target, and the standard error is that of their mean;
    `numbers` and `arrays` are further fields of the row and further per-target arrays.
    """
    mse = float(parts.mse.mean())
    summary = {
        "mse": mse,
        "mse_se": standard_error,
        "mse_median": float(np.median(parts.mse)),
        "bias2": None if parts.bias2 is None else float(parts.bias2.mean()),
        "variance": None if parts.variance is None else float(parts.variance.mean()),
        "targets": len(parts.mse),
        "runs": runs,
    }
    split = {"bias2": parts.bias2, "variance": parts.variance}
    kept = {"mse": parts.mse} | {k: v for k, v in split.items() if v is not None}
    floor = None if table.floor is None else float(table.floor.mean())
    return Result(
        headline("mse", mse, standard_error, better="lower", floor=floor),
        summary | numbers,
        kept | arrays,
        error=parts.mse,
        squared=True,
    )


def units_drawn(card: view.Scorecard) -> str:
    """Return what standard errors are over, where all records share every release."""
    results = (trial.result for trial in card.trials)
    several = any(r is not None and (r.runs or 1) > 1 for r in results)
    return "records and releases" if several else "records"


def images(guesses: np.ndarray, targets: np.ndarray, table: Table) -> dict[str, Any]:
    """Return SSIM, PSNR and LPIPS of one guess per target, as pixels in [0, 1].

    Guesses, which are clipped, and targets are [targets, H, W, C], else there are no
    such numbers. Channels that were standardised are brought back.
    """
    if targets.ndim != 4:
        return {"ssim": None, "psnr_median": None, "lpips": None}
    weights = table.lpips
    if table.problem.ends is not None:
        low, high = (np.reshape(e, targets.shape[1:]) for e in table.problem.ends)
        guesses, targets = ((a - low) / (high - low) for a in (guesses, targets))
    clipped = np.clip(guesses, 0, 1)
    ssim, window = metrics.ssim(clipped, targets)
    psnr = np.asarray(metrics.psnr(clipped, targets))
    numbers: dict[str, Any] = {
        "ssim": float(np.mean(ssim)),
        "ssim_window": window,
        "psnr_median": float(np.median(psnr)),  # identical images are infinite
    }
    if isinstance(weights, str):
        return numbers | {"lpips": None, "lpips_unavailable": weights}
    distances = perceptual.lpips_images(weights, clipped, targets)
    return numbers | {"lpips": float(np.mean(distances))}


def against(
    limits: Iterable[Bound],
    mse: np.ndarray,
    errors: np.ndarray,
    floor: np.ndarray | None = None,
) -> dict[str, dict[str, Any]]:
    """Return how an attack stands to each bound, by name.

    `tightness` is mean error over mean bound: at least 1 where the bound applies.
    `share_below` counts targets whose error is below their own bound by more than 2
    s.e.; None where a target has one run, or the bound is on the average. `errors` are
    [targets, runs], `mse` [targets] their means. `rank_correlation` is that of the
    errors and the bounds of the targets, where a bound differs between them; in
    `rank_correlation_of_share` each error is a share of the `floor` [targets], the
    error of who ignores the release, so that a record that is hard for anybody to guess
    makes none.
    """
    runs, standing = errors.shape[1], dict[str, dict[str, Any]]()
    se = errors.std(1, ddof=1) / np.sqrt(runs) if runs > 1 else None
    for bound in limits:
        value, below = np.asarray(bound.value, float), None
        mean = float(value.mean())
        if value.ndim and se is not None and bound.name == "cramer_rao":
            below = float((mse + view.STANDARD_ERRORS * se < value).mean())
        tightness = float(mse.mean()) / mean if 0 < mean < math.inf else None
        standing[bound.name] = {"tightness": tightness, "share_below": below}
        if value.shape == mse.shape and bound.name == "cramer_rao":
            ranks = intervals.rank_correlation(value, mse)
            if ranks is not None:
                standing[bound.name]["rank_correlation"] = ranks._asdict()
            if floor is None or not (floor > 0).all():
                continue
            share = np.round(mse / floor, 6)  # the floor's own guess is 1 but for bits
            ranks = intervals.rank_correlation(value, share)
            if ranks is not None:
                standing[bound.name]["rank_correlation_of_share"] = ranks._asdict()
    return standing


# View ---------------------------------------------------------------------------------


def _lpips(result: AttackResult) -> str:
    if result.lpips is None:
        return "unavailable" if "lpips_unavailable" in result else "-"
    return f"{float(result.lpips):.3f}".removeprefix("0")


def _decibels(psnr: float | None) -> str:
    return "-" if psnr is None else f"{float(psnr):.1f}"


def _below(result: AttackResult) -> str:
    counts = result.get("below_bound")
    return "-" if counts is None else f"{counts['within_below']} of {counts['within']}"


REBUILT = (
    view.STRONGEST,
    Column("MSE ± s.e.", of_best(lambda r: with_error(r.mse, r.mse_se))),
    Column("LPIPS", of_best(_lpips), narrow=False),
    Column("floor", lambda line: number(line.card.floor.mse)),
)
NARROW = ("cramer_rao", "finite_prior", "closed_world")
BOUNDS = tuple(
    view.bound_column(n, narrow=n in NARROW, optional=n == "closed_world")
    for n in view.COLUMNS
)
TRIAL = {
    "MSE ± s.e.": lambda r: with_error(r.mse, r.mse_se),
    "median": lambda r: number(r["mse_median"]),
    "typical": lambda r: number(r.get("mse_typical")),
    "bias²": lambda r: number(r["bias2"]),
    "variance": lambda r: number(r["variance"]),
    "SSIM": lambda r: number(r.get("ssim")),
    "PSNR": lambda r: _decibels(r.get("psnr_median")),
    "LPIPS": _lpips,
    "wins": lambda r: rounded_share(r.get("win_rate")),
    "beats floor": lambda r: rounded_share(r["beats_floor"]),
    "below 1/dFIL": _below,
}
TRIAL_WORDS = (
    "median: over targets of the mean over runs; typical: over targets of the median "
    "over runs, which exists where the mean does not. wins: targets rebuilt more "
    "closely than the nearest-neighbour oracle does. beats floor: targets rebuilt "
    "better than by ignoring the release. below 1/dFIL: targets whose mean error lies "
    "below their bound, of those whose bound is below what any guess in the domain "
    "achieves."
)


def by_record(card: view.Scorecard) -> list[str]:
    """Return whether dFIL says whose records are rebuilt, one row per attack."""
    rows = []
    for trial in card.trials:
        if trial.result is None or trial.result.oracle:
            continue
        against = trial.result.get("against", {}).get("cramer_rao", {})
        if "rank_correlation" in against:
            names = "rank_correlation", "rank_correlation_of_share"
            texts = [view.interval(against.get(name)) for name in names]
            rows.append([trial.defense, trial.attack, *texts])
    if not rows:
        return []
    header = ["defense", "attack", "error with 1/dFIL [95%]"]
    return [
        view.grid([*header, "error as a share of the floor, with 1/dFIL [95%]"], rows),
        "Rank correlation over records: of each one's mean squared error, or of its "
        "share of what a guess without the release gets, with the bound 1/dFIL; above "
        "0, records that may leak more are rebuilt more closely.",
    ]


def units(card: view.Scorecard) -> str:
    """Return what mean squared errors of a card are averaged over, in words."""
    if card.data.coordinate == "pixel":
        return "MSE per pixel, pixels in [0, 1]"
    prepared = card.scenario.get("features") or {}
    by = ", features in standard deviations" if prepared.get("standardise") else ""
    return f"MSE per feature{by}"


def verdict(line: view.Line) -> tuple[str, str]:
    """Return how closely records are rebuilt: a few words, and sentences."""
    result, card = line.result, line.card
    assert result is not None
    mse, se = float(result.mse or 0), float(result.mse_se or 0)
    text = (
        f"Its picture of a record is off by {with_error(mse, se)} (mean squared error)"
    )
    if card.floor.mse is None:
        return f"error {number(mse)}", text + "."
    ground, spread = float(card.floor.mse), float(card.floor.mse_se or 0)
    text += (
        f"; a guess that ignores the release is off by {with_error(ground, spread)}."
    )
    most = max(beaten(line), default=0.0)
    if most:
        text += (
            f" Some attack rebuilds {most:.0%} of the records better than that guess."
        )
    ratio = mse / ground if ground else math.nan
    if ratio <= CLOSE:
        return "records are rebuilt closely", text
    if ratio <= LITTLE and _told_apart(line, mse, ground, math.hypot(se, spread)):
        little = "a little is learnt about records"
        return "records are rebuilt in part" if ratio <= PART else little, text
    bounded = any(float(b.mean) >= NEAR * ground for b in view.limits(line.defense))
    # half of the guesses of an attack that fails are better than the floor's, by
    # chance; few are better than an oracle's nearest neighbour, where that plays
    by = "beats_floor" if result.get("win_rate") is None else "win_rate"
    most = max(beaten(line, by=by), default=0.0)
    if most > SOME and result.get(by) != most and not bounded:
        # under such a bound some guesses are closer too, by chance
        return "nothing on average, and some records are rebuilt", text
    return view.NOT_TOLD_APART, text


def beaten(
    line: view.Line, *, oracles: bool = False, by: str = "beats_floor"
) -> list[float]:
    """Return the share of records that each attack on the release rebuilds well.

    That is, better than who ignores the release; `by` names another share.
    """
    return [
        float(trial.result[by])
        for trial in line.card.trials
        if trial.defense == line.label and trial.result is not None
        if trial.result.shown is None and not is_void(trial.flags)
        if oracles or not trial.result.oracle
        if trial.result.get(by) is not None
    ]


def _told_apart(line: view.Line, mse: float, ground: float, se: float) -> bool:
    """Return whether an attack is better than the guess, beyond two standard errors.

    Paired over targets where the card's arrays are at hand. Else by the means as if
    independent, or, since targets pair them, by most targets being rebuilt better.
    """
    assert line.best is not None
    assert line.result is not None
    errors, floor = cards.errors(line.card, line.best), cards.floor_errors(line.card)
    if errors is not None and floor is not None and len(errors) > 1:
        gap = floor - errors
        return bool(
            gap.mean() > view.STANDARD_ERRORS * gap.std(ddof=1) / len(gap) ** 0.5
        )
    half = 0.5 + view.STANDARD_ERRORS * math.sqrt(
        0.25 / max(1, line.result.targets or 1)
    )
    beaten = float(line.result.get("beats_floor") or 0)
    return ground - mse > view.STANDARD_ERRORS * se or beaten > half
