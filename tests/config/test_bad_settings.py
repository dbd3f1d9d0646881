"""A thousand generated mistakes: each is refused in one line that helps."""

import difflib
import itertools
import random
import re
import string
import time
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from omegaconf import OmegaConf

from audit import data
from audit.config import compose, hydra_app, registry, scenario_file
from audit.config.schema import (
    Features,
    Pretrain,
    ScenarioSpec,
    Section,
    SplitSizes,
    TaskSpec,
)
from audit.types import Lanes
from tests.commands import call

HOW_MANY, BY_DEFAULT, GROUP, SEED = 1_000, 50, 50, 20
SILENT = 2.0  # seconds of this process that may pass without a word
NAMES = compose.scenario_names([hydra_app.BUILT_IN])
COMMANDS = (
    "run", "show", "reproduce", "leaderboard", "report", "verify", "membership",
    "list", "bench", "doctor", "new",
)  # fmt: skip


class Bad(NamedTuple):
    """One mistake, and what its one line must say."""

    words: tuple[str, ...]
    typed: str  # is named
    instead: frozenset[str]  # one of these is offered, the nearest; none = see `says`
    meant: str = ""  # what was misspelt: nothing offered may be further away
    says: str = ""  # a pattern: the limit or the type of what is no word
    may_work: bool = False  # it may happen to be no mistake


def misspelt(rng, word, valid):
    """Return a word with one slip that is no valid one."""
    while True:
        at = rng.randrange(len(word))
        slip = rng.choice(("drop", "swap", "double", "replace"))
        letter = rng.choice(string.ascii_lowercase)
        new = {
            "drop": word[:at] + word[at + 1 :],
            "swap": word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
            "double": word[: at + 1] + word[at:],
            "replace": word[:at] + letter + word[at + 1 :],
        }[slip]
        # hydra reads these as something else than a word
        odd = not re.fullmatch(r"[a-z][a-z0-9_]+", new) or new in ("null", "true")
        if new not in valid and new != word and not odd:
            return new


# What can be typed wrong --------------------------------------------------------------


class Scene(NamedTuple):
    """A scenario, words that run it as it is, and a folder for others."""

    scenario: compose.Scenario
    words: tuple[str, ...]
    folder: Path

    @property
    def settings(self):
        """(kind, label, name, setting, annotation) of every setting there is."""
        return [
            (kind, e.label, e.name, word, setting.annotation)
            for kind in ("defense", "attack")
            for e in self.scenario.line_ups[kind]
            for word, setting in registry.settings(kind, e.name).items()
        ]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    scenes, folder = {}, tmp_path_factory.mktemp("files")
    for name in NAMES:
        config = scenario_file.load(hydra_app.BUILT_IN / f"{name}.yaml")
        config.data = next(iter(config.sets))
        whole = OmegaConf.to_container(config, resolve=True)
        words = ("run", f"scenario={name}", f"data={config.data}")
        scenes[name] = Scene(compose.validate(name, whole), words, folder)
    return scenes


def slip(rng, words, template, word, valid, named="{}"):
    """Return the mistake of misspelling `word` where `template` has braces."""
    typed = misspelt(rng, word, valid)
    words = (*words, template.format(typed))
    return Bad(words, named.format(typed), frozenset(valid), word)


def wrong_command(rng, scene):
    return slip(rng, (), "{}", rng.choice(COMMANDS), COMMANDS)


def wrong_scenario(rng, scene):
    return slip(rng, ("run",), "scenario={}", scene.scenario.spec.name, NAMES)


def wrong_data(rng, scene):
    bad = slip(rng, scene.words[:2], "data={}", scene.scenario.data, data.names())
    return bad._replace(instead=frozenset(["auto", *scene.scenario.spec.sets]))


def wrong_name_in_the_line_up(rng, scene):
    kind = rng.choice(("defense", "attack"))
    valid = registry.names(kind)
    return slip(rng, scene.words, f"{kind}s=[{{}}]", rng.choice(valid), valid)


def wrong_label(rng, scene):
    kind, label, _, setting, _ = rng.choice(scene.settings)
    labels = {entry.label for entry in scene.scenario.line_ups[kind]}
    valid = labels.union(registry.names(kind))
    return slip(rng, scene.words, f"{kind}.{{}}.{setting}=1", label, valid)


def wrong_setting(rng, scene):
    kind, label, name, setting, _ = rng.choice(scene.settings)
    valid = registry.settings(kind, name)
    where = f"{kind}.{label}.{{}}"
    return slip(rng, scene.words, f"{where}=1", setting, valid, where)


def wrong_training(rng, scene):
    valid = {word for kind, _, _, word, _ in scene.settings if kind == "defense"}
    word = rng.choice(sorted(valid))
    return slip(rng, scene.words, "training.{}=1", word, valid, "training.{}")


def wrong_key(rng, scene):
    words = set(ScenarioSpec.model_fields) - {"name"}
    valid = {*words, *scene.scenario.game.settings, "scenario"}
    word = rng.choice(sorted(words))
    return slip(rng, scene.words, "{}=1", word, valid)


def wrong_nested_key(rng, scene):
    blocks = {
        "task": TaskSpec.model_fields,
        "features": Features.model_fields,
        "pretrain": Pretrain.model_fields,
        f"sets.{scene.scenario.data}.splits": SplitSizes.model_fields,
        "lanes": Lanes._fields,
    }
    for word, value in scene.scenario.game.settings.items():
        if isinstance(value, Section):
            blocks[word] = type(value).model_fields
    block = rng.choice(sorted(blocks))
    word, where = rng.choice(sorted(blocks[block])), f"{block}.{{}}"
    return slip(rng, scene.words, f"{where}=1", word, blocks[block], where)


def wrong_model(rng, scene):
    model, valid = scene.scenario.spec.task.model, registry.names("model")
    return slip(rng, scene.words, "task.model={}", model, valid)


def wrong_game(rng, scene):
    game, valid = scene.scenario.spec.game, registry.names("game")
    return slip(rng, scene.words, "game={}", game, valid, "game '{}'")


def wrong_choice(rng, scene):
    choices = [
        (f"{kind}.{label}.{setting}", typing.get_args(a))
        for kind, label, _, setting, a in scene.settings
        if typing.get_origin(a) is Literal
    ]
    if not choices:
        return None
    where, valid = rng.choice(choices)
    word = rng.choice(valid)
    return slip(rng, scene.words, f"{where}={{}}", word, valid, f"{where}='{{}}'")


def plain(annotation):
    """Return the type and the limits of a setting that is a number or a boolean."""
    for option in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(option) is Annotated:
            kind, *limits = typing.get_args(option)
            return kind, limits
        if option in (int, float, bool):
            return option, []
    return None, []


def numbers(scene, types):
    named = [
        (f"{k}.{label}.{word}", *plain(a)) for k, label, _, word, a in scene.settings
    ]
    return [field for field in named if field[1] in types]


# type -> what is typed, how the message shows it, and what it says
WRONG_TYPES = {
    int: [
        ("2.5", "2.5", "valid integer; did you mean 2"),
        ("many", "'many'", "valid integer"),
        ("true", "True", "valid integer"),
        ("[1]", "[1]", "valid integer"),
    ],
    float: [
        ("'0.5'", "'0.5'", "valid number; did you mean 0.5"),
        ("much", "'much'", "valid number"),
        ("[1]", "[1]", "valid number"),
        ("nan", "nan", "finite number"),
    ],
    bool: [("maybe", "'maybe'", "valid boolean"), ("3", "3", "valid boolean")],
}


def wrong_type(rng, scene):
    fields = numbers(scene, WRONG_TYPES)
    if not fields:
        return None
    where, kind, _ = rng.choice(fields)
    typed, shown, says = rng.choice(WRONG_TYPES[kind])
    words = (*scene.words, f"{where}={typed}")
    return Bad(words, f"{where}={shown}", frozenset(), says=says)


def outside(limit):
    """Yield values that a limit excludes, and what the message says of it."""
    for word, step, says in (
        ("gt", 0, "greater than"),
        ("ge", -1, "greater than or equal to"),
        ("lt", 0, "less than"),
        ("le", 1, "less than or equal to"),
    ):
        edge = getattr(limit, word, None)
        if edge is not None:
            yield edge + step, f"{says} {edge}"


def wrong_value(rng, scene):
    fields = [
        (w, k, limit) for w, k, ls in numbers(scene, (int, float)) for limit in ls
    ]
    if not fields:
        return None
    where, kind, limit = rng.choice(fields)
    value, says = rng.choice(list(outside(limit)))
    value = kind(value)
    words = (*scene.words, f"{where}={value}")
    return Bad(words, f"{where}={value!r}", frozenset(), says=says)


def wrong_word_of_the_scenario(rng, scene):
    """A number, a shape, or the grammar: what is typed, named and said."""
    name = scene.scenario.spec.name
    augment = f"sets.{scene.scenario.data}.splits.augment=-1"
    word, typed, says = rng.choice(
        [
            ("seed=-1", "seed=-1", "greater than or equal to 0"),
            ("runs=0", "runs=0", "greater than or equal to 1"),
            ("accounting_runs=0", "accounting_runs=0", "greater than or equal to 1"),
            ("delta=0.0", "delta=0.0", "greater than 0"),
            ("delta=1.5", "delta=1.5", "less than 1"),
            ("runs=1.5", "runs=1.5", "valid integer"),
            ("pretrain.epochs=-1", "pretrain.epochs=-1", "greater than or equal to 0"),
            (augment, augment, "greater than or equal"),
            ("lanes.tile=0", "lanes.tile=0", "greater than or equal to 1"),
            ("defenses=sgd", "defenses='sgd'", "valid list"),
            ("attacks=3", "attacks=3", "valid list"),
            ("defense=3", "defense=3", "valid dictionary"),
            ("task=linear", "task='linear'", "valid dictionary"),
            ("title=[a,b]", "title=['a', 'b']", "valid string"),
            ("training=adam", "training='adam'", "valid dictionary"),
            ("seed.value=3", "seed={'value': 3}", "input should be a valid int"),
            ("defenses=[sgd", "defenses=[sgd", "cannot read"),
            ("defense..x=1", "defense..x=1", "cannot read"),
            ("+seed=3", "seed=3", "already at 'seed'"),
            ("--seed=3", "--seed=3", "did you mean 'seed=3'"),
            ("name=x", "name", "unknown key"),
            ("defenses=[{}]", "defenses.0={}", "at least 1 item"),
            ("runs=1000001", "runs=1000001", "less than or equal to 1000000"),
            ("lanes.tile=10000001", "lanes.tile=10000001", "at most 10000000"),
            ("delta=1e-320", "delta=1e-320", "of a size from 1e-18"),
            (f"seed={'9' * 5000}", "seed=999", "more than 4,096 letters"),
            ("title=${oc.env:HOME}", "oc.env", "is refused"),
            ("hydra.run.dir='${oc.env:HOME}'", "oc.env", "is refused"),
            ("title=${x:${oc.decode:1}}", "oc.decode", "is refused"),
            ("attack={rmia:{sahdows:1}}", "attack.rmia.sahdows", "unknown setting"),
            ("runs=3,4", "runs=3,4", "To sweep over it"),
            ("hydra/launcher=nothing", "hydra/launcher", "Available options"),
            ("seed@x=3", "seed@x=3", "config group 'seed' does not exist"),
            ("--plugin", "--plugin", "did you mean '--plugins'"),
            ("--config-dirs", "--config-dirs", "did you mean '--config-dir'"),
            (name, name, "did you mean 'scenario="),
        ]
    )
    return Bad((*scene.words, word), typed, frozenset(), says=says)


# What must be refused, or do no harm --------------------------------------------------

VALUES = (
    "", "[]", "{}", "[{}]", "{a:{b:{c:1}}}", "[[x]]", "null", "true", "-1", "0", "2.5",
    "1e308", "1e-320", "1e-46", "1e300", "-1e-40", "nan", "inf", "9" * 400, "9" * 5_000,
    "a\0b", "\n", "\ud800", "é", "~", "..", "/dev/null/x", "x" * 3_000, "[" * 2_000,
    "'a b'", "${seed}", "${defense}", "${title}", "'${oc.env:HOME}'", "a,b", "glob(*)",
    "range(1,3)", "0x10", "1_000", "!!python/name:os.system", "=", "'",
)  # fmt: skip
LINES = (
    "x: [*nobody]", "x: &x [*x]", "x: !!python/object/apply:os.system [ls]", "\t- 1",
    "seed: 1\nseed: 2", "? [a]\n: 1", f"x: {'9' * 5_000}", f"x: {'[' * 900}", "- 1",
    "hydra: {callbacks: {x: {_target_: os.system}}}", "defaults: [_self_]", "--- 1",
    "title: ${oc.env:HOME}", 'title: "${oc.decode:\'${seed}\'}"', "out: \"a\\0b\"",
    "x: !!binary aGk=", "x: !!set {a}", "1: 2", "null: 1", "a: &a {b: 1}\n<<: *a",
    f"store: {'x/' * 3_000}", f"x: [{'1, ' * 6_000}]", f"# {'x' * 40_000}", "\0", "%x",
)  # fmt: skip


def any_word(rng, scene):
    words = [f"{kind}.{label}.{word}" for kind, label, _, word, _ in scene.settings]
    words += [f"sets.{scene.scenario.data}.splits.{w}" for w in SplitSizes.model_fields]
    words += [*ScenarioSpec.model_fields, "task.model", "chosen.sgd.by", "x", "a.b", ""]
    word = rng.choice(("", "", "", "+", "~", "-")) + rng.choice(words)
    words = ("show", *scene.words[1:], f"{word}={rng.choice(VALUES)}")
    return Bad(words, "", frozenset(), may_work=True)


def any_file(rng, scene):
    text = (hydra_app.BUILT_IN / f"{scene.scenario.spec.name}.yaml").read_bytes()
    lines = text.split(b"\n")
    for _ in range(rng.randint(1, 2)):
        at, change = rng.randrange(len(lines)), rng.random()
        if change < 0.6:
            lines[at:at] = [rng.choice(LINES).encode()]
        elif change < 0.8:  # another byte, anywhere
            lines[at] = lines[at][:-1] + rng.randbytes(1)
        else:
            lines = lines[:at] or lines
    file = scene.folder / f"f{len(list(scene.folder.iterdir()))}.yaml"
    file.write_bytes(b"\n".join(lines))
    words = ("show", f"scenario={file.stem}", "--config-dir", str(scene.folder))
    return Bad((*words, scene.words[2]), "", frozenset(), may_work=True)


KINDS = (
    any_word, any_file, any_word, any_file, any_word, any_file,
    wrong_command, wrong_scenario, wrong_data, wrong_name_in_the_line_up, wrong_label,
    wrong_setting, wrong_setting, wrong_setting, wrong_training, wrong_key,
    wrong_nested_key, wrong_nested_key, wrong_model, wrong_game, wrong_choice,
    wrong_choice, wrong_type, wrong_type, wrong_value, wrong_value, wrong_value,
    wrong_word_of_the_scenario, wrong_word_of_the_scenario, wrong_word_of_the_scenario,
)  # fmt: skip


@pytest.fixture(scope="module")
def mistakes(scenes):
    """Every kind of mistake in turn, over every scenario in turn; none twice."""
    rng, mistakes, turns = random.Random(SEED), {}, itertools.count()

    def until(number):
        while len(mistakes) < number:
            i = next(turns)
            scene = scenes[NAMES[(i + i // len(KINDS)) % len(NAMES)]]
            bad = KINDS[i % len(KINDS)](rng, scene)
            if bad is not None:
                mistakes.setdefault(bad.words, bad)
        return list(mistakes.values())[:number]

    return until


# What comes of it ---------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("nothing_runs")


def near(a, b):
    return difflib.SequenceMatcher(None, a, b).ratio()


def fault(bad, code, out, err):
    """Return what is wrong with an answer; None for a good one."""
    if bad.may_work and code == 0:
        return None if not err else "speaks on stderr"
    if code != 2:
        return f"exit code {code}"
    if not re.fullmatch("error: .*\n", err) or "Traceback" in err + out:
        return "not one line"
    if bad.typed not in err:
        return f"does not name {bad.typed!r}"
    if bad.says not in err:
        return f"does not say {bad.says!r}"
    if not bad.instead:
        return None
    offered = re.search(r"did you mean '([^']+)'", err)
    if offered is None:
        return "offers nothing"
    slip = re.split(r"[.=']", bad.typed.rstrip("'"))[-1]
    if offered[1] not in bad.instead:
        return f"offers {offered[1]!r}, which is not valid"
    if near(slip, offered[1]) < near(slip, bad.meant) - 0.1:
        return f"offers {offered[1]!r}, and {bad.meant!r} is nearer"
    return None


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n >= BY_DEFAULT else [])
        for n in range(0, HOW_MANY, GROUP)
    ],
)
def test_every_mistake_is_refused_in_one_line_that_helps(first, mistakes, capsys):
    wrong = []
    for bad in mistakes(first + GROUP)[first:]:
        began = time.process_time()
        try:
            code: Any = call(*bad.words)
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
        seconds = time.process_time() - began
        out, err = capsys.readouterr()
        reason = fault(bad, code, out, err)
        if reason is None and first >= BY_DEFAULT and seconds > SILENT:
            reason = f"{seconds:.1f} seconds"
        if reason is None and list(Path().iterdir()):
            reason = f"writes {list(Path().iterdir())}"
        if reason is not None:
            wrong.append(f"{' '.join(bad.words)!r:.300}\n    {reason}\n    {err:.500}")
    assert not wrong, f"{len(wrong)} answers:\n" + "\n".join(wrong)
