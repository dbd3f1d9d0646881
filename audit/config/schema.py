"""The schema of a scenario file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Interval, Len
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from audit.types import (
    Count,
    NonNegative,
    NonNegativeInt,
    Optimizer,
    Positive,
    Seed,
    Share,
)

# Beyond these no setting makes sense. Settings that say a limit themselves have that.
LARGEST = 10**7  # of integers
SMALL, LARGE = 1e-18, 1e18  # of numbers but 0: their squares are numbers in float32

Runs = Annotated[int, Interval(ge=1, le=10**6)]
Copies = Annotated[int, Interval(ge=0, le=10**5)]
Folder = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=1_000)]
LineUp = list[str | Annotated[dict[str, dict[str, Any]], Len(1)]]


class Section(BaseModel):
    """A part of a scenario: every word of it is named, every value has its type.

    A game names its own settings by a subclass in its file.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _plausible(cls, value: Any, info: Any) -> Any:
        """Refuse what float32 cannot compute with, and counts nobody can wait for."""
        limits = cls.model_fields[info.field_name].metadata
        limited = any(getattr(m, "lt", None) or getattr(m, "le", None) for m in limits)
        if isinstance(value, float) and value and not SMALL <= abs(value) <= LARGE:
            allowed = f"0, or of a size from {SMALL} to {LARGE}"
        elif isinstance(value, int) and abs(value) > LARGEST and not limited:
            allowed = f"at most {LARGEST}"
        else:
            return value
        raise PydanticCustomError("implausible", f"input should be {allowed}")


class SplitSizes(Section):
    """How many records go where; arguments of `data.split`."""

    public: NonNegativeInt | Share = 0  # a number, or a share of the training part
    fixed: Count | None = None  # None = all that the others leave
    pool: NonNegativeInt = 0
    targets: NonNegativeInt = 0  # none where every fixed record is the target in turn
    test: Count | None = None  # None = the official test part
    pool_from: Literal["train", "test"] = "train"
    order: Literal["file", "shuffled"] = "file"
    augment: Copies = 0  # size of the pool after augmentation; 0 = none
    seed: Seed = 0  # of the shuffle and the augmentation; independent of the run's seed


class Features(Section):
    """What is done to the records first; arguments of `data.prepare_features`."""

    channels: bool | Literal["cifar10", "centred"] = False
    unit_ball: bool = False
    pca: NonNegativeInt = 0
    standardise: bool = False


class Pretrain(Section):
    """Training on the public records before anything private; see `pretrain.start`."""

    epochs: NonNegativeInt = 0
    batch_size: Count = 512
    learning_rate: Positive = 0.01
    weight_decay: NonNegative = 1e-4
    optimizer: Optimizer = "adam"


class FisherReading(Section):
    """How Fisher information is read along noised steps; see `accounting.traces`.

    Where there is a closed form it is used, whatever `estimator` says.
    """

    estimator: Literal[
        "exact", "gaussian", "rademacher", "coordinate", "coordinate_replaced",
        "hutch++",
    ] = "rademacher"  # fmt: skip
    probes: Annotated[int, Interval(ge=2, le=10**5)] | Literal["auto"] = 8  # per record
    # and step; `auto` = as many as `error` needs
    error: Annotated[float, Interval(gt=0, lt=1)] = 0.05  # relative standard error of
    # the median record's dFIL that `auto` meets, of what probes contribute
    every: Count = 1  # steps of which one, drawn at random, stands for all of them
    records: Literal[0] | Annotated[int, Interval(ge=2)] | None = None  # drawn at
    # random; None = all, 0 = nobody: no dFIL, and nothing that is made of it
    precision: Literal["double", "single"] = "double"
    lanczos: NonNegativeInt = 0  # products for the spectral norm of each step and
    # record, of which eta is made; 0 = no eta

    @property
    def anybody(self) -> bool:
        """Return whether anybody's dFIL is read."""
        return self.records != 0


class DataSet(Section):
    """What a scenario does on one data set.

    Further words are settings of the game that differ here.
    """

    model_config = ConfigDict(extra="allow")

    splits: SplitSizes
    features: Features | None = None  # where they are prepared otherwise than elsewhere
    training: dict[str, Any] = {}
    defense: dict[str, dict[str, Any]] = {}
    attack: dict[str, dict[str, Any]] = {}


class TaskSpec(Section):
    """What is learnt: a model of `models.networks` on some classes of the data."""

    model: str
    # none where labels are numbers; `all` = those of the data
    classes: list[NonNegativeInt] | Literal["all"] = []
    label_private: bool = False  # count the label among what an attacker wants
    settings: dict[str, Any] = {}


class Chosen(Section):
    """Who chose a defense's settings, and what that cost; shown, never used."""

    by: str
    cost: str
    tuned_on: Literal["elsewhere", "targets"] | None = None  # None = not said


class ScenarioSpec(Section):
    """The schema of a scenario file plus the words of the command line.

    Settings of the game stand beside these words, see `compose.validate`.
    """

    name: str
    title: str
    source: str
    game: str
    seed: Seed = 0
    task: TaskSpec
    features: Features = Features()
    data: str = "auto"  # the name of a data set, `auto`, or `file:PATH.npz`
    sets: Annotated[dict[str, DataSet], Len(1)]
    splits: dict[str, Any] = {}  # words of `SplitSizes` that win over those of the set
    runs: Runs = 1
    accounting_runs: Runs = 1
    delta: Share = 1e-9
    pretrain: Pretrain = Pretrain()
    fisher: FisherReading = FisherReading()
    training: dict[str, Any] = {}
    defenses: Annotated[LineUp, Len(1)]
    defense: dict[str, dict[str, Any]] = {}
    chosen: dict[str, Chosen] = {}  # of a label of the line-up
    attacks: LineUp = []  # none: bounds alone
    attack: dict[str, dict[str, Any]] = {}
    bounds: LineUp = []  # plug-ins, beside the suite's
    bound: dict[str, dict[str, Any]] = {}
    lanes: dict[str, Any] = {}
    estimate: Literal["enforced", "ignored"] = "enforced"  # of memory and time
    engine: Literal["local", "ray"] = "local"  # where tiles are computed
    plan: bool = False  # print what the run will take, and train nothing
    out: Folder | None = None
    store: Folder | None = None
