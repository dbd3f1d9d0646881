"""Contracts of the suite: NamedTuples and aliases, and nothing else of ours.

Every array field says its shape. Leading axes are batch axes; one example has none.
Nothing is imported, so that the command line reads a plug-in's settings in no time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

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
Optimizer = Literal["sgd", "momentum", "adam"]
Sampling = Literal["full", "uniform", "poisson", "shuffled"]
Clipping = Literal["soft", "hard"]
Updates = Any  # a pytree shaped like the parameters
Side = Any  # whatever `prepare` made from public data, a pytree


class Lanes(NamedTuple):
    """Settings that cost or save time and cannot change the mathematics."""

    tile: Count = 512  # lanes under one vmap; part of the store key (rounding)
    memory_gib: Positive = 2.0  # what tiles in flight may take together


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


class Batch(NamedTuple):
    """Who takes part in one step. The target is row N."""

    rows: Array | None  # [b] rows into (fixed, target); None = everybody, no gather
    weight: Array | None  # [b] or [n], 0 = does not take part; None = all ones


class StepView(NamedTuple):
    """One step as the accounting sees it; nobody outside the learner gets all of it."""

    params: Any  # before the step
    side: Side  # what the step's query used
    update: Updates  # the noised sum the step applied
    batch: Batch
    t: Array  # [] step number, from 0


class Dissection(NamedTuple):
    """One step taken apart, for every record of the set; only the learner sees it."""

    params: Any  # after the step
    base: Any  # [n, D] the masked gradient
    added: Any  # [n, D] what is added to it before the clip; None = nothing
    final: Any  # [n, D] the contribution, before noise: clip(base + added)
    public: Any  # [D] mean masked gradient of the public records; None = there are none
    private: Any  # [D] mean masked gradient of the step's batch
    trace: Any  # [n] Fisher information of the step; None = no reading


class State(NamedTuple):
    """The learner between two steps."""

    params: Any
    optimizer: Any
    side: Side
    t: Array


class Release(NamedTuple):
    """What leaves the learner."""

    params: Any  # final parameters, or whatever the mechanism publishes


class Query(NamedTuple):
    """One example's contribution to what is released.

    `fn` is both what training sums and what accounting differentiates, so that what is
    trained is what is accounted. The closed forms must equal it (laws in the tests).
    """

    fn: Callable  # (params, side, example) -> Updates, differentiable in example.x
    norm_bound: Any  # sup ||fn(z)||_2: the add-or-remove sensitivity; inf = unbounded
    sensitivity: Any  # sup ||fn(z) - fn(z')||_2: the replace-one sensitivity
    smooth: bool = True  # differentiable everywhere; False = no Fisher reading
    total: Callable | None = None  # (params, side, [b], w [b]) -> sum_i w_i fn(z_i)
    trace: Callable | None = None  # (params, side, [m]) -> ||d fn / d x||_F^2 [m]
    score: Callable | None = (
        None  # (params, side, [m], u) -> <u, fn>, ||fn||^2, each [m]
    )
    parts: Callable | None = None  # (params, side, example) -> (gradient, added | None)


class Sampler(NamedTuple):
    """Who takes part in a step, and what that is worth in accounting.

    `n` is the public number of records, the target included.
    """

    draw: Callable  # (run_key, t, n) -> Batch
    denominator: Callable  # (n) -> float; Poisson: the expected size
    fisher_factor: Callable  # (noise, query, n, weight) -> factor on one step's trace
    rdp: Callable  # (noise, query, n, steps, orders, adjacency) -> [orders] | None
    pld: Callable  # (noise, query, n, steps, adjacency) -> PrivacyLoss | None
    members_only: bool = False  # the factor of a record outside the batch is 0
    visits: Callable = lambda n, steps: steps  # at most, of one record
    schedule: Callable | None = None  # (run_key, steps, n) -> every step's Batch at
    # once, [steps, ...]; law: == draw. Where drawing one costs as much as an epoch
    everybody: bool = False  # all records take part in every step


class Noise(NamedTuple):
    """What is added, or put in place of a contribution."""

    sample: Callable  # (key, pytree) -> pytree of the same shape
    precision: Any  # Fisher information per unit squared motion, or {module: of it};
    # None = no noise, or no reading
    stddev: Any = None  # of an isotropic Gaussian; None for any other law
    rdp: Callable | None = None  # (orders, sensitivity) -> [orders], one release
    at: Literal["sum", "example"] = "sum"  # what is drawn for; "example": replace-one
    total: Callable | None = None  # (key, sum, how many) -> noised sum: at "sum", where
    # it depends on how many records take part
    log_density: Callable | None = None  # (contribution, drawn) -> [], up to a constant
    pld: Callable | None = None  # (releases, share) -> PrivacyLoss of a record that
    # takes part in each with this probability, where it is no Gaussian's


class Objective(NamedTuple):
    """What a stationary release minimises, apart from its noise. Public.

    sum_i weight_i loss(params; z_i) + (ridge / 2) ||params||^2
    """

    gradient: Callable  # (params, example) -> one record's loss gradient [D]
    total: Callable  # (params, Examples [m], weight [m]) -> sum_i w_i gradient_i [D]
    ridge: Callable  # (n) -> factor of the regulariser
    weights: Callable  # (side, Examples [n]) -> [n], taken as known to everybody
    solve: Callable  # (side, TrainingSet) -> params: the release without its noise
    publish: Callable  # (key, params) -> params with the release's noise
    known: Callable  # (side, Examples [n]) -> what `refit` shares between records
    refit: Callable  # (known, row, example) -> params with the record in `row` replaced
    loss: Literal["linear", "logistic"]
    intercept: bool  # the last parameter weighs a constant feature


class Nominal(NamedTuple):
    """What a publication claims of a defense, beside what holds."""

    quantity: str  # in words
    value: float
    source: str
    void: str | None  # why it does not hold here; None = it does


class Parts(NamedTuple):
    """What a builder made a defense of; `measured` and `testing` look if it is so."""

    noise: Noise
    query: Query | None = None  # None = a single release
    sampler: Sampler | None = None


class Exposed(NamedTuple):
    """One step at given parameters, as whoever receives its update sees it."""

    update: Callable  # (key, side, params, Examples [b]) -> Updates, their noised mean
    trace: Callable | None  # (key, side, params, Examples [m]) -> Fisher information of
    # one such update about each record [m]; None = no bound
    rdp: Callable | None  # (orders) -> [orders], replace-one; None = no bound
    log_density: (
        Callable | None
    )  # (side, params, example, Updates) -> [], of the update
    # of that record alone, up to what all records share; None = none is known


class Defense(NamedTuple):
    """The thin waist: all that the audit knows of a training algorithm.

    None in an accounting field means "no bound", never zero.
    """

    prepare: Callable  # (key, Public) -> side: public data only, once, for all lanes
    init: Callable | None  # (key, side) -> State; None = nothing iterates
    step: Callable | None  # (key, State, TrainingSet) -> (State, StepView)
    train: Callable  # (key, side, TrainingSet) -> Release; pure, vmappable
    predict: (
        Callable | None
    )  # (side, Release, x [m]) -> logits [m, k]; None = no utility
    fisher: Callable | None  # (key, side, TrainingSet, rows [m]) -> trace [m] on a run
    log_likelihood: Callable | None  # (key, side, TrainingSet, [m]) -> [m + 1]
    rdp: Callable | None  # (n, orders, adjacency) -> [orders] or None
    pld: Callable | None  # (n, adjacency) -> PrivacyLoss or None
    traits: frozenset[str] = frozenset()  # {"stationary", "linear", "sum", ...}
    objective: Objective | None = None  # of a stationary release
    fil: Callable | None = None  # (key, side, TrainingSet, rows [m], columns | None)
    # -> Tr I as `fisher`, and the spectral norm of I, of the columns alone if any [m]
    check: Callable | None = None  # (Examples) -> None; ValueError names the remedy
    nominal: Callable | None = None  # (n) -> tuple[Nominal, ...]
    anatomy: Callable | None = None  # (side, TrainingSet) -> {name: array}, for figures
    dissect: Callable | None = None  # as `step`, public Examples last: a Dissection
    steps: int | None = None  # how many `train` takes; None = nothing iterates
    exposed: Exposed | None = None  # None = nothing is shown before the release
    parts: Parts | None = None  # what a builder made it of


class ThreatModel(NamedTuple):
    """Who the attacker is. The referee grants exactly the words said here."""

    goal: Literal["reconstruction", "inversion", "membership", "attribute"]
    sees: frozenset[str] = frozenset()  # of {"params", "signals"}; oracles: {"target"}
    # of {"fixed", "label", "init", "train", "public", "shadows"}
    knows: frozenset[str] = frozenset()
    assumes: frozenset[str] = frozenset()  # of Defense.traits, else the pair is skipped


class Attribute(NamedTuple):
    """What an attribute game is about."""

    columns: AnyArray  # [s] of the flat record
    values: AnyArray  # [v, s] what they can be; public


class Knowledge(NamedTuple):
    """What an attacker holds before the release; what it did not declare is None."""

    task: Task
    pool: Examples  # [m, ...] samples of the attacker's prior
    pool_source: AnyArray  # [m] which original image a pool row comes from
    fixed: Examples | None = None
    init: Any = None  # the parameters every run starts from
    public: Examples | None = None
    train: Callable | None = None  # (key, TrainingSet of [m] targets) -> Release [m]
    objective: Objective | None = None  # what the release minimises
    attribute: Attribute | None = None  # in attribute games
    likelihood: Any = None  # (params, example, update) -> log density of the update
    shadows: Any = None  # in membership games: signals.Shadows


class Observation(NamedTuple):
    """What an attacker is shown of one run; what it did not declare is None."""

    params: Any = None
    label: Any = None
    update: Any = None  # the noised gradient of a step at `params`
    target: Any = None  # oracles only; an oracle is a reference, never ranked
    rest: Any = None  # [D] what the known records and the regulariser leave of the
    # objective's gradient at `params`: the target's own gradient must cancel it
    candidates: Any = None  # attribute games: [v, *features] what the target may be
    refits: Any = None  # attribute games: [v, D] noiseless releases, one a candidate
    signals: Any = None  # membership games: signals.Signals, and `label` is [records]
    ratios: Any = None  # canary games: [] log p(transcript), canary in against out


class Attack(NamedTuple):
    """Fit before the release, guess after it."""

    threat_model: ThreatModel
    fit: Callable  # (key, Knowledge) -> (state, info): a pytree; plain diagnostics
    guess: Callable  # (state, key, Observation) -> [*features]; vmapped by the game.
    # Attribute games: a score a value; membership games: a score a record


class Bound(NamedTuple):
    """One lower bound on the mean squared error."""

    name: str
    value: AnyArray  # [targets], or [] when it is the same for all
    holds_for: str  # which attackers, in words
    theorem: str
    ranked: bool = True  # False: printed with its assumption, never ranked
    log10: Any = None  # log10 of value where value underflows


class Readings(NamedTuple):
    """What accounting says of one defense, to make a bound of; None = no reading."""

    dimension: int  # d of one record
    domain: tuple[float, float]  # of every coordinate; infinite = unknown
    trace: AnyArray | None  # [targets] Tr I of the Fisher information, mean over runs
    rdp: Callable | None  # (orders) -> [orders], replace-one, of all that is released
    pld: Callable | None  # () -> PrivacyLoss, replace-one; None in exposed games
    pool: Examples  # [m, ...] distinct samples of the attacker's prior


class Task(NamedTuple):
    """What is learnt. Functions and constants only: hashable, so it may be static."""

    name: str  # model and shapes in words; part of the store key
    loss: Callable  # (params, example) -> []
    logits: Callable  # (params, x [*features]) -> [classes]
    init: Callable  # (key) -> params
    features: tuple[int, ...]  # shape of one x
    classes: int  # labels 0 .. classes - 1; 0 = labels are numbers
    domain: tuple[float, float] = (0.0, 1.0)
    label_private: bool = False
    linear: Any = None  # (params -> linear.Head, Head -> params) if logits are affine
    smooth: bool = True  # gradients are continuous in x; False = no Fisher reading
    dense: Any = None  # dense.Stack, if the model is one and the loss cross-entropy


class Splits(NamedTuple):
    """Pairwise disjoint sets of records, checked when they are made."""

    public: Examples  # anyone may use: pre-training, masks
    fixed: Examples  # what the informed adversary knows
    targets: Examples  # the records to be rebuilt, one a run
    pool: Examples  # the adversary's prior: originals first, then augmented copies
    test: Examples  # utility
    pool_source: AnyArray  # [pool] index of the original a row comes from
