"""What games show an attacker, made up in a tiny world: declared or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audit.config import registry
from audit.engine import shadow
from audit.engine.signals import Shadows, Signals
from audit.games import attribute, base, reconstruction
from audit.games.base import Problem, Table
from audit.games.gradient_inversion import Exposed, exposed_step
from audit.mechanisms.output_perturbation import objective_of
from audit.models import networks
from audit.rng import stream
from audit.testing import worlds
from audit.types import (
    Attribute,
    Defense,
    Examples,
    Knowledge,
    Observation,
    Task,
    ThreatModel,
)

MODELS = 8  # shadow models whose signals are made up
QUERIES = 2
# which defense is attacked, by what the attack assumes; the first that fits
ATTACKED: dict[str, dict[str, Any]] = {
    "dpsgd": {"steps": 2, "noise_multiplier": 0.3},
    "noisy_sum": {},
    "output_perturbed_glm": {"intercept": True},
}


class Shown(NamedTuple):
    """Everything, for `many` observations side by side."""

    task: Task
    defense: Defense
    exact: bool  # whether the releases are float64
    knowledge: Knowledge
    observations: Observation  # leading axis: many
    many: int
    shape: tuple[int, ...]  # of one guess


def granted(model: ThreatModel, everything: Shown) -> tuple[Knowledge, Observation]:
    """Return what a threat model declares; every other field is None."""

    def hidden(fields: dict[str, set[str]]) -> dict[str, Any]:
        return {field: None for field in fields if not base.shown(model, field)}

    knowledge = everything.knowledge._replace(**hidden(base.KNOWN_BY))
    return knowledge, everything.observations._replace(**hidden(base.OBSERVED_BY))


def make(
    threat_model: Callable[[Task], ThreatModel], task: Task | None = None
) -> Shown:
    """Return what the games of an attack's goal can show it.

    Args:
      threat_model: of the attack on a task.
      task: what is learnt; None = a tiny one that suits the goal.

    Raises:
      ValueError: if no defense of the suite has what the attack assumes.
    """
    model = threat_model(task or worlds.make().task)
    if task is None and model.goal == "attribute":
        task = networks.binary_linear((6,), 2)._replace(domain=(-np.inf, np.inf))
    world = worlds.make(task)
    if model.goal == "attribute":
        world = world._replace(splits=_with_attribute(world.splits))
    learner = _attacked(model, world)
    exact = "exact" in learner.defense.traits
    if model.goal == "membership":
        return _membership(model, world, learner)
    targets = world.splits.targets
    releases = reconstruction.release(world.key, learner, _table(world)).releases
    knowledge = _knowledge(world, learner)
    observation = Observation(params=releases.params, label=targets.y, target=targets.x)
    shape = world.task.features
    if objective_of(learner.defense) is not None:
        with jax.enable_x64(True):
            rest = reconstruction.known_part(learner, releases, world.splits)
            observation = observation._replace(rest=rest)
    if model.goal == "attribute":
        secret = Attribute(np.array([0]), np.array([[0.0], [1.0]]))
        knowledge = knowledge._replace(attribute=secret)
        observation = _attribute(observation, secret, learner, world, releases)
        shape = (len(secret.values),)
    exposed = exposed_step(learner.defense)
    if exposed is not None:
        observation = _exposed(observation, exposed, learner, world)
    return Shown(
        world.task,
        learner.defense,
        exact,
        knowledge,
        observation,
        len(targets.y),
        shape,
    )


def _attacked(model: ThreatModel, world: worlds.World) -> shadow.Learner:
    for name, settings in ATTACKED.items():
        full = registry.check("defense", name, settings, name)
        learner = shadow.learner(
            registry.find("defense", name),
            world.task,
            full,
            key=world.key,
            public=world.public,
        )
        wanted = model.assumes | ({"glm"} if model.goal == "attribute" else set())
        if wanted <= learner.defense.traits:
            return learner
    raise ValueError(
        f"no defense here is {', '.join(sorted(model.assumes))}: {', '.join(ATTACKED)}"
    )


def _table(world: worlds.World) -> Table:
    nobody: Any = None  # no data set is behind a made-up world
    return Table(Problem(world.task, world.splits, nobody), shadow.Engine(), 1)


def _knowledge(world: worlds.World, learner: shadow.Learner) -> Knowledge:
    whole = ThreatModel("reconstruction", knows=frozenset(base.KNOWN_BY))
    knowledge = base.grant(whole, learner, _table(world))
    exposed = exposed_step(learner.defense)
    if exposed is None or exposed.log_density is None:
        return knowledge
    law = exposed.log_density
    return knowledge._replace(likelihood=jax.tree_util.Partial(law, learner.side))


def _exposed(
    observation: Observation,
    exposed: Exposed,
    learner: shadow.Learner,
    world: worlds.World,
) -> Observation:
    """Add one noised gradient of every target, at the parameters that are seen."""
    targets = world.splits.targets
    keys = jax.random.split(stream(world.key, "updates"), len(targets.y))
    each = [
        exposed.update(
            keys[i],
            learner.side,
            jax.tree.map(lambda a, i=i: a[i], observation.params),
            jax.tree.map(lambda a, i=i: a[i : i + 1], targets),
        )
        for i in range(len(targets.y))
    ]
    return observation._replace(update=jax.tree.map(lambda *a: np.stack(a), *each))


def _with_attribute(splits: Any) -> Any:
    """Make the first column of every record 0 or 1, in turn."""

    def binary(z: Examples) -> Examples:
        x = np.array(z.x)
        x.reshape(len(x), -1)[:, 0] = np.arange(len(x)) // 2 % 2
        return z._replace(x=x)

    parts = ("public", "fixed", "targets", "pool", "test")
    return splits._replace(**{p: binary(getattr(splits, p)) for p in parts})


def _attribute(
    observation: Observation,
    secret: Attribute,
    learner: shadow.Learner,
    world: worlds.World,
    releases: Any,
) -> Observation:
    """Add what the targets may be, and the fits with each."""
    targets = world.splits.targets
    may_be = jax.vmap(lambda x: attribute.candidates(secret, x))(jnp.asarray(targets.x))
    releases = np.asarray(releases.params)
    # noiseless fits are about the release, and nothing here depends on them further
    refits = np.repeat(releases[:, None], len(secret.values), 1) * [[[1.0], [1.1]]]
    return observation._replace(candidates=np.asarray(may_be), refits=refits)


def _membership(
    model: ThreatModel, world: worlds.World, learner: shadow.Learner
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
    knowledge = _knowledge(world, learner)._replace(shadows=shadows)
    return Shown(
        world.task, learner.defense, False, knowledge, observation, count, shape
    )
