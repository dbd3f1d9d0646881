"""Clips: bounds, slopes, behaviour at zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from audit.clipping import (
    CLIPS,
    GELU_OVERSHOOT,
    clip_apart,
    clip_rows,
    clip_tree,
    hard_clip,
    soft_clip,
)


def erf_gelu(v):
    return v * scipy.special.ndtr(v)


def tanh_gelu(v):
    return v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))


@pytest.mark.parametrize(
    ("gelu", "printed"), [(erf_gelu, 1.1152189082), (tanh_gelu, 1.1152382396)]
)
def test_overshoot_is_rounded_up(gelu, printed):
    peak = scipy.optimize.minimize_scalar(
        lambda u: -u / (gelu(u - 1) + 1), bounds=(1, 2), options={"xatol": 1e-10}
    )
    np.testing.assert_allclose(-peak.fun, printed, rtol=1e-9)
    assert 1.115 < -peak.fun < GELU_OVERSHOOT < -peak.fun + 1e-4


@pytest.mark.parametrize("name", CLIPS)
def test_norms_stay_below_the_bound(name):
    clip = CLIPS[name](3.0)
    s = jnp.linspace(0.0, 100.0, 200_001)
    assert float((s * clip.scale(s)).max()) <= clip.norm_bound * (1 + 1e-6)


@pytest.mark.parametrize("name", CLIPS)
def test_slope_is_the_derivative(x64, name):
    clip = CLIPS[name](3.0)
    s = jnp.concatenate([jnp.linspace(0.01, 2.99, 50), jnp.linspace(3.01, 60.0, 50)])
    np.testing.assert_allclose(
        clip.slope(s), jax.vmap(jax.grad(clip.scale))(s), atol=1e-12
    )


@pytest.mark.parametrize("clip", [soft_clip(1.0), hard_clip(1.0)])
def test_zero_is_differentiable(clip):
    zero = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    jacobian = jax.jacobian(lambda t: clip_tree(clip, t)["a"])(zero)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jacobian))


def test_tree_is_clipped_by_its_global_norm():
    tree = {"a": jnp.array([30.0]), "b": jnp.array([40.0])}
    clipped = clip_tree(hard_clip(5.0), tree)
    np.testing.assert_allclose(
        [clipped["a"][0], clipped["b"][0]], [3.0, 4.0], rtol=1e-6
    )


def test_modules_and_rows_are_clipped_by_norms_of_their_own():
    """A kernel's column leads to one output; the biases of a layer are one row."""
    wide = jnp.array([[30.0, 0.6], [40.0, 0.8], [0.0, 0.0]])  # columns of 50 and of 1
    tree = {"a": {"kernel": wide, "bias": jnp.array([0.0, 5.0])}, "b": jnp.ones(4)}
    apart, rows = clip_apart(hard_clip(5.0), tree), clip_rows(hard_clip(5.0), tree)
    norm = np.sqrt(2500 + 1 + 25)
    np.testing.assert_allclose(apart["a"]["kernel"], wide * 5 / norm, rtol=1e-6)
    np.testing.assert_allclose(apart["a"]["bias"], [0, 25 / norm], rtol=1e-6)
    short = [[3.0, 0.6], [4.0, 0.8], [0.0, 0.0]]
    np.testing.assert_allclose(rows["a"]["kernel"], short, rtol=1e-6)
    for clipped in (apart["b"], rows["b"]):
        np.testing.assert_array_equal(clipped, np.ones(4))
    np.testing.assert_array_equal(rows["a"]["bias"], [0, 5])
