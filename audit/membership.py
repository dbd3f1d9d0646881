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

from audit import accounting, designs, games, intervals, rdp, roc, shadow, tradeoff
from audit.accounting import Guarantees
from audit.batches import gathered
from audit.designs import Design
from audit.games import Game, Runs, Table
from audit.rng import stream
from audit.signals import Shadows, Signals, of_release, with_release
from audit.types import Attack, Lanes, Observation, Release, TrainingSet, UserError

DELTAS = np.geomspace(1e-12, 0.1, 45)  # at which a Renyi curve is read
CURVE = np.geomspace(1e-5, 1, 151)  # false-positive rates at which a ROC is kept


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

    def made(name: str, models: int, then: Any) -> tuple[np.ndarray, Any]:
        member = design.member(stream(key, f"{name}: coins"), models, n)
        lanes = table.engine.lanes
        engine = table.engine._replace(
            lanes=lanes._replace(tile=min(lanes.tile, models))
        )
        kept = shadow.sweep(
            "train",
            of,
            stream(key, name),
            TrainingSet(splits.fixed, None, design.rows(member)),
            splits.fixed,
            splits.pool,
            np.zeros(asked.queries, np.int32),
            engine=engine,
            what=f"{of.label}: {name}",
            then=then,
        )
        return member, kept

    label = np.asarray(splits.fixed.y)
    member, (releases, seen) = made("target models", table.runs, with_release)
    targets = Shadows(member, label, seen)
    others = []
    for name, models in (
        ("shadow models", asked.shadows),
        ("calibration models", asked.calibration),
    ):
        member, seen = made(name, models, of_release)
        others.append(Shadows(member, label, seen))
    return Runs(releases, looked=Looked(targets, *others))


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
        accounting.epsilon(of, design.slots(n), delta),
        nominal=of.defense.nominal(design.slots(n)) if of.defense.nominal else (),
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
    del releases, held  # attackers are shown what the models say
    if table.made is None:  # the floor is asked for before anything is released
        return {}, {"wrong": np.full(len(table.problem.splits.fixed.y), 0.5)}
    looked, model = _looked(table), attack.threat_model
    knowledge = games.grant(model, of, table.problem.splits, table.engine)
    if "shadows" in model.knows:
        knowledge = knowledge._replace(shadows=looked.references)
    state, info = attack.fit(stream(key, "fit"), knowledge)
    scored = _scorer(attack, state)
    on_targets = scored(stream(key, "guess"), looked.targets)
    on_shadows = scored(stream(key, "calibrate"), looked.calibration)
    result, arrays = rates(on_targets, looked.targets, on_shadows, looked.calibration)
    return {**result, "fit": info}, arrays


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


def rates(
    scores: np.ndarray, of: Shadows, on_shadows: np.ndarray, shadows: Shadows
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rates of one attack, and its per-record arrays.

    Scores of all models and records are pooled: one threshold for all. The AUC's
    interval takes records as what is independent; the intervals of rates are
    Clopper-Pearson on the counts, as if every score were.

    Args:
      scores: [runs, records] on target models.
      of: who is a member of which.
      on_shadows: [models, records] on calibration models.
      shadows: who is a member of which.
    """
    members, others = scores[of.member], scores[~of.member]
    chosen = on_shadows[shadows.member], on_shadows[~shadows.member]
    ids = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    clusters = ids[of.member], ids[~of.member]
    seen = roc.summarise(members, others, shadows=chosen, clusters=clusters)
    told = scores > seen.accuracy[0].threshold
    wrong = (told != of.member).mean(0)
    curve = roc.roc(members, others)
    at = np.searchsorted(curve.fpr, CURVE, side="right") - 1
    result = {
        "auc": seen.auc._asdict(),
        "success": float(1 - wrong.mean()),
        "accuracy": [a._asdict() for a in seen.accuracy],
        "fprs": list(roc.FPRS),
        "operating": {
            "shadows": [_plain(o) for o in seen.operating[: len(roc.FPRS)]],
            "targets": [_plain(o) for o in seen.operating[len(roc.FPRS) :]],
        },
        "members": seen.members,
        "nonmembers": seen.nonmembers,
        "targets": scores.shape[1],
        "runs": len(scores),
    }
    arrays = {"wrong": wrong, "fpr": curve.fpr[at], "tpr": curve.tpr[at]}
    return result, arrays | {"scores": scores.astype(np.float32), "member": of.member}


def _plain(point: roc.Operating | str) -> Any:
    if isinstance(point, str):
        return point
    fields = {**point._asdict()}
    for name in ("tpr", "fpr"):
        fields[name] = {**fields[name]._asdict(), "value": fields[name].value}
    return fields


def compared(trials: list[Any]) -> list[Any]:
    """Add every attack's AUC minus that of `loss_threshold` on the same scores.

    The records' scores are dropped: rows keep rates.
    """

    def groups(t: Any) -> Any:
        scores, member = t.arrays["scores"], t.arrays["member"]
        return scores[member], scores[~member]

    plain = {
        t.defense: t
        for t in trials
        if t.attack.name == "loss_threshold" and "scores" in (t.arrays or {})
    }

    def add(t: Any) -> Any:
        if "scores" not in (t.arrays or {}):
            return t
        result, base = dict(t.result), plain.get(t.defense)
        if base is not None and t.attack.name != "loss_threshold":
            member = t.arrays["member"]
            ids = np.broadcast_to(np.arange(member.shape[1]), member.shape)
            found = roc.auc_difference(
                groups(t), groups(base), clusters=(ids[member], ids[~member])
            )
            result["over_loss_threshold"] = found._asdict()
        kept = {k: v for k, v in t.arrays.items() if k not in ("scores", "member")}
        return t._replace(result=result, arrays=kept)

    return [add(t) for t in trials]


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


IN_OUT = _game(designs.in_out)
REPLACE_ONE = _game(designs.replace_one)
