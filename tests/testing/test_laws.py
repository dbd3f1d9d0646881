"""The conformance kit: what ships keeps every law, and a broken law is found."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit import testing
from audit.config import registry
from audit.config.compose import scenario_names
from audit.config.hydra_app import BUILT_IN
from audit.mechanisms.noise import gaussian
from audit.mechanisms.output_perturbation import output_perturbation
from audit.testing import attack, defense, laws, scenario
from audit.testing.laws import LawBroken
from audit.types import Attack, Defense, Positive, Query, StepView, Task, ThreatModel
from tests import ROOT

LAWS = {
    kind: {law.__name__: law for law in testing.laws_of(kind)}
    for kind in testing.MODULES
}
# settings of the quickest run that still shows everything
DEFENSES = {
    "dpsgd": {"steps": 2, "noise_multiplier": 0.5},
    "noisy_sum": {"clip_norm": 2.0, "noise_stddev": 0.5},
    "pretrained": {},
}
SLOW_DEFENSES = {
    "dirdp_sgd": {"steps": 2},
    "fim": {"steps": 2, "epochs": 2, "epochs_decay": 1, "least_epochs": 1,
            "perturbation": "constant_direct"},
    "prune": {"steps": 2, "noise_multiplier": 0.5},
    "public_mean": {"steps": 2},
    "reweighted_glm": {"iterations": 2},
    "sgd": {"steps": 2},
}  # fmt: skip
ATTACKS = {
    "class_mean": {},
    "coin": {},
    "gradient_llr": {},
    "lira": {},
    "loss_threshold": {},
    "one_run": {},
    "prior_mode": {},
    "sum_inversion": {"leaves_domain": True},
}
SLOW_ATTACKS = {
    "glm_attack": {"leaves_domain": True},
    "gradient_inversion": {"steps": 3},
    "ideal_imputation": {"oracle": True},
    "matched_filter": {"components": 4, "repeats": 1},
    "maximum_likelihood": {"leaves_domain": True},
    "nearest_neighbour": {"oracle": True},
    "ridge": {},
    "unrolled_inversion": {},
    "reconstructor": {"width": 8, "width_last": 8, "epochs": 2, "batch_size": 8},
}
# words of the smallest run; scenarios without any are composed and built, not run
SMALL = {
    "calibration": [
        "data=digits", "runs=2", "sets.digits.splits.targets=4", "lanes.tile=8",
    ],
    "glm_attributes": ["runs=2", "sets.diabetes.splits.fixed=30"],
}  # fmt: skip


def each(names, quick):
    """Return every name, those that are not quick as slow ones."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", each(registry.built_in("defense"), DEFENSES))
def test_every_defense_that_ships_keeps_the_laws(name):
    settings = (DEFENSES | SLOW_DEFENSES).get(name, {})
    outcomes = testing.check_defense(registry.find("defense", name), **settings)
    assert outcomes.keys() == LAWS["defense"].keys()


@pytest.mark.parametrize("name", each(registry.built_in("attack"), ATTACKS))
def test_every_attack_that_ships_keeps_the_laws(name):
    settings = (ATTACKS | SLOW_ATTACKS).get(name, {})
    outcomes = testing.check_attack(registry.find("attack", name), **settings)
    assert outcomes.keys() == LAWS["attack"].keys()


@pytest.mark.parametrize("name", each(scenario_names([BUILT_IN]), ["calibration"]))
def test_every_scenario_that_ships_keeps_the_laws(name):
    words = SMALL.get(name, [])
    outcomes = testing.check_scenario(name, *words, run=bool(words))
    assert outcomes.keys() == LAWS["scenario"].keys()


def test_a_scenario_whose_data_are_elsewhere_is_judged_all_the_same(nowhere):
    outcomes = testing.check_scenario("dirdp_lfw", run=False)
    assert outcomes["its_command_replays_it"] == "holds"
    elsewhere = "does not apply: lfw is not on this machine"
    assert outcomes["its_data_can_be_split"] == elsewhere


def test_the_laws_are_those_of_the_docs():
    _, page = (ROOT / "docs" / "plugins.md").read_text().split("\n## The laws")
    documented = re.findall(r"^\| `(\w+)` \| (.*) \|$", page.replace("\\|", "|"), re.M)
    written = {
        (n, f.__doc__.split("\n")[0]) for v in LAWS.values() for n, f in v.items()
    }
    assert set(documented) == written


# Broken on purpose: defenses ----------------------------------------------------------


def tiny(task: Task, *, noise_stddev: Positive = 0.5) -> Defense:
    """Release the mean record plus noise.

    Args:
      task: unused.
      noise_stddev: in pixel units.
    """

    def solve(side, data):
        both = data.fixed.x.sum(0)
        both = both if data.target is None else both + jnp.asarray(data.target.x)
        return {"mean": both / 10}

    return output_perturbation(
        solve,
        gaussian(noise_stddev),
        norm_bound=lambda n: 0.4,
        sensitivity=lambda n: 0.4,
        predict=lambda side, release, x: jnp.zeros((len(x), 2)),
    )


def changed(**fields):
    """Return `tiny` with fields replaced by functions of what they were."""

    def factory(task: Task, *, noise_stddev: Positive = 0.5) -> Defense:
        built = tiny(task, noise_stddev=noise_stddev)
        return built._replace(**{k: f(getattr(built, k)) for k, f in fields.items()})

    return factory


def case(factory, **settings):
    return defense.DefenseCase(factory, None, settings)


def scaled(factor):
    return lambda train: lambda *given: jax.tree.map(lambda a: factor(a), train(*given))


def one_key(train):
    return lambda key, *rest: train(jax.random.key(0), *rest)


def ordered(train):
    def by_place(key, side, data):
        x = data.fixed.x
        place = jnp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
        return train(key, side, data._replace(fixed=data.fixed._replace(x=x * place)))

    return by_place


def upside_down(task: Task, *, noise_stddev: Positive = 0.5) -> Defense:
    return tiny(task, noise_stddev=1 / noise_stddev)


def decides(task: Task, *, noise_stddev: Positive = 0.5) -> Defense:
    return tiny(task, noise_stddev=noise_stddev if noise_stddev < 1 else 1.0)


def scaled_by(factor):
    return lambda f: lambda *given: factor * f(*given)


CALLS = iter(np.arange(100.0))
FALLING = np.array([4.0, 3.0, 2.0, 1.0, 0.5])
BROKEN_DEFENSES = {
    "releases_are_finite": changed(train=scaled(lambda a: a / 0.0)),
    "dtype_is_kept": changed(train=scaled(lambda a: a.astype(jnp.float16))),
    "other_keys_draw_other_noise": changed(train=one_key),
    "preparing_looks_at_public_data_only": changed(
        prepare=lambda f: lambda *given: f(*given)._replace(params=next(CALLS))
    ),
    "order_of_records_does_not_matter": changed(train=ordered),
    "predictions_are_logits": changed(predict=lambda f: lambda *g: f(*g)[:, 0]),
    "information_is_finite_and_not_negative": changed(fisher=scaled_by(-1)),
    "the_renyi_curve_rises": changed(rdp=lambda f: lambda n, orders, adj: FALLING),
    "infinite_noise_leaks_nothing": changed(
        rdp=lambda f: lambda n, orders, adj: np.ones(len(orders))
    ),
    "the_tight_epsilon_is_not_above_the_curves": changed(rdp=scaled_by(0.1)),
    "the_target_is_a_candidate_like_any_other": changed(
        log_likelihood=lambda f: lambda *given: f(*given).at[-1].add(1.0)
    ),
    "more_noise_is_never_a_smaller_bound": upside_down,
    "no_noise_no_bound": changed(train=one_key),
    "records_not_in_rows_take_no_part": changed(
        train=lambda f: lambda key, side, data: f(key, side, data._replace(rows=None)),
        traits=lambda traits: traits | {"rows"},
    ),
    "a_new_float_compiles_nothing": decides,
}
MESSAGES = {
    "more_noise_is_never_a_smaller_bound": "noise_stddev=2: information",
    "no_noise_no_bound": ".*`fisher` claims something",
    "records_not_in_rows_take_no_part": ".*records outside the rows",
    "a_new_float_compiles_nothing": "raised Tracer",
}


def test_what_is_broken_below_is_sound_before():
    applies_when_broken = {"no_noise_no_bound", "records_not_in_rows_take_no_part"}
    names = set(BROKEN_DEFENSES) - applies_when_broken
    outcomes = laws.judge("tiny", [LAWS["defense"][n] for n in names], case(tiny))
    assert set(outcomes.values()) == {"holds"}


@pytest.mark.parametrize("law", BROKEN_DEFENSES)
def test_a_defense_that_breaks_a_law_is_found(law):
    message = MESSAGES.get(law, "(?!raised )")
    with pytest.raises(AssertionError, match=f"{law}: {message}"):
        laws.judge("tiny", [LAWS["defense"][law]], case(BROKEN_DEFENSES[law]))


def dpsgd_with(query=lambda q: q):
    """Return a case of DP-SGD whose query is another; no step is compiled."""
    dpsgd = case(registry.find("defense", "dpsgd"), steps=1)
    mechanism = dpsgd.defense.mechanism
    other = mechanism._replace(query=query(mechanism.query))
    changed = dpsgd.defense._replace(mechanism=other)
    dpsgd.learner = dpsgd.learner._replace(defense=changed)
    with jax.enable_x64(True):
        side = defense.double(dpsgd.learner.side)
    everybody = SimpleNamespace(rows=None, weight=None)
    dpsgd.steps = None, [StepView(side.params, side, None, everybody, 0)]
    return dpsgd


def times(form, factor):
    def scale(query):
        forms = query if form in Query._fields else query.closed_forms
        value = getattr(forms, form)
        changed = (
            scaled(lambda a: factor * a)(value) if callable(value) else value * factor
        )
        forms = forms._replace(**{form: changed})
        return forms if form in Query._fields else query._replace(closed_forms=forms)

    return scale


BROKEN_QUERIES = {
    "the_sum_is_the_weighted_sum_of_contributions": times("total", 1.001),
    "the_trace_is_the_jacobians": times("trace", 1.001),
    "the_score_is_the_inner_product": times("score", 1.001),
    "the_sensitivity_is_not_exceeded": times("sensitivity", 0.3),
    "information_is_summed_along_the_run": times("fn", 1.01),
}


@pytest.mark.parametrize("law", BROKEN_QUERIES)
def test_a_query_that_breaks_a_law_is_found(law):
    check = LAWS["defense"][law]
    check(dpsgd_with())
    with pytest.raises(LawBroken):
        check(dpsgd_with(BROKEN_QUERIES[law]))


# Broken on purpose: attacks -----------------------------------------------------------


def grey(model=None, fit=None, guess=None):
    """Return the factory of an attack that guesses grey, with parts replaced."""

    def factory(task: Task, *, level: float = 0.5) -> Attack:
        def own_fit(key, knowledge):
            return jnp.full(task.features, level), {"said": 1}

        return Attack(
            model or ThreatModel("reconstruction", knows=frozenset({"label"})),
            fit or own_fit,
            guess or (lambda state, key, observation: state),
        )

    return factory


def shown(factory, **how):
    return attack.AttackCase(factory, None, {}, how.get("oracle", False), False)


def changes(key, knowledge):
    knowledge.pool.x[0] += 1
    return jnp.zeros(knowledge.task.features), {}


def model(sees=(), knows=()):
    return ThreatModel("reconstruction", frozenset(sees), frozenset(knows))


RANDOM = np.random.default_rng(0)
PLAIN = jnp.full((4, 4, 1), 0.5)
BROKEN_ATTACKS = {
    "threat_model_words_are_known": {"model": model(sees={"key"})},
    "some_game_can_be_played": {"model": model(knows={"canaries"})},
    "what_it_declares_is_enough": {"guess": lambda s, key, o: s + o.params["w"]},
    "what_it_did_not_declare_is_not_read": {
        "guess": lambda s, key, o: s if o.target is None else o.target
    },
    "the_target_stays_hidden": {
        "model": model(sees={"target"}),
        "guess": lambda state, key, observation: observation.target,
    },
    "same_key_same_bits": {
        "fit": lambda key, k: (jnp.asarray(RANDOM.uniform(size=k.task.features)), {})
    },
    "fitting_changes_nothing_it_was_given": {"fit": changes},
    "the_state_is_a_tree_of_arrays": {
        "fit": lambda key, k: ({"name": "grey"}, {}),
        "guess": lambda state, key, observation: PLAIN,
    },
    "the_diagnostics_are_plain": {"fit": lambda key, k: (PLAIN, [1])},
    "guesses_have_their_shape": {"guess": lambda s, key, observation: s[..., 0]},
    "guesses_are_finite": {"guess": lambda s, key, observation: s / 0.0},
    "guesses_stay_in_the_domain": {"guess": lambda s, key, observation: s + 1},
}


@pytest.mark.parametrize("law", BROKEN_ATTACKS)
def test_an_attack_that_breaks_a_law_is_found(law):
    check = LAWS["attack"][law]
    check(shown(grey()))
    broken = shown(grey(**BROKEN_ATTACKS[law]))
    if law == "the_state_is_a_tree_of_arrays":  # which jit refuses before we do
        broken.played = ({"name": "grey"}, {}, None)
    with pytest.raises(AssertionError, match=law):
        laws.judge("attack grey", [check], broken)


def test_an_oracle_says_that_it_is_one():
    oracle = grey(**BROKEN_ATTACKS["the_target_stays_hidden"])
    attack.the_target_stays_hidden(shown(oracle, oracle=True))


# Broken on purpose: files and scenarios -----------------------------------------------


def positional(task: Task, level: float = 0.5): ...


def silent(task: Task, *, level: float = 0.5) -> Attack:
    """Say nothing of its settings."""
    return grey()(task)


def wrong_default(task: Task, *, level: Positive = -1.0): ...


@pytest.mark.parametrize(
    ("law", "factory", "message"),
    [
        ("file_is_named_like_the_function", silent, "stands in test_laws.py"),
        ("settings_are_keyword_only_and_typed", positional, "'level' is not keyword"),
        ("settings_are_documented", silent, "no line 'level: ...'"),
        ("defaults_are_valid", wrong_default, "level=-1.0"),
    ],
)
def test_a_factory_that_breaks_a_law_is_found(law, factory, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        laws.judge("factory", [LAWS["attack"][law]], SimpleNamespace(factory=factory))


BROKEN_SCENARIOS = {
    "it_says_what_and_whence": ("source: equality", "source: |\n  two\n  lines #"),
    "it_composes": ("runs: 10", "runs: ten"),
    "every_name_exists": ("\nattack:\n", "\nattack:\n  nobody: {use: nobody}\n"),
    "every_data_set_composes": ("public: 0, fixed: 1000", "publc: 0, fixed: 1000"),
}


@pytest.mark.parametrize("law", BROKEN_SCENARIOS)
def test_a_scenario_that_breaks_a_law_is_found(law, tmp_path):
    old, new = BROKEN_SCENARIOS[law]
    text = (BUILT_IN / "calibration.yaml").read_text()
    assert text.count(old) == 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    case = scenario.ScenarioCase(path, ["data=digits"], run=False)
    with pytest.raises(AssertionError, match=law):
        laws.judge("scenario mine", [LAWS["scenario"][law]], case)


def test_a_broken_law_names_itself_and_what_was_seen():
    with pytest.raises(AssertionError, match=r"^attack silent breaks ") as error:
        testing.check_attack(silent)
    text = str(error.value)
    assert f" of {len(LAWS['attack'])} laws" in text
    assert "\n  file_is_named_like_the_function: function 'silent' stands in" in text
    assert "\n  settings_are_documented: the docstring has no line" in text


def test_a_plug_in_is_loaded_by_its_path(tmp_path):
    path, text = tmp_path / "one.py", "def one(task):\n    return task\n"
    path.write_text(text)
    assert testing.load(path)(3) == 3
    path.write_text(text.replace("one", "two"))
    with pytest.raises(Exception, match="holds no function 'one'"):
        testing.load(path)
