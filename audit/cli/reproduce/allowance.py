"""What the pending runs of a source cost here, and which of them come first."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from audit.cli.reproduce.plan import Plan
from audit.config import workspace
from audit.config.compose import Scenario
from audit.errors import UserError, counted
from audit.report import terminal
from audit.scorecard import card as cards
from audit.scorecard.card import Scorecard

_PLANNED: dict[tuple[str, str], float] = {}  # asked for again when a run stops
MOST = 10_000.0  # hours, more than a year


class Cost(NamedTuple):
    """What one run of a source costs on this machine, and what it buys."""

    plan: Plan
    run: str
    # of its seeds that nobody has made; inf: it cannot be made here, 0: it is made
    hours: float
    numbers: int  # published numbers that are read from it
    seeds: int = 0  # that earlier code has made

    @property
    def turn(self) -> int:
        """Return 0 for new numbers, 1 for further seeds, 2 for what stands on pages."""
        return 0 if not self.seeds else 1 if self.hours else 2


def hours(typed: str) -> float:
    """Return how many hours were typed.

    Raises:
      UserError: if it is no positive number.
    """
    try:
        value = float(typed)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST:
        raise UserError(f"hours={typed}: a number above 0, at most {MOST:,.0f}")
    return value


def costs(
    plans: list[Plan],
    runs: Path,
    kept: Mapping[tuple[str, str], Collection[int]] = MappingProxyType({}),
) -> list[Cost]:
    """Return what every run costs, those with the most numbers per hour first.

    Finished runs, whose folders stand in `runs`, cost nothing. Further seeds of numbers
    that earlier code has made, `kept` by source and run, come after new numbers. What
    it has made comes last, and is not planned again.
    """
    every = []
    for plan in plans:
        for run, budgets in plan.jobs.items():
            lacking = [
                job
                for job in budgets[plan.budget]
                if finished(job.scenario, runs) is None
            ]
            before = kept.get((plan.name, run), ())
            pending = [job.scenario for job in lacking if job.seed not in before]
            numbers = sum(number.run == run for number in plan.numbers)
            hours, seeds = sum(map(planned, pending)), len(lacking) - len(pending)
            every.append(Cost(plan, run, hours, numbers, seeds))
    return sorted(every, key=lambda c: (c.turn, c.hours / max(c.numbers, 1)))


def planned(scenario: Scenario) -> float:
    """Return the hours that a run is planned to take; inf if it cannot start."""
    from audit.cli import forecast  # which imports JAX

    if no_data(scenario):
        return math.inf
    workspace.prepare_jax()
    known, made_of = forecast.history(), json.dumps(_sizes(scenario.resolved()))
    if (made_of, str(known)) not in _PLANNED:
        try:
            hours = forecast.forecast(scenario, known).minutes / 60
        except UserError:  # the run itself says it
            hours = math.inf
        _PLANNED[made_of, str(known)] = hours
    return _PLANNED[made_of, str(known)]


def _sizes(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan depends on: neither the seed nor the amount of noise."""
    rows = [
        {k: v for k, v in settings.items() if not isinstance(v, float)}
        for settings in resolved["defense"].values()
    ]
    return resolved | {"defense": rows, "seed": None}


def missing(scenario: Scenario) -> str:
    """Return, in words, what a run that was not made takes here."""
    from audit.engine.program import threads

    return f"{_short(planned(scenario))} h on {counted(threads(), 'core')}"


def table(every: list[Cost]) -> str:
    """Return what an hour of this machine buys, run by run."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header in ("run", "numbers", "hours", "numbers per hour"):
        left = header == "run"
        out.add_column(header, justify="left" if left else "right", no_wrap=True)
    for cost in every:
        name = f"{cost.plan.name}: {cost.run}"
        if cost.hours == 0:
            by = "by earlier code" * (cost.seeds > 0)
            out.add_row(name, str(cost.numbers), "done", by)
        elif math.isinf(cost.hours):
            out.add_row(name, str(cost.numbers), "no data", "")
        else:
            rate = _short(cost.numbers / cost.hours)
            out.add_row(name, str(cost.numbers), _short(cost.hours), rate)
    return terminal.render(out)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# What there is ------------------------------------------------------------------------


def finished(scenario: Scenario, runs: Path) -> Scorecard | None:
    """Return the scorecard of a whole run of this scenario by this code.

    A run with failed trials is not finished: the same command tries them again.
    """
    folder, digest = workspace.place(scenario, runs)
    try:
        card = cards.load(folder)
    except UserError:
        return None
    expected = {"scenario_digest": digest, "code": workspace.code_version(scenario)}
    same = expected.items() <= {k: card.provenance.get(k) for k in expected}.items()
    return card if same and all(t["status"] != "failed" for t in card.trials) else None


def no_data(scenario: Scenario) -> str | None:
    """Return why the data are not to be had; a download is tried where there is one."""
    from audit import data

    if data.where(scenario.data) is not None:
        return None
    try:
        data.load(scenario.data)
    except data.DataError as error:
        return f"no {scenario.data}: {error}"
    return None
