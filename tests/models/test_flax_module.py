"""Flax modules of one's own: what they become, and what is refused."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from audit.errors import UserError
from audit.mechanisms import gradient, soft_clip
from audit.mechanisms.query import Side
from audit.models import networks, smoothness
from audit.models.flax_module import from_flax
from audit.models.layers import convolved
from audit.types import Examples
from tests.conftest import flat, records

SHAPE = (4, 4, 1)
X = np.zeros(SHAPE, np.float32)


class Net(nn.Module):
    bias: bool = True
    activation: str = "elu"

    @nn.compact
    def __call__(self, x):
        act = getattr(nn, self.activation)
        x = act(nn.Dense(5)(x.reshape((x.shape[0], -1))))
        return nn.Dense(3)(act(nn.Dense(4, use_bias=self.bias, name="mid")(x)))


class One(nn.Module):
    """It takes one example, no batch."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(nn.Dense(5)(x.reshape(-1))))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.parts = nnx.List([nnx.Linear(16, 5, rngs=rngs)])
        self.out = nnx.Linear(5, 3, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.silu(self.parts[0](x.reshape((x.shape[0], -1)))))


class Conv(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(2, (3, 3))(x)), (2, 2))
        return nn.Dense(3)(x.reshape((x.shape[0], -1)))


class Rows(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(2, name="each")(x[..., 0]))
        return nn.Dense(3)(x.reshape((x.shape[0], -1)))


class NnxConv(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 6, (3, 3), strides=2, rngs=rngs)
        self.out = nnx.Linear(24, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(self.conv(x)).reshape((x.shape[0], -1)))


MADE = "ghost clipping: every layer is dense"
AT = f"{MADE} or a convolution; norms by the gradients of"
DENSE = {
    "linen": Net(),
    "no bias": Net(bias=False),
    "one example": One(),
    "nnx": Nnx(nnx.Rngs(0)),
    "nnx function": lambda rngs: Nnx(rngs),
    "convolution": Conv(),
    "rows": Rows(),
    "nnx convolution": lambda rngs: NnxConv(rngs),
}
NORMS = {
    "convolution": f"{AT} Conv_0 (16 positions)",
    "rows": f"{AT} each (4 positions)",
    "nnx convolution": f"{MADE} or a convolution",
}

QUICK = ("no bias",)


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in DENSE],
)
def test_ghost_clipping_is_the_sum_of_clipped_gradients(name):
    task = from_flax(DENSE[name], X)
    assert task.dense is not None
    assert NORMS.get(name, MADE) in task.notes
    query, z = gradient(task, soft_clip(0.3)), records(7, SHAPE)
    params, weight = task.init(jax.random.key(1)), jnp.arange(7.0)
    side = Side(params)
    each = jax.jit(jax.vmap(query.fn, (None, None, 0)))(params, side, z)
    want = jax.tree.map(lambda g: jnp.tensordot(weight, g, 1), each)
    total = jax.jit(query.closed_forms.total)(params, side, z, weight)
    assert jax.tree.structure(total) == jax.tree.structure(params)
    np.testing.assert_allclose(flat(total), flat(want), rtol=1e-4, atol=1e-6)
    inner, square = jax.jit(query.closed_forms.score)(params, side, z, want)
    dots = [np.dot(flat(jax.tree.map(lambda g, i=i: g[i], each)), flat(want))
            for i in range(7)]  # fmt: skip
    np.testing.assert_allclose(inner, dots, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        square, [(flat(jax.tree.map(lambda g, i=i: g[i], each)) ** 2).sum()
                 for i in range(7)], rtol=1e-4,
    )  # fmt: skip


@pytest.mark.slow
def test_a_module_like_the_suites_mlp_is_its_mlp():
    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.elu(nn.Dense(6, name="hidden_0")(x.reshape((x.shape[0], -1))))
            return nn.Dense(3, name="head")(x)

    mine, suite = from_flax(Mlp(), X), networks.mlp(SHAPE, 3, hidden=6)
    params, z = suite.init(jax.random.key(0)), records(5, SHAPE)
    for task in (mine, suite):
        assert task.smooth
        assert (task.features, task.classes) == (SHAPE, 3)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(mine.loss, (None, 0)))(params, z),
        jax.jit(jax.vmap(suite.loss, (None, 0)))(params, z), rtol=1e-6,
    )  # fmt: skip
    totals = [
        jax.jit(gradient(task, soft_clip(0.5)).closed_forms.total)(
            params, Side(params), z, None
        )
        for task in (mine, suite)
    ]
    np.testing.assert_allclose(*map(flat, totals), rtol=1e-5, atol=1e-7)


def test_an_instance_keeps_its_parameters_and_a_function_draws_them():
    keys = jax.random.key(1), jax.random.key(2)
    fixed = from_flax(Nnx(nnx.Rngs(0)), X)
    assert np.array_equal(*(flat(fixed.init(key)) for key in keys))
    for drawn in (from_flax(Nnx, X), from_flax(Net(), X)):
        assert not np.array_equal(*(flat(drawn.init(key)) for key in keys))


class Twice(nn.Module):
    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(16)
        return nn.Dense(3)(layer(nn.tanh(layer(x.reshape((x.shape[0], -1))))))


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.LayerNorm()(x.reshape((x.shape[0], -1))))


class Grouped(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), feature_group_count=2)(nn.Conv(2, (1, 1))(x))
        return nn.Dense(3)(x.reshape((x.shape[0], -1)))


class Transformed(nn.Module):
    """The output layer starts at 0: no error reaches the layer before it."""

    @nn.compact
    def __call__(self, x):
        layer = nn.WeightNorm(nn.Dense(5), use_scale=False)
        x = nn.tanh(layer(x.reshape((x.shape[0], -1))))
        return nn.Dense(3, kernel_init=nn.initializers.zeros)(x)


class Tied(nn.Module):
    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(5)
        code = nn.tanh(layer(x.reshape((x.shape[0], -1))))
        x = code @ layer.variables["params"]["kernel"].T
        return nn.Dense(3, kernel_init=nn.initializers.zeros)(x)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Transformed(), "its layers are transformed"),
        (Tied(), "its layers are transformed"),
        (Normed(), "LayerNorm_0 is no dense or convolutional layer"),
        (Grouped(), "Conv_0 is no dense or convolutional layer"),
        (Twice(), "Dense_0 is used more than once"),
    ],
)
def test_other_layers_have_per_example_gradients_and_say_why(module, why):
    task = from_flax(module, X)
    assert task.dense is None
    assert f"per-example gradients: {why}" in task.notes[1]


def test_kinks_are_named_with_their_line():
    task = from_flax(Conv(), X)
    assert not task.smooth
    jumps = [note for note in task.notes if note.startswith("no Fisher reading")]
    assert [note.split(": ")[1].split(" (")[0] for note in jumps] == [
        "relu",
        "max_pool",
    ]
    assert all("of test_flax_module.py" in note for note in jumps)
    assert gradient(task, soft_clip(1.0)).smooth is False


SMOOTH = ("elu", "celu", "gelu", "silu", "softplus", "tanh", "sigmoid", "log_softmax")
KINKED = (
    "relu",
    "leaky_relu",
    "relu6",
    "hard_tanh",
    "hard_sigmoid",
    "selu",
    "bent_elu",
)


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED])
def test_what_is_smooth_has_a_slope_without_jumps(name):
    """The operations a function is traced to, against its slope on a fine grid."""
    fn = getattr(jax.nn, name, None) or getattr(jnp, name, None)
    if name == "bent_elu":
        fn = lambda x: jax.nn.elu(x, 0.5)
    if name == "log_softmax":
        fn = lambda x: jax.nn.log_softmax(jnp.append(x, 0.5))[0]
    with jax.enable_x64(True):
        grid = jnp.linspace(-8, 8, 200_001)
        slopes = np.asarray(jax.vmap(jax.grad(fn))(grid + 1e-7))
    jump = np.abs(np.diff(slopes)).max()
    assert (jump < 1e-3) == (name in SMOOTH)
    jumps = smoothness.jumps(fn, jnp.zeros(()))
    assert bool(jumps) == (name in KINKED), jumps


def test_what_does_not_depend_on_the_record_is_no_kink():
    assert (
        smoothness.jumps(lambda x: x * jnp.maximum(jnp.ones(3), 0), jnp.ones(3)) == []
    )
    norm = nn.LayerNorm()
    params = norm.init(jax.random.key(0), jnp.ones((1, 3)))
    assert smoothness.jumps(lambda x: norm.apply(params, x), jnp.ones((1, 3))) == []
    assert smoothness.jumps(lambda x: jnp.where(x > 0, x, 0), jnp.ones(3))
    assert smoothness.jumps(jnp.abs, jnp.ones(3))
    assert smoothness.jumps(lambda x: x * (x > 0), jnp.ones(3))  # a ReLU
    assert smoothness.jumps(lambda x: (x > 0).astype(float), jnp.ones(3))
    assert smoothness.jumps(lambda x: jax.lax.scan(
        lambda c, _: (jnp.abs(c), None), x, length=2)[0], jnp.ones(3))  # fmt: skip


STEEP_OR_STEPS = {
    "root": lambda x: jnp.sqrt(x**2),
    "power": lambda x: (x**2) ** 0.5,
    "variable power": lambda x: (x**2) ** jnp.array([0.5, 1, 2]),
    "cube root": jnp.cbrt,
    "sign": lambda x: x * jax.lax.rsqrt(x**2),
    "norm": jnp.linalg.norm,
    "integers": lambda x: (255 * x).astype(jnp.int32).astype(jnp.float32) / 255,
    "truth": lambda x: x.astype(bool).astype(jnp.float32),
    "bits": lambda x: jax.lax.bitcast_convert_type(x, jnp.int32).astype(jnp.float32),
    "precision": lambda x: jax.lax.reduce_precision(x, 8, 3),
    "a byte": lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32),
    "nearly the largest": lambda x: jax.lax.approx_max_k(x, 2)[0],
    "neighbour": lambda x: jnp.nextafter(x, 1.0),
    "angle": lambda x: jnp.arctan2(x, x - 1),
    "triangle wave": lambda x: jnp.arcsin(jnp.sin(x)),
    "relu": lambda x: jax.nn.squareplus(x, 0.0),
    "singular value": lambda x: jnp.linalg.svd(x[:, None])[1],
}


@pytest.mark.parametrize("name", STEEP_OR_STEPS)
def test_roots_casts_and_choices_are_kinks(name):
    assert smoothness.jumps(STEEP_OR_STEPS[name], jnp.ones(3))


OWN = """
import jax, jax.numpy as jnp
def {name}(x):
    return {body}
"""


@pytest.mark.parametrize("name", sorted(smoothness.SMOOTH))
@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, lambda fn: fn])
def test_a_function_of_ones_own_is_not_smooth_by_its_name(name, wrap, tmp_path):
    """It may even be in a folder called jax; one that calls JAX's is what that is."""

    def own(body):
        path = str(tmp_path / "jax" / "net.py")
        space = {}
        exec(compile(OWN.format(name=name, body=body), path, "exec"), space)
        return wrap(space[name])

    assert smoothness.jumps(own("jnp.maximum(x, 0)"), jnp.ones(3))
    assert smoothness.jumps(own("jax.nn.selu(x)"), jnp.ones(3))
    assert smoothness.jumps(own("jax.nn.gelu(x) + jax.nn.elu(x)"), jnp.ones(3)) == []


SMOOTH_WITH_ROOTS = {
    "polynomial": lambda x: x**2.0 + jnp.power(x, 3.0),
    "exponential": lambda x: 2.0**x,
    "root of a constant": lambda x: x * jnp.sqrt(jnp.ones(3)),
    "cast of a constant": lambda x: x * jnp.ones(3).astype(int),
    "cast to floats": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "squareplus": jax.nn.squareplus,
    "softmax": nn.softmax,
    "logsumexp": jax.nn.logsumexp,
    "exact gelu": lambda x: nn.gelu(x, approximate=False),
}


@pytest.mark.parametrize("name", SMOOTH_WITH_ROOTS)
def test_what_takes_roots_and_casts_otherwise_stays_smooth(name):
    assert smoothness.jumps(SMOOTH_WITH_ROOTS[name], jnp.ones(3)) == []


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(1), nn.RMSNorm(), nn.MultiHeadDotProductAttention(1)]
)
def test_layers_that_take_roots_stay_smooth(layer):
    """The roots of flax's normalisations are of a variance and something positive."""
    x = jnp.ones((1, 3, 1))
    params = layer.init(jax.random.key(0), x)
    assert smoothness.jumps(lambda x: layer.apply(params, x), x) == []


@pytest.mark.parametrize(
    "padding",
    [
        "SAME",
        *(
            pytest.param(p, marks=pytest.mark.slow)
            for p in ("VALID", [(1, 2), (0, 1)], "CIRCULAR")
        ),
    ],
)
@pytest.mark.parametrize(("strides", "dilation", "groups"), [
    (1, 1, 1), ((2, 3), 1, 2), (1, 2, 1), (2, (1, 2), 2), ((12, 10), 1, 1),
])  # fmt: skip
def test_products_with_patches_are_flax_convolutions(
    padding, strides, dilation, groups
):
    layer = nn.Conv(6, (3, 2), strides, padding, kernel_dilation=dilation,
                    feature_group_count=groups)  # fmt: skip
    x = jax.random.normal(jax.random.key(0), (2, 9, 8, 4))
    params = layer.init(jax.random.key(1), x)
    ours = layer.clone(conv_general_dilated=convolved)
    np.testing.assert_allclose(
        ours.apply(params, x), layer.apply(params, x), rtol=1e-4, atol=1e-5
    )


class Norm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.BatchNorm(True, name="first")(x.reshape((1, -1))))


class Drop(nn.Module):
    rate: float = 0.5

    @nn.compact
    def __call__(self, x):
        x = nn.Dropout(self.rate, deterministic=False)(x.reshape((x.shape[0], -1)))
        return nn.Dense(3)(x)


class Counts(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("counts", "calls", jnp.zeros, ())
        return nn.Dense(3)(x.reshape((x.shape[0], -1)))


class NnxDrop(nnx.Module):
    def __init__(self, rngs):
        self.out = nnx.Linear(16, 3, rngs=rngs)
        self.drop, self.norm = nnx.Dropout(0.5, rngs=rngs), None

    def __call__(self, x):
        return self.out(self.drop(x.reshape((x.shape[0], -1))))


class NnxNorm(NnxDrop):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(16, rngs=rngs)


class Asks(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(x)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (
            Norm(),
            "Norm: first is BatchNorm: batch statistics mix records; use LayerNorm",
        ),
        (Drop(), "Drop: Dropout_0 is Dropout: it is random"),
        (Counts(), "keeps counts beside its parameters"),
        (NnxDrop(nnx.Rngs(0)), "NnxDrop: drop is Dropout"),
        (NnxNorm, "NnxNorm: norm is BatchNorm"),
        (
            nn.Sequential([jnp.ravel, nn.Dense(3, param_dtype=jnp.bfloat16)]),
            "Sequential: layers_1/bias is of bfloat16: parameters are of float32",
        ),
        (Asks(), "missing 1 required positional argument: 'train'"),
        (3, "int is no flax module"),
    ],
)
def test_what_cannot_be_audited_is_refused_by_name(module, says):
    with pytest.raises(UserError, match=says):
        from_flax(module, X)
    assert from_flax(Drop(0.0), X).classes == 3  # which drops nothing


@pytest.mark.parametrize(
    ("loss", "smooth"),
    [
        (lambda o, y: jnp.abs(o[0] - y), False),
        (lambda o, y: jax.nn.relu(1 - o[0] * (2 * y - 1)), False),
        (lambda o, y: (o[0] - y) ** 2, True),
        (lambda o, y: optax.sigmoid_binary_cross_entropy(o[0], y), True),
    ],
    ids=["absolute", "hinge", "squares", "logistic"],
)
def test_a_loss_with_a_kink_has_no_fisher_reading(loss, smooth):
    class Line(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.tanh(nn.Dense(3)(x)))

    task = from_flax(Line(), np.zeros(4, np.float32), loss=loss)
    assert task.smooth is smooth
    assert any("no Fisher reading" in note for note in task.notes) is not smooth


def module(of_batch, outputs=3):
    """A module of one's own: a function of what a dense layer makes of a batch."""

    class Made(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.tanh(nn.Dense(5)(x.reshape((x.shape[0], -1))))
            return of_batch(nn.Dense(outputs)(x))

    return Made()


@pytest.mark.parametrize(
    ("of_batch", "says"),
    [
        (lambda x: x - x.mean(0), "Made: its outputs mix the records of a batch"),
        (lambda x: x / jnp.linalg.norm(x), "Made: its outputs mix the records"),
        (lambda x: x[::-1], "Made: its outputs mix the records"),
        (lambda x: x[:, 0], r"one number per record, .* keep the last axis, \[m, 1\]"),
    ],
)
def test_a_records_outputs_are_its_own(of_batch, says):
    """Also where no layer is to blame by its name."""
    with pytest.raises(UserError, match=says):
        from_flax(module(of_batch), X)


@pytest.mark.parametrize(
    "of_batch",
    [
        lambda x: x - x.mean(-1, keepdims=True),
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    ],
)
def test_what_a_record_has_of_its_own_mixes_nothing(of_batch):
    assert from_flax(module(of_batch), X).classes == 3


@jax.custom_jvp
def half_slope(x):
    """Return tanh(x), with half its derivative, which updates then have."""
    return jnp.tanh(x)


half_slope.defjvp(
    lambda x, dx: (jnp.tanh(x[0]), 0.5 * (1 - jnp.tanh(x[0]) ** 2) * dx[0])
)


@pytest.mark.parametrize(
    ("of_batch", "smooth"),
    [(lambda x: x * jax.lax.stop_gradient(x), False), (half_slope, True)],
    ids=["stop_gradient", "half_slope"],
)
def test_the_reading_differentiates_what_is_released(of_batch, smooth):
    """As differences of gradients say, of which stop_gradient hides a part."""
    task = from_flax(module(of_batch), X)
    assert task.smooth is smooth
    with jax.enable_x64(True):
        params = jax.tree.map(
            lambda a: a.astype(float) + 0.1, task.init(jax.random.key(0))
        )

        def gradient(x):
            return ravel_pytree(jax.grad(task.loss)(params, Examples(x, 1)))[0]

        x, u = jax.random.uniform(jax.random.key(1), (2, *SHAPE), float)
        slope = jax.jvp(gradient, (x,), (u,))[1]
        change = (gradient(x + 1e-4 * u) - gradient(x - 1e-4 * u)) / 2e-4
        assert np.allclose(slope, change, rtol=1e-4, atol=1e-6) is smooth


def test_integer_labels_of_optax_keep_the_fisher_reading():
    loss = optax.softmax_cross_entropy_with_integer_labels
    assert from_flax(nn.Dense(3), np.zeros(4, np.float32), loss=loss).smooth


def test_one_output_fits_numbers():
    class Line(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(x)

    task = from_flax(Line(), np.zeros(4, np.float32))
    params, z = task.init(jax.random.key(0)), records(3, (4,))
    assert task.classes == 0
    first = jax.tree.map(lambda a: a[0], z)._replace(y=2.5)
    out = task.logits(params, first.x)[0]
    np.testing.assert_allclose(task.loss(params, first), (out - 2.5) ** 2 / 2)
