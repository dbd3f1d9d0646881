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
from audit.games import attribute, base
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
# the word of a threat model that grants a field; the rest are the game's to give
SEES = {"params": "params", "update": "update", "target": "target",
        "signals": "signals", "ratios": "transcript"}  # fmt: skip
KNOWS = {"label": "label", "rest": "objective", "refits": "refits"}
HELD = {"fixed": "fixed", "init": "init", "public": "public", "train": "train",
        "objective": "objective", "likelihood": "mechanism",
        "shadows": "shadows"}  # fmt: skip


class Shown(NamedTuple):
    """Everything, for `many` observations side by side."""

    task: Task
    defense: Defense
    exact: bool  # whether the releases are float64
    knowledge: Knowledge
    observations: Observation  # leading axis: many
    many: int
    shape: tuple[int, ...]  # of one guess


def granted(model: ThreatModel, held: Shown) -> tuple[Knowledge, Observation]:
    """Return what a threat model declares; every other field is None."""
    by = {f: w in model.sees for f, w in SEES.items()}
    by |= {f: w in model.knows for f, w in KNOWS.items()}
    by["candidates"] = bool({"record", "canaries"} & model.knows)
    hidden: dict[str, Any] = {f: None for f, allowed in by.items() if not allowed}
    unknown: dict[str, Any] = {
        f: None for f, word in HELD.items() if word not in model.knows
    }
    return held.knowledge._replace(**unknown), held.observations._replace(**hidden)


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
    of = _attacked(model, world)
    exact = "exact" in of.defense.traits
    if model.goal == "membership":
        return _membership(model, world, of)
    targets = world.splits.targets
    releases = base.play_targets(world.key, of, world.splits, 1, shadow.Engine())
    knowledge = _knowledge(world, of)
    seen = Observation(params=releases.params, label=targets.y, target=targets.x)
    shape = world.task.features
    if of.defense.objective is not None:
        with jax.enable_x64(True):
            seen = seen._replace(rest=base.rest(of, releases, world.splits))
    if model.goal == "attribute":
        asked = Attribute(np.array([0]), np.array([[0.0], [1.0]]))
        knowledge = knowledge._replace(attribute=asked)
        seen = _attribute(seen, asked, of, world, releases)
        shape = (len(asked.values),)
    if of.defense.exposed is not None:
        seen = _exposed(seen, of, world)
    return Shown(world.task, of.defense, exact, knowledge, seen, len(targets.y), shape)


def _attacked(model: ThreatModel, world: worlds.World) -> shadow.Learner:
    for name, settings in ATTACKED.items():
        full = registry.check("defense", name, settings, name)
        of = shadow.learner(
            registry.find("defense", name),
            world.task,
            full,
            key=world.key,
            public=world.public,
        )
        wanted = model.assumes | ({"glm"} if model.goal == "attribute" else set())
        if wanted <= of.defense.traits:
            return of
    raise ValueError(
        f"no defense here is {', '.join(sorted(model.assumes))}: {', '.join(ATTACKED)}"
    )


def _knowledge(world: worlds.World, of: shadow.Learner) -> Knowledge:
    whole = ThreatModel("reconstruction", knows=frozenset(base.KNOWS))
    held = base.grant(whole, of, world.splits, shadow.Engine())
    exposed = of.defense.exposed
    if exposed is None or exposed.log_density is None:
        return held
    law = exposed.log_density
    return held._replace(likelihood=jax.tree_util.Partial(law, of.side))


def _exposed(seen: Observation, of: shadow.Learner, world: worlds.World) -> Observation:
    """Add one noised gradient of every target, at the parameters that are seen."""
    exposed, targets = of.defense.exposed, world.splits.targets
    assert exposed is not None
    keys = jax.random.split(stream(world.key, "updates"), len(targets.y))
    each = [
        exposed.update(
            keys[i],
            of.side,
            jax.tree.map(lambda a, i=i: a[i], seen.params),
            jax.tree.map(lambda a, i=i: a[i : i + 1], targets),
        )
        for i in range(len(targets.y))
    ]
    return seen._replace(update=jax.tree.map(lambda *a: np.stack(a), *each))


def _with_attribute(splits: Any) -> Any:
    """Make the first column of every record 0 or 1, in turn."""

    def binary(z: Examples) -> Examples:
        x = np.array(z.x)
        x.reshape(len(x), -1)[:, 0] = np.arange(len(x)) // 2 % 2
        return z._replace(x=x)

    parts = ("public", "fixed", "targets", "pool", "test")
    return splits._replace(**{p: binary(getattr(splits, p)) for p in parts})


def _attribute(
    seen: Observation,
    asked: Attribute,
    of: shadow.Learner,
    world: worlds.World,
    releases: Any,
) -> Observation:
    """Add what the targets may be, and the fits with each."""
    targets = world.splits.targets
    may_be = jax.vmap(lambda x: attribute.candidates(asked, x))(jnp.asarray(targets.x))
    releases = np.asarray(releases.params)
    # noiseless fits are about the release, and nothing here depends on them further
    refits = np.repeat(releases[:, None], len(asked.values), 1) * [[[1.0], [1.1]]]
    return seen._replace(candidates=np.asarray(may_be), refits=refits)


def _membership(model: ThreatModel, world: worlds.World, of: shadow.Learner) -> Shown:
    """Make up signals, transcripts' ratios, or canaries, as the words say."""
    rng, splits = np.random.default_rng(3), world.splits
    n, count = len(splits.fixed.y), 3
    member = np.argsort(rng.uniform(size=(MODELS, n)), 0) % 2 == 0

    def signals(*shape: int) -> Signals:
        each = (rng.normal(2, 1, (*shape, k, QUERIES)) for k in (n, len(splits.pool.y)))
        return Signals(*(a.astype(np.float16) for a in each))

    shadows = Shadows(member, np.asarray(splits.fixed.y), signals(MODELS))
    start = of.side.params
    seen = Observation(
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
    knowledge = _knowledge(world, of)._replace(shadows=shadows)
    return Shown(world.task, of.defense, False, knowledge, seen, count, shape)
