"""The laws of how a defense trains, and the case that they are held against."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from audit.accounting import fisher
from audit.config import registry
from audit.engine import shadow
from audit.engine.precision import double
from audit.testing import fixtures, laws
from audit.testing.laws import broken, close, differ, does_not_apply, same_bits
from audit.types import (
    Defense,
    Examples,
    Iterative,
    Lanes,
    Minimiser,
    Release,
    Task,
    TrainingSet,
)

LANES = 2
MORE_NOISE = {"noise_multiplier": 1, "noise_stddev": 1, "concentration": -1}  # by power


class DefenseCase:
    """One defense with its settings in a tiny world; laws share what is cached here."""

    def __init__(self, factory: Callable, task: Task | None, given: dict[str, Any]):
        self.factory, self.traced = factory, 0
        self.world = fixtures.make(task)
        settings = laws.settings_of(factory)
        self.settings = registry.validate(settings, given, factory.__name__)
        splits = self.world.splits
        self.data = TrainingSet(splits.fixed, splits.targets)  # one set per target
        self.key = jax.random.key(7)

        @functools.wraps(factory)
        def counted(*given: Any, **settings: Any) -> Defense:
            self.traced += 1
            return factory(*given, **settings)

        self.counted = counted

    def learner_with(self, **changed: Any) -> shadow.Learner:
        """Return the defense, ready to be run, with some settings changed."""
        return shadow.learner(
            self.counted,
            self.world.task,
            {**self.settings, **changed},
            key=self.world.key,
            public=self.world.public,
        )

    @functools.cached_property
    def learner(self) -> shadow.Learner:
        """The defense with the settings of the case."""
        return self.learner_with()

    @property
    def defense(self) -> Defense:
        """Its functions, built with host values."""
        return self.learner.defense

    @property
    def parts(self) -> Iterative:
        """Its query, sampler and noise, and what else its steps are made of."""
        if not isinstance(self.defense.mechanism, Iterative):
            does_not_apply("it is made of no query, sampler and noise")
        return self.defense.mechanism

    def sweep(self, method: str, data: TrainingSet, *extra: Any, **how: Any) -> Any:
        """Run a method for every target, by the suite's own engine."""
        learner, key = how.pop("learner", self.learner), how.pop("key", self.key)
        engine = shadow.Engine(Lanes(tile=how.pop("tile", LANES)))
        return shadow.sweep(method, learner, key, data, *extra, engine=engine, **how)

    @functools.cached_property
    def released(self) -> Release:
        """One release per target."""
        return self.sweep("train", self.data)

    def read(self, learner: shadow.Learner) -> np.ndarray | None:
        """Return the Fisher information about every target [targets, 1], or None."""
        mechanism, extra = learner.defense.mechanism, np.array([fixtures.FIXED])
        how: dict[str, Any] = {"learner": learner, "precise": True}
        if isinstance(mechanism, Minimiser) and mechanism.fil is not None:
            return np.asarray(self.sweep("fil", self.data, extra, **how)[0])
        if learner.defense.fisher is None:
            return None
        return np.asarray(self.sweep("fisher", self.data, extra, **how))

    @functools.cached_property
    def information(self) -> np.ndarray | None:
        """The Fisher information about every target [targets, 1]; None = no bound."""
        return self.read(self.learner)

    def louder(self, factor: float) -> dict[str, float]:
        """Return the setting that is the noise, scaled."""
        for word, power in MORE_NOISE.items():
            if isinstance(self.settings.get(word), float):
                return {word: self.settings[word] * factor**power}
        does_not_apply(f"no setting is called {', '.join(MORE_NOISE)}")

    @functools.cached_property
    def steps(self) -> tuple[Any, list[Any]]:
        """The first lane's run step by step, in float64: its state, every view."""
        mechanism, key = self.parts, jax.random.fold_in(self.key, 0)
        with jax.enable_x64(True):
            side, data = double((self.learner.side, self.one(0)))
            state, views = mechanism.init(key, side), []
            step = jax.jit(mechanism.step)
            for _ in range(mechanism.steps):
                state, view = step(key, state, data)
                views.append(view)
        return state, views

    @functools.cached_property
    def contributions(self) -> Callable:
        """(params, side, records) -> what the query makes of each, flat [m, D]."""
        fn = self.parts.query.fn
        flat = lambda params, side, z: ravel_pytree(fn(params, side, z))[0]
        return jax.jit(jax.vmap(flat, (None, None, 0)))

    @functools.cached_property
    def jacobians(self) -> Callable:
        """(params, side, records) -> ||d fn / d x||_F^2 of each [m]."""
        fn = self.parts.query.fn

        def squared(params: Any, side: Any, z: Examples) -> jax.Array:
            return fisher.exact_trace(lambda x: fn(params, side, z._replace(x=x)), z.x)

        return jax.jit(jax.vmap(squared, (None, None, 0)))

    def one(self, lane: int) -> TrainingSet:
        """Return one lane's training set."""
        target = jax.tree.map(lambda a: a[lane], self.data.target)
        return self.data._replace(target=target)


# Training -----------------------------------------------------------------------------


def same_key_same_bits(case: DefenseCase) -> None:
    """A run is a function of key and data: run again, the bits are the same."""
    first = case.released
    other = fixtures.others(case.data.fixed, *case.world.task.domain)
    case.sweep("train", case.data._replace(fixed=other))  # nothing of it may stay
    same_bits(first, case.sweep("train", case.data), "the same run twice")


def lanes_equal_single_runs(case: DefenseCase) -> None:
    """Under vmap every lane is what it would be alone, up to rounding."""
    alone = case.sweep("train", case.data, tile=1)
    close(alone, case.released, "one lane alone and in a tile", 1e-4)


def releases_are_finite(case: DefenseCase) -> None:
    """What leaves the learner has no nan and no infinity."""
    for leaf in jax.tree.leaves(case.released):
        if not np.isfinite(np.asarray(leaf, float)).all():
            broken("some parameter is not finite")


def dtype_is_kept(case: DefenseCase) -> None:
    """Float32 in, float32 out; a defense with the trait `exact` works in float64."""
    wanted = np.float64 if "exact" in case.defense.traits else np.float32
    for leaf in jax.tree.leaves(case.released):
        kind = np.asarray(leaf).dtype
        if np.issubdtype(kind, np.floating) and kind != wanted:
            broken(f"a release of {kind}, not {np.dtype(wanted)}")


def a_new_float_compiles_nothing(case: DefenseCase) -> None:
    """Floats are traced: a sweep over one compiles once."""
    floats = {k: v for k, v in case.learner.floats.items() if 0 < v < 0.8 or v >= 1}
    if not floats:
        does_not_apply("it has no float settings")
    _ = case.released  # compiled by now
    before = case.traced
    louder = {k: v * 1.125 for k, v in floats.items()}
    learner = case.learner._replace(floats=case.learner.floats | louder)
    case.sweep("train", case.data, learner=learner)
    if case.traced != before:
        broken(f"new values of {', '.join(floats)} traced it again")


def other_keys_draw_other_noise(case: DefenseCase) -> None:
    """A defense with a bound draws noise: another key gives another release."""
    reads_nothing = case.information is None or not case.information.any()
    if case.defense.rdp is None and reads_nothing:
        does_not_apply("it has no bound")
    if case.information is not None and reads_nothing:
        does_not_apply("it claims that nothing leaks")
    again = case.sweep("train", case.data, key=jax.random.key(8))
    if not differ(case.released, again):
        broken("two keys gave the same release, and it claims a bound")


def no_noise_no_bound(case: DefenseCase) -> None:
    """Where the data leak and no key changes anything, every reading is None."""
    targets = case.world.splits.targets
    other = case.data._replace(target=fixtures.others(targets, *case.world.task.domain))
    again = case.sweep("train", case.data, key=jax.random.key(8))
    moved = case.sweep("train", other)
    if differ(case.released, again):
        does_not_apply("it draws at random")
    if not differ(case.released, moved):
        does_not_apply("the target does not move it")
    for word in ("fisher", "rdp", "pld", "log_likelihood"):
        if getattr(case.defense, word) is not None:
            broken(f"`{word}` claims something of a release without noise")


def train_is_init_and_steps(case: DefenseCase) -> None:
    """`train` is `init` and then `step`, as many times as `steps` says."""
    state, _ = case.steps
    whole = case.sweep("train", case.data, precise=True)
    first = jax.tree.map(lambda a: a[0], whole.params)
    close(state.params, first, "steps by hand and `train`", 1e-6)


def preparing_looks_at_public_data_only(case: DefenseCase) -> None:
    """The side is a function of key and public data, whatever was trained before."""
    again = case.learner_with()
    case.sweep("train", case.data, learner=again)
    third = case.learner_with()
    same_bits(again.side, case.learner.side, "prepared twice")
    same_bits(third.side, case.learner.side, "prepared before and after a run")


def order_of_records_does_not_matter(case: DefenseCase) -> None:
    """A set has no order: the known records permuted give the same release."""
    mechanism = case.defense.mechanism
    if isinstance(mechanism, Iterative) and "full_batch" not in case.defense.traits:
        does_not_apply("batches are drawn by row")
    if mechanism is not None and mechanism.noise.at == "example":
        does_not_apply("noise is drawn by row")
    fixed = jax.tree.map(lambda a: a[::-1], case.data.fixed)
    permuted = case.sweep("train", case.data._replace(fixed=fixed))
    close(permuted, case.released, "records in another order", 1e-3)


def records_not_in_rows_take_no_part(case: DefenseCase) -> None:
    """A lane that trains on some rows knows nothing of others; -1 is an empty slot."""
    rows = [0, 1, 2, 3, 4, 5, 6]
    if "rows" in case.defense.traits:
        rows += [-1, -1]
    lanes = np.tile(np.array(rows, np.int32), (LANES, 1))
    fixed, domain = case.data.fixed, case.world.task.domain
    out = np.arange(len(fixed.y)) >= 7
    x = fixtures.others(fixed, *domain).x
    shape = (-1, *[1] * (x.ndim - 1))
    changed = fixed._replace(x=np.where(out.reshape(shape), x, fixed.x))
    first, second = (
        case.sweep("train", TrainingSet(z, None, lanes)) for z in (fixed, changed)
    )
    same_bits(first, second, "records outside the rows, changed")


def predictions_are_logits(case: DefenseCase) -> None:
    """`predict` gives one row per record: logits [m, classes], or numbers [m, 1]."""
    if case.defense.predict is None:
        does_not_apply("it releases no model that predicts")
    one = Release(jax.tree.map(lambda a: a[0], case.released.params))
    x = case.world.splits.test.x
    got = np.asarray(case.defense.predict(case.learner.side, one, x))
    wanted = (len(x), max(case.world.task.classes, 1))
    if got.shape != wanted:
        broken(f"shape {got.shape}, not {wanted}")
