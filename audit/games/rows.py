"""From what an audit found to a card: utilities, rows with their flags, arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit import data
from audit.config.compose import Entry, Scenario
from audit.engine.shadow import Learner
from audit.games.base import Problem, Runs, Trial, is_oracle, take
from audit.games.guarantees import STATISTICS, Guarantees
from audit.models import dense
from audit.scorecard import flags
from audit.scorecard.flags import Measured
from audit.statistics import metrics
from audit.types import Bound, Release, Splits, Task

TOGETHER = 256  # releases, at most, that are scored at once
HELD = 2**26  # numbers that layers take in, of all records scored at once: 256 MiB
MANY_CLASSES = 100  # from which on the ten likeliest classes are looked at too
PEOPLE = {"lfw"}  # data sets whose pictures stay out of arrays, hence of figures
EXTREMES = 8  # records with the smallest and the largest loss whose images are kept


class SelfChecks(NamedTuple):
    """What an audit found out about its own runs."""

    measured: dict[str, Measured]  # by defense
    stale: list[tuple[str, str]]  # defense, and which of its stored runs

    def ran(self, defense: str) -> flags.Ran:
        """Return what is known of one defense's runs."""
        stale = [text for label, text in self.stale if label == defense]
        return flags.Ran(self.measured[defense], "; ".join(stale))


# Defenses -----------------------------------------------------------------------------


def utility(runs: Runs, splits: Splits) -> dict[str, Any] | None:
    """Return how useful the releases are on the test part: mean, and sd between runs.

    Accuracy, or R^2 where labels are numbers.
    """
    learner, (x, y) = runs.learner, splits.test
    predict: Any = learner.defense.predict
    if predict is None:
        return None
    models = len(jax.tree.leaves(runs.releases)[0])
    some = -(-models // -(-models // TOGETHER))  # parts of one size, or nearly
    parts = [take(runs.releases, slice(i, i + some)) for i in range(0, models, some)]

    def each(measure: Callable) -> np.ndarray:
        many = _of_each(measure, predict, _block(learner.task, some))
        return np.concatenate([many(learner.side, part, x, y) for part in parts])

    name, score = ("accuracy", _accuracy) if learner.task.classes else ("r2", _r2)
    scores = each(score)
    measured = {
        name: float(scores.mean()),
        f"{name}_sd": float(scores.std()),
        "models": models,
        "test": len(y),
    }
    if learner.task.classes >= MANY_CLASSES:
        measured["top10"] = float(each(top10).mean())
    if runs.noiseless is not None:
        plain = jax.jit(quality(learner))(learner.side, runs.noiseless, x, y)
        measured["noiseless"] = float(plain)
    return measured


def quality(learner: Learner) -> Callable:
    """Return (side, Release, x [m], y [m]) -> accuracy, or R^2 of numbers."""
    predict: Any = learner.defense.predict
    score = _accuracy if learner.task.classes else _r2
    return partial(score, _in_blocks(predict, _block(learner.task, 1)))


def _accuracy(predict: Callable, side: Any, release: Release, x: Any, y: Any) -> Array:
    return (predict(side, release, x).argmax(-1) == y).mean()


def _r2(predict: Callable, side: Any, release: Release, x: Any, y: Any) -> Array:
    error = predict(side, release, x)[:, 0] - y
    return 1 - (error**2).mean() / y.var()


def top10(predict: Callable, side: Any, release: Release, x: Any, y: Any) -> Array:
    """Return the share of records with their class among the likeliest 10."""
    best = jax.lax.top_k(predict(side, release, x), 10)[1]
    return (best == y[:, None]).any(1).mean()


@functools.lru_cache(maxsize=16)  # one program for all defenses that predict alike
def _of_each(measure: Callable, predict: Callable, block: int) -> Callable:
    """Return (side, releases, x, y) -> the measure of every release."""
    one = partial(measure, _in_blocks(predict, block))
    return jax.jit(jax.vmap(one, (None, 0, None, None)))


def _block(task: Task, models: int) -> int:
    """Return how many records so many models are scored by at a time.

    What a convolution takes in is many times as large as the record.
    """
    numbers = math.prod(task.features)
    if task.dense is not None and task.dense.convolutional:
        numbers = dense.patches(task)
    return max(1, HELD // (numbers * models))


def _in_blocks(predict: Callable, block: int) -> Callable:
    """Return `predict` of any number of records, a block of them at a time."""

    def in_blocks(side: Any, release: Release, x: Array) -> Array:
        if len(x) <= block:
            return predict(side, release, x)
        rows = jnp.arange(len(x) + -len(x) % block).reshape(-1, block) % len(x)
        each = jax.lax.map(lambda some: predict(side, release, x[some]), rows)
        return each.reshape(-1, *each.shape[2:])[: len(x)]

    return in_blocks


def defense_row(
    entry: Entry, guarantees: Guarantees, utility: Any, ran: flags.Ran
) -> dict[str, Any]:
    """Return all about one defense that does not depend on an attack."""
    return {
        "use": entry.name,
        "passed": entry.passed,
        "settings": entry.settings,
        "utility": utility,
        "dfil": _dfil(guarantees),
        "eta": _eta(guarantees),
        "bounds": [_bound(b) for b in guarantees.bounds],
        "rdp2": guarantees.rdp2,
        "nominal": [claim._asdict() for claim in guarantees.nominal],
        **guarantees.fields,
        "epsilon": guarantees.epsilon,
        "measured": ran.measured._asdict(),
        "flags": [flag._asdict() for flag in flags.of_runs(ran)],
    }


def _dfil(guarantees: Guarantees) -> dict[str, Any] | None:
    each, error = guarantees.dfil, guarantees.dfil_error
    if each is None:
        return None
    summary = {name: statistic(each) for name, statistic in STATISTICS.items()}
    summary |= {f"sqrt_{k}": summed(np.sqrt(each)) for k, summed in STATISTICS.items()}
    if error is not None:
        summary["relative_se"] = error
    if guarantees.rows is not None:
        summary["records"] = float(len(guarantees.rows))
    return summary | dict(guarantees.probed)


def _eta(guarantees: Guarantees) -> dict[str, Any] | None:
    each, groups = guarantees.eta, guarantees.arrays.get("eta_of_groups")
    if each is None:
        return None
    summary = {"mean": each.mean(), "sd": each.std(), "min": each.min()}
    summary["max"] = each.max()
    if groups is not None:
        summary |= {"set": groups[0], "classes": groups[1:]}
    return summary


def _bound(bound: Bound) -> dict[str, Any]:
    """Return a bound as plain data, per-target values summarised."""
    value, words = np.asarray(bound.value, float), bound._asdict()
    summary = {
        **{k: words[k] for k in ("name", "holds_for", "theorem", "ranked")},
        "mean": float(value.mean()),
        "median": float(np.median(value)),
        "min": float(value.min()),
        "max": float(value.max()),
        "log10": None if bound.log10 is None else float(np.mean(bound.log10)),
    }
    if bound.standard_error is None:
        return summary
    genie = None if bound.genie is None else np.asarray(bound.genie, float)
    return summary | {  # of an estimate: its error, and who attains it
        "standard_error": bound.standard_error,
        "genie": None if genie is None else float(genie.mean()),
        "genie_se": None if genie is None else metrics.standard_error(genie),
        "needed": flags.needed(bound),
    }


# Trials -------------------------------------------------------------------------------


def with_shares(trials: list[Trial], floor: np.ndarray | None) -> list[Trial]:
    """Add the shares of targets an attack rebuilds better than oracle and floor do.

    The first is Balle et al.'s (2022) criterion of success; None where the line-up has
    no oracle. The second goes by the median over runs where there is one.
    """
    oracles = {
        trial.defense: trial.result.error
        for trial in trials
        if trial.result is not None and is_oracle(trial.threat_model)
    }

    def add(trial: Trial) -> Trial:
        result, best = trial.result, oracles.get(trial.defense)
        if result is None or result.error is None or floor is None:
            return trial
        typical = result.arrays.get("mse_median", result.error)
        numbers = result.numbers | {"beats_floor": float((typical < floor).mean())}
        if not is_oracle(trial.threat_model):
            rate = None if best is None else metrics.win_rate(result.error, best)
            numbers["win_rate"] = rate
        return trial._replace(result=result._replace(numbers=numbers))

    return [add(trial) for trial in trials]


class Audited(NamedTuple):
    """What the flags of every trial look at."""

    scenario: Scenario
    problem: Problem
    learners: list[Learner]
    guarantees: dict[str, Guarantees]  # by defense
    trials: list[Trial]
    floor: np.ndarray | None
    checks: SelfChecks


def trial_row(trial: Trial, audited: Audited) -> dict[str, Any]:
    """Return a trial as plain data, flags raised: by its errors, and by its game."""
    result, entry = trial.result, trial.attack
    raised: list[flags.Flag] = []
    fields: dict[str, Any] | None = None
    if result is not None:
        row, oracle = _flag_row(trial, audited), is_oracle(trial.threat_model)
        ran = audited.checks.ran(trial.defense)
        raised = flags.of_runs(ran) if row is None else flags.raised(row)
        raised += result.flags
        others = [t for t in audited.trials if t.defense == trial.defense and t.result]
        models = [t.threat_model for t in (trial, *others)]
        if not any(model.sees and not is_oracle(model) for model in models):
            raised.append(flags.NOT_ATTACKED)
        fields = {"headline": result.headline, "oracle": oracle, **result.numbers}
        if row is not None and not (oracle or row.is_floor):
            checks = fields.get("controls", {})
            positive = None  # there is no undefended learner
            if row.control is not None:
                beats = flags.below(row.control, row.floor)
                positive = {"error": float(row.control.mean()), "beats_floor": beats}
            fields["controls"] = checks | {"positive": positive}
    return {
        "defense": trial.defense,
        "attack": entry.label,
        "use": entry.name,
        "passed": entry.passed,
        "settings": entry.settings,
        "threat_model": trial.sentence,
        "status": trial.status,
        "reason": trial.reason,
        "result": fields,
        **({"trace": trial.trace} if trial.trace else {}),
        "flags": [flag._asdict() for flag in raised],
    }


def _flag_row(trial: Trial, audited: Audited) -> flags.FlagInputs | None:
    """Return what the flags look at; None for a game without errors or a floor."""
    result, floor = trial.result, audited.floor
    if result is None or result.error is None or floor is None:
        return None
    problem, scenario = audited.problem, audited.scenario
    splits, wanted = problem.splits, scenario.stands_in_for
    undefended = [  # nothing protects them: positive controls
        learner.label
        for learner in audited.learners
        if learner.defense.fisher is None and learner.defense.rdp is None
        if "unaccounted" not in learner.defense.traits
    ]
    controls = [
        other.result.error
        for other in audited.trials
        if other.defense in undefended and other.attack == trial.attack
        if other.result is not None
    ]
    distinct, size = len(np.unique(splits.pool_source)), len(splits.pool_source)
    augmented = f"a pool of {size} made from {distinct} images"
    null = result.numbers.get("controls", {})
    matched = tuple(null.get(k) for k in ("matched", "in_order", "matched_pool"))
    limits, ran = audited.guarantees[trial.defense], audited.checks.ran(trial.defense)
    return flags.FlagInputs(
        attack=trial.attack.name,
        oracle=is_oracle(trial.threat_model),
        is_floor=not trial.threat_model.sees,
        mse=result.error,
        bias2=result.arrays.get("bias2"),
        finite=bool(np.isfinite(result.error).all()),
        floor=floor,
        bounds=limits.bounds if result.squared else None,
        runs=result.numbers["runs"],
        control=controls[0] if controls else None,
        is_control=trial.defense in undefended,
        stand_in="" if wanted is None else f"{scenario.data}, not {wanted}",
        augmented="" if size == distinct else augmented,
        small_pool=limits.small_pool,
        measured=ran.measured,
        same_noise=null.get("same_noise"),
        null=result.arrays.get("null"),
        matched=None if None in matched else matched,
        label_leaked=problem.task.label_private and "label" in trial.threat_model.knows,
        in_pool=(problem.known_targets, len(splits.targets.y) or len(splits.fixed.y)),
        stale=ran.stale,
        late_gain=result.numbers.get("fit", {}).get("late_gain"),
        picked=_picked(trial, scenario),
    )


def _picked(trial: Trial, scenario: Scenario) -> str:
    """Return how settings were picked on the scored targets, as far as one can tell.

    Two entries of one attack that differ in numbers alone are a search, and the card
    ranks by its best; words name methods, and numbers tune them.
    """

    def words(entry: Entry) -> dict[str, Any]:
        settings = entry.settings.items()
        return {k: v for k, v in settings if type(v) not in (int, float)}

    mine = trial.attack
    same = [
        e.label
        for e in scenario.attacks
        if e.name == mine.name and e.settings != mine.settings
        if words(e) == words(mine)
    ]
    if same:
        return f"{mine.name} was scored with other numbers too: {', '.join(same)}"
    chosen = scenario.spec.chosen.get(trial.defense)
    if chosen is not None and chosen.tuned_on == "targets":
        return f"settings of {trial.defense} were chosen on the scored targets"
    return ""


# Data ---------------------------------------------------------------------------------


def floor_error(floor: np.ndarray | None) -> dict[str, Any]:
    """Return the mean error of the attacker who ignores the release, and its s.e."""
    if floor is None:
        return {"mse": None, "mse_se": None}
    return {"mse": float(floor.mean()), "mse_se": metrics.standard_error(floor)}


def data_used(scenario: Scenario, problem: Problem) -> dict[str, Any]:
    """Return which data were used, to the bit."""
    dataset, splits = problem.dataset, problem.splits
    sizes = {k: len(getattr(splits, k).y) for k in splits._fields[:-1]}
    return {
        "name": scenario.data,
        "origin": dataset.origin,
        "note": dataset.note,
        "digest": data.splits_digest(splits),
        "splits": sizes | {"pool_distinct": len(np.unique(splits.pool_source))},
        "duplicates": data.duplicates(splits),
        "coordinate": "pixel" if problem.task.domain == (0.0, 1.0) else "feature",
    }


def arrays(audited: Audited, floor_guess: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the per-target arrays that figures are drawn from."""
    kept = _pictures(audited, floor_guess)
    hidden = _hidden(audited.problem)
    for label, guarantees in audited.guarantees.items():
        values = {"dfil": guarantees.dfil, "eta": guarantees.eta}
        values |= {b.name: np.asarray(b.value) for b in guarantees.bounds}
        values |= {f"anatomy/{k}": v for k, v in guarantees.arrays.items()}
        values["accounted"] = guarantees.rows  # records that dFIL is of
        kept |= {f"{label}/{k}": v for k, v in values.items() if v is not None}
    for trial in audited.trials:
        for name, array in (trial.result.arrays if trial.result else {}).items():
            if name in ("guess", "mean_guess") and hidden:
                continue
            if name == "mean_guess":  # of every record; only some are looked at
                array = array[kept["shown"]]
            kept[f"{trial.defense}/{trial.attack.label}/{name}"] = array
    return kept


def _hidden(problem: Problem) -> bool:
    """Return whether records, and guesses at them, stay out of cards and figures."""
    return problem.dataset.private or problem.dataset.name in PEOPLE


def _pictures(
    audited: Audited, floor_guess: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return labels, the floor, and the images that figures show."""
    problem, floor = audited.problem, audited.floor
    kept = {} if floor is None else {"floor": floor}
    if _hidden(problem):
        return kept
    if problem.pictures is None:
        targets = problem.splits.targets
        kept |= {"target": targets.x, "label": targets.y}
        return kept | ({} if floor_guess is None else {"floor_guess": floor_guess})
    kept["label"] = problem.splits.fixed.y
    if problem.pictures.ndim != 4:  # a table
        return kept
    shown: set[int] = set()
    for guarantees in audited.guarantees.values():
        for values in (guarantees.dfil, guarantees.eta):
            if values is not None:
                order = np.argsort(values, kind="stable")
                if guarantees.rows is not None:
                    order = guarantees.rows[order]
                shown |= {*order[:EXTREMES].tolist(), *order[-EXTREMES:].tolist()}
    kept["shown"] = np.array(sorted(shown), int)
    return kept | {"shown_x": problem.pictures[kept["shown"]]}
