"""The command line: help without JAX, and one clear line for everything typed wrong."""

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from audit import data
from audit.__main__ import HELP, main
from audit.__main__ import _audit as AUDIT
from audit.config import compose, hydra_app, registry
from audit.errors import UserError, did_you_mean


def call(*words):
    try:
        return main(list(words))
    except SystemExit as stop:
        return stop.code


@pytest.fixture(autouse=True)
def no_training(monkeypatch, tmp_path):
    """Whatever is refused is refused before anything runs; results go elsewhere."""
    import audit.__main__ as cli

    def fail(*a, **k):
        raise AssertionError("something was trained")

    monkeypatch.setattr(cli, "_audit", fail)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["run", "--help"]])
def test_help(words, capsys):
    assert call(*words) == 0
    assert capsys.readouterr().out == HELP


def test_help_and_bad_words_do_not_import_jax():
    code = (
        "import sys; from audit.__main__ import main\n"
        "main(['--help'])\n"
        "for words in (['run', 'scenario=binary_mnits'], ['nonsense'],\n"
        "              ['leaderboard', 'x'], ['report'], ['verify', '/no/such'],\n"
        "              ['reproduce', 'thesi'], ['reproduce', 'thesis', 'budget=x'],\n"
        "              ['run', 'scenario=binary_mnist', 'defense.dpsgd.nois=1']):\n"
        "    try: code = main(words)\n"
        "    except SystemExit as stop: code = stop.code\n"
        "    assert code == 2, words\n"
        "assert 'jax' not in sys.modules and 'dp_accounting' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


RUN = ("run", "scenario=binary_mnist", "data=mnist5k")
FIL = ("run", "scenario=glm_fil_mnist", "data=mnist5k")
ATTRIBUTES = ("run", "scenario=glm_attributes")
EPSILON = ("run", "scenario=epsilon_audit")
ONE_RUN = ("run", "scenario=epsilon_one_run")
WRONG = {
    ("runn",): "unknown command 'runn'; did you mean 'run'?",
    ("run",): "which scenario? scenario=NAME, NAME one of binary_mnist",
    ("run", "scenario=binary_mnits"): "did you mean 'binary_mnist'?",
    ("run", "binary_mnist"): "'binary_mnist' is not of the form key=value",
    ("list", "x"): "list takes no words, got 'x'",
    ("bench", "x=1"): "bench takes no words",
    ("run", "scenario=binary_mnist", "--config-dir", "/no/such"): "no such folder",
    (*RUN[:2], "data=mnits"): "unknown data set data=mnits; did you mean 'mnist",
    (*RUN[:2], "data=cifar10"): "has no splits for data=cifar10; it has mnist",
    (*RUN, "defenses=[sgd,dpsdg]"): "unknown defense 'dpsdg'; did you mean 'dpsgd'?",
    (*RUN, "defenses=[sgd,sgd]"): "defense 'sgd' stands twice",
    (*RUN, "defenses=[]"): "defenses=[]",
    (*RUN, "defenses=[sgd"): "cannot read 'defenses=[sgd'",
    (*RUN, "attacks=[reconstruct]"): "did you mean 'reconstructor'?",
    (*RUN, "defense.dpsgd.noise_mult=1"): "did you mean 'noise_multiplier'?",
    (*RUN, "defense.dpgsd.noise_multiplier=1"): "unknown defense 'dpgsd'; did you mean",
    (*RUN, "defense.dpsgd.noise_multiplier=-1"): "noise_multiplier=-1: input should be",
    (*RUN, "defense.dpsgd.noise_multiplier=0"): "noise_multiplier=0: input should be",
    (*RUN, "defense.dpsgd.noise_multiplier=nan"): "multiplier=nan: input should be",
    (*RUN, "defense.dpsgd.noise_multiplier=abc"): "multiplier='abc': input should",
    (*RUN, "defense.dpsgd.steps=2.5"): "defense.dpsgd.steps=2.5",
    (*RUN, "defense.dpsgd.steps=0"): "steps=0: input should be greater than or equal",
    (*RUN, "defense.dpsgd.clip=medium"): "clip='medium': input should be 'soft' or",
    (*RUN, "defense.dpsgd.use=dpsg"): "unknown defense 'dpsg'",
    (*RUN, "defense.prune.density=1.5"): "density=1.5: input should be less than",
    (*RUN, "attack.reconstructor.epoch=3"): "did you mean 'epochs'?",
    (*RUN, "attack.reconstructor.epochs=true"): "epochs=True",
    (*RUN, "attack.class_mean.width=3"): "it has no settings",
    (*RUN, "sedd=3"): "unknown key sedd; did you mean 'seed'?",
    (*RUN, "seed=-1"): "seed=-1",
    (*RUN, "seed=abc"): "seed='abc'",
    (*RUN, "runs=0"): "runs=0",
    (*RUN, "delta=2"): "delta=2",
    (*RUN, "attack.reconstructor.held_out=1.0"): "held_out=1.0: input should be less",
    (*RUN, "training.step=3"): "no defense in the line-up has training.step",
    (*RUN, "lanes.tile=0"): "lanes.tile=0",
    (*RUN, "lanes.tiles=3"): "unknown setting lanes.tiles; did you mean 'tile'?",
    (*RUN, "task.model=binary_liner"): "did you mean 'binary_linear'?",
    (*RUN, "task.classes=[3]"): "task.classes=[3]",
    (*RUN, "task.settings.hidden=3"): "unknown setting task.settings.hidden",
    (*RUN, "sets.mnist5k.splits.fixd=3"): "splits.fixd: did you mean 'fixed'",
    (*RUN, "game=chess"): "game='chess'",
    (*RUN, "defense.dpsgd.noise_multiplier=${nothing}"): "nothing",
    (*RUN, "defenses=[{a/b: {use: sgd}}]"): "letters, digits",
    (*RUN, "sets.mnist5k.splits.targets=0"): "splits.targets=0",
    (*RUN, "sets.mnist5k.splits.pool=0"): "splits.pool=0",
    (*RUN, "attribute=sex"): "attribute=sex",
    (*RUN, "canaries={count: 2}"): "in the games canary and one_run and nowhere else",
    (*EPSILON, "canaries.count=3"): "canaries.count=3: the game canary has one a run",
    (*EPSILON, "canaries.kind=gradiant"): "canaries.kind='gradiant'",
    (*EPSILON, "canaries.nrm=3"): "canaries.nrm: did you mean 'norm'",
    (*EPSILON, "canaries=null"): "canaries=None",
    (*ONE_RUN, "canaries.count=1"): "the game one_run needs at least 2",
    (*ONE_RUN, "runs=2"): "runs=2: the game one_run has one run an audit",
    (*RUN, "features.pcaa=3"): "features.pcaa: did you mean 'pca'",
    (*FIL, "features.pca=-1"): "features.pca=-1",
    (*FIL, "defense.linear.loss=square"): "loss='square'",
    (*FIL, "defense.linear.regularization=-1"): "regularization=-1",
    (*FIL, "defense.logistic_irfil.method=classes"): "method='classes'",
    (*FIL, "sets.mnist5k.splits.targets=3"): "every fixed record is the target in turn",
}  # fmt: skip


# What only the data can tell, and still nothing is trained
TOLD_BY_DATA = {
    (*FIL, "features.pca=785"): "features.pca=785",
    (*FIL, "task.classes=[0,1,2]"): "binary_linear has two classes, not 3",
    (*FIL, "task.model=linear", "task.classes=[0,1,2]"): "the task has 3",
    (*FIL, "defense.logistic.max_norm=0.1"): "above max_norm=0.1",
    (*FIL, "features.pca=0"): "constant",
    (*FIL, "sets.mnist5k.splits.fixed=15"): "features.pca=20: the 15 fixed records",
    (*FIL, "defense.logistic.regularization=0", "features.pca=3",
     "sets.mnist5k.splits.fixed=40"): "a plane separates the classes",
    (*ATTRIBUTES, "attribute=sexx"): "unknown attribute 'sexx'; did you mean 'sex'?",
    (*ATTRIBUTES, "attribute=age"): "attribute 'age' takes",
    (*ATTRIBUTES, "defense.noise.loss=logistic"): "loss=logistic fits two classes",
    (*ONE_RUN, "canaries.kind=input"): "1000 input canaries from a pool of 50",
    (*EPSILON, "defenses=[epsilon_1,noisy_sum]"): "noisy_sum: sums no gradients",
    ("run", "scenario=glm_adult", "data=adult"): "AUDIT_DATA",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_everything_wrong_is_one_line_and_exit_code_two(words, capsys):
    assert call(*words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert WRONG[words] in said.err
    assert "Traceback" not in said.err + said.out


@pytest.mark.parametrize("words", TOLD_BY_DATA, ids=" ".join)
def test_what_the_data_do_not_allow_is_one_line_and_nothing_is_trained(
    words, capsys, monkeypatch
):
    import audit.__main__ as cli
    from audit.games import leave_one_out

    def fail(*a, **k):
        raise AssertionError("something was trained")

    monkeypatch.delenv("AUDIT_DATA", raising=False)
    monkeypatch.setattr(cli, "_audit", AUDIT)
    monkeypatch.setattr(leave_one_out.shadow, "sweep", fail)
    monkeypatch.setattr(leave_one_out, "release", fail)
    assert call(*words, "out=here") == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert TOLD_BY_DATA[words] in said.err


def test_show_resolves_everything(capsys):
    words = [
        "scenario=binary_mnist",
        "data=mnist5k",
        "defense.dpsgd.noise_multiplier=0.1",
    ]
    assert call("show", *words) == 0
    held = OmegaConf.create(capsys.readouterr().out)
    assert held.data == "mnist5k"
    assert held.defense.dpsgd.noise_multiplier == 0.1
    assert held.defense.dpsgd.optimizer == "adam"
    assert held.defense.dpsgd_strong.use == "dpsgd"
    assert held.attack.reconstructor.epochs == 40
    assert held.attack.reconstructor.batch_size == 64


def test_words_beat_what_a_data_set_brings(capsys):
    words = ["scenario=binary_mnist", "data=mnist5k", "attack.reconstructor.epochs=7"]
    assert call("show", *words) == 0
    assert OmegaConf.create(capsys.readouterr().out).attack.reconstructor.epochs == 7


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], 210),  # the data set's, over the scenario's 330
        (["training.steps=420"], 420),
        (["training={steps:420}"], 420),
        (["sets.digits.training.steps=70"], 70),
        (["training.steps=420", "sets.digits.training.steps=70"], 70),
        (["training={steps:420}", "sets.digits={training:{steps:70}}"], 70),
    ],
)
def test_training_words_beat_what_a_data_set_brings(words, steps, capsys):
    assert call("show", "scenario=mia_mnist5k", "data=digits", *words) == 0
    held = OmegaConf.create(capsys.readouterr().out).defense
    assert held.sgd.steps == steps
    assert held.sgd.batch_size == 50
    assert held.dpsgd.steps == 165  # the defense's own words beat both


def test_line_up_takes_settings_in_place(capsys):
    entry = "defenses=[sgd,{quiet:{use:dpsgd,noise_multiplier:0.01}}]"
    assert call("show", "scenario=binary_mnist", "data=mnist5k", entry) == 0
    held = OmegaConf.create(capsys.readouterr().out)
    assert list(held.defense) == ["sgd", "quiet"]
    assert held.defense.quiet.noise_multiplier == 0.01
    assert held.defense.quiet.steps == 5  # the scenario's training block


def test_sweeps_run_every_point(capsys):
    words = ["scenario=calibration", "data=mnist5k", "-m", "seed=0,1,2"]
    assert call("show", *words) == 0
    held = capsys.readouterr().out
    assert [f"seed: {s}" in held for s in range(3)] == [True] * 3


def test_scenarios_of_third_parties(tmp_path, capsys):
    text = (hydra_app.BUILT_IN / "calibration.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("runs: 10", "runs: 3"))
    words = ["scenario=mine", "data=digits", "--config-dir", str(tmp_path)]
    assert call("show", *words) == 0
    assert OmegaConf.create(capsys.readouterr().out).runs == 3


def test_list_names_everything(capsys):
    assert call("list") == 0
    said = capsys.readouterr().out
    for kind in ("defense", "attack", "model"):
        for name in registry.names(kind):
            assert f"  {name} " in said
    for name in [*compose.scenario_names([hydra_app.BUILT_IN]), *data.names()]:
        assert name in said


def test_doctor_finds_this_machine(capsys):
    assert call("doctor") in (0, 1)
    said = capsys.readouterr().out
    assert max(map(len, said.split("\n"))) <= 120
    for word in (
        "python",
        "jax",
        "device 0",
        "memory",
        "data mnist5k",
        "LPIPS weights",
    ):
        assert word in said


@pytest.mark.parametrize("kind", ["defense", "attack", "model"])
def test_settings_read_from_source_are_the_functions(kind):
    """The schema is read without importing; it must be the real signature."""
    import inspect
    import typing

    for name in registry.names(kind):
        factory = registry.find(kind, name)
        hints = typing.get_type_hints(factory, include_extras=True)
        real = {
            p.name: (hints[p.name], p.default)
            for p in inspect.signature(factory).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }
        assert {k: tuple(v) for k, v in registry.settings(kind, name).items()} == real


def test_every_default_is_valid():
    for kind in ("defense", "attack", "model"):
        for name in registry.names(kind):
            registry.check(kind, name, {}, name)


def test_unwritable_out(tmp_path, monkeypatch, capsys):
    import audit.__main__ as cli
    from audit.config import workspace

    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(
        cli,
        "_audit",
        lambda scenario, command: workspace.open_folder(scenario, tmp_path),
    )
    assert call(*RUN, f"out={blocked}/below") == 2
    assert f"cannot write out={blocked}/below" in capsys.readouterr().err


def test_errors_of_the_data_stop_before_training(monkeypatch, capsys):
    import audit.__main__ as cli
    from audit.pipeline import load

    monkeypatch.setattr(cli, "_audit", lambda scenario, command: load(scenario))
    assert call(*RUN, "sets.mnist5k.splits.targets=5000") == 2
    assert "targets=5000" in capsys.readouterr().err
    assert call(*RUN, "task.classes=[0,12]") == 2
    assert "mnist5k has" in capsys.readouterr().err
    assert call(*RUN, "task.classes=[0,1,2]", "sets.mnist5k.splits.pool=10") == 2
    assert "binary_linear has two classes, not 3" in capsys.readouterr().err


def test_batch_size_that_does_not_fit_the_sampling(capsys, monkeypatch):
    import jax

    import audit.__main__ as cli
    from audit.pipeline import begin, build, load

    def build_all(scenario, command):
        key, problem = jax.random.key(0), load(scenario)
        public = begin(key, scenario, problem)
        for entry in scenario.defenses:
            build(key, entry, problem, public)

    monkeypatch.setattr(cli, "_audit", build_all)
    assert call(*RUN, "defense.dpsgd.batch_size=5") == 2
    assert "defense.dpsgd: sampling=full takes no batch_size" in capsys.readouterr().err
    assert call(*RUN, "defense.dpsgd.sampling=poisson") == 2
    assert "sampling=poisson needs a batch_size" in capsys.readouterr().err
    words = ["defense.dpsgd.sampling=uniform", "defense.dpsgd.batch_size=5000"]
    assert call(*RUN, *words) == 2
    said = "defense.dpsgd: batch_size=5000 is larger than the 201 records"
    assert said in capsys.readouterr().err


def test_unknown_words_offer_the_nearest():
    assert did_you_mean("dpsdg", ["sgd", "dpsgd"]).startswith("; did you mean 'dpsgd'")
    with pytest.raises(UserError, match="there is attack_p"):
        registry.source("attack", "zzz")
