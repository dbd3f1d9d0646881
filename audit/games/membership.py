"""Membership games: was a record in the training set (Carlini et al. 2022).

The fixed records are the candidates, each in exactly half of the `runs` target models
(`designs`). Before it sees one, an attacker may hold what its own shadow models say,
trained by the same engine on half-in designs of the same candidates, with its own coins
and noise. Some of them (`calibration`) are kept back and attacked as the targets are:
thresholds chosen there are what a real attacker can deploy.

Who is a candidate is public; who is a member never leaves the referee.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from audit.accounting import rdp, tradeoff
from audit.engine import shadow
from audit.engine.signals import Shadows, Signals, of_release, with_release
from audit.errors import UserError
from audit.games import base, guarantees, membership_designs
from audit.games.base import Game, Runs, Table
from audit.games.guarantees import Guarantees
from audit.games.membership_designs import Design
from audit.games.membership_rates import CURVE, above_bound, null, rates
from audit.mechanisms.batch import gathered
from audit.rng import stream
from audit.statistics import intervals
from audit.types import (
    Attack,
    Lanes,
    Observation,
    Release,
    TrainingSet,
)

DELTAS = np.geomspace(1e-12, 0.1, 45)  # at which a Renyi curve is read


class Looked(NamedTuple):
    """What the referee knows of the target models, and what attackers may know."""

    targets: Shadows  # member: the referee's secret
    references: Shadows
    calibration: Shadows


def fits(design: Design, of: shadow.Learner, table: Table) -> None:
    """Refuse a defense or settings the game cannot be played with.

    Raises:
      UserError: before anything is trained, with the remedy.
    """
    fixed, asked = table.problem.splits.fixed, table.membership
    n, where = len(fixed.y), f"defense.{of.label}"
    for name, models in (
        ("runs", table.runs),
        ("membership.shadows", asked.shadows),
        ("membership.calibration", asked.calibration),
    ):
        if models % 2:
            raise UserError(
                f"{name}={models}: every candidate is in exactly half of the models; "
                f"give an even number"
            )
    if asked.queries > 1 and fixed.x.ndim != 4:
        raise UserError(f"membership.queries={asked.queries}: only images are moved")
    if not design.empty and n % 2:
        raise UserError(f"splits.fixed={n}: pairs need an even number of candidates")
    if of.defense.predict is None:
        raise UserError(f"{where}: releases no model that predicts; leave it out")
    if design.empty and "rows" not in of.defense.traits:
        raise UserError(
            f"{where}: cannot train with empty slots; play game=membership_replace_one"
        )
    try:
        one = TrainingSet(fixed, None, np.zeros(design.slots(n), np.int32))
        one = one if "rows" in of.defense.traits else gathered(one)
        jax.eval_shape(of.defense.train, jax.random.key(0), of.side, one)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def release(design: Design, key: jax.Array, of: shadow.Learner, table: Table) -> Runs:
    """Train target models, reference models and calibration models."""
    splits, asked = table.problem.splits, table.membership
    n = len(splits.fixed.y)

    def made(name: str, models: list[int], then: Any) -> tuple[np.ndarray, Any]:
        coins = stream(key, f"{name}: coins")
        each = [
            design.member(jax.random.fold_in(coins, i), m, n)
            for i, m in enumerate(models)
        ]
        member = np.concatenate(each)
        lanes = table.engine.lanes
        tile = min(lanes.tile, len(member))
        kept = shadow.sweep(
            "train",
            of,
            stream(key, name),
            TrainingSet(splits.fixed, None, design.rows(member)),
            splits.fixed,
            splits.pool,
            np.zeros(asked.queries, np.int32),
            engine=table.engine._replace(lanes=lanes._replace(tile=tile)),
            what=f"{of.label}: {name}",
            then=then,
        )
        return member, kept

    label = np.asarray(splits.fixed.y)
    member, (releases, seen) = made("target models", [table.runs], with_release)
    targets = Shadows(member, label, seen)
    sizes = [asked.shadows, asked.calibration]
    member, seen = made("shadow models", sizes, of_release)
    m = asked.shadows
    own, others = (
        Shadows(member[part], label, jax.tree.map(lambda a, p=part: a[p], seen))
        for part in (slice(m), slice(m, None))
    )
    return Runs(releases, looked=Looked(targets, own, others))


def account(
    design: Design,
    key: jax.Array,
    of: shadow.Learner,
    table: Table,
    runs: int,
    delta: float,
) -> Guarantees:
    """Account for every candidate where it is a member, `runs` trajectories each.

    Squared-error bounds do not apply to this game and are left out.
    """
    splits = table.problem.splits
    n = len(splits.fixed.y)
    looked = _looked(table)
    rate = separation(looked.references)
    most = most_tpr(design, of, n)
    seen = {"separation": rate}
    held = Guarantees(
        None,
        None,
        (),
        guarantees.epsilon(of, design.slots(n), delta),
        nominal=guarantees.nominal(of, design.slots(n)),
        anatomy=seen if most is None else seen | {"tpr_bound": np.stack([CURVE, most])},
        membership={"adjacency": design.adjacency, "separation": _spread(rate)},
    )
    if of.defense.fisher is None:
        return held
    member = design.member(stream(key, "accounted: coins"), 2 * runs, n)
    rows = design.rows(member)
    # one run serves all its records; lanes side by side would only take memory
    engine = table.engine._replace(lanes=Lanes(1, table.engine.lanes.memory_gib))
    traces = shadow.sweep(
        "fisher",
        of,
        stream(key, "fisher"),
        TrainingSet(splits.fixed, None, rows),
        np.arange(rows.shape[1]),
        engine=engine,
        what=f"{of.label}: Fisher information",
        precise=True,
    )
    each = np.full((2 * runs, n), np.nan)
    at, slot = np.nonzero(rows >= 0)
    each[at, rows[at, slot]] = traces[at, slot]
    dfil = np.nanmean(each, 0) / splits.fixed.x[0].size
    se = None
    if runs > 1:
        se = np.nanstd(each, 0, ddof=1) / splits.fixed.x[0].size / np.sqrt(runs)
    said = {**(held.membership or {}), "against_dfil": _rank(rate, dfil)}
    return held._replace(dfil=dfil, dfil_se=se, membership=said)


def most_tpr(design: Design, of: shadow.Learner, records: int) -> np.ndarray | None:
    """Return the most true positives at the rates of `CURVE`; None = no theorem.

    From the privacy-loss distribution where there is one, else the least over deltas of
    what the Renyi curve's epsilon(delta) allows; at the design's adjacency.
    """
    n, adjacency = design.slots(records), design.adjacency
    loss = of.defense.pld and of.defense.pld(n, adjacency)
    if loss:
        return tradeoff.tpr_from_loss(CURVE, loss)
    curve = of.defense.rdp and of.defense.rdp(n, rdp.ORDERS, adjacency)
    if curve is None or not np.isfinite(curve).all():
        return None
    each = [(rdp.epsilon(rdp.ORDERS, curve, d), d) for d in DELTAS]
    return np.min([tradeoff.tpr_from_epsilon(CURVE, *e) for e in each], 0)


def separation(held: Shadows) -> np.ndarray:
    """Return how well one record's signals tell its models apart [records].

    P(phi in > phi out) + P(tie) / 2 over the pairs of models with and without the
    record, phi averaged over queries: the AUC of the best threshold attack on this one
    record, .5 where nothing leaks, and no attack's property.
    """
    from scipy.stats import rankdata

    phi = np.asarray(held.signals.candidates, np.float32).mean(-1)
    ranks, half = rankdata(phi, axis=0), len(phi) / 2
    total = np.where(held.member, ranks, 0).sum(0)
    return (total - half * (half + 1) / 2) / half**2


def _spread(values: np.ndarray) -> dict[str, float]:
    quantiles = {"median": 50, "q90": 90, "max": 100}
    held = {k: float(np.percentile(values, q)) for k, q in quantiles.items()}
    return {"mean": float(values.mean()), **held}


def _rank(rate: np.ndarray, dfil: np.ndarray) -> dict[str, Any] | None:
    found = intervals.rank_correlation(rate, dfil)
    return None if found is None else found._asdict()


def _looked(table: Table) -> Looked:
    assert table.made is not None
    return table.made.looked


def play(
    key: jax.Array,
    attack: Attack,
    of: shadow.Learner,
    releases: Release,
    held: Guarantees,
    table: Table,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let one attack score every candidate on every target model; return its rates."""
    del releases  # attackers are shown what the models say
    if table.made is None:  # the floor is asked for before anything is released
        return {}, {"wrong": np.full(len(table.problem.splits.fixed.y), 0.5)}
    looked, model = _looked(table), attack.threat_model
    knowledge = base.grant(model, of, table.problem.splits, table.engine)
    if "shadows" in model.knows:
        knowledge = knowledge._replace(shadows=looked.references)
    state, info = attack.fit(stream(key, "fit"), knowledge)
    scored = _scorer(attack, state)
    on_targets = scored(stream(key, "guess"), looked.targets)
    on_shadows = scored(stream(key, "calibrate"), looked.calibration)
    result, arrays = rates(on_targets, looked.targets, on_shadows, looked.calibration)
    most = (held.anatomy or {}).get("tpr_bound")
    found = [] if most is None else above_bound(result, most)
    found += [f._asdict() for f in null(result)]
    return {**result, "fit": info, "flags": found}, arrays


def _scorer(attack: Attack, state: Any) -> Any:
    """Return (key, Shadows) -> scores [models, records]; undeclared fields are None."""
    model = attack.threat_model

    @jax.jit
    def one(state: Any, key: jax.Array, label: Any, signals: Signals) -> jax.Array:
        seen = Observation(
            label=label if "label" in model.knows else None,
            signals=signals if "signals" in model.sees else None,
        )
        return attack.guess(state, key, seen)

    def score(key: jax.Array, held: Shadows) -> np.ndarray:
        # a model at a time: an attack may hold [records, shadows] per model
        each = [
            one(
                state,
                jax.random.fold_in(key, i),
                held.label,
                jax.tree.map(lambda a, i=i: a[i], held.signals),
            )
            for i in range(len(held.member))
        ]
        return np.asarray(jax.device_get(each))

    return score


def _game(design: Design) -> Game:
    def bound(function: Any) -> Any:
        return lambda *given: function(design, *given)

    return Game(
        goal="membership",
        grants=frozenset({"signals", "label", "shadows", "init", "public"}),
        release=bound(release),
        account=bound(account),
        play=play,
        floor="coin",
        fits=bound(fits),
    )


IN_OUT = _game(membership_designs.in_out)
REPLACE_ONE = _game(membership_designs.replace_one)
