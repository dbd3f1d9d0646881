"""Two hundred generated mistakes: each is refused in one line that helps."""

import difflib
import random
import re
import string
import typing
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from annotated_types import Ge, Gt, Interval

from audit import data
from audit.__main__ import main
from audit.config import compose, hydra_app, registry
from audit.config.schema import (
    Canaries,
    Features,
    Membership,
    Pretrain,
    ScenarioSpec,
    SplitSizes,
    TaskSpec,
)
from audit.types import Lanes
from tests import ROOT

HOW_MANY, SEED, GROUPS = 200, 20, 8
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
    """A scenario, and words that run it as it is."""

    held: compose.Scenario
    words: tuple[str, ...]


@pytest.fixture(scope="module")
def scenes():
    found = {}
    for name in NAMES:
        text = (hydra_app.BUILT_IN / f"{name}.yaml").read_text()
        first = re.search(r"^sets:.*\n(?:\s*#.*\n)*  (\w+):", text, re.MULTILINE)
        words = (f"scenario={name}", f"data={first[1]}")

        def keep(scenario, _, name=name, words=words):
            found[name] = Scene(scenario, ("run", *words))

        hydra_app.launch(list(words), keep)
    return found


def wrong_command(rng, scene):
    word = rng.choice(COMMANDS)
    typed = misspelt(rng, word, COMMANDS)
    return Bad((typed,), typed, frozenset(COMMANDS), word)


def wrong_scenario(rng, scene):
    word = scene.held.spec.name
    typed = misspelt(rng, word, NAMES)
    return Bad(("run", f"scenario={typed}"), typed, frozenset(NAMES), word)


def wrong_data(rng, scene):
    word = scene.held.data
    typed = misspelt(rng, word, data.names())
    words = (*scene.words[:2], f"data={typed}")
    return Bad(words, f"data={typed}", frozenset(["auto", *scene.held.spec.sets]), word)


def wrong_name_in_the_line_up(rng, scene):
    kind = rng.choice(("defense", "attack"))
    known = registry.names(kind)
    word = rng.choice(known)
    typed = misspelt(rng, word, known)
    return Bad((*scene.words, f"{kind}s=[{typed}]"), typed, frozenset(known), word)


def entries(scene):
    """Return (kind, label, name, setting, annotation) of every setting there is."""
    line_ups = (("defense", scene.held.defenses), ("attack", scene.held.attacks))
    return [
        (kind, e.label, e.name, word, setting.annotation)
        for kind, line_up in line_ups
        for e in line_up
        for word, setting in registry.settings(kind, e.name).items()
    ]


def wrong_label(rng, scene):
    kind, label, _, setting, _ = rng.choice(entries(scene))
    line_up = scene.held.defenses if kind == "defense" else scene.held.attacks
    known = {*registry.names(kind), *(e.label for e in line_up)}
    typed = misspelt(rng, label, known)
    words = (*scene.words, f"{kind}.{typed}.{setting}=1")
    return Bad(words, typed, frozenset(known), label)


def wrong_setting(rng, scene):
    kind, label, name, setting, _ = rng.choice(entries(scene))
    known = registry.settings(kind, name)
    typed = misspelt(rng, setting, known)
    words = (*scene.words, f"{kind}.{label}.{typed}=1")
    return Bad(words, f"{kind}.{label}.{typed}", frozenset(known), setting)


def wrong_training(rng, scene):
    known = {w for _, _, n, w, _ in entries(scene)} & {
        w for d in scene.held.defenses for w in registry.settings("defense", d.name)
    }
    word = rng.choice(sorted(known))
    typed = misspelt(rng, word, known)
    words = (*scene.words, f"training.{typed}=1")
    return Bad(words, f"training.{typed}", frozenset(known), word)


def wrong_key(rng, scene):
    known = set(ScenarioSpec.model_fields) - {"name"} | {"scenario"}
    word = rng.choice(sorted(known - {"scenario"}))
    typed = misspelt(rng, word, known)
    return Bad((*scene.words, f"{typed}=1"), typed, frozenset(known), word)


def wrong_nested_key(rng, scene):
    blocks = {
        "task": TaskSpec.model_fields,
        "features": Features.model_fields,
        "pretrain": Pretrain.model_fields,
        f"sets.{scene.held.data}.splits": SplitSizes.model_fields,
        "lanes": Lanes._fields,
    }
    if scene.held.spec.membership is not None:
        blocks["membership"] = Membership.model_fields
    if scene.held.spec.canaries is not None:
        blocks["canaries"] = Canaries.model_fields
    where = rng.choice(sorted(blocks))
    word = rng.choice(sorted(blocks[where]))
    typed = misspelt(rng, word, blocks[where])
    words = (*scene.words, f"{where}.{typed}=1")
    return Bad(words, f"{where}.{typed}", frozenset(blocks[where]), word)


def wrong_model(rng, scene):
    known = registry.names("model")
    word = scene.held.spec.task.model
    typed = misspelt(rng, word, known)
    return Bad((*scene.words, f"task.model={typed}"), typed, frozenset(known), word)


def wrong_game(rng, scene):
    known = typing.get_args(ScenarioSpec.model_fields["game"].annotation)
    word = scene.held.spec.game
    typed = misspelt(rng, word, known)
    return Bad(
        (*scene.words, f"game={typed}"), f"game='{typed}'", frozenset(known), word
    )


def wrong_choice(rng, scene):
    found = [
        (kind, label, setting, typing.get_args(a))
        for kind, label, _, setting, a in entries(scene)
        if typing.get_origin(a) is Literal
    ]
    if not found:
        return None
    kind, label, setting, known = rng.choice(found)
    word = rng.choice(known)
    typed = misspelt(rng, word, known)
    where = f"{kind}.{label}.{setting}"
    words = (*scene.words, f"{where}={typed}")
    return Bad(words, f"{where}='{typed}'", frozenset(known), word)


def plain(annotation):
    """Return the type and the limits of a setting that is a number or a boolean."""
    for option in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(option) is Annotated:
            kind, *limits = typing.get_args(option)
            return kind, limits
        if option in (int, float, bool):
            return option, []
    return None, []


def numbers(scene, kinds):
    return [
        (f"{kind}.{label}.{setting}", *plain(a))
        for kind, label, _, setting, a in entries(scene)
        if plain(a)[0] in kinds
    ]


def wrong_type(rng, scene):
    found = numbers(scene, (int, float, bool))
    if not found:
        return None
    where, kind, _ = rng.choice(found)
    typed, said, pattern = rng.choice(
        {
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
        }[kind]
    )
    return Bad((*scene.words, f"{where}={typed}"), f"{where}={said}", frozenset(),
               says=pattern)  # fmt: skip


def wrong_value(rng, scene):
    found = [
        (where, kind, limit)
        for where, kind, limits in numbers(scene, (int, float))
        for limit in limits
    ]
    if not found:
        return None
    where, kind, limit = rng.choice(found)
    outside = []
    if isinstance(limit, (Gt, Interval)) and limit.gt is not None:
        outside.append((limit.gt, f"greater than {limit.gt}"))
    if isinstance(limit, (Ge, Interval)) and limit.ge is not None:
        outside.append((limit.ge - 1, f"greater than or equal to {limit.ge}"))
    if isinstance(limit, Interval) and limit.lt is not None:
        outside.append((limit.lt, f"less than {limit.lt}"))
    if isinstance(limit, Interval) and limit.le is not None:
        outside.append((limit.le + 1, f"less than or equal to {limit.le}"))
    value, says = rng.choice(outside)
    value = kind(value)
    words = (*scene.words, f"{where}={value}")
    return Bad(words, f"{where}={value!r}", frozenset(), says=says)


def wrong_number_of_the_scenario(rng, scene):
    where, value, says = rng.choice(
        [
            ("seed", "-1", "greater than or equal to 0"),
            ("runs", "0", "greater than or equal to 1"),
            ("accounting_runs", "0", "greater than or equal to 1"),
            ("delta", "0.0", "greater than 0"),
            ("delta", "1.5", "less than 1"),
            ("runs", "1.5", "valid integer"),
            ("pretrain.epochs", "-1", "greater than or equal to 0"),
            (f"sets.{scene.held.data}.splits.augment", "-1", "greater than or equal"),
            ("lanes.tile", "0", "greater than or equal to 1"),
        ]
    )
    words = (*scene.words, f"{where}={value}")
    return Bad(words, f"{where}={value}", frozenset(), says=says)


def wrong_shape(rng, scene):
    where, value, said, says = rng.choice(
        [
            ("defenses", "sgd", "'sgd'", "valid list"),
            ("attacks", "3", "3", "valid list"),
            ("defense", "3", "3", "valid dictionary"),
            ("task", "linear", "'linear'", "valid dictionary"),
            ("title", "[a,b]", "['a', 'b']", "valid string"),
            ("training", "adam", "'adam'", "valid dictionary"),
            ("seed.value", "3", "", "seed={'value': 3}: input should be a valid int"),
        ]
    )
    words = (*scene.words, f"{where}={value}")
    typed = f"{where}={said}" if said else "seed="
    return Bad(words, typed, frozenset(), says=says)


def wrong_grammar(rng, scene):
    word, typed, says = rng.choice(
        [
            ("defenses=[sgd", "defenses=[sgd", "cannot read"),
            ("defense..x=1", "defense..x=1", "cannot read"),
            ("+seed=3", "seed=3", "already at 'seed'"),
            ("runs=3,4", "runs=3,4", "To sweep over it"),
            ("hydra/launcher=nothing", "hydra/launcher", "Available options"),
            ("seed@x=3", "seed@x=3", "config group 'seed' does not exist"),
            ("--plugin", "--plugin", "did you mean '--plugins'"),
            ("--config-dirs", "--config-dirs", "did you mean '--config-dir'"),
            (scene.held.spec.name, scene.held.spec.name, "did you mean 'scenario="),
        ]
    )
    return Bad((*scene.words, word), typed, frozenset(), says=says)


KINDS = (
    wrong_command, wrong_scenario, wrong_data, wrong_name_in_the_line_up, wrong_label,
    wrong_setting, wrong_setting, wrong_setting, wrong_training, wrong_key,
    wrong_nested_key, wrong_nested_key, wrong_model, wrong_game, wrong_choice,
    wrong_choice, wrong_type, wrong_type, wrong_value, wrong_value, wrong_value,
    wrong_number_of_the_scenario, wrong_shape, wrong_grammar,
)  # fmt: skip


@pytest.fixture(scope="module")
def mistakes(scenes):
    """Every kind of mistake in turn, over every scenario in turn; none twice."""
    rng, found, i = random.Random(SEED), {}, 0
    while len(found) < HOW_MANY:
        scene = scenes[NAMES[(i + i // len(KINDS)) % len(NAMES)]]
        bad = KINDS[i % len(KINDS)](rng, scene)
        if bad is not None:
            found.setdefault(bad.words, bad)
        i += 1
    return list(found.values())


# What comes of it ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch, tmp_path):
    import audit.__main__ as cli

    def fail(*given):
        raise AssertionError("it was run")

    monkeypatch.setattr(cli, "_audit", fail)
    monkeypatch.chdir(tmp_path)


def near(a, b):
    return difflib.SequenceMatcher(None, a, b).ratio()


def fault(bad, code, out, err):
    """Return what is wrong with an answer; None for a good one."""
    if code != 2:
        return f"exit code {code}"
    if (
        not err.startswith("error: ")
        or err.count("\n") != 1
        or "Traceback" in err + out
    ):
        return "not one line"
    if bad.typed not in err:
        return f"does not name {bad.typed!r}"
    if bad.says and not re.search(re.escape(bad.says), err):
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


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_mistake_is_refused_in_one_line_that_helps(group, mistakes, capsys):
    wrong = []
    for bad in mistakes[group::GROUPS]:
        try:
            code: Any = main(list(bad.words))
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
        said = capsys.readouterr()
        reason = fault(bad, code, said.out, said.err)
        if reason is not None:
            wrong.append(f"{' '.join(bad.words)}\n    {reason}\n    {said.err.strip()}")
    assert not wrong, f"{len(wrong)} answers:\n" + "\n".join(wrong)


def test_there_are_two_hundred_over_all_scenarios_and_kinds(mistakes):
    assert len({bad.words for bad in mistakes}) == HOW_MANY
    told = {w for bad in mistakes for w in bad.words if w.startswith("scenario=")}
    assert {f"scenario={name}" for name in NAMES} <= told


def test_the_check_itself_is_not_blind():
    """An answer that does not help is found."""
    bad = Bad(("run",), "seed=x", frozenset({"runs"}), "runs")
    assert fault(bad, 0, "", "") == "exit code 0"
    assert fault(bad, 2, "", "error: a\nb\n") == "not one line"
    assert fault(bad, 2, "", "error: no\n") == "does not name 'seed=x'"
    assert fault(bad, 2, "", "error: seed=x\n") == "offers nothing"
    said = "error: seed=x; did you mean 'seeds'?\n"
    assert "not valid" in fault(bad, 2, "", said)


def test_no_jax_is_needed_to_say_so():
    """In a process of its own, where nothing was imported before."""
    import subprocess
    import sys

    code = (
        "import sys; from audit.__main__ import main\n"
        "for words in (['run', 'scenario=binary_mnist', 'data=digits', 'seed=x'],\n"
        "              ['run', 'scenario=binary_mnist', 'data=digits', '+seed=1'],\n"
        "              ['new', 'defence', 'x'], ['list', '--plugins', '/no/such'],\n"
        "              ['run', 'scenario=calibration', 'bounds=[x]', 'data=digits']):\n"
        "    try: code = main(words)\n"
        "    except SystemExit as stop: code = stop.code\n"
        "    assert code == 2, words\n"
        "assert 'jax' not in sys.modules\n"
    )
    root = str(ROOT)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
