"""Randomness: the written-out generator is JAX's own, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit import rng


@pytest.mark.parametrize("shape", [(rng.LONG,), (3, 4099), (7,), ()])
def test_normals_are_those_of_jax(shape: tuple[int, ...]) -> None:
    key = jax.random.key(5)
    ours = jax.jit(lambda k: rng.normal(k, shape, jnp.float32))(key)
    theirs = jax.jit(lambda k: jax.random.normal(k, shape, jnp.float32))(key)
    np.testing.assert_array_equal(ours, theirs)


def test_normals_under_vmap_and_in_a_loop_are_those_of_jax() -> None:
    keys = jax.random.split(jax.random.key(6), 3)

    def both(draw):
        def step(total, i):
            each = jax.vmap(lambda k: draw(jax.random.fold_in(k, i), (5000,)))(keys)
            return total + each, None

        return jax.jit(lambda: jax.lax.scan(step, jnp.zeros((3, 5000)), jnp.arange(4)))

    ours, theirs = both(rng.normal)()[0], both(jax.random.normal)()[0]
    np.testing.assert_array_equal(ours, theirs)


def test_other_generators_are_left_to_jax() -> None:
    key = jax.random.key(7, impl="rbg")
    ours, theirs = rng.normal(key, (9000,)), jax.random.normal(key, (9000,))
    np.testing.assert_array_equal(ours, theirs)
