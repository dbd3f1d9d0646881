"""Naming the target among candidates: what is possible, bounded, and told."""

import math

import jax
import numpy as np
import pytest
from scipy import special, stats

from attacks.prior_aware import prior_aware
from audit.accounting import rdp, reconstruction_robustness
from audit.config.schema import SplitSizes
from audit.errors import UserError
from audit.games import identification
from audit.games.base import take
from audit.games.identification import Candidates
from audit.mechanisms.noisy_sgd import alignment, transcript
from audit.models import networks
from audit.types import Alignment, TrainingSet
from tests.conftest import flat, records
from tests.games import worlds

D, STEPS, RUNS, M, NOISE = 6, 4, 400, 4, 1.5
TASK = networks.mlp((D,), 3, hidden=4, activation="relu")
FIXED, TARGETS, POOL = (records(n, (D,), 3, n) for n in (7, 2 * M, 9))
DPSGD = {
    "clip": "hard", "clip_norm": 0.1, "steps": STEPS, "noise_multiplier": NOISE,
}  # fmt: skip


def play(name="dpsgd", runs=RUNS, priors=(M,), score="likelihood", **given):
    settings = given if name != "dpsgd" else DPSGD | given
    game = identification.identification(candidates=Candidates(priors=list(priors)))
    problem = worlds.problem(TASK, FIXED, POOL, targets=TARGETS)
    learner = worlds.learner(TASK, name, **settings)
    table = worlds.table(problem, runs, tile=400)
    return worlds.play(game, prior_aware(TASK, score=score), learner, table, 1e-5)


def of_gaussians(gram, draws=50_000):
    """Return the success of the best namer of one of M Gaussian means, and its error.

    The means have inner products `gram` [M, M] in units of the noise; by Monte Carlo of
    <x, mean_j> - |mean_j|^2 / 2 with x = mean_k + noise.
    """
    m, rng = len(gram), np.random.default_rng(0)
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0))
    each = []
    for k in range(m):
        scores = rng.normal(size=(draws, m)) @ root.T + gram[k] - np.diag(gram) / 2
        each.append((scores.argmax(1) == k).mean())
    value = np.mean(each)
    return value, math.sqrt(value * (1 - value) / (m * draws))


@pytest.mark.parametrize(("mu", "value"), [(10 / 9.5, 0.402763), (10 / 5, 0.710998)])
def test_the_gaussian_namer_meets_the_quadrature(mu, value):
    """Eight orthogonal means: the integral of phi(z) Phi(z + mu)^7."""
    z = np.linspace(-12, 12, 20_001)
    exact = (stats.norm.pdf(z) * special.ndtr(z + mu) ** 7).sum() * (z[1] - z[0])
    assert abs(exact - value) < 1e-6
    got, se = of_gaussians(mu**2 * np.eye(8))
    assert abs(got - exact) < 4 * se


def test_the_optimum_is_that_of_the_candidates_geometry():
    """Two derivations: posteriors of runs, and Gaussian means with the Gram matrix.

    With steps too short to move the parameters, contributions are the same in each.
    """
    played = play(learning_rate=1e-6, priors=(2 * M,))
    learner = worlds.learner(TASK, "dpsgd", **DPSGD)
    query, side = learner.defense.mechanism.query, learner.side
    each = np.stack([
        flat(query.fn(side.params, side, take(TARGETS, i)))
        for i in range(2 * M)
    ])  # fmt: skip
    want, want_se = of_gaussians(STEPS * each @ each.T / (NOISE * 0.1) ** 2)
    got = played.limits.fields["optimum"][str(2 * M)]
    assert abs(got["value"] - want) < 4 * math.hypot(got["standard_error"], want_se)
    assert want > 1.5 / (2 * M)
    first = played.numbers["priors"][0]
    assert first["low"] < want < first["high"]  # 99%
    # below the bound, for the candidates are not as far apart as the worst case
    assert want + 4 * want_se < first["bound"]


@pytest.mark.parametrize("m", [2, 4, 8])
def test_the_bound_is_the_trade_off_curve_of_all_steps(m):
    allowed, adjacency = identification.bound(
        worlds.learner(TASK, "dpsgd", **DPSGD).defense, len(FIXED.y) + 1, [m]
    )
    mu = math.sqrt(STEPS) / NOISE
    assert adjacency == "add_remove"
    np.testing.assert_allclose(allowed[str(m)], special.ndtr(special.ndtri(1 / m) + mu))


def test_priors_are_blocks_and_no_larger_prior_is_easier():
    played = play(priors=(2, 4, 8))
    success = {one["candidates"]: one["success"] for one in played.numbers["priors"]}
    assert success[2] > success[4] > success[8] > 1 / 8
    for one in played.numbers["priors"]:
        assert one["low"] <= one["optimum"]["value"] <= one["high"]
        assert one["high"] < one["bound"]
    np.testing.assert_allclose(played.arrays["success"].mean(), success[2])
    numbers = np.tile(np.arange(4), (4, 1))
    np.testing.assert_array_equal(
        identification.blocks(numbers, 2, 1), [[0, 1], [0, 1], [2, 3], [2, 3]]
    )
    assert identification.place(4, 2, 2).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_likelihood_names_no_fewer_than_inner_products():
    """Contributions of unequal norms: the score of unequal norms favours the long."""
    inner, exact = (
        play(score=score, clip_norm=5.0, noise_multiplier=0.05).numbers["success"]
        for score in ("inner", "likelihood")
    )
    assert exact > inner + 0.05


SAMPLED = [
    ("dpsgd", {"sampling": "poisson", "batch_size": 4, "noise_multiplier": 0.5}),
    ("dirdp_sgd", {"variant": "batch", "concentration": 60.0, "steps": STEPS}),
    ("dirdp_sgd", {"variant": "rows", "concentration": 4.0, "steps": STEPS}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), SAMPLED)
def test_the_likeliest_is_right_as_often_as_its_likelihood_says(name, given):
    """Poisson batches that nobody sees, and directions of whole batches."""
    played = play(name, **given)
    assert not played.result.flags
    assert played.limits.fields["off"] < 4
    one = played.numbers["priors"][0]
    assert one["optimum"]["value"] > 1 / M + 0.05
    assert one["low"] < one["optimum"]["value"] < one["high"] < one["bound"]


def test_another_law_of_the_steps_is_noticed():
    """Half of the accounted noise: more targets are named than the posterior says."""
    rng, runs = np.random.default_rng(1), 2000
    truth = np.eye(M)[identification.place(M, M, runs)] * 2.0
    x = truth + rng.normal(size=truth.shape)
    sound, faulty = 2.0 * x - 2.0, (2.0 * x - 2.0) / 4
    assert identification._off(sound, M, runs) < 4
    assert identification._off(faulty, M, runs) > 10
    loss = rdp.GaussianPrivacy(1.0)  # accounted: half of what is seen
    bound = reconstruction_robustness.success(1 / M, loss)
    fields = {
        "success_bound": {str(M): bound},
        "optimum": {str(M): identification.optimum(faulty)._asdict()},
    }
    right = sound.argmax(1) == identification.place(M, M, runs)
    raised = identification.flags([identification._counted(M, right, fields)], 12.0)
    assert [flag.name for flag in raised] == ["success-above-bound", "optimum-off"]


def test_a_sound_law_is_rarely_two_standard_errors_off():
    """In .046 of all draws, where misses are not rare; 4 s.e. of 200 draws."""
    rng, runs = np.random.default_rng(2), 50
    truth = np.eye(M)[identification.place(M, M, runs)] * 2.0
    draws = truth + rng.normal(size=(200, *truth.shape))
    off = [identification._off(2.0 * x - 2.0, M, runs) for x in draws]
    assert np.mean(np.array(off) > 2) < 0.046 + 4 * np.sqrt(0.046 / 200)


@pytest.mark.parametrize("odds", [100.0, 12.0])  # in float64 the first are certainties
def test_one_miss_of_the_likeliest_is_chance_and_many_are_not(odds):
    runs = 200
    ratios = odds * np.eye(2)[identification.place(2, 2, runs)]
    assert identification._off(ratios, 2, runs) < 1
    ratios[0] = ratios[0, ::-1]
    assert identification._off(ratios, 2, runs) < 5
    ratios[: runs // 2] = ratios[-1]
    assert identification._off(ratios, 2, runs) > 10


def test_runs_without_a_density_are_skipped_with_the_reason():
    def reason(name, **given):
        return identification.refuses(worlds.learner(TASK, name, **given).defense)

    assert reason("dpsgd") is None
    assert reason("dirdp_sgd", variant="batch") is None
    assert "density" in reason("dirdp_sgd")
    assert "density" in reason("sgd")
    assert "batches" in reason("dpsgd", sampling="shuffled", batch_size=2)
    poisson = {"sampling": "poisson", "batch_size": 2}
    assert "batches" in reason("dirdp_sgd", variant="batch", **poisson)


@pytest.mark.parametrize("priors", [(3,), (1,), (16,)])
def test_priors_that_are_no_blocks_are_refused(priors):
    class Spec:
        splits = SplitSizes(targets=8)

    game = identification.identification(candidates=Candidates(priors=list(priors)))
    with pytest.raises(UserError, match=rf"{priors[0]} is no size of equal blocks"):
        game.check(Spec)


def test_what_is_folded_is_what_the_steps_say():
    """<rest, f>, ||f||^2 and the mixture's log ratio, from the stored transcript."""
    share, poisson = 0.5, {"sampling": "poisson", "batch_size": 4}
    for given, q in (({}, 1.0), (poisson, share)):
        learner = worlds.learner(TASK, "dpsgd", **DPSGD, **given)
        mechanism, side = learner.defense.mechanism, learner.side
        data = TrainingSet(FIXED, take(TARGETS, 0))
        arguments = mechanism, jax.random.key(3), side, data
        got = alignment(*arguments, TARGETS)
        steps = transcript(*arguments)
        contributions = jax.jit(jax.vmap(mechanism.query.fn, (None, None, 0)))
        want = np.zeros((3, 2 * M))
        for t in range(STEPS):
            params, r = take(steps.params, t), flat(take(steps.rest, t))
            each = contributions(params, side, TARGETS)
            for j in range(2 * M):
                f = flat(take(each, j))
                log = (r @ f - f @ f / 2) / (NOISE * 0.1) ** 2
                want[:, j] += r @ f, f @ f, math.log(1 - q + q * math.exp(log))
        for mine, theirs in zip(got, Alignment(*want), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
