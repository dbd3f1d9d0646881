"""`plan=true`: what a run will take is said before anything is trained."""

import mmap

import jax
import numpy as np
import pytest

from audit import pipeline
from audit.cli import forecast
from audit.config import budget, compose, registry, schema
from audit.engine import shadow
from audit.errors import UserError
from audit.mechanisms import shadow_models
from audit.models import networks
from defenses.fim import fim
from tests.commands import composed, printed, refused
from tests.conftest import records

WORDS = ("scenario=calibration", "data=digits", "attacks=[class_mean]")
WORK = budget.Workload("defense.x", {"target": 7}, {"accounting": 3}, 4, 10, 5, 20.0)


def test_shadow_models_that_pass_in_parts_are_held_in_parts():
    work = WORK._replace(held={"target": 7, "shadow": 1000})
    assert work.in_memory == 1000
    assert work._replace(shard=50).in_memory == 50
    assert work._replace(shard=5).in_memory == 7
    assert work._replace(shard=5).runs == work.runs == 1010


@pytest.fixture
def plan(monkeypatch, tmp_path):
    monkeypatch.setattr(forecast, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(forecast, "matmul_rate", lambda *_, times: 100.0)
    return forecast.forecast(composed(*WORDS)[0])


def took(plan, **changed):
    fields = {
        "scenario": "calibration", "data": "digits",
        "gflops": 100.0, "model_seconds": plan.model_seconds,
        "seconds": plan.model_seconds, "model_memory": 2.0, "memory": 2.0, "trials": {},
    }  # fmt: skip
    return forecast.Took(**fields | changed)


def test_a_plan_counts_what_is_run_and_trains_nothing(capsys, monkeypatch, tmp_path):
    def fail(*given, **settings):
        raise AssertionError("something was trained")

    monkeypatch.setattr(forecast, "cache_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shadow._Sweep, "run", fail)
    monkeypatch.setattr(shadow, "learner", fail)
    text = printed(capsys, "run", *WORDS, "plan=true", "runs=3", "accounting_runs=2")
    targets = composed(*WORDS)[0].splits.targets
    assert f"{3 * targets:,} target, {2 * targets:,} accounting runs" in text
    assert f"models      {5 * targets:,}" in text
    assert list(tmp_path.iterdir()) == []


def test_a_run_says_how_far_off_its_plan_was_and_the_next_one_learns(
    capsys, monkeypatch, tmp_path, plan
):
    monkeypatch.chdir(tmp_path)
    words = ("run", *WORDS, f"out={tmp_path}/out", "seed=2")
    first = printed(capsys, *words)
    assert "min, planned" in first
    assert "in the store" not in first
    (line,) = forecast.history()
    # a run that finds its models in the store says so, and is no experience
    assert ", for a part was in the store; memory" in printed(capsys, *words)
    assert forecast.history() == [line]
    assert (line.scenario, line.data) == ("calibration", "digits")
    assert line.memory > 2**27
    assert set(line.trials) == {"class_mean"}
    again = forecast.forecast(composed(*WORDS)[0], [line])
    assert again.new == ()
    assert again.basis.startswith("1 finished runs of calibration on digits")
    assert again.memory == pytest.approx(line.memory, rel=0.2)


def test_a_gradient_is_counted_as_its_products():
    """2 d to get the logit of a linear model, 2 d to get the gradient, and little."""
    task, d = networks.binary_linear((20, 20, 1), 2), 400
    params = jax.eval_shape(task.init, jax.random.key(0))
    counted = forecast.gradient_operations(task, params, records(3, (20, 20, 1), 2))
    assert 3 * d <= counted <= 1.1 * 4 * d


def test_gradients_are_timed_at_a_pace_a_machine_can_have():
    task = networks.binary_linear((20, 20, 1), 2)
    params = jax.eval_shape(task.init, jax.random.key(0))
    given = params, records(300, (20, 20, 1), 2), 1600.0, 64
    for gradients in (forecast.trained(task), forecast.searched(task)):
        assert 1e6 < forecast.gradient_pace(gradients, *given) < 1e15


def test_reference_models_of_a_game_take_time_of_their_own(monkeypatch):
    monkeypatch.setattr(forecast, "matmul_rate", lambda *_, times: 100.0)
    monkeypatch.setattr(forecast, "gradient_pace", lambda *given: 1.0)
    words = "scenario=dirdp_mia", "data=mnist5k", "defenses=[gauss_8]"
    few, many = (
        forecast.forecast(composed(*words, f"membership.shadows={n}")[0])
        for n in (2, 100)
    )
    more = many.operations[0] - few.operations[0]
    assert more / many.operations[0] > 0.9
    seconds = many.model_seconds - few.model_seconds
    assert seconds == pytest.approx(forecast.PRIVATE * more)


def test_noise_and_updates_of_large_models_take_time_of_their_own(monkeypatch):
    monkeypatch.setattr(forecast, "matmul_rate", lambda *_, times: 100.0)
    monkeypatch.setattr(forecast, "gradient_pace", lambda *given: 1e9)
    words = "scenario=dirdp_mia", "data=mnist5k", "defenses=[sgd,gauss_8,gauss_1]"
    free = forecast.forecast(composed(*words)[0])  # of a small model
    asked = []

    def seconds(mechanism, optimizer, params):
        asked.append(optimizer)
        return 3.0

    monkeypatch.setattr(forecast, "update_seconds", seconds)
    dear = forecast.forecast(composed(*words)[0])
    runs = sum(sum(forecast._lanes(work).values()) * work.steps for work in dear.works)
    assert dear.model_seconds - free.model_seconds == pytest.approx(3 * runs)
    assert asked == ["adam", "adam"]  # gauss_1 is the program of gauss_8


@pytest.mark.parametrize(("width", "timed"), [(10, False), (100, True)])
def test_updates_are_timed_where_models_are_large(width, timed):
    task = networks.mlp((28, 28, 1), 10, hidden=width)
    params = jax.eval_shape(task.init, jax.random.key(0))
    factory = registry.find("defense", "dpsgd")
    settings = registry.check("defense", "dpsgd", {"noise_multiplier": 1.0}, "dpsgd")
    defense = factory(task, **settings)
    seconds = forecast.update_seconds(defense.mechanism, "adam", params)
    assert (seconds > 0) == timed
    assert forecast.update_seconds(None, "adam", params) == 0


def test_the_gradients_that_are_timed_are_the_same_sum():
    task = networks.lenet((16, 16, 1), 3)
    params, some = jax.jit(task.init)(jax.random.key(0)), records(5, (16, 16, 1), 3)
    totals = forecast.trained(task), forecast.searched(task)
    sums = (jax.jit(total)(params, some) for total in totals)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *sums)


@pytest.mark.parametrize(("records", "runs"), [(None, 1), (0, 0)])
def test_of_nobody_no_run_is_accounted_for(records, runs):
    words = "scenario=dirdp_mia", "data=mnist5k", "defenses=[gauss_8]", "attacks=[]"
    scenario = composed(*words)[0]
    spec = scenario.spec.model_copy(
        update={"fisher": schema.FisherReading(records=records)}
    )
    (work,) = forecast.forecast(scenario._replace(spec=spec)).works
    assert work.folded == {"shadow": 12} | ({"accounting": 1} if runs else {})


def test_operations_are_those_of_whole_tiles():
    """7 targets are two tiles of 4, 3 accounted runs one of 3, each ten times a run."""
    assert forecast._operations(WORK, 8.0) == (8 + 10 * 3) * 5 * 20 * 8
    slow = WORK._replace(contribution=7.0)
    assert forecast._operations(slow, 8.0) == 7 * forecast._operations(WORK, 8.0)


def test_fits_to_public_records_count_once_and_in_every_run():
    """Two tiles of 4 targets and one of 3 accounted runs are 11 runs."""
    work = WORK._replace(public=10, first_passes=100.0, passes=30.0, visit=2.0)
    added = forecast._operations(work, 8.0) - forecast._operations(WORK, 8.0)
    looks = forecast.LOOK * WORK.steps
    assert added == 10 * (2 * 100 + 11 * (2 * 30 + looks)) * 8


@pytest.mark.parametrize(
    ("shared", "passes"), [(0, (200, 320)), (6, (200 + 6 * 320, 0))]
)
def test_a_defense_says_how_often_it_goes_through_public_records(shared, passes):
    """200 epochs before step 0; then 150, 100, 50, and never fewer than 20."""
    words = (
        "scenario=binary_mnist", "data=digits",
        "defenses=[fim]", "attacks=[class_mean]",
        "training.steps=5", f"defense.fim.share_steps={shared}",
    )  # fmt: skip
    scenario = composed(*words)[0]
    (work,) = forecast.forecast(scenario).works
    assert work.public == scenario.splits.public
    assert (work.first_passes, work.passes) == passes


@pytest.mark.parametrize(
    ("perturbation", "passes", "seconds"),
    [
        ("network", 100.0, 6.0 / 12 / forecast.PRIVATE),
        ("network", 99.0, forecast.FIT * WORK.parameters),
        ("constant", 1e6, forecast.FIT * WORK.parameters),
        ("network", 0.0, 0.0),
    ],
)
def test_long_fits_of_networks_are_timed(monkeypatch, perturbation, passes, seconds):
    """A pass over 12 public records is said to take six seconds."""

    def timed(run, times):
        run()
        return 6.0

    monkeypatch.setattr(forecast, "fastest", timed)
    task, public = networks.binary_linear((4, 4, 1), 2), records(12, (4, 4, 1), 2)
    defense = fim(task, perturbation=perturbation, architecture="mlp")
    fit = forecast.public_fit("fim", defense.mechanism, task, public)
    work = WORK._replace(public=12, first_passes=passes)
    assert forecast.visit_seconds(work, fit) == pytest.approx(seconds)


def test_a_network_without_public_records_is_refused_by_the_plan():
    words = (
        "scenario=binary_mnist", "data=digits", "defenses=[fim]", "splits.public=0",
        "defense.fim.perturbation=network",
    )  # fmt: skip
    with pytest.raises(UserError, match=r"defense\.fim: fim learns from public record"):
        forecast.forecast(composed(*words)[0])


def test_contributions_that_are_timed_are_those_of_a_network():
    task, some = networks.binary_linear((4, 4, 1), 2), records(6, (4, 4, 1), 2)
    params = task.init(jax.random.key(0))
    mechanism = fim(task, perturbation="network", architecture="mlp").mechanism
    public = records(12, (4, 4, 1), 2)
    fit = forecast.public_fit("fim", mechanism, task, public)
    got = jax.jit(forecast.contributions(mechanism, fit))(params, some)
    side = fit.last(fit.first)
    each = [
        mechanism.query.fn(params, side, jax.tree.map(lambda a, i=i: a[i], some))
        for i in range(6)
    ]
    want = jax.tree.map(lambda *a: sum(a), *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


def test_a_network_that_perturbs_every_gradient_takes_time_of_its_own(monkeypatch):
    """Gradients are said to be computed seven times as fast as what it perturbs."""

    def pace(gradients, params, records, each, most, cores=1):
        return 1e9 if most == forecast.LANES else 7e9

    monkeypatch.setattr(forecast, "gradient_pace", pace)
    words = (
        "scenario=binary_mnist", "data=digits", "defenses=[dpsgd,fim]",
        "attacks=[class_mean]", "defense.fim.architecture=mlp",
    )  # fmt: skip
    constant, network = (
        forecast.forecast(composed(*words, f"defense.fim.perturbation={how}")[0]).works
        for how in ("constant", "network")
    )
    assert [work.contribution for work in constant] == [1, 1]
    assert [work.contribution for work in network] == [1, 7]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 10),
        ({"probes": 2, "precision": "single"}, 1 + 1.2 * 2),
        ({"probes": 2, "precision": "single", "records": 50}, 1 + 1.2 * 2 / 4),
        ({"probes": 5, "every": 10, "records": 900}, 1 + 1.2 * 2 * 5 / 10),
    ],
)
def test_an_accounted_step_takes_what_is_read_of_it(settings, steps):
    fisher = schema.FisherReading(**settings)
    assert forecast.reading(fisher, 200) == pytest.approx(steps)


def test_fits_keep_derivatives_of_networks_and_none_of_linear_models(monkeypatch):
    monkeypatch.setattr(forecast, "matmul_rate", lambda *_, times: 100.0)
    monkeypatch.setattr(forecast, "gradient_pace", lambda *given: 1e9)

    def plans(*words):
        words = [(*words, f"defenses=[{name}]") for name in ("dpsgd", "fim")]
        return [forecast.forecast(composed(*each)[0]) for each in words]

    plain, fitted = plans("scenario=mnist_cnn_public", "data=mnist5k")
    (work,) = fitted.works
    added = 2 * 4 * forecast.COPIES * forecast.KEPT * work.public * work.parameters
    assert fitted.model_memory - plain.model_memory == pytest.approx(added)
    plain, fitted = plans("scenario=mnist_linear_public", "data=digits")
    assert fitted.model_memory == pytest.approx(plain.model_memory)


def test_one_model_is_trained_for_all_exposed_steps():
    words = "scenario=dirdp_mnist5k", "data=digits", "defenses=[dpsgd]"
    (work,) = forecast.forecast(composed(*words, "splits.targets=7")[0]).works
    assert (work.held, work.folded) == ({"target": 1}, {"accounting": 0})


def test_the_nearest_runs_correct_a_plan(plan):
    """Those on the same data count first; another scenario says nothing of this one."""
    scenario = composed(*WORDS)[0]
    other = took(plan, scenario="other", seconds=9 * plan.model_seconds)
    there = took(plan, data="mnist", seconds=5 * plan.model_seconds)
    same = took(plan, seconds=3 * plan.model_seconds, memory=4.0)
    for history, factor in (
        ([other, there, same], 3), ([other, there], 5), ([other], 1), ([], 1)
    ):  # fmt: skip
        corrected = forecast._with_experience(plan, scenario, history)
        assert corrected.time_factor == pytest.approx(factor)
    corrected = forecast._with_experience(plan, scenario, [same])
    assert corrected.memory == pytest.approx(2 * plan.model_memory)


def test_defenses_that_differ_in_floats_share_their_programs():
    words = (
        "scenario=binary_mnist", "data=digits",
        "defenses=[sgd, dpsgd, {quiet: {use: dpsgd}}, {long: {use: dpsgd}}]",
        "defense.quiet.noise_multiplier=0.2", "defense.long.steps=9",
    )  # fmt: skip
    entries = composed(*words)[0].defenses
    assert len({forecast._compiled_in(entry) for entry in entries}) == 3


@pytest.mark.parametrize(
    ("size", "gflops", "seconds"), [(10, 1, 24), (20, 1, 44), (0, 1, 4), (10, 2, 14)]
)
def test_an_attack_takes_what_it_took_by_its_size(plan, size, gflops, seconds):
    """12 s are counted at size 10, of which 2 s do not grow; it took twice that."""
    before = took(plan, gflops=1.0, trials={"a": [10e9 * forecast.SHARE, 24.0]})
    now = forecast.Trials(1, 2.0, size * 1e9 * forecast.SHARE)
    got = forecast._trial(now, [before], "a", gflops)
    assert got == pytest.approx(seconds)


def test_an_attack_without_counted_operations_takes_what_it_took_on_these_data(plan):
    """How it grows with the data is not known: it may have run on ten times as many."""
    scenario, sizes = composed(*WORDS)[0], {"class_mean": forecast.Trials(3, 2.0, 0.0)}
    plan = plan._replace(sizes=sizes)
    for data, seconds in (("digits", 70.0), ("mnist", 2.0)):
        line = took(plan, data=data, trials={"class_mean": [0.0, 70.0]})
        corrected = forecast._with_experience(plan, scenario, [line])
        assert corrected.trials == pytest.approx(3 * seconds)


def test_an_attack_that_never_ran_takes_its_operations():
    got = forecast._trial(forecast.Trials(1, 3.0, 5e9), [], "a", 10.0)
    assert got == pytest.approx(3 + 5 / (forecast.SHARE * 10))


def test_an_attack_trains_on_one_part_of_its_shadow_models_per_epoch(monkeypatch):
    words = (
        "scenario=binary_mnist", "data=digits", "defenses=[dpsgd]",
        "attacks=[class_mean,reconstructor,matched_filter]",
    )  # fmt: skip
    monkeypatch.setattr(forecast, "matmul_rate", lambda *_, times: 100.0)
    pace = forecast.SHARE * 100e9  # that of the network
    monkeypatch.setattr(forecast, "gradient_pace", lambda *given: pace)
    few, many = (
        forecast.forecast(composed(*words, f"attack.reconstructor.repeats={n}")[0])
        for n in (1, 1000)
    )
    epochs, width, pixels = forecast.EARLY * 40, 512, 64
    network = 6 * epochs * width * (pixels + 1 + pixels)
    (work,), (more,) = few.works, many.works
    each = few.operations[0] / forecast._operations(work, 1.0)
    run = work.steps * work.records * each
    assert few.sizes["class_mean"] == (1, forecast.TRIAL, 0)
    assert few.sizes["reconstructor"].fixed == forecast.FITTED
    pool = (more.held["shadow"] - work.held["shadow"]) // 999
    scenario = composed(*words)[0]
    guesses = scenario.spec.runs * scenario.splits.targets
    for plan, repeats in ((few, 1), (many, 1000)):
        trained = {1: pool, 1000: shadow_models.SHARD}[repeats]
        want = pool * repeats * run + network * trained
        want += forecast.GUESSED * guesses * pixels
        assert plan.sizes["reconstructor"].operations == pytest.approx(want)


def test_attacks_share_the_shadow_models_that_they_have_in_common():
    """The first of every image, and the others of attacks that ask for as many."""
    words = "scenario=binary_mnist", "data=digits"
    one, both = "attacks=[matched_filter]", "attacks=[matched_filter,again]"
    again = "+attack.again.use=matched_filter"
    counts = [
        forecast.forecast(composed(*words, *more)[0]).works[0].held["shadow"]
        for more in (
            ["defenses=[dpsgd]", "attacks=[reconstructor,ridge]"],
            ["defenses=[dpsgd]", one],
            ["defenses=[dpsgd]", both, again],
            ["defenses=[dpsgd]", both, again, "+attack.again.repeats=3"],
            ["defenses=[sgd]", one],
        )
    ]
    assert counts == [counts[0] * repeats for repeats in (1, 6, 6, 8, 1)]


def test_a_search_takes_its_steps_from_every_restart_on_one_core(monkeypatch):
    words = (
        "scenario=dirdp_mnist5k", "data=digits", "runs=2", "defenses=[sgd,dpsgd]",
        "attacks=[iga]", "attack.iga.steps=10", "attack.iga.restarts=3",
    )  # fmt: skip
    monkeypatch.setattr(forecast, "threads", lambda: 5)
    monkeypatch.setattr(forecast, "gradient_pace", lambda *given: 1e9)
    plan = forecast.forecast(composed(*words)[0])
    weights = 64 * 32 + 32 + 32 * 10 + 10
    each = plan.operations[0] / forecast._operations(plan.works[0], 1.0)
    step = forecast.SEARCH * each / 1e9 + forecast.WEIGHT * weights
    seconds = plan.sizes["iga"].operations / (forecast.SHARE * plan.gflops * 1e9)
    targets = 16
    assert seconds == pytest.approx(10 * 3 * 2 * targets * step / 5)


def test_an_attack_costs_nothing_where_it_is_skipped(monkeypatch):
    """Runs that nothing random enters are those of `sgd` alone."""
    words = (
        "scenario=binary_mnist", "data=digits", "defenses=[sgd,dpsgd,prune]",
        "attacks=[class_mean,unrolled_inversion]",
    )  # fmt: skip
    monkeypatch.setattr(forecast, "matmul_rate", lambda *_, times: 100.0)
    pace = forecast.SHARE * 100e9
    monkeypatch.setattr(forecast, "gradient_pace", lambda *given: pace)
    plan = forecast.forecast(composed(*words)[0])
    assert plan.sizes["class_mean"].defenses == 3
    solved = plan.sizes["unrolled_inversion"]
    assert (solved.defenses, solved.fixed) == (1, forecast.FITTED)
    work = plan.works[0]
    each = plan.operations[0] / forecast._operations(work, 1.0)
    run = work.steps * work.records * each
    scenario = composed(*words)[0]
    rounds, targets, pixels = forecast.EARLY * 6, scenario.splits.targets, 64
    guessed = forecast.GUESSED * scenario.spec.runs * targets * pixels
    assert solved.operations == pytest.approx(rounds * targets * pixels * run + guessed)


def test_a_transcript_weighs_every_image_of_the_pool():
    words = (
        "scenario=binary_mnist", "data=digits", "defenses=[dpsgd,prune]", "runs=3",
        "attacks=[class_mean,transcript_bayes]",
    )  # fmt: skip
    scenario = composed(*words)[0]
    counted = forecast.forecast(scenario).sizes["transcript_bayes"]
    assert counted.defenses == 2
    splits = pipeline.load(scenario, compose.play(scenario)).splits
    transcripts, pixels = 3 * len(splits.targets.y), 64
    each = forecast.WEIGHED * len(splits.pool.y) + forecast.GUESSED
    assert counted.operations == each * transcripts * pixels


def test_every_record_is_guessed_where_each_is_the_target():
    words = "scenario=glm_reconstruction", "data=digits", "defenses=[perturbed]"
    one, many = (forecast.forecast(composed(*words, f"runs={n}")[0]) for n in (1, 5))
    records, pixels = composed(*words)[0].splits.fixed, 64
    for plan, runs in ((one, 1), (many, 5)):
        counted = {name: size.operations for name, size in plan.sizes.items()}
        guesses = forecast.GUESSED * runs * records * pixels
        closed_forms = {"glm_attack": guesses, "glm_attack_clamped": guesses}
        assert counted == {"class_mean": 0} | closed_forms  # it sees no release
    held = 2 * 4 * forecast.COPIES * (5 - 1) * records
    assert many.memory - one.memory >= held


def test_a_plan_refuses_an_attack_that_could_play_against_nothing():
    words = "scenario=binary_mnist", "data=digits", "defenses=[dpsgd]"
    with pytest.raises(UserError, match=r"unrolled_inversion.*not noiseless"):
        forecast.forecast(composed(*words, "attacks=[unrolled_inversion]")[0])


def test_every_attack_that_learns_adds_to_the_memory():
    words = "scenario=binary_mnist", "data=digits", "defenses=[dpsgd]"
    plans = [
        forecast.forecast(composed(*words, f"attacks=[{','.join(names)}]")[0])
        for names in (["class_mean"], ["class_mean", "transcript_bayes"])
    ]
    assert plans[1].sizes["class_mean"].fixed == forecast.TRIAL
    assert plans[1].sizes["transcript_bayes"].fixed == forecast.FITTED
    added = plans[1].memory - plans[0].memory
    assert added == pytest.approx(forecast.LEARNING)


def test_a_search_counts_its_steps_from_every_restart():
    words = (
        "scenario=dirdp_mnist5k", "data=digits", "defenses=[dpsgd]",
        "attacks=[class_mean,iga,map]",
    )  # fmt: skip
    once, often = (
        forecast.forecast(
            composed(*words, f"attack.iga.restarts={n}", "attack.iga.steps=30")[0]
        ).sizes
        for n in (1, 6)
    )
    assert once["class_mean"].operations == 0
    # each plan measures the pace anew: ratios within one plan are exact
    assert once["iga"].operations / once["map"].operations == pytest.approx(30 / 200)
    assert often["iga"].operations / often["map"].operations == pytest.approx(
        6 * 30 / 200
    )


def test_lines_that_cannot_be_read_do_not_count(plan, tmp_path):
    forecast.keep(took(plan))
    with (tmp_path / forecast.LINES).open("a") as file:
        file.write('{"scenario": "cut of')
    assert forecast.history() == [took(plan)]
    forecast.keep(took(plan), tmp_path / forecast.LINES)  # no folder: nothing is kept


class Stream:
    def __init__(self, terminal):
        self.isatty = lambda: terminal


@pytest.mark.parametrize(
    ("minutes", "terminal", "answer", "runs"),
    [
        (59, True, None, True),
        (61, False, None, True),
        (61, True, "y", True),
        (61, True, "", False),
        (61, True, "n", False),
    ],
)
def test_long_runs_are_asked_for_in_a_terminal(
    plan, monkeypatch, minutes, terminal, answer, runs
):
    monkeypatch.setattr("sys.stdin", Stream(terminal))
    monkeypatch.setattr("builtins.input", lambda question: answer.lower())
    plan = plan._replace(model_seconds=60.0 * minutes, trials=0.0)
    if runs:
        forecast.ask(plan)
    else:
        with pytest.raises(UserError, match="not started"):
            forecast.ask(plan)


def test_the_peak_is_of_now():
    forecast.forget_peak()
    first = forecast.peak()
    with mmap.mmap(-1, 2**28) as block:  # memory that no heap kept
        block.write(bytes(len(block) // 2))
        block.write(bytes(len(block) // 2))
        assert forecast.peak() >= first + 0.9 * len(block)


def test_plans_are_for_the_command_line(capsys):
    import audit

    with pytest.raises(UserError, match="only the command line"):
        audit.run("calibration", data="digits", plan=True)
    assert "plan='x'" in refused(capsys, "run", *WORDS, "plan=x")
