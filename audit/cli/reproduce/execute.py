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
from audit.config.compose import Scenario
from audit.engine.progress import OutOfTime
from audit.errors import UserError
from audit.report import columns
from audit.scorecard import card as cards
from audit.scorecard import path
from audit.scorecard.card import Scorecard, plain
from audit.scorecard.portable import portable

DONE, EARLIER = "finished", "finished by earlier code"  # a record's status

# (scenario, command, until) -> runs it into its folder; how many trials failed
Audit = Callable[[Scenario, str, float | None], int]


class Outcome(NamedTuple):
    """What there is of one run."""

    cards: list[Scorecard]  # one per seed; none where the run failed or did not start
    records: list[RunRecord]  # one per seed
    missing: str | None = None  # why its numbers have none to be compared with
    failed: str | None = None
    # (defense, minus, attack, key) -> ours, made by earlier code
    kept: dict[tuple, list[float]] | None = None


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
    monotonic clock, a run that asks for a GPU is made on what there is. Of a run that
    cannot be made now, the numbers of an `earlier` page are kept.
    """
    before = kept(plan, run, earlier)
    outcome = _made(plan, run, audit, runs, say, until, before is None)
    if outcome.missing is None or before is None:
        return outcome
    say(f"kept: {run}: the numbers of commit {before.records[0].commit or 'unknown'}")
    return before


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
        made = kept(plan, run, (pages or {}).get(plan.name))
        if made is not None or _waits_for_gpu(plan, run, until):
            continue
        for job in plan.jobs[run][plan.budget]:
            if allowance.finished(job.scenario, runs) is None:
                pending[job.command] = job
    jobs = [j for j in pending.values() if allowance.no_data(j.scenario) is None]
    say(f"{len(jobs)} runs on the cluster")
    work = [trials.remote(j.command, j.scenario.lanes) for j in jobs]
    deadline = None if until is None else time.time() + until - time.monotonic()
    for _ in trials.announce(work, deadline, say):
        pass  # `carry_out` finds what was made


def kept(plan: Plan, run: str, earlier: Page | None) -> Outcome | None:
    """Return what an earlier page holds of a run by the same commands; None = nothing.

    Runs of hours are not made again whenever the code changes: the records say which
    code made them.
    """
    if earlier is None or plan.budget == "smoke":
        return None
    records = [r for r in earlier.runs if r.run == run and r.status in (DONE, EARLIER)]
    commands = [portable(job.command) for job in plan.jobs[run]["full"]]
    if [record.command for record in records] != commands:
        return None
    # of a run that is only taken from another, the difference is all there is
    places = {(n.run, _place(n)) for n in plan.numbers if run in (n.run, n.minus_run)}
    values = {
        _place(number): number.values
        for number in earlier.numbers
        if (number.run, _place(number)) in places and number.values
    }
    records = [record.model_copy(update={"status": EARLIER}) for record in records]
    return Outcome([], records, kept=values) if values else None


def _place(number: PublishedNumber) -> tuple:
    """Return where in the scorecard of its run a number is read."""
    return number.defense, number.minus, number.attack, number.key


def _made(
    plan: Plan,
    run: str,
    audit: Audit,
    runs: Path,
    say: Callable[[str], None],
    until: float | None,
    first: bool,
) -> Outcome:
    """Arguments but the last: `carry_out`; `first`: no page has its numbers yet."""
    jobs, missing = plan.jobs[run][plan.budget], None
    done = [allowance.finished(job.scenario, runs) for job in jobs]
    if None in done and (missing := allowance.no_data(jobs[0].scenario)):
        say(f"not run: {run}: {missing}")
        return Outcome([], [_record(run, jobs[0], f"not run: {missing}")], missing)
    if None in done and _waits_for_gpu(plan, run, until):
        # what stands in proves that the path works, and is compared with nothing
        missing = f"{allowance.missing(jobs[0].scenario)}; a smoke run stood in"
        if not first:
            return Outcome([], [], missing)
        jobs = plan.jobs[run]["smoke"]
        done = [allowance.finished(job.scenario, runs) for job in jobs]
        say(f"not run in full: {run}: no GPU; a smoke run stands in")
    outcome = Outcome([], [], missing)
    for job, card in zip(jobs, done, strict=True):
        failed = None
        if card is not None:
            say(f"finished before: {job.command}")
        else:
            try:
                card, failed = _one(job, audit, runs, say, until)
            except OutOfTime:
                # planning takes seconds, and is for what nobody has made
                missing = allowance.missing(job.scenario) if first else "out of time"
                say(f"not finished: {run}: {missing}; the same command goes on")
        status = failed or missing or DONE
        outcome.records.append(_record(run, job, status, card))
        if card is None:
            return outcome._replace(cards=[], failed=failed, missing=missing)
        outcome.cards.append(card)
    return outcome


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
    copied = {k: provenance.get(k, "") for k in ("device", "code", "seconds")}
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
    if number.minus_run is None:
        return pages.judge(number, budget, *_ours(number, outcomes[number.run]))
    pages_of_both = [outcomes[r].kept or {} for r in (number.run, number.minus_run)]
    if all(_place(number) in page for page in pages_of_both):
        return pages.judge(number, budget, pages_of_both[0][_place(number)])
    alone = number.model_copy(update={"minus": None})
    other = alone.model_copy(update={"defense": number.minus})
    one, two = (
        _ours(alone, outcomes[number.run]),
        _ours(other, outcomes[number.minus_run]),
    )
    values = [a - b for a, b in zip(one.values, two.values, strict=False)]
    lacking = two if one.values else one
    return pages.judge(number, budget, values, lacking.why, one.broken or two.broken)


class Ours(NamedTuple):
    """Our values of a number, one per seed; or why there are none."""

    values: list[float]
    why: str | None = None
    broken: bool = False  # there should have been some


def _ours(number: PublishedNumber, outcome: Outcome) -> Ours:
    """Return what the scorecards of its run say of a number."""
    if outcome.kept:
        return Ours(
            outcome.kept.get(_place(number), []), "earlier code did not read it"
        )
    if outcome.failed is not None:
        return Ours([], f"its run {outcome.failed}", broken=True)
    try:
        values = [read(card, number) for card in outcome.cards]
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        return Ours([], str(error), broken=True)
    return Ours([] if outcome.missing else values, outcome.missing)


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
