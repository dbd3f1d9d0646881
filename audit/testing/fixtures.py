"""Tiny worlds for the laws of plug-ins, and what games show an attacker in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit import data
from audit.config import registry
from audit.data.dataset import Dataset
from audit.engine import shadow
from audit.engine.shadow import Learner
from audit.engine.signals import Shadows, Signals
from audit.games import attribute, base, identification, reconstruction
from audit.games.gradient_inversion import exposed_step
from audit.mechanisms.output_perturbation import objective_of
from audit.models import networks, pretrain
from audit.rng import stream
from audit.types import (
    Attribute,
    Defense,
    Examples,
    Knowledge,
    Observation,
    Public,
    Splits,
    Task,
    ThreatModel,
)

SHAPE = (4, 4, 1)
FIXED, TARGETS, POOL = 9, 3, 24
MODELS, QUERIES = 8, 2  # shadow models whose signals are made up
# which defense is attacked, by what the attack assumes; the first that fits
ATTACKED: dict[str, dict[str, Any]] = {
    "dpsgd": {"steps": 2, "noise_multiplier": 0.3},
    "noisy_sum": {},
    "output_perturbed_glm": {"intercept": True},
    "sgd": {"steps": 2, "learning_rate": 1.0},  # a record shows above rounding
}


class World(NamedTuple):
    """Random records in the task's domain, labels in turn."""

    task: Task
    splits: Splits
    public: Public
    key: jax.Array


def make(task: Task | None = None, seed: int = 0) -> World:
    """Return a world for a task; by default two classes of 4 x 4 images."""
    task = networks.binary_linear(SHAPE, 2) if task is None else task
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    low, high = task.domain if np.isfinite(task.domain).all() else (-1.0, 1.0)

    def some(n: int) -> Examples:
        x = rng.uniform(low, high, (n, *task.features)).astype(np.float32)
        if not task.classes:
            return Examples(x, rng.normal(size=n).astype(np.float32))
        return Examples(x, (np.arange(n) % task.classes).astype(np.int32))

    public, fixed, targets, pool, test = map(some, (12, FIXED, TARGETS, POOL, 6))
    splits = Splits(public, fixed, targets, pool, test, np.arange(POOL))
    data.check(splits, task.domain)
    return World(task, splits, pretrain.start(task, stream(key, "start"), public), key)


def others(z: Examples, low: float, high: float) -> Examples:
    """Return other records of the same labels, inside the same domain."""
    x = np.asarray(z.x)
    if np.isfinite((low, high)).all():
        return z._replace(x=(low + high - x).astype(x.dtype))
    return z._replace(x=-x)


# What games show ----------------------------------------------------------------------


class Shown(NamedTuple):
    """Everything that games could show an attack, for `many` observations at once."""

    task: Task
    defense: Defense
    exact: bool  # whether the releases are float64
    knowledge: Knowledge
    observations: Observation  # leading axis: many
    many: int
    shape: tuple[int, ...]  # of one guess


def granted(model: ThreatModel, everything: Shown) -> tuple[Knowledge, Observation]:
    """Return what a threat model declares; every other field is None."""
    hidden: dict[str, Any] = {
        field: None for field in base.KNOWN_BY if not base.shown(model, field)
    }
    observations = base.observe(model, **everything.observations._asdict())
    return everything.knowledge._replace(**hidden), observations


def shown(
    threat_model: Callable[[Task], ThreatModel], task: Task | None = None
) -> Shown:
    """Return what the games of an attack's goal can show it.

    `task` is what is learnt, None = a tiny one that suits the goal. ValueError if no
    defense of the suite has what the attack assumes.
    """
    model = threat_model(task or make().task)
    if task is None and model.goal == "attribute":
        task = networks.binary_linear((6,), 2)._replace(domain=(-np.inf, np.inf))
    world = make(task)
    if model.goal == "attribute":
        world = world._replace(splits=_with_attribute(world.splits))
    learner = _attacked(model, world)
    nothing = np.zeros((0, 1), np.float32), np.zeros(0, np.int32)
    origin = Dataset("made up", *nothing, *nothing, "embedded", "a made-up world")
    problem = base.Problem(world.task, world.splits, origin)
    table = base.Table(problem, shadow.Engine(), 1)
    words = frozenset().union(*base.KNOWN_BY.values())
    knows = ThreatModel("reconstruction", knows=words)
    knowledge = base.grant(knows, learner, table)
    exposed = exposed_step(learner.defense)
    if exposed is not None and exposed.log_density is not None:
        density = jax.tree_util.Partial(exposed.log_density, learner.side)
        knowledge = knowledge._replace(likelihood=density, variance=exposed.variance)
    defense, exact = learner.defense, "exact" in learner.defense.traits
    known = Shown(world.task, defense, exact, knowledge, Observation(), 0, ())
    if model.goal == "membership":
        return _membership(known, model, world, learner)
    if model.goal == "identification":
        return _identification(known, world, learner, table)
    return _records(known, model, world, learner, table)


def _records(
    known: Shown, model: ThreatModel, world: World, learner: Learner, table: base.Table
) -> Shown:
    """Add one release per target, and what games show beside it."""
    knowledge, targets = known.knowledge, world.splits.targets
    shape, count = world.task.features, len(targets.y)
    runs = reconstruction.release(world.key, learner, table)
    releases = runs.releases
    observation = Observation(params=releases.params, label=targets.y, target=targets.x)
    if "noiseless" in learner.defense.traits:
        replay = reconstruction.replay_of(learner, world.splits.fixed)
        knowledge = knowledge._replace(replay=replay)
    if reconstruction.has_transcript(learner.defense):
        knowledge = knowledge._replace(mechanism=reconstruction.step_law(learner))
        observation = observation._replace(steps=runs.evidence())
    if objective_of(learner.defense) is not None:
        with jax.enable_x64(True):
            rest = reconstruction.known_part(learner, releases, world.splits)
            observation = observation._replace(rest=rest)
    if model.goal == "attribute":
        secret = Attribute(np.array([0]), np.array([[0.0], [1.0]]))
        knowledge, shape = knowledge._replace(attribute=secret), (len(secret.values),)
        may_be = jax.vmap(lambda x: attribute.candidates(secret, x))
        # noiseless fits are about the release, and nothing depends on them further
        refits = np.repeat(np.asarray(releases.params)[:, None], len(secret.values), 1)
        observation = observation._replace(
            candidates=np.asarray(may_be(jnp.asarray(targets.x))),
            refits=refits * [[[1.0], [1.1]]],
        )
    exposed = exposed_step(learner.defense)
    if exposed is not None:  # one noised gradient per target, at what is released
        keys = jax.random.split(stream(world.key, "updates"), count)
        updates = [
            exposed.update(
                key,
                learner.side,
                base.take(observation.params, i),
                base.take(targets, slice(i, i + 1)),
            )
            for i, key in enumerate(keys)
        ]
        update = jax.tree.map(lambda *a: np.stack(a), *updates)
        observation = observation._replace(update=update)
    return known._replace(
        knowledge=knowledge, observations=observation, many=count, shape=shape
    )


def _identification(
    known: Shown, world: World, learner: Learner, table: base.Table
) -> Shown:
    """Add one run per target; every target is a candidate in every run."""
    targets, count = world.splits.targets, len(world.splits.targets.y)
    runs = identification.release(world.key, learner, table)
    observation = Observation(
        candidates=jax.tree.map(lambda a: np.stack([a] * count), targets),
        alignment=runs.evidence,
    )
    return known._replace(observations=observation, many=count, shape=(count,))


def _attacked(model: ThreatModel, world: World) -> Learner:
    wanted = model.assumes | ({"glm"} if model.goal == "attribute" else set())
    for name, given in ATTACKED.items():
        settings = registry.check("defense", name, given, name)
        start: Any = {"key": world.key, "public": world.public}
        factory = registry.find("defense", name)
        learner = shadow.learner(factory, world.task, settings, **start)
        if wanted <= learner.defense.traits:
            return learner
    raise ValueError(
        f"no defense here is {', '.join(sorted(model.assumes))}: {', '.join(ATTACKED)}"
    )


def _with_attribute(splits: Splits) -> Splits:
    """Make the first column of every record 0 or 1, in turn."""

    def binary(z: Examples) -> Examples:
        x = np.array(z.x)
        x.reshape(len(x), -1)[:, 0] = np.arange(len(x)) // 2 % 2
        return z._replace(x=x)

    parts = ("public", "fixed", "targets", "pool", "test")
    return splits._replace(**{p: binary(getattr(splits, p)) for p in parts})


def _membership(
    known: Shown, model: ThreatModel, world: World, learner: Learner
) -> Shown:
    """Make up signals, transcripts' ratios, or canaries, as the words say."""
    rng, splits = np.random.default_rng(3), world.splits
    n, count = len(splits.fixed.y), 3
    member = np.argsort(rng.uniform(size=(MODELS, n)), 0) % 2 == 0

    def signals(*shape: int) -> Signals:
        each = (rng.normal(2, 1, (*shape, k, QUERIES)) for k in (n, len(splits.pool.y)))
        return Signals(*(a.astype(np.float16) for a in each))

    shadows = Shadows(member, np.asarray(splits.fixed.y), signals(MODELS))
    start = learner.side.params
    observation = Observation(
        params=jax.tree.map(lambda a: np.stack([1.2 * a, 1.1 * a, 0.9 * a]), start),
        label=np.tile(splits.fixed.y, (count, 1)),
        signals=signals(count),
        ratios=rng.normal(size=count).astype(np.float32),
        candidates=jax.tree.map(lambda a: np.stack([a] * count), splits.targets),
    )
    shape: tuple[int, ...] = (n,)
    if "transcript" in model.sees:
        shape = ()
    elif "canaries" in model.knows:
        shape = (len(splits.targets.y),)
    knowledge = known.knowledge._replace(shadows=shadows)
    return known._replace(
        knowledge=knowledge, observations=observation, many=count, shape=shape
    )
