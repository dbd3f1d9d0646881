"""The conformance kit: what ships keeps every law, and a broken law is found."""

import re

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
from audit.testing import (
    accounting,
    attack,
    defense,
    laws,
    scenario,
)
from audit.testing import (
    query as query_laws,
)
from audit.testing.laws import LawBroken
from audit.types import Attack, Defense, Positive, StepView, Task, ThreatModel
from tests import ROOT

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
    "glm": {},
    "output_perturbed_glm": {},
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
    "attack_p": {},
    "attack_r": {},
    "attack_s": {},
    "fredrikson": {},
    "glm_attack": {"leaves_domain": True},
    "glm_attack_clamped": {},
    "gradient_inversion": {"steps": 3},
    "ideal_imputation": {"oracle": True},
    "mean_image": {},
    "nearest_neighbour": {"oracle": True},
    "reconstructor": {"width": 8, "width_last": 8, "epochs": 2, "batch_size": 8},
    "rmia": {},
    "whitebox_inverter": {},
}
# words of the smallest run; scenarios without any are composed and built, not run
SMALL = {
    "calibration": [
        "data=digits", "runs=2", "sets.digits.splits.targets=4", "lanes.tile=8",
    ],
    "glm_attributes": ["runs=2", "sets.diabetes.splits.fixed=30"],
}  # fmt: skip


def slow(table):
    return [pytest.param(name, marks=pytest.mark.slow) for name in table]


@pytest.mark.parametrize("name", [*DEFENSES, *slow(SLOW_DEFENSES)])
def test_every_defense_that_ships_keeps_the_laws(name):
    settings = (DEFENSES | SLOW_DEFENSES)[name]
    found = testing.check_defense(registry.find("defense", name), **settings)
    assert found.keys() == {law.__name__ for law in testing.DEFENSE_LAWS}


@pytest.mark.parametrize("name", [*ATTACKS, *slow(SLOW_ATTACKS)])
def test_every_attack_that_ships_keeps_the_laws(name):
    settings = (ATTACKS | SLOW_ATTACKS)[name]
    found = testing.check_attack(registry.find("attack", name), **settings)
    assert found.keys() == {law.__name__ for law in testing.ATTACK_LAWS}


OTHERS = [n for n in scenario_names([BUILT_IN]) if n != "calibration"]


@pytest.mark.parametrize("name", ["calibration", *slow(OTHERS)])
def test_every_scenario_that_ships_keeps_the_laws(name):
    words = SMALL.get(name, [])
    found = testing.check_scenario(name, *words, run=bool(words))
    assert found.keys() == {law.__name__ for law in testing.SCENARIO_LAWS}


def test_nothing_that_ships_is_left_out():
    assert {*DEFENSES, *SLOW_DEFENSES} == set(registry.own_names("defense"))
    assert {*ATTACKS, *SLOW_ATTACKS} == set(registry.own_names("attack"))


def test_every_law_says_what_it_is_and_stands_in_the_docs():
    tables = (testing.DEFENSE_LAWS, testing.ATTACK_LAWS, testing.SCENARIO_LAWS)
    assert all(len(table) >= 15 for table in tables)
    assert len({law for table in tables for law in table}) >= 40
    text = " ".join((ROOT / "docs" / "plugins.md").read_text().split())
    for law in {law for table in tables for law in table}:
        said = (law.__doc__ or "").strip().split("\n")[0]
        assert f"| `{law.__name__}` | {said.replace('|', chr(92) + '|')} |" in text


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
    return defense.Case(factory, None, settings)


def scaled(factor):
    return lambda train: lambda *given: jax.tree.map(lambda a: factor(a), train(*given))


def forgetful(train):
    return lambda key, side, data: train(key, side, data._replace(rows=None))


def ordered(train):
    def by_place(key, side, data):
        x = data.fixed.x
        place = jnp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
        return train(key, side, data._replace(fixed=data.fixed._replace(x=x * place)))

    return by_place


def counting(prepare):
    return lambda key, public: prepare(key, public)._replace(params=next(CALLS))


CALLS = iter(np.arange(100.0))
FALLING = np.array([4.0, 3.0, 2.0, 1.0, 0.5])
BROKEN_DEFENSES = {
    "releases_are_finite": {"train": scaled(lambda a: a / 0.0)},
    "dtype_is_kept": {"train": scaled(lambda a: a.astype(jnp.float16))},
    "other_keys_draw_other_noise": {
        "train": lambda f: lambda key, *rest: f(jax.random.key(0), *rest)
    },
    "preparing_looks_at_public_data_only": {"prepare": counting},
    "order_of_records_does_not_matter": {"train": ordered},
    "predictions_are_logits": {"predict": lambda f: lambda *g: f(*g)[:, 0]},
    "information_is_finite_and_not_negative": {
        "fisher": lambda f: lambda *given: -f(*given)
    },
    "the_renyi_curve_rises": {"rdp": lambda f: lambda n, orders, adj: FALLING},
    "infinite_noise_leaks_nothing": {
        "rdp": lambda f: lambda n, orders, adj: np.ones(len(orders))
    },
    "the_tight_epsilon_is_not_above_the_curves": {
        "rdp": lambda f: lambda *given: f(*given) / 10
    },
    "the_target_is_a_candidate_like_any_other": {
        "log_likelihood": lambda f: lambda *given: f(*given).at[-1].add(1.0)
    },
}


def test_what_is_broken_below_is_sound_before():
    table = (*defense.LAWS[len(laws.OF_FACTORIES) :], *accounting.LAWS)
    found = laws.judge("tiny", table, case(tiny))
    held = {law for law, said in found.items() if said == "holds"}
    assert set(BROKEN_DEFENSES) | {"more_noise_is_never_a_smaller_bound"} <= held


@pytest.mark.parametrize("law", BROKEN_DEFENSES)
def test_a_defense_that_breaks_a_law_is_found(law):
    (check,) = [c for c in testing.DEFENSE_LAWS if c.__name__ == law]
    with pytest.raises(LawBroken):
        check(case(changed(**BROKEN_DEFENSES[law])))


def test_noise_that_helps_the_attacker_is_found():
    def upside_down(task: Task, *, noise_stddev: Positive = 0.5) -> Defense:
        return tiny(task, noise_stddev=1 / noise_stddev)

    with pytest.raises(LawBroken, match=r"noise_stddev=2: information"):
        accounting.more_noise_is_never_a_smaller_bound(case(upside_down))


def test_a_bound_without_noise_is_found():
    def silent(task: Task) -> Defense:
        return tiny(task)._replace(
            train=lambda key, side, data: tiny(task).train(
                jax.random.key(0), side, data
            )
        )

    with pytest.raises(LawBroken, match="`fisher` claims something"):
        defense.no_noise_no_bound(case(silent))


def test_a_defense_that_ignores_its_rows_is_found():
    def all_of_them(task: Task) -> Defense:
        built = tiny(task)
        return built._replace(
            train=forgetful(built.train), traits=built.traits | {"rows"}
        )

    with pytest.raises(LawBroken, match="records outside the rows"):
        defense.records_not_in_rows_take_no_part(case(all_of_them))


def test_a_float_that_decides_at_build_time_is_found():
    def decides(task: Task, *, noise_stddev: Positive = 0.5) -> Defense:
        return tiny(task, noise_stddev=noise_stddev if noise_stddev < 1 else 1.0)

    with pytest.raises(AssertionError, match=r"a_new_float.*: raised Tracer"):
        laws.judge("x", [defense.a_new_float_compiles_nothing], case(decides))


def dpsgd_with(query=lambda q: q, **fields):
    """Return a case of DP-SGD whose query is another; no step is compiled."""
    held = case(registry.find("defense", "dpsgd"), steps=1)
    parts = held.defense.parts
    of = held.of
    held.of = of._replace(
        defense=of.defense._replace(
            parts=parts._replace(query=query(parts.query)), **fields
        )
    )
    with jax.enable_x64(True):
        side = defense.double(of.side)
    everybody = type("Batch", (), {"rows": None, "weight": None})()
    held.steps = None, [StepView(side.params, side, None, everybody, 0)]
    return held


def times(form, factor):
    def scale(query):
        held = getattr(query, form)
        if not callable(held):
            return query._replace(**{form: held * factor})
        more = lambda *given: jax.tree.map(lambda a: factor * a, held(*given))  # noqa: E731
        return query._replace(**{form: more})

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
    check = getattr(query_laws, law)
    assert check(dpsgd_with()) is None
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
            guess or (lambda state, key, seen: state),
        )

    return factory


def shown(factory, **how):
    return attack.Case(factory, None, {}, how.get("oracle", False), False)


def peeks(state, key, seen):
    return state if seen.target is None else seen.target


def changes(key, knowledge):
    knowledge.pool.x[0] += 1
    return jnp.zeros(knowledge.task.features), {}


def random_fit(key, knowledge):
    return jnp.asarray(RANDOM.uniform(size=knowledge.task.features)), {}


def of_target(state, key, seen):
    return seen.target


def needs_params(state, key, seen):
    return state + seen.params["w"].sum()


RANDOM = np.random.default_rng(0)
PLAIN = jnp.full((4, 4, 1), 0.5)
BROKEN_ATTACKS = {
    "threat_model_words_are_known": {
        "model": ThreatModel("reconstruction", sees=frozenset({"key"}))
    },
    "some_game_can_be_played": {
        "model": ThreatModel("reconstruction", knows=frozenset({"canaries"}))
    },
    "what_it_declares_is_enough": {"guess": needs_params},
    "what_it_did_not_declare_is_not_read": {"guess": peeks},
    "the_target_stays_hidden": {
        "model": ThreatModel("reconstruction", sees=frozenset({"target"})),
        "guess": of_target,
    },
    "same_key_same_bits": {"fit": random_fit},
    "fitting_changes_nothing_it_was_given": {"fit": changes},
    "the_state_is_a_tree_of_arrays": {
        "fit": lambda key, k: ({"name": "grey"}, {}),
        "guess": lambda state, key, seen: PLAIN,
    },
    "the_diagnostics_are_plain": {"fit": lambda key, k: (PLAIN, [1])},
    "guesses_have_their_shape": {"guess": lambda s, key, seen: s[..., 0]},
    "guesses_are_finite": {"guess": lambda s, key, seen: s / 0.0},
    "guesses_stay_in_the_domain": {"guess": lambda s, key, seen: s + 1},
}


@pytest.mark.parametrize("law", BROKEN_ATTACKS)
def test_an_attack_that_breaks_a_law_is_found(law):
    check = getattr(attack, law)
    assert check(shown(grey())) is None
    broken = shown(grey(**BROKEN_ATTACKS[law]))
    if law == "the_state_is_a_tree_of_arrays":  # which jit refuses before we do
        broken.played = ({"name": "grey"}, {}, None)
    with pytest.raises(AssertionError, match=law):
        laws.judge("attack grey", [check], broken)


def test_an_oracle_says_that_it_is_one():
    oracle = grey(
        ThreatModel("reconstruction", sees=frozenset({"target"})), guess=of_target
    )
    assert attack.the_target_stays_hidden(shown(oracle, oracle=True)) is None


# Broken on purpose: files and scenarios -----------------------------------------------


def positional(task: Task, level: float = 0.5) -> Attack:
    """Take a setting by its place."""
    return grey()(task)


def silent(task: Task, *, level: float = 0.5) -> Attack:
    """Say nothing of its settings."""
    return grey()(task)


def wrong_default(task: Task, *, level: Positive = -1.0) -> Attack:
    """Be wrong from the start.

    Args:
      task: what is learnt.
      level: negative.
    """
    return grey()(task)


@pytest.mark.parametrize(
    ("law", "factory", "said"),
    [
        ("file_is_named_like_the_function", silent, "stands in test_laws.py"),
        ("settings_are_keyword_only_and_typed", positional, "'level' is not keyword"),
        ("settings_are_documented", silent, "no line 'level: ...'"),
        ("defaults_are_valid", wrong_default, "level=-1.0"),
    ],
)
def test_a_factory_that_breaks_a_law_is_found(law, factory, said):
    held = type("Held", (), {"factory": staticmethod(factory)})()
    with pytest.raises(AssertionError, match=re.escape(said)):
        laws.judge("factory", [getattr(laws, law)], held)


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
    check = getattr(scenario, law)
    with (
        scenario.Case(path, ["data=digits"], run=False) as held,
        pytest.raises(AssertionError, match=law),
    ):
        laws.judge("scenario mine", [check], held)


def test_a_broken_law_names_itself_and_what_was_seen():
    with pytest.raises(AssertionError) as error:
        testing.check_attack(silent)
    said = str(error.value)
    assert said.startswith("attack silent breaks ")
    assert f" of {len(testing.ATTACK_LAWS)} laws" in said
    assert "\n  file_is_named_like_the_function: function 'silent' stands in" in said
    assert "\n  settings_are_documented: the docstring has no line" in said


def test_a_plug_in_is_loaded_by_its_path(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("def one(task):\n    return task\n")
    assert testing.load(path)(3) == 3
    path.write_text("def two(task):\n    return task\n")
    with pytest.raises(Exception, match="holds no function 'one'"):
        testing.load(path)
