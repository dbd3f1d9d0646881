"""The audit, on one page: load, train, account, attack, score.

    scenario -> task, splits
      for each defense: prepare -> target runs -> dFIL, bounds, epsilon, utility
        for each attack: skip with a reason, or fit -> guess -> score
      flags, once every row is there
"""

from __future__ import annotations

import time
import traceback
from typing import Any, NamedTuple

import jax
import numpy as np

from audit import accounting, data, flags, games, metrics, registry, scoring, shadow
from audit import perceptual
from audit.accounting import Guarantees
from audit.compose import Entry, Scenario
from audit.registry import UserError
from audit.rng import stream
from audit.scorecard import Scorecard
from audit.types import Attack, Release, Splits, Task

FLOOR = Entry("class_mean", "class_mean", {}, {})


class Problem(NamedTuple):
    """Everything public and private about what is audited."""

    task: Task
    splits: Splits
    dataset: data.Dataset


class Trial(NamedTuple):
    """One planned (defense, attack), whatever came of it."""

    defense: str
    attack: Entry
    threat_model: str
    status: str  # "ok", "skipped" or "failed"
    reason: str | None = None
    result: dict[str, Any] | None = None
    arrays: dict[str, np.ndarray] | None = None


def audit(scenario: Scenario, engine: shadow.Engine) -> Scorecard:
    """Run a scenario and return its scorecard; provenance is filled by the caller.

    Args:
      scenario: checked, see `compose.validate`.
      engine: tiles, store and progress.

    Raises:
      UserError, data.DataError: before any training, if something cannot work.
    """
    spec, key = scenario.spec, jax.random.key(scenario.spec.seed)
    problem = load(scenario)
    learners = [build(key, e, problem) for e in scenario.defenses]
    attacks = [(e, make_attack(e, problem.task)) for e in scenario.attacks]
    floor = _floor(key, learners[0], problem, engine)
    weights = _lpips_weights()

    defenses, held, trials = {}, {}, []
    for entry, of in zip(scenario.defenses, learners, strict=True):
        own = stream(key, f"defense {entry.label}")
        releases = games.play_targets(own, of, problem.splits, spec.runs, engine)
        held[entry.label] = accounting.guarantees(
            own, of, problem.splits,
            runs=spec.accounting_runs, delta=spec.delta, engine=engine,
        )
        utility = _utility(of, releases, problem.splits)
        defenses[entry.label] = _describe(entry, held[entry.label], utility)
        for attack_entry, attack in attacks:
            trials.append(
                trial(own, attack_entry, attack, of, releases, held[entry.label],
                      problem, spec.runs, weights, engine)
            )
    rows = [_row(t, held, trials, learners, floor, scenario, problem) for t in trials]
    return Scorecard(
        scenario=scenario.resolved(),
        provenance={},
        data=_data(scenario, problem),
        floor={"mse": float(floor.mean()), "mse_se": metrics.standard_error(floor)},
        defenses=defenses,
        trials=[_plain(t, row) for t, row in zip(trials, rows, strict=True)],
        arrays=_arrays(problem, held, trials, floor),
    )


def load(scenario: Scenario) -> Problem:
    """Load the data, cut the splits, build the task."""
    spec = scenario.spec
    dataset = data.choose_classes(data.load(scenario.data), spec.task.classes)
    splits = data.split(dataset, **scenario.splits.model_dump())
    data.check(splits)
    model = registry.find("model", spec.task.model)
    features = tuple(splits.targets.x.shape[1:])
    try:
        task = model(features, len(spec.task.classes), **spec.task.settings)
    except ValueError as error:
        raise UserError(f"task: {error}") from None
    return Problem(task, splits, dataset)


def build(key: jax.Array, entry: Entry, problem: Problem) -> shadow.Learner:
    """Build one defense; the initialisation is shared by all of them."""
    try:
        return shadow.learner(
            registry.find("defense", entry.name),
            problem.task,
            entry.settings,
            key=stream(key, "prepare"),
            public=problem.splits.public,
            label=entry.label,
            version=registry.version("defense", entry.name),
        )
    except ValueError as error:
        raise UserError(f"defense.{entry.label}: {error}") from None


def make_attack(entry: Entry, task: Task) -> Attack:
    """Build one attack from its settings."""
    return registry.find("attack", entry.name)(task, **entry.settings)


def trial(
    key: jax.Array,
    entry: Entry,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    problem: Problem,
    runs: int,
    weights: Any,
    engine: shadow.Engine,
) -> Trial:
    """Play one attack against one defense; whatever happens is a Trial."""
    targets, model = problem.splits.targets.x, attack.threat_model
    base = Trial(of.label, entry, games.sentence(model), "skipped")
    reason = games.mismatch(model, of.defense)
    if reason is not None:
        return base._replace(reason=reason)
    began = time.perf_counter()
    try:
        key = stream(key, f"attack {entry.name}")
        played = games.reconstruction_game(
            key, attack, of, releases, problem.splits, runs, engine
        )
    except Exception as error:  # one broken attack must not cost the other rows
        text = f"{type(error).__name__}: {error}"
        where = traceback.format_exc(limit=-3)
        return base._replace(status="failed", reason=text, result={"trace": where})
    summary, arrays = scoring.errors(played.guesses, targets)
    se = scoring.run_errors(played.guesses, targets)
    against = {b.name: scoring.against(b, arrays["mse"], se) for b in held.bounds}
    result = {
        **summary,
        **scoring.images(played.guesses, targets, weights),
        "oracle": games.is_oracle(model),
        "against": against,
        "fit": played.info,
        "seconds": round(time.perf_counter() - began, 2),
    }
    return base._replace(status="ok", result=result, arrays=arrays)


def _floor(
    key: jax.Array, of: shadow.Learner, problem: Problem, engine: shadow.Engine
) -> np.ndarray:
    """Return every target's error for the attacker who ignores the release."""
    attack = make_attack(FLOOR, problem.task)
    nothing = Release(np.zeros(len(problem.splits.targets.y), np.float32))
    played = games.reconstruction_game(
        key, attack, of, nothing, problem.splits, 1, engine
    )
    return scoring.errors(played.guesses, problem.splits.targets.x)[1]["mse"]


def _lpips_weights() -> Any:
    try:
        return perceptual.load_weights()
    except perceptual.WeightsUnavailable as error:
        return str(error)


def _utility(of: shadow.Learner, releases: Release, splits: Splits) -> dict | None:
    """Return test accuracy over the target runs: mean, and sd between runs."""
    if of.defense.predict is None:
        return None
    correct = jax.jit(jax.vmap(_accuracy(of), (None, 0, None, None)))
    x, y = splits.test
    parts = [
        correct(of.side, part, x, y) for part in _in_parts(releases, 256)
    ]
    each = np.concatenate([np.asarray(p) for p in parts])
    return {"accuracy": float(each.mean()), "accuracy_sd": float(each.std()),
            "models": len(each), "test": len(y)}


def _accuracy(of: shadow.Learner) -> Any:
    predict = of.defense.predict
    assert predict is not None
    return lambda side, release, x, y: (predict(side, release, x).argmax(-1) == y).mean()


def _in_parts(releases: Release, size: int) -> list[Release]:
    m = len(jax.tree.leaves(releases)[0])
    return [
        jax.tree.map(lambda a: a[i : i + size], releases) for i in range(0, m, size)
    ]


def _describe(entry: Entry, held: Guarantees, utility: dict | None) -> dict[str, Any]:
    dfil = None
    if held.dfil is not None:
        roots = np.sqrt(held.dfil)
        dfil = {"mean": held.dfil.mean(), "median": np.median(held.dfil),
                "max": held.dfil.max(), "sqrt_mean": roots.mean(),
                "sqrt_median": np.median(roots), "sqrt_max": roots.max()}
        if held.dfil_se is not None:
            dfil["relative_se"] = float(np.median(held.dfil_se / held.dfil))
    return {
        "use": entry.name,
        "passed": entry.passed,
        "settings": entry.settings,
        "utility": utility,
        "dfil": dfil,
        "bounds": [scoring.describe(b) for b in held.bounds],
        "epsilon": held.epsilon,
    }


def _row(
    one: Trial,
    held: dict[str, Guarantees],
    trials: list[Trial],
    learners: list[shadow.Learner],
    floor: np.ndarray,
    scenario: Scenario,
    problem: Problem,
) -> flags.Row | None:
    """Return what the flags look at; None for a trial without a result."""
    if one.arrays is None or one.result is None:
        return None
    undefended = [
        of.label for of in learners
        if of.defense.fisher is None and of.defense.rdp is None
    ]
    controls = [
        t.arrays["mse"] for t in trials
        if t.defense in undefended and t.attack == one.attack and t.arrays is not None
    ]
    wanted = next(iter(scenario.spec.sets))
    spread = problem.splits.pool_source
    distinct, size = len(np.unique(spread)), len(spread)
    return flags.Row(
        attack=one.attack.name,
        oracle=one.result["oracle"],
        is_floor=one.attack.name == FLOOR.name,
        mse=one.arrays["mse"],
        bias2=one.arrays.get("bias2"),
        finite=bool(np.isfinite(one.arrays["mse"]).all()),
        floor=floor,
        bounds=held[one.defense].bounds,
        runs=one.result["runs"],
        control=controls[0] if controls else None,
        is_control=one.defense in undefended,
        stand_in="" if scenario.data == wanted else f"{scenario.data}, not {wanted}",
        augmented="" if size == distinct else f"{distinct} images made {size}",
    )


def _plain(one: Trial, row: flags.Row | None) -> dict[str, Any]:
    found = flags.raised(row) if row is not None else []
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
        "flags": [flag._asdict() for flag in found],
    }


def _data(scenario: Scenario, problem: Problem) -> dict[str, Any]:
    dataset = problem.dataset
    return {
        "name": scenario.data,
        "origin": dataset.origin,
        "note": dataset.note,
        "digest": data.splits_digest(problem.splits),
        "splits": scoring.sizes(problem.splits),
        "duplicates": data.duplicates(problem.splits),
    }


def _arrays(
    problem: Problem,
    held: dict[str, Guarantees],
    trials: list[Trial],
    floor: np.ndarray,
) -> dict[str, np.ndarray]:
    kept = {"target": problem.splits.targets.x, "label": problem.splits.targets.y,
            "floor": floor}
    for label, own in held.items():
        if own.dfil is not None:
            kept[f"{label}/dfil"] = own.dfil
        for bound in own.bounds:
            kept[f"{label}/{bound.name}"] = np.asarray(bound.value)
    for one in trials:
        for name, array in (one.arrays or {}).items():
            kept[f"{one.defense}/{one.attack.label}/{name}"] = array
    return kept
