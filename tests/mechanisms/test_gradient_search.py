"""Gradient inversion: searches that find, exact closed forms, honest scores."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit import data
from audit.config import registry
from audit.errors import UserError
from audit.games import base, gradient_inversion
from audit.mechanisms import gradient_search
from audit.mechanisms.noise import gaussian, von_mises_fisher
from audit.mechanisms.query import masked
from audit.models import networks
from audit.models.masks import MASKS
from audit.statistics import metrics
from audit.types import Examples, Knowledge, Observation, ThreatModel
from tests.conftest import public, records

SHAPE, CLASSES = (8, 8, 1), 10


def start(task):
    return public(task).params


@pytest.fixture(scope="module")
def digits():
    dataset = data.load("digits")
    return Examples(dataset.x_train, dataset.y_train)


def play(task, z, params, pool, noise=None, granted=None, **settings):
    """Let an attack guess records from the updates they take alone."""
    attack = registry.find("attack", "gradient_inversion")(task, **settings)
    knowledge = Knowledge(task, pool, np.arange(len(pool.y)), **granted or {})
    state, _ = attack.fit(jax.random.key(0), knowledge)

    def one(key, z):
        update = jax.grad(task.loss)(params, z)
        update = update if noise is None else noise.sample(key, update)
        update = masked(knowledge.mask, update)
        shown = Observation(params=params, update=update, label=z.y)
        return attack.guess(state, key, shown)

    keys = jax.random.split(jax.random.key(7), len(z.y))
    return np.asarray(jax.jit(jax.vmap(one))(keys, z))


def mse(a, b):
    return ((a - b) ** 2).reshape(len(a), -1).mean(1)


# Searches -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "steps"),
    [("iga", 300), ("dlg", 60), ("idlg", 60)],
)
def test_searches_find_undefended_images(digits, preset, steps):
    """Far below the mean image's error, .07 here."""
    task = networks.mlp(SHAPE, CLASSES, hidden=32, activation="tanh")
    z = base.take(digits, slice(3))
    guesses = play(task, z, start(task), digits, preset=preset, steps=steps, restarts=2)
    assert np.median(mse(guesses, z.x)) < 0.01


def test_squares_are_of_the_parameters_inside_a_mask(digits):
    """The image itself is the optimum; a pruned gradient is none of the whole model."""
    task, z = networks.linear(SHAPE, CLASSES), base.take(digits, slice(2))
    params = start(task)
    mask = MASKS["random"](jax.random.key(0), params, 0.3)
    how = {"preset": "dlg", "steps": 80, "granted": {"mask": mask}}
    assert mse(play(task, z, params, digits, **how), z.x).max() < 1e-3


def test_cosines_are_of_the_parameters_inside_a_mask():
    """Whether or not a gradient is formed."""
    task = networks.mlp(SHAPE, 3, hidden=4, activation="tanh")
    params, z = start(task), jax.tree.map(lambda a: a[0], records(1, SHAPE))
    mask = MASKS["random"](jax.random.key(0), params, 0.3)
    for layers in (task.dense, None):
        cosine = gradient_search.cosine(task._replace(dense=layers), mask)
        slope = masked(mask, jax.grad(task.loss)(params, z))
        value = jax.jit(cosine)(params, z, gradient_search.direction_of(slope))
        assert float(value) == pytest.approx(1, abs=1e-5)


def test_the_closed_form_is_exact_without_noise(digits):
    z = base.take(digits, slice(5))
    for task in (
        networks.mlp(SHAPE, CLASSES, hidden=16, layers=2, activation="relu"),
        networks.linear(SHAPE, CLASSES),
    ):
        guesses = play(task, z, start(task), digits, preset="analytic")
        assert mse(guesses, z.x).max() < 1e-9


def test_the_closed_form_tends_to_the_floor_under_noise(digits):
    """A posterior mean: no worse than the class mean, far better for small noise."""
    task = networks.mlp(SHAPE, CLASSES, hidden=64, activation="tanh")
    z, params = base.take(digits, slice(40)), start(task)
    means = np.stack([digits.x[digits.y == c].mean(0) for c in range(CLASSES)])
    floor = mse(means[z.y], z.x).mean()
    for stddev, limit in ((10.0, 1.1), (0.01, 0.3)):
        guesses = play(task, z, params, digits, gaussian(stddev), preset="analytic")
        assert mse(guesses, z.x).mean() < limit * floor


def test_the_closed_form_reads_the_units_inside_a_mask():
    """Those outside it say nothing, of the image as of the noise."""
    features, hidden, kept = 12, 8, 5
    keys = iter(jax.random.split(jax.random.key(0), 6))
    draw = lambda *shape: jax.random.normal(next(keys), shape)
    x, slope, mean = jax.random.uniform(next(keys), (features,)), draw(hidden), 0.5
    layer = {"kernel": x[:, None] * slope, "bias": slope}
    update = {"hidden_0": jax.tree.map(lambda a: a + 0.1 * draw(*a.shape), layer)}

    def read(update, mask=None):
        centre = jnp.full(features, mean)
        return gradient_search.from_first_layer(update, centre, 0.3, mask)

    def inside(a):
        return jnp.ones_like(a).at[..., kept:].set(0)

    whole, mask = (jax.tree.map(f, update) for f in (jnp.ones_like, inside))
    few = jax.tree.map(lambda a: a[..., :kept], update)
    shown = jax.tree.map(jnp.multiply, update, mask)
    np.testing.assert_allclose(read(update, whole), read(update), rtol=1e-5)
    np.testing.assert_allclose(read(shown, mask), read(few), rtol=1e-5)
    # a pixel without a weight is the mean's; units without a bias are of no use
    mask["hidden_0"]["kernel"] = mask["hidden_0"]["kernel"].at[0].set(0)
    mask["hidden_0"]["bias"] = mask["hidden_0"]["bias"].at[0].set(0)
    exact = read(
        {"hidden_0": jax.tree.map(jnp.multiply, layer, mask["hidden_0"])}, mask
    )
    np.testing.assert_allclose(exact, x.at[0].set(mean), rtol=1e-5)


def test_the_posterior_is_the_prior_where_nothing_is_said(digits):
    task = networks.mlp(SHAPE, CLASSES, hidden=16, activation="tanh")
    z = base.take(digits, slice(4))
    law = jax.tree_util.Partial(lambda params, z, update: jnp.zeros(()))
    how = {"preset": "map", "steps": 200, "granted": {"likelihood": law}}
    guesses = play(task, z, start(task), digits, **how)
    knowledge = Knowledge(task, digits, np.arange(len(digits.y)))
    centres = gradient_search.learn(knowledge, task).centres
    np.testing.assert_allclose(guesses, np.clip(centres[z.y], 0, 1), atol=0.02)


def test_cosine_is_the_likelihood_of_a_visible_draw():
    """Up to a constant: kappa <mu, y> = kappa (1 - distance)."""
    task, image = networks.linear((2, 2, 1), 2), jnp.arange(4.0).reshape(2, 2, 1)
    params, z = start(task), Examples(image, jnp.asarray(1))
    a = gradient_search.direction_of(jax.jit(jax.grad(task.loss))(params, z))
    noise = von_mises_fisher(3.0, 10)
    y = jax.jit(noise.sample)(jax.random.key(0), a)
    log, cosine = jax.jit(noise.law.log_density), jax.jit(gradient_search.cosine(task))
    assert float(log(a, y)) == pytest.approx(3 * float(cosine(params, z, y)))


@pytest.mark.parametrize(
    "model",
    [
        networks.linear,
        partial(networks.mlp, hidden=9, layers=2, activation="elu"),
        partial(networks.lenet, activation="sigmoid"),
        partial(networks.lenet, kind="lenet5"),
    ],
)
def test_a_gradient_beside_an_update_needs_not_be_formed(model):
    """Nor its derivative along the image, which a search follows."""
    task, x = model((16, 16, 1), 3), jax.random.uniform(jax.random.key(1), (16, 16, 1))
    params, update = map(jax.jit(task.init), map(jax.random.key, (2, 3)))

    def formed(x):
        slope = jax.grad(task.loss)(params, Examples(x, jnp.asarray(1)))
        return optax.tree.vdot(slope, update) / optax.tree.norm(slope)

    def closed(x):
        z = Examples(x, jnp.asarray(1))
        return gradient_search.cosine(task)(params, z, update)

    for derived in (lambda f: f, jax.jacrev):
        ours, theirs = (jax.jit(derived(f))(x) for f in (closed, formed))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_labels_are_read_off_the_last_layer(digits):
    task = networks.mlp(SHAPE, CLASSES, hidden=8, activation="tanh")
    params, gradient = start(task), jax.grad(task.loss)
    label = jax.vmap(lambda z: gradient_search.label_of(gradient(params, z)))
    np.testing.assert_array_equal(jax.jit(label)(digits), digits.y)


def test_labels_are_read_off_a_single_logit(digits):
    few = Examples(digits.x, digits.y % 2)
    task = networks.binary_linear(SHAPE, 2)
    params, gradient = start(task), jax.grad(task.loss)
    label = jax.vmap(lambda z: gradient_search.label_of(gradient(params, z)))
    np.testing.assert_array_equal(jax.jit(label)(few), few.y)


def test_convolutions_have_no_dense_first_layer():
    task = networks.lenet((16, 16, 1), 3)
    with pytest.raises(UserError, match="analytic: the first layer is not dense"):
        registry.find("attack", "gradient_inversion")(task, preset="analytic")


def test_total_variation_takes_any_channels():
    z = jnp.zeros((4, 4, 3)).at[:, 2:].set(1.0)
    assert float(gradient_search.total_variation(z)) == pytest.approx(1 / 3)
    assert float(gradient_search.total_variation(z[..., :1])) == pytest.approx(1 / 3)


# Models -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "classes", "kind", "count"),
    [
        ((32, 32, 3), 10, "zhu", 15_826),
        ((32, 32, 3), 100, "zhu", 85_036),
        ((28, 28, 1), 10, "zhu", 13_426),
        ((32, 32, 1), 10, "lenet5", 61_706),
        ((28, 28, 1), 10, "lenet5", 61_706),
    ],
)
def test_lenets_have_the_published_sizes(features, classes, kind, count):
    task = networks.lenet(features, classes, kind=kind)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert sum(a.size for a in jax.tree.leaves(shapes)) == count


def test_windows_are_what_a_convolution_sees():
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(9, 8, 2)), rng.normal(size=(5, 5, 2, 3))
    names = ("NHWC", "HWIO", "NHWC")
    for stride in (1, 2):
        ours = networks.patches(jnp.asarray(x), 5, stride) @ kernel.reshape(-1, 3)
        theirs = jax.lax.conv_general_dilated(
            x[None], kernel, (stride, stride), "VALID", dimension_numbers=names
        )[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_kinked_networks_have_no_fisher_reading():
    for activation, smooth in (("relu", False), ("softplus", True)):
        task = networks.mlp((4,), 3, activation=activation)
        assert task.smooth == smooth
        defense = registry.find("defense", "dpsgd")(task)
        assert (defense.fisher is not None) == smooth


# The game and its scores --------------------------------------------------------------


def test_matching_does_not_mind_contrast():
    targets = records(6, SHAPE).x
    assert metrics.matching(3 * targets - 1, targets) == 1
    assert metrics.matching(np.ones_like(targets), targets) == pytest.approx(1 / 6)


def test_normalised_errors_of_grey_and_of_junk():
    """A constant grey image scores 1, independent noise of the right contrast 2."""
    rng = np.random.default_rng(0)
    targets = rng.normal(0.5, 0.2, size=(50, 8, 8, 3))
    grey = np.full((50, 1, 8, 8, 3), 0.5)
    junk = rng.normal(0.5, 0.2, size=(50, 1, 8, 8, 3))
    for guesses, error, within in ((grey, 1, 0.02), (junk, 2, 0.05)):
        errors = gradient_inversion.normalised(guesses, targets, targets)
        assert errors.mean() == pytest.approx(error, abs=within)


def test_channels_without_contrast_have_no_normalised_error():
    """Whatever the guess is there, and however a mean of them is rounded."""
    rng = np.random.default_rng(0)
    pool, targets = rng.normal(size=(100, 3)), rng.normal(size=(5, 3))
    guesses = rng.normal(size=(5, 2, 3))
    want = gradient_inversion.normalised(guesses, targets, pool)
    more = [
        np.insert(a, 1, c, -1) for a, c in ((guesses, 7), (targets, 0), (pool, 0.1))
    ]
    np.testing.assert_array_equal(gradient_inversion.normalised(*more), want)


def test_who_can_play_exposed():
    task, game = networks.linear((6,), 3), gradient_inversion.exposed()
    sgd = registry.find("defense", "sgd")(task)

    def why(attack, **settings):
        model = registry.find("attack", attack)(task, **settings).threat_model
        return base.mismatch(model, sgd, game)

    assert "its goal is" in why("reconstructor")
    for name in ("class_mean", "mean_image", "nearest_neighbour"):
        assert why(name) is None
    sees = ThreatModel("inversion", sees=frozenset({"params", "update"}))
    assert base.mismatch(sees, sgd, game) is None
    blank = sgd._replace(mechanism=None)
    assert "shows no step" in base.mismatch(sees, blank, game)
    assert "not noisy" in why("gradient_inversion", preset="map")


@pytest.mark.full
def test_an_undefended_lenet_gives_colour_images_away(full_data):
    """100 CIFAR-10 images, batch of one, untrained: median PSNR of 20 dB at least."""
    dataset = data.load("cifar10")
    pool = Examples(dataset.x_train[:2000], dataset.y_train[:2000])
    task = networks.lenet((32, 32, 3), 10)
    z = Examples(dataset.x_test[:100], dataset.y_test[:100])
    guesses = play(task, z, start(task), pool, preset="iga", steps=1000)
    assert np.median(metrics.psnr(guesses, z.x)) > 20
