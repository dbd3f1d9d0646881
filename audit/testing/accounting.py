"""The laws of a defense's accounting."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.accounting import rdp
from audit.testing import fixtures
from audit.testing.defense import DefenseCase
from audit.testing.laws import broken, close, does_not_apply
from audit.types import Adjacency, Defense

ORDERS = np.array([1.25, 2.0, 4.0, 16.0, 64.0])
N = fixtures.FIXED + 1  # records of a run
DELTA = 1e-5
ADJACENCIES: tuple[Adjacency, ...] = ("replace_one", "add_remove")


def information_is_finite_and_not_negative(case: DefenseCase) -> None:
    """A trace of Fisher information is a finite number, at least 0, one per record."""
    trace = case.information
    if trace is None:
        does_not_apply("no bound")
    if trace.shape != (fixtures.TARGETS, 1):
        broken(f"shape {trace.shape} for one row, not ({fixtures.TARGETS}, 1)")
    if not np.isfinite(trace).all() or (trace < 0).any():
        broken(f"values from {trace.min():.3g} to {trace.max():.3g}")


def _curve(
    defense: Defense, adjacency: Adjacency, orders: Any = ORDERS
) -> np.ndarray | None:
    """Return the Renyi curve; None = no theorem."""
    curve = defense.rdp and defense.rdp(N, orders, adjacency)
    return None if curve is None else np.asarray(curve, float)


def more_noise_is_never_a_smaller_bound(case: DefenseCase) -> None:
    """Four times the noise: no more information in a step, no larger epsilon."""
    louder = case.louder(4.0)
    once = {"steps": 1} if "steps" in case.settings else {}  # runs differ later on
    before, after = case.learner_with(**once), case.learner_with(**once, **louder)
    change = ", ".join(f"{k}={v:g}" for k, v in louder.items())
    less, more = case.read(before), case.read(after)
    if less is not None and more is not None and (more > less * (1 + 1e-6)).any():
        broken(f"{change}: information {more.max():.3g} after {less.max():.3g}")
    for adjacency in ADJACENCIES:
        first, second = (_curve(x.defense, adjacency) for x in (before, after))
        if first is not None and second is not None and (second > first + 1e-9).any():
            broken(f"{change}: a larger Renyi curve, {adjacency}")


def the_renyi_curve_rises(case: DefenseCase) -> None:
    """A Renyi divergence is at least 0 and never falls with its order."""
    curves = {a: _curve(case.defense, a) for a in ADJACENCIES}
    if all(curve is None for curve in curves.values()):
        does_not_apply("no Renyi curve")
    for adjacency, curve in curves.items():
        if curve is None:
            continue
        if curve.shape != ORDERS.shape:
            broken(f"{adjacency}: shape {curve.shape} for {len(ORDERS)} orders")
        if not (curve >= 0).all() or (np.diff(curve) < -1e-9 * curve.max()).any():
            broken(f"{adjacency}: {curve} at orders {ORDERS}")


def infinite_noise_leaks_nothing(case: DefenseCase) -> None:
    """A Renyi curve goes to 0 with ever more noise."""
    louder = case.louder(1e8)
    defense = case.factory(case.world.task, **{**case.settings, **louder})
    curve = _curve(defense, "replace_one")
    if curve is None:
        does_not_apply("no Renyi curve")
    if not (curve < 1e-6).all():
        broken(f"{curve} at orders {ORDERS} with 1e8 times the noise")


def the_tight_epsilon_is_not_above_the_curves(case: DefenseCase) -> None:
    """A privacy-loss distribution is never worse than the Renyi curve's conversion."""
    pld = case.defense.pld
    loss = None if pld is None else pld(N, "replace_one")
    curve = _curve(case.defense, "replace_one", rdp.ORDERS)
    if loss is None or curve is None:
        does_not_apply("it does not have both")
    tight = loss.get_epsilon_for_delta(DELTA)
    converted = rdp.epsilon(rdp.ORDERS, curve, DELTA)
    if tight > converted * (1 + 1e-6) + 1e-6:
        broken(f"epsilon {tight:.6g} above {converted:.6g} of the curve")


def the_target_is_a_candidate_like_any_other(case: DefenseCase) -> None:
    """The log-likelihood of the target as a candidate is the target's own, finite."""
    if case.defense.log_likelihood is None:
        does_not_apply("no likelihood")
    candidates = case.world.splits.targets
    got = case.sweep("log_likelihood", case.data, candidates, precise=True)
    n = len(candidates.y)
    if got.shape != (n, n + 1):
        broken(f"shape {got.shape} for {n} candidates, not ({n}, {n + 1})")
    if not np.isfinite(got).all():
        broken("it is not finite")
    as_candidate = got[np.arange(n), np.arange(n)]
    close(as_candidate, got[:, -1], "as a candidate and as the target", 1e-6)
