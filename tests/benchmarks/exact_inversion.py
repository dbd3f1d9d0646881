"""How far the image can be solved for, where training adds no noise to its release.

    python -m tests.benchmarks.exact_inversion [Hydra words, such as data=mnist]

The paragraph in docs/attacks/ridge.md. The attacker differentiates the training run
itself and takes Levenberg-Marquardt steps from the mean image of the class until the
run releases what was seen, in float64 and in float32, in which models are trained. With
Adam all is nan: its square root has no slope at a weight that no gradient reached. No
attack of a card can do so: what attackers are granted trains models, and is no
function they differentiate.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from audit import pipeline
from audit.config import compose, hydra_app
from audit.games.base import take
from audit.types import Examples, TrainingSet

TARGETS, STEPS = 8, 20
DAMPINGS = 10.0 ** jnp.arange(-12, 1, 2)  # of a step, over the largest curvature


def solved(learner, side, fixed, start, target):
    """Return the guess [d], and what its release misses, in scales of releases."""
    shape, key = target.x.shape, jax.random.key(0)

    def release(x):
        record = Examples(x.reshape(shape), target.y)
        trained = learner.build().train(key, side, TrainingSet(fixed, record))
        return ravel_pytree(trained.params)[0]

    released = release(target.x.reshape(-1))

    def step(x, _):
        gap, slope = released - release(x), jax.jacfwd(release)(x)
        values, vectors = jnp.linalg.eigh(slope.T @ slope)
        pulled = vectors.T @ (slope.T @ gap)
        shares = pulled / (jnp.maximum(values, 0) + DAMPINGS[:, None] * values[-1])
        tried = jnp.clip(x + shares @ vectors.T, 0, 1)
        tried = jnp.concatenate([x[None], tried])
        misses = jax.lax.map(lambda x: ((released - release(x)) ** 2).sum(), tried)
        return tried[misses.argmin()], misses.min()

    x, misses = jax.lax.scan(step, start.reshape(-1), length=STEPS)
    return x, jnp.sqrt(misses[-1] / (released**2).sum())


def main(words):
    """Print the mean square, its median and the misfit, per optimizer and precision."""
    words = ["scenario=binary_mnist", "data=mnist5k", "defenses=[sgd]", *words]
    for optimizer in ("adam", "sgd"):
        scenario, _ = hydra_app.composed([*words, f"training.optimizer={optimizer}"])
        problem = pipeline.load(scenario, compose.play(scenario))
        public = pipeline.begin(jax.random.key(0), scenario, problem)
        (entry,) = scenario.defenses
        learner = pipeline.build(jax.random.key(0), entry, problem, public)
        for precision in (jnp.float64, jnp.float32):
            errors, misses = inversions(learner, problem.splits, precision)
            print(
                f"{optimizer} {precision.__name__}: mean square {np.mean(errors):.2g}, "
                f"median {np.median(errors):.2g}, misfit {np.median(misses):.2g}",
                flush=True,
            )


def inversions(learner, splits, precision):
    """Return the mean square error and the misfit at each target."""
    errors, misses = [], []

    def cast(a):
        return jnp.asarray(a, precision if a.dtype.kind == "f" else None)

    with jax.enable_x64(precision == jnp.float64):
        targets = take(splits.targets, slice(TARGETS))
        side, fixed = jax.tree.map(cast, (learner.side, splits.fixed))
        run = jax.jit(lambda *a: solved(learner, *a))
        for i in range(TARGETS):
            target = jax.tree.map(cast, take(targets, i))
            start = fixed.x[fixed.y == target.y].mean(0)
            x, miss = run(side, fixed, start, target)
            errors.append(float(((x - target.x.reshape(-1)) ** 2).mean()))
            misses.append(float(miss))
    return errors, misses


if __name__ == "__main__":
    main(sys.argv[1:])
