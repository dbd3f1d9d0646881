"""Samplers: what is drawn, and that the accounting is of what is drawn."""

import jax
import numpy as np
import pytest
from scipy import stats

from audit.accounting import fisher, rdp
from audit.mechanisms.noise import gaussian, von_mises_fisher
from audit.mechanisms.sampler import SAMPLERS
from audit.types import Query

N, SIZE, STEPS = 10, 4, 7
QUERY = Query(fn=lambda *_: None, norm_bound=1.5, sensitivity=3.0)
NOISE = gaussian(2.0)


def make(name):
    return SAMPLERS[name](None if name == "full" else SIZE)


def weights(batch):
    """How often each of N records takes part."""
    if batch.rows is None:
        return np.ones(N) if batch.weight is None else np.asarray(batch.weight)
    out = np.zeros(N)
    np.add.at(out, np.asarray(batch.rows), np.asarray(batch.weight))
    return out


def draws(name, steps, key=0):
    draw, key = make(name).draw, jax.random.key(key)
    return np.array([weights(draw(key, t, N)) for t in range(steps)])


def test_full_batches_are_everybody_and_uniform_ones_subsets_of_one_size():
    assert (draws("full", 3) == 1).all()
    batches = draws("uniform", 200)
    assert set(batches.ravel()) == {0.0, 1.0}
    assert (batches.sum(1) == SIZE).all()
    assert (batches.mean(0) > 0.2).all()
    assert len({tuple(row) for row in batches}) > 50


def test_poisson_batches_are_independent_coins():
    """2,000 steps: every record's rate and the variance of sizes within 4 s.e."""
    batches = draws("poisson", 2_000)
    q = SIZE / N
    se = np.sqrt(q * (1 - q) / len(batches))
    assert (abs(batches.mean(0) - q) < 4 * se).all()
    sizes, variance = batches.sum(1), N * q * (1 - q)
    assert abs(sizes.var() - variance) < 4 * variance * np.sqrt(2 / len(sizes))


@pytest.mark.parametrize("key", [0, 1])
def test_shuffled_epochs_visit_everybody_once(key):
    per_epoch = 3  # 4 + 4 + 2
    batches = draws("shuffled", 4 * per_epoch, key)
    for epoch in batches.reshape(4, per_epoch, N):
        assert (epoch.sum(0) == 1).all()
        assert sorted(epoch.sum(1)) == [2, 4, 4]
    assert (batches[:per_epoch] != batches[per_epoch : 2 * per_epoch]).any()


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_depend_on_the_key_and_the_step_alone(name):
    np.testing.assert_array_equal(draws(name, 5), draws(name, 5))
    if name != "full":
        assert (draws(name, 5) != draws(name, 5, key=3)).any()


def test_fisher_factors():
    """Without amplification the factor is a record's weight in the batch."""
    assert make("full").fisher_factor is make("shuffled").fisher_factor is None
    q = SIZE / N
    for name, nu in (("uniform", 1.5), ("poisson", 0.75)):
        factor = float(make(name).fisher_factor(NOISE, QUERY, N))
        want = q * fisher.subsampling_factor(q, nu)
        np.testing.assert_allclose(factor, want, rtol=1e-6)
        # of a noise that is not Gaussian convexity alone says something
        assert make(name).fisher_factor(von_mises_fisher(4.0, 10), QUERY, N) == q


def curve(name, adjacency, orders=(2.0, 3.0), steps=STEPS):
    return make(name).rdp(NOISE, QUERY, N, steps, np.array(orders), adjacency)


def test_curves_are_of_the_sampler_that_draws():
    orders = np.array([2.0, 3.0])
    for adjacency, shift in (("replace_one", 1.5), ("add_remove", 0.75)):
        once = rdp.gaussian(orders, shift)
        np.testing.assert_allclose(curve("full", adjacency), STEPS * once)
        # 7 steps of 3 an epoch: some record is visited 3 times, none more often
        np.testing.assert_allclose(curve("shuffled", adjacency), 3 * once)
        want = STEPS * rdp.poisson_gaussian(orders, SIZE / N, 0.75, adjacency)
        np.testing.assert_allclose(curve("poisson", adjacency), want)
    want = STEPS * rdp.without_replacement_gaussian(orders, SIZE / N, 1.5)
    np.testing.assert_allclose(curve("uniform", "replace_one"), want)
    # what has no theorem is None
    assert curve("uniform", "add_remove") is None
    assert make("uniform").pld(NOISE, QUERY, N, STEPS, "replace_one") is None


@pytest.mark.parametrize("name", ["poisson", "uniform"])
def test_batches_of_everybody_are_the_full_batch(name):
    """By convexity alone too, of a noise that is not Gaussian."""
    orders = np.array([1.5, 2.0, 8.0])
    noise = von_mises_fisher(4.0, 10)
    each = (
        SAMPLERS[n](size).rdp(noise, QUERY, N, STEPS, orders, "replace_one")
        for n, size in (("full", None), (name, N))
    )
    np.testing.assert_allclose(*each, rtol=1e-12)


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
@pytest.mark.parametrize("name", ["full", "poisson", "shuffled"])
def test_privacy_loss_is_tighter_than_the_renyi_conversion(name, adjacency):
    pld = make(name).pld(NOISE, QUERY, N, STEPS, adjacency)
    tight = pld.get_epsilon_for_delta(1e-6)
    loose = rdp.epsilon(rdp.ORDERS, curve(name, adjacency, rdp.ORDERS), 1e-6)
    assert 0 < tight < loose < 2 * tight


@pytest.mark.parametrize(
    ("adjacency", "shift"), [("replace_one", 1.5), ("add_remove", 0.75)]
)
def test_privacy_losses_are_of_the_adjacency_asked_for(adjacency, shift):
    """Without amplification that of one Gaussian, farther away by sqrt(releases)."""
    epsilon = 2.0
    for name, releases in (("full", STEPS), ("shuffled", 3)):
        mu = shift * np.sqrt(releases)
        beyond = stats.norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
        loss = make(name).pld(NOISE, QUERY, N, STEPS, adjacency)
        delta = beyond[0] - np.exp(epsilon) * beyond[1]
        assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-9)
    ours = make("poisson").pld(NOISE, QUERY, N, STEPS, adjacency)
    exact = rdp.poisson_gaussian_pld(SIZE / N, 0.75, STEPS, adjacency)
    delta = exact.get_delta_for_epsilon(epsilon)
    assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-9)


def test_wrong_batch_sizes_are_refused():
    with pytest.raises(ValueError, match="takes no batch_size"):
        SAMPLERS["full"](3)
    for name in ("uniform", "poisson", "shuffled"):
        with pytest.raises(ValueError, match="needs a batch_size"):
            SAMPLERS[name](None)
        with pytest.raises(ValueError, match="larger than the 10 records"):
            SAMPLERS[name](11).draw(jax.random.key(0), 0, N)
