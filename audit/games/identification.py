"""The game of Hayes et al. (2023): name the target among candidates that all know.

The prior is uniform on M candidates and public, so that a blind guess is right once in
M, and reconstruction robustness bounds how often any attacker is. Which attacker comes
how near the bound depends on the candidates: where their contributions are not as far
apart as the worst case has it, nobody attains it. The best that anybody can do with
these candidates is therefore measured beside it: with exact likelihoods, whoever names
the likeliest candidate is right as often as its posterior says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from scipy import special

from audit.accounting import reconstruction_robustness
from audit.config.compose import Scenario
from audit.config.schema import Section
from audit.engine.shadow import Learner, sweep
from audit.errors import UserError
from audit.games import base, guarantees
from audit.games.base import Game, Result, Runs, Table, Trainings
from audit.games.guarantees import Guarantees
from audit.rng import stream
from audit.scorecard import view
from audit.scorecard.flags import SURE, Flag
from audit.scorecard.schema import AttackResult, Scorecard
from audit.scorecard.view import Column, Line, View, grid, number, of_best, with_error
from audit.statistics import intervals, metrics
from audit.types import (
    Alignment,
    Attack,
    Count,
    Defense,
    Iterative,
    TrainingSet,
)

MODELS = 16  # trained whole, for the utility
CONFIDENCE = 0.99  # of the printed intervals
CERTAIN = 0.999  # of a flag, one-sided: clean runs must not raise one by chance


class Candidates(Section):
    """Who the target may be; the candidates are the split `targets`, in its order."""

    # M: sizes of blocks of candidates in a row; the first is the row's prior
    priors: list[Count]


class Chance(NamedTuple):
    """A probability that is estimated."""

    value: float
    standard_error: float


def identification(*, candidates: Candidates) -> Game:
    """Name the target of each run among the candidates of its block."""
    priors = candidates.priors

    def check(scenario: Scenario) -> None:
        many = scenario.splits.targets
        for m in priors:
            if m < 2 or many % m:
                raise UserError(
                    f"candidates.priors={priors}: {m} is no size of equal "
                    f"blocks, two or more each, of {many} candidates (splits.targets)"
                )
        if len(set(priors)) < len(priors):
            raise UserError(f"candidates.priors={priors}: give each size once")

    def trainings(table: Table) -> Trainings:
        many = len(table.problem.splits.targets.y)
        return Trainings(
            {"target": min(MODELS, many)}, {"transcript": many * table.runs}
        )

    return Game(
        goal="identification",
        grants=base.granting(
            "fixed",
            "init",
            "public",
            "transcript",
            "mechanism",
            candidates="who the target may be, each as likely",
        ),
        release=release,
        account=partial(account, priors),
        play=partial(play, priors),
        view=VIEW,
        check=check,
        refuses=lambda model, defense: refuses(defense),
        sizes=lambda scenario: (
            f"{base.fixed_records(scenario)} fixed records and one of "
            f"{scenario.splits.targets} candidates"
        ),
        targets=True,
        trainings=trainings,
        trajectories=False,
    )


def refuses(defense: Defense) -> str | None:
    """Return why nobody can tell how likely a candidate makes the steps, or None."""
    mechanism = defense.mechanism
    if not isinstance(mechanism, Iterative) or "noisy_sgd" not in defense.traits:
        return "the defense takes no noised steps"
    noise, sampler = mechanism.noise, mechanism.sampler
    if noise.law.log_density is None or noise.at == "example":
        return "what its steps show has no known density"
    whole = noise.at == "batch" and sampler.presence != "certain"
    if sampler.presence is None or whole:
        return "its batches tell by the other records whether the target is in"
    return None


def release(key: Array, learner: Learner, table: Table) -> Runs[Alignment | None]:
    """Make `runs` transcripts with each candidate as the target; keep what they say.

    What a transcript says of the candidates is folded step by step inside its run.

    Returns:
      Models for the utility, and for every run [candidates * runs] its readings of all
      candidates; None where there is no density.
    """
    splits, engine = table.problem.splits, table.engine
    few = min(MODELS, len(splits.targets.y))
    some = TrainingSet(splits.fixed, base.take(splits.targets, slice(0, few)))
    models = engine.few(few)
    releases = base.train("models", key, learner, some, engine=models)
    if refuses(learner.defense) is not None:
        return Runs(learner, releases, None)
    records = TrainingSet(splits.fixed, base.repeated(splits.targets, table.runs))
    what, key = f"{learner.label}: transcripts", stream(key, "transcripts")
    readings = sweep(
        "alignment", learner, key, records, splits.targets, engine=engine, what=what
    )
    return Runs(learner, releases, readings)


def account(
    priors: list[int], key: Array, runs: Runs[Alignment | None], table: Table
) -> Guarantees:
    """Account for epsilon, and for the success of any attacker at every prior."""
    del key
    learner, n = runs.learner, len(table.problem.splits.fixed.y) + 1
    limits = guarantees.without_bounds(learner, n, table.delta)
    gamma, adjacency = bound(learner.defense, n, priors)
    fields: dict[str, Any] = {"success_bound": gamma, "adjacency": adjacency}
    if runs.evidence is not None:
        fields["optimum"] = {
            str(m): optimum(blocks(runs.evidence.ratio, m, table.runs))._asdict()
            for m in priors
        }
        fields["off"] = max(
            (_off(blocks(runs.evidence.ratio, m, table.runs), m, table.runs))
            for m in priors
        )
    return limits._replace(fields=fields)


def bound(
    defense: Defense, n: int, priors: Iterable[int]
) -> tuple[dict[str, float] | None, str | None]:
    """Return gamma(1/M) by M, and the adjacency of the privacy loss it is from.

    A run is compared with one without the target; where there is no theorem about that,
    with one that has another record in its place. None without any theorem.
    """
    for adjacency in ("add_remove", "replace_one"):
        loss = None if defense.pld is None else defense.pld(n, adjacency)
        if loss is not None:
            success = partial(reconstruction_robustness.success, loss=loss)
            return {str(m): success(1 / m) for m in priors}, adjacency
    return None, None


# What the transcripts say -------------------------------------------------------------


def blocks(each: Any, m: int, runs: int) -> np.ndarray:
    """Return of every run the numbers of its target's block: [T * runs, m].

    Args:
      each: [T * runs, T], runs of one target in a row.
      m: candidates in a block.
      runs: per target.
    """
    run = np.arange(len(each))[:, None]
    return np.asarray(each)[run, run // runs // m * m + np.arange(m)]


def place(many: int, m: int, runs: int) -> np.ndarray:
    """Return where in its block each run's target stands [many * runs]."""
    return np.arange(many * runs) // runs % m


def optimum(ratios: np.ndarray) -> Chance:
    """Return the success of the best attacker on these candidates, estimated.

    It is E max_j p(candidate j | transcript), the Bayes success under a uniform prior,
    exact also where a step depends on those before. Runs are a sample of transcripts,
    and nobody's guess is looked at.

    Args:
      ratios: [runs, m] log-likelihoods, up to what all candidates share.
    """
    likeliest = special.softmax(np.asarray(ratios, float), 1).max(1)
    return Chance(float(likeliest.mean()), metrics.standard_error(likeliest))


def _off(ratios: np.ndarray, m: int, runs: int) -> float:
    """Return by how many standard errors the likeliest is right too often or seldom.

    The likeliest candidate is the target with the probability that its posterior
    states, if the steps have the law that is accounted for. Where misses are so rare
    that their number is far from normal, a third of the gap counts as its variance, as
    in Bernstein's inequality: one miss proves nothing, and many do.
    """
    posterior = special.softmax(np.asarray(ratios, float), 1)
    likeliest, value = posterior.argmax(1), posterior.max(1)
    right = likeliest == place(len(ratios) // runs, m, runs)
    gap, variance = abs((right - value).sum()), (value * (1 - value)).sum()
    return float(gap / math.sqrt(max(variance, gap / 3))) if gap else 0.0


# Playing ------------------------------------------------------------------------------


def play(
    priors: list[int],
    key: Array,
    attack: Attack,
    runs: Runs[Alignment | None],
    limits: Guarantees,
    table: Table,
) -> Result:
    """Let one attack name the target of every run at every prior; count its hits."""
    assert runs.evidence is not None, "others are refused"
    state, diagnostics = base.fitted(key, attack, runs.learner, table)
    many = len(table.problem.splits.targets.y)
    keys = jax.random.split(stream(key, "guess"), many * table.runs)
    counts, share = [], np.zeros(0)
    for m in priors:
        scores = _scores(attack, state, keys, runs.evidence, m, table)
        right = scores.argmax(1) == place(many, m, table.runs)
        counts.append(_counted(m, right, limits.fields))
        if m == priors[0]:
            share = right.reshape(many, table.runs).mean(1)
    first = counts[0]
    numbers = {
        "success": first["success"],
        "success_se": first["success_se"],
        "targets": many,
        "runs": table.runs,
        "adjacency": limits.fields["adjacency"],
        "priors": counts,
        "fit": diagnostics,
    }
    headline = base.headline(
        "success",
        first["success"],
        first["success_se"],
        better="higher",
        floor=1 / priors[0],
    )
    raised = tuple(flags(counts, limits.fields["off"]))
    return Result(headline, numbers, {"success": share}, error=None, flags=raised)


def _scores(
    attack: Attack, state: Any, keys: Array, readings: Alignment, m: int, table: Table
) -> np.ndarray:
    """Return the attack's score of every candidate of its run's block [runs, m]."""
    model, each = attack.threat_model, table.runs
    targets = table.problem.splits.targets
    within = Alignment(*(blocks(a, m, each) for a in readings))
    block = np.arange(len(keys)) // each // m

    def one(key: Array, reading: Alignment, block: Any) -> Array:
        at = block * m + jax.numpy.arange(m)
        candidates = jax.tree.map(lambda a: jax.numpy.asarray(a)[at], targets)
        observation = base.observe(model, alignment=reading, candidates=candidates)
        return attack.guess(state, key, observation)

    return np.asarray(jax.jit(jax.vmap(one))(keys, within, block), float)


def _counted(m: int, right: np.ndarray, fields: Any) -> dict[str, Any]:
    """Return the hits at one prior, beside what is possible and what is blind."""
    k, n = int(right.sum()), len(right)
    low, high = intervals.clopper_pearson(k, n, CONFIDENCE)
    certain, _ = intervals.clopper_pearson(k, n, 1 - 2 * (1 - CERTAIN))
    bound = fields["success_bound"]
    return {
        "candidates": m,
        "success": k / n,
        "success_se": metrics.standard_error(right),
        "hits": k,
        "guesses": n,
        "low": float(low),
        "high": float(high),
        "confidence": CONFIDENCE,
        "low_999": float(certain),
        "optimum": fields["optimum"][str(m)],
        "bound": None if bound is None else bound[str(m)],
        "blind": 1 / m,
    }


def flags(counts: list[dict[str, Any]], off: float) -> Iterable[Flag]:
    """Yield what contradicts the accounting.

    Args:
      counts: from `_counted`, one per prior.
      off: standard errors by which the likeliest candidate is right too often, or too
        seldom.
    """
    for one in counts:
        if one["bound"] is None or one["low_999"] <= one["bound"]:
            continue
        text = (
            f"names {one['success']:.3f} of targets among {one['candidates']}, "
            f"{one['low_999']:.3f} at least at 99.9%; {one['bound']:.3f} is allowed"
        )
        yield Flag("success-above-bound", "error", text)
    if off > SURE:
        text = (
            f"the likeliest candidate is the target {off:.1f} standard errors more or "
            "less often than its likelihood says: the steps have another law"
        )
        yield Flag("optimum-off", "error", text)


# View ---------------------------------------------------------------------------------


def _first(result: AttackResult, cell: Callable[[dict[str, Any]], str]) -> str:
    return cell(result["priors"][0])


def _share(one: dict[str, Any]) -> str:
    return view.interval({**one, "value": one["success"]})


def _possible(one: dict[str, Any]) -> str:
    best = one["optimum"]
    return with_error(best["value"], best["standard_error"])


CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "named, 99%": _share,
    "optimum ± s.e.": _possible,
    "γ": lambda one: number(one["bound"]),
    "blind": lambda one: number(one["blind"]),
}


def _by_prior(card: Scorecard) -> list[str]:
    """Return the table of all priors, where there are several."""
    rows = [
        [t.defense, t.attack, str(one["candidates"]), *(c(one) for c in CELLS.values())]
        for t in card.trials
        if t.result is not None and len(t.result["priors"]) > 1
        for one in t.result["priors"]
    ]
    if not rows:
        return []
    return [
        "### By the size of the prior",
        grid(["defense", "attack", "M", *CELLS], rows),
    ]


def _verdict(line: Line) -> tuple[str, str]:
    """Return how often the target is named: a few words, and sentences."""
    result = line.result
    assert result is not None
    one = result["priors"][0]
    best = one["optimum"]["value"]
    text = (
        f"It names the target among {one['candidates']} in {one['success']:.1%} of "
        f"runs; the best possible with these candidates is {best:.1%}, a blind guess "
        f"is right in {one['blind']:.1%}"
    )
    if one["bound"] is not None:
        text += f", and accounting allows {one['bound']:.1%}"
    if one["low"] <= one["blind"]:
        return view.NOT_TOLD_APART, text + "."
    return f"named in {one['success']:.0%}", text + "."


VIEW = View(
    units="named: share of runs whose target is named, Clopper-Pearson 99%; optimum: "
    "the best possible with these candidates, by their exact likelihoods; γ: the most "
    "that accounting allows; blind: one in M",
    attack=(
        view.STRONGEST,
        *(
            Column(header, of_best(partial(_first, cell=cell)))
            for header, cell in CELLS.items()
        ),
    ),
    trial={header: partial(_first, cell=cell) for header, cell in CELLS.items()},
    trial_sections=_by_prior,
    verdict=_verdict,
    bound_table=False,
    spare=True,
)
