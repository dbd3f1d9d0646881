"""Half-in designs, and runs that train on rows of their own."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml

from audit.clipping import soft_clip
from audit.data import half_in
from audit.engine import shadow
from audit.mechanisms import batch as batches
from audit.mechanisms.noise import gaussian
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import Side, gradient
from audit.mechanisms.sampler import SAMPLERS
from audit.models import networks
from audit.types import Lanes, State, TrainingSet
from tests import ROOT
from tests.conftest import double, flat, records, wide
from tests.games import worlds
from tests.mechanisms import per_record

DESIGNS = {n: getattr(half_in, n) for n in ("in_out", "replace_one")}
SHAPE = (3, 2, 1)
TASK = networks.mlp(SHAPE, 3, hidden=4)


@pytest.mark.parametrize("name", DESIGNS)
def test_every_candidate_is_in_exactly_half_of_the_models(name):
    design = DESIGNS[name]
    member = design.member(jax.random.key(0), 12, 50)
    assert member.dtype == bool
    assert (member.sum(0) == 6).all()
    rows = design.rows(member)
    assert rows.shape == (12, design.slots(50))
    for slots, bits in zip(rows, member, strict=True):
        np.testing.assert_array_equal(np.sort(slots[slots >= 0]), np.flatnonzero(bits))
    assert (rows < 0).any() == design.empty
    again = design.member(jax.random.key(0), 12, 50)
    np.testing.assert_array_equal(again, member)
    assert (design.member(jax.random.key(1), 12, 50) != member).any()


def test_coins_of_two_candidates_are_independent():
    """Within a model, agreement of neighbours is a fair coin: 4 s.e. of 20,000."""
    key = jax.random.key(3)
    single = half_in.in_out.member(key, 2, 20_001)[0]
    pairs = half_in.replace_one.member(key, 2, 40_000)[0].reshape(-1, 2)
    assert (pairs.sum(1) == 1).all()
    for coins in (single, pairs[:, 0]):
        agree = (coins[1:] == coins[:-1]).mean()
        assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(20_000)


def test_the_number_of_slots_is_public():
    """It depends on the number of candidates alone, and is seldom not enough."""
    for candidates in (10, 1_000, 60_000):
        slots = half_in.in_out.slots(candidates)
        assert candidates / 2 < slots <= candidates
        sizes = np.random.default_rng(0).binomial(candidates, 0.5, 10_000)
        assert sizes.max() <= slots
    assert half_in.in_out.adjacency == "add_remove"
    assert half_in.replace_one.adjacency == "replace_one"


def test_odd_numbers_are_refused():
    for design in DESIGNS.values():
        with pytest.raises(ValueError, match="7 models"):
            design.member(jax.random.key(0), 7, 10)
    with pytest.raises(ValueError, match="9 candidates"):
        half_in.replace_one.member(jax.random.key(0), 4, 9)


@pytest.mark.parametrize("sampling", SAMPLERS)
@pytest.mark.parametrize("name", DESIGNS)
def test_a_step_sums_over_who_is_in_the_batch_and_there(x64, name, sampling):
    design, z = DESIGNS[name], wide(12, SHAPE, 3)
    rows = design.rows(design.member(jax.random.key(2), 2, 12))[0]
    sampler = SAMPLERS[sampling](None if sampling == "full" else 3)
    query = gradient(TASK, soft_clip(1.0))
    side = double(Side(TASK.init(jax.random.key(0))))
    data = TrainingSet(z, None, jnp.asarray(rows))
    assert batches.count(data) == design.slots(12)
    batch = sampler.draw(jax.random.key(4), jnp.asarray(1), len(rows))
    state = State(side.params, None, side, jnp.asarray(1))
    total = jax.jit(lambda d: batches.sum_all(query, state, d, batch))(data)
    each = per_record(query, side, z)
    slots = np.arange(len(rows)) if batch.rows is None else np.asarray(batch.rows)
    weight = np.ones(len(slots)) if batch.weight is None else np.asarray(batch.weight)
    there = zip(rows[slots], weight, strict=True)
    exact = sum((w * each[row] for row, w in there if row >= 0), 0 * each[0])
    np.testing.assert_allclose(flat(total), exact, rtol=1e-10, atol=1e-12)


def test_a_schedule_is_every_steps_draw():
    sampler, key = SAMPLERS["shuffled"](4), jax.random.key(9)
    whole = sampler.schedule(key, 8, 11)
    draw = jax.jit(lambda t: sampler.draw(key, t, 11))
    for t in range(8):
        one = draw(t)
        np.testing.assert_array_equal(one.rows, whole.rows[t])
        np.testing.assert_array_equal(one.weight, whole.weight[t])


@pytest.mark.parametrize(
    "method", ["train", pytest.param("fisher", marks=pytest.mark.slow)]
)
def test_lanes_with_rows_are_runs_on_those_records(method):
    settings = {"noise_multiplier": 0.3, "optimizer": "adam", "steps": 4}
    settings |= {"sampling": "shuffled", "batch_size": 3}
    learner = worlds.learner(TASK, "dpsgd", **settings)
    key, z, design = worlds.KEY, records(12, SHAPE, 3), half_in.replace_one
    rows = design.rows(design.member(key, 4, 12))
    extra = (np.arange(6),) if method == "fisher" else ()
    data, engine = TrainingSet(z, None, rows), shadow.Engine(Lanes(3))
    swept = shadow.sweep(method, learner, key, data, *extra, engine=engine)
    run = jax.jit(getattr(learner.defense, method))
    for i in (0, 3):
        some = jax.tree.map(lambda a, r=rows[i]: jnp.asarray(a[r]), z)
        lane = jax.random.fold_in(key, i), learner.side, TrainingSet(some, None)
        alone = run(*lane, *extra)
        for a, b in zip(jax.tree.leaves(swept), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-3, atol=1e-5)


def test_an_empty_slot_is_nobody():
    """Noise and division do not tell; the sum is that of the others."""
    z = jax.tree.map(jnp.asarray, records(6, SHAPE, 3))
    defense = noisy_sgd(
        TASK, gradient(TASK, soft_clip(1.0)), SAMPLERS["full"](None), gaussian(1e-6),
        optimizer=optax.sgd(1.0), steps=1,
    )  # fmt: skip
    side, key = Side(TASK.init(jax.random.key(0))), jax.random.key(1)

    def moved(rows):
        out = defense.train(key, side, TrainingSet(z, None, jnp.asarray(rows)))
        return flat(out.params) - flat(side.params)

    both, one, other = moved([0, 3]), moved([0, -1]), moved([-1, 3])
    np.testing.assert_allclose(both, one + other, atol=2e-5)


def test_a_scenario_says_how_often_its_records_are_visited():
    """Passes visit slots, of which there are more than members."""
    text = (ROOT / "scenarios" / "dirdp_scale_mia.yaml").read_text()
    spec = yaml.safe_load(text)
    visits = []
    for name in ("digits", "mnist5k"):
        words = spec["sets"][name]
        training = spec["training"] | words.get("training", {})
        slots = half_in.in_out.slots(words["splits"]["fixed"])
        passes = training["steps"] / math.ceil(slots / training["batch_size"])
        visits.append(math.floor(passes))
    words = re.search(r"visited (\d+) times, and (\d+)\.", text)
    assert [int(number) for number in words.groups()] == visits == [14, 18]
