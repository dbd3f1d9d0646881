"""What theory says of one defense: dFIL, bounds, epsilon. No attack is involved."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from scipy import optimize, special  # scipy.stats takes half a second to import

from audit.accounting import bounds, rdp, reconstruction_robustness
from audit.accounting.finite_prior import FEWEST, finite_prior
from audit.accounting.traces import Probing
from audit.config import registry
from audit.config.compose import NOISE, Entry
from audit.config.schema import FisherReading
from audit.data.pool import originals
from audit.engine.precision import double
from audit.engine.program import Recipe
from audit.engine.shadow import Engine, Learner, sweep
from audit.errors import UserError
from audit.games.base import Problem, Table, repeated, take
from audit.mechanisms.output_perturbation import objective_of
from audit.models.smoothness import jumps
from audit.rng import stream
from audit.scorecard.claims import PublishedClaim, published_claims
from audit.types import (
    Adjacency,
    Bound,
    Defense,
    Examples,
    Iterative,
    Minimiser,
    Readings,
    Release,
    Splits,
    Task,
    TrainingSet,
)

STATISTICS: dict[str, Callable] = {"mean": np.mean, "median": np.median, "max": np.max}
_BRACKETS = 10  # powers of 4 among which the noise for an epsilon is looked for
MATRIX = 2**27  # entries of Fisher matrices' factors, at most: 1 GiB
PILOT = 4  # probes of the run that tells how many are needed
MARGIN = 1.3  # a spread of 4 probes is too small by that, squared: the median of chi^2
SAMPLE = 100  # records that tell the error of dFIL where one trajectory was asked for
POOL = 1000  # images per class of whose distances a bound is made, at most
ADJACENCIES: tuple[Adjacency, ...] = ("replace_one", "add_remove")


Losses = Callable[[Adjacency], Any]  # the privacy loss; None = there is no theorem


class Guarantees(NamedTuple):
    """All of it about one defense; None = no bound, never zero."""

    dfil: np.ndarray | None = None  # [targets] Tr I / d, mean over trajectories
    dfil_error: float | None = None  # relative s.e. of a target's; `relative_error`
    bounds: tuple[Bound, ...] = ()
    epsilon: dict[str, Any] | None = None
    rdp2: float | None = None  # Renyi divergence of order 2, replace-one
    eta: np.ndarray | None = None  # [targets] sqrt of the largest eigenvalue of I
    nominal: tuple[PublishedClaim, ...] = ()  # what the publication claims
    probed: Mapping[str, float] = MappingProxyType({})  # how traces were estimated
    rows: np.ndarray | None = None  # of the records accounted for; None = all
    arrays: Mapping[str, np.ndarray] = MappingProxyType({})  # more, for figures
    fields: Mapping[str, Any] = MappingProxyType({})  # more, of the card's row
    small_pool: str = ""  # which bound it is too small for, or ""
    releases: Any = None  # of the runs accounted for, where they are asked for


def joined(key: Array, learner: Learner, table: Table) -> Guarantees:
    """Account for runs on fixed + {target}: the law of the runs that are attacked."""
    splits = table.problem.splits
    # accounting is cheap and never stored
    engine = table.engine._replace(store=None, shrink=True)
    each = _trajectories(learner, table)
    records = TrainingSet(splits.fixed, repeated(splits.targets, each))
    n = len(splits.fixed.y)

    some = np.arange(min(SAMPLE, len(splits.targets.y)))
    pilot = TrainingSet(splits.fixed, take(splits.targets, some)), np.array([n])
    reading = TraceReading.planned(key, learner, table.fisher, *pilot, engine=engine)

    def read(method: str, *rows: Any) -> Any:
        """Return readings of every target's record: [targets, trajectories, ...]."""
        readings = reading(method, key, records, *rows, lanes=each, engine=engine)
        return jax.tree.map(lambda a: a.reshape(-1, each, *a.shape[1:]), readings)

    def again(some: np.ndarray) -> np.ndarray:
        """Return the traces of some targets along another trajectory [m, 1]."""
        data = TrainingSet(splits.fixed, take(splits.targets, some))
        other = stream(key, "error of dFIL")
        return reading("fisher", other, data, np.array([n]), engine=engine)[0]

    more: list[Bound] = []
    matrix = None
    if _has_matrix(learner, table, len(splits.targets.y) * each):
        matrix = read("information_matrix")
        readings = matrix.trace, None
        more.append(_matrix_bound(matrix))
    if matrix is None or table.fisher.lanczos:
        one = lambda method: jax.tree.map(_only, read(method, np.array([n])))
        readings = _readings(learner, table, one)
    guarantees = of_readings(learner, readings, table, splits.targets, n + 1)
    error = _error(learner, readings[0], again)
    prior_key = stream(key, "finite prior")
    prior, small_pool = _finite_prior(prior_key, learner, splits, engine)
    return guarantees._replace(
        bounds=(*guarantees.bounds, *more, *prior),
        dfil_error=error,
        probed=reading.probed,
        small_pool=small_pool,
    )


def _only(a: np.ndarray) -> np.ndarray:
    """Return readings [targets, trajectories, 1] of one record each without that 1."""
    return a[..., 0]


def reads(defense: Defense, reading: FisherReading) -> bool:
    """Return whether there is Fisher information, and somebody's is wanted."""
    return defense.fisher is not None and reading.anybody


def _has_matrix(learner: Learner, table: Table, lanes: int) -> bool:
    """Return whether the whole Fisher matrix is at hand, for little memory."""
    mechanism = learner.defense.mechanism
    if not isinstance(mechanism, Iterative) or not reads(learner.defense, table.fisher):
        return False
    if mechanism.query.closed_forms.information is None:
        return False
    if isinstance(mechanism.noise.precision, dict):  # each module has its own noise
        return False
    columns = mechanism.steps * (2 * learner.task.classes + 1)
    return bool(lanes * columns * np.prod(learner.task.features) <= MATRIX)


def _matrix_bound(matrix: Any) -> Bound:
    """Average the matrices [targets, trajectories, ...] of each target, then invert."""
    runs, steps, d, r = matrix.factor.shape[1:]
    factor = matrix.factor.reshape(-1, runs * steps, d, r)
    factor = factor.transpose(0, 2, 1, 3).reshape(len(factor), d, -1)
    blocks = matrix.core.reshape(-1, runs * steps, r, r) / runs
    core = np.einsum("tsij,sk->tsikj", blocks, np.eye(runs * steps))
    core = core.reshape(len(factor), runs * steps * r, -1)
    return bounds.cramer_rao_matrix(matrix.diagonal.mean(1), factor, core)


def in_turn(
    key: Array,
    learner: Learner,
    table: Table,
    columns: Any = None,
    *,
    released: bool = False,
) -> Guarantees:
    """Account for every fixed record, as the target in one training set of them all.

    Or for some of them, drawn at random, where `Table.fisher` says how many. `columns`
    of a record are what eta is about, None = the whole record; with columns, bounds on
    squared errors of the whole record are left out. If `released`, the runs accounted
    for are those that are released, and come with it. Of one such run dFIL is the
    information of its own steps, and probes are all its error.
    """
    fixed = table.problem.splits.fixed
    n, records = len(fixed.y), TrainingSet(fixed, None)
    engine = table.engine.few(1)
    if not engine.lanes.checkpoint:  # accounting is cheap, unless runs are long
        engine = engine._replace(store=None)
    runs = _trajectories(learner, table)
    drawn, accounted = table.fisher.records, np.arange(n)
    if drawn and drawn < n:
        rng = np.random.default_rng(drawn)  # the same records for every defense
        accounted = np.sort(rng.choice(n, drawn, replace=False))
    pilot = records, accounted[:: -(-len(accounted) // SAMPLE)]
    once: dict[str, Any] = {"engine": engine, "runs": 1}
    given = key, learner, table.fisher, *pilot
    reading = TraceReading.planned(*given, released=released, **once)

    def read(method: str) -> Any:
        """Return one reading of every record: [records, trajectories] each."""
        rows = (accounted, columns) if method == "fil" else (accounted,)
        more: dict[str, Any] = {"engine": engine, "runs": runs}
        readings = reading(method, key, records, *rows, **more)
        return jax.tree.map(np.transpose, readings)

    def again(some: np.ndarray) -> np.ndarray:
        """Return the traces of some records along another trajectory [m, 1]."""
        other = stream(key, "error of dFIL")
        return reading("fisher", other, records, accounted[some], **once)[0].T

    readings, squared = _readings(learner, table, read), columns is None
    some = take(fixed, accounted)
    guarantees = of_readings(learner, readings, table, some, n, squared=squared)
    error: float | None
    if released and runs == 1:
        error = reading.probed["probe_se"]
    else:
        error = _error(learner, readings[0], again)
    guarantees = guarantees._replace(
        dfil_error=error,
        probed=reading.probed,
        rows=None if len(accounted) == n else accounted,
        releases=reading.releases,
    )
    mechanism = learner.defense.mechanism
    if not isinstance(mechanism, Minimiser) or mechanism.anatomy is None:
        return guarantees
    with jax.enable_x64(True):
        arrays = jax.jit(mechanism.anatomy)(learner.side, double(records))
    return guarantees._replace(arrays={k: np.asarray(v) for k, v in arrays.items()})


def fisher(
    method: str,
    key: Array,
    learner: Learner,
    *data: Any,
    precise: bool = True,
    **more: Any,
) -> Any:
    """Return what `engine.shadow.sweep` does of a reading, in float64 by default."""
    what, key = f"{learner.label}: Fisher information", stream(key, "fisher")
    return sweep(method, learner, key, *data, what=what, precise=precise, **more)


class TraceReading:
    """Fisher information of one defense, read as a scenario's `fisher` says.

    `probed` says of it what the card shows: the number of `probes`, their part in the
    relative standard error of the median record's dFIL (`probe_se`), of how many steps
    one was accounted for (`every`), and the products for a step's spectral norm, if it
    is read (`lanczos`). Empty where the defaults are used. `releases` are those of the
    runs that were read last, if they are asked for.
    """

    def __init__(
        self,
        learner: Learner,
        wanted: FisherReading,
        probes: int | None,
        released: bool = False,
    ) -> None:
        self.learner, self.wanted, self.how = learner, wanted, None
        self.probed: dict[str, float] = {}
        self.releases: Release | None = None
        if probes is not None:
            more = wanted.every, wanted.lanczos, released
            self.how = Probing(wanted.estimator, probes, *more)
            self.probed = {"probes": float(probes), "every": float(wanted.every)}
            if wanted.lanczos:
                self.probed["lanczos"] = float(wanted.lanczos)

    @staticmethod
    def planned(
        key: Array,
        learner: Learner,
        wanted: FisherReading,
        data: TrainingSet,
        rows: np.ndarray,
        released: bool = False,
        **more: Any,
    ) -> TraceReading:
        """Return the reading with its number of probes, `auto` of one pilot run.

        `data` and `rows` are those of the pilot, `more` is as in `engine.shadow.sweep`.
        By the defaults of `fisher` no release is kept.
        """
        steps = isinstance(learner.defense.mechanism, Iterative)
        if wanted == FisherReading() or not steps or not reads(learner.defense, wanted):
            return TraceReading(learner, wanted, None)
        if wanted.probes != "auto":
            return TraceReading(learner, wanted, wanted.probes, released)
        if wanted.estimator in ("exact", "hutch++"):
            raise UserError(
                f"fisher.probes=auto: the error of {wanted.estimator} does not follow "
                f"from that of fewer probes; give a number"
            )
        pilot = TraceReading(learner, wanted, PILOT)
        pilot("fisher", stream(key, "pilot of probes"), data, rows, **more)
        needed = MARGIN * PILOT * (pilot.probed["probe_se"] / wanted.error) ** 2
        return TraceReading(learner, wanted, max(2, math.ceil(needed)), released)

    def __call__(
        self,
        method: str,
        key: Array,
        data: TrainingSet,
        *rows: Any,
        lanes: int = 1,
        **more: Any,
    ) -> Any:
        """Return what `fisher` does, by this reading's settings.

        Of the method `fisher`: Tr I, and the sum of each step's ||I||_2, or None. Where
        each lane has a record, so many lanes in a row are trajectories of one.
        """
        if method != "fisher":
            return fisher(method, key, self.learner, data, *rows, **more)
        if self.how is None:
            return fisher(method, key, self.learner, data, *rows, **more), None
        more["precise"] = self.wanted.precision == "double"
        read = fisher(method, key, self.learner, data, *rows, self.how, **more)
        if self.how.released:
            read, self.releases = read
        traces, variances = (  # [records, trajectories]
            a.reshape(-1, lanes) if a.shape[-1] == 1 else a.T
            for a in (read.trace, read.variance)
        )
        trace, error = traces.mean(1), np.sqrt(variances.sum(1)) / traces.shape[1]
        relative = error[trace > 0] / trace[trace > 0]
        self.probed["probe_se"] = float(np.median(relative)) if len(relative) else 0.0
        return read.trace, read.norm


def check_smooth(task: Task, wanted: FisherReading) -> None:
    """Refuse settings for a reading that does not exist.

    Raises:
      UserError: naming the layer, or what in the loss, has a slope that jumps.
    """
    if wanted == FisherReading() or not wanted.anybody or task.smooth:
        return
    params = jax.eval_shape(task.init, jax.random.key(0))
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), params)
    x = np.zeros(task.features, np.float32)
    label = np.zeros((), np.int32 if task.classes else np.float32)
    remedy = "smooth activations and average pooling"
    kinks = jumps(lambda x: task.logits(zeros, x), x)
    if not kinks:  # the network is smooth
        remedy = "a smooth loss"
        kinks = jumps(lambda x: task.loss(zeros, Examples(x, label)), x)
    why = "its `smooth` is False; "  # as its author says, who may know more
    if kinks:
        after = f" after {kinks[0].after}" if kinks[0].after else ""
        why = f"{kinks[0].name}{after}: {kinks[0].why}; take {remedy}, or "
    raise UserError(
        f"fisher: {task.name} has no Fisher reading: {why}leave the settings of "
        f"`fisher` out"
    )


def _trajectories(learner: Learner, table: Table) -> int:
    """Return how many differ: a minimiser has none, its Jacobian is always the same."""
    return 1 if objective_of(learner.defense) is not None else table.trajectories


def _readings(learner: Learner, table: Table, read: Callable) -> tuple[Any, Any]:
    """Return Tr I and ||I||_2, each [records, trajectories] or None."""
    mechanism = learner.defense.mechanism
    closed = isinstance(mechanism, Minimiser) and mechanism.fil is not None
    if closed and table.fisher.anybody:
        return read("fil")
    return read("fisher") if reads(learner.defense, table.fisher) else (None, None)


def _error(
    learner: Learner, traces: np.ndarray | None, again: Callable
) -> float | None:
    """Return the relative error of dFIL; of one trajectory alone nobody can tell it.

    Args:
      learner: what is accounted for.
      traces: [records, trajectories]; None = no dFIL.
      again: ([m] records) -> their traces along one more trajectory [m, 1].
    """
    if traces is None:
        return None
    if objective_of(learner.defense) is not None:  # no run differs, no trace is drawn
        return 0.0
    runs = traces.shape[1]
    if runs == 1:
        m = min(SAMPLE, len(traces))
        some = np.linspace(0, len(traces) - 1, m).astype(int)
        traces = np.concatenate([traces[some], again(some)], 1)
    return relative_error(traces, runs)


def relative_error(traces: np.ndarray, runs: int) -> float:
    """Return the standard error of a record's dFIL over the dFIL, median over records.

    It counts whatever differs from one trajectory to the next: where the parameters go,
    who takes part, and random probes. Few trajectories make a skewed spread, and the
    median is divided by that of its law for normal readings, so that it is right for
    two trajectories as for many.

    Args:
      traces: [records, trajectories], two trajectories or more.
      runs: of how many trajectories dFIL is the mean.
    """
    mean, freedom = traces.mean(1), traces.shape[1] - 1
    spread = traces.std(1, ddof=1) / np.where(mean > 0, mean, 1)
    typical = np.sqrt(special.chdtri(freedom, 0.5) / freedom)  # the median of chi^2
    return float(np.median(spread) / typical / np.sqrt(runs))


def of_readings(
    learner: Learner,
    readings: tuple[Any, Any],
    table: Table,
    records: Examples,
    n: int,
    *,
    squared: bool = True,
) -> Guarantees:
    """Turn readings of the Fisher information and the curves into bounds.

    The readings are Tr I and ||I||_2 of the records, each [records, trajectories] or
    None; `n` is the number of records of one run; `squared` says whether errors are
    squared ones of whole records, as bounds are.
    """
    traces, norms = readings
    problem, defense = table.problem, learner.defense
    trace = None if traces is None else traces.mean(1)
    dfil = None if trace is None else trace / problem.splits.fixed.x[0].size
    curve, loss = defense.rdp, _losses(defense, n)
    replace_one = curve and (lambda orders: curve(n, orders, "replace_one"))
    limits = without_bounds(learner, n, table.delta, loss)._replace(
        dfil=dfil,
        rdp2=order_two(replace_one),
        eta=None if norms is None else np.sqrt(norms.mean(1)),
    )
    if not squared:
        return limits
    if "reweighted" in defense.traits:  # the trace is not that of what is released
        trace = None
    bounds_here = _of_trace(trace, problem, records)
    bounds_here += _of_order_two(limits.rdp2, defense, problem, records)
    if len(problem.splits.targets.y):
        bounds_here += _of_losses(loss, defense, problem, records)
    pld = defense.pld and (lambda: loss("replace_one"))
    bounds_here += from_plug_ins(problem, trace, replace_one, pld)
    return limits._replace(bounds=tuple(bounds_here))


def _of_trace(
    trace: np.ndarray | None, problem: Problem, records: Examples
) -> list[Bound]:
    """Return the bounds that Tr I [records] gives."""
    if trace is None:
        return []
    splits = problem.splits
    limits = [bounds.cramer_rao(trace / splits.fixed.x[0].size)]
    if problem.task.classes:
        limits += _gaussian_prior(trace, records, splits)
    return limits


def _of_order_two(
    rdp2: float | None, defense: Defense, problem: Problem, records: Examples
) -> list[Bound]:
    """Return the bounds that the Renyi divergence of order 2 gives."""
    room, longest = problem.room, _max_norm(defense)
    if rdp2 is None or room is None:
        return []
    flat = np.asarray(records.x).reshape(len(records.y), -1)
    at = bounds.hammersley_chapman_robbins_at(rdp2, flat, room, longest)
    limits, ends = [], bounds.room_in_ball(room, flat.shape[1], longest)
    if ends is not None:
        limits.append(bounds.hammersley_chapman_robbins(rdp2, ends))
    return [*limits, at._replace(ranked=False)]


def _max_norm(defense: Defense) -> float:
    """Return how long a record may be; inf = as long as the domain allows."""
    mechanism = defense.mechanism
    accepts = mechanism.accepts if isinstance(mechanism, Minimiser) else None
    if accepts is None or accepts.max_norm is None:
        return math.inf
    return accepts.max_norm


def _losses(defense: Defense, n: int) -> Losses:
    """Return adjacency -> the privacy loss of all releases, made once; None = none."""
    loss = defense.pld
    return functools.cache(lambda adjacency: loss and loss(n, adjacency))


def _of_losses(
    loss: Losses, defense: Defense, problem: Problem, records: Examples
) -> list[Bound]:
    """Return the bounds that a privacy loss gives; none without one that is finite."""
    replaced, removed = loss("replace_one"), loss("add_remove")
    domain = problem.task.domain
    limits: list[Bound] = []
    corner = math.sqrt(records.x[0].size) * max(map(abs, domain))
    accepted = np.isfinite(corner) and corner <= _max_norm(defense)
    if replaced is not None and accepted:
        if not isinstance(replaced, rdp.GaussianPrivacy):
            limits += bounds.two_point_of(replaced, domain)
        elif np.isfinite(replaced.mu):
            limits += bounds.two_point(replaced.mu, domain)
    reference = replaced if removed is None else removed
    if reference is not None and problem.task.classes:
        limits.append(_reconstruction_robustness(reference, problem.splits, records))
    return limits


def _reconstruction_robustness(loss: Any, splits: Splits, records: Examples) -> Bound:
    """Weigh the bounds of the classes, each with its own pool as the prior."""
    pool, labels = originals(splits)
    total, bound = 0.0, None
    for label in np.unique(records.y):
        x = np.asarray(pool)[labels == label][:POOL]
        blind = np.arange(1, len(x)) / len(x)
        radii = reconstruction_robustness.blind_radii(x)
        bound = reconstruction_robustness.as_bound(radii, blind, loss)
        total += float((np.asarray(records.y) == label).mean() * bound.value)
    assert bound is not None
    return bound._replace(value=np.asarray(total))


def order_two(curve: Callable | None) -> float | None:
    """Return a Renyi curve's divergence of order 2; None where it is not finite."""
    values = None if curve is None else curve(np.array([2.0]))
    return None if values is None or not np.isfinite(values).all() else float(values[0])


def from_plug_ins(problem: Problem, trace: Any, rdp: Any, pld: Any) -> list[Bound]:
    """Return the bounds of plug-ins that apply; the last three as in `Readings`."""
    splits, domain = problem.splits, problem.task.domain
    size, pool = splits.fixed.x[0].size, originals(splits)
    readings = Readings(size, domain, trace, rdp, pld, pool)
    each = [bound(readings) for bound in problem.bounds]
    return [b for b in each if b is not None]


def _gaussian_prior(
    traces: np.ndarray, records: Examples, splits: Splits
) -> list[Bound]:
    """Van Trees for a Gaussian prior per class, its covariance that of the pool.

    Records may be easier or harder than the pool. The bound is multiplied by the
    floor's error on them over its expected error, so that it never exceeds the floor.

    A class with fewer than two pool records has no covariance. It is taken for 0, and
    so are its bound and its floor: a floor without an expectation would lift the rest.
    """
    pool, pool_labels = originals(splits)
    total = floor = expected = 0.0
    bound = None
    for label in np.unique(records.y):
        chosen = np.asarray(records.y == label)
        x, scored = pool[pool_labels == label], np.asarray(records.x)[chosen]
        x, scored = (a.reshape(len(a), -1).astype(np.float64) for a in (x, scored))
        if len(x) < 2:
            continue
        # of one feature `cov` makes a number
        variances = np.linalg.eigvalsh(np.atleast_2d(np.cov(x, rowvar=False)))
        bound = bounds.van_trees(traces[chosen].mean(), np.maximum(variances, 0))
        total += chosen.mean() * float(bound.value)
        floor += chosen.mean() * ((scored - x.mean(0)) ** 2).mean()
        # a fresh record is further from the mean than those the mean was taken of
        expected += chosen.mean() * variances.mean() * (1 + 1 / len(x))
    ratio = floor / expected if expected > 0 else 1.0
    return [] if bound is None else [bound._replace(value=np.asarray(total * ratio))]


def _finite_prior(
    key: Array, learner: Learner, splits: Splits, engine: Engine
) -> tuple[list[Bound], str]:
    """Estimate the Bayes risk over the pool's originals of the target's class.

    The text says why there is none, where the pool is too small.
    """
    if learner.defense.log_likelihood is None:
        return [], ""
    candidates, targets = originals(splits), splits.targets
    records, what = TrainingSet(splits.fixed, targets), f"{learner.label}: finite prior"
    more: dict[str, Any] = {"engine": engine, "what": what, "precise": True}
    ratios = sweep("log_likelihood", learner, key, records, candidates, **more)
    m, t = len(candidates.y), len(targets.y)
    flat = candidates.x.reshape(m, -1), targets.x.reshape(t, -1)
    alike = targets.y[:, None] == candidates.y[None, :]
    risk = finite_prior(ratios[:, :m], ratios[:, m], *flat, alike)
    if risk is None:
        return [], f"no finite prior: no class of the pool has {FEWEST} images"
    return [risk], ""


def without_bounds(
    learner: Learner, n: int, delta: float, loss: Losses | None = None
) -> Guarantees:
    """Return epsilon for n records, and what the defense's publication claims.

    `loss` are the privacy losses, where they are at hand already.
    """
    name = learner.recipe.factory.__name__
    claims = published_claims(name, learner.settings, learner.task, n)
    readings = epsilon(learner.defense, n, delta, loss)
    return Guarantees(epsilon=readings, nominal=claims)


def calibrated(entry: Entry, task: Task, n: int, delta: float) -> Entry:
    """Return an entry whose noise multiplier gives its `target_epsilon`, if it has one.

    Epsilon is replace-one, for n records at `delta`, of the accountant that says least.
    It is at most the target, and as near to it as the accountant's rounding allows.

    Raises:
      UserError: if no accountant has a theorem, or no noise will do.
    """
    target = entry.target_epsilon
    if target is None:
        return entry
    recipe = Recipe(registry.find("defense", entry.name), task, ())
    where = f"defense.{entry.label}"

    def excess(log_noise: float) -> float:
        settings = entry.settings | {NOISE: math.exp(log_noise)}
        readings = epsilon(recipe.build(settings), n, delta)
        values = readings["replace_one"] if readings else {}
        finite = [v for k, v in values.items() if v is not None]
        if not finite:
            raise UserError(f"{where}.target_epsilon={target}: no accountant has one")
        return math.log(max(min(finite), 1e-300) / target)

    step = math.log(4) if excess(0.0) > 0 else -math.log(4)
    for i in range(_BRACKETS):
        near, far = i * step, (i + 1) * step
        if (excess(far) > 0) != (step > 0):
            break
    else:
        most = math.exp(step * _BRACKETS)
        raise UserError(
            f"{where}.target_epsilon={target}: no {NOISE} from 1 to {most:.3g} gives it"
        )
    root = optimize.brentq(excess, near, far, xtol=1e-6)
    while excess(root) > 0:
        root += 1e-6
    return entry._replace(settings=entry.settings | {NOISE: math.exp(root)})


def epsilon(
    defense: Defense, n: int, delta: float, losses: Losses | None = None
) -> dict[str, Any] | None:
    """Account for epsilon at `delta`, both adjacencies, every accountant that can.

    `tight` is the privacy-loss distribution (exact for full-batch Gaussian noise),
    `rdp` the conversion of the Renyi curve. None where no accountant has a theorem.
    """
    if defense.rdp is None and defense.pld is None:
        return None
    values: dict[str, Any] = {"delta": delta}
    losses = losses or _losses(defense, n)
    for adjacency in ADJACENCIES:
        curve = None if defense.rdp is None else defense.rdp(n, rdp.ORDERS, adjacency)
        loss = losses(adjacency)
        if curve is not None and not np.isfinite(curve).all():
            curve = None
        values[adjacency] = {
            "rdp": None if curve is None else rdp.epsilon(rdp.ORDERS, curve, delta),
            "tight": float(loss.get_epsilon_for_delta(delta)) if loss else None,
        }
    return values
