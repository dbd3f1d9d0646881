"""Shadow models per second, beside what the same machine does in a plain product.

The size is Edmunds' (2024): 1,001 records of 784 pixels, 785 parameters, 5 full-batch
steps. One model costs 4 n (d+1) T operations in its matrix products alone; the share of
the product rate that it reaches is the figure to watch, because both are measured in
one run on one machine. The rival is our own plain loop: one model at a time,
per-example gradients by autodiff, jitted. It must give the same weights.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from audit.clipping import clip_tree, soft_clip
from audit.config import registry
from audit.engine import shadow
from audit.models import networks, pretrain
from audit.rng import stream
from audit.types import Examples, Lanes, Task, TrainingSet

FIXED, PIXELS, STEPS = 1_000, (28, 28, 1), 5
MODELS, LOOPED = 2_048, 20
COMMON = {"learning_rate": 0.1, "optimizer": "adam", "steps": STEPS}
NOISY = {**COMMON, "clip_norm": 10.0, "noise_multiplier": 0.05}
SETTINGS = {"sgd": COMMON, "dpsgd": NOISY, "prune": {**NOISY, "density": 0.5}}
EXACT = {"glm": {"loss": "logistic", "regularization": 1e-2, "intercept": True}}


class Speed(NamedTuple):
    """One line of the benchmark."""

    name: str
    per_second: float  # models
    share: float | None  # of the matrix-product rate; None for the rival
    against_loop: float | None  # how many times the plain loop


class Benchmark(NamedTuple):
    """All of it, with what it was measured on."""

    device: str
    gflops: float  # of the matrix product, in the engine's shapes
    speeds: tuple[Speed, ...]
    difference: float  # largest relative one between a lane's weights and the loop's


def draw(n: int, rng: np.random.Generator) -> Examples:
    """Return random records, most of their pixels 0."""
    x = rng.uniform(size=(n, *PIXELS)) * (rng.uniform(size=(n, *PIXELS)) < 0.2)
    return Examples(x.astype(np.float32), rng.integers(0, 2, n).astype(np.int32))


def make(name: str, task: Task) -> shadow.Learner:
    """Return one defense at the benchmark's size."""
    given = {**SETTINGS, **EXACT}[name]
    settings = registry.check("defense", name, dict(given), name)
    nothing = Examples(np.zeros((0, *PIXELS), np.float32), np.zeros(0, np.int32))
    factory, key = registry.find("defense", name), jax.random.key(0)
    public = pretrain.start(task, key, nothing)
    return shadow.learner(factory, task, settings, key=key, public=public, label=name)


def plain_loop(task: Task, dpsgd: shadow.Learner) -> Callable:
    """Return (key, fixed, target) -> params: DP-SGD, written the plain way."""
    clip = soft_clip(dpsgd.floats["clip_norm"])
    stddev = dpsgd.floats["noise_multiplier"] * dpsgd.floats["clip_norm"]
    adam = optax.adam(dpsgd.floats["learning_rate"])

    @jax.jit
    def step(key: jax.Array, t: int, params: Any, opt: Any, z: Examples) -> tuple:
        grads = jax.vmap(jax.grad(task.loss), (None, 0))(params, z)
        clipped = jax.vmap(lambda g: clip_tree(clip, g))(grads)
        total, unravel = ravel_pytree(jax.tree.map(lambda g: g.sum(0), clipped))
        key = stream(jax.random.fold_in(key, t), "noise")
        noised = total + stddev * jax.random.normal(key, total.shape)
        updates, opt = adam.update(unravel(noised / len(z.y)), opt, params)
        return optax.apply_updates(params, updates), opt

    def train(key: jax.Array, fixed: Examples, target: Examples) -> Any:
        z = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), fixed, target)
        params = dpsgd.side.params
        opt = adam.init(params)
        for t in range(STEPS):
            params, opt = step(key, t, params, opt, z)
        return params

    return train


def product_rate(tile: int) -> float:
    """Return GFLOP/s of [tile, d] x [d, n] and back, the shapes of one step."""
    d = int(np.prod(PIXELS))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(FIXED, d)), jnp.float32)
    both = jax.jit(lambda w: (w @ x.T) @ x)
    w = jnp.ones((tile, d)) / d
    seconds = _fastest(lambda: both(w).block_until_ready(), 20)
    return 4 * tile * FIXED * d / seconds / 1e9


def _fastest(run: Callable[[], Any], times: int) -> float:
    """Return the seconds of the fastest of several calls, after one that compiles."""
    run()
    return min(timeit.repeat(run, number=1, repeat=times))


def measure(lanes: Lanes | None = None) -> Benchmark:
    """Run the benchmark; the fastest of several repetitions counts, for each line."""
    engine = shadow.Engine(lanes or Lanes())
    rng, task = np.random.default_rng(0), networks.binary_linear(PIXELS, 2)
    data = TrainingSet(draw(FIXED, rng), draw(MODELS, rng))
    root = jax.random.key(1)
    dpsgd = make("dpsgd", task)
    loop = plain_loop(task, dpsgd)
    keys = [jax.random.fold_in(root, i) for i in range(LOOPED)]
    targets = [jax.tree.map(lambda a, i=i: a[i], data.target) for i in range(LOOPED)]

    def train(learner: shadow.Learner) -> Any:
        return shadow.sweep("train", learner, root, data, engine=engine).params

    def looped() -> list[Any]:
        return [
            jax.block_until_ready(loop(k, data.fixed, z))
            for k, z in zip(keys, targets, strict=True)
        ]

    def rate(name: str, times: int) -> float:
        learner = make(name, task)
        return MODELS / _fastest(lambda: train(learner), times)

    slow = LOOPED / _fastest(looped, 2)
    gflops = product_rate(engine.lanes.tile)
    work = 4 * (FIXED + 1) * (int(np.prod(PIXELS)) + 1) * STEPS / 1e9
    rates = {name: rate(name, 8) for name in SETTINGS}
    speeds = [Speed(k, r, r * work / gflops, r / slow) for k, r in rates.items()]
    speeds.append(Speed("plain loop (dpsgd)", slow, None, 1.0))
    for name in EXACT:  # which has no fixed number of steps
        speeds.append(Speed(f"{name} (exact, float64)", rate(name, 2), None, None))
    theirs = np.stack([ravel_pytree(params)[0] for params in looped()])
    ours = np.asarray(jax.vmap(lambda p: ravel_pytree(p)[0])(train(dpsgd))[:LOOPED])
    gaps = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    device = jax.devices()[0]
    precision = getattr(jax.config, "jax_default_matmul_precision", None) or "default"
    return Benchmark(
        f"{device.platform}: {device.device_kind}, jax {jax.__version__}, float32 "
        f"products at {precision} precision",
        gflops,
        tuple(speeds),
        float(gaps.max()),
    )


def render(benchmark: Benchmark) -> str:
    """Return the benchmark as text."""
    lines = [
        benchmark.device,
        f"matrix product in the engine's shapes: {benchmark.gflops:,.0f} GFLOP/s",
        f"{'':<22} {'models/s':>10} {'of product':>11} {'of loop':>9}",
    ]
    for s in benchmark.speeds:
        share = "" if s.share is None else f"{s.share:.0%}"
        loop = "" if s.against_loop is None else f"{s.against_loop:.1f}x"
        lines.append(
            f"{s.name:<22} {s.per_second:>10,.0f} {share:>11} {loop:>9}".rstrip()
        )
    gap = f"{benchmark.difference:.1e}"
    lines.append(f"largest relative difference between engine and loop: {gap}")
    return "\n".join(lines)
