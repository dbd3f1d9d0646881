"""The command line: help without JAX, and one clear line for everything typed wrong."""

import re
import subprocess
import sys
from types import CellType, FunctionType, SimpleNamespace

import pytest
from omegaconf import OmegaConf

import audit.__main__ as cli
from audit import data
from audit.__main__ import HELP
from audit.__main__ import _audit as AUDIT
from audit.cli import help as help_pages
from audit.config import compose, hydra_app, registry, workspace
from audit.engine import shadow
from audit.games import leave_one_out
from audit.testing import laws
from tests import ROOT
from tests.commands import call, printed, refused

pytestmark = pytest.mark.usefixtures("nothing_runs")


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help(words, capsys):
    assert printed(capsys, *words) == HELP


def test_every_command_has_a_page_of_its_own_with_three_examples(capsys):
    verbs = re.findall(r"^  ([a-z]+)", HELP.split("\nwords of")[0], re.MULTILINE)
    assert set(verbs) - {"python"} == set(help_pages.PAGES)
    for verb in help_pages.PAGES:
        text = printed(capsys, verb, "--help")
        assert text.startswith(f"usage: python -m audit {verb}")
        assert text.count(f"\n  python -m audit {verb}") == 3
        assert max(map(len, text.split("\n"))) <= 80
        docs = text.split("more: ")[1].strip().split(", ")
        assert all((ROOT / page).is_file() for page in docs)
        assert printed(capsys, "help", verb) == text


def test_the_words_on_a_page_are_those_of_its_command():
    """What a page names is read; any other option ends with exit code 2."""
    source = (ROOT / "audit" / "__main__.py").read_text()
    free = {"run", "show"}  # Hydra's; all of them are settings of a scenario
    for verb, page in help_pages.PAGES.items():
        body = source.split(f"def _{verb}(")[1].split("\ndef ")[0]
        for word, _ in page.words if verb not in free else ():
            name = word.partition("=")[0]
            if "=" in word:
                assert f'"{name}=' in body, (verb, word)


IN_A_PROCESS = """
import sys
from tests.commands import call
assert call("--help") == 0
for line in sys.stdin:
    assert call(*line.split()) == 2, line
assert not {"jax", "dp_accounting"} & set(sys.modules)
"""
NO_JAX = """\
nonsense
run scenario=binary_mnits
run scenario=binary_mnist defense.dpsgd.nois=1
run scenario=binary_mnist data=digits seed=x
run scenario=binary_mnist data=digits +seed=1
run scenario=calibration bounds=[x] data=digits
leaderboard x
report
verify /no/such
reproduce thesi
reproduce thesis budget=x
new defence x
list --plugins /no/such
"""


def test_help_and_bad_words_do_not_import_jax():
    subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS], input=NO_JAX, text=True, check=True,
        capture_output=True, cwd=ROOT,
    )  # fmt: skip


RUN = ("run", "scenario=binary_mnist", "data=mnist5k")
FIL = ("run", "scenario=glm_fil_mnist", "data=digits")
ATTRIBUTES = ("run", "scenario=glm_attributes")
EPSILON = ("run", "scenario=epsilon_audit")
ONE_RUN = ("run", "scenario=epsilon_one_run")
# Misspelt words and values out of range: tests/config/test_bad_settings.py
WRONG = {
    ("run",): "which scenario? scenario=NAME, NAME one of binary_mnist",
    ("list", "x"): "list takes no words, got 'x'",
    ("bench", "x=1"): "bench takes rows=NAME,NAME and out=DIR, not 'x=1'",
    ("bench", "rows=lenett"): "unknown rows 'lenett'; did you mean 'lenet'",
    ("leaderboard", "resluts=x"): "takes results=DIR, not 'resluts=x'",
    ("leaderboard", "results=/no/such"): "no such folder",
    ("leaderboard", "results="): "results= says nothing",
    ("report", "binary_mnist-mnist5k", "out="): "out= says nothing",
    ("bench", "rows=linear", "rows=draws"): "rows stands twice; which one?",
    ("bench", "out=/proc/no"): "cannot write out=/proc/no",
    ("frontier", str(ROOT / "results/calibration-mnist5k"), f"out={ROOT}/README.md"):
        "README.md: File exists; use another out=DIR",
    ("run", "--plugins"): "say --plugins DIR",
    ("leaderboard", "results=."): "no scorecard",
    ("run", "scenario=binary_mnist", "--config-dir", "/no/such"): "no such folder",
    (*RUN[:2], "data=cifar10"): "has no splits for data=cifar10; it has mnist",
    (*RUN, "defenses=[sgd,sgd]"): "defense 'sgd' stands twice",
    (*RUN, "defenses=[]"): "defenses=[]",
    (*RUN, "defenses=sgd"): "did you mean [sgd]?",
    (*RUN, "defense.dpsgd.use=dpsg"): "unknown defense 'dpsg'",
    (*RUN, "attack.class_mean.width=3"): "it has no settings",
    (*RUN, "seed=abc"): "seed='abc'",
    (*RUN, "task.classes=[3]"): "task.classes=[3]",
    (*RUN, "task.settings.hidden=3"): "unknown setting task.settings.hidden",
    (*RUN, "defense.dpsgd.noise_multiplier=${nothing}"): "nothing",
    (*RUN, "defenses=[{a/b: {use: sgd}}]"): "letters, digits",
    (*RUN, "sets.mnist5k.splits.targets=0"): "splits.targets=0",
    (*RUN, "sets.mnist5k.splits.pool=0"): "splits.pool=0",
    (*RUN, "attribute=sex"): "attribute: a setting of attribute; the game is",
    (*RUN, "canaries={count: 2}"): "canaries: a setting of canary, one_run",
    (*EPSILON, "canaries.count=3"): "canaries.count=3: the game canary has one per run",
    (*EPSILON, "runs=1"): "the game canary needs at least 2",
    (*EPSILON, "canaries.kind=gradiant"): "canaries.kind='gradiant'",
    (*EPSILON, "canaries=null"): "canaries=None",
    (*ONE_RUN, "canaries.count=1"): "the game one_run needs at least 2",
    (*ONE_RUN, "runs=2"): "runs=2: the game one_run has one run per audit",
    (*FIL, "features.pca=-1"): "features.pca=-1",
    (*RUN, "sets.mnist5k.splits.augment=100"):
        "above splits.pool=450, or 0 for none",
    (*RUN, "sets.mnist5k.splits.augment=100001"): "less than or equal to 100000",
    (*RUN, "sets.mnist5k.splits.targets=1"):
        "a standard error needs at least 2 targets",
    (*RUN, "training.steps=20000000"):
        "training.steps=20000000: input should be at most",
    (*RUN, "defense.dpsgd.clip_norm=1e-46"): "0, or of a size from 1e-18 to 1e+18",
    (*RUN, "attack.lira.sahdows=1"): "unknown setting attack.lira.sahdows",
    (*RUN, "title=a\nb\0="): "cannot read 'title=a\\nb\\x00='",
    (*RUN, "out=a\nb\0="): "out='a\\nb\\x00=': string should match",
    (*FIL, "sets.digits.splits.targets=3"): "every fixed record is the target in turn",
}  # fmt: skip


# What only the data can tell, and still nothing is trained
TOLD_BY_DATA = {
    (*FIL, "features.pca=65"): "features.pca=65",
    (*FIL, "task.classes=[0,1,2]"): "binary_linear has two classes, not 3",
    (*FIL, "task.model=linear", "task.classes=[0,1,2]"): "the task has 3",
    (*FIL, "defense.logistic.max_norm=0.1"): "above max_norm=0.1",
    # the fixed records are shorter, a target is not
    ("run", "scenario=calibration", "data=digits", "defenses=[output_perturbed_glm]",
     "attacks=[]", "sets.digits.splits.fixed=20", "sets.digits.splits.targets=30",
     "defense.output_perturbed_glm.max_norm=4.7"): "norm 4.806, above max_norm=4.7",
    (*FIL, "features.pca=0"): "constant",
    (*FIL, "sets.digits.splits.fixed=15"): "features.pca=20: the 15 fixed records",
    (*FIL, "defense.logistic.regularization=0", "features.pca=3",
     "sets.digits.splits.fixed=40"): "a plane separates the classes",
    (*ATTRIBUTES, "attribute=sexx"): "unknown attribute 'sexx'; did you mean 'sex'?",
    (*ATTRIBUTES, "attribute=age"): "attribute 'age' takes",
    (*ATTRIBUTES, "defense.noise.loss=logistic"): "loss=logistic fits two classes",
    (*ONE_RUN, "canaries.kind=input"): "1000 input canaries from a pool of 50",
    (*EPSILON, "defenses=[epsilon_1,noisy_sum]"): "noisy_sum: sums no gradients",
    ("run", "scenario=glm_adult", "data=adult"): "AUDIT_DATA",
    (*RUN, "sets.mnist5k.splits.targets=5000"): "targets=5000",
    (*RUN, "task.classes=[0,12]"): "mnist5k has",
    (*RUN, "task.classes=[0,1,2]", "sets.mnist5k.splits.pool=10"):
        "binary_linear has two classes, not 3",
    (*RUN, "defense.dpsgd.batch_size=5"):
        "defense.dpsgd: sampling=full takes no batch_size",
    (*RUN, "defense.dpsgd.sampling=poisson"): "sampling=poisson needs a batch_size",
    (*RUN, "defense.dpsgd.sampling=uniform", "defense.dpsgd.batch_size=5000"):
        "defense.dpsgd: batch_size=5000 is larger than the 201 records",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_everything_wrong_is_one_line_and_exit_code_two(words, capsys):
    assert WRONG[words] in refused(capsys, *words)


@pytest.mark.parametrize("words", TOLD_BY_DATA, ids=" ".join)
def test_what_the_data_do_not_allow_is_one_line_and_nothing_is_trained(
    words, capsys, monkeypatch
):
    def fail(*given, **settings):
        raise AssertionError("something was trained")

    monkeypatch.delenv("AUDIT_DATA", raising=False)
    monkeypatch.setattr(cli, "_audit", AUDIT)
    monkeypatch.setattr(shadow, "sweep", fail)
    monkeypatch.setattr(leave_one_out, "release", fail)
    assert TOLD_BY_DATA[words] in refused(capsys, *words, "out=here")


@pytest.fixture
def shown(capsys):
    """Return what `show` prints of some words."""
    return lambda *words: OmegaConf.create(printed(capsys, "show", *words))


def test_show_resolves_everything(shown):
    word = "attack.reconstructor.epochs=7"  # it beats what the data set brings
    assert shown(*RUN[1:], word).attack.reconstructor.epochs == 7
    scenario = shown(*RUN[1:], "defense.dpsgd.noise_multiplier=0.1")
    dpsgd, attack = scenario.defense.dpsgd, scenario.attack.reconstructor
    assert (scenario.data, scenario.defense.dpsgd_strong.use) == ("mnist5k", "dpsgd")
    assert (dpsgd.noise_multiplier, dpsgd.optimizer) == (0.1, "adam")
    assert (attack.epochs, attack.batch_size) == (40, 64)


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
def test_training_words_beat_what_a_data_set_brings(words, steps, shown):
    defenses = shown("scenario=mia_mnist5k", "data=digits", *words).defense
    assert defenses.sgd.steps == steps
    assert defenses.sgd.batch_size == 50
    assert defenses.dpsgd.steps == 165  # the defense's own words beat both


LINE_UP = "defenses=[sgd,{gauss_8:{use:dpsgd,noise_multiplier:9}}]"


@pytest.mark.parametrize(
    ("words", "noise", "clip"),
    [
        (["data=fashion_mnist"], 0.424, 1.0),
        (["data=cifar10"], 0.482, 1.0),  # the data set's, over the scenario's .424
        (["data=cifar10", "defense.gauss_8.noise_multiplier=3"], 3, 1.0),
        (["data=cifar10", "defense={gauss_8:{noise_multiplier:3}}"], 3, 1.0),
        (["data=cifar10", "defense.gauss_8.clip_norm=2"], 0.482, 2.0),
        (["data=cifar10", "sets.cifar10.defense.gauss_8.noise_multiplier=5"], 5, 1.0),
        (["data=cifar10", LINE_UP], 9, 1.0),
        (["data=cifar10", LINE_UP, "defense.gauss_8.noise_multiplier=3"], 3, 1.0),
    ],
)
def test_a_data_sets_defenses_beat_the_scenarios_and_what_is_typed_beats_both(
    words, noise, clip, shown
):
    gauss = shown("scenario=dirdp_mia", *words).defense.gauss_8
    assert (gauss.noise_multiplier, gauss.clip_norm) == (noise, clip)


def test_a_stand_in_searches_as_little_as_its_scenario_says(shown):
    words = "scenario=dirdp_cifar10", "data=mnist5k"
    assert shown(*words).attack.iga.steps == 40
    assert shown(*words, "attack.iga.steps=7").attack.iga.steps == 7


def test_line_up_takes_settings_in_place(shown):
    entry = "defenses=[sgd,{quiet:{use:dpsgd,noise_multiplier:0.01}}]"
    scenario = shown(*RUN[1:], entry)
    assert list(scenario.defense) == ["sgd", "quiet"]
    assert scenario.defense.quiet.noise_multiplier == 0.01
    assert scenario.defense.quiet.steps == 5  # the scenario's training block


def test_sweeps_run_every_point(capsys):
    words = ["scenario=calibration", "data=mnist5k", "-m", "seed=0,1,2"]
    out = printed(capsys, "show", *words)
    assert all(f"seed: {s}" in out for s in range(3))


def test_scenarios_of_third_parties(tmp_path, shown):
    text = (hydra_app.BUILT_IN / "calibration.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("runs: 10", "runs: 3"))
    where = "--config-dir", str(tmp_path)
    assert shown("scenario=mine", "data=digits", *where).runs == 3


def test_list_names_everything(capsys):
    out = printed(capsys, "list")
    plug_ins = {n for k in ("defense", "attack", "model") for n in registry.names(k)}
    scenarios = compose.scenario_names([hydra_app.BUILT_IN])
    assert all(f"  {n} " in out for n in (*plug_ins, *scenarios, *data.names()))
    assert '"' not in out.split("data sets")[0]
    assert max(map(len, out.split("data sets")[0].split("\n"))) <= 80
    for block in re.split(r"^\S.*\n", out.split("data sets")[0], flags=re.M)[1:]:
        starts = {
            m.end() for m in map(re.compile(r"  \S+ +").match, block.split("\n")) if m
        }
        assert len(starts) <= 1  # aligned


def test_doctor_finds_this_machine(capsys):
    assert call("doctor") in (0, 1)
    out = capsys.readouterr().out
    assert max(map(len, out.split("\n"))) <= 120
    probes = ("python", "jax", "device 0", "memory", "data mnist5k", "LPIPS weights")
    assert all(word in out for word in probes)


@pytest.mark.parametrize("kind", ["defense", "attack", "model"])
def test_settings_read_from_source_are_the_functions(kind):
    """The schema is read without importing; it must be the real signature."""
    for name in registry.names(kind):
        case = SimpleNamespace(factory=registry.find(kind, name))
        laws.settings_are_read_from_the_source(case)
        laws.defaults_are_valid(case)


def test_unwritable_out(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    opens = lambda scenario, command: workspace.open_folder(scenario, tmp_path)
    monkeypatch.setattr(cli, "_audit", opens)
    line = refused(capsys, *RUN, f"out={blocked}/below")
    assert f"cannot write out={blocked}/below" in line


def test_failed_trials_of_other_processes_are_counted(monkeypatch, tmp_path):
    """A launcher's jobs are copies: what they append to a list is not seen here."""

    def launch(words, job):
        inside = [cell.cell_contents for cell in job.__closure__]
        cells = [CellType(v[:] if isinstance(v, list) else v) for v in inside]
        copied = FunctionType(job.__code__, job.__globals__, closure=tuple(cells))
        copied(words[-1], "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hydra_app, "launch", launch)
    monkeypatch.setattr(compose, "play", lambda scenario: None)
    monkeypatch.setattr(cli, "_audit", lambda scenario, command: int(scenario))
    words = "run", "scenario=calibration", "-m", "hydra/launcher=joblib"
    assert call(*words, "1") == 1
    assert call(*words, "0") == 0
    assert not list((tmp_path / "results/runs").iterdir())
    assert call(*words, "0") == 0
