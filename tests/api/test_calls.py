"""Calls from Python: equal to the command line, and quick to import."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import numpy as np
import pytest

import audit
from audit.api import calls, shown, words
from audit.cli import verify
from audit.engine.progress import Progress
from audit.errors import UserError
from audit.report import terminal
from audit.scorecard import schema
from audit.scorecard.card import to_json
from audit.types import Defense, Positive
from tests import ROOT, pages
from tests.commands import call, composed
from tests.conftest import records
from tests.games.test_gradient_inversion import fake_card

X, Y = records(60, (6,), 3)  # a table: images would load LPIPS
CUT = {"fixed": 12, "pool": 24, "targets": 4, "test": 10, "order": "shuffled"}


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(nn.Dense(4)(x.reshape((x.shape[0], -1)))))


def loop(task, *, learning_rate: Positive = 0.1) -> Defense:
    def train(key, params, records):
        def loss(params):
            return jax.vmap(task.loss, (None, 0))(params, records).mean()

        return jax.tree.map(
            lambda a, g: a - learning_rate * g, params, jax.grad(loss)(params)
        )

    return audit.from_train(task, train)


LIGHT = """
import sys
before = set(sys.modules)
import audit
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
assert loaded <= {"audit", *sys.stdlib_module_names}, loaded
assert {"run", "scenario", "load", "compare", "from_flax"} <= set(dir(audit))
"""


def test_an_import_loads_nothing_that_takes_time():
    subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, check=True)
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        _ = audit.rum


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({"seed": 1, "runs": np.int64(2)}, ["seed=1", "runs=2"]),
        ({"delta": 1e-9, "store": None}, ["delta=1e-09", "store=null"]),
        ({"splits": {"targets": 5, "pool": 7}}, ["splits.targets=5", "splits.pool=7"]),
        ({"attacks": ["a", {"q": {"use": "b"}}]}, ["attacks=[a,{q:{use:b}}]"]),
        ({"defenses": "sgd"}, ["defenses=[sgd]"]),
        ({"title": "It's, a: test"}, [r"title='It\'s, a: test'"]),
        ({"title": "true"}, ["title='true'"]),
        ({"title": "Données"}, ["title='Données'"]),
        ({"data": "file:a/b.npz"}, ["data=file:a/b.npz"]),
        ({"task": {"classes": [0, 1]}}, ["task.classes=[0,1]"]),
        ({"task": "mlp"}, ["task.model=mlp"]),
    ],
)  # fmt: skip
def test_values_become_words(settings, want):
    assert list(words.typed(settings).words) == want


def test_words_of_values_compose_as_typed():
    typed = words.typed({
        "title": "It's, a: 'test' \\ of [words]", "delta": 1e-7,
        "defense": {"dpsgd": {"noise_multiplier": 0.25}},
    })  # fmt: skip
    scenario, _ = composed("scenario=own", *typed.words)
    assert scenario.spec.title == "It's, a: 'test' \\ of [words]"
    assert scenario.spec.delta == 1e-7
    assert scenario.defenses[1].settings["noise_multiplier"] == 0.25


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data": 3}, "data=3: the name of a data set"),
        ({"data": (X, Y, Y)}, "the name of a data set, file:PATH.npz, (x, y)"),
        ({"data": {"x": X, "z": Y}}, "data={...} lacks y, has z; it takes x, y, names"),
        ({"task": Net}, "give a module, as Net()"),
        ({"task": 3}, "the name of a model, a flax module"),
        ({"defenses": [lambda task: 1]}, "give it a name, by def"),
        ({"runs": object()}, "object is no setting"),
        ({"defenses": [loop, {"a": type("loop", (), {})}]}, "two different defenses"),
    ],
)
def test_what_is_no_setting_is_refused(settings, says):
    with pytest.raises(UserError, match=re.escape(says)):
        words.typed(settings)


def draft(**more):
    chosen = {"data": (X, Y), "task": Net(), "defenses": ["sgd", loop],
              "attacks": ["class_mean"], "splits": CUT, "runs": 2,
              "training": {"steps": 1}}  # fmt: skip
    return audit.scenario(**chosen | more)


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    return audit.run(draft(), store=store, progress=False)


def test_a_run_of_ones_own_everything(card):
    assert [t.status for t in card.trials] == ["ok", "ok"]
    assert card.data.name.startswith("arrays-")
    used = {(p.kind, p.name, p.origin) for p in card.provenance.plugins}
    assert used == {("model", "Net", "Python"), ("defense", "loop", "Python"),
                    ("data", card.data.name, "Python")}  # fmt: skip
    assert "ghost clipping" in card.provenance.model[1]
    assert not any(k in card.arrays for k in ("target", "sgd/class_mean/guess"))
    with pytest.raises(UserError, match="made in Python with"):
        verify.replay_words(card, "x")


def test_a_card_in_python(card, tmp_path):
    frame = card.frame()
    assert list(frame["defense"]) == ["sgd", "loop"]
    assert frame["value"].tolist() == [t.result.mse for t in card.trials]
    assert "defense" in str(card)
    assert "loop" in repr(card)
    html = card._repr_html_()
    assert html.count("<tr>") == 3
    with pytest.raises(UserError, match="no figure 'roc'"):
        card.plot("roc")
    with pytest.raises(UserError, match="no figure 3; there is"):
        card.plot(3)
    folder = card.save(tmp_path / "saved")
    names = {file.name for file in folder.iterdir()}
    assert {"scorecard.json", "scorecard.npz", "scorecard.md", "report.html"} <= names
    again = audit.load(folder)
    assert to_json(again) == to_json(card)
    for name, values in card.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)
    assert not audit.compare(card, folder).weaker


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda card: audit.load(None), "path=None: a path is wanted"),
        (lambda card: audit.load(3), "path=3: a path is wanted"),
        (lambda card: card.save(3), "folder=3: a path is wanted"),
        (lambda card: audit.compare(card, None), "None is no card"),
        (lambda card: audit.compare([card], 3), "3 is no card"),
        (lambda card: audit.compare(3, card), "3 is no card"),
        (lambda card: audit.compare([card, None], card), "None is no card"),
        (lambda card: audit.compare([card], []), "no card on one side: give one"),
        (lambda card: audit.load("a.json"), "'a.json' is no folder with a scorecard"),
        (lambda card: audit.from_flax(Net(), None), "example_x=None: one record"),
        (lambda card: audit.from_flax(Net(), X[0], loss="mse"), "loss='mse': a func"),
        (lambda card: audit.from_flax(Net(), "mine"), "example_x='mine': one record"),
        (lambda card: audit.from_train(None, None), "from_train(None, None): a task"),
        (lambda card: audit.from_train(None, print), "a function to train it are"),
        (lambda card: audit.run("own", plugins=None), "plugins None: no such folder"),
    ],
)
def test_what_is_of_another_type_is_refused_in_one_line(wrong, says, card):
    with pytest.raises(UserError, match=re.escape(says)):
        wrong(card)


@pytest.mark.parametrize("kind", [str, Path])
def test_one_folder_of_plug_ins_needs_no_list(kind, tmp_path):
    one = kind(tmp_path)
    assert draft(plugins=one).folders == draft(plugins=[one]).folders
    with pytest.raises(UserError, match=r"plugins mine: no such folder"):
        draft(plugins=kind("mine"))
    with pytest.raises(UserError, match=r"plugins mine: no such folder"):
        audit.run(draft(), plugins=kind("mine"), progress=False)


def test_a_notebook_shows_figures_by_themselves():
    figure = calls.Card(*fake_card()).plot("common_scale")
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_a_notebook_shows_progress_in_one_line_that_goes(monkeypatch):
    class Handle:
        def update(self, shown, raw):
            lines.append(shown["text/plain"])

    def display(shown, **_):
        lines.append(shown["text/plain"])
        return Handle()

    lines: list[str] = []
    kernel = SimpleNamespace(kernel=object())
    there = SimpleNamespace(get_ipython=lambda: kernel)
    monkeypatch.setitem(sys.modules, "IPython", there)
    monkeypatch.setitem(
        sys.modules, "IPython.display", SimpleNamespace(display=display)
    )
    with shown.notebook_or_terminal() as progress:
        progress.report("target runs", 3, 1000)
        progress.report("target runs", 4, 1000)  # too soon after
    assert lines == ["target runs: 3 of 1,000", ""]
    monkeypatch.setattr(there, "get_ipython", lambda: None)  # a terminal's
    assert type(shown.notebook_or_terminal()) is Progress


def test_units_are_those_of_the_data(card):
    """Columns of a table are no pixels."""
    table, images = (terminal.notes(c).split("; ±")[0] for c in (card, pages.card()))
    assert table == "MSE per feature, features in standard deviations"
    assert images == "MSE per pixel, pixels in [0, 1]"
    features = card.scenario["features"] | {"standardise": False}
    scenario = card.scenario.model_copy(update={"features": features})
    assert "MSE per feature; ±" in terminal.notes(card._replace(scenario=scenario))


def test_html_is_escaped(card):
    notes = [*card.provenance.model, "<script>"]
    shown = calls.Card(*card._replace(
        provenance=card.provenance.model_copy(update={"model": notes})
    ))  # fmt: skip
    assert "<script>" not in shown._repr_html_()
    assert "&lt;script&gt;" in shown._repr_html_()


def test_the_code_of_a_function_is_part_of_the_result():
    """A helper that changes, or what a function closes over, is other code."""

    def factory(size, helper):
        def quiet(task):
            return helper(size)

        return quiet

    version = calls.workspace.objects.version
    one, same = factory(1, lambda s: s), factory(1, lambda s: s)
    assert version(one) == version(same)
    assert version(one) != version(factory(2, lambda s: s))
    assert version(one) != version(factory(1, lambda s: s + 1))
    assert version(Net()) == version(Net())
    assert version(np.arange(3)) != version(np.arange(4))


COUNTS = """
def counts(task):
    import lone, wood.leaf
    return lone.X, wood.leaf.Y, near.Z, 1 in {2, 3}
"""


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("lone.py", "X = 1", "X = 2"),
        ("wood/leaf.py", "Y = 1", "Y = 2"),
        ("near.py", "low.Z", "low.Z + 1"),
        ("low.py", "Z = 1", "Z = 2"),
        ("notebook", "{2, 3}", "{2, 4}"),
    ],
)
def test_modules_of_ones_own_are_part_of_a_function(
    tmp_path, monkeypatch, file, old, new
):
    """Those it imports itself, those that are there, and what they import."""
    texts = {
        "lone.py": "X = 1",
        "wood/leaf.py": "Y = 1",
        "near.py": "import low\nZ = low.Z",
        "low.py": "Z = 1",
        "notebook": COUNTS,
    }
    (tmp_path / "wood").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def version():
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
            sys.modules.pop(name.partition(".")[0], None)
        space = {"near": importlib.import_module("near"), "__name__": "__main__"}
        exec(texts["notebook"], space)
        return calls.workspace.objects.version(space["counts"])

    before = version()
    assert version() == before
    texts[file] = texts[file].replace(old, new)
    assert version() != before


def impure(task) -> Defense:
    rng = np.random.default_rng()

    def train(key, params, records):
        return jax.tree.map(lambda a: a + float(rng.normal()), params)

    return audit.from_train(task, train)


def branching(task) -> Defense:
    return audit.from_train(task, lambda k, p, z: p if z.x.sum() > 0 else {})


def test_data_that_are_none_are_no_other_data():
    """A loader that forgets its `return` gives None; the digits are not meant."""
    with pytest.raises(UserError, match="data=None: the name of a data set"):
        audit.scenario(data=None)
    with pytest.raises(UserError, match="data=None: the name of a data set"):
        audit.scenario(data=None, task=Net(), splits=CUT)
    for start in ("own", draft()):
        with pytest.raises(UserError, match="data=None: the name of a data set"):
            audit.run(start, data=None, progress=False)


def seven(task):
    return 7


def eight(features, classes):
    return 8


def lossy(task) -> Defense:
    return audit.from_train(task, lambda k, p, z: {})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"defenses": [impure], "training": {}}, "`train` is not pure: one key"),
        (
            {"defenses": [branching], "training": {}},
            "cannot be traced by JAX: TracerBoolConversion",
        ),
        ({"defenses": [lossy], "training": {}}, "returns dict of another structure"),
        (
            {"defenses": [seven], "training": {}},
            "defense seven returns 7, of type int; Defense is wanted",
        ),
        ({"attacks": [seven]}, "attack seven returns 7, of type int; Attack is wanted"),
        ({"task": eight}, "model eight returns 8, of type int; Task is wanted"),
        ({"data": (X, Y % 2)}, "3 classes|2 outputs"),
        ({"data": (X, Y.astype(float)), "task": "mlp"}, "save labels as integers"),
        (
            {"data": (X, Y.astype(float))},
            "Net .* tells 3 classes apart, and y holds fl",
        ),
        ({"data": (X[:9], Y[:9]), "splits": {}}, "at least 20"),
    ],
)
def test_what_cannot_work_is_refused_before_training(more, says, tmp_path):
    with pytest.raises(UserError, match=says) as caught:
        audit.run(draft(**more), store=tmp_path, progress=False)
    assert "\n" not in str(caught.value)


# what a clock or a folder changes
CLOCKS = ("seconds", "command", "git")


def same(first, second):
    """Check that two cards are equal but for clocks, to the bit."""
    plain = []
    for card in (first, second):
        data = json.loads(to_json(card))
        for word in CLOCKS:
            data["provenance"].pop(word)
        for trial in data["trials"]:
            (trial["result"] or {}).pop("seconds", None)
        plain.append(data)
    assert plain[0] == plain[1]
    assert first.arrays.keys() == second.arrays.keys()
    for name, values in first.arrays.items():
        assert values.tobytes() == second.arrays[name].tobytes(), name


SCENARIOS = {
    "calibration": {
        "data": "digits", "runs": 2, "splits": {"targets": 4}, "lanes": {"tile": 8},
    },
    "binary_mnist": {
        "data": "digits", "runs": 1, "accounting_runs": 1, "splits": {"targets": 10},
        "defenses": ["sgd", {"quiet": {"use": "dpsgd", "noise_multiplier": 0.2}}],
        "attacks": ["class_mean", "matched_filter"],
    },
    "glm_attributes": {"defenses": ["exact", "high_noise"], "runs": 5},
    "mia_mnist5k": {
        "data": "digits", "defenses": ["sgd"], "attacks": ["coin", "loss_threshold"],
        "runs": 2, "membership": {"shadows": 8, "calibration": 4}, "lanes.tile": 16,
        "training": {"steps": 20},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_call_composes_as_its_words_do(name):
    settings = SCENARIOS[name]
    scenario, replay, _ = calls._composition(name, settings, ())
    typed, theirs = composed(f"scenario={name}", *words.typed(settings).words)
    assert scenario.resolved() == typed.resolved()
    assert replay == theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_card_is_that_of_the_command_to_the_bit(name, tmp_path):
    settings = SCENARIOS[name]
    typed = words.typed(settings).words
    assert call("run", f"scenario={name}", *typed, f"out={tmp_path / 'cli'}") == 0
    card = audit.run(name, **settings, out=tmp_path / "api", progress=False)
    same(card, audit.load(tmp_path / "cli"))
    files = [{f.name for f in (tmp_path / k).iterdir()} for k in ("cli", "api")]
    assert files[0] == files[1]


def test_the_schema_knows_models_and_data():
    text = (ROOT / "docs" / "scorecard.schema.json").read_text()
    assert json.loads(text) == schema.schema()
