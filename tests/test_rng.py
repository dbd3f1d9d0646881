"""Randomness: the written-out generator is JAX's own, to the bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from audit import rng


@pytest.mark.parametrize("shape", [(4096,), (3, 4099), (7,), ()])
def test_normals_are_those_of_jax(shape: tuple[int, ...]) -> None:
    key = jax.random.key(5)
    ours = jax.jit(lambda k: rng.normal(k, shape, jnp.float32))(key)
    theirs = jax.jit(lambda k: jax.random.normal(k, shape, jnp.float32))(key)
    np.testing.assert_array_equal(ours, theirs)


def test_bits_are_drawn_in_a_loop_of_their_own() -> None:
    """Or else XLA makes one loop of bits and normals, which takes 1.4 times as long."""
    drawn = jax.jit(lambda k: rng.normal(k, (5000,))).lower(jax.random.key(5))
    assert " while(" in drawn.compile().as_text()


def test_normals_under_vmap_and_in_a_loop_are_those_of_jax() -> None:
    keys = jax.random.split(jax.random.key(6), 3)

    def both(draw):
        def step(total, i):
            each = jax.vmap(lambda k: draw(jax.random.fold_in(k, i), (5000,)))(keys)
            return total + each, None

        return jax.jit(lambda: jax.lax.scan(step, jnp.zeros((3, 5000)), jnp.arange(4)))

    ours, theirs = both(rng.normal)()[0], both(jax.random.normal)()[0]
    np.testing.assert_array_equal(ours, theirs)


def test_normals_of_a_tree_are_those_of_one_vector(monkeypatch) -> None:
    tree = {"a": jnp.zeros(3), "b": {"c": jnp.zeros((90, 70)), "d": jnp.zeros((5, 2))}}
    flat, unravel = ravel_pytree(tree)
    want = jax.jit(lambda k: unravel(jax.random.normal(k, flat.shape)))(
        jax.random.key(8)
    )
    # cut out of one vector; each leaf by itself; in parts of 1,000 at most
    for large, part in [(rng.LARGE, rng.PART), (0, rng.PART), (0, 1000)]:
        monkeypatch.setattr(rng, "LARGE", large)
        monkeypatch.setattr(rng, "PART", part)
        got = jax.jit(lambda k: rng.normal_like(k, tree))(jax.random.key(8))
        # the same bits; XLA rounds the last one of their normals by how it fuses them
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), got, want)


def test_noise_is_scaled_normals_whatever_the_size(monkeypatch) -> None:
    tree = {"a": jnp.arange(3.0), "b": jnp.ones((90, 70))}
    key = jax.random.key(5)
    want = jax.tree.map(lambda v, z: v + 0.7 * z, tree, rng.normal_like(key, tree))
    for large in (rng.LARGE, 0):  # as one vector; leaf by leaf
        monkeypatch.setattr(rng, "LARGE", large)
        got = rng.add_normal(key, tree, 0.7)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), got, want)


def test_normals_in_float64_are_left_to_jax() -> None:
    with jax.enable_x64(True):
        key, tree = jax.random.key(3), {"w": jnp.zeros(rng.LARGE), "b": jnp.zeros(3)}
        flat, unravel = ravel_pytree(tree)
        want = jax.random.normal(key, flat.shape)
        assert want.dtype == np.float64
        np.testing.assert_array_equal(rng.normal(key, flat.shape), want)
        drawn = rng.normal_like(key, tree)
    for ours, theirs in zip(*map(jax.tree.leaves, (drawn, unravel(want))), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_other_generators_are_left_to_jax() -> None:
    key = jax.random.key(7, impl="rbg")
    ours, theirs = rng.normal(key, (9000,)), jax.random.normal(key, (9000,))
    np.testing.assert_array_equal(ours, theirs)
