"""What `python -m audit reproduce` will do, checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from audit.cli.reproduce import published
from audit.cli.reproduce.published import BUDGETS, Budget, Expected, Listed
from audit.config import hydra_app
from audit.config.compose import Scenario
from audit.errors import UserError, did_you_mean
from audit.scorecard import path


class Asked(NamedTuple):
    """The words of the command."""

    sources: dict[str, Path]
    budget: str
    config_dir: str | None


class Job(NamedTuple):
    """One run of one seed."""

    scenario: Scenario
    command: str


class Plan(NamedTuple):
    """One source, composed and checked; nothing has run."""

    name: str
    expected: Expected
    numbers: list[Listed]
    budget: str
    jobs: dict[str, dict[str, list[Job]]]  # run -> budget -> one a seed


def parse(words: list[str]) -> Asked:
    """Return what `reproduce SOURCE [budget=...] [--config-dir DIR]` asks for.

    Raises:
      UserError: naming the word that is wrong.
    """
    names, config_dir, budget = [], None, "full"
    stream = iter(words)
    for word in stream:
        if word == "--config-dir":
            config_dir = hydra_app.existing_folder(next(stream, None))
        elif word.startswith("budget="):
            budget = word.removeprefix("budget=")
        elif "=" in word or word.startswith("-"):
            raise UserError(f"reproduce takes SOURCE and budget=, not {word!r}")
        else:
            names.append(word)
    if budget not in BUDGETS:
        raise UserError(f"unknown budget {budget!r}{did_you_mean(budget, BUDGETS)}")
    known = published.files(hydra_app.folders(config_dir))
    if len(names) != 1:
        raise UserError(f"reproduce which? one of {', '.join([*known, 'all'])}")
    if names[0] == "all":
        return Asked(known, budget, config_dir)
    if names[0] not in known:
        hint = did_you_mean(names[0], [*known, "all"])
        raise UserError(f"unknown source {names[0]!r}{hint}")
    return Asked({names[0]: known[names[0]]}, budget, config_dir)


def plan(name: str, file: Path, budget: str, config_dir: str | None) -> Plan:
    """Compose every run of a source, in both budgets, and check what is read from it.

    Raises:
      UserError: if the file, or a scenario it names, cannot work.
    """
    held, numbers = published.load(file)
    jobs: dict[str, dict[str, list[Job]]] = {}
    for run, spec in held.runs.items():
        budgets = {"full": spec.full, "smoke": spec.smoke}
        try:
            jobs[run] = {
                word: _compose(spec.scenario, of, config_dir)
                for word, of in budgets.items()
            }
        except (UserError, hydra_app.Refused) as error:
            raise UserError(f"{file}: runs.{run}: {error}") from None
    for number in numbers:
        if number.run is not None and number.at is not None:
            for word in BUDGETS:
                _in_the_line_up(file, number, jobs[number.run][word][0].scenario)
    return Plan(name, held, numbers, budget, jobs)


def _compose(scenario: str, budget: Budget, config_dir: str | None) -> list[Job]:
    found: list[Job] = []
    place = ["--config-dir", config_dir] if config_dir else []

    def job(scenario: Scenario, replay: str) -> None:
        found.append(Job(scenario, f"python -m audit run {replay}"))

    words = [f"scenario={scenario}", f"data={budget.data}", *budget.words, *place]
    first, *others = budget.seeds
    hydra_app.launch([*words, f"seed={first}"], job)
    one = found[0]
    for seed in others:  # composing is slow, and a seed changes nothing else
        spec = one.scenario.spec.model_copy(update={"seed": seed})
        command = one.command.replace(f" seed={first}", f" seed={seed}")
        found.append(Job(one.scenario._replace(spec=spec), command))
    return found


def _in_the_line_up(file: Path, number: Listed, scenario: Scenario) -> None:
    assert number.at is not None
    asked = zip(
        ("defense", "attack"),
        path.labels(number.at),
        (scenario.defenses, scenario.attacks),
        strict=True,
    )
    for kind, label, line_up in asked:
        labels = [entry.label for entry in line_up]
        if label is not None and label not in labels:
            raise UserError(
                f"{file}: {number.name}: scenario {scenario.spec.name} has no {kind} "
                f"{label!r}{did_you_mean(label, labels)}"
            )
