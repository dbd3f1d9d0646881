"""The laws of how a defense trains, and the case they look at."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from audit.config import registry
from audit.engine import shadow
from audit.engine.precision import double
from audit.testing import worlds
from audit.testing.laws import OF_FACTORIES, Law, broken, close, same_bits, settings_of
from audit.types import Defense, Lanes, Release, Task, TrainingSet

LANES = 2
MORE_NOISE = {"noise_multiplier": 1, "noise_stddev": 1, "concentration": -1}  # by power


class Case:
    """One defense with its settings in a tiny world; what laws share is made once."""

    def __init__(self, factory: Callable, task: Task | None, given: dict[str, Any]):
        self.factory, self.traced = factory, 0
        self.world = worlds.make(task)
        known = settings_of(factory)
        self.settings = registry.validate(known, given, factory.__name__)
        self.data = worlds.training_sets(self.world)
        self.key = jax.random.key(7)

        @functools.wraps(factory)
        def counted(*given: Any, **settings: Any) -> Defense:
            self.traced += 1
            return factory(*given, **settings)

        self.counted = counted

    def learner(self, **changed: Any) -> shadow.Learner:
        """Return the defense, ready to be run, with some settings changed."""
        return shadow.learner(
            self.counted,
            self.world.task,
            {**self.settings, **changed},
            key=self.world.key,
            public=self.world.public,
        )

    @functools.cached_property
    def of(self) -> shadow.Learner:
        """The defense as it was asked for."""
        return self.learner()

    @property
    def defense(self) -> Defense:
        """Its functions, built with host values."""
        return self.of.defense

    def sweep(self, method: str, data: TrainingSet, *extra: Any, **how: Any) -> Any:
        """Run a method for every target, by the suite's own engine."""
        of, key = how.pop("of", self.of), how.pop("key", self.key)
        engine = shadow.Engine(Lanes(tile=how.pop("tile", LANES)))
        return shadow.sweep(method, of, key, data, *extra, engine=engine, **how)

    @functools.cached_property
    def released(self) -> Release:
        """One release a target."""
        return self.sweep("train", self.data)

    def read(self, of: shadow.Learner) -> np.ndarray | None:
        """Return the Fisher information about every target [targets], or None."""
        row = np.array([worlds.FIXED])
        if of.defense.fil is not None:
            found = self.sweep("fil", self.data, row, of=of, precise=True)[0]
        elif of.defense.fisher is not None:
            found = self.sweep("fisher", self.data, row, of=of, precise=True)
        else:
            return None
        return np.asarray(found)

    @functools.cached_property
    def information(self) -> np.ndarray | None:
        """The Fisher information about every target [targets, 1]; None = no bound."""
        return self.read(self.of)

    def louder(self, factor: float) -> dict[str, float] | None:
        """Return the setting that is the noise, scaled; None = it has another name."""
        for word, power in MORE_NOISE.items():
            if isinstance(self.settings.get(word), float):
                return {word: self.settings[word] * factor**power}
        return None

    @functools.cached_property
    def steps(self) -> tuple[Any, list[Any]]:
        """The first lane's run step by step, in float64: its state, every view."""
        defense, key = self.defense, jax.random.fold_in(self.key, 0)
        assert defense.init is not None
        assert defense.step is not None
        with jax.enable_x64(True):
            side, data = double((self.of.side, self.one(0)))
            state, views = defense.init(key, side), []
            step = jax.jit(defense.step)
            for _ in range(defense.steps or 0):
                state, view = step(key, state, data)
                views.append(view)
        return state, views

    def one(self, lane: int) -> TrainingSet:
        """Return one lane's training set."""
        target = jax.tree.map(lambda a: a[lane], self.data.target)
        return self.data._replace(target=target)


# Training -----------------------------------------------------------------------------


def same_key_same_bits(case: Case) -> str | None:
    """A run is a function of key and data: run again, the bits are the same."""
    first = case.released
    other = worlds.others(case.data.fixed, *case.world.task.domain)
    case.sweep("train", case.data._replace(fixed=other))  # nothing of it may stay
    same_bits(first, case.sweep("train", case.data), "the same run twice")
    return None


def lanes_equal_single_runs(case: Case) -> str | None:
    """Under vmap every lane is what it would be alone, up to rounding."""
    alone = case.sweep("train", case.data, tile=1)
    close(alone, case.released, "one lane alone and in a tile", 1e-4)
    return None


def releases_are_finite(case: Case) -> str | None:
    """What leaves the learner has no nan and no infinity."""
    for leaf in jax.tree.leaves(case.released):
        if not np.isfinite(np.asarray(leaf, float)).all():
            broken("some parameter is not finite")
    return None


def dtype_is_kept(case: Case) -> str | None:
    """Float32 in, float32 out; a defense with the trait `exact` works in float64."""
    wanted = np.float64 if "exact" in case.defense.traits else np.float32
    for leaf in jax.tree.leaves(case.released):
        kind = np.asarray(leaf).dtype
        if np.issubdtype(kind, np.floating) and kind != wanted:
            broken(f"a release of {kind}, not {np.dtype(wanted)}")
    return None


def a_new_float_compiles_nothing(case: Case) -> str | None:
    """Floats are traced: a sweep over one compiles once."""
    floats = {k: v for k, v in case.of.floats.items() if 0 < v < 0.8 or v >= 1}
    if not floats:
        return "it has no float settings"
    _ = case.released  # compiled by now
    before = case.traced
    louder = {k: v * 1.125 for k, v in floats.items()}
    case.sweep("train", case.data, of=case.of._replace(floats=case.of.floats | louder))
    if case.traced != before:
        broken(f"new values of {', '.join(floats)} traced it again")
    return None


def other_keys_draw_other_noise(case: Case) -> str | None:
    """Whoever has a bound draws noise: another key gives another release."""
    reads_nothing = case.information is None or not case.information.any()
    if case.defense.rdp is None and reads_nothing:
        return "it has no bound"
    if case.information is not None and reads_nothing:
        return "it claims that nothing leaks"
    again = case.sweep("train", case.data, key=jax.random.key(8))
    for x, y in zip(
        jax.tree.leaves(case.released), jax.tree.leaves(again), strict=True
    ):
        if not np.array_equal(x, y):
            return None
    broken("two keys gave the same release, and it claims a bound")


def no_noise_no_bound(case: Case) -> str | None:
    """Where the data leak and no key changes anything, every reading is None."""
    targets = case.world.splits.targets
    other = case.data._replace(target=worlds.others(targets, *case.world.task.domain))
    again = case.sweep("train", case.data, key=jax.random.key(8))
    moved = case.sweep("train", other)

    def differs(a: Any, b: Any) -> bool:
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return any(not np.array_equal(x, y) for x, y in pairs)

    if differs(case.released, again):
        return "it draws at random"
    if not differs(case.released, moved):
        return "the target does not move it"
    held = case.defense
    for word in ("fisher", "rdp", "pld", "log_likelihood"):
        if getattr(held, word) is not None:
            broken(f"`{word}` claims something of a release without noise")
    return None


def train_is_init_and_steps(case: Case) -> str | None:
    """`train` is `init` and then `step`, so often as `steps` says."""
    defense = case.defense
    if defense.init is None or defense.step is None:
        return "nothing iterates"
    if not defense.steps:
        broken("it has a step, and `steps` does not say how many")
    whole = case.sweep("train", case.data, precise=True)
    first = jax.tree.map(lambda a: a[0], whole.params)
    close(case.steps[0].params, first, "steps by hand and `train`", 1e-6)
    return None


def preparing_looks_at_public_data_only(case: Case) -> str | None:
    """The side is a function of key and public data, whatever was trained before."""
    again = case.learner()
    case.sweep("train", case.data, of=again)
    third = case.learner()
    same_bits(again.side, case.of.side, "prepared twice")
    same_bits(third.side, case.of.side, "prepared before and after a run")
    return None


def order_of_records_does_not_matter(case: Case) -> str | None:
    """A set has no order: the known records permuted give the same release."""
    ordered = case.defense.init is not None
    if ordered and "full_batch" not in case.defense.traits:
        return "batches are drawn by row"
    if case.defense.parts is not None and case.defense.parts.noise.at == "example":
        return "noise is drawn by row"
    fixed = jax.tree.map(lambda a: a[::-1], case.data.fixed)
    permuted = case.sweep("train", case.data._replace(fixed=fixed))
    close(permuted, case.released, "records in another order", 1e-3)
    return None


def records_not_in_rows_take_no_part(case: Case) -> str | None:
    """A lane that trains on some rows knows nothing of others; -1 is an empty slot."""
    rows = [0, 1, 2, 3, 4, 5, 6]
    if "rows" in case.defense.traits:
        rows += [-1, -1]
    lanes = np.tile(np.array(rows, np.int32), (LANES, 1))
    fixed, domain = case.data.fixed, case.world.task.domain
    out = np.arange(len(fixed.y)) >= 7
    x = worlds.others(fixed, *domain).x
    shape = (-1, *[1] * (x.ndim - 1))
    changed = fixed._replace(x=np.where(out.reshape(shape), x, fixed.x))
    first, second = (
        case.sweep("train", TrainingSet(z, None, lanes)) for z in (fixed, changed)
    )
    same_bits(first, second, "records outside the rows, changed")
    return None


def predictions_are_logits(case: Case) -> str | None:
    """`predict` gives a row of logits a record: [m, classes], or [m, 1] of numbers."""
    if case.defense.predict is None:
        return "it releases no model that predicts"
    one = Release(jax.tree.map(lambda a: a[0], case.released.params))
    x = case.world.splits.test.x
    got = np.asarray(case.defense.predict(case.of.side, one, x))
    wanted = (len(x), max(case.world.task.classes, 1))
    if got.shape != wanted:
        broken(f"shape {got.shape}, not {wanted}")
    return None


LAWS: tuple[Law, ...] = (
    *OF_FACTORIES,
    same_key_same_bits,
    lanes_equal_single_runs,
    releases_are_finite,
    dtype_is_kept,
    a_new_float_compiles_nothing,
    other_keys_draw_other_noise,
    no_noise_no_bound,
    train_is_init_and_steps,
    preparing_looks_at_public_data_only,
    order_of_records_does_not_matter,
    records_not_in_rows_take_no_part,
    predictions_are_logits,
)
