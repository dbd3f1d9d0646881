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
from audit.config import compose, hydra_app, plugins, registry, workspace
from audit.config.compose import Scenario
from audit.engine import shadow
from audit.engine import store as stores
from audit.errors import UserError
from audit.report import markdown, terminal
from audit.scorecard import card as cards
from audit.scorecard import schema
from audit.scorecard.card import Scorecard
from audit.testing.laws import broken, does_not_apply


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

    @property
    def neighbours(self) -> list[str]:
        """The folder of plug-ins that its file lies in, if it is in one."""
        laid_out = self.at and self.folder.name == plugins.SCENARIOS
        return [str(self.folder.parent)] if laid_out else []

    def compose(self, *words: str) -> tuple[Scenario, str]:
        """Return the checked scenario with more words, and those that replay it."""
        first = f"scenario={self.name}"
        # of two `data=` the later counts
        typed = [first, *self.insisted, *self.words, *words, *self.at]
        return hydra_app.composed(typed)

    @functools.cached_property
    def insisted(self) -> list[str]:
        """Name the first of its data sets if none is here: few laws need records."""
        sets = [name for name in self.text.get("sets") or () if name in data.names()]
        here = any(data.where(name) for name in sets)
        return [] if here else [f"data={name}" for name in sets[:1]]

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
        if self.scenario.local is None and data.where(self.scenario.data) is None:
            does_not_apply(f"{self.scenario.data} is not on this machine")
        return audits.load(self.scenario, compose.play(self.scenario))

    @functools.cached_property
    def card(self) -> Scorecard:
        """The card of a small run."""
        if not self.run:
            does_not_apply("it was not run (run=False)")
        workspace.prepare_jax()
        scenario, replay = self.compose()
        engine = shadow.Engine(scenario.lanes)
        return audits.audit(scenario, engine, f"python -m audit run {replay}")


def its_name_is_a_word(case: ScenarioCase) -> None:
    """The file's name can be typed: letters, digits and _."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", case.name):
        broken(f"{case.name!r}")


def it_says_what_and_whence(case: ScenarioCase) -> None:
    """Title and source are one line each."""
    for word in ("title", "source"):
        line = case.text.get(word)
        if not isinstance(line, str) or len(line.strip().splitlines()) != 1:
            broken(f"{word}: {line!r}")


def it_composes(case: ScenarioCase) -> None:
    """Every word in it exists and every value is in range."""
    _ = case.scenario


def every_name_exists(case: ScenarioCase) -> None:
    """Model, data sets, defenses, attacks and bounds are there, used here or not."""
    scenario, text = case.scenario, case.text
    registry.source("model", scenario.spec.task.model)
    for name in text["sets"]:
        if name not in (*data.names(), *registry.names("data")):
            broken(f"no data set {name!r}")
    for kind in ("defense", "attack", "bound"):
        used = {e.label: e.name for e in scenario.line_ups[kind]}
        for label, given in (text.get(kind) or {}).items():
            registry.source(kind, (given or {}).get("use", used.get(label, label)))


def every_data_set_composes(case: ScenarioCase) -> None:
    """Each set it names can be insisted on, whether it is on this machine or not."""
    words = [w for w in case.words if not w.startswith(("data=", "sets."))]
    for name in case.scenario.spec.sets:
        hydra_app.composed([f"scenario={case.name}", *words, f"data={name}", *case.at])


def a_misspelt_word_is_refused(case: ScenarioCase) -> None:
    """No block takes words it does not know."""
    for word in ("sedd=1", "task.modle=linear", "sets.nowhere.splits.fixed=3"):
        try:
            case.compose(word)
        except UserError:
            continue
        broken(f"{word} was taken")


def it_is_the_same_every_time(case: ScenarioCase) -> None:
    """Composed again it has the same digest, and with another seed another."""
    digest = stores.digest(case.scenario.resolved())
    if stores.digest(case.compose()[0].resolved()) != digest:
        broken("two digests of one scenario")
    other = case.scenario.spec.seed + 1
    if stores.digest(case.compose(f"seed={other}")[0].resolved()) == digest:
        broken("the seed changes nothing")


def its_settings_are_plain(case: ScenarioCase) -> None:
    """What is resolved comes back from JSON as it was."""
    resolved = case.scenario.resolved()
    if json.loads(json.dumps(resolved)) != resolved:
        broken("some value does not come back")


def its_command_replays_it(case: ScenarioCase) -> None:
    """The words on the card compose to the same scenario."""
    _, replay = case.compose()
    typed, folders = plugins.words(shlex.split(replay))
    with plugins.using(folders):
        again, _ = hydra_app.composed(typed)
    if again.resolved() != case.scenario.resolved():
        broken(f"`{replay}` is another scenario")


def its_data_can_be_split(case: ScenarioCase) -> None:
    """The splits it asks for are there, and disjoint."""
    if not len(case.problem.splits.fixed.y):
        broken("no fixed records")


def its_defenses_can_be_built(case: ScenarioCase) -> None:
    """Every defense of the line-up takes this task and these records."""
    scenario, problem = case.scenario, case.problem
    key = jax.random.key(scenario.spec.seed)
    public = audits.begin(key, scenario, problem)
    for entry in scenario.defenses:
        audits.build(key, entry, problem, public)


def a_small_run_works(case: ScenarioCase) -> None:
    """Every planned trial is there, and none failed."""
    trials = {(t["defense"], t["attack"]): t for t in case.card.trials}
    line_ups = case.scenario.defenses, case.scenario.attacks
    planned = {(d.label, a.label) for d, a in itertools.product(*line_ups)}
    if trials.keys() != planned:
        broken(f"planned and not there: {sorted(planned - trials.keys())}")
    for (defense, attack), t in trials.items():
        if t["status"] == "failed":
            broken(f"{attack} on {defense}: {t['reason']}")


def every_attack_plays(case: ScenarioCase) -> None:
    """No attack of the line-up is skipped on every defense."""
    played = {t["attack"] for t in case.card.trials if t["status"] != "skipped"}
    for t in case.card.trials:
        if t["attack"] not in played:
            broken(f"{t['attack']}: {t['reason']}")


def its_card_keeps_the_schema(case: ScenarioCase) -> None:
    """What it writes is a scorecard others can read."""
    schema.from_json(cards.to_json(case.card))


def its_card_can_be_shown(case: ScenarioCase) -> None:
    """Table, notes and page are made of it."""
    for text in (terminal.table(case.card), markdown.render(case.card, [])):
        for label in case.card.defenses:
            if label not in text:
                broken(f"{label} is not shown")
