"""Membership attacks against plain-Python renderings of their formulas."""

import math
import statistics

import jax
import numpy as np
import pytest
from scipy.stats import norm

from attacks.attack_p import attack_p
from attacks.attack_r import attack_r
from attacks.attack_s import attack_s
from attacks.coin import coin
from attacks.lira import lira
from attacks.loss_threshold import loss_threshold
from attacks.rmia import rmia
from audit.engine import signals
from audit.engine.signals import Shadows, Signals
from audit.types import Examples, Knowledge, Observation, Task

MODELS, RECORDS, POOL, CLASSES = 6, 8, 11, 3
TASK = Task("test", None, None, None, (2,), CLASSES)


def p(logits, label):
    """Return the label's softmax probability at one query."""
    high = max(logits)
    each = [math.exp(v - high) for v in logits]
    return each[label] / sum(each)


def phi(logits, label):
    chance = p(logits, label)
    others = sum(p(logits, other) for other in range(CLASSES) if other != label)
    return math.log(chance) - math.log(others)


def loss(logits, label):
    """Return the mean over queries."""
    return statistics.mean(-math.log(p(q, label)) for q in logits)


def half_in(rng, models, records):
    """Return who is in which model, every record in half of them."""
    half = np.arange(models)[:, None] < models // 2
    return rng.permuted(np.broadcast_to(half, (models, records)), axis=0)


def share_up_to(value, others):
    return sum(v <= value for v in others) / len(others)


log_odds = jax.jit(signals.log_odds)


class Fixed:
    """Logits of reference models and of one target model, and of what follows."""

    def __init__(self, queries):
        rng = np.random.default_rng(queries)
        draw = lambda *shape: 2 * rng.normal(size=(*shape, queries, CLASSES))
        self.queries = queries
        self.label = rng.integers(0, CLASSES, RECORDS)
        self.pool_label = rng.integers(0, CLASSES, POOL)
        self.member = half_in(rng, MODELS, RECORDS)
        self.shadow, self.shadow_pool = draw(MODELS, RECORDS), draw(MODELS, POOL)
        self.target, self.target_pool = draw(RECORDS), draw(POOL)
        self.losses = list(map(loss, self.target, self.label))

    def split(self, i, q, signal):
        """Return a signal of record i at query q on models with it, and without."""
        both = [], []
        for m in range(MODELS):
            value = signal(self.shadow[m, i, q], self.label[i])
            both[0 if self.member[m, i] else 1].append(value)
        return both

    def scores(self, attack):
        """Score the target model with one of our attacks."""

        def odds(a, y):
            return log_odds(a, np.broadcast_to(y[:, None], a.shape[:-1]))

        def both(records, pool):
            return Signals(odds(records, self.label), odds(pool, self.pool_label))

        references = jax.tree.map(np.asarray, both(self.shadow, self.shadow_pool))
        knows, sees = attack.threat_model.knows, attack.threat_model.sees
        shadows = Shadows(self.member, self.label, references)
        pool = Examples(np.zeros((POOL, 2)), self.pool_label)
        knowledge = Knowledge(TASK, pool, np.arange(POOL))
        knowledge = knowledge._replace(shadows=shadows if "shadows" in knows else None)
        state, _ = attack.fit(jax.random.key(0), knowledge)
        shown = Observation(
            label=self.label if "label" in knows else None,
            signals=both(self.target, self.target_pool) if "signals" in sees else None,
        )
        return np.asarray(jax.jit(attack.guess)(state, jax.random.key(1), shown))


@pytest.fixture(params=[1, 3], ids=["one query", "three queries"])
def fixed(request, x64):
    return Fixed(request.param)


def test_log_odds_are_those_of_the_softmax(fixed):
    for queries, label in zip(fixed.target, fixed.label, strict=True):
        for logits in queries:
            ours = log_odds(logits, label)
            assert ours == pytest.approx(phi(logits, label), rel=1e-10)
            entropy = -math.log(p(logits, label))
            assert signals.loss(ours) == pytest.approx(entropy, rel=1e-10)


@pytest.mark.parametrize("location", ["median", "mean"])
@pytest.mark.parametrize("variance", ["record", "fixed"])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_lira(fixed, mode, variance, location):
    centre = getattr(statistics, location)
    queries = range(fixed.queries)
    laws = [
        [[(centre(s), statistics.pvariance(s)) for s in fixed.split(i, q, phi)]
         for q in queries]
        for i in range(RECORDS)
    ]  # fmt: skip
    if variance == "fixed":  # pooled within records: members' from members
        for q in queries:
            for side in (0, 1):
                pooled = statistics.mean(laws[i][q][side][1] for i in range(RECORDS))
                for i in range(RECORDS):
                    laws[i][q][side] = (laws[i][q][side][0], pooled)
    want = []
    for i in range(RECORDS):
        total = 0.0
        for q in queries:
            odds = phi(fixed.target[i, q], fixed.label[i])
            (m_in, v_in), (m_out, v_out) = laws[i][q]
            if mode == "online":
                total += norm.logpdf(odds, m_in, v_in**0.5)
                total -= norm.logpdf(odds, m_out, v_out**0.5)
            else:  # one-sided, and never the density: far below is not suspicious
                total -= norm.logsf(odds, m_out, v_out**0.5)
        want.append(total)
    ours = fixed.scores(lira(TASK, mode=mode, variance=variance, location=location))
    np.testing.assert_allclose(ours, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.3), (2.0, 0.8)])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_rmia(fixed, mode, gamma, a):
    want = []
    for i in range(RECORDS):
        shares = []
        for q in range(fixed.queries):
            inside, outside = fixed.split(i, q, p)
            prior = statistics.mean([statistics.mean(inside), statistics.mean(outside)])
            if mode == "offline":
                prior = ((1 + a) * statistics.mean(outside) + (1 - a)) / 2
            x = p(fixed.target[i, q], fixed.label[i]) / prior
            beaten = 0
            for z in range(POOL):
                y = fixed.pool_label[z]
                out = statistics.mean(p(m[z, q], y) for m in fixed.shadow_pool)
                ratio = p(fixed.target_pool[z, q], y)
                ratio /= ((1 + a) * out + (1 - a)) / 2
                beaten += x / ratio >= gamma
            shares.append(beaten / POOL)
        want.append(statistics.mean(shares))
    ours = fixed.scores(rmia(TASK, mode=mode, gamma=gamma, offline_a=a))
    np.testing.assert_allclose(ours, want, atol=1e-6)


def play(attack, references, target, label):
    """Score a target model; its signals are [records, 1] and [pool, 1], float16."""
    member = half_in(np.random.default_rng(0), len(references.candidates), len(label))
    pool = Examples(target.population, np.zeros(len(target.population), int))
    shadows = Shadows(member, label, references)
    knowledge = Knowledge(TASK, pool, np.arange(len(pool.y)), shadows=shadows)
    state, _ = attack.fit(jax.random.key(0), knowledge)
    shown = Observation(label=label, signals=target)
    return np.asarray(jax.jit(attack.guess)(state, jax.random.key(1), shown))


def as_models(target):
    """Return what `MODELS` models say of records if all say what the target says."""
    return Signals(*(np.broadcast_to(s, (MODELS, *s.shape)) for s in target))


@pytest.mark.parametrize("moved", [0.0, -1.0])
def test_rmia_of_labels_that_all_models_are_sure_are_wrong(moved):
    """Their probabilities are 0 in float32, and e^moved times those of references."""
    odds = np.float16([-16, -18.5, -120, -2000])[:, None]
    target = Signals(odds, np.linspace(-3, 3, POOL, dtype=np.float16)[:, None])
    references = as_models(Signals(odds, np.zeros_like(target.population)))
    target = target._replace(candidates=odds + np.float16(moved))
    scores = play(rmia(TASK, offline_a=0.3), references, target, np.zeros(4, int))
    p = 1 / (1 + np.exp(-target.population.astype(float)))
    want = (p / ((1.3 * 0.5 + 0.7) / 2) <= np.exp(moved)).mean()
    assert 0 < want < 1
    np.testing.assert_allclose(scores, want, rtol=1e-6)


@pytest.mark.parametrize("variance", ["record", "fixed"])
def test_lira_says_nothing_of_records_that_all_models_agree_on(variance):
    """Their log-odds have no spread, e.g. the largest of float16: both laws are one."""
    odds = np.float16([-3, 0.5, 65504])[:, None]
    target = Signals(odds, np.zeros((POOL, 1), np.float16))
    attack, label = lira(TASK, variance=variance), np.zeros(3, int)
    assert (play(attack, as_models(target), target, label) == 0).all()


@pytest.mark.usefixtures("optimised")
def test_equal_log_odds_are_tied_losses():
    """Every reference says what the target says: all its losses are no larger."""
    odds = np.random.default_rng(0).normal(4, 6, (2000, 1)).astype(np.float16)
    target = Signals(odds, np.zeros((1, 1), np.float16))
    label = np.zeros(len(odds), int)
    scores = play(attack_r(TASK, smoothing="none"), as_models(target), target, label)
    assert (scores == -1).all()
    scores = play(attack_r(TASK), as_models(target), target, label)
    np.testing.assert_allclose(scores, -3 / 4, rtol=1e-6)  # below a dummy alone
    ranks = (odds >= odds.T).mean(0)  # of losses, which fall as log-odds grow
    scores = play(attack_s(TASK), as_models(target), target, label)
    np.testing.assert_allclose(scores, -ranks, rtol=1e-6)


def test_attack_r_ranks_records_that_all_models_agree_on_in_the_middle():
    """Their log-odds have no spread, and the target's are their mean: alpha is 1/2."""
    odds = np.float16([-3, 0.5, 8])[:, None]
    target = Signals(odds, np.zeros((POOL, 1), np.float16))
    attack, label = attack_r(TASK, smoothing="logit"), np.zeros(3, int)
    scores = play(attack, as_models(target), target, label)
    np.testing.assert_allclose(scores, math.log(2), rtol=1e-6)


def test_the_surest_records_differ_by_normal_laws_of_attack_r():
    """Their ranks, 0 in float32, would tie."""
    rng = np.random.default_rng(0)
    references = Signals(rng.normal(size=(MODELS, 9, 1)), np.zeros((MODELS, 1, 1)))
    odds = np.linspace(40, 80, 9)[:, None]
    target = Signals(odds, np.zeros((1, 1)))
    scores = play(
        attack_r(TASK, smoothing="logit"), references, target, np.zeros(9, int)
    )
    assert np.isfinite(scores).all()
    assert len(set(scores)) == 9


def test_loss_threshold(fixed):
    scores = fixed.scores(loss_threshold(TASK))
    np.testing.assert_allclose(scores, np.negative(fixed.losses), rtol=1e-9)


@pytest.mark.parametrize("per_class", [False, True])
def test_attack_p(fixed, per_class):
    want = []
    for value, label in zip(fixed.losses, fixed.label, strict=True):
        others = [
            loss(logits, y)
            for logits, y in zip(fixed.target_pool, fixed.pool_label, strict=True)
            if not per_class or y == label
        ]
        want.append(-share_up_to(value, others))
    ours = fixed.scores(attack_p(TASK, per_class=per_class))
    np.testing.assert_allclose(ours, want, atol=1e-6)


def test_attack_s(fixed):
    want = []
    for value, label in zip(fixed.losses, fixed.label, strict=True):
        outside = fixed.shadow[~fixed.member & (fixed.label == label)]
        want.append(-share_up_to(value, [loss(logits, label) for logits in outside]))
    np.testing.assert_allclose(fixed.scores(attack_s(TASK)), want, atol=1e-6)


@pytest.mark.parametrize(
    "smoothing", ["none", "linear", "logit", "gaussian", "min", "mean"]
)
def test_attack_r(fixed, smoothing):
    want = []
    for i, (y, value) in enumerate(zip(fixed.label, fixed.losses, strict=True)):
        models = fixed.shadow[~fixed.member[:, i], i]
        losses = [loss(logits, y) for logits in models]
        *odds, ours = (
            statistics.mean(phi(v, y) for v in logits)
            for logits in (*models, fixed.target[i])
        )
        # the share, interpolated between losses sorted with dummies 0 and 1000
        knots = [0.0, *sorted(losses), 1000.0]
        linear = np.interp(value, knots, np.linspace(0, 1, len(knots)))
        logit = norm.sf(ours, statistics.mean(odds), statistics.pstdev(odds))
        gaussian = norm.cdf(value, statistics.mean(losses), statistics.pstdev(losses))
        alpha = {
            "none": share_up_to(value, losses),
            "linear": linear,
            "logit": math.log(logit),
            "gaussian": math.log(gaussian),
            "min": max(linear, logit),
            "mean": (linear + logit) / 2,
        }
        want.append(-alpha[smoothing])
    ours = fixed.scores(attack_r(TASK, smoothing=smoothing))
    np.testing.assert_allclose(ours, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("own", "alpha"), [(2_000, (1 + 1 / 3) / 4), (9_000, 3 / 4), (60_000, 1)]
)
def test_attack_r_ranks_losses_of_diverged_models_above_its_dummy(own, alpha):
    losses = np.array([[1_000], [4_000], [9_000], [0], [0], [0]], np.float32)
    member = np.arange(6)[:, None] >= 3
    nobody = np.zeros((6, 0, 1))
    shadows = Shadows(member, np.zeros(1, int), Signals(-losses[..., None], nobody))
    attack = attack_r(TASK)
    knowledge = Knowledge(TASK, Examples(nobody[0], nobody[0]), [], shadows=shadows)
    state, _ = attack.fit(jax.random.key(0), knowledge)
    shown = Observation(signals=Signals(np.full((1, 1), -own), nobody[0]))
    ours = attack.guess(state, jax.random.key(1), shown)
    np.testing.assert_allclose(ours, [-alpha], rtol=1e-6)


def test_the_coin_tells_nobody_apart(fixed):
    assert (fixed.scores(coin(TASK)) == 0).all()


def test_a_high_score_always_says_member():
    """Where members are fitted better, every attack's AUC is above one half."""
    rng = np.random.default_rng(0)
    models, records = 20, 300
    member = half_in(rng, models, records)
    ease = rng.normal(size=(1, records))
    odds = (2 + ease + 2 * member + rng.normal(size=member.shape))[..., None]
    population = (2 + rng.normal(size=(models, 200)))[..., None]
    label = rng.integers(0, CLASSES, records)
    pool = Examples(np.zeros((200, 2)), rng.integers(0, CLASSES, 200))
    shadows = Shadows(member, label, Signals(odds, population))
    shown = Observation(label=label, signals=Signals(odds[0], population[0]))
    for factory in (loss_threshold, attack_p, attack_s, attack_r, lira, rmia):
        attack = factory(TASK)
        knowledge = Knowledge(TASK, pool, np.arange(200), shadows=shadows)
        state, _ = attack.fit(jax.random.key(0), knowledge)
        score = np.asarray(attack.guess(state, jax.random.key(1), shown))
        inside, outside = score[member[0]], score[~member[0]]
        assert (inside[:, None] > outside).mean() > 0.6, factory.__name__
