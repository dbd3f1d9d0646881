"""What `python -m audit reproduce` will do, checked before anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from audit.cli.reproduce import published
from audit.cli.reproduce.published import BUDGETS, Budget, PublishedNumber, Source
from audit.config import hydra_app
from audit.config.compose import Scenario
from audit.errors import UserError, did_you_mean


class Job(NamedTuple):
    """One run with one seed."""

    scenario: Scenario
    command: str

    @property
    def seed(self) -> int:
        """Return its seed."""
        return self.scenario.spec.seed


class Plan(NamedTuple):
    """One source, composed and checked; nothing has run."""

    name: str
    expected: Source
    numbers: list[PublishedNumber]
    budget: str
    jobs: dict[str, dict[str, list[Job]]]  # run -> budget -> one job per seed


def sources(names: list[str], config_dir: str | None) -> dict[str, Path]:
    """Return name -> file of the source that was typed, or of all; else UserError."""
    files = published.files(hydra_app.folders(config_dir))
    if len(names) != 1:
        raise UserError(f"reproduce which? one of {', '.join([*files, 'all'])}")
    [name] = names
    if name not in (*files, "all"):
        hint = did_you_mean(name, [*files, "all"])
        raise UserError(f"unknown source {name!r}{hint}")
    return files if name == "all" else {name: files[name]}


def plan(name: str, file: Path, budget: str, config_dir: str | None) -> Plan:
    """Compose every run of a source, in both budgets, and check what is read from it.

    Raises UserError if the file, or a scenario it names, cannot work.
    """
    source, numbers = published.load(file)
    jobs: dict[str, dict[str, list[Job]]] = {}
    whole: dict[str, dict[str, list[Job]]] = {}  # by the run's text: composed once
    for run, spec in source.runs.items():
        budgets = {word: getattr(spec, word) for word in BUDGETS}
        text = spec.model_dump_json()
        try:
            jobs[run] = whole.get(text) or {
                w: _jobs(spec.scenario, b, config_dir) for w, b in budgets.items()
            }
        except UserError as error:
            raise UserError(f"{file}: runs.{run}: {error}") from None
        whole[text] = jobs[run]
    for number in numbers:
        for first, *_ in jobs[number.run].values() if number.run else ():
            _check_line_up(file, number, first.scenario)
    for number in numbers:
        if number.run and source.runs[number.run].apart:
            for place, label in number.read_from.items():
                run = getattr(number, place)
                jobs[run] = {
                    word: [_alone(job, label) for job in every]
                    for word, every in jobs[run].items()
                }
    return Plan(name, source, numbers, budget, jobs)


def _jobs(name: str, budget: Budget, config_dir: str | None) -> list[Job]:
    """Compose one scenario; return one job per seed of the budget."""
    place = ["--config-dir", config_dir] if config_dir else []
    words = [f"scenario={name}", f"data={budget.data}", *budget.words, *place]
    first = budget.seeds[0]
    scenario, replay = hydra_app.composed([*words, f"seed={first}"])
    return [  # composing is slow, and a seed changes nothing else
        Job(
            scenario._replace(spec=scenario.spec.model_copy(update={"seed": seed})),
            f"python -m audit run {replay}".replace(f" seed={first}", f" seed={seed}"),
        )
        for seed in budget.seeds
    ]


def _alone(job: Job, label: str) -> Job:
    """Return a run of one defense of the line-up."""
    kept = tuple(entry for entry in job.scenario.defenses if entry.label == label)
    words, seed = re.sub(r" defenses=\S+", "", job.command).rsplit(" seed=", 1)
    command = f"{words} defenses=[{label}] seed={seed}"
    return Job(job.scenario._replace(defenses=kept), command)


def _check_line_up(file: Path, number: PublishedNumber, scenario: Scenario) -> None:
    attack = None if number.attack == published.STRONGEST else number.attack
    for kind, label, line_up in (
        ("defense", number.defense, scenario.defenses),
        ("defense", number.minus, scenario.defenses),
        ("attack", attack, scenario.attacks),
    ):
        labels = [entry.label for entry in line_up]
        if label is not None and label not in labels:
            raise UserError(
                f"{file}: {number.name}: scenario {scenario.spec.name} has no {kind} "
                f"{label!r}{did_you_mean(label, labels)}"
            )
