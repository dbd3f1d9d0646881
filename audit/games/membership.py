"""Membership games: was a record in the training set (Carlini et al. 2022).

The fixed records are the candidates, each in exactly half of the `runs` target models
(`designs`). Before it sees one, an attacker may hold what its own shadow models say,
trained by the same engine on half-in designs of the same candidates, with its own coins
and noise. Some of them (`calibration`) are kept back and attacked as the targets are:
thresholds chosen there are what a real attacker can deploy.

Who is a candidate is public; who is a member never leaves the referee.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from annotated_types import Interval
from jax import Array

from audit.accounting import rdp, tradeoff
from audit.config.compose import Scenario
from audit.config.schema import Section
from audit.data import half_in
from audit.data.half_in import Design
from audit.engine.shadow import Learner
from audit.engine.signals import Shadows, Signals, of_release, with_release
from audit.errors import UserError
from audit.games import base, guarantees, membership_rates
from audit.games.base import Game, Result, Runs, Table, Trainings, take
from audit.games.guarantees import Guarantees
from audit.games.membership_rates import CURVE
from audit.mechanisms.batch import gathered
from audit.rng import stream
from audit.scorecard import view
from audit.scorecard.flags import is_void
from audit.scorecard.schema import AttackResult, Scorecard
from audit.scorecard.view import Column, Line, View, interval, number, of_best, percent
from audit.statistics import intervals, roc
from audit.types import Attack, Count, NonNegativeInt, Splits, TrainingSet

CLOSE = 0.25  # of a coin's errors: who took part is told
DELTAS = np.geomspace(1e-12, 0.1, 45)  # at which a Renyi curve is read


class Membership(Section):
    """What is made for the attackers."""

    shadows: Count = 64  # reference models; each candidate is in half of them
    calibration: NonNegativeInt = 16  # more, on which thresholds are chosen; 0 = none
    queries: Annotated[int, Interval(ge=1, le=9)] = 1  # an image and its moves


class MembershipModels(NamedTuple):
    """What target models and the attacker's own models say of the candidates."""

    targets: Shadows  # member: the referee's secret
    references: Shadows
    calibration: Shadows


def membership(*, membership: Membership = Membership()) -> Game:  # noqa: B008
    """Tell who took part: each candidate, or an empty slot in its place."""
    return _game(half_in.in_out, membership)


def membership_replace_one(
    *,
    membership: Membership = Membership(),  # noqa: B008
) -> Game:
    """Tell who took part: one of each pair of candidates."""
    return _game(half_in.replace_one, membership)


def _game(design: Design, settings: Membership) -> Game:
    def sizes(scenario: Scenario) -> str:
        return (
            f"{base.fixed_records(scenario)} candidates, each in half of "
            f"{scenario.spec.runs} target, {settings.shadows} shadow and "
            f"{settings.calibration} calibration models"
        )

    def trainings(table: Table) -> Trainings:
        shadows = settings.shadows + settings.calibration
        largest = max(table.runs, shadows)
        return Trainings({"target": table.runs}, {"shadow": shadows}, largest)

    return Game(
        goal="membership",
        grants=base.granting(
            "label",
            "init",
            "public",
            signals="the model's confidence in any record's label",
            shadows="what models trained like it, with and without the record, say",
        ),
        release=partial(release, design, settings),
        account=partial(account, design),
        play=play,
        view=VIEW,
        floor="coin",
        floor_error=lambda table: np.full(len(table.problem.splits.fixed.y), 0.5),
        records=partial(in_one_run, design),
        fits=partial(fits, design, settings),
        compare=membership_rates.compared,
        sizes=sizes,
        trainings=trainings,
    )


def in_one_run(design: Design, splits: Splits) -> int:
    """Return how many records one run has, empty slots counted."""
    return design.slots(len(splits.fixed.y))


def fits(design: Design, settings: Membership, learner: Learner, table: Table) -> None:
    """Refuse, by UserError, a defense or settings the game cannot be played with."""
    fixed, where = table.problem.splits.fixed, f"defense.{learner.label}"
    n, slots = len(fixed.y), in_one_run(design, table.problem.splits)
    traits = learner.defense.traits
    counts = {"runs": table.runs, "membership.shadows": settings.shadows}
    counts["membership.calibration"] = settings.calibration
    for name, models in counts.items():
        if models % 2:
            raise UserError(
                f"{name}={models}: every candidate is in exactly half of the models; "
                f"give an even number"
            )
    if settings.queries > 1 and fixed.x.ndim != 4:
        raise UserError(f"membership.queries={settings.queries}: only images are moved")
    if not design.empty and n % 2:
        raise UserError(f"splits.fixed={n}: pairs need an even number of candidates")
    if learner.defense.predict is None:
        raise UserError(f"{where}: releases no model that predicts; leave it out")
    if design.empty and "rows" not in traits:
        raise UserError(
            f"{where}: cannot train with empty slots; play game=membership_replace_one"
        )
    try:
        one = TrainingSet(fixed, None, np.zeros(slots, np.int32))
        one = one if "rows" in traits else gathered(one)
        jax.eval_shape(learner.defense.train, jax.random.key(0), learner.side, one)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def release(
    design: Design, settings: Membership, key: Array, learner: Learner, table: Table
) -> Runs[MembershipModels]:
    """Train target models, reference models and calibration models."""
    splits = table.problem.splits
    n, label = len(splits.fixed.y), np.asarray(splits.fixed.y)
    queries = np.zeros(settings.queries, np.int32)

    def trained(name: str, sizes: list[int], then: Callable) -> tuple[Any, Any]:
        coins = stream(key, f"{name}: coins")
        each = [
            design.member(jax.random.fold_in(coins, i), models, n)
            for i, models in enumerate(sizes)
        ]
        member = np.concatenate(each)
        records = TrainingSet(splits.fixed, None, design.rows(member))
        shown = splits.fixed, splits.pool, queries
        engine = table.engine.few(len(member))
        more: dict[str, Any] = {"engine": engine, "then": then}
        return member, base.train(name, key, learner, records, *shown, **more)

    member, (releases, signals) = trained("target models", [table.runs], with_release)
    targets = Shadows(member, label, signals)
    sizes = [settings.shadows, settings.calibration]
    member, signals = trained("shadow models", sizes, of_release)
    references, calibration = (
        Shadows(member[part], label, take(signals, part))
        for part in (slice(settings.shadows), slice(settings.shadows, None))
    )
    return Runs(learner, releases, MembershipModels(targets, references, calibration))


def account(
    design: Design, key: Array, runs: Runs[MembershipModels], table: Table
) -> Guarantees:
    """Account for every candidate where it is a member.

    Squared-error bounds do not apply to this game and are left out.
    """
    learner, splits = runs.learner, table.problem.splits
    fixed, trajectories = splits.fixed, table.trajectories
    n = in_one_run(design, splits)
    rate, most = separation(runs.evidence.references), most_tpr(design, learner, n)
    arrays = {"separation": rate}
    if most is not None:
        arrays["tpr_bound"] = np.stack([CURVE, most])
    quantiles = {"median": 50, "q90": 90, "max": 100}
    spread = {k: float(np.percentile(rate, q)) for k, q in quantiles.items()}
    leakage: dict[str, Any] = {
        "adjacency": design.adjacency,
        "separation": {"mean": float(rate.mean()), **spread},
    }
    limits = guarantees.without_bounds(learner, n, table.delta)
    limits = limits._replace(arrays=arrays, fields={"membership": leakage})
    if not guarantees.reads(learner.defense, table.fisher):
        return limits
    each, norms = _readings(design, key, learner, table, 2 * trajectories)
    dfil = each.mean(1) / fixed.x[0].size
    every = each
    if trajectories == 1:  # of one trajectory alone nobody can tell the error
        other = stream(key, "error of dFIL")
        more, _ = _readings(design, other, learner, table, 2, guarantees.SAMPLE)
        every = np.concatenate([each, more], 1)
        every = every[np.isfinite(more[:, 0])]
    error = guarantees.relative_error(every, trajectories)
    correlation = intervals.rank_correlation(rate, dfil)
    leakage["against_dfil"] = correlation and correlation._asdict()
    eta = None if norms is None else np.sqrt(norms.mean(1))
    return limits._replace(dfil=dfil, dfil_error=error, eta=eta)


def _readings(
    design: Design,
    key: Array,
    learner: Learner,
    table: Table,
    models: int,
    most: int | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return Tr I and ||I||_2, or None, of every candidate where it is a member.

    Only the `most` first slots of each model are read, None = all; nan for a candidate
    in none of them. Half of the models have a candidate: [candidates, models / 2] each.
    """
    fixed = table.problem.splits.fixed
    member = design.member(stream(key, "accounted: coins"), models, len(fixed.y))
    rows = design.rows(member)
    slots = np.arange(rows.shape[1])[:most]
    records, engine = TrainingSet(fixed, None, rows), table.engine.few(1)
    pilot = records, slots[: guarantees.SAMPLE]
    reading = guarantees.TraceReading.planned(
        key, learner, table.fisher, *pilot, engine=engine
    )
    at, slot = np.nonzero(rows[:, slots] >= 0)

    def of_candidates(values: np.ndarray) -> np.ndarray:
        each = np.full(member.shape, np.nan)
        each[at, rows[at, slot]] = values[at, slot]
        return each.T[member.T].reshape(len(fixed.y), models // 2)

    readings = reading("fisher", key, records, slots, engine=engine)
    return jax.tree.map(of_candidates, readings)


def most_tpr(design: Design, learner: Learner, n: int) -> np.ndarray | None:
    """Return the most true positives at the rates of `CURVE`; None = no theorem.

    One run has n records. From the privacy-loss distribution where there is one, else
    the least over deltas of what the Renyi curve's epsilon(delta) allows; at the
    design's adjacency.
    """
    adjacency = design.adjacency
    pld, curve = learner.defense.pld, learner.defense.rdp
    loss = None if pld is None else pld(n, adjacency)
    if loss:
        return tradeoff.tpr_from_loss(CURVE, loss)
    values = None if curve is None else curve(n, rdp.ORDERS, adjacency)
    if values is None or not np.isfinite(values).all():
        return None
    each = [(rdp.epsilon(rdp.ORDERS, values, d), d) for d in DELTAS]
    return np.min([tradeoff.tpr_from_epsilon(CURVE, *e) for e in each], 0)


def separation(models: Shadows) -> np.ndarray:
    """Return how well one record's signals tell its models apart [records].

    P(phi in > phi out) + P(tie) / 2 over the pairs of models with and without the
    record, phi averaged over queries: the AUC of the best threshold attack on this one
    record, .5 where nothing leaks, and no attack's property.
    """
    from scipy.stats import rankdata

    phi = np.asarray(models.signals.candidates, np.float32).mean(-1)
    ranks, half = rankdata(phi, axis=0), len(phi) / 2
    total = np.where(models.member, ranks, 0).sum(0)
    return (total - half * (half + 1) / 2) / half**2


def play(
    key: Array, attack: Attack, runs: Runs[Any], limits: Guarantees, table: Table
) -> Result:
    """Let one attack score every candidate on every target model; return its rates."""
    models = runs.evidence
    shadows = models.references
    state, info = base.fitted(key, attack, runs.learner, table, shadows=shadows)
    scored = _scorer(attack, state)
    on_targets = scored(stream(key, "guess"), models.targets)
    on_shadows = scored(stream(key, "calibrate"), models.calibration)
    numbers, arrays = membership_rates.rates(
        on_targets, models.targets, on_shadows, models.calibration
    )
    most, auc = limits.arrays.get("tpr_bound"), numbers["auc"]
    flags = [] if most is None else membership_rates.above_bound(numbers, most)
    flags += membership_rates.null_flags(numbers)
    se = intervals.standard_error(**auc)
    flags += membership_rates.sign_flags(auc["value"], se, numbers["targets"])
    headline = base.headline("auc", auc["value"], se, better="higher", floor=0.5)
    numbers["fit"] = info
    return Result(headline, numbers, arrays, arrays["wrong"], flags=tuple(flags))


def _scorer(attack: Attack, state: Any) -> Callable[..., np.ndarray]:
    """Return (key, Shadows) -> scores [models, records]; undeclared fields are None."""

    @jax.jit
    def one(state: Any, key: Array, label: Any, signals: Signals) -> Array:
        observation = base.observe(attack.threat_model, label=label, signals=signals)
        return attack.guess(state, key, observation)

    def score(key: Array, models: Shadows) -> np.ndarray:
        # a model at a time: an attack may hold [records, shadows] per model
        keys = (jax.random.fold_in(key, i) for i in range(len(models.member)))
        each = [
            one(state, k, models.label, take(models.signals, i))
            for i, k in enumerate(keys)
        ]
        return np.asarray(jax.device_get(each))

    return score


# View ---------------------------------------------------------------------------------


def _auc(result: AttackResult) -> str:
    auc = result["auc"]
    half = (float(auc["high"]) - float(auc["low"])) / 2
    return f"{number(auc['value'], 3)} ± {number(half, 3)}"


def _rate(
    result: AttackResult, fpr: float, chosen_on: str, *, full: bool = False
) -> str:
    """Return the true-positive rate at a nominal false-positive rate.

    The threshold is chosen on `shadows` or `targets`; `full` adds interval, counts and
    the realised false-positive rate.
    """
    if chosen_on not in result["operating"]:  # scores from elsewhere, without shadows
        return "-" if full else "n/a"
    point = result["operating"][chosen_on][result["fprs"].index(fpr)]
    if isinstance(point, str):
        return point if full else "n/a"
    tpr, value = point["tpr"], percent(point["tpr"]["value"])
    if not full:
        return value
    limits = f"[{percent(tpr['low'])}, {percent(tpr['high'])}]"
    realised = percent(point["fpr"]["value"])
    return f"{value} {limits} {tpr['k']}/{tpr['n']}; FPR {realised}"


def _accuracy(result: AttackResult, chosen_on: str) -> str:
    values = [a["value"] for a in result["accuracy"] if a["chosen_on"] == chosen_on]
    return number(values[0], 3) if values else "-"


def _epsilon(line: Line) -> str:
    epsilon = line.defense.epsilon
    if epsilon is None:
        return "none"
    pair = epsilon[line.defense["membership"]["adjacency"]]
    return number(pair.least, 2)


def _verdict(line: Line) -> tuple[str, str]:
    assert line.result is not None
    headline = line.result.headline
    auc = float(headline.value)
    spread = view.STANDARD_ERRORS * float(headline.standard_error or 0)
    text = (
        f"Shown a record that was in the training set and one that was not, it picks "
        f"the right one {auc:.1%} of the time (AUC, ± {spread:.1%}); a coin is "
        f"right half the time. Single records may be found far more often: see the "
        f"true-positive rates at low false-positive rates."
    )
    if auc - 0.5 <= spread:
        if attacks := ", ".join(_turned_round(line)):
            text += (
                f" But members have the lower scores by {attacks}: turned round, these "
                f"scores tell who took part."
            )
            return view.WRONG_SIGN, text
        return view.NOT_TOLD_APART, text
    closely = 1 - auc <= CLOSE * 0.5
    return f"who took part is told{'' if closely else ', sometimes'}", text


def _turned_round(line: Line) -> list[str]:
    """Return the valid attacks whose scores are flagged to be of the wrong sign."""
    return [
        trial.attack
        for trial in line.card.trials
        if trial.defense == line.label and not is_void(trial.flags)
        if any(flag.name == "wrong-sign" for flag in trial.flags)
    ]


def _leakage(card: Scorecard) -> list[str]:
    """Return how well each record's signals tell models apart, one row per defense."""
    rows = []
    for label, defense in card.defenses.items():
        if "membership" not in defense:
            continue  # scores from elsewhere: nothing was trained here
        leakage, statistics = defense["membership"], ("mean", "median", "q90", "max")
        cells = [number(leakage["separation"][k], 3) for k in statistics]
        cells += [interval(leakage.get("against_dfil"))]
        rows.append([label, *cells, leakage["adjacency"].replace("_", "-")])
    if not rows:
        return []
    rows.append(["nothing leaks", *_by_chance(card), "-", "-"])
    header = ["defense", "separation, mean", "median", "90%", "largest"]
    header += ["rank correlation with dFIL [95%]", "adjacency"]
    words = (
        "Separation: of one record's signals on shadow models with and without it, the "
        "AUC of the best threshold for this record alone. The last row is what so few "
        "shadow models show of so many records by chance. The adjacency is that of the "
        "game's design: compare with epsilon under that name."
    )
    return ["## Membership, record by record", view.grid(header, rows), words]


def _by_chance(card: Scorecard) -> list[str]:
    """Return mean, median, 90% and largest separation of records that do not leak.

    The largest of them is more than that half of the time.
    """
    half = card.scenario["membership"]["shadows"] // 2
    law = np.cumsum(roc.auc_by_chance(half, half))
    counts = [t.result.targets or 1 for t in card.trials if t.result is not None]
    records = float(max(counts, default=1))
    shares = 0.5, 0.9, 0.5 ** (1 / records)
    values = np.searchsorted(law, shares) / half**2
    return [number(value, 3) for value in (0.5, *values)]


VIEW = View(
    units="AUC and TPR over all candidates and target models; ± half a 95% interval "
    "over records, given these models: other models would differ by more; TPR at a "
    "false-positive rate: thresholds from shadow models; ε upper: accounted, at the "
    "game's adjacency",
    attack=(
        view.STRONGEST,
        Column("AUC ± 95%", of_best(_auc)),
        Column("TPR@1%", of_best(lambda r: _rate(r, 1e-2, "shadows"))),
        Column("TPR@.1%", of_best(lambda r: _rate(r, 1e-3, "shadows"))),
        Column("ε upper", _epsilon),
    ),
    trial={
        "AUC [95%]": lambda r: interval(r["auc"]),
        "over loss_threshold": lambda r: interval(r.get("over_loss_threshold")),
        "accuracy, threshold from shadows": partial(_accuracy, chosen_on="shadows"),
        "from targets": partial(_accuracy, chosen_on="targets"),
        **{
            f"TPR at {percent(fpr)} FPR, from {where}": partial(
                _rate, fpr=fpr, chosen_on=where, full=True
            )
            for where in ("shadows", "targets")
            for fpr in (1e-2, 1e-3, 1e-4)
        },
    },
    trial_words="One threshold for all records. From shadows: chosen on the attacker's "
    "own calibration models, which is what can be deployed; the realised FPR stands "
    "beside it. From targets: chosen on the scored models themselves, optimistic, and "
    "what papers print. Rates have Clopper-Pearson intervals on the counts beside "
    "them, as if all scores were independent; the AUC's interval takes records to be "
    "independent. unavailable (n): fewer than 10/FPR non-members.",
    verdict=_verdict,
    bound_table=False,
    sections=_leakage,
)
