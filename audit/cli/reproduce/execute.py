"""`python -m audit reproduce SOURCE`: every published number beside ours.

a plan -> the runs that are not finished, as `python -m audit run` would
  -> numbers read from their scorecards -> verdicts -> a page
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from audit.cli.reproduce import published
from audit.cli.reproduce.plan import Job, Plan
from audit.cli.reproduce.published import Listed
from audit.config import workspace
from audit.config.compose import Scenario
from audit.errors import UserError
from audit.scorecard import path as places

Audit = Callable[[Scenario, str], int]  # runs one scenario into its folder; failures


class Outcome(NamedTuple):
    """What there is of one run."""

    cards: tuple[dict[str, Any], ...]  # plain data, one a seed
    facts: list[dict[str, Any]]  # one line a seed of the table of runs
    missing: str | None = None  # why its numbers have none to be compared with
    failed: str | None = None


def carry_out(
    plan: Plan, audit: Audit, runs: Path, say: Callable[[str], None]
) -> dict[str, Outcome]:
    """Return what there is of every run, after doing what is not yet done.

    Args:
      plan: of one source.
      audit: does one run, as `python -m audit run` would.
      runs: the folder of run folders.
      say: told, in words, what happens.
    """
    return {run: _outcome(plan, run, audit, runs, say) for run in plan.jobs}


def _outcome(
    plan: Plan, run: str, audit: Audit, runs: Path, say: Callable[[str], None]
) -> Outcome:
    jobs, missing = plan.jobs[run][plan.budget], None
    found = [_finished(job.scenario, runs) for job in jobs]
    if None in found:
        missing = _no_data(jobs[0].scenario)
        if missing is not None:
            say(f"not run: {run}: {missing}")
            return Outcome(
                (), [_fact(run, jobs[0], f"not run: {missing}", None)], missing
            )
        if getattr(plan.expected.runs[run], plan.budget).device == "gpu" and not _gpu():
            # what stands in proves that the path works, and is compared with nothing
            missing, jobs = "no GPU; a smoke run stood in", plan.jobs[run]["smoke"]
            found = [_finished(job.scenario, runs) for job in jobs]
            say(f"not run in full: {run}: no GPU; a smoke run stands in")
    cards, facts = [], []
    for job, before in zip(jobs, found, strict=True):
        card, failed = before, None
        if before is not None:
            say(f"finished before: {job.command}")
        else:
            card, failed = _one(job, audit, runs, say)
        facts.append(_fact(run, job, failed or missing or "finished", card))
        if card is None:
            return Outcome((), facts, missing, failed)
        cards.append(card)
    return Outcome(tuple(cards), facts, missing)


def _one(
    job: Job, audit: Audit, runs: Path, say: Callable[[str], None]
) -> tuple[dict[str, Any] | None, str | None]:
    """Do one run; return its card, or why there is none."""
    say(f"\n{job.command}")
    try:
        failures = audit(job.scenario, job.command)
    except UserError as error:
        return None, f"failed: {error}"
    except Exception as error:  # one broken run must not cost the other tables
        say(traceback.format_exc(limit=-3))
        return None, f"failed: {type(error).__name__}: {error}"
    if failures:
        return None, f"failed: {failures} of its trials"
    card = _finished(job.scenario, runs)
    return card, None if card else "failed: it left no scorecard"


def _finished(scenario: Scenario, runs: Path) -> dict[str, Any] | None:
    """Return the card of a whole run of this scenario by this code.

    With it what places may read beside the file: `strongest` and `shared`.

    A run with failed trials is not finished: the same command tries them again.
    """
    from audit.report import columns
    from audit.scorecard import card as cards

    folder, digest = workspace.place(scenario, runs)
    try:
        card = cards.load(folder)
    except (OSError, ValueError, TypeError, BadZipFile):
        return None
    mine = (digest, workspace.code_version(scenario))
    held = tuple(card.provenance.get(k) for k in ("scenario_digest", "code"))
    if held != mine or any(t["status"] == "failed" for t in card.trials):
        return None
    best = [columns.strongest(card, label) for label in card.defenses]
    return {
        **card._asdict(),
        "strongest": [trial for trial in best if trial],
        "shared": columns.shared(card),
    }


def _no_data(scenario: Scenario) -> str | None:
    """Return why the data are not to be had; a download is tried where there is one."""
    from audit import data

    if data.where(scenario.data) is not None:
        return None
    try:
        data.load(scenario.data)
    except data.DataError as error:
        return f"no {scenario.data}: {error}"
    return None


def _gpu() -> bool:
    import jax

    return jax.default_backend() != "cpu"


def _fact(
    run: str, job: Job, status: str, card: dict[str, Any] | None
) -> dict[str, Any]:
    where = card["provenance"] if card else {}
    git = where.get("git") or {}
    commit = (git.get("commit") or "")[:12] + (" (dirty)" if git.get("dirty") else "")
    return {
        "run": run,
        "command": job.command,
        "status": status,
        "device": where.get("device", ""),
        "commit": commit,
        "code": where.get("code", ""),
        "seconds": where.get("seconds", ""),
    }


# Verdicts -----------------------------------------------------------------------------


def verdicts(plan: Plan, outcomes: dict[str, Outcome]) -> list[Any]:
    """Return the verdict on every listed number, in order."""
    from audit.cli.reproduce.verdicts import judge

    return [judge(n, _reading(n, outcomes), plan.budget) for n in plan.numbers]


def _reading(number: Listed, outcomes: dict[str, Outcome]) -> Any:
    from audit.cli.reproduce.verdicts import Reading

    if number.formula is not None:
        formula = published.formulas()[number.formula]
        return Reading((float(formula(**number.settings)),))
    if number.run is None:
        return Reading((), number.reason)
    assert number.at is not None
    outcome = outcomes[number.run]
    if outcome.failed is not None:
        return Reading((), f"its run {outcome.failed}", broken=True)
    try:
        values = tuple(places.read(card, number.at) for card in outcome.cards)
    except LookupError as error:
        return Reading((), str(error), broken=True)
    return Reading((), outcome.missing) if outcome.missing else Reading(values)


def write(
    plan: Plan, held: list[Any], outcomes: dict[str, Outcome], folder: Path
) -> list[Path]:
    """Write NAME.md, its figures and NAME.json, and the table of all sources.

    Args:
      plan: of the source.
      held: the verdicts on its numbers.
      outcomes: of its runs.
      folder: of the sources' pages; REPRODUCTION.md stands beside it.

    Returns:
      The paths written.
    """
    from audit.cli.reproduce import overview, redrawn
    from audit.cli.reproduce import verdicts as pages
    from audit.scorecard.card import replacing

    folder.mkdir(parents=True, exist_ok=True)
    facts = [fact for outcome in outcomes.values() for fact in outcome.facts]
    told = (plan.expected.title, plan.expected.source, held, facts)
    drawn = plan.expected.figures
    figures = {f"{plan.name}_figure_{one.figure}.png": one for one in drawn}
    for name, figure in figures.items():
        with replacing(folder / name) as path:
            redrawn.draw(figure, held, path)
    texts = {
        f"{plan.name}.md": pages.markdown(*told, figures) + "\n",
        f"{plan.name}.json": pages.to_json(*told),
    }
    for name, text in texts.items():
        with replacing(folder / name) as path:
            path.write_text(text)
    summary = folder.parent / "REPRODUCTION.md"
    with replacing(summary) as path:
        path.write_text(overview.render(overview.sources(folder)))
    return [*(folder / name for name in (*texts, *figures)), summary]
