"""The contracts of the suite: NamedTuples, Protocols and aliases, and nothing else.

Every array field says its shape. Leading axes are batch axes; one example has none.
What a function takes and returns stands in the docstring of its Protocol's `__call__`.
Nothing is imported at run time but typing, so that the command line can read a
plug-in's settings without loading JAX.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

from annotated_types import Ge, Gt, Interval

if TYPE_CHECKING:
    from jax import Array

    AnyArray = Any  # a NumPy or JAX array; inside a transformation, a tracer

# A factory's annotations are the schema of its settings. Integers, strings and booleans
# are static (a new value compiles anew); floats are traced.
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(gt=0, le=1)]
Share = Annotated[float, Interval(gt=0, lt=1)]
Count = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
Seed = Annotated[int, Interval(ge=0, lt=2**32)]

Adjacency = Literal["replace_one", "add_remove"]
Optimizer = Literal["sgd", "momentum", "half_momentum", "adam"]
Sampling = Literal["full", "uniform", "poisson", "shuffled"]
Clipping = Literal["soft", "hard"]
Updates = Any  # a pytree shaped like the parameters
Side = Any  # whatever `prepare` made from public data, a pytree

# What an attack may assume of a defense. Any other word is an error (`Recipe.build`).
Trait = Literal[
    "exact",  # runs in float64
    "full_batch",  # every record takes part in every step
    "gaussian",  # its noise is an isotropic Gaussian
    "glm",  # releases a generalised linear model
    "linear",  # trains a model whose logits are affine in the record
    "noiseless",  # gives the same release every time
    "noisy",  # the density of its noised updates is known
    "noisy_sgd",  # was built by `noisy_sgd`
    "reweighted",  # weighs records by all of them; its Fisher reading leaves that out
    "rows",  # reads `TrainingSet.rows` itself, empty slots included
    "stationary",  # releases a minimiser, up to noise
    "sum",  # releases a noised sum of clipped records
    "unaccounted",  # nothing is known but how it trains: no reading, defended or not
]
TRAITS: frozenset[str] = frozenset(typing.get_args(Trait))


class Lanes(NamedTuple):
    """Settings that cost or save time and cannot change the mathematics."""

    tile: Count = 512  # lanes under one vmap; part of the store key (rounding)
    memory_gib: Positive = 2.0  # what all tiles in flight may take together
    # steps after which the state of a run may be saved; 0 = it is computed in one piece
    checkpoint: NonNegativeInt = 0


# Records ------------------------------------------------------------------------------


class Examples(NamedTuple):
    """Records. Whether `y` is private is a field of `Task`."""

    x: AnyArray  # [..., *features] in [0, 1], or the task's stated domain
    y: AnyArray  # [...] integer (class) or float


class Public(NamedTuple):
    """What everybody knows before anything private is touched."""

    records: Examples  # [p, ...] anyone may use; may be none
    params: Any  # where every run starts: initialised, then pre-trained on the records


class TrainingSet(NamedTuple):
    """What one run trains on; `vmap` it with `in_axes=TrainingSet(None, 0, None)`."""

    fixed: Examples  # [N, ...] records shared by all lanes, never copied per lane
    target: Examples | None  # the one unknown record, slot N; None in half-in designs
    rows: AnyArray | None = None  # [n] fixed records this lane trains on; None = all;
    # -1 = an empty slot, which takes part with weight 0


class Splits(NamedTuple):
    """Pairwise disjoint sets of records, checked when they are made."""

    public: Examples  # anyone may use: pre-training, masks
    fixed: Examples  # what the informed adversary knows
    targets: Examples  # the records to be rebuilt, one per run
    pool: Examples  # the adversary's prior: originals first, then augmented copies
    test: Examples  # utility
    pool_source: AnyArray  # [pool] index of the original that a row comes from


class Mixture(NamedTuple):
    """A published law of records x: in each class a mixture of Gaussians, unclipped."""

    weights: AnyArray  # [C, K] of the components; a row adds up to 1
    means: AnyArray  # [C, K, d]
    covariances: AnyArray  # [C, d, d] of every component of the class, not singular


# What is learnt -----------------------------------------------------------------------


class TaskLoss(Protocol):
    def __call__(self, params: Any, example: Examples, /) -> Array:
        """Return the loss [] of one example, differentiable in `params`."""


class TaskLogits(Protocol):
    def __call__(self, params: Any, x: Any, /) -> Array:
        """Return the logits [classes] of one x [*features], or [1] for numbers."""


class TaskInit(Protocol):
    def __call__(self, key: Array, /) -> Any:
        """Return fresh parameters, a pytree with one entry per module."""


class Task(NamedTuple):
    """What is learnt. Functions and constants only: hashable, so it may be static."""

    name: str  # model and shapes in words; part of the store key
    loss: TaskLoss
    logits: TaskLogits
    init: TaskInit
    features: tuple[int, ...]  # shape of one x
    classes: int  # labels 0 .. classes - 1; 0 = labels are numbers
    domain: tuple[float, float] = (0.0, 1.0)
    label_private: bool = False
    linear: Any = None  # (params -> affine.Head, Head -> params) if logits are affine
    smooth: bool = True  # gradients are continuous in x; False = no Fisher reading
    dense: Any = None  # dense.Stack, where every parameter is a layer's
    notes: tuple[str, ...] = ()  # what a card says of a model that is not the suite's


# The three parts of a mechanism -------------------------------------------------------


class Batch(NamedTuple):
    """Who takes part in one step. The target is row N."""

    rows: Array | None  # [b] rows into (fixed, target); None = everybody, no gather
    weight: Array | None  # [b] or [n], 0 = does not take part; None = all ones


class Contribution(Protocol):
    def __call__(self, params: Any, side: Side, example: Examples, /) -> Updates:
        """Return one example's contribution, differentiable in `example.x`."""


class ContributionParts(Protocol):
    def __call__(self, params: Any, side: Side, example: Examples, /) -> tuple:
        """Return the masked gradient, and what is added to it; None = nothing."""


class WeightedTotal(Protocol):
    def __call__(
        self, params: Any, side: Side, examples: Examples, weight: Any, /
    ) -> Updates:
        """Return sum_i w_i fn(z_i) of examples [b]; weights [b], None = all ones."""


class ContributionTrace(Protocol):
    def __call__(self, params: Any, side: Side, examples: Examples, /) -> Array:
        """Return ||d fn / d x||_F^2 of each example [m]."""


class ContributionMotion(Protocol):
    def __call__(
        self, params: Any, side: Side, examples: Examples, directions: Array, /
    ) -> Array:
        """Return ||(d fn / d x) u||^2 of each example [m] along directions [m, d]."""


class ContributionScore(Protocol):
    def __call__(
        self, params: Any, side: Side, examples: Examples, update: Updates, /
    ) -> tuple[Array, Array]:
        """Return <update, fn(z)> and ||fn(z)||^2 of each example, each [m]."""


class Span(NamedTuple):
    """Contributions u_i of examples [m] as vectors, of which nobody holds one."""

    gram: Array  # [m, m] <u_i, u_j>
    inner: Callable  # (updates) -> <update, u_i> [m]
    combine: Callable  # (coefficients [m]) -> sum_i c_i u_i, like the updates


class ContributionSpan(Protocol):
    def __call__(self, params: Any, side: Side, examples: Examples, /) -> Span:
        """Return the span of fn(z) [m]; the side has no mask and no offset."""


class ContributionInformation(Protocol):
    def __call__(self, params: Any, side: Side, examples: Examples, /) -> tuple:
        """Return D [m, d], U [m, d, r], S [m, r, r]: J^T J = diag(D) + U S U^T.

        J = d fn / d x of each example [m], flat.
        """


class ClosedForms(NamedTuple):
    """Faster ways to what a query's `fn` defines; laws hold each against `fn`."""

    total: WeightedTotal | None = None
    trace: ContributionTrace | None = None
    score: ContributionScore | None = None
    information: ContributionInformation | None = None
    motion: ContributionMotion | None = None
    span: ContributionSpan | None = None
    part: int | None = None  # examples that `total` takes at a time; None = all
    span_part: int | None = None  # that `span` takes, at most


class Query(NamedTuple):
    """One example's contribution to what is released.

    `fn` is both what training sums and what accounting differentiates, so that what is
    trained is what is accounted.
    """

    fn: Contribution
    norm_bound: Any  # sup ||fn(z)||_2: the add-or-remove sensitivity; inf = unbounded
    sensitivity: Any  # sup ||fn(z) - fn(z')||_2: the replace-one sensitivity
    smooth: bool = True  # differentiable everywhere; False = no Fisher reading
    parts: ContributionParts | None = None  # None = it is not a clipped gradient
    closed_forms: ClosedForms = ClosedForms()


class Draw(Protocol):
    def __call__(self, run_key: Array, t: Any, n: int, /) -> Batch:
        """Return who takes part in step `t`; `n` records in all, the target included.

        The batch is a function of key and step alone; `run_key` is that of the run.
        """


class Denominator(Protocol):
    def __call__(self, n: int, /) -> float:
        """Return the public size of a batch; the expected size under Poisson."""


class Amplification(Protocol):
    def __call__(self, noise: Noise, query: Query, n: int, /) -> Any:
        """Return the factor on every record's trace, in the batch or not."""


class SampledRenyi(Protocol):
    def __call__(
        self,
        noise: Noise,
        query: Query,
        n: int,
        steps: int,
        orders: AnyArray,
        adjacency: Adjacency,
        /,
    ) -> AnyArray | None:
        """Return the divergence at every order [orders]; None = there is no theorem."""


class SampledLoss(Protocol):
    def __call__(
        self, noise: Noise, query: Query, n: int, steps: int, adjacency: Adjacency, /
    ) -> Any:
        """Return what reads like dp-accounting's PrivacyLossDistribution, or None."""


class BatchSchedule(Protocol):
    def __call__(self, run_key: Array, steps: int, n: int, /) -> Batch:
        """Return what `draw` gives at every step, stacked: leading axis `steps`."""


class Sampler(NamedTuple):
    """Who takes part in a step, and what that is worth in accounting.

    `n` is the public number of records, the target included.
    """

    draw: Draw
    denominator: Denominator
    fisher_factor: Amplification | None  # None = no amplification: a record's factor
    # is its weight in the batch
    rdp: SampledRenyi
    pld: SampledLoss
    schedule: BatchSchedule | None = None  # where one batch costs as much as all
    # a record is in every step, or in each by a coin of its own; None = neither
    presence: Literal["certain", "independent"] | None = None


class NoiseSample(Protocol):
    def __call__(self, key: Array, vector: Any, many: Any = 1, /) -> Any:
        """Return the noised vector, a pytree of the same shape.

        `many`, how many records take part, is given only where `Noise.at` is "batch".
        """


class NoiseRenyi(Protocol):
    def __call__(self, orders: AnyArray, sensitivity: Any, /) -> AnyArray:
        """Return the divergence [orders] between vectors `sensitivity` apart."""


class LogDensity(Protocol):
    def __call__(self, contribution: Any, drawn: Any, /) -> Array:
        """Return log p(drawn | contribution) [], up to a constant."""


class NoiseLoss(Protocol):
    def __call__(self, releases: int, share: float, /) -> Any:
        """Return that of a record that is in each release with probability `share`."""


class NoiseSampleSum(Protocol):
    def __call__(self, key: Array, weight: Array, span: Span, like: Any, /) -> Any:
        """Return sum_i w_i y_i, a pytree like `like`: y_i as `sample` draws around u_i.

        Weights [m]; the u_i are those of the span.
        """


class NoiseLaw(NamedTuple):
    """What is known exactly of one draw."""

    log_density: LogDensity | None = None
    pld: NoiseLoss | None = None  # replace-one; None also for a Gaussian, whose
    # privacy loss follows from `Noise.stddev`
    sample_sum: NoiseSampleSum | None = None  # of many at once; None = one by one
    variance: Any = None  # mean over the entries of a draw; None = not known


class Noise(NamedTuple):
    """What is added to a sum, or put in place of a contribution."""

    sample: NoiseSample
    precision: Any  # Fisher information per unit squared motion, or {module: of it};
    # None = no noise, or no reading
    stddev: Any = None  # of an isotropic Gaussian; None for any other law
    rdp: NoiseRenyi | None = None
    at: Literal["sum", "example", "batch"] = "sum"  # one draw for the sum; one for each
    # example; one for a batch, which shows its size. The last two are replace-one
    law: NoiseLaw = NoiseLaw()


# The waist ----------------------------------------------------------------------------


class StepView(NamedTuple):
    """One step as the accounting sees it; nobody outside the learner gets all of it."""

    params: Any  # before the step
    side: Side  # what the step's query used
    update: Updates  # the noised sum that the step applied
    batch: Batch
    t: Array  # [] step number, from 0
    known: Updates = None  # the known records' sum; None where each has its own noise


class State(NamedTuple):
    """The learner between two steps."""

    params: Any
    optimizer: Any
    side: Side
    t: Array


class Release(NamedTuple):
    """What leaves the learner."""

    params: Any  # final parameters, or whatever the mechanism publishes


class StartRun(Protocol):
    def __call__(self, key: Array, side: Side, /) -> State:
        """Return the state before the first step."""


class TakeStep(Protocol):
    def __call__(
        self, key: Array, state: State, data: TrainingSet, /
    ) -> tuple[State, StepView]:
        """Return the next state, and what the step did; `key` is that of the run."""


class SideOfStep(Protocol):
    def __call__(self, params: Any, side: Side, t: Any, /) -> Side:
        """Return the side of step `t`, from parameters and public data alone."""


class Refresh(NamedTuple):
    """How a side follows the steps; and passes over all public records to fit it."""

    side: SideOfStep
    first_passes: float = 0.0  # those that `prepare` makes once, for all runs
    passes: float = 0.0  # those of each run
    # (key, Public) -> the `PublicFit` of `prepare`, whose pass and whose query plans
    # time; None = constants are fitted, whose passes read what is kept of the records
    fit: Callable | None = None


class Steps(NamedTuple):
    """The noised steps of one run, for who knows all records but one."""

    params: Any  # [T] before each step
    update: Updates  # [T] the noised sum
    rest: Updates  # [T] the same less the known records: the target's part, and noise


class Alignment(NamedTuple):
    """What the noised steps of one run say of every candidate; others are known."""

    inner: AnyArray  # [M] sum over steps of <rest, contribution>
    square: AnyArray  # [M] sum over steps of ||contribution||^2
    ratio: AnyArray  # [M] log p(transcript | candidate), less what all share


class Iterative(NamedTuple):
    """A mechanism that takes noised steps: what `noisy_sgd` made a defense of."""

    query: Query
    sampler: Sampler
    noise: Noise
    init: StartRun
    step: TakeStep
    steps: int  # how many `train` takes
    refresh: Refresh | None = None  # None = the side stays as it was prepared


class Objective(NamedTuple):
    """What a stationary release minimises, apart from its noise. Public.

    sum_i weight_i loss(params; z_i) + (ridge / 2) ||params||^2
    """

    gradient: Callable  # (params, example) -> one record's loss gradient [D]
    total: Callable  # (params, Examples [m], weight [m]) -> sum_i w_i gradient_i [D]
    ridge: Callable  # (n) -> factor of the regulariser
    weights: Callable  # (side, Examples [n]) -> [n], taken as known to everybody
    known: Callable  # (side, Examples [n]) -> what `refit` shares between records
    refit: Callable  # (known, row, example) -> params with the record in `row` replaced
    loss: Literal["linear", "logistic"]
    intercept: bool  # the last parameter weighs a constant feature


class Solve(Protocol):
    def __call__(self, side: Side, data: TrainingSet, /) -> Any:
        """Return the release without its noise, differentiable in the target's x."""


class Publish(Protocol):
    def __call__(self, key: Array, params: Any, /) -> Any:
        """Return `params` with the noise that `train` adds under the same key."""


class InformationLoss(Protocol):
    def __call__(
        self,
        key: Array,
        side: Side,
        data: TrainingSet,
        rows: Any,
        columns: Any = None,
        /,
    ) -> tuple[Array, Array]:
        """Return Tr I and the spectral norm of I about the records at `rows` [m].

        The norm is about the features at `columns` alone where these are given.
        """


class CheckRecords(Protocol):
    def __call__(self, records: Examples, targets: Examples, /) -> None:
        """Raise ValueError, which names the remedy, if there is no one minimiser.

        Or if a record or a target, which joins them, is too long.
        """


class Accepted(NamedTuple):
    """Which records a mechanism takes. Public."""

    check: CheckRecords
    max_norm: float | None = None  # of a record; None = whatever the domain allows


class Anatomy(Protocol):
    def __call__(self, side: Side, data: TrainingSet, /) -> dict[str, Array]:
        """Return named arrays of one training set."""


class Minimiser(NamedTuple):
    """A mechanism that releases once: a function of the whole set, plus noise."""

    solve: Solve
    publish: Publish
    noise: Noise
    objective: Objective | None = None  # what `solve` minimises; None = nothing public
    fil: InformationLoss | None = None  # None = no bound
    accepts: Accepted | None = None  # None = any records will do
    anatomy: Anatomy | None = None


class Prepare(Protocol):
    def __call__(self, key: Array, public: Public, /) -> Side:
        """Return the side from public data alone; called once, shared by all lanes."""


class Train(Protocol):
    def __call__(self, key: Array, side: Side, data: TrainingSet, /) -> Release:
        """Return what the run releases: a pure function that can be vmapped."""


class Predict(Protocol):
    def __call__(self, side: Side, release: Release, x: Any, /) -> Array:
        """Return logits [m, classes] of x [m, *features]; [m, 1] for numbers."""


class FisherTrace(Protocol):
    def __call__(
        self, key: Array, side: Side, data: TrainingSet, rows: Any, /
    ) -> Array:
        """Return Tr I about the records at `rows` [m] along the run of `key`: [m].

        That of noised steps takes a further `accounting.traces.Probing`, and returns
        `Traced` then.
        """


class LogLikelihood(Protocol):
    def __call__(
        self, key: Array, side: Side, data: TrainingSet, candidates: Examples, /
    ) -> Array:
        """Return [m + 1]: log p(transcript of `key` | candidate), the target last.

        What all candidates share is left out.
        """


class RenyiCurve(Protocol):
    def __call__(self, n: int, orders: AnyArray, adjacency: Adjacency, /) -> Any:
        """Return the divergence [orders] for n records; None = there is no theorem."""


class LossDistribution(Protocol):
    def __call__(self, n: int, adjacency: Adjacency, /) -> Any:
        """Return what reads like dp-accounting's PrivacyLossDistribution, or None."""


class Defense(NamedTuple):
    """The thin waist: all that the audit knows of a training algorithm.

    None in an accounting field means "no bound", never zero.
    """

    prepare: Prepare
    train: Train
    predict: Predict | None  # None = what it releases is no model that predicts
    fisher: FisherTrace | None
    log_likelihood: LogLikelihood | None
    rdp: RenyiCurve | None  # data-independent
    pld: LossDistribution | None  # data-independent
    traits: frozenset[Trait] = frozenset()
    mechanism: Iterative | Minimiser | None = None  # None = neither; nothing is known


# The other side -----------------------------------------------------------------------


class ThreatModel(NamedTuple):
    """Who the attacker is. The referee grants exactly the words given here."""

    goal: Literal[
        "reconstruction", "inversion", "membership", "attribute", "identification"
    ]
    sees: frozenset[str] = frozenset()  # of {"params", "signals"}; oracles: {"target"}
    # of {"fixed", "label", "init", "train", "replay", "public", "shadows"}
    knows: frozenset[str] = frozenset()
    assumes: frozenset[Trait] = frozenset()  # a defense without them is skipped


class Attribute(NamedTuple):
    """What an attribute game is about."""

    columns: AnyArray  # [s] of the flat record
    values: AnyArray  # [v, s] what they can be; public


class StepLaw(NamedTuple):
    """How a record enters a step: its contribution, plus isotropic Gaussian noise."""

    contribution: Contribution
    stddev: Any  # [] of the noise
    sides: Callable  # (params [T]) -> the side of every step [T]
    steps: int  # T


class Replay(Protocol):
    def __call__(self, example: Examples, /) -> Any:
        """Return the params that the run releases with this record for the target.

        It has no randomness, and JAX traces and differentiates it. A pytree.
        """


class TrainLikeDefense(Protocol):
    def __call__(self, key: Array, data: TrainingSet, /) -> Release:
        """Return one release per target [m] of `data`, under the attacker's own key."""


class Knowledge(NamedTuple):
    """What an attacker holds before the release; what it did not declare is None."""

    task: Task
    pool: Examples  # [m, ...] samples of the attacker's prior
    pool_source: AnyArray  # [m] which original image a pool row comes from
    fixed: Examples | None = None
    init: Any = None  # the parameters every run starts from
    public: Examples | None = None
    train: TrainLikeDefense | None = None
    shadow_key: Any = None  # all attackers train their shadow models under it, so that
    # they share them
    noiseless: bool | None = None  # whether nothing random enters a run
    replay: Replay | None = None
    objective: Objective | None = None  # what the release minimises
    attribute: Attribute | None = None  # in attribute games
    likelihood: Any = None  # (params, example, update) -> log density of the update
    variance: Any = None  # [] of an entry of the update; None = not known, or no noise
    mask: Any = None  # like params, 1 = an entry that updates have, else 0; None = all
    mechanism: StepLaw | None = None
    prior: Mixture | None = None  # that records are drawn from, where one is published
    shadows: Any = None  # in membership games: signals.Shadows


class Observation(NamedTuple):
    """What an attacker is shown of one run; what it did not declare is None."""

    params: Any = None
    label: Any = None
    update: Any = None  # the noised gradient of a step at `params`
    steps: Steps | None = None  # all of a run
    target: Any = None  # oracles only; an oracle is a reference, never ranked
    rest: Any = None  # [D] what the known records and the regulariser leave of the
    # objective's gradient at `params`: the target's own gradient must cancel it
    candidates: Any = None  # attribute games: [v, *features] what the target may be;
    # identification games: Examples [M, ...]
    alignment: Alignment | None = None  # identification games
    refits: Any = None  # attribute games: [v, D] noiseless releases, one per candidate
    signals: Any = None  # membership games: signals.Signals, and `label` is [records]
    ratios: Any = None  # canary games: [] log p(transcript), canary in against out


class Fit(Protocol):
    def __call__(self, key: Array, knowledge: Knowledge, /) -> tuple[Any, dict]:
        """Return the state, a pytree of arrays, and diagnostics that JSON can hold.

        It is called once, before any release is seen.
        """


class Guess(Protocol):
    def __call__(self, state: Any, key: Array, observation: Observation, /) -> Any:
        """Return a record [*features]; the game vmaps over observations.

        In attribute games: one score per value; in membership games: one per record;
        in identification games: one per candidate, the largest names the target.
        """


class Attack(NamedTuple):
    """Fit before the release, guess after it."""

    threat_model: ThreatModel
    fit: Fit
    guess: Guess


class Bound(NamedTuple):
    """One lower bound on the mean squared error."""

    name: str
    value: AnyArray  # [targets], or [] when it is the same for all
    holds_for: str  # which attackers, in words
    theorem: str
    ranked: bool = True  # False: printed with its assumption, never ranked
    log10: Any = None  # log10 of value where value underflows
    standard_error: float | None = None  # of a value that is estimated
    genie: AnyArray | None = None  # [targets] error of an attacker who attains it
    # (errors [targets]) -> standard errors by which they exceed a bound on the average
    excess: Callable[[Any], float] | None = None
    needed: int | None = None  # targets that show an attacker at half of the bound


class Readings(NamedTuple):
    """What accounting says of one defense, to make a bound of; None = no reading."""

    dimension: int  # d of one record
    domain: tuple[float, float]  # of every coordinate; infinite = unknown
    trace: AnyArray | None  # [targets] Tr I of the Fisher information, mean over runs
    rdp: Callable | None  # (orders) -> [orders], replace-one, of all that is released
    pld: Callable | None  # () -> PrivacyLoss, replace-one; None in exposed games
    pool: Examples  # [m, ...] distinct samples of the attacker's prior
