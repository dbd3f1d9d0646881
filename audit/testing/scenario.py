"""The laws every scenario obeys: it composes, its data fit, a small run of it works."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import yaml

from audit import data
from audit import pipeline as audits
from audit.config import compose, hydra_app, registry, workspace
from audit.config.compose import Scenario
from audit.engine import shadow
from audit.engine import store as stores
from audit.errors import UserError
from audit.report import markdown, terminal
from audit.scorecard import card as cards
from audit.scorecard import schema
from audit.scorecard.card import Scorecard
from audit.testing.laws import Law, broken

NOT_RUN = "it was not run (run=False)"


class ScenarioCase:
    """One scenario with the words of a small budget; what laws share is made once."""

    def __init__(self, scenario: str | Path, words: Sequence[str], run: bool):
        path = Path(scenario)
        self.name = path.stem
        is_file = path.suffix == ".yaml"
        named = None if is_file else hydra_app.locate(self.name)[0]
        self.folder = named or path.parent.resolve()
        self.at = ["--config-dir", str(self.folder)] if is_file else []
        self.words, self.run = list(words), run

    def compose(self, *words: str) -> tuple[Scenario, str]:
        """Return the checked scenario with more words, and those that replay it."""
        first = f"scenario={self.name}"
        return hydra_app.composed([first, *self.words, *words, *self.at])

    @functools.cached_property
    def scenario(self) -> Scenario:
        """As it is with the small budget."""
        return self.compose()[0]

    @functools.cached_property
    def text(self) -> dict[str, Any]:
        """The file as it stands."""
        text = yaml.safe_load((self.folder / f"{self.name}.yaml").read_text())
        assert isinstance(text, dict), "no mapping"
        return text

    @functools.cached_property
    def problem(self) -> Any:
        """Its data and its task."""
        return audits.load(self.scenario, compose.play(self.scenario))

    @functools.cached_property
    def card(self) -> Scorecard:
        """The card of a small run."""
        workspace.prepare_jax()
        scenario, replay = self.compose()
        engine = shadow.Engine(scenario.lanes)
        return audits.audit(scenario, engine, f"python -m audit run {replay}")


def its_name_is_a_word(case: ScenarioCase) -> str | None:
    """The file's name can be typed: letters, digits and _."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", case.name):
        broken(f"{case.name!r}")
    return None


def it_says_what_and_whence(case: ScenarioCase) -> str | None:
    """Title and source are one line each."""
    for word in ("title", "source"):
        line = case.text.get(word)
        if not isinstance(line, str) or not line.strip() or "\n" in line.strip():
            broken(f"{word}: {line!r}")
    return None


def it_composes(case: ScenarioCase) -> str | None:
    """Every word in it exists and every value is in range."""
    _ = case.scenario
    return None


def every_name_exists(case: ScenarioCase) -> str | None:
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


def every_data_set_composes(case: ScenarioCase) -> str | None:
    """Each set it names can be insisted on, whether it is on this machine or not."""
    words = [w for w in case.words if not w.startswith(("data=", "sets."))]
    for name in case.scenario.spec.sets:
        hydra_app.composed([f"scenario={case.name}", *words, f"data={name}", *case.at])
    return None


def a_misspelt_word_is_refused(case: ScenarioCase) -> str | None:
    """No block takes words it does not know."""
    for word in ("sedd=1", "task.modle=linear", "sets.nowhere.splits.fixed=3"):
        try:
            case.compose(word)
        except UserError:
            continue
        broken(f"{word} was taken")
    return None


def it_is_the_same_every_time(case: ScenarioCase) -> str | None:
    """Composed again it has the same digest, and with another seed another."""
    digest = stores.digest(case.scenario.resolved())
    if stores.digest(case.compose()[0].resolved()) != digest:
        broken("two digests of one scenario")
    other = case.scenario.spec.seed + 1
    if stores.digest(case.compose(f"seed={other}")[0].resolved()) == digest:
        broken("the seed changes nothing")
    return None


def its_settings_are_plain(case: ScenarioCase) -> str | None:
    """What is resolved comes back from JSON as it was."""
    resolved = case.scenario.resolved()
    if json.loads(json.dumps(resolved)) != resolved:
        broken("some value does not come back")
    return None


def its_data_can_be_split(case: ScenarioCase) -> str | None:
    """The splits it asks for are there, and disjoint."""
    if data.where(case.scenario.data) is None:
        return f"{case.scenario.data} is not on this machine"
    if not len(case.problem.splits.fixed.y):
        broken("no fixed records")
    return None


def its_defenses_can_be_built(case: ScenarioCase) -> str | None:
    """Every defense of the line-up takes this task and these records."""
    if data.where(case.scenario.data) is None:
        return f"{case.scenario.data} is not on this machine"
    scenario, problem = case.scenario, case.problem
    key = jax.random.key(scenario.spec.seed)
    public = audits.begin(key, scenario, problem)
    for entry in scenario.defenses:
        audits.build(key, entry, problem, public)
    return None


def a_small_run_works(case: ScenarioCase) -> str | None:
    """Every planned trial is there, and none failed."""
    if not case.run:
        return NOT_RUN
    line_ups = case.scenario.defenses, case.scenario.attacks
    planned = {(d.label, a.label) for d, a in itertools.product(*line_ups)}
    trials = {(t["defense"], t["attack"]): t for t in case.card.trials}
    if trials.keys() != planned:
        broken(f"planned and not there: {sorted(planned - trials.keys())}")
    for (defense, attack), t in trials.items():
        if t["status"] == "failed":
            broken(f"{attack} on {defense}: {t['reason']}")
    return None


def every_attack_plays(case: ScenarioCase) -> str | None:
    """No attack of the line-up is skipped on every defense."""
    if not case.run:
        return NOT_RUN
    played = {t["attack"] for t in case.card.trials if t["status"] != "skipped"}
    for t in case.card.trials:
        if t["attack"] not in played:
            broken(f"{t['attack']}: {t['reason']}")
    return None


def its_card_keeps_the_schema(case: ScenarioCase) -> str | None:
    """What it writes is a scorecard others can read."""
    if not case.run:
        return NOT_RUN
    schema.from_json(cards.to_json(case.card))
    return None


def its_card_can_be_shown(case: ScenarioCase) -> str | None:
    """Table, notes and page are made of it."""
    if not case.run:
        return NOT_RUN
    for text in (terminal.table(case.card), markdown.render(case.card, [])):
        for label in case.card.defenses:
            if label not in text:
                broken(f"{label} is not shown")
    return None


def its_command_replays_it(case: ScenarioCase) -> str | None:
    """The words on the card compose to the same scenario."""
    _, replay = case.compose()
    again, _ = hydra_app.composed(shlex.split(replay))
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
