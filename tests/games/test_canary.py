"""Audits of epsilon with canaries: what is planted, what runs say, what is proved."""

import contextlib
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from attacks.gradient_llr import gradient_llr
from attacks.one_run import one_run
from audit.accounting import rdp
from audit.clipping import soft_clip
from audit.errors import UserError
from audit.games import base, canary
from audit.games.canary import Canaries
from audit.mechanisms import canaries
from audit.mechanisms.query import Side, gradient
from audit.models import networks
from audit.rng import stream
from audit.types import Examples, ThreatModel
from tests.conftest import public, records
from tests.games import worlds

D, RUNS, STEPS, DELTA = 5, 1500, 3, 1e-5
PLAIN = networks.binary_linear((D,), 2)
FIXED, POOL = records(6, (D,), 2, 1), records(8, (D,), 2, 2)


def dpsgd(task, **given):
    settings = {"clip": "hard", "steps": STEPS, "noise_multiplier": 2.0, **given}
    return worlds.learner(task, "dpsgd", **settings)


def play(make, attack, runs=1, learner=None, **planted):
    """Let an attack play one of the games with these canaries."""
    game = make(canaries=Canaries(**planted))
    task = game.task(PLAIN)
    table = worlds.table(worlds.problem(task, FIXED, POOL), runs, tile=500)
    return worlds.play(game, attack(task), dpsgd(task, **learner or {}), table, DELTA)


# What is planted ----------------------------------------------------------------------


def test_a_canary_moves_its_own_parameter_and_nobody_elses():
    task = canaries.plant(PLAIN, 3, 1000.0)
    params = public(task).params
    many = canaries.records("gradient", 3, task, POOL)
    assert many.x.shape == (3, D)
    np.testing.assert_array_equal(many.y, [2, 3, 4])
    grad = jax.jit(jax.vmap(jax.grad(task.loss), (None, 0)))
    planted = grad(params, many)
    moved = planted["canaries"]["kernel"][..., 0]
    np.testing.assert_allclose(moved, 1000 * np.eye(3))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(planted["model"]))
    others = grad(params, FIXED)
    assert not np.any(others["canaries"]["kernel"])
    same = jax.vmap(jax.grad(PLAIN.loss), (None, 0))(params["model"], FIXED)
    jax.tree.map(np.testing.assert_array_equal, others["model"], same)


def test_an_empty_slot_contributes_nothing():
    task = canaries.plant(PLAIN, 4, 1000.0)
    many = canaries.records("input", 4, task, POOL)
    np.testing.assert_array_equal(many.y, (POOL.y[:4] + 1) % 2)
    some = canaries.present(many, [True, False, True, False])
    each = jax.jit(jax.vmap(jax.grad(task.loss), (None, 0)))
    grad = each(public(task).params, some)
    whole = np.concatenate([g.reshape(4, -1) for g in jax.tree.leaves(grad)], 1)
    np.testing.assert_array_equal(whole.any(1), [True, False, True, False])


@pytest.mark.parametrize(
    "network",
    [networks.mlp((D,), 2, hidden=4), networks.cnn_tanh((16, 16, 1), 3, filters=2)],
    ids=["dense", "convolutions"],
)
@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
def test_networks_keep_their_closed_forms(network, pruned):
    """Of ordinary records, empty slots and gradient canaries in one batch."""
    task, k = canaries.plant(network, 2, 7.0), network.classes
    params = jax.tree.map(lambda a: a + 0.1, public(task).params)
    query = gradient(task, soft_clip(1.0))
    side = Side(params)
    if pruned:
        bits = jax.random.bernoulli
        keep = lambda a: bits(jax.random.key(a.size), 0.5, a.shape).astype(float)
        kept = {"model": jax.tree.map(keep, params["model"])}
        ones = jax.tree.map(jnp.ones_like, params["canaries"])
        side = side._replace(mask=kept | {"canaries": ones})
    x = np.random.default_rng(0).random((6, *network.features), np.float32)
    z = Examples(x, np.array([0, -1, k, 1, k + 1, k - 1], np.int32))
    weight = np.array([1.0, 1.0, 2.0, 0.5, 1.0, 0.0], np.float32)
    each = jax.jit(jax.vmap(lambda z: query.fn(params, side, z)))(z)
    want = jax.tree.map(lambda g: np.tensordot(weight, g, 1), each)
    got = jax.jit(query.closed_forms.total)(params, side, z, weight)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, got, want)
    rows = np.concatenate([g.reshape(6, -1) for g in jax.tree.leaves(each)], 1)
    inner, square = jax.jit(query.closed_forms.score)(params, side, z, want)
    flat = np.concatenate([g.ravel() for g in jax.tree.leaves(want)])
    close(inner, rows @ flat)
    close(square, (rows**2).sum(1))
    assert rows.any(1).tolist() == [True, False, True, True, True, True]


def test_what_cannot_be_planted_is_refused():
    with pytest.raises(ValueError, match="labels that are classes"):
        canaries.plant(networks.regression((D,), 0), 1, 1.0)
    problem = worlds.problem(PLAIN, FIXED, POOL)
    with pytest.raises(UserError, match=r"canaries\.count=20: 20 input canaries from"):
        canary.planted(Canaries(kind="input", count=20), problem)


def test_defenses_that_add_to_an_empty_slot_are_refused():
    """An offset before the clip is of every slot's, whoever is in it."""
    problem = worlds.problem(PLAIN, FIXED, POOL, public_records=POOL)
    start = public(PLAIN)._replace(records=POOL)
    for name, works in (("dpsgd", True), ("public_mean", False)):
        learner = worlds.learner(PLAIN, name, steps=STEPS, start=start)
        refusal = pytest.raises(UserError, match=f"defense.{name}: adds to every")
        with contextlib.nullcontext() if works else refusal:
            canary.fits(Canaries(), learner, worlds.table(problem))


# Two worlds ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_worlds():
    return play(canary.canary, gradient_llr, RUNS)


def claim(loss):
    """Return what accountants say of a mechanism with this privacy loss."""
    return canary.EpsilonClaim(DELTA, loss.get_epsilon_for_delta(DELTA), None, loss)


def flags(scores, mu):
    """Return what is flagged of scores of a mechanism that is said to be mu-GDP."""
    result = canary.proved_by_worlds(scores, claim(rdp.GaussianPrivacy(mu)))
    return [flag.name for flag in result.flags]


def test_the_ratio_has_the_law_of_the_closed_form(two_worlds):
    """N(-mu^2 / 2, mu^2) without the canary, N(mu^2 / 2, mu^2) with it."""
    mu = math.sqrt(STEPS) / 2.0
    for ratios, sign in zip(two_worlds.runs.evidence.ratios()[0], (1, -1), strict=True):
        law = stats.norm(sign * mu**2 / 2, mu)
        assert stats.kstest(ratios, law.cdf).pvalue > 1e-3


def test_the_roc_is_the_closed_form_inside_its_band(two_worlds):
    numbers, mu = two_worlds.numbers, math.sqrt(STEPS) / 2
    loss = dpsgd(canaries.plant(PLAIN, 1, 1000.0)).defense.pld(7, "add_remove")
    assert loss.mu == pytest.approx(mu)
    assert numbers["in_band"] == {"above": False, "below": False}
    auc = stats.norm.cdf(mu / math.sqrt(2))
    assert numbers["auc"]["low"] < auc < numbers["auc"]["high"]


def test_the_band_can_tell():
    """Half the noise claimed, or twice: the same scores are outside."""
    rng = np.random.default_rng(0)
    scores = rng.normal([[[1.0]], [[0.0]]], 1, (2, 1, RUNS))[:, 0]
    for mu, side in ((0.7, "above"), (1.4, "below")):
        assert canary._in_band(*scores, claim(rdp.GaussianPrivacy(mu)))[side]


def test_both_sides_stand_in_order(two_worlds):
    numbers = two_worlds.numbers
    exact = rdp.GaussianPrivacy(math.sqrt(STEPS) / 2).get_epsilon_for_delta(DELTA)
    assert numbers["upper"] == pytest.approx(exact)
    accounted = two_worlds.limits.epsilon["add_remove"]["rdp"]
    assert accounted == numbers["upper_rdp"] > exact
    assert 0.6 * exact < numbers["epsilon_lower"] < exact
    assert two_worlds.result.headline.value == numbers["epsilon_lower"]
    assert set(numbers["lower"]) == {"clopper_pearson", "gdp", "bayesian"}
    assert numbers["lower"]["clopper_pearson"]["bonferroni"]["epsilon"] > 0.3
    assert two_worlds.result.flags == ()
    assert numbers["above_upper"] == {"gdp": 0, "clopper_pearson": 0}


def test_the_advantage_is_the_largest_gap_of_both_rates():
    scores = np.random.default_rng(5).normal([[1.0], [0.0]], 1, (2, 80))
    promise = claim(rdp.GaussianPrivacy(1.0))
    numbers = canary.proved_by_worlds(scores[None], promise).numbers
    members, nonmembers = scores
    gaps = [(members > c).mean() - (nonmembers > c).mean() for c in nonmembers]
    assert numbers["advantage"] == pytest.approx(max(gaps))


def test_too_little_noise_is_found_out():
    """A claim of half the leak: the lower end exceeds the upper one, an error."""
    rng = np.random.default_rng(1)
    scores = rng.normal([[[1.0]], [[0.0]]], 1, (2, 1, 4000)).swapaxes(0, 1) - 0.5
    assert flags(scores, mu=0.5) == ["lower-above-upper"]
    assert flags(scores, mu=1.0) == []


@pytest.mark.parametrize(("leak", "is_error"), [(1.07, True), (1.0, False)])
def test_most_of_many_audits_above_the_upper_end_are_no_chance(leak, is_error):
    """The first of them is not above, so that no other flag would tell."""
    rng = np.random.default_rng(3)
    scores = rng.normal([[leak], [0.0]], 1, (20, 2, 5000)) - 0.5
    scores = scores[np.argsort(scores[:, 0].mean(1))]  # the least of leaks first
    result = canary.proved_by_worlds(scores, claim(rdp.GaussianPrivacy(1.0)))
    above = result.numbers["above_upper"]["gdp"]
    assert result.numbers["epsilon_lower"] < result.numbers["upper"]
    assert (above > 5) == is_error
    assert result.numbers["above_upper"]["clopper_pearson"] == 0
    said = f"(GDP: {above} of 20 audits are above)"
    assert [f.name for f in result.flags] == ["lower-above-upper"] * is_error
    assert all(said in f.text for f in result.flags)


def test_many_rocs_above_their_band_are_no_chance():
    """Where the threshold of every estimator is, the leak is that of the claim."""
    rng = np.random.default_rng(4)
    scores = rng.normal([[1.0], [0.0]], 1, (20, 2, 5000)) - 0.5
    moved = scores[:, 0]
    moved[moved > 0] += 0.5  # still above the threshold
    result = canary.proved_by_worlds(scores, claim(rdp.GaussianPrivacy(1.0)))
    assert result.numbers["above_upper"] == {"gdp": 0, "clopper_pearson": 0}
    assert result.numbers["above_band"] == 20
    assert [f.name for f in result.flags] == ["lower-above-upper"]
    assert "(ROC band: 20 of 20 audits are above)" in result.flags[0].text


def test_an_audit_that_finds_leaks_where_there_are_none_is_void():
    """The runs without the canary differ between their halves: something is shared."""
    rng = np.random.default_rng(2)
    drift = np.repeat([0.5, -0.5], 2000)
    scores = np.stack([rng.normal(size=4000), drift + rng.normal(size=4000)])[None]
    assert "null-leak" in flags(scores, mu=1.0)


def test_gdp_is_left_out_where_the_claim_is_not_gaussian():
    scores = np.random.default_rng(3).normal(size=(1, 2, 500))
    sampled = rdp.poisson_gaussian_pld(0.2, 1.0, 10, "add_remove")
    result = canary.proved_by_worlds(scores, claim(sampled))
    assert set(result.numbers["lower"]) == {"clopper_pearson", "bayesian"}
    assert result.numbers["in_band"] is None
    assert (result.arrays["most_loss"] >= result.arrays["fpr"] - 1e-9).all()


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_a_sampled_batch_is_not_shown(sampling):
    game = canary.canary(canaries=Canaries())
    task = game.task(PLAIN)
    defense = dpsgd(task, sampling=sampling, batch_size=3).defense
    reason = base.mismatch(gradient_llr(task).threat_model, defense, game)
    assert "not full_batch" in reason


def test_nothing_is_shown_that_the_accounting_takes_for_hidden():
    """A plug-in may declare more than `gradient_llr`, and assume less."""
    game = canary.canary(canaries=Canaries())
    task = game.task(PLAIN)

    def reason(*sees, game=game, **batches):
        model = ThreatModel("membership", frozenset(sees), frozenset({"canaries"}))
        return base.mismatch(model, dpsgd(task, **batches).defense, game)

    assert reason("transcript") is None
    assert reason("transcript", sampling="shuffled", batch_size=3) is None
    assert reason("params", sampling="poisson", batch_size=3) is None
    hidden = reason("transcript", sampling="poisson", batch_size=3)
    assert "who is in a batch" in hidden
    assert "of different runs" in reason("transcript", "params")
    single = canary.one_run(canaries=Canaries(count=2))
    assert reason("transcript", game=single) == "this game cannot grant transcript"


def test_final_parameters_tell_of_a_gradient_canary_what_transcripts_do():
    """Its own weight moves by what the steps add up to, which has the ratio's ROC."""
    numbers, mu = play(canary.canary, one_run, RUNS).numbers, math.sqrt(STEPS) / 2
    auc, want = numbers["auc"], stats.norm.cdf(mu / math.sqrt(2))
    standard_error = 1 / math.sqrt(6 * RUNS)  # of an AUC of scores that tell nothing
    assert abs(auc["value"] - want) < 4 * standard_error
    assert not any(numbers["in_band"].values())
    assert set(numbers["selection"].values()) == {"bonferroni"}
    assert "fixed" not in numbers["lower"]["gdp"]
    assert 0 < numbers["epsilon_lower"] < numbers["upper"]
    assert numbers["epsilon_lower"] < numbers["largest"]


def test_a_blank_canary_has_zeros_and_the_last_label():
    task = canaries.plant(PLAIN, 1, 1.0)
    blank = canaries.records("blank", 1, task, POOL)
    assert not blank.x.any()
    np.testing.assert_array_equal(blank.y, [1])
    played = play(canary.canary, one_run, 40, kind="blank")
    assert played.numbers["epsilon_lower"] <= played.numbers["upper"]
    assert played.runs.evidence.parameters()["canaries"]["kernel"].shape == (80, 1, 1)


def test_an_input_canary_leaks_no_more_than_is_claimed():
    numbers = play(canary.canary, gradient_llr, RUNS, kind="input").numbers
    assert numbers["auc"]["value"] > 0.5
    assert not numbers["in_band"]["above"]
    assert numbers["epsilon_lower"] < numbers["upper"]


# One run ------------------------------------------------------------------------------


def test_one_run_scores_move_with_membership_and_prove_less_than_is_claimed():
    noise = {"noise_multiplier": 1.0}
    played = play(canary.one_run, one_run, learner=noise, count=400, audits=3)
    numbers, member = played.numbers, played.runs.evidence.member
    assert member.shape == (3, 400)
    assert abs(member.mean() - 0.5) < 4 * 0.5 / math.sqrt(1200)
    moved = played.runs.releases.params["canaries"]["kernel"][..., 0]
    lr, n = 0.1, 406
    # every parameter: -(lr / n) (T C [in] + sqrt(T) s N(0, 1))
    step = -lr / n
    for k, (sign, out) in enumerate(((member, STEPS), (~member, 0))):
        law = stats.norm(out * step, abs(step) * math.sqrt(STEPS))
        assert stats.kstest(moved[sign], law.cdf).pvalue > 1e-3, k
    assert numbers["auc"]["value"] > 0.75
    exact = rdp.GaussianPrivacy(math.sqrt(STEPS)).get_epsilon_for_delta(DELTA)
    assert numbers["upper"] == pytest.approx(exact)
    assert 0.2 * exact < numbers["epsilon_lower"] < exact
    assert numbers["epsilon_lower_median"]["one_run"] < exact
    assert played.result.flags == ()
    assert played.limits.epsilon["add_remove"]["tight"] == pytest.approx(exact)


@pytest.mark.parametrize(
    ("leak", "audits", "want"),
    [
        (2.0, 20, ["lower-above-upper"]),
        (2.0, 2, ["lower-above-upper-by-chance"]),
        (1.0, 20, []),
    ],
)
def test_most_of_many_runs_above_the_upper_end_are_no_chance(leak, audits, want):
    """The first is not above at 99.9%; two of two may be chance, at that level."""
    rng = np.random.default_rng(1)
    member = rng.random((audits, 1000)) < 0.5
    scores = rng.normal(size=member.shape) + leak * member
    result = canary.proved_by_run(scores, member, claim(rdp.GaussianPrivacy(1.0)))
    above = result.numbers["above_upper"]["one_run_fdp"]
    assert above == (0 if leak == 1 else audits)
    assert [flag.name for flag in result.flags] == want
    if want == ["lower-above-upper"]:
        assert "(one run, f-DP: 20 of 20 audits are above)" in result.flags[0].text


@pytest.mark.parametrize("audits", [1, 2, 20, 200])
def test_the_audits_above_that_raise_an_error_have_their_level(audits):
    """Of both estimators together, against scipy's binomial law."""
    raised = [
        k
        for k in range(audits + 1)
        if canary._more_than_chance({"one": 0, "other": k}, audits)
    ]
    least = min(raised, default=audits + 1)
    assert raised == list(range(least, audits + 1))
    tails = stats.binom.sf(np.array([least - 1, least - 2]), audits, 0.05)
    assert 2 * tails[0] < 0.001 <= 2 * tails[1]


def test_one_run_with_input_canaries_is_scored_by_their_loss():
    loud = {"noise_multiplier": 0.05, "learning_rate": 5.0, "steps": 20}
    played = play(canary.one_run, one_run, learner=loud, kind="input", count=8)
    assert played.numbers["canaries"] == 8
    assert 0 <= played.numbers["auc"]["value"] <= 1
    assert played.numbers["epsilon_lower"] <= played.numbers["upper"]


def test_one_run_refuses_canaries_that_are_all_in_or_all_out():
    game = canary.one_run(canaries=Canaries(count=2))
    learner = dpsgd(game.task(PLAIN))
    table = worlds.table(worlds.problem(learner.task, FIXED, POOL))
    keys = map(jax.random.key, range(20))
    drawn = [(k, jax.random.bernoulli(stream(k, "members"), shape=(2,))) for k in keys]
    alike = [k for k, bits in drawn if bits.all() or not bits.any()]
    assert 4 <= len(alike) <= 16  # half of them on average
    with pytest.raises(UserError, match="take more canaries or another seed"):
        game.release(alike[0], learner, table)


def test_another_seed_finds_the_task_that_was_planted():
    """Programs are kept by task: one planted anew would be compiled again."""
    task = networks.binary_linear((D,), 2)
    first, second = (canary.planted_task(task, 3, 10.0) for _ in range(2))
    assert first is second
    assert canary.planted_task(task, 3, 20.0) is not first
