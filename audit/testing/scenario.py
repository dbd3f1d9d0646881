"""The laws every scenario obeys: it composes, its data fit, a small run of it works."""

from __future__ import annotations

import functools
import json
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import yaml

from audit import data
from audit import pipeline as audits
from audit.config import hydra_app, registry, workspace
from audit.config.compose import Scenario
from audit.engine import store as stores
from audit.engine.progress import Progress
from audit.errors import UserError
from audit.report import markdown, terminal
from audit.scorecard import card as cards
from audit.scorecard import schema
from audit.scorecard.card import Scorecard
from audit.testing.laws import Law, broken

NOT_RUN = "it was not run (run=False)"


class Case:
    """One scenario with the words of a small budget; what laws share is made once."""

    def __init__(self, scenario: str | Path, words: Sequence[str], run: bool):
        path = Path(scenario)
        self.name = path.stem
        own = path.suffix == ".yaml"
        self.folder = path.parent.resolve() if own else hydra_app.locate(self.name)[0]
        self.at = ["--config-dir", str(self.folder)] if own else []
        self.words, self.run = list(words), run

    def __enter__(self) -> Case:
        self.place = tempfile.TemporaryDirectory(prefix="scenario-")
        return self

    def __exit__(self, *_: Any) -> None:
        self.place.cleanup()

    def compose(self, *words: str) -> tuple[Scenario, str]:
        """Return the checked scenario with more words, and those that replay it."""
        return _composed([f"scenario={self.name}", *self.words, *words, *self.at])

    @functools.cached_property
    def scenario(self) -> Scenario:
        """As it is with the small budget."""
        return self.compose()[0]

    @functools.cached_property
    def text(self) -> dict[str, Any]:
        """The file as it stands."""
        held = yaml.safe_load((self.folder / f"{self.name}.yaml").read_text())
        assert isinstance(held, dict), "no mapping"
        return held

    @functools.cached_property
    def problem(self) -> Any:
        """Its data and its task."""
        return audits.load(self.scenario)

    @functools.cached_property
    def card(self) -> Scorecard:
        """The card of a small run."""
        workspace.prepare_jax()
        scenario, replay = self.compose(f"out={self.place.name}/run")
        folder, digest = workspace.open_folder(scenario, Path(self.place.name))
        with Progress() as progress:
            engine = workspace.engine(scenario, folder, Path(self.place.name), progress)
            card = audits.audit(scenario, engine)
        command = f"python -m audit run {replay}"
        where = cards.provenance(command, 0.0, digest, workspace.code_version(scenario))
        return card._replace(provenance=where)


def _composed(words: list[str]) -> tuple[Scenario, str]:
    found: list[tuple[Scenario, str]] = []
    try:
        hydra_app.launch(words, lambda *composed: found.append(composed))
    except hydra_app.Refused as error:  # an exit, for Hydra's sake
        raise UserError(str(error)) from None
    return found[0]


def its_name_is_a_word(case: Case) -> str | None:
    """The file's name can be typed: letters, digits and _."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", case.name):
        broken(f"{case.name!r}")
    return None


def it_says_what_and_whence(case: Case) -> str | None:
    """Title and source are one line each."""
    for word in ("title", "source"):
        said = case.text.get(word)
        if not isinstance(said, str) or not said.strip() or "\n" in said.strip():
            broken(f"{word}: {said!r}")
    return None


def it_composes(case: Case) -> str | None:
    """Every word in it exists and every value is in range."""
    _ = case.scenario
    return None


def every_name_exists(case: Case) -> str | None:
    """Model, data sets, defenses, attacks and bounds are there, used here or not."""
    scenario, text = case.scenario, case.text
    registry.source("model", scenario.spec.task.model)
    for name in text["sets"]:
        if name not in data.names():
            broken(f"no data set {name!r}")
    line_ups = {
        "defense": scenario.defenses,
        "attack": scenario.attacks,
        "bound": scenario.bounds,
    }
    for kind, entries in line_ups.items():
        used = {e.label: e.name for e in entries}
        for label, given in (text.get(kind) or {}).items():
            name = (given or {}).get("use", used.get(label, label))
            registry.source(kind, name)
    return None


def every_data_set_composes(case: Case) -> str | None:
    """Each set it names can be insisted on, whether it is on this machine or not."""
    words = [w for w in case.words if not w.startswith(("data=", "sets."))]
    for name in case.scenario.spec.sets:
        _composed([f"scenario={case.name}", *words, f"data={name}", *case.at])
    return None


def a_misspelt_word_is_refused(case: Case) -> str | None:
    """No block takes words it does not know."""
    for word in ("sedd=1", "task.modle=linear", "sets.nowhere.splits.fixed=3"):
        try:
            case.compose(word)
        except UserError:
            continue
        broken(f"{word} was taken")
    return None


def it_is_the_same_every_time(case: Case) -> str | None:
    """Composed again it has the same digest, and with another seed another."""
    digest = stores.digest(case.scenario.resolved())
    if stores.digest(case.compose()[0].resolved()) != digest:
        broken("two digests of one scenario")
    other = case.scenario.spec.seed + 1
    if stores.digest(case.compose(f"seed={other}")[0].resolved()) == digest:
        broken("the seed changes nothing")
    return None


def its_settings_are_plain(case: Case) -> str | None:
    """What is resolved comes back from JSON as it was."""
    held = case.scenario.resolved()
    if json.loads(json.dumps(held)) != held:
        broken("some value does not come back")
    return None


def its_data_can_be_split(case: Case) -> str | None:
    """The splits it asks for are there, and disjoint."""
    if data.where(case.scenario.data) is None:
        return f"{case.scenario.data} is not on this machine"
    if not len(case.problem.splits.fixed.y):
        broken("no fixed records")
    return None


def its_defenses_can_be_built(case: Case) -> str | None:
    """Every defense of the line-up takes this task and these records."""
    if data.where(case.scenario.data) is None:
        return f"{case.scenario.data} is not on this machine"
    scenario, problem = case.scenario, case.problem
    key = jax.random.key(scenario.spec.seed)
    public = audits.begin(key, scenario, problem)
    for entry in scenario.defenses:
        audits.build(key, entry, problem, public)
    return None


def a_small_run_works(case: Case) -> str | None:
    """Every planned trial is there, and none failed."""
    if not case.run:
        return NOT_RUN
    planned = {
        (d.label, a.label)
        for d in case.scenario.defenses
        for a in case.scenario.attacks
    }
    found = {(t["defense"], t["attack"]): t for t in case.card.trials}
    if found.keys() != planned:
        broken(f"planned and not there: {sorted(planned - found.keys())}")
    for (defense, attack), t in found.items():
        if t["status"] == "failed":
            broken(f"{attack} on {defense}: {t['reason']}")
    return None


def every_attack_plays(case: Case) -> str | None:
    """No attack of the line-up is skipped on every defense."""
    if not case.run:
        return NOT_RUN
    played = {t["attack"] for t in case.card.trials if t["status"] != "skipped"}
    for t in case.card.trials:
        if t["attack"] not in played:
            broken(f"{t['attack']}: {t['reason']}")
    return None


def its_card_keeps_the_schema(case: Case) -> str | None:
    """What it writes is a scorecard others can read."""
    if not case.run:
        return NOT_RUN
    schema.check(cards.to_json(case.card), "the card")
    return None


def its_card_can_be_shown(case: Case) -> str | None:
    """Table, notes and page are made of it."""
    if not case.run:
        return NOT_RUN
    for text in (terminal.table(case.card), markdown.render(case.card, [])):
        for label in case.card.defenses:
            if label not in text:
                broken(f"{label} is not shown")
    return None


def its_command_replays_it(case: Case) -> str | None:
    """The words on the card compose to the same scenario."""
    _, replay = case.compose()
    again, _ = _composed(shlex.split(replay))
    if again.resolved() != case.scenario.resolved():
        broken(f"`{replay}` is another scenario")
    return None


LAWS: tuple[Law, ...] = (
    its_name_is_a_word,
    it_says_what_and_whence,
    it_composes,
    every_name_exists,
    every_data_set_composes,
    a_misspelt_word_is_refused,
    it_is_the_same_every_time,
    its_settings_are_plain,
    its_command_replays_it,
    its_data_can_be_split,
    its_defenses_can_be_built,
    a_small_run_works,
    every_attack_plays,
    its_card_keeps_the_schema,
    its_card_can_be_shown,
)
