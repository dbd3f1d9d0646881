"""Audits of a claimed epsilon with canaries: many runs of two worlds, or one run.

`canary`: one canary is in half of the runs and not in the others; a test tells the
worlds apart. `one_run`: many canaries, each in with chance 1/2, in every run; each run
is an audit of its own (Steinke et al. 2023). Neighbours are add-or-remove, and so is
the epsilon that stands above the lower bounds. An audit whose lower end exceeds the
accountant's upper one by more than chance has proofs a fault: in the noise, the clip,
the sampler, the accounting, or the audit itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import special  # scipy.stats takes half a second to import

from audit.accounting import rdp, tradeoff
from audit.config.compose import Scenario
from audit.config.schema import Section
from audit.engine.shadow import Learner, sweep
from audit.errors import UserError
from audit.games import base, guarantees
from audit.games.base import Game, Problem, Result, Runs, Table, Trainings
from audit.games.guarantees import Guarantees
from audit.games.membership_rates import plain
from audit.mechanisms import canaries as planting
from audit.rng import stream
from audit.scorecard.flags import Flag
from audit.scorecard.schema import AttackResult, Scorecard
from audit.scorecard.view import Cell, Column, Line, View, attack_name, number, of_best
from audit.statistics import epsilon_lower, epsilon_lower_one_run, roc
from audit.types import (
    Attack,
    Count,
    Defense,
    Examples,
    Iterative,
    Positive,
    Splits,
    ThreatModel,
    TrainingSet,
)

MODELS = 16  # trained whole, for the utility
TOGETHER = 100_000  # runs of one sweep
CONFIDENCE = 0.95
SURE = 0.999  # of a flag: twenty clean runs must not raise one by chance
THRESHOLD = 0.0  # of a log-likelihood ratio: fixed in advance
# How the threshold of each method's row is chosen. Without a Gaussian claim the tails
# tell most, and where they begin is not known in advance.
SELECTION: dict[str, Any] = {
    "gdp": "fixed",
    "clopper_pearson": "bonferroni",
    "bayesian": "bonferroni",
}
SHARE = 0.3  # of canaries guessed in one run: fixed in advance
SHUFFLES = 9  # of the null control of one run
POINTS = 200  # of a stored ROC


class Canaries(Section):
    """What is planted; see `mechanisms.canaries.plant`."""

    kind: Literal["gradient", "input", "blank"] = "gradient"
    count: Count = 1  # in one run
    norm: Positive = 1000.0  # of a gradient canary's gradient, before the clip
    audits: Count = 1  # independent repetitions; the first is the row


class Worlds(NamedTuple):
    """Runs of both worlds, made for the attacks that are shown them."""

    canary: Examples  # [1, ...]
    shape: tuple[int, int, int]  # audits, 2, runs; with the canary first
    ratios: Callable[[], np.ndarray]  # log-likelihood ratios of `shape`
    parameters: Callable[[], Any]  # released ones, leading axis all runs in this order


class Bits(NamedTuple):
    """Which canaries were in."""

    canaries: Examples  # [m, ...]
    member: np.ndarray  # [audits, m] bool


def canary(*, canaries: Canaries) -> Game:
    """Tell runs with one canary from runs without it."""

    def check(scenario: Scenario) -> None:
        if canaries.count != 1:
            raise UserError(
                f"canaries.count={canaries.count}: the game canary has one per run"
            )
        if scenario.spec.runs < 2:
            raise UserError(
                f"runs={scenario.spec.runs}: the game canary needs at least 2, for "
                f"its control compares one half of the runs without it with the other"
            )

    def trainings(table: Table) -> Trainings:
        both = 2 * table.runs * canaries.audits
        return Trainings({"target": MODELS}, {"transcript": both})

    game = _game(canaries, two_worlds, tell_apart, check, TWO_WORLDS)
    grants = {**game.grants, **base.granting("transcript")}
    return game._replace(trainings=trainings, grants=grants, refuses=_refuses)


def _refuses(model: ThreatModel, defense: Defense) -> str | None:
    """Return why what an attack is shown of a run is not what is accounted for."""
    if not base.shown(model, "ratios"):
        return None
    if base.shown(model, "params"):
        return "transcripts and released models are of different runs; see one of them"
    mechanism = defense.mechanism
    if isinstance(mechanism, Iterative) and mechanism.sampler.fisher_factor is not None:
        return "a transcript shows who is in a batch, which epsilon takes for hidden"
    return None


def one_run(*, canaries: Canaries) -> Game:
    """Tell which of many canaries were in one run."""

    def check(scenario: Scenario) -> None:
        if canaries.count < 2:
            raise UserError(
                f"canaries.count={canaries.count}: the game one_run needs at least 2"
            )
        if scenario.spec.runs != 1:
            raise UserError(
                f"runs={scenario.spec.runs}: the game one_run has one run per audit; "
                f"canaries.audits repeats it"
            )

    game = _game(canaries, single_runs, tell_members, check, ONE_RUN)
    audits = Trainings({"target": canaries.audits}, {}, 1)
    return game._replace(trainings=lambda table: audits)


def _game(
    canaries: Canaries, release: Callable, play: Callable, check: Callable, view: View
) -> Game:
    def checked(scenario: Scenario) -> None:
        check(scenario)
        if not scenario.spec.task.classes:
            raise UserError("task.classes=[]: canaries need labels that are classes")

    def sizes(scenario: Scenario) -> str:
        fixed, count = base.fixed_records(scenario), canaries.count
        plural = "y" if count == 1 else "ies"
        return f"{fixed} fixed records and {count} {canaries.kind} canar{plural}"

    def account(key: Array, runs: Runs, table: Table) -> Guarantees:
        """Account for epsilon, every slot counted; no guess is at a record."""
        n = records(canaries, table.problem.splits)
        return Guarantees(
            epsilon=guarantees.epsilon(runs.learner.defense, n, table.delta)
        )

    return Game(
        goal="membership",
        grants=base.granting(
            "fixed",
            "init",
            "public",
            canaries="which records were planted",
        ),
        release=partial(release, canaries),
        account=account,
        play=play,
        view=view,
        check=checked,
        fits=partial(fits, canaries),
        task=lambda task: planted_task(task, canaries.count, canaries.norm),
        records=partial(records, canaries),
        sizes=sizes,
        trajectories=False,
    )


# one object per task with canaries, so that other seeds find their programs
planted_task = functools.lru_cache(maxsize=32)(planting.plant)


def records(canaries: Canaries, splits: Splits) -> int:
    """Return how many records one run has, every canary's slot counted."""
    return len(splits.fixed.y) + canaries.count


def planted(canaries: Canaries, problem: Problem) -> Examples:
    """Return the canaries [m, ...]; UserError if the pool has too few for them."""
    pool = problem.splits.pool
    try:
        return planting.records(canaries.kind, canaries.count, problem.task, pool)
    except ValueError as error:
        raise UserError(f"canaries.count={canaries.count}: {error}") from None


def fits(canaries: Canaries, learner: Learner, table: Table) -> None:
    """Refuse, by UserError, too few records, or a defense without empty slots.

    One that fits an offset along the way adds it to nobody's gradient too: an empty
    slot contributes, and the worlds differ by more than the one contribution that the
    accounting and the attacks compare.
    """
    planted(canaries, table.problem)
    defense = learner.defense
    if "noisy_sgd" not in defense.traits:
        raise UserError(
            f"defense.{learner.label}: sums no gradients a canary could be in; leave "
            "it out"
        )
    if isinstance(defense.mechanism, Iterative) and defense.mechanism.refresh:
        raise UserError(
            f"defense.{learner.label}: adds to every gradient, so that a canary's slot "
            "contributes without its canary; leave it out"
        )


# Two worlds ---------------------------------------------------------------------------


def two_worlds(
    canaries: Canaries, key: Array, learner: Learner, table: Table
) -> Runs[Worlds]:
    """Make models for the utility, and `runs` runs of each world for every audit.

    Of attackers who see transcripts the ratio of every run is folded step by step
    inside the run: no transcript exists.
    """
    canary, audits = planted(canaries, table.problem), canaries.audits
    fixed, engine = table.problem.splits.fixed, table.engine

    def records(member: np.ndarray) -> TrainingSet:
        """Return the records of every run, the canary or nobody in the last slot."""
        slots = planting.present(base.repeated(canary, len(member)), member)
        return TrainingSet(fixed, slots)

    some, few = records(np.ones(MODELS, bool)), engine.few(MODELS)
    releases = base.train("models", key, learner, some, engine=few)
    together = min(audits, max(1, TOGETHER // (2 * table.runs)))
    quiet = engine._replace(report=base.silent)

    def each(method: str, name: str, *more: Any) -> list[Any]:
        """Return what a method gives of all runs, of some audits at a time."""
        root, what = stream(key, name), f"{learner.label}: {name}"
        engine.report(what, 0, audits)
        parts = []
        for start in range(0, audits, together):
            number = min(together, audits - start)
            both = records(np.tile(np.repeat([True, False], table.runs), number))
            run_key = jax.random.fold_in(root, start)
            parts.append(sweep(method, learner, run_key, both, *more, engine=quiet))
            engine.report(what, start + number, audits)
        return parts

    shape = audits, 2, table.runs

    def ratios() -> np.ndarray:
        parts = each("log_likelihood", "transcripts", canary)
        return np.concatenate(parts)[:, 0].reshape(shape)

    def parameters() -> Any:
        parts = each("train", "released models")
        return jax.tree.map(lambda *a: np.concatenate(a), *parts).params

    worlds = Worlds(canary, shape, functools.cache(ratios), functools.cache(parameters))
    return Runs(learner, releases, worlds)


def tell_apart(
    key: Array, attack: Attack, runs: Runs[Worlds], limits: Guarantees, table: Table
) -> Result:
    """Let one attack score every run of both worlds; return what that proves."""
    worlds, model = runs.evidence, attack.threat_model
    state, diagnostics = base.fitted(key, attack, runs.learner, table)
    keys = jax.random.split(stream(key, "guess"), math.prod(worlds.shape))
    shown: dict[str, Any] = {}
    if ratio := base.shown(model, "ratios"):
        shown["ratios"] = worlds.ratios().reshape(-1)
    if base.shown(model, "params"):
        shown["params"] = worlds.parameters()

    def one(key: Array, shown: dict[str, Any]) -> Array:
        observation = base.observe(model, candidates=worlds.canary, **shown)
        return jnp.reshape(attack.guess(state, key, observation), ())

    scores = np.asarray(jax.jit(jax.vmap(one))(keys, shown), float)
    allowed = claim(runs, limits, table, 1)
    return proved_by_worlds(
        scores.reshape(worlds.shape), allowed, diagnostics, ratio=ratio
    )


# One run ------------------------------------------------------------------------------


def single_runs(
    canaries: Canaries, key: Array, learner: Learner, table: Table
) -> Runs[Bits]:
    """Train once per audit, each canary in with chance 1/2 of its own."""
    many, audits = planted(canaries, table.problem), canaries.audits
    fixed, what = table.problem.splits.fixed, f"{learner.label}: models"
    shape = (audits, canaries.count)
    member = np.asarray(jax.random.bernoulli(stream(key, "members"), shape=shape))
    if member[0].all() or not member[0].any():
        raise UserError(
            f"canaries.count={canaries.count}: with this seed all of them are in, or "
            f"all are out; take more canaries or another seed"
        )
    engine, each = table.engine.few(1)._replace(report=base.silent), []
    table.engine.report(what, 0, audits)
    for i in range(audits):
        run_key = jax.random.fold_in(stream(key, "models"), i)
        slots = planting.present(many, member[i])
        joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), fixed, slots)
        records = TrainingSet(joined, None)
        each.append(sweep("train", learner, run_key, records, engine=engine))
        table.engine.report(what, i + 1, audits)
    releases = jax.tree.map(lambda *a: np.concatenate(a), *each)
    return Runs(learner, releases, Bits(many, member))


def tell_members(
    key: Array, attack: Attack, runs: Runs[Bits], limits: Guarantees, table: Table
) -> Result:
    """Let one attack score every canary of every run; return what that proves."""
    bits, model = runs.evidence, attack.threat_model
    state, diagnostics = base.fitted(key, attack, runs.learner, table)

    def one(key: Array, params: Any) -> Array:
        observation = base.observe(model, params=params, candidates=bits.canaries)
        return attack.guess(state, key, observation)

    keys = jax.random.split(stream(key, "guess"), len(bits.member))
    scores = np.asarray(jax.jit(jax.vmap(one))(keys, runs.releases.params), float)
    allowed = claim(runs, limits, table, bits.member.shape[1])
    return proved_by_run(scores, bits.member, allowed, diagnostics)


# What is proved -----------------------------------------------------------------------


class EpsilonClaim(NamedTuple):
    """What the accountants say of one defense."""

    delta: float
    epsilon: float | None  # the tightest; None = no theorem
    rdp: float | None
    loss: Any  # reads like a PrivacyLossDistribution; None = there is none

    @property
    def gaussian(self) -> bool:
        """Whether the claim is a Gaussian one, mu-GDP."""
        return isinstance(self.loss, rdp.GaussianPrivacy)

    @property
    def upper(self) -> float:
        """The epsilon that no lower end may exceed."""
        return math.inf if self.epsilon is None else self.epsilon


def claim(runs: Runs, limits: Guarantees, table: Table, canaries: int) -> EpsilonClaim:
    """Return what is claimed of the fixed records and the canaries, add-or-remove."""
    pld, n = runs.learner.defense.pld, len(table.problem.splits.fixed.y) + canaries
    loss = None if pld is None else pld(n, "add_remove")
    if limits.epsilon is None:
        return EpsilonClaim(0.0, None, None, loss)
    upper = limits.epsilon["add_remove"]
    values = [v for v in (upper["tight"], upper["rdp"]) if v is not None]
    least = min(values, default=None)
    return EpsilonClaim(limits.epsilon["delta"], least, upper["rdp"], loss)


def proved_by_worlds(
    scores: np.ndarray,
    claim: EpsilonClaim,
    diagnostics: dict[str, Any] | None = None,
    *,
    ratio: bool = True,
) -> Result:
    """Return what the scores of both worlds prove, and arrays for the figure.

    Args:
      scores: [audits, 2, runs], with the canary first; the first audit is the row, all
        of them count how often a lower end exceeds the upper one, or the ROC its band.
      claim: of the accountants.
      diagnostics: of the attack's fit.
      ratio: whether scores are log-likelihood ratios, which have a threshold that is
        known in advance.
    """
    defaults = SELECTION if ratio else dict.fromkeys(SELECTION, "bonferroni")
    selections = epsilon_lower.SELECTIONS if ratio else epsilon_lower.SELECTIONS[1:]
    methods = [m for m in epsilon_lower.METHODS if m != "gdp" or claim.gaussian]
    main: Any = "gdp" if claim.gaussian else "clopper_pearson"
    members, nonmembers = scores[0]

    def lower(
        both: Any, method: Any, selection: Any = None, confidence: Any = CONFIDENCE
    ) -> epsilon_lower.Lower:
        """Return a lower end; by default the one that the row of the table prints."""
        selection = selection or defaults[method]
        return epsilon_lower.lower(
            *both,
            delta=claim.delta,
            method=method,
            selection=selection,
            threshold=THRESHOLD if selection == "fixed" else None,
            confidence=confidence,
        )

    proofs = {m: {s: lower(scores[0], m, s) for s in selections} for m in methods}
    above = {  # the posterior promises no confidence
        m: sum(lower(both, m).epsilon > claim.upper for both in scores)
        for m in methods
        if m != "bayesian"
    }
    band = [_in_band(present, absent, claim) for present, absent in scores]
    summary = roc.summarise(members, nonmembers, fprs=roc.FPRS)
    numbers = {
        "auc": summary.auc._asdict(),
        "advantage": 2 * summary.accuracy[-1].value - 1,
        "operating": [
            {"nominal": fpr, **({"unavailable": o} if isinstance(o, str) else plain(o))}
            for fpr, o in zip(roc.FPRS, summary.operating, strict=True)
        ],
        "runs": members.size,
        **_proved(proofs, main, claim),
        "selection": defaults,
        "epsilon_lower": proofs[main][defaults[main]].epsilon,
        "largest": epsilon_lower.largest(members, nonmembers, delta=claim.delta).epsilon
        if claim.gaussian
        else None,
        "audits": len(scores),
        "above_upper": above,
        "in_band": band[0],
        "above_band": sum(b["above"] for b in band) if claim.gaussian else None,
        "fit": diagnostics or {},
    }
    null, sure = (
        lower(both, main, confidence=SURE).epsilon
        for both in (np.array_split(nonmembers, 2), scores[0])
    )
    return _result(numbers, members, nonmembers, claim, null, sure)


def _proved(proofs: Any, main: str, claim: EpsilonClaim) -> dict[str, Any]:
    """Return both sides in numbers; `proofs` are by method and selection."""
    lower = {
        method: {
            selection: {k: v for k, v in proof._asdict().items() if v is not None}
            for selection, proof in by.items()
        }
        for method, by in proofs.items()
    }
    return {
        "delta": claim.delta,
        "upper": claim.epsilon,
        "upper_rdp": claim.rdp,
        "lower": lower,
        "method": main,
    }


def _in_band(members: np.ndarray, nonmembers: np.ndarray, claim: EpsilonClaim) -> Any:
    """Return whether the ROC is the claimed Gaussian one, within its 95% band.

    Both empirical laws are within e of the true ones at once (Dvoretzky, Kiefer and
    Wolfowitz; Massart 1990), so the ROC is within e of the closed form both ways.
    None where no closed form is claimed. A canary weaker than the worst case may lie
    below; above, nothing may.
    """
    if not claim.gaussian:
        return None
    curve, spread = roc.roc(members, nonmembers), math.log(2 / ((1 - CONFIDENCE) / 2))
    e_tpr, e_fpr = (math.sqrt(spread / 2 / a.size) for a in (members, nonmembers))
    most = claim.loss.tpr(np.minimum(curve.fpr + e_fpr, 1)) + e_tpr
    least = claim.loss.tpr(np.maximum(curve.fpr - e_fpr, 0)) - e_tpr
    return {
        "above": bool((curve.tpr > most).any()),
        "below": bool((curve.tpr < least).any()),
    }


def _result(
    numbers: dict[str, Any],
    members: np.ndarray,
    nonmembers: np.ndarray,
    claim: EpsilonClaim,
    null: float,
    sure: float,
) -> Result:
    """Return a result with the ROC of the row's scores, [m] and [n], and its flags.

    `null` is proved where nothing differs; `sure` of the row, with confidence `SURE`.
    """
    proved, flags = numbers["epsilon_lower"], []
    if null > 0:
        text = "the audit finds a leak between runs that do not differ; it is void"
        flags.append(Flag("null-leak", "error", text))
    counts = {NAMES[m]: above for m, above in numbers["above_upper"].items()}
    if numbers["above_band"] is not None:
        counts["ROC band"] = numbers["above_band"]
    many = _more_than_chance(counts, numbers["audits"])
    if sure > claim.upper or many:
        text = "more leaks than is accounted for: noise, clip, sampler or accountant"
        flags.append(Flag("lower-above-upper", "error", text + many))
    elif proved > claim.upper:
        text = "above the upper end at 95%, not at 99.9%: as chance does now and then"
        flags.append(Flag("lower-above-upper-by-chance", "note", text))
    if claim.epsilon is None:
        flags.append(Flag("no-epsilon", "note", "no accountant bounds this defense"))
    curve = roc.roc(members, nonmembers)
    fpr = np.geomspace(0.5 / len(nonmembers), 1, POINTS)
    at = np.searchsorted(curve.fpr, fpr, side="right") - 1
    arrays = {"fpr": fpr, "tpr": curve.tpr[at]}
    if claim.epsilon is not None:
        bound = tradeoff.tpr_from_epsilon(fpr, claim.epsilon, claim.delta)
        arrays["most_epsilon"] = bound
    if claim.loss is not None:
        arrays["most_loss"] = tradeoff.tpr_from_loss(fpr, claim.loss)
    headline = base.headline("epsilon_lower", proved, None, better="higher", floor=0.0)
    return Result(headline, numbers, arrays, error=None, flags=tuple(flags))


def _more_than_chance(counts: dict[str, int], audits: int) -> str:
    """Return which counts of audits above the claim chance does not explain.

    An audit is above with a chance of 1 - CONFIDENCE at most, whatever the others are,
    so that a count has a binomial tail. The counts share the level of one flag.
    """
    level = (1 - SURE) / len(counts)
    clauses = [
        f" ({what}: {count} of {audits} audits are above)"
        for what, count in counts.items()
        if special.bdtrc(count - 1, audits, 1 - CONFIDENCE) < level
    ]
    return "".join(clauses)


def proved_by_run(
    scores: np.ndarray,
    member: np.ndarray,
    claim: EpsilonClaim,
    diagnostics: dict[str, Any] | None = None,
) -> Result:
    """Return what canaries in single runs prove, each run an audit of its own.

    The row is the median over audits, the lower of both where their number is even: it
    exceeds epsilon where more than half of the audits do, which is far rarer than that
    one does. Figures, and every way to choose the guesses, are of the first audit.

    Args:
      scores: [audits, m].
      member: [audits, m] who was in.
      claim: of the accountants.
      diagnostics: of the attack's fit.
    """
    lower, delta = epsilon_lower_one_run.lower, claim.delta
    known = epsilon_lower_one_run.METHODS
    methods = [m for m in known if m == "one_run" or claim.gaussian]

    def fixed(
        scores: Any, member: Any, method: Any, confidence: Any = CONFIDENCE
    ) -> Any:
        """Return what a number of guesses that is fixed in advance proves."""
        how: dict[str, Any] = {"selection": "fixed", "share": SHARE}
        return lower(
            scores, member, delta=delta, method=method, confidence=confidence, **how
        )

    every = {
        m: [fixed(*one, m) for one in zip(scores, member, strict=True)] for m in methods
    }
    row = scores[0], member[0]
    proofs = {
        m: {"fixed": every[m][0]}
        | {
            s: lower(*row, delta=delta, method=m, selection=s)
            for s in epsilon_lower.SELECTIONS[1:]
        }
        for m in methods
    }
    main = methods[-1]
    first = scores[0][member[0]], scores[0][~member[0]]
    epsilons = {m: np.array([one.epsilon for one in every[m]]) for m in methods}
    middle = (len(scores) - 1) // 2
    medians = {m: float(np.sort(e)[middle]) for m, e in epsilons.items()}
    numbers = {
        "auc": roc.auc(*first)._asdict(),
        "canaries": scores.shape[1],
        "runs": 1,
        **_proved(proofs, main, claim),
        "epsilon_lower": medians[main],
        "epsilon_lower_median": medians,
        "audits": len(scores),
        "above_upper": {m: int((e > claim.upper).sum()) for m, e in epsilons.items()},
        "in_band": None,
        "above_band": None,
        "fit": diagnostics or {},
    }
    # bits that have nothing to do with the scores; one shuffle alone looks like a leak
    # now and then
    rng = np.random.default_rng(0)
    shuffled = [
        fixed(scores[0], rng.permutation(member[0]), main, SURE).epsilon
        for _ in range(SHUFFLES)
    ]
    null, sure = float(np.median(shuffled)), fixed(*row, main, SURE).epsilon
    return _result(numbers, *first, claim, null, sure)


# View ---------------------------------------------------------------------------------

NAMES = {
    "clopper_pearson": "Clopper-Pearson",
    "gdp": "GDP",
    "bayesian": "Bayesian",
    "one_run": "one run",
    "one_run_fdp": "one run, f-DP",
}
UPPER_WORDS = (
    "upper: the tighter of privacy-loss distribution and Renyi curve. GDP and f-DP "
    "hold of Gaussian claims only, and are left out elsewhere; the Bayesian number is "
    "credible, not a confidence bound."
)


def _printed(epsilon: Any) -> str:
    return "none" if epsilon is None else f"{float(epsilon):.3f}"


def _by(result: AttackResult, method: str) -> str:
    lower, how = result["lower"].get(method), result["selection"][method]
    return "-" if lower is None else _printed(lower[how]["epsilon"])


def _median(result: AttackResult, method: str) -> str:
    median = result["epsilon_lower_median"].get(method)
    return "-" if median is None else _printed(median)


def _ratio(result: AttackResult) -> str:
    if not result["upper"]:
        return "-"
    return f"{float(result.epsilon_lower or 0) / float(result['upper']):.2f}"


def _above(result: AttackResult) -> str:
    return f"{result['above_upper'][result['method']]} of {result['audits']}"


def _auc(result: AttackResult) -> str:
    auc = result["auc"]
    low, value, high = (float(auc[k]) for k in ("low", "value", "high"))
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def _tables(card: Scorecard) -> list[str]:
    """Return every estimator and every way to pay for its threshold, and the rates."""
    lowers, rates, largest = [], [], []
    for trial in card.trials:
        if trial.result is None:
            continue
        who = f"| {trial.defense} | {trial.attack} |"
        for method, by in trial.result["lower"].items():
            every = (by.get(how) for how in epsilon_lower.SELECTIONS)
            cells = ["-" if one is None else _counted(one) for one in every]
            lowers.append(f"{who} {NAMES[method]} | {' | '.join(cells)} |")
        if trial.result.get("largest") is not None:
            largest.append(f"{who} {_printed(trial.result['largest'])} |")
        rates += [f"{who} {_rate(o)} |" for o in trial.result.get("operating", [])]
    if not lowers:
        return []
    header = "| defense | attack | estimator | fixed | split | Bonferroni |"
    parts = ["### Lower ends of epsilon"]
    parts.append("\n".join([f"{header} many splits |", "|---" * 7 + "|", *lowers]))
    if largest:
        parts.append("### As audits of final models print it, and no bound")
        header = "| defense | attack | largest GDP ε over all thresholds |"
        parts.append("\n".join([header, "|---" * 3 + "|", *largest]))
    if rates:
        header = "| defense | attack | FPR | realised | TPR, 95% |"
        parts.append("### Rates, threshold chosen on targets")
        parts.append("\n".join([header, "|---" * 5 + "|", *rates]))
    return parts


def _counted(one: dict[str, Any]) -> str:
    counts = (
        f"{one['tp']}/{one['p']}, {one['fp']}/{one['n']}"
        if "tp" in one
        else f"{one['right']}/{one['guesses']}"
    )
    return f"{_printed(one['epsilon'])} ({counts})"


def _rate(point: dict[str, Any]) -> str:
    nominal = f"{float(point['nominal']):.2%}"
    if "unavailable" in point:
        return f"{nominal} | - | {point['unavailable']}"
    fpr, tpr = point["fpr"], point["tpr"]
    value, low, high = (f"{float(tpr[k]):.4f}" for k in ("value", "low", "high"))
    realised = f"{float(fpr['value']):.4%} ({fpr['k']}/{fpr['n']})"
    return f"{nominal} | {realised} | {value} [{low}, {high}] ({tpr['k']}/{tpr['n']})"


def _verdict(line: Line) -> tuple[str, str]:
    """Return what is proved of epsilon: a few words, and sentences."""
    result = line.result
    assert result is not None
    proved = number(result.epsilon_lower, 2)
    text = f"It proves that ε is at least {proved}"
    if result.get("upper") is not None:
        text += f"; accounting allows {number(result['upper'], 2)}"
    return f"ε is at least {proved}", text + "."


def _view(cells: dict[str, Cell], units: str) -> View:
    more: dict[str, Cell] = {"runs a side": lambda r: str(r.runs), "AUC, 95%": _auc}
    return View(
        units=units,
        attack=(
            Column("attack", attack_name, right=False),
            *(Column(header, of_best(cell)) for header, cell in cells.items()),
        ),
        trial=cells | more,
        trial_words=UPPER_WORDS,
        verdict=_verdict,
        bound_table=False,
        trial_sections=_tables,
        spare=True,
    )


TWO_WORLDS = _view(
    {
        "ε upper": lambda r: _printed(r["upper"]),
        "RDP": lambda r: _printed(r["upper_rdp"]),
        "ε lower, GDP": partial(_by, method="gdp"),
        "CP": partial(_by, method="clopper_pearson"),
        "Bayes": partial(_by, method="bayesian"),
        "lower/upper": _ratio,
        "above": _above,
    },
    "ε upper, lower: of the add-or-remove game at the card's delta; lower ends hold "
    "with 95% each: GDP's threshold is fixed in advance where scores are likelihood "
    "ratios, all others are paid for by Bonferroni; above: audits whose lower end "
    "exceeds the upper one",
)
ONE_RUN = _view(
    {
        "ε upper": lambda r: _printed(r["upper"]),
        "RDP": lambda r: _printed(r["upper_rdp"]),
        "ε lower, f-DP": partial(_median, method="one_run_fdp"),
        "one run": partial(_median, method="one_run"),
        "above": _above,
    },
    "ε upper, lower: of the add-or-remove game at the card's delta; lower ends hold "
    "with 95% each, guesses fixed in advance, median over audits; above: audits whose "
    "lower end exceeds the upper one",
)
