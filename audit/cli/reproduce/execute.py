"""`python -m audit reproduce SOURCE`: every published number beside ours.

a plan -> the runs that are not finished, as `python -m audit run` would
  -> numbers read from their scorecards -> verdicts -> a page
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from audit.cli.reproduce import allowance, figures
from audit.cli.reproduce import verdicts as pages
from audit.cli.reproduce.conventions import FORMULAS
from audit.cli.reproduce.plan import Job, Plan
from audit.cli.reproduce.published import STRONGEST, PublishedNumber
from audit.cli.reproduce.verdicts import ComparedNumber, Page, RunRecord
from audit.config import workspace
from audit.config.compose import Scenario
from audit.engine.progress import OutOfTime
from audit.errors import UserError, counted
from audit.report import columns
from audit.scorecard import card as cards
from audit.scorecard import path
from audit.scorecard.card import Scorecard, plain
from audit.scorecard.portable import portable

DONE, EARLIER = "finished", "finished by earlier code"  # a record's status

# (scenario, command, until) -> runs it into its folder; how many trials failed
Audit = Callable[[Scenario, str, float | None], int]


class EarlierRun(NamedTuple):
    """What an earlier page holds of one run with one seed."""

    record: RunRecord
    values: dict[tuple, float]  # (defense, minus, attack, key) -> ours


class Outcome(NamedTuple):
    """What there is of one run, by seed."""

    cards: dict[int, Scorecard]
    records: list[RunRecord]  # one per seed
    kept: dict[int, EarlierRun]  # made by earlier code
    missing: str | None = None  # why a seed has nothing that could be compared
    failed: str | None = None
    stand_in: Scorecard | None = None  # of a smoke run, which is compared with nothing


def carry_out(
    plan: Plan,
    run: str,
    audit: Audit,
    runs: Path,
    say: Callable[[str], None],
    until: float | None = None,
    earlier: Page | None = None,
) -> Outcome:
    """Return what there is of one run, after doing what is not yet done.

    `audit` does it as `python -m audit run` would; run folders stand in `runs`; `say`
    prints what happens, in words. With a time `until` which there is time, on a
    monotonic clock, a run that asks for a GPU is made on what there is, and seeds that
    nobody has made come before those of an `earlier` page. Of a seed that cannot be
    made now, or fails, that page's numbers are kept; after one that fails no other is
    made.
    """
    jobs, before = plan.jobs[run][plan.budget], kept(plan, run, earlier)
    done = {job.seed: allowance.finished(job.scenario, runs) for job in jobs}
    new = [job for job in jobs if done[job.seed] is None and job.seed not in before]
    outcome = Outcome({}, [], {})
    if None in done.values():
        outcome = _held_up(plan, run, audit, runs, say, until, new)
    if outcome.records:  # of a smoke run
        return outcome
    for job in jobs:
        card, missing = done[job.seed], outcome.missing
        first = job.seed not in before
        if card is not None:
            say(f"finished before: {job.command}")
        elif not (outcome.failed or missing) and (first or until is None or not new):
            try:
                card, failed = _one(job, audit, runs, say, until)
                outcome = outcome._replace(failed=failed)
            except OutOfTime:
                # planning takes seconds, and is for what nobody has made
                missing = allowance.missing(job.scenario) if first else "out of time"
                say(f"not finished: {run}: {missing}; the same command goes on")
        if card is not None:
            outcome.cards[job.seed] = card
            outcome.records.append(_record(run, job, DONE, card))
        elif not first:
            outcome.kept[job.seed] = before[job.seed]
            outcome.records.append(before[job.seed].record)
            commit = before[job.seed].record.commit or "unknown"
            say(f"kept: {run}: the numbers of commit {commit}")
        elif outcome.failed:
            outcome.records.append(_record(run, job, outcome.failed))
        else:
            outcome = outcome._replace(missing=missing)
            outcome.records.append(_record(run, job, str(missing)))
    return outcome


def on_a_cluster(
    order: list[tuple[Plan, str]],
    runs: Path,
    say: Callable[[str], None],
    until: float | None = None,
    pages: Mapping[str, Page] | None = None,
) -> None:
    """Make what is not yet made of some runs side by side, on a Ray cluster.

    What cannot be made, `carry_out` says afterwards. Runs that a page keeps from
    earlier code are left to it, and without `until` so are those that ask for a GPU.
    """
    from audit.engine import trials

    pending: dict[str, Job] = {}  # several tables may be read from one run
    for plan, run in order:
        if _waits_for_gpu(plan, run, until):
            continue
        before = kept(plan, run, (pages or {}).get(plan.name))
        for job in plan.jobs[run][plan.budget]:
            finished = job.seed in before or allowance.finished(job.scenario, runs)
            if not finished:
                pending[job.command] = job
    jobs = [j for j in pending.values() if allowance.no_data(j.scenario) is None]
    say(f"{counted(len(jobs), 'run')} on the cluster")
    work = [trials.remote(j.command, j.scenario.lanes) for j in jobs]
    deadline = None if until is None else time.time() + until - time.monotonic()
    for _ in trials.announce(work, deadline, say):
        pass  # `carry_out` finds what was made


def kept(plan: Plan, run: str, earlier: Page | None) -> dict[int, EarlierRun]:
    """Return seed -> what an earlier page holds of a run by the same command.

    Runs of hours are not made again whenever the code changes: the records say which
    code made them. The file may have called the run otherwise. A record is not kept
    under other settings than its own, which a scenario's file may have now; one that
    does not say which they were is taken to be of these, and says so from then on.
    """
    if earlier is None or plan.budget == "smoke":
        return {}
    jobs = plan.jobs[run]["full"]
    seeds = {portable(job.command): job.seed for job in jobs}
    digests = {job.seed: workspace.place(job.scenario, Path())[1] for job in jobs}
    records = [
        record
        for record in earlier.runs
        if record.status in (DONE, EARLIER) and record.command in seeds
        if record.scenario_digest in ("", digests[seeds[record.command]])
    ]
    before = {
        seeds[record.command]: EarlierRun(
            record.model_copy(
                update={
                    "run": run,
                    "status": EARLIER,
                    "scenario_digest": digests[seeds[record.command]],
                }
            ),
            {},
        )
        for record in records
    }
    names = {record.run for record in records}
    numbers = [number for number in plan.numbers if number.run == run]
    places: set[tuple] = {(name, _place(n)) for name in names for n in numbers}
    # of a run that is only taken from another, the difference is all there is
    places |= {(n.run, _place(n)) for n in plan.numbers if n.minus_run == run}
    for number in earlier.numbers:
        if (number.run, _place(number)) in places:
            for seed, value in zip(number.seeds, number.values, strict=True):
                if seed in before:
                    before[seed].values[_place(number)] = value
    return {seed: record for seed, record in before.items() if record.values}


def _place(number: PublishedNumber) -> tuple:
    """Return where in the scorecard of its run a number is read."""
    return number.defense, number.minus, number.attack, number.key


def _held_up(
    plan: Plan,
    run: str,
    audit: Audit,
    runs: Path,
    say: Callable[[str], None],
    until: float | None,
    new: list[Job],
) -> Outcome:
    """Return why a run cannot be made now, if it cannot.

    Arguments but the last: `carry_out`; `new`: what nobody has made. Where a GPU is
    missing and every seed is new, a smoke run proves that the path works.
    """
    jobs = plan.jobs[run][plan.budget]
    outcome = Outcome({}, [], {})
    if missing := allowance.no_data(jobs[0].scenario):
        say(f"not run: {run}: {missing}")
        return outcome._replace(missing=missing)
    if not _waits_for_gpu(plan, run, until):
        return outcome
    if not new:  # planning takes seconds
        return outcome._replace(missing="no GPU")
    missing = allowance.missing(new[0].scenario)
    if len(new) < len(jobs):
        return outcome._replace(missing=missing)
    say(f"not run in full: {run}: no GPU; a smoke run stands in")
    missing += "; a smoke run stood in"
    job = plan.jobs[run]["smoke"][0]
    card, failed = allowance.finished(job.scenario, runs), None
    if card is None:
        card, failed = _one(job, audit, runs, say, until)
    outcome.records.append(_record(run, job, failed or missing, card))
    return outcome._replace(missing=missing, failed=failed, stand_in=card)


def _one(
    job: Job,
    audit: Audit,
    runs: Path,
    say: Callable[[str], None],
    until: float | None,
) -> tuple[Scorecard | None, str | None]:
    """Do one run; return its scorecard, or why there is none."""
    if until is not None and time.monotonic() >= until:
        raise OutOfTime
    say(f"\n{job.command}")
    try:
        failures = audit(job.scenario, job.command, until)
    except UserError as error:
        return None, f"failed: {error}"
    except Exception as error:  # one broken run must not cost the other tables
        say(traceback.format_exc(limit=-3))
        return None, f"failed: {type(error).__name__}: {error}"
    if failures:
        return None, f"failed: {failures} of its trials"
    card = allowance.finished(job.scenario, runs)
    return card, None if card else "failed: it left no scorecard"


def _waits_for_gpu(plan: Plan, run: str, until: float | None) -> bool:
    """Return whether a run asks for a GPU that is not here, and may wait for one."""
    device = getattr(plan.expected.runs[run], plan.budget).device
    return device == "gpu" and until is None and not _gpu()


def _gpu() -> bool:
    import jax

    return jax.default_backend() != "cpu"


def _record(
    run: str, job: Job, status: str, card: Scorecard | None = None
) -> RunRecord:
    provenance = plain(card.provenance) if card else {}
    git = provenance.get("git") or {}
    commit = (git.get("commit") or "")[:12] + " (dirty)" * bool(git.get("dirty"))
    fields = "device", "code", "scenario_digest", "seconds"
    copied = {k: provenance.get(k, "") for k in fields}
    return RunRecord(
        run=run, command=job.command, status=status, commit=commit, **copied
    )


# Verdicts -----------------------------------------------------------------------------


def verdict(
    number: PublishedNumber, budget: str, outcomes: dict[str, Outcome]
) -> ComparedNumber:
    """Return the verdict on one listed number."""
    if number.formula is not None:
        value = float(FORMULAS[number.formula](**number.settings))
        return pages.judge(number, budget, [value])
    if number.run is None:
        return pages.judge(number, budget)
    run = outcomes[number.run]
    if number.minus_run is None:
        ours = _ours(number, run)
    else:
        ours = _difference(number, run, outcomes[number.minus_run])
    seeds = sorted(ours.values)
    values = [ours.values[seed] for seed in seeds]
    return pages.judge(number, budget, values, ours.why, ours.broken, seeds)


class Ours(NamedTuple):
    """Our values of a number, by seed; or why there are none."""

    values: dict[int, float]
    why: str | None = None
    broken: bool = False  # there should have been some


def _ours(number: PublishedNumber, outcome: Outcome) -> Ours:
    """Return what its run says of a number."""
    try:
        values = {seed: read(card, number) for seed, card in outcome.cards.items()}
        if outcome.stand_in is not None:
            read(outcome.stand_in, number)
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        return Ours({}, str(error), broken=True)
    values = _kept_values(number, outcome) | values
    if outcome.failed is not None:
        return Ours(values, f"its run {outcome.failed}", broken=True)
    return Ours(values, outcome.missing or "earlier code did not read it")


def _difference(number: PublishedNumber, run: Outcome, minus_run: Outcome) -> Ours:
    """Return what two runs say of a number that is read from both, seed by seed."""
    alone = number.model_copy(update={"minus": None})
    other = alone.model_copy(update={"defense": number.minus})
    one, two = _ours(alone, run), _ours(other, minus_run)
    both = one.values.keys() & two.values.keys()
    values = {seed: one.values[seed] - two.values[seed] for seed in both}
    # of a run that is only taken from another, the difference is all there is
    values |= {
        seed: difference
        for seed, difference in _kept_values(number, run).items()
        if seed in _kept_values(number, minus_run)
    }
    lacking = two if one.values else one
    return Ours(values, lacking.why, one.broken or two.broken)


def _kept_values(number: PublishedNumber, outcome: Outcome) -> dict[int, float]:
    """Return what earlier code has made of a number, by seed."""
    place = _place(number)
    return {
        seed: run.values[place]
        for seed, run in outcome.kept.items()
        if place in run.values
    }


def read(card: Scorecard, number: PublishedNumber) -> float:
    """Return a number's counterpart in a scorecard.

    A number without an attack is read in the part of its defense, where `floor` (the
    attacker who ignores the release) and `shared` (with each other defense: how many of
    the 100 records with the largest eta are among the other's) stand as well.

    Raises:
      LookupError: if nothing, or no finite number, is there.
    """

    def one(defense: str) -> float:
        if number.attack is None:
            shared = columns.shared(card).get(defense, {})
            row = plain(card.defenses[defense])
            part = row | {"floor": card.floor, "shared": shared}
        elif number.attack == STRONGEST:
            best = columns.strongest(card, defense)
            part = best.result if best else {}
        else:
            part = path.trial(card, defense, number.attack).result
        return path.read(part, str(number.key))

    value = one(str(number.defense))
    return value - one(number.minus) if number.minus else value


def write(
    plan: Plan,
    numbers: list[ComparedNumber],
    outcomes: dict[str, Outcome],
    folder: Path,
) -> list[Path]:
    """Write NAME.md, its figures and NAME.json, and the table of all sources.

    Returns:
      The paths written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = [record for outcome in outcomes.values() for record in outcome.records]
    source = plan.expected
    page = Page(title=source.title, source=source.source, numbers=numbers, runs=records)
    drawn = {f"{plan.name}_figure_{one.figure}.png": one for one in source.figures}
    for name, figure in drawn.items():
        with cards.replacing(folder / name) as temporary:
            figures.draw(figure, numbers, temporary)
    file = folder / f"{plan.name}.md"
    _write(file, pages.markdown(page, drawn))
    _write(file.with_suffix(".json"), pages.to_json(page))
    summary = folder.parent / "REPRODUCTION.md"
    _write(summary, pages.overview(pages.read_pages(folder)))
    names = [file, file.with_suffix(".json"), *(folder / name for name in drawn)]
    return [*names, summary]


def _write(file: Path, text: str) -> None:
    with cards.replacing(file) as temporary:
        temporary.write_text(portable(text))
