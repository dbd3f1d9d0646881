"""One training set, every record in turn: the referee, the defenses, the attacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.glm_attack import glm_attack
from attacks.glm_attack_clamped import glm_attack_clamped
from audit import data
from audit.config import registry
from audit.engine import shadow
from audit.games import base, guarantees, leave_one_out
from audit.games.base import Problem, Table
from audit.mechanisms.glm import information_loss, losses
from audit.models import networks
from audit.types import Attack, Lanes, Release, Splits, ThreatModel, TrainingSet
from tests.conftest import public, records

SHAPE, N, RUNS = (4, 4, 1), 30, 6
TASK = networks.binary_linear(SHAPE, 2)
KEY = jax.random.key(0)
ENGINE = shadow.Engine(Lanes(8))


@pytest.fixture(scope="module")
def splits():
    fixed, test = records(N, SHAPE, 2, seed=1), records(12, SHAPE, 2, seed=2)
    nobody = jax.tree.map(lambda a: a[:0], fixed)
    return Splits(nobody, fixed, nobody, test, test, np.arange(12))


def learner(splits, name="output_perturbed_glm", **given):
    settings = registry.check("defense", name, given, name)
    factory = registry.find("defense", name)
    return shadow.learner(factory, TASK, settings, key=KEY, public=public(TASK))


def table(splits, runs=RUNS):
    dataset = data.Dataset("made", *splits.fixed, None, None, "embedded", "")
    return Table(Problem(TASK, splits, dataset, splits.fixed.x), ENGINE, runs, "none")


def play(splits, of, attack, runs=RUNS, account=False):
    at = table(splits, runs)
    made = leave_one_out.release(KEY, of, at)
    held = guarantees.Guarantees(None, None, (), None)
    if account:
        held = leave_one_out.account(KEY, of, at, 1, 1e-9)
    return made, held, leave_one_out.play(KEY, attack, of, made.releases, held, at)


def spy(knows=("objective",), guess=lambda seen: jnp.zeros(SHAPE)):
    seen = []

    def look(state, key, observation):
        seen.append(observation)
        return guess(observation)

    model = ThreatModel("reconstruction", frozenset({"params"}), frozenset(knows))
    return Attack(model, lambda key, knowledge: (jnp.zeros(()), {}), look), seen


def left_over(splits, w, i, regularization):
    """Return B for record i, by the definition, for the logistic loss."""
    x = np.asarray(splits.fixed.x, float).reshape(N, -1)
    x = np.append(x, np.ones((N, 1)), 1)[:, : len(w)]
    y, others = np.asarray(splits.fixed.y), np.arange(N) != i
    slopes = 1 / (1 + np.exp(-x @ w)) - y
    return x[others].T @ slopes[others] + N * regularization * w


@pytest.mark.parametrize("intercept", [False, True])
def test_the_referee_hands_out_what_the_others_leave(splits, intercept):
    """Through an attack whose guess is a part of `rest`."""
    of = learner(splits, intercept=intercept, noise_stddev=0.1)
    attack, seen = spy(guess=lambda o: o.rest[:16].reshape(SHAPE))
    made, _, (result, arrays) = play(splits, of, attack)
    wanted = np.zeros((N, RUNS))
    for k, w in enumerate(made.releases.params):
        for i in range(N):
            rest = left_over(splits, w, i, 1e-2)[:16]
            wanted[i, k] = ((rest - splits.fixed.x[i].reshape(-1)) ** 2).mean()
    np.testing.assert_allclose(arrays["mse"], wanted.mean(1), rtol=1e-6)
    np.testing.assert_allclose(arrays["mse_median"], np.median(wanted, 1), rtol=1e-6)
    assert seen[0].label is None
    assert seen[0].target is None
    assert result["runs"] == RUNS


def test_weights_are_divided_out_of_what_the_others_leave(splits):
    of = learner(
        splits, "reweighted_glm", intercept=True, iterations=3, noise_stddev=1e-9
    )
    assert play(splits, of, glm_attack(TASK))[2][0]["mse"] < 1e-9


@pytest.mark.parametrize("loss", ["linear", "logistic"])
@pytest.mark.parametrize("intercept", [False, True])
def test_without_noise_every_record_is_rebuilt(splits, loss, intercept):
    of = learner(splits, "glm", loss=loss, intercept=intercept)
    attack = glm_attack(TASK)
    made, held, (result, arrays) = play(splits, of, attack, account=True)
    assert held.dfil is None
    assert held.bounds == ()
    if intercept:
        assert arrays["mse"].max() < 1e-18
    else:  # a wrong root is the same picture at another brightness
        assert np.median(arrays["mse"]) < 1e-18
        assert (arrays["mse"] < 1e-18).mean() > 0.6
    assert result["runs"] == 2
    assert len(made.releases.params) == 2


def test_the_error_has_the_closed_form(splits):
    """xhat - x = (G_F - G_0 x) / (G_0 - r), G the whole gradient at the release."""
    of = learner(splits, intercept=True, noise_stddev=1e-3)
    made, _, (_, arrays) = play(splits, of, glm_attack(TASK))
    x = np.asarray(splits.fixed.x, float).reshape(N, -1)
    design = np.append(x, np.ones((N, 1)), 1)
    errors = []
    for w in made.releases.params:
        r = 1 / (1 + np.exp(-design @ w)) - splits.fixed.y
        whole = design.T @ r + N * 1e-2 * w
        off = (whole[:-1] - whole[-1] * x) / (whole[-1] - r)[:, None]
        errors.append((off**2).mean(1))
    np.testing.assert_allclose(arrays["mse"], np.mean(errors, 0), rtol=1e-7)


def test_small_noise_attains_the_bound_on_the_average_direction(splits):
    """For small noise the error is linear in it; it may not beat Cramer-Rao."""
    of = learner(splits, intercept=True, noise_stddev=1e-6)
    attack = glm_attack(TASK)
    _, held, (result, arrays) = play(splits, of, attack, 200, account=True)
    ratio = arrays["mse"] / (1 / held.dfil)
    assert ratio.min() > 0.8  # 200 draws of 16 coordinates: sd about 2.5%
    assert result["below_bound"]["within"] == N
    assert result["below_bound"]["within_below"] == 0


def test_clamped_guesses_stay_in_the_domain_and_are_split_into_bias_and_variance(
    splits,
):
    of = learner(splits, intercept=True, noise_stddev=0.1)
    result, arrays = play(splits, of, glm_attack_clamped(TASK))[2]
    assert arrays["mse"].max() <= 1
    np.testing.assert_allclose(arrays["bias2"] + arrays["variance"], arrays["mse"])
    assert result["bias2"] is not None
    wild = play(splits, of, glm_attack(TASK))[2][0]
    assert wild["bias2"] is None  # guesses leave the domain: they need not have a mean


def test_one_solve_serves_all_releases_and_is_the_defenses_own(splits):
    of = learner(splits, noise_stddev=0.1)
    made = leave_one_out.release(KEY, of, table(splits))
    swept = shadow.sweep(
        "train",
        of,
        base.stream(KEY, "target runs"),
        TrainingSet(splits.fixed, None),
        engine=ENGINE,
        precise=True,
        runs=RUNS,
    )
    np.testing.assert_allclose(made.releases.params, swept.params, rtol=1e-9)
    noise = made.releases.params - made.noiseless.params
    assert 0.05 < noise.std() < 0.2


def test_accounting_in_turn_is_the_leave_one_out_accounting(splits):
    """Record i among n, or as the target that joins the n - 1 others: one number."""
    of = learner(splits, intercept=True)
    held = leave_one_out.account(KEY, of, table(splits), 1, 1e-9)
    for i in (0, 7):
        others = jax.tree.map(lambda a, i=i: np.delete(a, i, 0), splits.fixed)
        one = jax.tree.map(lambda a, i=i: a[i : i + 1], splits.fixed)
        joined = splits._replace(fixed=others, targets=one)
        at = Problem(TASK, joined, table(splits).problem.dataset)
        alone = guarantees.joined(KEY, of, at, 1, 1e-9, ENGINE)
        np.testing.assert_allclose(alone.dfil[0], held.dfil[i], rtol=1e-9)
        np.testing.assert_allclose(alone.eta[0], held.eta[i], rtol=1e-9)
        assert alone.rdp2 == held.rdp2


def test_closed_forms_are_the_derivative_of_what_is_released(splits):
    """Jacobian-vector products through the very solve that training calls."""
    of = learner(splits, intercept=True, noise_stddev=0.5)
    one = jax.tree.map(lambda a: np.asarray(a[3]), splits.fixed)
    with jax.enable_x64(True):
        fixed, target = (
            z._replace(x=np.asarray(z.x, float)) for z in (splits.fixed, one)
        )
        data_of_one = TrainingSet(fixed, target)
        solve = jax.jit(of.defense.objective.solve)

        def about(x):
            return solve(None, data_of_one._replace(target=target._replace(x=x)))

        step, columns = 1e-5, []
        for j in range(16):
            move = np.zeros(16)
            move[j] = step
            ends = [
                np.asarray(about(target.x + s * move.reshape(SHAPE))) for s in (1, -1)
            ]
            columns.append((ends[0] - ends[1]) / (2 * step))
        dense = np.stack(columns, 1) / 0.5
        trace, norm = of.defense.fil(KEY, None, data_of_one, np.array([N]))
        np.testing.assert_allclose(trace[0], (dense**2).sum(), rtol=1e-6)
        np.testing.assert_allclose(norm[0], np.linalg.norm(dense, 2) ** 2, rtol=1e-6)
        plain = of.defense.fisher(KEY, None, data_of_one, np.array([N]))
        np.testing.assert_allclose(plain, trace)


def test_the_renyi_reading_knows_how_long_records_are(splits):
    n, orders = 12_665, np.array([2.0])
    settings = {"noise_stddev": 1e-2, "regularization": 1e-2}
    for norm, value in ((1.0, 2.4937309940681924), (17.179, 735.94)):
        of = learner(splits, max_norm=norm, **settings)
        curve = of.defense.rdp(n, orders, "replace_one")
        np.testing.assert_allclose(curve, value, rtol=1e-4)
        quarter = of.defense.rdp(n, orders, "add_remove")
        np.testing.assert_allclose(4 * quarter, curve)
        divergence, bound = of.defense.nominal(n)
        np.testing.assert_allclose(divergence.value, 2.4937309940681924)
        np.testing.assert_allclose(bound.value, 0.02250962365)
        assert (divergence.void is None) == (norm == 1)
    longest = learner(splits, **settings).defense  # what [0, 1]^16 allows
    np.testing.assert_allclose(
        longest.rdp(n, orders, "replace_one"), 2.4937309940681924 * 16
    )
    with_one = learner(splits, intercept=True, **settings).defense
    np.testing.assert_allclose(
        with_one.rdp(n, orders, "replace_one"), 2.4937309940681924 * 17
    )


def test_no_record_moves_the_minimiser_further_than_its_sensitivity(splits):
    of = learner(splits, intercept=True)
    bound = 2 * np.sqrt(17) / (N * 1e-2)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        solve = jax.jit(of.defense.objective.solve)
        ends = []
        for _ in range(20):
            x = rng.integers(0, 2, SHAPE).astype(float)
            y = rng.integers(0, 2)
            target = splits.fixed._replace(x=x, y=y)
            others = jax.tree.map(lambda a: np.asarray(a)[1:], splits.fixed)
            ends.append(solve(None, TrainingSet(others, target)))
    apart = max(np.linalg.norm(a - b) for a in ends for b in ends)
    assert 0 < apart <= bound


def test_losses_without_a_theorem_have_no_curve(splits):
    assert learner(splits, loss="linear").defense.rdp is None
    assert learner(splits, "reweighted_glm").defense.rdp is None
    assert learner(splits, "reweighted_glm").defense.log_likelihood is None
    assert learner(splits, "glm").defense.fil is None


@pytest.mark.slow
def test_the_genies_likelihood_is_the_gaussians(splits):
    """Join game: which candidate was the target, given the release."""
    of = learner(splits, noise_stddev=0.3)
    one = jax.tree.map(lambda a: np.asarray(a[0]), splits.pool)
    with jax.enable_x64(True):
        data_of_one = TrainingSet(splits.fixed, one)
        ratios = of.defense.log_likelihood(KEY, None, data_of_one, splits.pool)
        release = of.defense.train(KEY, None, data_of_one).params
        solve = jax.jit(of.defense.objective.solve)
        for i in (0, 5, 11):
            z = jax.tree.map(lambda a, i=i: np.asarray(a[i]), splits.pool)
            mean = solve(None, TrainingSet(splits.fixed, z))
            own = solve(None, data_of_one)
            exact = ((release - own) ** 2).sum() - ((release - mean) ** 2).sum()
            np.testing.assert_allclose(
                ratios[i] - ratios[-1], exact / (2 * 0.3**2), atol=1e-9
            )


def test_attacks_that_need_shadow_models_are_skipped_with_a_reason(splits):
    model = ThreatModel("reconstruction", knows=frozenset({"train"}))
    said = base.mismatch(model, learner(splits).defense, leave_one_out.GAME)
    assert said == "this game cannot grant train"
    model = ThreatModel("attribute")
    said = base.mismatch(model, learner(splits).defense, leave_one_out.GAME)
    assert said == "its goal is attribute, the game is about reconstruction"


def test_other_defenses_play_too(splits):
    """DP-SGD has no objective: what it releases is guessed from the release alone."""
    of = learner(splits, "dpsgd", steps=2)
    attack, _ = spy(knows=())
    made, held, (result, _) = play(splits, of, attack, account=True)
    assert made.noiseless is None
    assert held.dfil.shape == (N,)
    assert held.eta is None
    assert result["targets"] == N
    reason = base.mismatch(
        glm_attack(TASK).threat_model, of.defense, leave_one_out.GAME
    )
    assert reason == "the defense is not glm"


def test_the_join_game_hands_it_out_as_well(splits):
    of = learner(splits, "glm", intercept=True)
    joined = splits._replace(targets=jax.tree.map(lambda a: a[:5], splits.pool))
    releases = base.play_targets(KEY, of, joined, 1, ENGINE)
    played = base.reconstruction_game(
        KEY, glm_attack(TASK), of, releases, joined, 1, ENGINE
    )
    np.testing.assert_allclose(played.guesses[:, 0], joined.targets.x, atol=1e-9)


# Reweighting --------------------------------------------------------------------------


@pytest.mark.slow
def test_reweighting_evens_out_the_losses(splits):
    of = learner(splits, "reweighted_glm", noise_stddev=0.5, iterations=15)
    held = leave_one_out.account(KEY, of, table(splits), 1, 1e-9)
    spread = held.anatomy["eta_sd"]
    assert len(spread) == 16
    assert spread[-1] < 0.05 * spread[0]
    np.testing.assert_allclose(held.eta.std(), spread[-1], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(held.eta.mean(), held.anatomy["eta_mean"][-1])
    before = leave_one_out.account(
        KEY, learner(splits, noise_stddev=0.5), table(splits), 1, 1e-9
    )
    np.testing.assert_allclose(before.eta.std(), spread[0], rtol=1e-9)


def test_one_iteration_is_algorithm_one_by_hand(splits):
    with jax.enable_x64(True):
        weights = {
            name: np.asarray(
                learner(
                    splits, "reweighted_glm", iterations=1, **given
                ).defense.objective.weights(None, splits.fixed)
            )
            for name, given in {
                "sample": {},
                "class": {"method": "class"},
                "hybrid": {"method": "hybrid"},
                "clamped": {"min_weight": 0.9, "max_weight": 1.1},
            }.items()
        }
        loss, y = losses.LOSSES["logistic"], np.asarray(splits.fixed.y, float)
        x, ones = losses.design(splits.fixed.x.astype(float), False), np.ones(N)
        w = losses.minimise(loss, x, y, ones, N * 1e-2)
        inverse = jnp.linalg.inv(losses.hessian(loss, x, y, ones, N * 1e-2, w))
        at = information_loss.fitted(loss, w, inverse, x, y, ones, 16)
        eta = np.sqrt(np.asarray(information_loss.example(at, label=False)))
    sample = (1 / eta) / (1 / eta).mean()
    np.testing.assert_allclose(weights["sample"], sample, rtol=1e-9)
    means = np.array([sample[y == c].mean() for c in (0, 1)])[y.astype(int)]
    np.testing.assert_allclose(weights["class"], means / means.mean(), rtol=1e-9)
    both = means * sample
    np.testing.assert_allclose(weights["hybrid"], both / both.mean(), rtol=1e-9)
    np.testing.assert_allclose(weights["clamped"], np.clip(sample, 0.9, 1.1))


def test_the_published_loss_is_not_that_of_the_whole_procedure(splits):
    """The weights depend on the record too, which the published Jacobian leaves out."""
    of = learner(splits, "reweighted_glm", iterations=5, noise_stddev=1.0)
    with jax.enable_x64(True):
        fixed = splits.fixed._replace(x=np.asarray(splits.fixed.x, float))
        data_of_all = TrainingSet(fixed, None)
        trace, _ = of.defense.fil(KEY, None, data_of_all, np.arange(N))
        solve, columns = jax.jit(of.defense.objective.solve), []
        for j in range(16):
            ends = []
            for s in (1e-5, -1e-5):
                x = fixed.x.copy()
                x[4].reshape(-1)[j] += s
                ends.append(
                    np.asarray(solve(None, TrainingSet(fixed._replace(x=x), None)))
                )
            columns.append((ends[0] - ends[1]) / 2e-5)
    whole = (np.stack(columns) ** 2).sum()
    assert abs(whole / float(trace[4]) - 1) > 0.01


def test_classes_are_needed_where_they_are_used():
    task = networks.regression((3,), 0)
    of = registry.find("defense", "reweighted_glm")(task, loss="linear", method="class")
    z = records(5, (3,), 2)._replace(y=np.linspace(0, 1, 5))
    with pytest.raises(ValueError, match="method=class needs class labels"):
        of.objective.weights(None, z)


def test_a_release_is_a_model(splits):
    of = learner(splits, "glm", intercept=True)
    w = np.append(np.zeros(16), 1.0)
    logits = of.defense.predict(None, Release(jnp.asarray(w)), splits.test.x)
    np.testing.assert_array_equal(logits, np.tile([0.0, 1.0], (12, 1)))
